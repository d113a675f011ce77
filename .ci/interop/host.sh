#!/bin/bash
# Ours to ours on this machine, between network namespaces: host.sh BIN OUT. Prints a line "PASS NAME" or "FAIL NAME" for
# each of its cases:
#
#	host_lossy     how much of the lossless rate is left when each end loses 1 % of what arrives: less than MIN_RATE (20)
#	               percent fails
#	host_impaired  `iser verify` of HOST_SIZE (1GiB) over a wire that loses 1 %, sends 1 % twice and lets 1 % be overtaken,
#	               each way
#
# This kernel may have no netem: nftables loses packets for the first, and the wire of the second is a program of ours
# (impair), in a third namespace. Packets leave one by one (no segmentation offload), or those lost would be whole bursts.
#
#	A veth0 10.9.3.1  <->  veth0 10.9.3.2 B
#	A veth1 10.9.6.1  <->  wire0  impair, in M  wire1  <->  veth1 10.9.6.2 B
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
bin=$1 out=$2 a=iser-$$-a b=iser-$$-b m=iser-$$-m size=${HOST_SIZE:-1GiB} failed=0

cleanup() {
	[ -z "${iserd:-}" ] || kill "$iserd" 2> /dev/null || true
	[ -z "${impair:-}" ] || kill "$impair" 2> /dev/null || true
	for ns in $a $b $m; do ip netns del $ns 2> /dev/null || true; done
}
trap cleanup EXIT
trap 'echo "FAIL host_lossy (its network cannot be set up here)"' ERR

# wait_for FILE TEXT
wait_for() {
	local i
	for ((i = 0; i < 100; i++)); do
		! grep -qs "$2" "$1" || return 0
		sleep 0.1
	done
	return 1
}

for ns in $a $b $m; do ip netns add $ns; done
ip -n $a link add veth0 mtu 4200 type veth peer name veth0 mtu 4200 netns $b
ip -n $a link add veth1 mtu 4200 type veth peer name wire0 mtu 4200 netns $m
ip -n $b link add veth1 mtu 4200 type veth peer name wire1 mtu 4200 netns $m
ip -n $a addr add 10.9.3.1/24 dev veth0
ip -n $b addr add 10.9.3.2/24 dev veth0
ip -n $a addr add 10.9.6.1/24 dev veth1
ip -n $b addr add 10.9.6.2/24 dev veth1
for ns in $a $b; do
	ip -n $ns link set lo up
	for dev in veth0 veth1; do
		ip -n $ns link set $dev up
		ip netns exec $ns ethtool -K $dev tx-udp-segmentation off
	done
done
for dev in wire0 wire1; do ip -n $m link set $dev up; done

cat > "$out/host-iserd.yaml" <<-YAML
	version: 1
	insecure: true
	portals:
	  - {listen: "10.9.3.1:3260", provider: roce}
	  - {listen: "10.9.6.1:3260", provider: roce}
	backstores: {ram: {type: ram, size: $size}}
	targets: {"iqn.2026-01.test:ram": {luns: {0: ram}}}
YAML
ip netns exec $a "$bin/iserd" --config "$out/host-iserd.yaml" > "$out/host-iserd.log" 2>&1 &
iserd=$!
wait_for "$out/host-iserd.log" 'listening on 10.9.6.1.*iser'
ip netns exec $m "$bin/impair" wire0 wire1 > "$out/impair.log" 2>&1 &
impair=$!
wait_for "$out/impair.log" ready

# rate prints bytes a second of random reads and writes.
rate() {
	ip netns exec $b timeout 60 "$bin/iser" bench "iser://10.9.3.1:3260?rdma=roce" -q -o json --rw rw=50 --bs 64KiB --depth 16 --ramp 200ms \
		--time 3s --destructive | awk '/^    "bytes_per_second"/ { sub(",", "", $2); n += $2 } END { printf "%d", n }'
}

# drop has both ends lose 1 % of what arrives by veth0.
drop() {
	for ns in $a $b; do
		ip netns exec $ns nft -f - <<-NFT
			table inet loss {
				chain input {
					type filter hook input priority 0
					iifname veth0 udp dport 4791 numgen random mod 100 == 0 counter drop
				}
			}
		NFT
	done
}

# result NAME STATUS FIGURES LOG...
result() {
	if [ "$2" = 0 ]; then
		echo "PASS $1 ($3)"
		return
	fi
	echo "FAIL $1 (status $2, $3)"
	failed=1
	shift 3
	tail -n 20 "$@"
}

clean=$(rate)
drop
lossy=$(rate)
left=$((100 * lossy / clean)) status=0
[ $left -ge "${MIN_RATE:-20}" ] || status=1
result host_lossy $status "1 % of loss left $left % of $((clean / 1000000)) MB/s" "$out/host-iserd.log"

trap - ERR
t=$SECONDS status=0
ip netns exec $b timeout "${HOST_LIMIT:-600}" "$bin/iser" verify "iser://10.9.6.1:3260?rdma=roce" -q --size "$size" --bs mixed --depth 32 --zero 5 --unmap 5 \
	--destructive --dump "$out" > "$out/host.log" 2>&1 || status=$?
took=$((SECONDS - t))
kill $impair
wait $impair || status=$?
# The wire must have done each of its kinds, each way.
grep -c ' passed, [1-9][0-9]* lost, [1-9][0-9]* sent twice, [1-9][0-9]* overtaken' "$out/impair.log" | grep -qx 2 || status=1
cat "$out/impair.log" >> "$out/host.log"
result host_impaired $status "$took s for $size; $(grep passed "$out/impair.log" | paste -sd ';')" "$out/host.log" "$out/host-iserd.log"
exit $failed
