package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// rnrCode asks a peer that found no receive to wait 10.24 ms: long enough for a loop that is busy with a batch to
// post, short enough for a person not to notice. Code 0, which Linux sends, is 655 ms.
const rnrCode = 20

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// A message is the request that has begun to arrive and has not ended.
type message struct {
	kind   messageKind
	key    uint32 // of a Write
	addr   uint64
	length uint32
	done   uint32 // bytes placed
}

// A responder executes the peer's requests (IBTA 9.7.4, 9.7.5.1).
type responder struct {
	exp     uint64 // seq of the next request packet
	msn     uint32 // messages completed; 24 bits on the wire
	msg     message
	nakSent bool   // a sequence NAK went out and its packet has not come
	missed  uint64 // newest packet that was thrown away for coming too early

	acks     acks
	nak, rnr bool // what the end of the round must say
	// fatal ends the queue pair once the NAK at fatalAt is out, recvStatus being what the oldest receive ends with.
	fatal      wire.Syndrome
	fatalAt    uint64
	recvStatus rdma.Status

	reads    []readResource // ring; empty if we serve none
	readHead uint64         // number of Reads accepted
	readScan uint64         // before: none has responses to be sent
}

func (r *responder) init(c *Config) {
	r.exp = firstSeq + uint64(c.RecvPSN)
	r.reads = make([]readResource, c.ReadsIn)
}

// request takes one request packet.
func (q *QP) request(now time.Time, p wire.Packet, s Sink) {
	r := &q.resp
	if r.fatal != 0 {
		q.c.Dropped++
		return
	}
	seq := seqOf(r.exp, p.PSN())
	switch {
	case seq > r.exp:
		q.c.OutOfOrder++
		r.missed = max(r.missed, seq)
		if !r.nakSent {
			r.nak, r.nakSent = true, true
		}
		return
	case seq < r.exp:
		q.c.Duplicates++
		q.duplicate(p, seq)
		return
	}
	r.nakSent, r.rnr = false, false
	if nak := q.execute(now, p, s); nak != 0 {
		r.fatal, r.fatalAt = nak, seq
	}
}

// duplicate answers a request that was executed before (IBTA 9.7.5.1.2): a Read is executed again, a Send or Write
// acknowledged again. An atomic was never executed.
func (q *QP) duplicate(p wire.Packet, seq uint64) {
	switch op := p.Opcode(); {
	case op.Is(wire.Read):
		q.readAgain(p, seq)
	case op.Is(wire.Send) || op.Is(wire.Write):
		q.resp.acks.now = true
	default:
		q.c.Dropped++
	}
}

// execute does what the expected packet asks for, and says with which NAK it is refused, 0 for none. The checks are
// in the order of IBTA 9.7.4.1.
func (q *QP) execute(now time.Time, p wire.Packet, s Sink) wire.Syndrome {
	r, op := &q.resp, p.Opcode()
	if !r.msg.goesOn(op) {
		return wire.NakInvalidRequest
	}
	send := op.Is(wire.Send)
	switch {
	case op.Is(wire.Read):
		return q.acceptRead(p)
	case !send && !op.Is(wire.Write): // atomic operations
		return wire.NakInvalidRequest
	case q.rq.empty() && (op.Is(wire.Send|wire.First) || op.Is(wire.Write) && op.HasImm()):
		r.rnr = true
		// The packets behind it will be sent again with it: they are not out of order.
		r.nakSent = true
		return 0
	case !q.lengthIsRight(p):
		return wire.NakInvalidRequest
	}
	var nak wire.Syndrome
	if send {
		nak = q.placeSend(p)
	} else {
		nak = q.placeWrite(p)
	}
	if nak != 0 {
		return nak
	}
	r.exp++
	q.owe(now, p)
	if !op.Is(wire.Last) {
		return 0
	}
	return q.finish(p, s)
}

// goesOn reports whether a packet of op may come now.
func (m *message) goesOn(op wire.Opcode) bool {
	switch m.kind {
	case sendMessage:
		return op.Is(wire.Send) && !op.Is(wire.First)
	case writeMessage:
		return op.Is(wire.Write) && !op.Is(wire.First)
	}
	return op.Is(wire.First)
}

// lengthIsRight holds the payload against the place of the packet in its message (IBTA 9.7.4.1.6), and that of a
// Write against the length that it announced.
func (q *QP) lengthIsRight(p wire.Packet) bool {
	op, n := p.Opcode(), len(p.Payload())
	first, last := op.Is(wire.First), op.Is(wire.Last)
	switch {
	case n > q.cfg.MTU:
		return false
	case !last && (n < q.cfg.MTU || p.Pad() != 0):
		return false
	case last && !first && n == 0:
		return false
	case !op.Is(wire.Write):
		return true
	}
	var left uint64
	if m := &q.resp.msg; m.kind == writeMessage {
		left = uint64(m.length - m.done)
	} else {
		_, _, length := p.RETH()
		left = uint64(length)
	}
	if last {
		return uint64(n) == left
	}
	return uint64(n) < left && left <= maxMessage
}

