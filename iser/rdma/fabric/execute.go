package fabric

import (
	"hash/crc32"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

// A verdict is how the execution of a work request went.
type verdict struct {
	wait   bool        // not yet: something must happen first
	status rdma.Status // for the requester
	// responder: the responder noticed the error, and its queue pair fails as well.
	responder bool
}

// run does what can be done now, and reports whether that was anything.
func (q *queuePair) run() bool {
	did := false
	if q.state == qpConnected && q.leaving && !q.l.held(q.leaveAt) {
		q.toError()
		did = true
	}
	if q.state == qpError {
		return q.flush() || did
	}
	for q.state == qpConnected && q.sq.executed < q.sq.posted && q.step() {
		did = true
	}
	for q.state == qpConnected && q.sq.done < q.sq.executed && q.retire() {
		did = true
	}
	if len(q.late) > 0 && !q.l.held(q.late[0].due) {
		q.place()
	}
	if q.overrun && q.state == qpConnected {
		q.toError()
		q.peer.toError()
		did = true
	}
	return did
}

// step executes the next work request; false if it has to wait. It keeps everything behind it waiting:
// a send queue executes in order.
func (q *queuePair) step() bool {
	n := q.sq.executed
	e := q.sq.at(n)
	if q.l.held(e.due) || e.wr.Flags&rdma.Fence != 0 && q.reads > 0 {
		return false
	}
	v := q.execute(e)
	switch {
	case v.wait:
		return false
	case v.status != rdma.Success:
		q.fail(n, v)
	default:
		q.rnr = false
		q.await(e)
		q.sq.executed++
	}
	return true
}

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

func (q *queuePair) execute(e *sendEntry) verdict {
	if e.fault != rdma.Success {
		return q.fault(e)
	}
	switch e.wr.Op {
	case rdma.OpLocalInv:
		return q.localInvalidate(e)
	case rdma.OpBindWindow:
		return q.bindWindow(e)
	}
	if q.peer.state != qpConnected {
		return q.unanswered()
	}
	if rdma.Length(e.wr.SGL) > uint64(q.l.f.limits.MaxMessage) {
		return verdict{status: rdma.LocLenErr}
	}
	switch e.wr.Op {
	case rdma.OpWrite:
		return q.write(e)
	case rdma.OpRead:
		return q.startRead(e)
	}
	return q.send(e)
}

// fault ends a work request as the test wants.
func (q *queuePair) fault(e *sendEntry) verdict {
	v := verdict{status: e.fault}
	switch e.fault {
	case rdma.RemInvReqErr, rdma.RemAccessErr, rdma.RemOpErr, rdma.RemAbortErr:
		v.responder = q.peer.state == qpConnected
	}
	key := e.wr.RKey
	if e.wr.Op != rdma.OpWrite && e.wr.Op != rdma.OpRead {
		key = e.wr.InvalidateKey
	}
	q.l.tap(q, e, v.status, key, e.wr.RemoteAddr, rdma.Length(e.wr.SGL), nil)
	return v
}

// unanswered waits for a peer that is in the error state: either its disconnect arrives, or the retries
// run out.
func (q *queuePair) unanswered() verdict {
	if q.retryAt.IsZero() {
		q.retryAt = q.l.time().Add(retryTimeout)
	}
	if q.l.held(q.retryAt) {
		return verdict{wait: true}
	}
	return verdict{status: rdma.RetryExcErr}
}

func (q *queuePair) localInvalidate(e *sendEntry) verdict {
	mem := &q.l.f.mem
	mem.Lock()
	defer mem.Unlock()
	var v verdict
	if !q.d.invalidate(q, e.wr.InvalidateKey) {
		v.status = rdma.LocQPOpErr
	}
	q.l.tap(q, e, v.status, e.wr.InvalidateKey, 0, 0, nil)
	return v
}

func (q *queuePair) bindWindow(e *sendEntry) verdict {
	mem := &q.l.f.mem
	mem.Lock()
	defer mem.Unlock()
	var v verdict
	sge := e.wr.SGL[0]
	if !e.wr.Window.(*window).bind(q, e.key, e.wr.Region.(*region), sge, e.wr.Access) {
		v.status = rdma.MWBindErr
	}
	q.l.tap(q, e, v.status, e.key, sge.Addr, 0, nil)
	return v
}

// send delivers a Send into the peer's next receive.
func (q *queuePair) send(e *sendEntry) verdict {
	p, mem := q.peer, &q.l.f.mem
	if p.rq.done == p.rq.posted {
		return q.receiverNotReady()
	}
	q.place() // data of earlier RDMA Writes is there before the receive completes (IBTA, o9-20)
	if e.wr.Op == rdma.OpSendInv {
		mem.Lock()
		defer mem.Unlock()
	} else {
		mem.RLock()
		defer mem.RUnlock()
	}
	n := rdma.Length(e.wr.SGL)
	v, recv := q.deliver(e, p.rq.at(p.rq.done), n)
	c := rdma.Completion{Status: recv, ByteLen: uint32(n)}
	if e.wr.Op == rdma.OpSendInv && v.status == rdma.Success {
		if p.d.invalidate(p, e.wr.InvalidateKey) {
			c.Invalidated, c.InvalidatedKey = true, e.wr.InvalidateKey
		} else { // an error of class J: the receive ends with it (IBTA, 9.9.3)
			c.Status, v = rdma.RemInvReqErr, verdict{status: rdma.RemAccessErr, responder: true}
		}
	}
	q.l.tap(q, e, v.status, e.wr.InvalidateKey, 0, n, p.dst)
	if v.status == rdma.Success || v.responder {
		p.completeRecv(c)
	}
	return v
}

// deliver copies a message and says how that ended for both sides.
func (q *queuePair) deliver(e *sendEntry, r *recvEntry, n uint64) (v verdict, recv rdma.Status) {
	p := q.peer
	var ok bool
	if q.src, ok = q.d.local(q.src[:0], e.wr.SGL, 0); !ok {
		return verdict{status: rdma.LocProtErr}, 0
	}
	if n > rdma.Length(r.sgl) {
		return verdict{status: rdma.RemInvReqErr, responder: true}, rdma.LocLenErr
	}
	if p.dst, ok = p.d.local(p.dst[:0], r.sgl, rdma.LocalWrite); !ok {
		return verdict{status: rdma.RemOpErr, responder: true}, rdma.LocProtErr
	}
	p.dst = cut(p.dst, n)
	copySegments(p.dst, q.src)
	return verdict{}, rdma.Success
}

// receiverNotReady: the peer has posted no receive. With a retry count of 7 the Send waits for one.
func (q *queuePair) receiverNotReady() verdict {
	if !q.rnr {
		q.rnr = true
		q.l.f.Counters.RNRWaits.Add(1)
	}
	if q.l.f.opts.RNRFatal {
		return verdict{status: rdma.RNRRetryExcErr}
	}
	return verdict{wait: true}
}

// write executes an RDMA Write, or acknowledges one whose data is placed later.
func (q *queuePair) write(e *sendEntry) verdict {
	mem := &q.l.f.mem
	mem.RLock()
	defer mem.RUnlock()
	n := rdma.Length(e.wr.SGL)
	v, dst := q.prepareWrite(e, n)
	if v.status != rdma.Success {
		q.l.tap(q, e, v.status, e.wr.RKey, e.wr.RemoteAddr, n, nil)
		return v
	}
	if len(q.late) > 0 || q.l.coin() {
		q.delay(e, n)
		return v
	}
	q.dst = append(q.dst[:0], dst)
	copySegments(q.dst, q.src)
	q.l.tap(q, e, v.status, e.wr.RKey, e.wr.RemoteAddr, n, q.dst)
	return v
}

func (q *queuePair) prepareWrite(e *sendEntry, n uint64) (v verdict, dst []byte) {
	var ok bool
	if q.src, ok = q.d.local(q.src[:0], e.wr.SGL, 0); !ok {
		return verdict{status: rdma.LocProtErr}, nil
	}
	if dst, ok = q.peer.d.remote(q.peer, e.wr.RKey, e.wr.RemoteAddr, n, rdma.RemoteWrite); !ok {
		return verdict{status: rdma.RemAccessErr, responder: true}, nil
	}
	return v, dst
}

// delay keeps a copy of a Write's data, whose source may change once the Write has completed. Nothing
// but the next Send's receive promises that the data has been placed.
func (q *queuePair) delay(e *sendEntry, n uint64) {
	data := make([]byte, n)
	copySegments([][]byte{data}, q.src)
	q.late = append(q.late, placement{entry: *e, data: data, due: q.l.later(maxPlaceHold)})
}

// place puts delayed data into the peer's memory, in order. Where the peer has ended the access
// meanwhile, the data is lost, as it is on a device that writes to memory late.
func (q *queuePair) place() {
	if len(q.late) == 0 {
		return
	}
	mem := &q.l.f.mem
	mem.RLock()
	defer mem.RUnlock()
	for i := range q.late {
		e, n := &q.late[i].entry, uint64(len(q.late[i].data))
		dst, ok := q.peer.d.remote(q.peer, e.wr.RKey, e.wr.RemoteAddr, n, rdma.RemoteWrite)
		if !ok || q.peer.state == qpDestroyed {
			continue
		}
		copy(dst, q.late[i].data)
		q.dst = append(q.dst[:0], dst)
		q.l.tap(q, e, rdma.Success, e.wr.RKey, e.wr.RemoteAddr, n, q.dst)
	}
	clear(q.late)
	q.late = q.late[:0]
}

// startRead sends an RDMA Read request. No more than maxReads are in flight; further ones, and what is
// behind them, wait.
func (q *queuePair) startRead(e *sendEntry) verdict {
	p := q.peer
	if q.maxReads > 0 && p.serves > 0 && q.reads >= q.maxReads {
		return verdict{wait: true}
	}
	q.place() // a Read finds what the Writes before it wrote
	mem := &q.l.f.mem
	mem.RLock()
	defer mem.RUnlock()
	v := q.prepareRead(e)
	if q.maxReads == 0 || q.reads >= p.serves {
		v = verdict{status: rdma.RemInvReqErr, responder: true}
	}
	n := rdma.Length(e.wr.SGL)
	if v.status != rdma.Success {
		q.l.tap(q, e, v.status, e.wr.RKey, e.wr.RemoteAddr, n, nil)
		return v
	}
	if q.l.coin() {
		e.reading = true
		q.reads++
		return v
	}
	q.moveRead(e, n)
	return v
}

// prepareRead finds both ends of a Read: q.dst and q.src.
func (q *queuePair) prepareRead(e *sendEntry) verdict {
	need := rdma.LocalWrite
	if q.l.f.limits.ReadSinkNeedsRemoteWrite {
		need |= rdma.RemoteWrite
	}
	var ok bool
	if q.dst, ok = q.d.local(q.dst[:0], e.wr.SGL, need); !ok {
		return verdict{status: rdma.LocProtErr}
	}
	src, ok := q.peer.d.remote(q.peer, e.wr.RKey, e.wr.RemoteAddr, rdma.Length(e.wr.SGL), rdma.RemoteRead)
	if !ok {
		return verdict{status: rdma.RemAccessErr, responder: true}
	}
	q.src = append(q.src[:0], src)
	return verdict{}
}

func (q *queuePair) moveRead(e *sendEntry, n uint64) {
	copySegments(q.dst, q.src)
	q.l.tap(q, e, rdma.Success, e.wr.RKey, e.wr.RemoteAddr, n, q.src)
}

// finishRead executes a Read that was in flight, for the first time or, as a responder may, again: it
// sees the memory and the keys as they are now.
func (q *queuePair) finishRead(e *sendEntry) verdict {
	e.reading = false
	q.reads--
	if q.peer.state != qpConnected {
		return verdict{status: rdma.RetryExcErr}
	}
	mem := &q.l.f.mem
	mem.RLock()
	defer mem.RUnlock()
	n := rdma.Length(e.wr.SGL)
	v := q.prepareRead(e)
	if v.status == rdma.Success {
		q.moveRead(e, n)
	} else {
		q.l.tap(q, e, v.status, e.wr.RKey, e.wr.RemoteAddr, n, nil)
	}
	return v
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
		rc.ByteLen = 0
	}
	if !q.recvCQ.push(&entry{Completion: rc, qp: q, end: q.rq.done}) {
		q.overrun = true
	}
}

// cut shortens a list of segments to n bytes in all.
func cut(segs [][]byte, n uint64) [][]byte {
	for i := range segs {
		if size := uint64(len(segs[i])); size > n {
			segs[i] = segs[i][:n]
			n = 0
		} else {
			n -= size
		}
	}
	return segs
}

// copySegments copies src to dst, which have the same length in all but may be cut differently.
func copySegments(dst, src [][]byte) {
	var d []byte
	for _, s := range src {
		for len(s) > 0 {
			for len(d) == 0 {
				d, dst = dst[0], dst[1:]
			}
			n := copy(d, s)
			d, s = d[n:], s[n:]
		}
	}
}
