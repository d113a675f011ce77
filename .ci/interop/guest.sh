#!/bin/bash
# The interoperability cases, in the guest: real initiators and targets over iSER on rxe and over TCP, and those of
# roce.sh and scsi.sh.
#
#   guest.sh          all cases: one line "PASS name" or "FAIL name" each, last "N passed, N failed"
#   guest.sh CASE     one case, in the present state of the guest
#
# A case is a function; it runs by itself, under a time limit and with set -e. CASES in the environment
# selects some. Its output goes to $OUT/CASE.log; that of a failing case is shown with the logs' ends.
set -eu
cd "$(dirname "$0")"
. ./guest-lib.sh
. ./roce.sh
. ./scsi.sh
: "${OUT:=/tmp}" "${LIMIT:=300}"

TGT=$IP:3260 PORTAL=$IP:3261 LIO_PORTAL=$IP:3262
NAME=iqn.2026-01.test # of all targets: $NAME:ram and so on
TGT_INITIATORS=$LIBISCSI_INITIATORS
# What cases of roce.sh change: sizes, further keys at login, how our initiator is called.
FIO_DEPTH=32 FIO_SPLIT=512/15:4k/30:16k/20:64k/20:256k/10:1m/5 RETRIES=
FILES=3000001 FIO_SIZE=48m VERIFY_SIZE=32MiB VERIFY= COPY=8 LOGIN= ISER=./iser QUERY=

ALL="rdmatest discovery_iser discovery_tcp filesystem_ram filesystem_file fio_immediate fio_no_immediate
  fio_unsolicited fio_file tcp_sees_what_iser_wrote libiscsi_tcp libiscsi_iser iser_to_iserd iser_to_lio
  iser_to_stgt two_initiators daemon_is_well $SCSI $ROCE $LOSSY"

# --- the guest ----------------------------------------------------------------------------------

setup() {
	ln -sfn /proc/self/fd /dev/fd # udev does this elsewhere; bash needs it for <(...)
	rxe_up
	roce_network
	initiator_start
	truncate -s 128M /tgt.img
	tgt_start
	tgt_target iser 1 $NAME:stgt /tgt.img
	lio_start
	lio_backstore ram0 ramdisk 128
	lio_target iser $NAME:lio $LIO_PORTAL ram0
	iserd_start
	roce_targets
	scsi_targets
}

# iserd_config PROVIDER IMAGE PORTAL...: prints it
iserd_config() {
	local provider=$1 image=$2; shift 2
	cat <<YAML
version: 1
insecure: true
portals:
$(printf "  - {listen: \"%s\", provider: $provider}\n" "$@")
backstores:
  ram: {type: ram, size: ${RAM:-128MiB}}
  ram2: {type: ram, size: 128MiB}
  ram3: {type: ram, size: 64MiB}
  file: {type: file, path: $image, size: 128MiB}
targets:
  $NAME:ram: {luns: {0: ram}}
  $NAME:file: {luns: {0: file}}
  $NAME:unsolicited: {initial_r2t: false, first_burst: 64KiB, luns: {0: ram2}}
  $NAME:libiscsi: {initial_r2t: true, immediate_data: false, luns: {0: ram3}}
YAML
}

iserd_start() {
	iserd_config verbs /iserd.img "$PORTAL" > /tmp/iserd.yaml
	setsid ./iserd --config /tmp/iserd.yaml > "$OUT/iserd.log" 2>&1 &
	echo $! > /tmp/iserd.pid
	wait_for 30 sh -c "ss -ltn | grep -q $PORTAL && rdma resource show cm_id | grep -q LISTEN"
}

# --- tools --------------------------------------------------------------------------------------

# Random writes at depth 32 of blocks of 512 B to 1 MiB with a crc32c in each, read back and verified.
fio_verify() { # DEV [fio options]
	local dev=$1; shift
	fio --name=verify --filename="$dev" --rw=randwrite --size=$FIO_SIZE --ioengine=libaio --direct=1 --iodepth=$FIO_DEPTH \
		--bssplit=$FIO_SPLIT --verify=crc32c --verify_fatal=1 --do_verify=1 "$@"
}

# expect TRANSPORT IQN NAME VALUE: a negotiated key
expect() { [ "$(iscsi_param "$1" "$2" "$3")" = "$4" ] || { echo "$3 is $(iscsi_param "$1" "$2" "$3"), not $4"; return 1; }; }

