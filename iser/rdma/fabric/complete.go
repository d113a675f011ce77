package fabric

import (
	"hash/crc32"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

// await decides when an executed work request completes.
func (q *queuePair) await(e *sendEntry) {
	switch {
	case e.reading:
		e.due = q.l.later(maxReadHold)
	case e.wr.Op == rdma.OpLocalInv || e.wr.Op == rdma.OpBindWindow:
		e.due = time.Time{} // nobody acknowledges these
	default:
		if e.due = q.l.hold(maxAckHold); !e.due.IsZero() {
			e.sum, _ = q.checksum(e)
		}
	}
}

// checksum reads the memory of a Send or Write as it is now; false if its keys do not allow it.
func (q *queuePair) checksum(e *sendEntry) (sum uint32, ok bool) {
	mem := &q.l.f.mem
	mem.RLock()
	defer mem.RUnlock()
	if q.src, ok = q.d.local(q.src[:0], e.wr.SGL, 0); !ok {
		return 0, false
	}
	for _, b := range q.src {
		sum = crc32.Update(sum, crc32.IEEETable, b)
	}
	return sum, true
}

// retransmit is what a device does whose acknowledgement is late: it reads the message again. If the
// keys are gone by then, that is a local protection error, although the message has arrived long ago.
// Other contents are lost on the responder, which knows the message; they are counted all the same,
// for a caller that changed the memory of a Send before its completion is a caller with a bug. (The
// memory of an RDMA Write may be a store's, which has a right to change.)
func (q *queuePair) retransmit(e *sendEntry) verdict {
	sum, ok := q.checksum(e)
	if !ok {
		return verdict{status: rdma.LocProtErr}
	}
	if sum != e.sum && e.wr.Op != rdma.OpWrite {
		q.l.f.Counters.Recycled.Add(1)
	}
	return verdict{}
}

// retire completes the oldest executed work request, unless that is held back.
func (q *queuePair) retire() bool {
	n := q.sq.done
	e := q.sq.at(n)
	if q.l.held(e.due) {
		return false
	}
	var v verdict
	switch {
	case e.reading:
		if q.peer.state != qpConnected && q.unanswered().wait {
			return false
		}
		v = q.finishRead(e)
	case !e.due.IsZero():
		v = q.retransmit(e)
	}
	if v.status != rdma.Success {
		q.fail(n, v)
	} else {
		q.completeSend(rdma.Success)
	}
	return true
}

// fail ends work request n with an error, after those before it have ended, and the queue pair with it.
func (q *queuePair) fail(n uint64, v verdict) {
	for q.sq.done < n {
		e := q.sq.at(q.sq.done)
		if e.reading {
			if r := q.finishRead(e); r.status != rdma.Success { // then that one is the first error
				r.responder = r.responder || v.responder
				v = r
				break
			}
		}
		q.completeSend(rdma.Success)
	}
	q.completeSend(v.status)
	q.sq.executed = q.sq.done
	q.toError()
	if v.responder {
		q.peer.toError()
	}
}

// toError moves the queue pair to the error state: everything that has not completed is flushed. Of
// what was executed, but not acknowledged yet, nobody can tell: a seed flushes some of it.
func (q *queuePair) toError() {
	if q.state >= qpError {
		return
	}
	if q.peer != nil {
		q.place()
		q.peer.place()
	}
	q.state = qpError
	for acked := true; q.sq.done < q.sq.executed; {
		if e := q.sq.at(q.sq.done); e.reading || q.l.coin() {
			e.reading, acked = false, false
		}
		if acked {
			q.completeSend(rdma.Success)
		} else {
			q.completeSend(rdma.WRFlushErr)
		}
	}
	q.reads = 0
	q.flush()
}

// flush completes everything that is in the queues of a queue pair in the error state.
func (q *queuePair) flush() bool {
	did := q.sq.done < q.sq.posted || q.rq.done < q.rq.posted
	for q.sq.done < q.sq.posted {
		q.completeSend(rdma.WRFlushErr)
	}
	q.sq.executed = q.sq.done
	for q.rq.done < q.rq.posted {
		q.completeRecv(rdma.Completion{Status: rdma.WRFlushErr})
	}
	return did
}

// completeSend completes the oldest work request of the send queue.
func (q *queuePair) completeSend(s rdma.Status) {
	e := q.sq.at(q.sq.done)
	q.sq.done++
	if s == rdma.Success && e.wr.Flags&rdma.Signaled == 0 {
		return
	}
	c := entry{Completion: rdma.Completion{ID: e.wr.ID, Status: s, QPNum: q.num}, qp: q, end: q.sq.done}
	if e.wr.Op == rdma.OpRead && s == rdma.Success {
		c.ByteLen = uint32(rdma.Length(e.wr.SGL))
	}
	if !q.sendCQ.push(&c) {
		q.overrun = true
	}
}

// completeRecv completes the oldest receive; the caller has set status, length and invalidated key.
func (q *queuePair) completeRecv(rc rdma.Completion) {
	rc.ID, rc.QPNum, rc.Recv = q.rq.at(q.rq.done).id, q.num, true
	q.rq.done++
	if rc.Status != rdma.Success {
		rc.ByteLen, rc.Invalidated, rc.InvalidatedKey = 0, false, 0
	}
	if !q.recvCQ.push(&entry{Completion: rc, qp: q, end: q.rq.done}) {
		q.overrun = true
	}
}
