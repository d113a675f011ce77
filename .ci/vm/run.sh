#!/bin/bash
# Run a script as root in a throw-away VM, stream its output, exit with its exit status.
#
#   run.sh [options] SCRIPT [FILES...]
#
#   -t SECONDS   give up after that long (default 600); exit status 124
#   -k KERNEL    6.12 (default) or 6.1, see build-image.sh
#   -c CPUS      virtual CPUs (default 2)            -m MB   memory (default 2048)
#   -o DIR       what the script leaves in $OUT is copied to DIR; also the kernel logs
#   -e NAME=VAL  set in the script's environment (may be repeated)
#   -a ARGS      more arguments for QEMU (split at blanks)
#   -q           no closing line
#
# In the guest: SCRIPT, FILES and guest-lib.sh lie in the current directory /job (a copy, in the
# guest's own file system; FILES may be folders). $OUT goes back to -o DIR. The guest's disks are
# discarded. It has no network but what it makes for itself.
#
# Exit status: SCRIPT's; 124 timeout; 125 the VM died (kernel log's end is printed); 2 usage.
#
# Emulated by QEMU's TCG unless ISERTEST_ACCEL=kvm: about 10 times slower than the host.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/common.sh"
usage() { sed -n '2,21p' "${BASH_SOURCE[0]}" | sed 's/^# \?//' >&2; exit 2; }

TIMEOUT=600 CPUS=2 MEM=2048 OUTDIR= QUIET=
ENVS=() XARGS=()
while getopts t:k:c:m:o:e:a:qh o; do
	case $o in
	t) TIMEOUT=$OPTARG ;; k) ISERTEST_KERNEL=$OPTARG ;; c) CPUS=$OPTARG ;; m) MEM=$OPTARG ;;
	o) OUTDIR=$OPTARG ;; e) ENVS+=("$OPTARG") ;; a) read -ra XARGS <<<"$OPTARG" ;;
	q) QUIET=1 ;; *) usage ;;
	esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
SCRIPT=$1; shift

IMG=$(rootfs_img) KDIR=$(kernel_dir "$ISERTEST_KERNEL")
[ -f "$IMG" ] && [ -f "$KDIR/version" ] || "$HERE/build-image.sh" "$ISERTEST_KERNEL"