# A file system keeps its files over logout and login.
filesystem() { # IQN
	local dev
	mkdir -p /mnt/t /tmp/src
	for n in 1 2 3 4; do head -c $((n * FILES)) /dev/urandom > /tmp/src/$n; done
	iscsi_login iser "$1" $PORTAL $LOGIN
	dev=$(iser_disk "$1")
	mkfs.ext4 -q -F "$dev"
	mount "$dev" /mnt/t
	cp /tmp/src/* /mnt/t/
	umount /mnt/t
	iscsi_logout iser "$1" $PORTAL
	iscsi_login iser "$1" $PORTAL $LOGIN
	dev=$(iser_disk "$1")
	e2fsck -fn "$dev"
	mount -o ro "$dev" /mnt/t
	diff -r -x lost+found /tmp/src /mnt/t
	umount /mnt/t
	iscsi_logout iser "$1" $PORTAL
}

# fio on a new session with the given keys: fio_session IQN [open-iscsi's NAME=VALUE...]
fio_session() {
	local iqn=$1; shift
	iscsi_login iser "$iqn" $PORTAL $LOGIN "$@"
	fio_verify "$(iser_disk "$iqn")"
}

# iser_disk IQN: its disk; the kernel tries a command $RETRIES times again when sessions end under it
iser_disk() {
	local dev
	dev=$(iscsi_disk iser "$1")
	[ -z "$RETRIES" ] || echo "$RETRIES" > "$(echo /sys/block/"${dev#/dev/}"/device/scsi_disk/*/max_retries)"
	echo "$dev"
}

# --- cases --------------------------------------------------------------------------------------

rdmatest() {
	local skip
	skip=$(sed '/^#/d; s|^|TestDevice/|' rxe-skip | paste -sd '|')
	VERBS_TEST_ADDR=$IP ./verbs.test -test.v -test.timeout "$((LIMIT - 10))s" -test.run TestDevice -test.skip "$skip"
}

discovery() { iscsi_discover "$1" $PORTAL | grep -F "$PORTAL," | grep -c " $NAME:" | grep -qx 4; }
discovery_iser() { discovery iser; }
discovery_tcp() { discovery tcp; }

filesystem_ram() { filesystem $NAME:ram; }
filesystem_file() { filesystem $NAME:file; }

fio_immediate() {
	fio_session $NAME:ram node.session.iscsi.ImmediateData=Yes
	expect iser $NAME:ram immediate_data 1
}
fio_no_immediate() {
	fio_session $NAME:ram node.session.iscsi.ImmediateData=No
	expect iser $NAME:ram immediate_data 0
}
# ib_iser sends at most 8 KiB of immediate data, so a first burst of 64 KiB makes unsolicited Data-Outs.
fio_unsolicited() {
	fio_session $NAME:unsolicited node.session.iscsi.InitialR2T=No node.session.iscsi.ImmediateData=Yes \
		node.session.iscsi.FirstBurstLength=262144
	expect iser $NAME:unsolicited initial_r2t 0
	expect iser $NAME:unsolicited first_burst_len 65536
}
fio_file() { fio_session $NAME:file; }

# One disk in two sessions at once: over TCP it is the same disk and has what iSER wrote.
tcp_sees_what_iser_wrote() {
	local i t
	iscsi_login iser $NAME:ram $PORTAL
	iscsi_login tcp $NAME:ram $PORTAL
	i=$(iscsi_disk iser $NAME:ram) t=$(iscsi_disk tcp $NAME:ram)
	sg_inq "$t"
	sg_vpd -a "$t"
	sg_readcap "$t" && sg_readcap --16 "$t"
	cmp <(sg_vpd -p 0x83 "$i") <(sg_vpd -p 0x83 "$t")
	head -c 16M /dev/urandom > /tmp/data
	dd if=/tmp/data of="$i" bs=1M oflag=direct status=none
	dd of=/tmp/back if="$t" bs=256K count=64 iflag=direct status=none
	cmp /tmp/data /tmp/back
	head -c 16M /dev/urandom > /tmp/data
	dd if=/tmp/data of="$t" bs=1M oflag=direct status=none
	dd of=/tmp/back if="$i" bs=256K count=64 iflag=direct status=none
	cmp /tmp/data /tmp/back
}

# survivor COMMAND...: a program of libiscsi's, tried again when it has died of its own tear-down (scsi.sh, scsi_libiscsi)
survivor() {
	local try rc
	for try in 1 2 3 4 5; do
		rc=0
		"$@" || rc=$?
		[ $rc -ge 128 ] || return $rc
	done
	return $rc
}

