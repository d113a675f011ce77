#!/bin/bash
# `make conformance`: libiscsi's conformance suite over TCP, on this machine, against iserd and, beside it, stgt.
# Prints the verdicts a suite, ours and theirs, and each skip with its reason. Fails when a test of ours fails, crashes
# or hangs, or is skipped on all our LUNs without standing in docs/CONFORMANCE.md.
#
# Debian 12, root. CONFORMANCE_OUT keeps configuration and logs (default: a folder below /tmp, named at the end).
# SUITES="Unmap Sanitize" runs these only; NO_STGT=1 leaves stgt out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
out=${CONFORMANCE_OUT:-$(mktemp -d /tmp/conformance.XXXXXX)}
suites=(${SUITES:-})
# Addresses of this run alone, so that several can go on at once.
net=127.$((1 + $$ / 250 % 250)).$((1 + $$ % 250))
a=$net.1:3260 b=$net.2:3260 stgt_a=$net.3:3260 stgt_b=$net.4:3260
name=iqn.2026-01.test
export PATH=$PATH:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive
mkdir -p "$out"

pids=()
cleanup() {
	local p
	# tgtd does not end on SIGTERM while it has targets.
	for p in "${pids[@]}"; do kill -9 "$p" 2> /dev/null || true; done
}
trap cleanup EXIT

install_packages() {
	local need=()
	command -v iscsi-test-cu > /dev/null || need+=(libiscsi-bin)
	[ -n "${NO_STGT:-}" ] || command -v tgtd > /dev/null || need+=(tgt)
	[ ${#need[@]} -gt 0 ] || return 0
	# A daemon that the package would start is not wanted.
	local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${need[@]}")
	RUNLEVEL=1 "${apt[@]}" > /dev/null 2>&1 || { apt-get -qq update && RUNLEVEL=1 "${apt[@]}" > /dev/null; }
}

wait_for() { # COMMAND...: until it succeeds, 20 s
	local i
	for ((i = 0; i < 200; i++)); do
		! "$@" > /dev/null 2>&1 || return 0
		sleep 0.1
	done
	echo "conformance: timed out waiting for: $*" >&2
	return 1
}

serve_ours() {
	cat > "$out/iserd.yaml" <<-YAML
		version: 1
		portals:
		  - {listen: "$a", provider: tcp}
		  - {listen: "$b", provider: tcp}
		backstores:
		  plain: {type: file, path: "$out/plain.img", size: 256MiB, thin: no}
		  thin: {type: file, path: "$out/thin.img", size: 256MiB}
		  ram: {type: ram, size: 256MiB}
		  readonly: {type: ram, size: 256MiB}
		targets:
		  $name:plain: {luns: {0: plain}}
		  $name:thin: {luns: {0: thin}}
		  $name:ram: {luns: {0: ram}}
		  $name:readonly: {luns: {0: {store: readonly, readonly: true}}}
	YAML
	"$out/iserd" --config "$out/iserd.yaml" > "$out/iserd.log" 2>&1 &
	iserd=$!
	pids+=($iserd)
	wait_for iscsi-inq "iscsi://$b/$name:plain/0"
}

serve_stgt() {
	local adm control=$((100 + $$ % 30000)) # of its own: another tgtd may run here
	tgtd -f -d 0 -C $control --iscsi "portal=$stgt_a,portal=$stgt_b" > "$out/tgtd.log" 2>&1 &
	pids+=($!)
	adm="tgtadm -C $control --lld iscsi --mode"
	wait_for $adm sys --op show
	local tid=0 kind
	for kind in plain thin; do
		tid=$((tid + 1))
		truncate -s 256M "$out/stgt-$kind.img"
		$adm target --op new --tid $tid -T $name:stgt-$kind
		$adm logicalunit --op new --tid $tid --lun 1 -b "$out/stgt-$kind.img"
		$adm target --op bind --tid $tid -I ALL
	done
	$adm logicalunit --op update --tid 2 --lun 1 --params thin_provisioning=1
}

ours() { "$here/suites.sh" "$out/ours-$1" "iscsi://$a/$name:$1/0,iscsi://$b/$name:$1/0" "${@:2}"; }
stgt() { "$here/suites.sh" "$out/stgt-$1" "iscsi://$stgt_a/$name:stgt-$1/1,iscsi://$stgt_b/$name:stgt-$1/1" "${suites[@]}"; }

t=$SECONDS
install_packages
(cd "$root" && CGO_ENABLED=0 go build -o "$out/iserd" ./cmd/iserd)
serve_ours
passes=(ours-{plain,thin,ram,readonly})
for lun in plain thin ram; do ours $lun "${suites[@]}"; done
ours readonly ReadOnly
if [ -z "${NO_STGT:-}" ]; then
	serve_stgt
	passes+=(stgt-plain stgt-thin)
	stgt plain
	stgt thin
fi

status=0
for p in "${passes[@]}"; do sed "s/^/$p\t/" "$out/$p/results.tsv"; done > "$out/all.tsv"
iscsi-test-cu -l > "$out/list"
awk -v passes="${passes[*]}" -v only="${SUITES:-}" -f "$here/report.awk" "$root/docs/CONFORMANCE.md" "$out/list" "$out/all.tsv" || status=$?

# The daemon that bore all this is well, and ends in order.
kill $iserd
wait $iserd || { echo "FAIL iserd ended with status $?"; status=1; }
if grep -iE 'panic|level=(error|fatal)' "$out/iserd.log"; then echo "FAIL iserd logged the above"; status=1; fi
echo "conformance: $((SECONDS - t)) s, logs in $out" >&2
exit $status
