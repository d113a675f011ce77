# Shell functions for scripts that run.sh runs in the guest: . ./guest-lib.sh
#
# Conventions: a function that fails prints why and returns non-zero; with `set -e` the script ends.
# Nothing is cleaned up: the VM is thrown away.
#
# Names used by default (override before use):
: "${IP:=10.9.0.1}"                              # this VM's address on the RDMA interface
: "${INITIATOR:=iqn.2026-01.test.initiator:vm}"  # our initiator name
: "${MTU:=4200}"                                 # of the Ethernet below rxe: 4200 gives a 4096-byte path MTU

# wait_for SECONDS COMMAND...: until the command succeeds
wait_for() {
	local end=$(( $(date +%s) + $1 )); shift
	until "$@" > /dev/null 2>&1; do
		[ "$(date +%s)" -lt $end ] || { echo "timed out waiting for: $*" >&2; return 1; }
		sleep 0.2
	done
}

# --- RDMA ---------------------------------------------------------------------------------------

# One VM talking to itself: a dummy interface with rxe on it. rxe_up [IP]
rxe_up() {
	local ip=${1:-$IP}
	modprobe -a dummy rdma_rxe ib_uverbs rdma_ucm
	ip link add rdma0 type dummy
	ip link set rdma0 mtu "$MTU" up
	ip addr add "$ip/24" dev rdma0
	rdma link add rxe0 type rxe netdev rdma0
	rdma_ready rxe0
}
# udev does not run in the guest, so the device nodes are those of devtmpfs: libibverbs and
# librdmacm want theirs in /dev/infiniband, where the kernel puts them.
rdma_ready() { wait_for 10 sh -c "rdma link show $1/1 | grep -q ACTIVE && test -c /dev/infiniband/rdma_cm && test -c /dev/infiniband/uverbs0"; }

# --- targets: stgt ------------------------------------------------------------------------------

# tgtd with both of its transports, TCP and iSER, each on port 3260 (TCP and RDMA CM ports are different
# spaces; `--iser port=` is refused as "invalid port" whatever it says). The iSER buffer pool is 1 GB by
# default, all of it pinned: 128 MB here.
tgt_start() {
	ulimit -l unlimited
	setsid tgtd -f -d 0 --iser pool_sz_mb=128 > "${OUT:-/tmp}/tgtd.log" 2>&1 &
	wait_for 20 tgtadm --lld iscsi --op show --mode sys
}
# tgt_target LLD TID IQN FILE...: LLD is iscsi or iser; one LUN per FILE from 1 on (0 is tgt's controller).
#
# The initiator must be let in by address AND by name: up to 1.0.94 tgt's iSER login requires both
# lists to match ("-I ALL" alone ends in "Target not found", open-iscsi's error 19), and its iSER
# discovery still does in 1.0.97. Its TCP side is content with either.
tgt_target() {
	local lld=$1 tid=$2 iqn=$3 lun=1 f n; shift 3
	tgtadm --lld "$lld" --op new --mode target --tid "$tid" -T "$iqn" || return
	for f; do
		tgtadm --lld "$lld" --op new --mode logicalunit --tid "$tid" --lun $lun -b "$f" || return
		lun=$((lun + 1))
	done
	tgtadm --lld "$lld" --op bind --mode target --tid "$tid" -I ALL || return
	for n in "$INITIATOR" ${TGT_INITIATORS:-}; do
		tgtadm --lld "$lld" --op bind --mode target --tid "$tid" -Q "$n" || return
	done
}
# Names under which libiscsi's tools log in, to put in TGT_INITIATORS.
LIBISCSI_INITIATORS="iqn.2010-11.libiscsi:iscsi-perf $(for n in ls inq readcapacity16 swp discard md5sum test test-2; do
	echo "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-$n"; done)"

# --- targets: LIO (the kernel's), through configfs ------------------------------------------------

