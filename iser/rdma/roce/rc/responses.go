package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// response takes an acknowledgement or a Read response (IBTA 9.7.5).
func (q *QP) response(now time.Time, p wire.Packet, s Sink) {
	r := &q.req
	seq := seqOf(r.una, p.PSN())
	if seq >= r.fresh { // an answer to nothing that was sent
		q.c.Dropped++
		return
	}
	switch {
	case p.Opcode().Is(wire.Read):
		q.readResponse(now, p, seq, s)
	case p.Opcode() != wire.Acknowledge:
		q.c.Dropped++
	default:
		q.acknowledge(now, p, seq, s)
	}
}

// acknowledge takes an ACK or NAK.
func (q *QP) acknowledge(now time.Time, p wire.Packet, seq uint64, s Sink) {
	syndrome, _ := p.AETH()
	stale := seq < q.req.una
	switch {
	case syndrome.IsAck():
		if stale {
			q.c.Duplicates++
			return
		}
		if q.heard(now, seq+1, s) { // it passed a Read, whose responses were lost (IBTA 9.7.5.1.1, implied NAK)
			q.missing(now)
		}
	case syndrome.IsRNR():
		q.c.RNRNaksReceived++
		if !stale {
			q.notReady(now, seq, rnrWait(syndrome), s)
		}
	case syndrome.IsNak():
		q.c.NaksReceived++
		if !stale {
			q.nak(now, syndrome, seq, s)
		}
	default:
		q.c.Dropped++
	}
}

// oldestRead is the first Read that lacks responses, or nil.
func (q *QP) oldestRead() *sendEntry {
	for q.sq.read = max(q.sq.read, q.sq.done); q.sq.read < q.sq.begun; q.sq.read++ {
		if e := q.sq.at(q.sq.read); e.isRead() && e.got < e.count && e.status == rdma.Success {
			return e
		}
	}
	return nil
}

// heard notes that the peer has executed everything before seq. It reports whether responses to a Read before seq
// are missing: the oldest unacknowledged is then the first of these.
func (q *QP) heard(now time.Time, seq uint64, s Sink) (missing bool) {
	r := &q.req
	r.heard = max(r.heard, seq)
	una := r.heard
	if e := q.oldestRead(); e != nil && e.first+e.got < una {
		una, missing = e.first+e.got, true
	}
	q.progress(now, una, s)
	return missing
}

// missing asks again for responses, once until the stream goes on: each packet of the rest of a burst would ask
// again otherwise.
func (q *QP) missing(now time.Time) {
	if q.failed || q.req.readRetry || q.req.nxt <= q.req.una {
		return
	}
	q.req.readRetry = true
	q.loss()
	q.goBack()
}

// progress makes una the oldest unacknowledged and ends what that completes.
func (q *QP) progress(now time.Time, una uint64, s Sink) {
	r := &q.req
	if una <= r.una {
		return
	}
	q.grow(una - r.una)
	r.una = una
	q.measure(now)
	r.retries, r.rnrs = 0, 0
	if r.probing && una < r.fresh { // what was behind the probed packet is lost as well
		q.loss()
	}
	r.probed, r.probing = false, false
	q.reap(s)
	if q.failed {
		return
	}
	if r.nxt < una { // answered before it was sent again
		r.nxt = una
	}
	q.ackAt = zeroTime
	q.arm(now)
}

// readResponse takes one packet of the answer to a Read. Where it belongs is told by its PSN: responders differ in
// the opcodes they use when asked for a part again.
func (q *QP) readResponse(now time.Time, p wire.Packet, seq uint64, s Sink) {
	r := &q.req
	e := q.oldestRead()
	if e == nil || seq < e.first+e.got {
		q.c.Duplicates++
		return
	}
	if seq > e.first+e.got {
		q.c.OutOfOrder++
		q.heard(now, e.first+e.got, s) // the responder executes in order
		q.missing(now)
		return
	}
	data := p.Payload()
	off := uint32(e.got) * uint32(q.cfg.MTU)
	switch {
	case uint32(len(data)) != min(uint32(q.cfg.MTU), e.length-off):
		e.status = rdma.BadRespErr
	case len(data) > 0 && !q.scatter(e.wr.SGL, off, data):
		e.status = rdma.LocProtErr
	}
	if e.status != rdma.Success {
		r.heard = max(r.heard, seq)
		q.progress(now, seq, s)
		q.reap(s)
		return
	}
	e.got++
	r.readRetry = false
	if seq < r.nxt { // one that is waited for, not a late one of a request that is due again
		r.readSeqs--
		if e.got%r.partSeqs == 0 || e.got == e.count {
			r.reads--
		}
	}
	if e.got == e.count {
		r.unread--
	}
	q.heard(now, seq+1, s)
}

// notReady waits, because the receiver has no receive for seq (IBTA 9.7.5.2.8), and sends from there again.
func (q *QP) notReady(now time.Time, seq uint64, wait time.Duration, s Sink) {
	r := &q.req
	q.heard(now, seq, s)
	if q.failed || !q.rnrAt.IsZero() {
		return
	}
	if q.cfg.RNRRetry != infiniteRNR && r.rnrs >= q.cfg.RNRRetry {
		q.failAt(q.holder(seq), rdma.RNRRetryExcErr, s)
		return
	}
	r.rnrs++
	r.retries = 0 // it answers
	r.readRetry = false
	q.goBack()
	q.rnrAt = now.Add(wait)
}

// nak acts on a NAK at seq: what is before is acknowledged.
func (q *QP) nak(now time.Time, syndrome wire.Syndrome, seq uint64, s Sink) {
	r := &q.req
	q.heard(now, seq, s)
	if q.failed {
		return
	}
	status := rdma.BadRespErr // a syndrome that reliable connections do not have
	switch syndrome {
	case wire.NakSequence:
		// Nothing is in flight when a retransmission is due already. So a NAK for a packet behind one that found
		// no receive does not cut that wait short. A second one for the same packet is a copy of the first.
		if r.nxt > r.una && r.nakked != seq {
			r.nakked = seq
			r.readRetry, r.probing = false, false
			q.loss()
			q.goBack()
		}
		return
	case wire.NakInvalidRequest:
		status = rdma.RemInvReqErr
	case wire.NakRemoteAccess:
		status = rdma.RemAccessErr
	case wire.NakRemoteOp:
		status = rdma.RemOpErr
	}
	q.failAt(q.holder(seq), status, s)
}

// holder is the work request that the packet seq is of.
func (q *QP) holder(seq uint64) uint64 {
	for n := q.sq.done; n < q.sq.begun; n++ {
		if e := q.sq.at(n); e.count > 0 && seq < e.end() {
			return n
		}
	}
	return q.sq.done
}
