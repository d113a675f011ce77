# The cases of the complete target, sourced by guest.sh: what SCSI and iSCSI offer beyond reading and writing, from the
# kernel's initiator over iSER. Ours listens in the namespace ns (roce.sh) at two addresses, on two networks, so that
# one path can be cut:
#
#	veth4 10.9.4.1 (rxe4)  <->  peer4 10.9.4.2  portal group 1  in ns
#	veth5 10.9.5.1 (rxe5)  <->  peer5 10.9.5.2  portal group 2  in ns

PATH1=10.9.4.2:3260 PATH2=10.9.5.2:3260
# What libiscsi 1.19 fails over iSER with every target (stgt, LIO and ours): its client's own faults.
CLIENT_FAULTS="ExtendedCopy.Simple Inquiry.AllocLength Inquiry.BlockLimits ModeSense6.Residuals iSCSIcmdsn.iSCSICmdSnTooHigh
  iSCSIcmdsn.iSCSICmdSnTooLow iSCSIResiduals.Read10Invalid iSCSIdatasn.iSCSIDataSnInvalid"

SCSI="scsi_unmap scsi_write_same scsi_compare_and_write scsi_xcopy scsi_alua scsi_two_initiators scsi_multipath
  scsi_chap scsi_chap_refused scsi_chap_discovery scsi_redirect scsi_daemon_is_well"

# --- the guest ----------------------------------------------------------------------------------

scsi_targets() {
	local n
	for n in 4 5; do
		ip link add veth$n mtu "$MTU" type veth peer name peer$n mtu "$MTU" netns ns
		ip addr add 10.9.$n.1/24 dev veth$n
		ip -n ns addr add 10.9.$n.2/24 dev peer$n
		ip link set veth$n up
		ip -n ns link set peer$n up
		rdma link add rxe$n type rxe netdev veth$n
		rdma_ready rxe$n
	done
	mkdir -p /var/lib/iserd-scsi
	printf 'initiator-secret\n' > /tmp/chap.in
	printf 'target-secret-1\n' > /tmp/chap.out
	chmod 600 /tmp/chap.in /tmp/chap.out
	scsi_config > /tmp/iserd-scsi.yaml
	setsid ip netns exec ns ./iserd --config /tmp/iserd-scsi.yaml > "$OUT/iserd-scsi.log" 2>&1 &
	echo $! > /tmp/iserd-scsi.pid
	wait_for 30 sh -c "[ \$(grep -c 'iSER by roce' '$OUT/iserd-scsi.log') = 2 ]"
}

scsi_config() {
	cat <<YAML
version: 1
insecure: true
state_dir: /var/lib/iserd-scsi
portals:
  - {listen: "$PATH1", provider: roce, group: 1}
  - {listen: "$PATH2", provider: roce, group: 2}
discovery: {auth: {user: host, secret_file: /tmp/chap.in, mutual: {user: disk, secret_file: /tmp/chap.out}}}
backstores:
  thin: {type: file, path: /thin.img, size: 64MiB}
  copy: {type: ram, size: 64MiB}
  shared: {type: ram, size: 64MiB}
  libiscsi: {type: ram, size: 64MiB}
  secret: {type: ram, size: 16MiB}
  moved: {type: ram, size: 16MiB}
targets:
  $NAME:scsi: {luns: {0: thin, 1: copy}}
  $NAME:shared: {alua: {1: optimized, 2: non-optimized}, luns: {0: shared}}
  $NAME:conformance: {initial_r2t: true, immediate_data: false, luns: {0: libiscsi}}
  $NAME:chap:
    auth: {user: host, secret_file: /tmp/chap.in, mutual: {user: disk, secret_file: /tmp/chap.out}}
    luns: {0: secret}
  $NAME:moved: {redirect: {to: "$PATH2", groups: [1]}, luns: {0: moved}}
YAML
}

# --- tools --------------------------------------------------------------------------------------

