package iser

import (
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// receive implements role.
func (i *initiator) receive(m *message, comp *rdma.Completion) (iscsi.Event, bool) {
	ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: m.BHS, AHS: m.AHS, Data: m.Data}
	if comp.Invalidated {
		// We said that our keys cannot be invalidated; whatever this one was, it may be dead now.
		i.fail(fmt.Errorf("%w: the target invalidated STag %08x, which was refused when the connection was made",
			ErrProtocol, comp.InvalidatedKey))
		return ev, false
	}
	switch iscsi.OpcodeOf(m.BHS) {
	case iscsi.OpDataIn, iscsi.OpR2T:
		i.fail(fmt.Errorf("%w: the target sent a %v PDU; RDMA stands for these", ErrProtocol, iscsi.OpcodeOf(m.BHS)))
		return ev, false
	case iscsi.OpSCSIResponse:
		return i.respond(m, ev)
	}
	return ev, true
}

// respond handles a SCSI Response. All RDMA Writes before it have been placed (IBTA, o9-20).
func (i *initiator) respond(m *message, ev iscsi.Event) (iscsi.Event, bool) {
	var r iscsi.SCSIResponse
	if err := r.Parse(m.BHS); err != nil {
		i.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		return ev, false
	}
	c := i.byITT[r.ITT]
	if c == nil {
		return ev, true // the engine knows what to do about it
	}
	if !c.started {
		i.fail(fmt.Errorf("%w: response for command %08x, which was not sent", ErrProtocol, r.ITT))
		return ev, false
	}
	delete(i.byITT, r.ITT)
	i.active--
	ev.Transfer = c.t
	act := c.answer()
	if act&actCopy != 0 && c.reads {
		cur := cursor{}
		n := copyIn(c.t.In, &cur, c.piece.mem(int(dataLength(&r, c.t.EDTL))))
		c.t.DM.Offset = uint32(n)
	}
	if i.trace != nil {
		i.traceResponse(c, &r)
	}
	i.do(c, act)
	return ev, true
}

// dataLength is how many bytes of a read have been placed, as far as a response tells: all expected ones
// but the residual, with GOOD, CONDITION MET or CHECK CONDITION. With another status, or none, there is
// no data.
func dataLength(r *iscsi.SCSIResponse, edtl uint32) uint32 {
	const good, checkCondition, conditionMet = 0x00, 0x02, 0x04
	if r.Response != 0 || r.Status != good && r.Status != checkCondition && r.Status != conditionMet {
		return 0
	}
	if r.Underflow {
		return edtl - min(edtl, r.Residual)
	}
	return edtl
}

func (i *initiator) traceResponse(c *command, r *iscsi.SCSIResponse) {
	ev := TraceEvent{Step: TraceResponseReceived, ITT: r.ITT, Length: c.t.DM.Offset}
	if c.reads {
		ev.Key, ev.Addr, ev.Word = c.piece.key(), c.piece.addr(), firstWord([][]byte{c.piece.mem(int(c.t.EDTL))}, cursor{})
	}
	i.trace(ev)
}
