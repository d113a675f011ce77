#!/bin/bash
# Ours to ours on this machine, between two network namespaces that lose packets: host.sh BIN OUT. Prints one line
# "PASS host_lossy" or "FAIL host_lossy" with the time that `iser verify` of 1 GiB took, and how much of the lossless rate
# is left when 1 % is lost: less than MIN_RATE (20) percent fails.
#
# Each end loses 1 % of what arrives. tc netem, with reordering, where the kernel has it, else nftables; the cases
# lossy_* in the virtual machine have netem in any case. Packets leave one by one (no segmentation offload), or those
# lost would be whole bursts.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
bin=$1 out=$2 a=iser-$$-a b=iser-$$-b size=${HOST_SIZE:-1GiB}

cleanup() {
	[ -z "${iserd:-}" ] || kill "$iserd" 2> /dev/null || true
	ip netns del $a 2> /dev/null || true
	ip netns del $b 2> /dev/null || true
}
trap cleanup EXIT
trap 'echo "FAIL host_lossy (its network cannot be set up here)"' ERR

ip netns add $a
ip netns add $b
ip -n $a link add veth0 mtu 4200 type veth peer name veth0 mtu 4200 netns $b
ip -n $a addr add 10.9.3.1/24 dev veth0
ip -n $b addr add 10.9.3.2/24 dev veth0
for ns in $a $b; do
	ip -n $ns link set lo up
	ip -n $ns link set veth0 up
	ip netns exec $ns ethtool -K veth0 tx-udp-segmentation off
done

ip netns exec $a "$bin/iserd" --ram "$size" --listen 10.9.3.1:3260 --provider roce --insecure > "$out/host-iserd.log" 2>&1 &
iserd=$!
for ((i = 0; i < 100; i++)); do
	! grep -qs 'listening on .*iser' "$out/host-iserd.log" || break
	sleep 0.1
done

# rate prints bytes a second of random reads and writes.
rate() {
	ip netns exec $b timeout 60 "$bin/iser" bench "iser://10.9.3.1:3260?rdma=roce" -q -o json --rw rw=50 --bs 64KiB --depth 16 --ramp 200ms \
		--time 3s --destructive | awk '/"bytes_per_second"/ { sub(",", "", $2); n += $2 } END { printf "%d", n }'
}

# drop has both ends lose 1 % of what arrives.
drop() {
	for ns in $a $b; do
		ip netns exec $ns nft -f - <<-NFT
			table inet loss {
				chain input {
					type filter hook input priority 0
					udp dport 4791 numgen random mod 100 == 0 counter drop
				}
			}
		NFT
	done
}

clean=$(rate)
drop
lossy=$(rate)
left=$((100 * lossy / clean))
means=netem
for ns in $a $b; do
	if ip netns exec $ns tc qdisc add dev veth0 root netem limit 10000 loss 1% reorder 5% 50% delay 1ms 2> /dev/null; then
		ip netns exec $ns nft delete table inet loss
	else
		means=nftables
	fi
done

trap - ERR
t=$SECONDS status=0
ip netns exec $b timeout 600 "$bin/iser" verify "iser://10.9.3.1:3260?rdma=roce" -q --size "$size" --bs mixed --depth 32 --destructive \
	--dump "$out" > "$out/host.log" 2>&1 || status=$?
[ $means = netem ] || ip netns exec $b nft list table inet loss >> "$out/host.log"
[ $status != 0 ] || [ $left -ge ${MIN_RATE:-20} ] || status=1
figures="$((SECONDS - t)) s for $size, $means; 1 % of loss left $left % of $((clean / 1000000)) MB/s"
if [ $status = 0 ]; then
	echo "PASS host_lossy ($figures)"
else
	echo "FAIL host_lossy (status $status, $figures)"
	tail -n 20 "$out/host.log" "$out/host-iserd.log"
fi
exit $status
