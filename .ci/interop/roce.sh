# The cases of our own RoCE, sourced by guest.sh. The kernel's rxe and its programs are on one end of a veth pair, our
# programs on the other, in the network namespace ns, where there is no RDMA device:
#
#	vethR 10.9.1.1 fd09:1::1 (rxe1)  <->  vethN 10.9.1.2 fd09:1::2 (iserd), 10.9.1.3 fd09:1::3 (iser, peer)  in ns
#	vethB 10.9.2.2 (iser)  in ns2    <->  vethA 10.9.2.1 (iserd)  in ns
#
# lossy_CASE is a case while both ends of both pairs lose 1 % of the packets, send 1 % twice and 5 % out of order.

RXE_IP=10.9.1.1 RXE_IP6=fd09:1::1 CLIENT_IP=10.9.1.3 CLIENT_IP6=fd09:1::3
ROCE_PORTAL=10.9.1.2:3260 ROCE_PORTAL6=[fd09:1::2]:3260 OURS_PORTAL=10.9.2.1:3260

ROCE="roce_rping_to_us roce_rping_from_us roce_rping_ipv6 roce_ucmatose_to_us roce_ucmatose_from_us
  roce_ib_write_bw roce_ib_read_bw roce_ib_send_bw roce_discovery roce_filesystem_ram roce_filesystem_file
  roce_fio_immediate roce_fio_no_immediate roce_fio_unsolicited roce_fio_file roce_tcp_sees_what_iser_wrote
  roce_iser_to_iserd roce_iser_to_lio roce_iser_to_stgt roce_filesystem_ipv6 roce_iser_to_lio_ipv6"
LOSSY="lossy_rping_to_us lossy_rping_from_us lossy_ib_write_bw lossy_ib_read_bw lossy_ib_send_bw
  lossy_filesystem_ram lossy_filesystem_file lossy_fio_immediate lossy_fio_no_immediate lossy_fio_unsolicited
  lossy_fio_file lossy_iser_to_lio lossy_iser_to_stgt lossy_ours_to_ours roce_daemon_is_well"

# --- the guest ----------------------------------------------------------------------------------

