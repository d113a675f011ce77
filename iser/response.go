package iser

import (
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// receive implements role.
func (i *initiator) receive(m *message, comp *rdma.Completion) (iscsi.Event, bool) {
	ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: m.BHS, AHS: m.AHS, Data: m.Data}
	op := iscsi.OpcodeOf(m.BHS)
	switch {
	case op == iscsi.OpDataIn || op == iscsi.OpR2T:
		i.fail(fmt.Errorf("%w: the target sent a %v PDU; RDMA stands for these", ErrProtocol, op))
		return ev, false
	case op == iscsi.OpSCSIResponse:
		return i.respond(m, comp, ev)
	case comp.Invalidated:
		return ev, i.foreignKey(comp, "with a "+op.String())
	}
	return ev, true
}

// foreignKey ends the connection: the target has invalidated a key that it must not have (RFC 7145, 7.3.2). Whose it
// was, if anybody's, is not worth finding out.
func (i *initiator) foreignKey(comp *rdma.Completion, how string) (ok bool) {
	i.fail(fmt.Errorf("%w: the target invalidated STag %08x %s", ErrProtocol, comp.InvalidatedKey, how))
	return false
}

// respond handles a SCSI Response. All RDMA Writes before it have been placed (IBTA, o9-20).
func (i *initiator) respond(m *message, comp *rdma.Completion, ev iscsi.Event) (iscsi.Event, bool) {
	var r iscsi.SCSIResponse
	if err := r.Parse(m.BHS); err != nil {
		i.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		return ev, false
	}
	c := i.byITT[r.ITT]
	if c == nil {
		if comp.Invalidated {
			return ev, i.foreignKey(comp, "of no command")
		}
		return ev, true // the engine knows what to do about it
	}
	if !c.started {
		i.fail(fmt.Errorf("%w: response for command %08x, which was not sent", ErrProtocol, r.ITT))
		return ev, false
	}
	act, ok := c.answer(comp.Invalidated, comp.InvalidatedKey)
	if !ok {
		return ev, i.foreignKey(comp, fmt.Sprintf("with the response for command %08x, which was given %08x", r.ITT, c.stag))
	}
	delete(i.byITT, r.ITT)
	i.active--
	ev.Transfer = c.t
	if act&actCopy != 0 && c.reads {
		c.t.DM.Offset = i.deliver(c, dataLength(&r, c.t.EDTL))
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
	if c.reads && !c.inPlace {
		ev.Key, ev.Addr, ev.Word = c.stag, c.addr, firstWord([][]byte{c.piece.mem(int(c.t.EDTL))}, cursor{})
	} else if c.reads {
		ev.Key, ev.Addr, ev.Word = c.stag, c.addr, firstWord(c.t.In, cursor{})
	}
	i.trace(ev)
}
