package fabric

import (
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
