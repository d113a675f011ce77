#!/usr/bin/env bash
# Our initiator as a library (a Batch, see iscsi/initiator/dial/bench_test.go) against libiscsi, on the same RAM disk of
# iserd over TCP, in turns: ROUNDS=3 of SECONDS_EACH=2 each. libiscsi reads by its iscsi-perf and writes by load.c, since
# iscsi-perf only reads. Prints the medians of I/Os a second, their ratio with that of the worst and the best round, and
# our allocations an I/O. Needs libiscsi-bin, libiscsi-dev and gcc.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${ROUNDS:-3} each=${SECONDS_EACH:-2}
tmp=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; rm -rf "$tmp"' EXIT
go build -o "$tmp/" ./cmd/iserd
go test -c -o "$tmp/dial.test" ./iscsi/initiator/dial
gcc -O2 -o "$tmp/load" .ci/bench/load.c -liscsi

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

ours() { # MODE KIB DEPTH: I/Os a second, allocations an I/O
	"$tmp/dial.test" -test.run '^$' -test.bench "URL/^$1\$/^$2KiB\$/^$3\$" -test.benchtime "${each}s" -url "$url" |
		awk '/ns\/op/ { for (i = 1; i <= NF; i++) { if ($i == "ns/op") t = $(i - 1); if ($i == "allocs/op") n = $(i - 1) } print int(1e9 / t), n }'
}

theirs() { # MODE KIB DEPTH: I/Os a second
	if [[ $1 == write ]]; then
		"$tmp/load" -m write -b $(($2 * 1024)) -q "$3" -t "$each" "$url" |
			sed -n 's/.*"seconds": *\([0-9.]*\).*"ios": *\([0-9]*\).*/\2 \1/p' | awk '{ print int($1 / $2) }'
		return
	fi
	iscsi-perf -m "$3" -b $(($2 * 2)) -t "$each" "$url" 2>&1 | tr '\r' '\n' | sed -n 's/.*iops average \([0-9]*\).*/\1/p' | tail -1
}

printf '%-18s %10s %10s %7s %15s %s\n' 'mode KiB/depth' 'ours, IO/s' 'libiscsi' 'ratio' '(worst, best)' 'allocations an I/O'
for mode in read write; do
	for c in 4/1 4/32 4/128 1024/8; do
		size=${c%/*} depth=${c#*/}
		: >"$tmp/ours"; : >"$tmp/theirs"
		for ((i = 0; i < rounds; i++)); do
			ours "$mode" "$size" "$depth" >>"$tmp/ours"
			theirs "$mode" "$size" "$depth" >>"$tmp/theirs"
		done
		a=$(median <"$tmp/ours") b=$(median <"$tmp/theirs")
		spread=$(paste -d' ' "$tmp/ours" "$tmp/theirs" | awk '{ print $1 / $3 }' | sort -g | sed -n '1p;$p' | xargs printf '(%.2f, %.2f)')
		awk -v c="$mode $c" -v a="$a" -v b="$b" -v s="$spread" -v n="$(awk 'END { print $2 }' "$tmp/ours")" \
			'BEGIN { printf "%-18s %10d %10d %7.2f %15s %s\n", c, a, b, a / b, s, n }'
	done
done