LIO=/sys/kernel/config/target
lio_start() {
	# LIO writes a file for each PERSISTENT RESERVE OUT, and fails it (NOT READY) without the folder.
	mkdir -p /etc/target/pr /etc/target/alua
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	modprobe -a target_core_mod target_core_file iscsi_target_mod ib_isert || return
	mkdir -p $LIO/iscsi
}
# lio_backstore NAME ramdisk MB | lio_backstore NAME fileio FILE
lio_backstore() {
	local d
	case $2 in
	ramdisk)
		d=$LIO/core/rd_mcp_0/$1; mkdir -p "$d"
		echo "rd_pages=$(( $3 * 256 ))" > "$d/control" ;;
	fileio)     # buffered: with a write-back cache, like stgt's default
		d=$LIO/core/fileio_0/$1; mkdir -p "$d"
		echo "fd_dev_name=$3,fd_dev_size=$(stat -c %s "$3"),fd_buffered_io=1" > "$d/control" ;;
	esac
	echo "$1" > "$d/wwn/vpd_unit_serial"
	echo 1 > "$d/enable"
}
# lio_target TRANSPORT IQN IP:PORT BACKSTORE...: TRANSPORT is tcp or iser; LUNs from 0 on
lio_target() {
	local tr=$1 iqn=$2 portal=$3 tpg n=0 b; shift 3
	tpg=$LIO/iscsi/$iqn/tpgt_1
	mkdir -p "$tpg/np/$portal"
	[ "$tr" != iser ] || echo 1 > "$tpg/np/$portal/iser" || return
	for b; do
		mkdir -p "$tpg/lun/lun_$n"
		ln -s $LIO/core/*/"$b" "$tpg/lun/lun_$n/$b"
		n=$((n + 1))
	done
	echo 0 > "$tpg/attrib/authentication"
	echo 1 > "$tpg/attrib/generate_node_acls"
	echo 1 > "$tpg/attrib/cache_dynamic_acls"
	echo 0 > "$tpg/attrib/demo_mode_write_protect"
	echo 1 > "$tpg/enable"
}

# lio_param IQN NAME VALUE: what the target offers at login, e.g. ImmediateData No
lio_param() { echo "$3" > "$LIO/iscsi/$1/tpgt_1/param/$2"; }

# --- the initiator: open-iscsi --------------------------------------------------------------------

initiator_start() {
	mkdir -p /run/lock/iscsi /etc/iscsi
	echo "InitiatorName=$INITIATOR" > /etc/iscsi/initiatorname.iscsi
	modprobe -a iscsi_tcp ib_iser sd_mod || return
	iscsid || return
	wait_for 10 iscsiadm -m iface
}
# iscsi_discover TRANSPORT PORTAL: prints what SendTargets answers, and keeps it for iscsi_login.
# Tried twice: open-iscsi 2.1.8's discovery over iser has been seen to time out (30 s) and crash.
iscsi_discover() {
	local i
	for i in 1 2; do
		iscsiadm -m discovery -t st -p "$2" -I "$(iface "$1")" && return
	done
	return 1
}
# discovery_finds TRANSPORT PORTAL IQN
discovery_finds() { iscsi_discover "$1" "$2" | grep -q " $3\$"; }
iface() { case $1 in tcp) echo default ;; *) echo "$1" ;; esac; }
# iscsi_login TRANSPORT IQN PORTAL [NAME=VALUE...]: makes the node record and logs in.
# The values are open-iscsi's, e.g. node.session.iscsi.ImmediateData=No
iscsi_login() {
	local tr=$1 iqn=$2 portal=$3 kv; shift 3
	# A record that discovery made (with the portal group's tag) must not be made again.
	iscsiadm -m node -T "$iqn" -p "$portal" -I "$(iface "$tr")" > /dev/null 2>&1 ||
		iscsiadm -m node -T "$iqn" -p "$portal" -I "$(iface "$tr")" -o new > /dev/null || return
	for kv in node.startup=manual "$@"; do
		iscsiadm -m node -T "$iqn" -p "$portal" -I "$(iface "$tr")" -o update -n "${kv%%=*}" -v "${kv#*=}" || return
	done
	iscsiadm -m node -T "$iqn" -p "$portal" -I "$(iface "$tr")" --login
}
# iscsi_logout TRANSPORT IQN PORTAL
iscsi_logout() { iscsiadm -m node -T "$2" -p "$3" -I "$(iface "$1")" --logout; }
# iscsi_session TRANSPORT IQN: the session's folder in sysfs
iscsi_session() {
	local s
	for s in /sys/class/iscsi_session/*; do
		[ "$(cat "$s/targetname" "$s/ifacename" 2>/dev/null)" = "$2"$'\n'"$(iface "$1")" ] && echo "$s" && return
	done
	return 1
}
# iscsi_disk TRANSPORT IQN: the session's disk, e.g. /dev/sdb; waits for it
iscsi_disk() { wait_for 30 _iscsi_disk "$@" && _iscsi_disk "$@"; }
_iscsi_disk() {
	local s d
	s=$(iscsi_session "$@") || return
	d=$(ls -d "$s"/device/target*/*/block/* 2>/dev/null | head -1)
	[ -n "$d" ] && [ -b "/dev/${d##*/}" ] && echo "/dev/${d##*/}"
}
# iscsi_param TRANSPORT IQN NAME: what was negotiated, as the kernel shows it, e.g. first_burst_len
iscsi_param() { cat "$(iscsi_session "$1" "$2")/$3"; }