# scsi_login IQN [LUN]: logs in over iSER and prints the disk
scsi_login() {
	iscsi_login iser "$1" $PATH1 > /dev/null
	lun_disk iser "$1" "${2:-0}"
}

# lun_disk IFACE IQN LUN: the disk of a LUN of the session, as iscsi_disk; IFACE as open-iscsi calls it
lun_disk() { wait_for 30 _lun_disk "$@" && _lun_disk "$@"; }
_lun_disk() {
	local s d
	for s in /sys/class/iscsi_session/*; do
		[ "$(cat "$s/targetname" "$s/ifacename" 2> /dev/null)" = "$2"$'\n'"$1" ] || continue
		for d in "$s"/device/target*/*:"$3"/block/*; do
			[ ! -b "/dev/${d##*/}" ] || { echo "/dev/${d##*/}"; return; }
		done
	done
	return 1
}

fails() { # STATUS COMMAND...: the command ends with this status
	local want=$1 got=0; shift
	"$@" || got=$?
	[ $got = "$want" ] || { echo "status $got, not $want: $*"; return 1; }
}
refused() { # COMMAND...: the command fails (set -e does not see "! COMMAND")
	! "$@" || { echo "was not refused: $*"; return 1; }
}
MISCOMPARE=14 CONFLICT=24 # exit statuses of sg3_utils

blocks() { dd if="$1" bs=512 skip="$2" count="$3" iflag=direct status=none; } # DEV LBA COUNT
zeros() { head -c $(($1 * 512)) /dev/zero; }

# --- cases: blocks ------------------------------------------------------------------------------

scsi_unmap() {
	local d
	d=$(scsi_login $NAME:scsi)
	sg_vpd -p lbpv "$d" | tee /dev/stderr | grep 'Unmap command supported (LBPU): 1'
	head -c 4M /dev/urandom > /tmp/data
	dd if=/tmp/data of="$d" bs=1M oflag=direct status=none
	sg_get_lba_status --lba=0 "$d" | tee /dev/stderr | grep -i 'mapped'
	sg_unmap --lba=2048 --num=1024 "$d"
	sg_get_lba_status --brief --lba=2048 "$d" | tee /tmp/status
	grep -q '^0x0*800 \+0x0*[0-9a-f]\+ \+1' /tmp/status # from 2048 on: deallocated
	cmp <(blocks "$d" 2048 1024) <(zeros 1024)
	cmp <(blocks "$d" 0 2048) <(head -c 1M /tmp/data)
	cmp <(blocks "$d" 3072 1024) <(tail -c +1572865 /tmp/data | head -c 512K)
	blkdiscard -o 0 -l 1M "$d"
	cmp <(blocks "$d" 0 2048) <(zeros 2048)
}

scsi_write_same() {
	local d
	d=$(scsi_login $NAME:scsi)
	head -c 512 /dev/urandom > /tmp/block
	sg_write_same --in=/tmp/block --lba=100 --num=50 "$d"
	sg_write_same --16 --in=/tmp/block --lba=150 --num=50 "$d"
	for ((i = 0; i < 100; i++)); do cat /tmp/block; done > /tmp/want
	cmp <(blocks "$d" 100 100) /tmp/want
	sg_write_same --16 --unmap --in=/dev/zero --xferlen=512 --lba=96 --num=104 "$d"
	cmp <(blocks "$d" 96 104) <(zeros 104)
	sg_write_same --16 --ndob --lba=0 --num=8 "$d"
	cmp <(blocks "$d" 0 8) <(zeros 8)
	blkdiscard -z -o 1M -l 1M "$d"
	cmp <(blocks "$d" 2048 2048) <(zeros 2048)
}

