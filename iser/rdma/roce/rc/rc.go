package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Sink takes what a queue pair produces. Its methods are called within a step, on the same goroutine.
type Sink interface {
	// Packet gives room for the next packet to the queue pair's peer, laid out by wire.New with n payload bytes;
	// the queue pair fills it before its next call. Packets leave in this order, sealed by the link. It returns nil
	// when the round's room is spent: the queue pair then goes on at its next Transmit.
	Packet(q *QP, op wire.Opcode, n int) wire.Packet
	// Complete hands over a completion, of the send queue or (c.Recv) of the receive queue, in queue order. It does
	// not post: that comes after the step.
	Complete(q *QP, c rdma.Completion)
}

// Config sets up a queue pair that is ready to send (RTS). Numbers are those of the connection manager's exchange.
type Config struct {
	QPN, PeerQPN wire.QPN
	MTU          int      // path MTU: largest payload of a packet, bytes
	SendPSN      wire.PSN // first to be sent: what the peer's REQ or REP says it expects
	RecvPSN      wire.PSN // first expected: what ours says
	ReadsOut     int      // RDMA Reads we may have outstanding
	ReadsIn      int      // RDMA Reads of the peer that we serve at a time
	RetryCount   int      // timeouts before RetryExcErr
	RNRRetry     int      // receiver-not-ready answers before RNRRetryExcErr; 7: no limit
	AckTimeout   time.Duration
	Window       int // packets in flight at most
	ReadWindow   int // bytes of RDMA Read responses asked for at a time, at most: what our receive buffer holds
	SendDepth    int // work requests
	RecvDepth    int
	MaxSGE       int
	Memory       *Memory
}

// Counters are a queue pair's; they only grow.
type Counters struct {
	Sent, Received               uint64 // packets
	Retransmits, Timeouts        uint64
	Duplicates, OutOfOrder       uint64
	NaksSent, NaksReceived       uint64
	RNRNaksSent, RNRNaksReceived uint64
	Dropped                      uint64 // packets that no rule lets in
	Immediates                   uint64 // immediate data received and thrown away: rdma.Completion has none
}

// A QP is a queue pair in RTS or in error. One goroutine at a time may call its methods.
type QP struct {
	cfg  Config
	sq   sendQueue
	rq   recvQueue
	req  requester
	resp responder

	failed bool
	more   bool
	turn   bool // requests go before responses in the next round
	ackAt  time.Time
	rnrAt  time.Time

	hotLocal, hotRemote *grant // last found by key
	c                   Counters
	faults              faults
}

// Faults are planted by tests that prove the checker able to see them.
type faults struct {
	skipResend bool // a packet that is due again is taken as sent
	staleKey   bool // a grant's key is not compared
	lateWrite  bool // the payload of an RDMA Write is placed when the next has come, acknowledged or not
	late       func()
}

// New makes a queue pair in RTS.
func New(c Config) *QP {
	q := &QP{cfg: c}
	q.sq, q.rq = newQueues(&c)
	q.req.init(&c)
	q.resp.init(&c)
	return q
}

// Receive takes one packet from the peer, parsed and its ICRC checked. It keeps no part of p.
func (q *QP) Receive(now time.Time, p wire.Packet, s Sink) {
	q.c.Received++
	op := p.Opcode()
	switch {
	case q.failed || p.DestQP() != q.cfg.QPN || p.PKey()&partitionMask != wire.DefaultPKey&partitionMask, op&transportMask != 0:
		q.c.Dropped++
	case op.Is(wire.Request):
		q.request(now, p, s)
	case op.Is(wire.Response):
		q.response(now, p, s)
	default:
		q.c.Dropped++
	}
}

const (
	partitionMask = 0x7fff // without the membership bit (IBTA 10.9.3)
	transportMask = 0xe0   // 0: reliable connection
)

// Transmit ends a round: it sends what the window, the peer and the sink's room allow, acknowledges what was received
// in one ACK, perhaps later (see acks), and acts on deadlines that have passed.
func (q *QP) Transmit(now time.Time, s Sink) {
	q.more = false
	if !q.failed {
		q.expire(now, s)
	}
	sent := q.c.Sent
	// When the room runs out, requests and responses take turns to be first, so that a peer's Reads do not keep
	// our requests back for ever, nor the reverse.
	first := q.turn
	if first && !q.failed {
		q.transmitRequests(now, s)
	}
	if !q.failed && !q.more {
		q.transmitResponses(s)
	}
	if !first && !q.failed && !q.more {
		q.transmitRequests(now, s)
	}
	q.turn = q.more && !first
	if q.failed {
		return
	}
	if a := &q.resp.acks; q.c.Sent > sent && !a.due.IsZero() { // with what leaves anyway
		a.now = true // in the next round, if there is no room
		if !q.more {
			q.answer(wire.Ack, q.resp.exp-1, s)
		}
	}
	q.arm(now)
}

// packet takes room for the next packet, addressed to the peer. Without room the round ends.
func (q *QP) packet(op wire.Opcode, n int, seq uint64, s Sink) wire.Packet {
	p := s.Packet(q, op, n)
	if p == nil {
		q.more = true
		return nil
	}
	q.c.Sent++
	p.SetMigrated() // as NICs do
	p.SetDestQP(q.cfg.PeerQPN)
	p.SetPSN(psn(seq))
	return p
}

// void makes a packet one that nobody takes: queue pair 0 is never a connection's. It is for a packet whose data
// turned out not to be had after the room was taken.
func void(p wire.Packet) { p.SetDestQP(0) }

// firstSeq keeps sequence numbers from going below 0 when a PSN from before the first is converted.
const firstSeq = 1 << 24

// psn is a sequence number on the wire.
func psn(seq uint64) wire.PSN { return wire.PSN(seq & (1<<24 - 1)) }

// seqOf is the sequence number of p that is nearest to base.
func seqOf(base uint64, p wire.PSN) uint64 { return base + uint64(int64(p.Sub(psn(base)))) }

// packets is how many a message of n bytes takes: an empty one is one.
func (q *QP) packets(n uint32) uint64 {
	mtu := uint64(q.cfg.MTU)
	return max(1, (uint64(n)+mtu-1)/mtu)
}

// More reports that the sink's room ran out and there is more to send at once.
func (q *QP) More() bool { return q.more }

// Fail moves the queue pair to the error state: everything outstanding completes, the oldest send with status (or
// flushed, if status is WRFlushErr), the rest flushed, in order.
func (q *QP) Fail(status rdma.Status, s Sink) { q.failAt(q.sq.done, status, s) }

// Failed reports the error state.
func (q *QP) Failed() bool { return q.failed }

// Num is the queue pair number.
func (q *QP) Num() wire.QPN { return q.cfg.QPN }

// Counters are its counters so far.
func (q *QP) Counters() Counters { return q.c }
