#!/usr/bin/env bash
# Our initiator as a library (a Batch, see iscsi/initiator/dial/bench_test.go) against libiscsi's iscsi-perf, reading the
# same RAM disk of iserd over TCP, in turns: ROUNDS=3 of SECONDS_EACH=2 each. Prints the medians of I/Os a second, their
# ratio, and our allocations an I/O. Needs libiscsi-bin.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${ROUNDS:-3} each=${SECONDS_EACH:-2}
tmp=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; rm -rf "$tmp"' EXIT
go build -o "$tmp/" ./cmd/iserd
go test -c -o "$tmp/dial.test" ./iscsi/initiator/dial

"$tmp/iserd" --ram 256MiB --listen 127.0.0.1:0 --provider tcp >"$tmp/log" 2>&1 &
server=$!
for _ in {1..100}; do
	address=$(sed -n 's/.*listening on \(127[0-9.:]*\), tcp.*/\1/p' "$tmp/log")
	[[ -z $address ]] || break
	sleep 0.1
done
[[ -n $address ]] || { cat "$tmp/log"; exit 1; }
url=iscsi://$address/iqn.2026-01.local.iserd:ram/0

median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

printf '%-12s %12s %12s %8s %s\n' 'KiB/depth' 'ours, IO/s' 'iscsi-perf' 'ratio' 'allocations an I/O'
for c in 4/1 4/32 4/128 1024/8; do
	size=${c%/*} depth=${c#*/}
	: >"$tmp/ours"; : >"$tmp/theirs"
	for ((i = 0; i < rounds; i++)); do
		line=$("$tmp/dial.test" -test.run '^$' -test.bench "Reads/${size}KiB/$depth\$" -test.benchtime "${each}s" -url "$url" | grep ns/op)
		awk '{ for (i = 1; i <= NF; i++) if ($i == "ns/op") print int(1e9 / $(i - 1)) }' <<<"$line" >>"$tmp/ours"
		iscsi-perf -m "$depth" -b $((size * 2)) -t "$each" "$url" 2>&1 | tr '\r' '\n' |
			sed -n 's/.*iops average \([0-9]*\).*/\1/p' | tail -1 >>"$tmp/theirs"
	done
	awk -v c="$c" -v a="$(median <"$tmp/ours")" -v b="$(median <"$tmp/theirs")" -v n="$(grep -o '[0-9]* allocs/op' <<<"$line")" \
		'BEGIN { printf "%-12s %12d %12d %8.2f %s\n", c, a, b, b ? a / b : 0, n }'
done