scsi_compare_and_write() {
	local d
	d=$(scsi_login $NAME:scsi)
	head -c 512 /dev/urandom > /tmp/old
	head -c 512 /dev/urandom > /tmp/new
	dd if=/tmp/old of="$d" bs=512 seek=7 oflag=direct status=none
	cat /tmp/old /tmp/new > /tmp/both
	sg_compare_and_write --in=/tmp/both --lba=7 --num=1 --xferlen=1024 "$d"
	cmp <(blocks "$d" 7 1) /tmp/new
	fails $MISCOMPARE sg_compare_and_write --in=/tmp/both --lba=7 --num=1 --xferlen=1024 "$d"
	cmp <(blocks "$d" 7 1) /tmp/new
}

sg_of() { echo /dev/"$(ls /sys/block/"${1#/dev/}"/device/scsi_generic)"; } # DEV

# A copy by the target itself, from one LUN to the other.
scsi_xcopy() {
	local d e
	modprobe sg # sg_xcopy wants its devices, where udev has not made those of its own
	d=$(scsi_login $NAME:scsi)
	e=$(lun_disk iser $NAME:scsi 1)
	head -c 8M /dev/urandom > /tmp/data
	dd if=/tmp/data of="$d" bs=1M oflag=direct status=none
	sg_copy_results --params "$d"
	sg_xcopy if="$(sg_of "$d")" of="$(sg_of "$e")" count=16384 skip=0 seek=64 bs=512
	dd if="$e" bs=32K skip=1 count=256 iflag=direct status=none | cmp - /tmp/data
}

# --- cases: reservations and paths ----------------------------------------------------------------

scsi_alua() {
	local d
	d=$(scsi_login $NAME:shared)
	sg_inq "$d" | tee /dev/stderr | grep TPGS=3 # implicit and explicit
	sg_rtpg --decode "$d" | tee /tmp/groups
	[ "$(grep -c 'target port group asymmetric access state' /tmp/groups)" = 2 ]
	grep -q 'active/optimized' /tmp/groups
	grep -q 'active/non optimized' /tmp/groups
	sg_vpd -p di "$d" | tee /dev/stderr | grep -i 'target port group: 0x1'
	sg_stpg --tp=1,2 --state=s,an "$d"
	sg_rtpg --decode "$d" | tee /dev/stderr | grep standby
	refused sg_dd if="$d" of=/dev/null bs=512 count=1 blk_sgio=1
	sg_inq "$d"
	sg_stpg --tp=1,2 --state=ao,an "$d"
	sg_dd if="$d" of=/dev/null bs=512 count=1 blk_sgio=1
	sg_rtpg --decode "$d" > /tmp/groups
	refused grep standby /tmp/groups
}

# two_ifaces: logs in to the shared target under two names; the disks are $a and $b
two_ifaces() {
	local i
	for i in a b; do
		iscsiadm -m iface -I host-$i -o new
		iscsiadm -m iface -I host-$i -o update -n iface.transport_name -v iser
		iscsiadm -m iface -I host-$i -o update -n iface.initiatorname -v iqn.2026-01.test.initiator:host-$i
		iscsiadm -m node -T $NAME:shared -p $PATH1 -I host-$i -o new
		iscsiadm -m node -T $NAME:shared -p $PATH1 -I host-$i --login
	done
	a=$(lun_disk host-a $NAME:shared 0)
	b=$(lun_disk host-b $NAME:shared 0)
}

write_block() { dd if=/dev/urandom of="$1" bs=512 count=1 oflag=direct status=none; }

# Two initiators hold and lose a reservation.
scsi_two_initiators() {
	local a b
	two_ifaces
	sg_persist --out --register --param-sark=0xa "$a"
	sg_persist --out --register --param-sark=0xb "$b"
	sg_persist --in --read-keys "$a" | tee /dev/stderr | grep -A2 '2 registered reservation keys'
	sg_persist --out --reserve --param-rk=0xa --prout-type=1 "$a" # write exclusive
	sg_persist --in --read-reservation "$b" | tee /dev/stderr | grep -i 'Key=0xa'
	sg_persist --in --report-capabilities "$b"
	write_block "$a"
	refused write_block "$b"
	fails $CONFLICT sg_write_same --in=/dev/zero --xferlen=512 --lba=0 --num=1 "$b"
	blocks "$b" 0 1 > /dev/null # reading is allowed
	fails $CONFLICT sg_persist --out --reserve --param-rk=0xb --prout-type=3 "$b"
	sg_persist --out --preempt --param-rk=0xb --param-sark=0xa --prout-type=3 "$b" # exclusive access: taken over
	sg_persist --in --read-full-status "$b" | tee /dev/stderr | grep -i 'host-b'
	refused write_block "$a"
	refused blocks "$a" 0 1 > /dev/null
	write_block "$b"
	sg_persist --out --release --param-rk=0xb --prout-type=3 "$b"
	write_block "$a"
	sg_persist --out --clear --param-rk=0xb "$b"
	sg_persist --in --read-keys "$b" | grep 'there are NO registered reservation keys'
	# And SPC-2's.
	sg_raw "$a" 16 00 00 00 00 00
	refused write_block "$b"
	sg_raw "$a" 17 00 00 00 00 00
	write_block "$b"
}

# One disk by two paths: dm-multipath joins them, and goes on by the one while the other is cut, and by the other while
# the one is.
scsi_multipath() {
	local m n fast="node.session.timeo.replacement_timeout=5 node.conn[0].timeo.noop_out_interval=2 node.conn[0].timeo.noop_out_timeout=4"
	start_udev
	iscsi_login iser $NAME:shared $PATH1 $fast
	iscsi_login iser $NAME:shared $PATH2 $fast
	cat > /etc/multipath.conf <<-CONF
		defaults {
			find_multipaths no
			path_grouping_policy group_by_prio
			prio alua
			path_checker tur
			polling_interval 2
			failback immediate
			no_path_retry 30
		}
		blacklist {
			devnode "^(vd|ram|loop)"
		}
	CONF
	modprobe -a dm-multipath scsi_dh_alua
	multipathd
	wait_for 60 paths 2
	multipath -ll
	m=/dev/mapper/$(multipath -ll -v1)
	[ -b "$m" ] # one disk
	[ "$(multipathd show paths format '%d %p' | awk '$1 ~ /^sd/ { print $2 }' | sort -n | xargs)" = "10 50" ] # as ALUA says
	for n in 4 5; do
		FIO_SIZE=8m fio_verify "$m" > "$OUT/scsi_multipath.$n.fio" 2>&1 & local fio=$!
		sleep 2
		cut_path add $n
		wait_for 60 paths 1
		wait $fio # it ends by the other path
		cut_path del $n
		wait_for 100 paths 2
	done
	stop_multipath
}

# The disks of later cases are theirs alone: no daemon may put a map over one.
stop_multipath() {
	multipathd shutdown
	wait_for 30 sh -c "! pidof multipathd"
	wait_for 30 multipath -F # whoever looks at the map (udev does) has it in use
	rm /etc/multipath.conf
	udevadm control --exit
}

# paths COUNT: so many are usable
paths() { [ "$(multipathd show paths format '%d %t %T' | grep -c 'active *ready')" = "$1" ]; }

# cut_path add|del 4|5: nothing gets through. (Of a link that is down rxe's connection manager does not recover: after
# "rdma_resolve_addr failed: -101" it resolves the address when the link is up again, but sends no REQ.)
cut_path() {
	tc qdisc "$1" dev veth$2 root netem loss 100%
	ip netns exec ns tc qdisc "$1" dev peer$2 root netem loss 100%
}

# Some programs want udev; the others do without.
start_udev() {
	mkdir -p /run/udev
	/lib/systemd/systemd-udevd --daemon
	udevadm trigger --action=add --subsystem-match=block
	udevadm settle --timeout=60
}

# --- cases: sessions ------------------------------------------------------------------------------

# chap [in] [out]: logs in over iSER with these secrets
chap() {
	local o="node.session.auth.authmethod=CHAP node.session.auth.username=host node.session.auth.password=$1"
	[ -z "${2:-}" ] || o="$o node.session.auth.username_in=disk node.session.auth.password_in=$2"
	iscsi_login iser $NAME:chap $PATH1 $o
}
scsi_chap() {
	local way
	for way in "" target-secret-1; do
		chap initiator-secret "$way"
		write_block "$(lun_disk iser $NAME:chap 0)"
		iscsi_logout iser $NAME:chap $PATH1
		iscsiadm -m node -T $NAME:chap -o delete
	done
}
scsi_chap_refused() {
	refused iscsi_login iser $NAME:chap $PATH1 # none
	iscsiadm -m node -T $NAME:chap -o delete
	refused chap wrong-secret-12
	iscsiadm -m node -T $NAME:chap -o delete
	refused chap initiator-secret wrong-secret-12 # ours is not who it says
	iscsiadm -m node -T $NAME:chap -o delete
	chap initiator-secret target-secret-1
}

# discover_chap SECRET SECRET_IN: SendTargets over iSER, with both ends proving who they are
discover_chap() {
	local kv r="iscsiadm -m discoverydb -t st -p $PATH1 -I iser"
	$r -o delete > /dev/null 2>&1 || true
	$r -o new
	for kv in authmethod=CHAP username=host password="$1" username_in=disk password_in="$2"; do
		$r -o update -n discovery.sendtargets.auth.${kv%%=*} -v "${kv#*=}"
	done
	$r --discover
}
scsi_chap_discovery() {
	discover_chap initiator-secret target-secret-1 | tee /dev/stderr | grep -F "$PATH1,1 $NAME:chap"
	refused discover_chap wrong-secret-12 target-secret-1
	refused discover_chap initiator-secret wrong-secret-12
	refused timeout 60 iscsiadm -m discovery -t st -p $PATH1 -I iser
}

# Who logs in through the first portal group is sent to the second.
scsi_redirect() {
	local s
	iscsi_login iser $NAME:moved $PATH1
	s=$(iscsi_session iser $NAME:moved)
	cat "$s"/device/connection*/iscsi_connection/connection*/{persistent_,}address
	[ "$(cat "$s"/device/connection*/iscsi_connection/connection*/address)" = "${PATH2%:*}" ]
	write_block "$(lun_disk iser $NAME:moved 0)"
}

# --- cases: libiscsi ------------------------------------------------------------------------------

# libiscsi's suites of the block commands, over iSER: nothing fails but what the client fails with every target. It may
# not survive a logout, or hang in it: it cancels its thread for connection events without waiting for it, and frees what
# that uses (1.19, iser_free_iser_conn_res), so all depends on when the DISCONNECTED event comes: of a target in the
# kernel sooner than of one in user space in an emulated machine ("munmap_chunk(): invalid pointer" after a logout, or no
# end of rdma_destroy_id). Hence the tries. The whole suite is `make conformance`, over TCP.
LIBISCSI_SUITES="CompareAndWrite Unmap WriteAtomic16 WriteSame16"
scsi_libiscsi() {
	SUITE_TIMEOUT=20 SUITE_TRIES=3 BY_TEST=no timeout 120 \
		./suites.sh "$OUT/libiscsi-iser" iser://$PATH1/$NAME:conformance/0 $LIBISCSI_SUITES || echo "not all suites in time"
	awk -F'\t' -v known="$(echo $CLIENT_FAULTS)" '
		BEGIN { split(known, k, " "); for (i in k) fault[k[i]] = 1 }
		{ n[$3]++ }
		$3 == "fail" && !(($1 "." $2) in fault) { print "fails: " $1 "." $2; bad = 1 }
		END {
			printf "%d passed, %d failed, %d skipped, %d client crashes, %d hangs\n", n["pass"], n["fail"], n["skip"], n["crash"], n["timeout"]
			exit bad || n["pass"] < 5
		}
	' "$OUT/libiscsi-iser/results.tsv"
}

scsi_daemon_is_well() { ends_well iserd-scsi; }
