#!/bin/bash
# Ours to ours on this machine, between two network namespaces that lose packets: host.sh BIN OUT. Prints one line
# "PASS host_lossy" or "FAIL host_lossy" with the time that `iser verify` of 1 GiB took.
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
means=netem
for ns in $a $b; do
	ip -n $ns link set lo up
	ip -n $ns link set veth0 up
	ip netns exec $ns ethtool -K veth0 tx-udp-segmentation off
	if ! ip netns exec $ns tc qdisc add dev veth0 root netem limit 10000 loss 1% reorder 5% 50% delay 1ms 2> /dev/null; then
		means=nftables
		ip netns exec $ns nft -f - <<-NFT
			table inet loss {
				chain input {
					type filter hook input priority 0
					udp dport 4791 numgen random mod 100 == 0 counter drop
				}
			}
		NFT
	fi
done

ip netns exec $a "$bin/iserd" --ram "$size" --listen 10.9.3.1:3260 --provider roce --insecure > "$out/host-iserd.log" 2>&1 &
iserd=$!
for ((i = 0; i < 100; i++)); do
	! grep -qs 'listening on .*iser' "$out/host-iserd.log" || break
	sleep 0.1
done

trap - ERR
t=$SECONDS status=0
ip netns exec $b timeout 600 "$bin/iser" verify "iser://10.9.3.1:3260?rdma=roce" -q --size "$size" --bs mixed --depth 32 --destructive \
	--dump "$out" > "$out/host.log" 2>&1 || status=$?
[ $means = netem ] || ip netns exec $b nft list table inet loss >> "$out/host.log"
if [ $status = 0 ]; then
	echo "PASS host_lossy ($((SECONDS - t)) s for $size, $means)"
else
	echo "FAIL host_lossy (status $status, $((SECONDS - t)) s, $means)"
	tail -n 20 "$out/host.log" "$out/host-iserd.log"
fi
exit $status