// placeSend copies the payload of a Send to the oldest receive.
func (q *QP) placeSend(p wire.Packet) wire.Syndrome {
	r := &q.resp
	if p.Opcode().Is(wire.First) {
		r.msg = message{kind: sendMessage}
	}
	e, data := q.rq.at(q.rq.done), p.Payload()
	if uint64(r.msg.done)+uint64(len(data)) > e.length {
		r.recvStatus = rdma.LocLenErr
		return wire.NakInvalidRequest
	}
	if len(data) > 0 && !q.scatter(e.sgl, r.msg.done, data) {
		r.recvStatus = rdma.LocProtErr
		return wire.NakRemoteOp
	}
	r.msg.done += uint32(len(data))
	return 0
}

// placeWrite copies the payload of a Write to the peer's place in our memory. The whole range is checked when the
// message begins, and each packet again: the key may have ended in between. No bytes need no key (IBTA 9.7.4.1.5).
func (q *QP) placeWrite(p wire.Packet) wire.Syndrome {
	m := &q.resp.msg
	if p.Opcode().Is(wire.First) {
		*m = message{kind: writeMessage}
		m.addr, m.key, m.length = p.RETH()
		if m.length > 0 && !q.opens(&q.hotRemote, m.key, m.addr, uint64(m.length), rdma.RemoteWrite) {
			return wire.NakRemoteAccess
		}
	}
	data := p.Payload()
	if q.faults.lateWrite {
		q.placeLate(*m, data)
	} else if len(data) > 0 && !q.store(&q.hotRemote, m.key, m.addr+uint64(m.done), data, rdma.RemoteWrite) {
		return wire.NakRemoteAccess
	}
	m.done += uint32(len(data))
	return 0
}

// placeLate is the planted fault of a responder that acknowledges what it has not placed.
func (q *QP) placeLate(m message, data []byte) {
	if q.faults.late != nil {
		q.faults.late()
	}
	data = append([]byte(nil), data...)
	q.faults.late = func() {
		if len(data) > 0 {
			q.store(&q.hotRemote, m.key, m.addr+uint64(m.done), data, rdma.RemoteWrite)
		}
	}
}

// finish ends a message: what it invalidates, and the receive that it has taken. Immediate data is not delivered,
// for the interface has no place for it; the receive of a Write that carries some ends with 0 bytes, for there is
// nothing in its memory.
func (q *QP) finish(p wire.Packet, s Sink) wire.Syndrome {
	r, op := &q.resp, p.Opcode()
	c := rdma.Completion{Status: rdma.Success}
	if r.msg.kind == sendMessage {
		c.ByteLen = r.msg.done
	}
	r.msg = message{}
	if op.HasImm() {
		q.c.Immediates++
	}
	if op.HasIETH() {
		if !q.invalidate(p.InvalidateKey()) { // IBTA 9.9.3, class J: the receive ends with it
			r.recvStatus = rdma.RemInvReqErr
			return wire.NakRemoteAccess
		}
		c.Invalidated, c.InvalidatedKey = true, p.InvalidateKey()
	}
	r.msn++
	if op.Is(wire.Send) || op.HasImm() {
		q.completeRecv(c, s)
	}
	return 0
}

// transmitResponses answers what was received: Read responses first, because an acknowledgement of a later packet
// would tell the peer that they are lost; then one NAK or ACK.
func (q *QP) transmitResponses(s Sink) {
	r := &q.resp
	if !q.transmitReads(s) {
		return
	}
	switch {
	case r.fatal != 0:
		if q.answer(r.fatal, r.fatalAt, s) {
			q.c.NaksSent++
			q.failAt(q.sq.done, rdma.WRFlushErr, s)
		}
	case r.rnr:
		if q.answer(wire.RNRNak|rnrCode, r.exp, s) {
			q.c.RNRNaksSent++
			r.rnr, r.nak = false, false
		}
	case r.nak && r.exp <= r.missed: // at exp, also if the first missing one has come meanwhile
		if q.answer(wire.NakSequence, r.exp, s) {
			q.c.NaksSent++
			r.nak = false
			r.nakSent = true
		}
	case r.acks.now || r.acks.written || r.nak:
		if q.answer(wire.Ack, r.exp-1, s) {
			r.nak = false
		}
	}
}

// answer sends an ACK or NAK, which also acknowledges what is before; false without room.
func (q *QP) answer(syndrome wire.Syndrome, seq uint64, s Sink) bool {
	p := q.packet(wire.Acknowledge, 0, seq, s)
	if p == nil {
		return false
	}
	p.SetAETH(syndrome, q.resp.msn)
	q.resp.acks.settle()
	return true
}