# Debian packages no iscsi-dd: libiscsi-dd is a program of ours on the same library.
libiscsi() { # URL
	iscsi-inq "$1"
	iscsi-readcapacity16 "$1"
	head -c 8M /dev/urandom > /tmp/data
	head -c 8M /dev/zero > /tmp/back
	./libiscsi-dd w "$1" /tmp/data
	./libiscsi-dd r "$1" /tmp/back
	cmp /tmp/data /tmp/back
	for t in Write10.Simple Read16.Simple; do
		survivor iscsi-test-cu -d -f -t "ALL.$t" "$1"
	done
	iscsi-perf -b 64 -m 32 -r -t 3 "$1"
}
libiscsi_tcp() {
	iscsi-ls -s iscsi://$PORTAL | grep $NAME:ram
	libiscsi iscsi://$PORTAL/$NAME:ram/0
}
# iscsi-ls knows only iscsi:// URLs. libiscsi's iSER announces immediate data that it does not send, and
# sends Data-Outs without data: its target allows neither.
libiscsi_iser() { libiscsi iser://$PORTAL/$NAME:libiscsi/0; }

# Our initiator: discovery, a verified disk, a copy.
iser_to() { # PORTAL IQN LUN
	local url=iser://$1/$2/$3$QUERY o=(--initiator-name "$INITIATOR" -q)
	$ISER discover "iser://$1$QUERY" "${o[@]}" | grep "$2"
	$ISER verify "$url" "${o[@]}" --size $VERIFY_SIZE --bs mixed --depth 32 --zero 5 --unmap 5 $VERIFY --destructive --dump "$OUT"
	head -c ${COPY}M /dev/urandom > /tmp/data
	rm -f /tmp/back
	$ISER dd "${o[@]}" if=/tmp/data of="$url" bs=1M
	$ISER dd "${o[@]}" if="$url" of=/tmp/back bs=256K count=$((COPY * 4))
	cmp /tmp/data /tmp/back
}
iser_to_iserd() { iser_to $PORTAL $NAME:ram 0; }
iser_to_lio() { iser_to $LIO_PORTAL $NAME:lio 0; }
iser_to_stgt() { iser_to $TGT $NAME:stgt 1; }

# The kernel's initiator and ours on one disk at once, each on its half.
two_initiators() {
	iscsi_login iser $NAME:ram $PORTAL
	fio_verify "$(iscsi_disk iser $NAME:ram)" > "$OUT/two_initiators.fio" 2>&1 & local fio=$!
	./iser verify iser://$PORTAL/$NAME:ram/0 -q --offset 64MiB --size 64MiB --seed 7 --bs mixed --depth 32 --destructive --dump "$OUT"
	wait $fio
	./iser verify iser://$PORTAL/$NAME:ram/0 -q --offset 64MiB --size 64MiB --seed 7 --bs mixed --check-only --dump "$OUT"
}

# The daemon that served all this ends in order when asked to.
ends_well() { # NAME of its files
	kill "$(cat /tmp/$1.pid)"
	wait_for 30 sh -c "! kill -0 $(cat /tmp/$1.pid)"
	! grep -iE 'panic|level=(error|fatal)' "$OUT/$1.log"
}
daemon_is_well() { ends_well iserd; }

# --- running them -------------------------------------------------------------------------------

passed=0 failed=0
run() { # CASE
	local t=$SECONDS
	if attempt "$1"; then
		echo "PASS $1 ($((SECONDS - t)) s)"; passed=$((passed + 1))
	elif may_repeat "$1" && mv "$OUT/$1.log" "$OUT/$1.first.log" && tidy && attempt "$1"; then
		echo "PASS $1 (second try, $((SECONDS - t)) s)"; passed=$((passed + 1))
	else
		echo "FAIL $1 (status $?, $((SECONDS - t)) s)"; failed=$((failed + 1))
		grep -E '^ *--- FAIL' "$OUT/$1.log" || true
		tail -n 30 "$OUT/$1.log" | sed 's/^/    /'
		tail -qn 15 "$OUT"/iserd*.log | sed 's/^/    iserd: /'
		dmesg | tail -n 15 | sed 's/^/    dmesg: /'
	fi
	tidy
}

attempt() { timeout -k 5 "$LIMIT" ./guest.sh "$1" > "$OUT/$1.log" 2>&1; }

# Under loss the kernel's rxe breaks sessions by itself (roce.sh), until its disk gives up: a case that ended in that way
# is tried once more. One that saw a wrong byte is not.
may_repeat() { [ "${1#lossy_}" != "$1" ] && ! grep -qiE 'verify:.*(bad|fail)|mismatch|differ|crc32c: verify' "$OUT/$1.log"; }

tidy() {
	netem del > /dev/null 2>&1 || true
	umount /mnt/t 2> /dev/null || true
	! iscsiadm -m session > /dev/null 2>&1 || timeout 60 iscsiadm -m session -u > /dev/null 2>&1 || true
	iscsiadm -m node -o delete > /dev/null 2>&1 || true # records keep the keys that a case set
}

if [ $# -gt 0 ]; then
	set -o pipefail
	set -x
	"$1"
	exit
fi
timeout 120 ./guest.sh setup > "$OUT/setup.log" 2>&1 || { echo "FAIL setup"; tail -n 30 "$OUT"/*.log; exit 1; }
for c in ${CASES:-$ALL}; do run "$c"; done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