# The shared folder.
D=$(mktemp -d "${TMPDIR:-/tmp}/isertest-vm.XXXXXX")
VM= READER=
cleanup() {
	local p
	for p in $VM $READER; do kill "$p" 2>/dev/null || true; done
	rm -rf "$D"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$D/share/job" "$D/share/out"
cp -rL "$HERE/guest-lib.sh" "$SCRIPT" "$@" "$D/share/job/"
chmod -R u+rwX "$D/share/job"; chmod +x "$D/share/job"/*

vm() {
	local accel=(-accel tcg,thread=multi -cpu max,la57=off) bus=pci machine=pc,usb=off,vmport=off,hpet=off
	[ "${ISERTEST_ACCEL:-tcg}" = kvm ] && accel=(-accel kvm -cpu host)
	# microvm boots 1 s sooner, but under TCG on a busy host a third of its boots never see a timer
	# interrupt and hang (QEMU 7.2): for KVM only.
	[ "${ISERTEST_MACHINE:-pc}" = microvm ] && bus=device machine=microvm,acpi=on
	exec timeout -k 5 "$TIMEOUT" qemu-system-x86_64 "${accel[@]}" \
		-machine "$machine" -nodefaults -no-user-config -display none -no-reboot \
		-smp "$CPUS" -m "$MEM" -kernel "$KDIR/vmlinux" -initrd "$KDIR/initrd.cpio" \
		-append "console=ttyS0 quiet panic=-1 reboot=t mitigations=off nokaslr cryptomgr.notests=1 audit=0 selinux=0 apparmor=0 net.ifnames=0 tsc=reliable random.trust_cpu=on vm_role=main" \
		-drive "file=$IMG,format=raw,if=none,id=vda,snapshot=on,cache=unsafe,aio=threads" -device virtio-blk-$bus,drive=vda \
		-drive "file=$KDIR/modules.img,format=raw,if=none,id=vdb,readonly=on,cache=unsafe" -device virtio-blk-$bus,drive=vdb \
		-fsdev "local,id=share,path=$D/share,security_model=none,multidevs=remap" -device virtio-9p-$bus,fsdev=share,mount_tag=share \
		-device virtio-serial-$bus -chardev "file,id=out,path=$D/pipe" -device virtserialport,nr=1,chardev=out,name=out \
		-device virtio-rng-$bus -chardev "file,id=con,path=$D/console" -serial chardev:con \
		${XARGS[@]+"${XARGS[@]}"} < /dev/null 2> "$D/qemu-err"
}

{
	printf 'VM_SCRIPT=%q\nVM_CPUS=%q\n' "$(basename "$SCRIPT")" "$CPUS"
	for e in ${ENVS[@]+"${ENVS[@]}"}; do printf '%s=%q\n' "${e%%=*}" "${e#*=}"; done
} > "$D/share/env.main"

T0=$(date +%s.%N)
start() {
	rm -rf "$D/pipe" "$D/console" "$D"/share/{boot-seconds,rc,dmesg}.main
	# The output comes through a FIFO: QEMU's stdio would hang up on the guest at the end of a stdin
	# that is /dev/null, and a file chardev on /dev/stdout would truncate the log we may be sent to.
	mkfifo "$D/pipe"
	cat "$D/pipe" & READER=$!
	vm & VM=$!
}
booted() { # true once the script has begun
	local i
	for ((i = 0; i < BOOT_TIMEOUT * 2; i++)); do
		[ ! -e "$D/share/boot-seconds.main" ] || return 0
		kill -0 "$VM" 2>/dev/null || return 1
		sleep 0.5
	done
	return 1
}
# A boot that hangs or dies is tried again (emulation by several threads and a kernel that patches its
# own text do not always get on): the script has not begun.
: "${BOOT_TIMEOUT:=60}"
for try in 1 2 3; do
	start
	booted && break
	echo "run.sh: no boot within $BOOT_TIMEOUT s, try $try; the console's end:" >&2
	tail -3 "$D/console" >&2
	[ $try -lt 3 ] || { echo "run.sh: giving up" >&2; exit 125; }
	kill "$VM" "$READER" 2>/dev/null || true
	wait "$VM" "$READER" 2>/dev/null || true
done

q=0; wait "$VM" || q=$?
wait "$READER" || true
if [ "$q" = 124 ] || [ "$q" = 137 ]; then
	echo "run.sh: stopped after $TIMEOUT s" >&2; rc=124
elif [ -s "$D/share/rc.main" ]; then
	rc=$(cat "$D/share/rc.main")
else
	echo "run.sh: the VM died (qemu exit $q)" >&2; rc=125
fi
if [ "$rc" != 0 ]; then
	cat "$D/qemu-err" >&2
	echo "--- the kernel log's end:" >&2
	if [ -s "$D/share/dmesg.main" ]; then tail -25 "$D/share/dmesg.main" >&2
	else tr -d '\r' < "$D/console" | tail -40 >&2; fi
fi
if [ -n "$OUTDIR" ]; then
	mkdir -p "$OUTDIR"
	cp -r "$D/share/out/." "$OUTDIR/"
	tr -d '\r' < "$D/console" > "$OUTDIR/console.log"
	[ ! -f "$D/share/dmesg.main" ] || cp "$D/share/dmesg.main" "$OUTDIR/dmesg.log"
fi
T1=$(date +%s.%N)
boot=$(cat "$D/share/boot-seconds.main" 2>/dev/null || echo '?')
[ -n "$QUIET" ] || awk -v a="$T0" -v b="$T1" -v s="$(basename "$SCRIPT")" -v rc="$rc" -v k="$(cat "$KDIR/version")" -v boot="$boot" \
	'BEGIN { printf "run.sh: %s: exit %d in %.1f s (kernel %s, script began %s s after the kernel)\n", s, rc, b - a, k, boot }' >&2
exit "$rc"