roce_network() {
	modprobe -a veth sch_netem
	ip netns add ns
	ip netns add ns2
	ip link add vethR mtu "$MTU" type veth peer name vethN mtu "$MTU" netns ns
	ip -n ns link add vethA mtu "$MTU" type veth peer name vethB mtu "$MTU" netns ns2
	ip addr add $RXE_IP/24 dev vethR
	ip addr add $RXE_IP6/64 dev vethR nodad
	for a in 10.9.1.2/24 fd09:1::2/64 $CLIENT_IP/24 $CLIENT_IP6/64; do ip -n ns addr add $a dev vethN nodad; done
	ip -n ns addr add 10.9.2.1/24 dev vethA
	ip -n ns2 addr add 10.9.2.2/24 dev vethB
	ip link set vethR up
	for e in "ns lo" "ns vethN" "ns vethA" "ns2 lo" "ns2 vethB"; do ip -n ${e% *} link set ${e#* } up; done
	rdma link add rxe1 type rxe netdev vethR
	rdma_ready rxe1
}

# LIO gets portals there; tgtd listens at every address.
roce_targets() {
	local a
	for a in $RXE_IP [$RXE_IP6]; do
		mkdir -p "$LIO/iscsi/$NAME:lio/tpgt_1/np/$a:3262"
		echo 1 > "$LIO/iscsi/$NAME:lio/tpgt_1/np/$a:3262/iser"
	done
	RAM=256MiB iserd_config roce /iserd-roce.img "$ROCE_PORTAL" "$ROCE_PORTAL6" "$OURS_PORTAL" > /tmp/iserd-roce.yaml
	setsid ip netns exec ns ./iserd --config /tmp/iserd-roce.yaml > "$OUT/iserd-roce.log" 2>&1 &
	echo $! > /tmp/iserd-roce.pid # ip becomes iserd
	wait_for 30 sh -c "[ \$(grep -c 'iSER by roce' '$OUT/iserd-roce.log') = 3 ]"
}

# netem add|del QDISC...: at both ends of both pairs. Nothing leaves joined meanwhile (segmentation offload), so that
# packets are lost one by one.
netem() {
	local cmd=$1 e offload=off; shift
	[ "$cmd" != del ] || offload=on
	for e in $ENDS; do
		in_namespace ${e%:*} ethtool -K ${e#*:} tx-udp-segmentation $offload
		in_namespace ${e%:*} tc qdisc "$cmd" dev ${e#*:} root "$@"
	done
}
ENDS="1:vethR ns:vethN ns:vethA ns2:vethB"
# in_namespace NAME COMMAND...: 1 is the initial one
in_namespace() {
	local ns=$1; shift
	[ "$ns" = 1 ] || set -- ip netns exec "$ns" "$@"
	"$@"
}

# --- tools --------------------------------------------------------------------------------------

# to_us CASE...: a case of guest.sh with iserd on roce
to_us() { PORTAL=$ROCE_PORTAL; "$@"; }
# from_us CASE...: a case of guest.sh with iser on roce
from_us() { ISER="ip netns exec ns ./iser --source ${SOURCE:-$CLIENT_IP}" QUERY=?rdma=roce; "$@"; }

# Little data, and patience: rxe misses some losses after seconds only. And a queue pair of rxe's (6.12) on which the
# kernel registers memory often dies of a retry: req_retry goes back over the registrations, rxe_reg_fast_mr refuses the
# second (the region is not free), and the queue pair goes to the error state with nothing but flushes, which ib_iser
# passes over in silence. Our side then ends the session (transport retry counter exceeded), open-iscsi makes another and
# repeats what was under way; our initiator does so with --reconnect. That is not a failure of a case; a wrong byte is.
lossy() {
	netem add netem limit 10000 loss 1% duplicate 1% reorder 5% 50% delay 1ms
	RETRIES=-1 FIO_SIZE=4m VERIFY_SIZE=64MiB VERIFY="--reconnect 60s" COPY=2 FILES=200001 LOGIN=node.conn[0].timeo.noop_out_timeout=60
	"$@"
	for e in $ENDS; do in_namespace ${e%:*} tc -s qdisc show dev ${e#*:}; done # what was lost
}

# we_listen PROGRAM COUNT SIZE COMMAND...: our peer listens, the kernel's program connects
we_listen() {
	local program=$1 n=$2 size=$3 pid; shift 3
	rm -f /tmp/peer.log
	in_namespace ns ./peer "$program" -n "$n" -size "$size" -limit 4m "$CLIENT_IP:7174" > /tmp/peer.log 2>&1 & pid=$!
	wait_for 20 grep listening /tmp/peer.log
	timeout 240 "$@"
	wait $pid || { cat /tmp/peer.log; return 1; }
	cat /tmp/peer.log
}

# we_connect PROGRAM COUNT SIZE COMMAND...: the other way
we_connect() {
	local program=$1 n=$2 size=$3 pid; shift 3
	timeout 240 "$@" & pid=$!
	wait_for 20 sh -c "rdma resource show cm_id | grep LISTEN | grep :7174"
	in_namespace ns ./peer "$program" -c -source "$CLIENT_IP" -n "$n" -size "$size" -limit 4m "$RXE_IP:7174"
	wait $pid
}

# --- cases --------------------------------------------------------------------------------------

roce_rping_to_us() { we_listen rping 50 50000 rping -c -a $CLIENT_IP -p 7174 -C 50 -S 50000 -V; }
roce_rping_from_us() { we_connect rping 50 50000 rping -s -a $RXE_IP -p 7174 -S 50000; }
roce_rping_ipv6() {
	local ip=$CLIENT_IP6
	CLIENT_IP=[$ip] we_listen rping 20 50000 rping -c -a $ip -p 7174 -C 20 -S 50000 -V
	CLIENT_IP=$ip RXE_IP=[$RXE_IP6] we_connect rping 20 50000 rping -s -a $RXE_IP6 -p 7174 -S 50000
}
roce_ucmatose_to_us() { we_listen ucmatose 50 50000 ucmatose -s $CLIENT_IP -p 7174 -c 1 -C 50 -S 50000; }
roce_ucmatose_from_us() { we_connect ucmatose 50 50000 ucmatose -b $RXE_IP -p 7174 -c 1 -C 50 -S 50000; }

perftest() { # PROGRAM COUNT
	we_listen "$1" "$2" 65536 "$1" -R -F -p 7174 -s 65536 -n "$2" $CLIENT_IP
	we_connect "$1" "$2" 65536 "$1" -R -F -p 7174 -s 65536 -n "$2" -d rxe1
}
roce_ib_write_bw() { perftest ib_write_bw 500; }
roce_ib_read_bw() { perftest ib_read_bw 500; }
roce_ib_send_bw() { perftest ib_send_bw 500; }

roce_discovery() { to_us discovery_iser; }
roce_filesystem_ram() { to_us filesystem $NAME:ram; }
roce_filesystem_file() { to_us filesystem $NAME:file; }
roce_filesystem_ipv6() { PORTAL=$ROCE_PORTAL6 filesystem $NAME:ram; }
roce_fio_immediate() { to_us fio_immediate; }
roce_fio_no_immediate() { to_us fio_no_immediate; }
roce_fio_unsolicited() { to_us fio_unsolicited; }
roce_fio_file() { to_us fio_file; }
roce_tcp_sees_what_iser_wrote() { to_us tcp_sees_what_iser_wrote; }
roce_iser_to_iserd() { from_us iser_to $ROCE_PORTAL $NAME:ram 0; }
roce_iser_to_lio() { from_us iser_to $RXE_IP:3262 $NAME:lio 0; }
roce_iser_to_stgt() { from_us iser_to $RXE_IP:3260 $NAME:stgt 1; }
roce_iser_to_lio_ipv6() { SOURCE=$CLIENT_IP6 from_us iser_to "[$RXE_IP6]:3262" $NAME:lio 0; }

lossy_rping_to_us() { lossy we_listen rping 20 50000 rping -c -a $CLIENT_IP -p 7174 -C 20 -S 50000 -V; }
lossy_rping_from_us() { lossy we_connect rping 20 50000 rping -s -a $RXE_IP -p 7174 -S 50000; }
lossy_ib_write_bw() { lossy perftest ib_write_bw 64; }
lossy_ib_read_bw() { lossy perftest ib_read_bw 64; }
lossy_ib_send_bw() { lossy perftest ib_send_bw 64; }
lossy_filesystem_ram() { lossy to_us filesystem $NAME:ram; }
lossy_filesystem_file() { lossy to_us filesystem $NAME:file; }
lossy_fio_immediate() { lossy to_us fio_immediate; }
lossy_fio_no_immediate() { lossy to_us fio_no_immediate; }
# Of long commands in many packets hardly one gets through before rxe breaks the session: short ones.
lossy_fio_unsolicited() { lossy small_fio to_us fio_unsolicited; }
small_fio() { FIO_SIZE=512k FIO_DEPTH=4 FIO_SPLIT=512/50:12k/50; "$@"; }
lossy_fio_file() { lossy to_us fio_file; }
lossy_iser_to_lio() { lossy from_us iser_to $RXE_IP:3262 $NAME:lio 0; }
lossy_iser_to_stgt() { lossy from_us iser_to $RXE_IP:3260 $NAME:stgt 1; }

# Both ends ours. host.sh does 1 GiB.
ours_to_ours() {
	time in_namespace ns2 ./iser verify "iser://$OURS_PORTAL/$NAME:ram/0?rdma=roce" -q --size 64MiB --bs mixed --depth 32 --destructive --dump "$OUT"
}
lossy_ours_to_ours() { lossy ours_to_ours; }

roce_daemon_is_well() { ends_well iserd-roce; }
