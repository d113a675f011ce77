#!/bin/bash
# Build the test VM's images, once, into $ISERTEST_CACHE (default ~/.cache/isertest-vm).
#
#   build-image.sh [KERNEL...]      KERNEL: 6.12 (default) or 6.1; several may be named
#   build-image.sh --force [...]    build again even if the cache holds the images
#   build-image.sh --clean          remove images that no current key refers to
#
# Needs: Debian 12, root, and a reachable Debian mirror (that of the host's apt). What it makes:
#   rootfs-KEY.img        ext4, the guest's user space (no kernel), opened read-only + snapshot
#   kernel-VER-KEY/       vmlinux (uncompressed: the bzImage's own unpacking takes 3 s under
#                         emulation), initrd.cpio (busybox + the modules needed to mount the root),
#                         modules.img (ext4, mounted on /lib/modules in the guest)
# KEY is a hash of the package list and of the parts of this script that matter, so that a change
# of either builds a new image, and an unchanged one is found again at once.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/common.sh"

FORCE= CLEAN=
KERNELS=()
for a in "$@"; do
	case $a in
	--force) FORCE=1 ;;
	--clean) CLEAN=1 ;;
	-*) sed -n '2,15p' "$0" | sed 's/^# \?//'; exit 2 ;;
	*) KERNELS+=("$a") ;;
	esac
