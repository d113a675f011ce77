package rc

import (
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A readResource remembers a Read that was accepted, for as long as the peer may ask for it again: until as many
// more have been accepted as it may have outstanding (IBTA 9.7.5.1.2).
type readResource struct {
	first, count uint64 // sequence numbers of the responses
	addr         uint64
	key, length  uint32
	msn          uint32
	next, end    uint64 // responses to be sent
	stop         uint32 // bytes from addr on that were asked for
	sent         uint64 // responses that were sent at least once
}

// acceptRead checks a Read request and queues the answer.
func (q *QP) acceptRead(p wire.Packet) wire.Syndrome {
	r := &q.resp
	addr, key, length := p.RETH()
	if len(r.reads) == 0 || len(p.Payload()) != 0 || length > maxMessage {
		return wire.NakInvalidRequest
	}
	e := &r.reads[r.readHead%uint64(len(r.reads))]
	if e.sent < e.count { // more than we said we would serve
		return wire.NakInvalidRequest
	}
	if length > 0 && !q.opens(&q.hotRemote, key, addr, uint64(length), rdma.RemoteRead) {
		return wire.NakRemoteAccess
	}
	r.msn++
	*e = readResource{first: r.exp, count: q.packets(length), addr: addr, key: key, length: length, msn: r.msn, stop: length}
	e.next, e.end = e.first, e.first+e.count
	r.readHead++
	// If the resource was about to answer again, that is of no use any more: the peer has got its answer, or it
	// would not go on.
	if d := uint64(len(r.reads)); r.readHead > d {
		r.readScan = max(r.readScan, r.readHead-d)
	}
	r.exp = e.end
	r.acks.settle() // the responses acknowledge what was before
	return 0
}

// readAgain answers a Read from the packet on that the peer asks for. It must ask for what it asked before.
func (q *QP) readAgain(p wire.Packet, seq uint64) {
	r := &q.resp
	addr, key, length := p.RETH()
	oldest := r.readHead - min(r.readHead, uint64(len(r.reads)))
	for n := oldest; n < r.readHead; n++ {
		e := &r.reads[n%uint64(len(r.reads))]
		if seq < e.first || seq >= e.first+e.count {
			continue
		}
		off := uint32(seq-e.first) * uint32(q.cfg.MTU)
		if key != e.key || addr != e.addr+uint64(off) || length > e.length-off {
			break
		}
		stop, end := off+length, seq+q.packets(length)
		if e.next < e.end { // some are still to be sent
			e.next, e.end, e.stop = min(e.next, seq), max(e.end, end), max(e.stop, stop)
		} else {
			e.next, e.end, e.stop = seq, end, stop
			e.msn = r.msn // the present one, as in a repeated acknowledgement
		}
		r.readScan = min(r.readScan, n)
		return
	}
	q.c.Dropped++
}

// transmitReads sends Read responses, oldest first; false while some remain.
func (q *QP) transmitReads(s Sink) bool {
	r := &q.resp
	for ; r.readScan < r.readHead; r.readScan++ {
		e := &r.reads[r.readScan%uint64(len(r.reads))]
		for e.next < e.end {
			if !q.sendResponse(e, s) {
				return r.fatal != 0 && !q.more
			}
		}
	}
	return true
}

// sendResponse sends the next response of e; false without room, or if the memory is not there any more at the first
// attempt.
func (q *QP) sendResponse(e *readResource, s Sink) bool {
	off := uint32(e.next-e.first) * uint32(q.cfg.MTU)
	n := min(uint32(q.cfg.MTU), e.stop-off)
	op := wire.ReadRespMiddle
	first, last := e.next == e.first, e.next == e.end-1
	switch {
	case first && last:
		op = wire.ReadRespOnly
	case first:
		op = wire.ReadRespFirst
	case last:
		op = wire.ReadRespLast
	}
	p := q.packet(op, int(n), e.next, s)
	if p == nil {
		return false
	}
	if n > 0 && !q.load(&q.hotRemote, e.key, e.addr+uint64(off), p.Payload(), rdma.RemoteRead) {
		void(p)
		if e.next-e.first < e.sent {
			// It was answered before. The request is a late copy from before the peer gave the key up; or the peer
			// gave it up too early, and its retries will end.
			e.next = e.end
			q.c.Dropped++
			return true
		}
		r := &q.resp
		r.fatal, r.fatalAt, r.recvStatus = wire.NakRemoteAccess, e.next, rdma.Success
		r.readScan = r.readHead
		return false
	}
	if op != wire.ReadRespMiddle {
		p.SetAETH(wire.Ack, e.msn)
	}
	e.next++
	e.sent = max(e.sent, e.next-e.first)
	return true
}
