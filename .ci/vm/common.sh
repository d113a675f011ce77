# Shared settings of build-image.sh and run.sh (sourced, not run).
#
# Everything here can be overridden from the environment.
: "${ISERTEST_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/isertest-vm}"  # images live here
: "${ISERTEST_SUITE:=bookworm}"        # Debian release of the guest's user space
: "${ISERTEST_KERNEL:=6.12}"           # guest kernel: 6.12 (bookworm-security) or 6.1 (bookworm)
: "${ISERTEST_EXTRA_PACKAGES:=}"       # more Debian packages for the guest, e.g. "targetcli-fb xfsprogs"

# The guest's packages. Each one costs build time, so keep to what the tests use. LIO is set up
# through configfs by guest-lib.sh; targetcli-fb (Python) would only slow the guest down.
ISERTEST_PACKAGES="bash coreutils mount kmod udev iproute2 procps util-linux e2fsprogs
  open-iscsi tgt libiscsi-bin rdma-core ibverbs-utils ibverbs-providers rdmacm-utils librdmacm1
  perftest fio sg3-utils multipath-tools lsscsi tcpdump ethtool strace busybox netcat-openbsd $ISERTEST_EXTRA_PACKAGES"

# A short hash of whatever decides what is in the root file system.
rootfs_key() {
	{ echo "$ISERTEST_SUITE"; echo $ISERTEST_PACKAGES | tr ' ' '\n' | sort -u
	  sed -n '/^# BEGIN ROOTFS/,/^# END ROOTFS/p' "$HERE/build-image.sh"; } | sha256sum | cut -c1-12
}
# The same for a kernel directory (modules image, initramfs).
kernel_key() {
	{ echo "$1"; sed -n '/^# BEGIN KERNEL/,/^# END KERNEL/p' "$HERE/build-image.sh"; } |
		sha256sum | cut -c1-12
}
rootfs_img()  { echo "$ISERTEST_CACHE/rootfs-$(rootfs_key).img"; }
kernel_dir()  { echo "$ISERTEST_CACHE/kernel-$1-$(kernel_key "$1")"; }