done
[ ${#KERNELS[@]} -gt 0 ] || KERNELS=("$ISERTEST_KERNEL")
[ "$(id -u)" = 0 ] || { echo "build-image.sh: must run as root" >&2; exit 1; }

say() { printf '%s build-image: %s\n' "$(date +%T)" "$*" >&2; }
T0=$(date +%s)
mkdir -p "$ISERTEST_CACHE"

# One build at a time; a second one waits, then finds everything there.
exec 9>"$ISERTEST_CACHE/.lock"
flock 9

# --- host tools -------------------------------------------------------------------------------
host_tools() {
	local need=()
	command -v qemu-system-x86_64 >/dev/null || need+=(qemu-system-x86)
	command -v mmdebstrap >/dev/null || need+=(mmdebstrap)
	command -v mke2fs >/dev/null || need+=(e2fsprogs)
	command -v cpio >/dev/null || need+=(cpio)
	command -v depmod >/dev/null || [ -x /sbin/depmod ] || need+=(kmod)
	command -v xz >/dev/null || need+=(xz-utils)
	command -v strip >/dev/null || need+=(binutils)
	[ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || need+=(busybox-static)
	[ ${#need[@]} -eq 0 ] && return
	say "installing on the host: ${need[*]}"
	local apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
	export DEBIAN_FRONTEND=noninteractive
	"${apt[@]}" install -y --no-install-recommends "${need[@]}" >/dev/null ||
		{ "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${need[@]}" >/dev/null; }
}
export PATH=$PATH:/usr/sbin:/sbin
host_tools

# BEGIN ROOTFS (hashed into the image's key)
# What PID 1 does in the guest after the initramfs has mounted the root. The output of the test
# script goes to a virtio-serial port: faster than the emulated UART, and free of kernel messages.
guest_init() {
	cat <<'INIT'
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm /run/lock /job /mnt/share
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ip link set lo up
ulimit -l unlimited
echo 0 > /proc/sys/kernel/printk_ratelimit
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 share /mnt/share || { echo "no 9p share"; echo b > /proc/sysrq-trigger; }
cp -r /mnt/share/job/. /job/
cd /job
export SHARE=/mnt/share OUT=/mnt/share/out
role=main; for w in $(cat /proc/cmdline); do case $w in vm_role=*) role=${w#*=} ;; esac; done
for out in /dev/vport*p1 /dev/console; do [ -c "$out" ] && break; done
{
	set -a; . /mnt/share/env.$role; set +a
	cut -d' ' -f1 /proc/uptime > /mnt/share/boot-seconds.$role
	"./$VM_SCRIPT"
} < /dev/null > "$out" 2>&1
rc=$?
dmesg > "/mnt/share/dmesg.$role"
echo $rc > "/mnt/share/rc.$role"
echo b > /proc/sysrq-trigger        # with reboot=t and -no-reboot: QEMU exits at once
sleep 60
INIT
}

build_rootfs() {
	local img=$1 tmp=$1.d t=$(date +%s)
	rm -rf "$tmp" "$img".tmp*
	mkdir "$tmp"
	say "mmdebstrap $ISERTEST_SUITE -> $(basename "$img")"
	local incl=$(echo $ISERTEST_PACKAGES | tr ' ' ',')
	# Documentation, locales and man pages are left out; dpkg does not fsync.
	mmdebstrap --mode=root --variant=essential --format=dir --include="$incl" \
		--aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
		--dpkgopt='path-exclude=/usr/lib/x86_64-linux-gnu/gconv/*' \
		--dpkgopt='force-unsafe-io' \
		"$ISERTEST_SUITE" "$tmp" ${ISERTEST_MIRROR:+"$ISERTEST_MIRROR"} > "$img.log" 2>&1 ||
		{ tail -30 "$img.log" >&2; exit 1; }
	guest_init > "$tmp/sbin/guest-init"; chmod 755 "$tmp/sbin/guest-init"
	echo vm > "$tmp/etc/hostname"
	printf '127.0.0.1 localhost vm\n' > "$tmp/etc/hosts"
	mkdir -p "$tmp/lib/modules" "$tmp/job" "$tmp/mnt/share"
	rm -rf "$tmp"/var/cache/apt/* "$tmp"/var/lib/apt/lists/* "$tmp"/boot/*
	local mb=$(du -sm "$tmp" | cut -f1)
	# Room for test data on the root itself (tests may also use tmpfs): it is a sparse file.
	mke2fs -q -F -L root -t ext4 -O ^has_journal,^metadata_csum,^64bit -E lazy_itable_init=1,nodiscard -m 0 \
		-d "$tmp" "$img.tmp" $((mb + 6144))M > /dev/null
	mv "$img.tmp" "$img"
	rm -rf "$tmp"
	say "rootfs: $mb MB in $(( $(date +%s) - t )) s"
}
# END ROOTFS

# BEGIN KERNEL (hashed into the kernel directory's key)
# Modules loaded by the initramfs: enough to mount the root, the share and to write the output.
BOOT_MODULES="virtio_pci virtio_mmio virtio_blk virtio_console ext4 9pnet_virtio 9p crc32c_intel"
# What of the kernel's modules goes to the guest: the rest (GPU, sound, wireless...) is 80% of them.
KEEP_MODULES="arch block crypto lib mm security net/core net/9p net/sched net/ipv4 net/ipv6 net/bridge
  net/packet net/rds net/smc net/unix net/netfilter net/xfrm net/vmw_vsock
  fs/9p fs/netfs fs/fscache fs/ext4 fs/jbd2 fs/xfs fs/overlayfs fs/fuse fs/configfs fs/btrfs fs/nls fs/erofs fs/mbcache.ko fs/mbcache.ko.xz fs/squashfs
  drivers/infiniband/core drivers/infiniband/sw drivers/infiniband/ulp drivers/scsi drivers/target
  drivers/nvme drivers/block drivers/virtio drivers/char/virtio_console.ko drivers/char/hw_random
  drivers/md drivers/dax drivers/net/dummy.ko drivers/net/dummy.ko.xz drivers/net/veth.ko
  drivers/net/veth.ko.xz drivers/net/virtio_net.ko drivers/net/virtio_net.ko.xz
  drivers/net/net_failover.ko drivers/net/net_failover.ko.xz drivers/net/loopback.ko drivers/net/bonding drivers/net/tun.ko drivers/net/tun.ko.xz drivers/net/ifb.ko drivers/net/ifb.ko.xz
  drivers/net/nlmon.ko drivers/net/nlmon.ko.xz drivers/uio drivers/cdrom drivers/nvdimm drivers/ptp drivers/pps"

initramfs_init() {
	cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
while read -r m; do insmod /m/$m; done < /m/list
i=0; while [ ! -b /dev/vdb ] && [ $i -lt 100 ]; do usleep 20000; i=$((i+1)); done
mount -t ext4 -o noatime "$(findfs LABEL=root)" /r && mount -t ext4 -o ro,noatime "$(findfs LABEL=modules)" /r/lib/modules || { echo "initramfs: no root"; dmesg | tail -20; reboot -f; }
mount --move /dev /r/dev; mount --move /proc /r/proc; mount --move /sys /r/sys
exec switch_root /r /sbin/guest-init
INIT
}

# The ELF kernel inside a bzImage (the boot protocol's header says where), for QEMU's PVH boot.
unpack_bzimage() { # BZIMAGE VMLINUX
	local f=$1 setup off len unpack
	setup=$(od -An -tu1 -j $((0x1f1)) -N1 "$f")
	off=$(( (setup + 1) * 512 + $(od -An -tu4 -j $((0x248)) -N4 "$f") ))
	len=$(od -An -tu4 -j $((0x24c)) -N4 "$f")
	case $(od -An -tx1 -j $off -N4 "$f" | tr -d ' ') in
	fd377a58) unpack="xz -dc" ;; 28b52ffd) unpack="zstd -dc" ;; 1f8b*) unpack="gzip -dc" ;;
	*) return 1 ;;
	esac
	# The payload's last 4 bytes are its unpacked length. (tail ends on a SIGPIPE.)
	(set +o pipefail; tail -c +$((off + 1)) "$f" | head -c $((len - 4)) | $unpack > "$2") &&
		[ "$(head -c 4 "$2" | tail -c 3)" = ELF ]
}

build_kernel() {
	local flavour=$1 dir=$2 t=$(date +%s) pkg ver
	rm -rf "$dir" "$dir.tmp"
	mkdir -p "$dir.tmp/x"
	case $flavour in
	6.1)  pkg=linux-image-amd64 ;;
	*)    pkg=linux-image-$flavour-amd64 ;;
	esac
	# The metapackage names the real one.
	apt-cache show "$pkg" >/dev/null 2>&1 || apt-get -qq update
	pkg=$(apt-cache depends "$pkg" | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -1)
	[ -n "$pkg" ] || { say "no kernel package for $flavour in apt"; exit 1; }
	say "kernel $flavour: $pkg"
	# apt's own download user cannot write into a folder below /root: let root fetch it.
	(cd "$dir.tmp" && apt-get -qq -o APT::Sandbox::User=root download "$pkg")
	dpkg-deb -x "$dir.tmp"/*.deb "$dir.tmp/x"
	ver=$(ls "$dir.tmp/x/lib/modules")
	unpack_bzimage "$dir.tmp/x/boot/vmlinuz-$ver" "$dir.tmp/vmlinux" ||
		cp "$dir.tmp/x/boot/vmlinuz-$ver" "$dir.tmp/vmlinux"
	cp "$dir.tmp/x/boot/config-$ver" "$dir.tmp/config"

	# Prune the modules, decompress them and drop debug sections and signatures (checking those is
	# slow under emulation; an unsigned module merely taints the kernel).
	local src=$dir.tmp/x/lib/modules/$ver dst=$dir.tmp/m/$ver k
	mkdir -p "$dst/kernel"
	cp "$src"/modules.{builtin,builtin.modinfo,order} "$dst/"
	for k in $KEEP_MODULES; do
		[ -e "$src/kernel/$k" ] || continue
		mkdir -p "$dst/kernel/$(dirname "$k")"
		cp -r "$src/kernel/$k" "$dst/kernel/$k"
	done
	find "$dst" -name '*.ko.xz' -print0 | xargs -0r -P2 -n64 xz -d
	find "$dst" -name '*.ko' -print0 | xargs -0r -P2 -n64 strip --strip-debug
	mkdir -p "$dir.tmp/b/lib"; mv "$dir.tmp/m" "$dir.tmp/b/lib/modules"
	depmod -b "$dir.tmp/b" "$ver" 2>/dev/null || depmod -b "$dir.tmp/b" "$ver"

	# The initramfs: busybox, an init, and BOOT_MODULES with their dependencies in load order.
	local ir=$dir.tmp/ir m f
	mkdir -p "$ir"/{bin,m,dev,proc,sys,r}
	cp /bin/busybox "$ir/bin/busybox"
	initramfs_init > "$ir/init"; chmod 755 "$ir/init"
	for m in $BOOT_MODULES; do
		modprobe -d "$dir.tmp/b" -S "$ver" --show-depends "$m" 2>/dev/null |
			sed -n 's/^insmod \([^ ]*\).*/\1/p' || true
	done | awk '!seen[$0]++' | while read -r f; do
		cp "$f" "$ir/m/"; basename "$f"
	done > "$dir.tmp/list"
	mv "$dir.tmp/list" "$ir/m/list"
	(cd "$ir" && find . | cpio -o -H newc --quiet) > "$dir.tmp/initrd.cpio"

	local mb=$(du -sm "$dir.tmp/b/lib/modules" | cut -f1)
	mke2fs -q -F -L modules -t ext4 -O ^has_journal,^metadata_csum,^64bit -m 0 -N 8192 \
		-d "$dir.tmp/b/lib/modules" "$dir.tmp/modules.img" $((mb + mb / 8 + 16))M > /dev/null
	echo "$ver" > "$dir.tmp/version"
	rm -rf "$dir.tmp"/{x,b,ir,*.deb}
	mv "$dir.tmp" "$dir"
	say "kernel $ver: modules $mb MB, initramfs $(( $(stat -c %s "$dir/initrd.cpio") / 1024 )) KB, in $(( $(date +%s) - t )) s"
}
# END KERNEL

if [ -n "$CLEAN" ]; then
	for f in "$ISERTEST_CACHE"/rootfs-* "$ISERTEST_CACHE"/kernel-*; do
		case $f in
		"$(rootfs_img)"*|"$(kernel_dir 6.1)"|"$(kernel_dir 6.12)") ;;
		*) [ -e "$f" ] && { say "removing $f"; rm -rf "$f"; } ;;
		esac
	done
	exit 0
fi

# The root file system and the kernels are built side by side.
img=$(rootfs_img)
jobs=()
if [ -n "$FORCE" ] || [ ! -f "$img" ]; then build_rootfs "$img" & jobs+=($!); else say "have $img"; fi
for k in "${KERNELS[@]}"; do
	d=$(kernel_dir "$k")
	if [ -n "$FORCE" ] || [ ! -f "$d/version" ]; then build_kernel "$k" "$d" & jobs+=($!)
	else say "have $d ($(cat "$d/version"))"; fi
done
for j in ${jobs[@]+"${jobs[@]}"}; do wait "$j"; done
say "done in $(( $(date +%s) - T0 )) s"
