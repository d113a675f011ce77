package fabric

import (
	"github.com/goiser/goiser/iser/rdma"
)

// send delivers a Send into the peer's next receive.
func (q *queuePair) send(e *sendEntry) verdict {
	p, mem := q.peer, &q.l.f.mem
	ready := p.rq.done < p.rq.posted
	if ready {
		q.place() // data of earlier RDMA Writes is there before the receive completes (IBTA, o9-20)
	}
	if e.wr.Op == rdma.OpSendInv {
		mem.Lock()
		defer mem.Unlock()
	} else {
		mem.RLock()
		defer mem.RUnlock()
	}
	n := rdma.Length(e.wr.SGL)
	var v verdict
	var ok bool
	if q.src, ok = q.d.local(q.src[:0], e.wr.SGL, 0); !ok {
		v.status = rdma.LocProtErr
	} else if !ready {
		v = q.receiverNotReady()
	}
	if v.wait {
		return v
	}
	var c rdma.Completion
	consumed := v.status == rdma.Success
	if consumed {
		v, c = q.deliver(e, n)
	}
	q.l.tap(q, e, v.status, e.wr.InvalidateKey, 0, n, p.dst)
	if consumed { // after Tap has seen it
		p.completeRecv(c)
	}
	return v
}

// deliver copies a message from q.src, and says how the receive ends.
func (q *queuePair) deliver(e *sendEntry, n uint64) (v verdict, c rdma.Completion) {
	p := q.peer
	r := p.rq.at(p.rq.done)
	c.ByteLen = uint32(n)
	var ok bool
	if n > rdma.Length(r.sgl) {
		c.Status, v = rdma.LocLenErr, verdict{status: rdma.RemInvReqErr, responder: true}
	} else if p.dst, ok = p.d.local(p.dst[:0], r.sgl, rdma.LocalWrite); !ok {
		c.Status, v = rdma.LocProtErr, verdict{status: rdma.RemOpErr, responder: true}
	} else {
		p.dst = cut(p.dst, n)
		copySegments(p.dst, q.src)
		if e.wr.Op == rdma.OpSendInv {
			c.Invalidated, c.InvalidatedKey = true, e.wr.InvalidateKey
			if !p.d.invalidate(p, e.wr.InvalidateKey) { // an error of class J: the receive ends with it (IBTA, 9.9.3)
				c.Status, v = rdma.RemInvReqErr, verdict{status: rdma.RemAccessErr, responder: true}
			}
		}
	}
	return v, c
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
