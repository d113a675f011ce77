#!/bin/bash
# Build everything with RDMA device support, run host.sh here, and the interoperability cases of guest.sh,
# roce.sh and scsi.sh in a virtual machine: `make interop`. What the cases leave goes to $INTEROP_OUT (default: a folder
# below /tmp, named at the end). CASES="a b" selects cases; host_lossy and host_impaired are those of host.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
out=${INTEROP_OUT:-$(mktemp -d /tmp/interop.XXXXXX)}
bin=$out/bin
mkdir -p "$bin"

for h in infiniband/verbs.h rdma/rdma_cma.h iscsi/iscsi.h; do
	[ -e "/usr/include/$h" ] || {
		echo "interop: /usr/include/$h is missing: apt-get install gcc libibverbs-dev librdmacm-dev libiscsi-dev" >&2
		exit 1
	}
done
for c in ip tc ethtool nft; do
	command -v $c > /dev/null || {
		echo "interop: there is no $c here: apt-get install iproute2 ethtool nftables" >&2
		exit 1
	}
done
export CGO_ENABLED=1
cd "$root"
go build -tags rdma -o "$bin/" ./cmd/iserd ./cmd/iser
go build -o "$bin/peer" ./.ci/interop/peer
go build -o "$bin/impair" ./.ci/interop/impair
go test -tags rdma -c -o "$bin/verbs.test" ./iser/rdma/verbs
gcc -O2 -Wall -o "$bin/libiscsi-dd" "$here/libiscsi-dd.c" -liscsi

status=0
cases=${CASES:-}
if [ -z "$cases" ] || [[ " $cases" = *" host_"* ]]; then
	"$here/host.sh" "$bin" "$out" || status=$?
	cases=${cases/host_lossy/} cases=${cases/host_impaired/}
	[ -z "${CASES:-}" ] || [ -n "${cases// /}" ] || exit $status
fi
vm() { # OUT CASES
	"$here/../vm/run.sh" -t 3000 -m 3072 -o "$1" -e CASES="$2" "$here/guest.sh" "$here/roce.sh" "$here/scsi.sh" "$here/rxe-skip" \
		"$here/../conformance/suites.sh" "$bin"/* || status=$?
}
mkdir -p "$out/libiscsi"
vm "$out" "$cases"
# A boot of its own: its client is killed in the middle of RDMA, and what the guest's kernel makes of that shall not hit
# the other cases.
[ -n "${CASES:-}" ] || vm "$out/libiscsi" "scsi_libiscsi scsi_daemon_is_well"
echo "interop: logs in $out" >&2
exit $status
