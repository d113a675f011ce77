package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// ackEvery is how many packets of a long message go without asking for an acknowledgement.
const ackEvery = 32

// maxReadSeqs bounds the responses outstanding, and so the sequence numbers between una and fresh: half the PSNs may
// be under way at a time (IBTA 9.7.2), and others need some.
const maxReadSeqs = 1 << 21

// A requester sends the packets of the send queue (IBTA 9.7.3). una <= nxt <= fresh, but while responses overtake
// a retransmission.
type requester struct {
	una   uint64 // oldest unacknowledged
	nxt   uint64 // next to transmit; below fresh: again
	fresh uint64 // never transmitted yet
	// heard is what the peer has executed all before; una stays behind it at a Read whose responses are missing.
	heard uint64

	readLimit uint64 // responses to be outstanding at most
	reads     int    // read requests unanswered of those before nxt
	readSeqs  uint64 // responses that they have yet to bring
	partSeqs  uint64 // responses that one read request asks for at most
	unread    int    // Reads started and incomplete, for the fence
	readRetry bool   // a gap in the responses has been acted on

	sinceAck int    // packets sent since the last that asked for an acknowledgement
	retries  int    // timeouts without progress
	rnrs     int    // receiver-not-ready answers without progress
	nakked   uint64 // where the last sequence NAK sent us back to
	probed   bool   // since the last progress (see probes)
	probing  bool   // the probe, and nothing else, may be in flight

	window  int // packets
	credit  int // acknowledged towards the next packet of window
	recover uint64

	rtt     time.Duration
	timed   uint64 // the packet whose round trip is measured
	timedAt time.Time
}

func (r *requester) init(c *Config) {
	r.una = firstSeq + uint64(c.SendPSN)
	r.nxt, r.fresh, r.heard, r.recover = r.una, r.una, r.una, r.una
	r.window = max(1, min(startWindow, c.Window))
	// With two requests and more, the next is there when the first has been answered.
	r.readLimit = uint64(min(max(1, c.ReadWindow/c.MTU), maxReadSeqs))
	r.partSeqs = r.readLimit
	if c.ReadsOut > 1 {
		r.partSeqs = max(1, r.readLimit/2)
	}
}

// transmitRequests sends what may be sent now.
func (q *QP) transmitRequests(now time.Time, s Sink) {
	if !q.rnrAt.IsZero() {
		return
	}
	for q.sq.cursor < q.sq.posted {
		e := q.sq.at(q.sq.cursor)
		if !e.started && !q.start(e) {
			return
		}
		if e.status != rdma.Success {
			q.reap(s)
			return
		}
		if e.count == 0 || q.req.nxt >= e.end() {
			q.sq.cursor++
			if e.count == 0 {
				q.reap(s)
			}
			continue
		}
		if !q.step(now, e, s) {
			return
		}
	}
}

// step sends one packet of e, or skips what need not be sent again; false if that has to wait.
func (q *QP) step(now time.Time, e *sendEntry, s Sink) bool {
	r := &q.req
	if e.isRead() {
		return q.sendRead(now, e, s)
	}
	if r.nxt < r.heard { // behind a Read whose responses were lost: this one arrived
		r.nxt = min(r.heard, e.end())
		return true
	}
	// What is in flight; the responses to Reads are bounded elsewhere.
	window := r.window
	if r.probing {
		window = 1
	}
	if int64(r.nxt)-int64(max(r.una, r.heard))-int64(r.readSeqs) >= int64(window) {
		return false
	}
	return q.sendData(now, e, s)
}

// start begins a work request: false while it must wait. What can be known to be wrong with it is its status then.
func (q *QP) start(e *sendEntry) bool {
	r := &q.req
	if e.wr.Flags&rdma.Fence != 0 && r.unread > 0 {
		return false
	}
	e.started = true
	q.sq.begun++
	if e.status != rdma.Success {
		return true
	}
	switch e.wr.Op {
	case rdma.OpLocalInv:
		if !q.invalidate(e.wr.InvalidateKey) {
			e.status = rdma.LocQPOpErr
		}
		return true
	case rdma.OpBindWindow:
		if !e.wr.Window.(*window).bind(q, e.key, e.wr.Region.(*region), e.wr.SGL[0], e.wr.Access) {
			e.status = rdma.MWBindErr
		}
		return true
	case rdma.OpRead:
		e.status = q.checkSGL(e, rdma.LocalWrite)
		if q.cfg.ReadsOut == 0 { // the peer serves none
			e.status = rdma.LocQPOpErr
		}
		r.unread++
	default:
		e.status = q.checkSGL(e, localRead)
	}
	e.first, e.count = r.fresh, q.packets(e.length)
	return true
}

func (q *QP) checkSGL(e *sendEntry, need rdma.Access) rdma.Status {
	if !q.holds(e.wr.SGL, need) {
		return rdma.LocProtErr
	}
	return rdma.Success
}

// sendRead asks for the next part of a Read. Parts begin at multiples of partSeqs, so that one that is asked for
// again, from the first missing response on, lies in what was asked for before (IBTA 9.7.5.1.1).
func (q *QP) sendRead(now time.Time, e *sendEntry, s Sink) bool {
	r := &q.req
	k := r.nxt - e.first
	n := min(r.partSeqs-k%r.partSeqs, e.count-k)
	if r.reads > 0 && (r.reads >= q.cfg.ReadsOut || r.readSeqs+n > r.readLimit) {
		return false
	}
	if q.faults.skipResend && r.nxt < r.fresh {
		q.sent(now, n, true)
		return true
	}
	p := q.packet(wire.ReadRequest, 0, r.nxt, s)
	if p == nil {
		return false
	}
	off := uint32(k) * uint32(q.cfg.MTU)
	p.SetRETH(e.wr.RemoteAddr+uint64(off), e.wr.RKey, min(uint32(n)*uint32(q.cfg.MTU), e.length-off))
	p.SetAckReq()
	r.reads++
	r.readSeqs += n
	q.sent(now, n, true)
	return true
}

// sendData sends the next packet of a Send or Write. The payload is copied from registered memory now: when it is
// sent again the memory is read again.
func (q *QP) sendData(now time.Time, e *sendEntry, s Sink) bool {
	r := &q.req
	if q.faults.skipResend && r.nxt < r.fresh {
		q.sent(now, 1, true)
		return true
	}
	k := r.nxt - e.first
	off := uint32(k) * uint32(q.cfg.MTU)
	n := min(uint32(q.cfg.MTU), e.length-off)
	last := k == e.count-1
	p := q.packet(opcode(e.wr.Op, k == 0, last), int(n), r.nxt, s)
	if p == nil {
		return false
	}
	if n > 0 && !q.gather(e.wr.SGL, off, p.Payload()) {
		void(p)
		e.status = rdma.LocProtErr
		q.reap(s)
		return false
	}
	switch {
	case p.Opcode().HasRETH():
		p.SetRETH(e.wr.RemoteAddr, e.wr.RKey, e.length)
	case p.Opcode().HasIETH():
		p.SetInvalidateKey(e.wr.InvalidateKey)
	}
	if last && e.wr.Flags&rdma.Solicited != 0 && e.wr.Op != rdma.OpWrite {
		p.SetSolicited()
	}
	// Whoever fills the window must ask, or nobody would open it.
	r.sinceAck++
	ask := last && !q.followed(e) || r.probing || r.sinceAck >= min(ackEvery, (r.window+1)/2)
	if ask {
		p.SetAckReq()
	}
	q.sent(now, 1, ask)
	return true
}

// followed reports whether e is a Write of whose end nobody is told, and what was posted behind it will ask for an
// acknowledgement of both. It does not concern a packet that is sent again: its peer is to say at once what it has.
func (q *QP) followed(e *sendEntry) bool {
	if e.wr.Op != rdma.OpWrite || e.wr.Flags&rdma.Signaled != 0 || q.req.nxt < q.req.fresh || q.sq.cursor+1 >= q.sq.posted {
		return false
	}
	switch next := q.sq.at(q.sq.cursor + 1); next.wr.Op {
	case rdma.OpSend, rdma.OpSendInv, rdma.OpWrite:
		return next.wr.Flags&rdma.Fence == 0 && next.status == rdma.Success
	}
	return false
}

// sent moves on by n sequence numbers.
func (q *QP) sent(now time.Time, n uint64, asked bool) {
	r := &q.req
	if r.nxt < r.fresh {
		q.c.Retransmits++
	} else if asked && r.timedAt.IsZero() {
		r.timed, r.timedAt = r.nxt, now
	}
	if asked {
		r.sinceAck = 0
	}
	r.nxt += n
	r.fresh = max(r.fresh, r.nxt)
	q.answered(now)
}

// opcode is that of a packet of a message.
func opcode(op rdma.OpCode, first, last bool) wire.Opcode {
	i := 0
	if !first {
		i |= 1
	}
	if last {
		i |= 2
	}
	switch op {
	case rdma.OpWrite:
		return [4]wire.Opcode{wire.WriteFirst, wire.WriteMiddle, wire.WriteOnly, wire.WriteLast}[i]
	case rdma.OpSendInv:
		return [4]wire.Opcode{wire.SendFirst, wire.SendMiddle, wire.SendOnlyInv, wire.SendLastInv}[i]
	}
	return [4]wire.Opcode{wire.SendFirst, wire.SendMiddle, wire.SendOnly, wire.SendLast}[i]
}

// goBack makes the oldest unacknowledged packet the next to be sent (IBTA 9.7.5.1.1: go back N).
func (q *QP) goBack() {
	r := &q.req
	r.nxt = r.una
	r.reads, r.readSeqs = 0, 0
	r.sinceAck = 0
	r.timedAt = zeroTime
	q.sq.cursor = q.sq.done
	q.ackAt = zeroTime
}
