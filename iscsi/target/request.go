package target

import (
	"encoding/binary"
	"fmt"

	"github.com/goiser/goiser/iscsi"
)

// maxHeld bounds the bytes of requests that came before their turn and are kept. On one connection none
// should: commands are sent in order (RFC 7143, 4.2.2.1). A session that may have more keeps what its
// window lets it (heldLimit).
const maxHeld = 1 << 20

// heldLimit bounds the bytes of requests that a session keeps. Between connections any order is usual, and
// each slot of the window may hold a command with its immediate data. That is as much again as the session's
// part of the reserve: all sessions together keep no more than the reserve has.
func (ses *session) heldLimit() int {
	if !ses.shared {
		return maxHeld
	}
	return max(maxHeld, int(ses.win.size)*(iscsi.BHSSize+ses.mem.unit))
}

// request takes a PDU in full-feature phase: checks that it may come, and orders it by CmdSN.
func (c *conn) request(ev *iscsi.Event) {
	op := iscsi.OpcodeOf(ev.BHS)
	if c.ses.shared {
		c.acknowledge(ev.BHS)
	}
	if op == iscsi.OpDataOut && !c.ses.discovery {
		c.dataOut(ev)
		return
	}
	if op == iscsi.OpSNACK && !c.ses.discovery {
		c.reject(&iscsi.RejectError{Reason: iscsi.RejectSNACK, What: "SNACK without error recovery"}, ev.BHS)
		return
	}
	if !c.allowed(op) {
		c.fail(fmt.Errorf("%v is not expected here", op))
		return
	}
	if c.draining && op == iscsi.OpSCSICommand && c.now.Sub(c.drainSince) >= shutdownGrace {
		return // never executed, and never answered: the connection is about to close
	}
	if iscsi.IsImmediate(ev.BHS) {
		c.deliver(ev, false)
		return
	}
	w := &c.ses.win
	sn := cmdSN(ev.BHS)
	switch w.arrive(sn) {
	case drop:
		c.ses.stats.dropped.Add(1)
		return
	case hold:
		c.hold(sn, ev)
		return
	}
	c.deliver(ev, true)
	c.deliverHeld()
}

// cmdSN is the CmdSN of a request; it stands at the same place in all of them (RFC 7143, 11).
func cmdSN(bhs *[iscsi.BHSSize]byte) iscsi.CmdSN {
	return iscsi.CmdSN(binary.BigEndian.Uint32(bhs[24:]))
}

// allowed reports whether an opcode may come in full-feature phase. A discovery session has text and
// logout, and pings do no harm (RFC 7143, 4.3).
func (c *conn) allowed(op iscsi.Opcode) bool {
	switch op {
	case iscsi.OpNOPOut, iscsi.OpTextRequest, iscsi.OpLogoutReq:
		return true
	case iscsi.OpSCSICommand, iscsi.OpTMFRequest:
		return !c.ses.discovery
	}
	return false
}

// hold keeps a request that came before its turn.
func (c *conn) hold(sn iscsi.CmdSN, ev *iscsi.Event) {
	size := iscsi.BHSSize + len(ev.AHS) + len(ev.Data)
	if limit := c.ses.heldLimit(); c.ses.held+size > limit {
		c.fail(fmt.Errorf("more than %d bytes of requests out of order", limit))
		return
	}
	c.ses.held += size
	c.ses.win.keep(sn, &heldPDU{
		c:      c,
		bhs:    *ev.BHS,
		ahs:    append([]byte(nil), ev.AHS...),
		data:   append([]byte(nil), ev.Data...),
		remote: ev.Remote,
	})
}

func (p *heldPDU) size() int { return iscsi.BHSSize + len(p.ahs) + len(p.data) }

// deliverHeld delivers the requests whose turn has come, up to the first that another connection has to.
func (c *conn) deliverHeld() {
	for c.err == nil && c.state == connFull {
		p, other := c.ses.win.next(c)
		if other != nil {
			other.post(item{kind: itemTurn})
		}
		if p == nil {
			return
		}
		c.ses.held -= p.size()
		ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: &p.bhs, AHS: p.ahs, Data: p.data, Remote: p.remote}
		c.deliver(&ev, true)
	}
}

// deliver handles a request whose turn it is. windowed: it holds a slot of the command window, which its
// handler opens again.
func (c *conn) deliver(ev *iscsi.Event, windowed bool) {
	switch iscsi.OpcodeOf(ev.BHS) {
	case iscsi.OpSCSICommand:
		c.command(ev, windowed)
	case iscsi.OpNOPOut:
		c.nopOut(ev, windowed)
	case iscsi.OpTextRequest:
		c.textRequest(ev, windowed)
	case iscsi.OpTMFRequest:
		c.taskManagement(ev, windowed)
	case iscsi.OpLogoutReq:
		c.logout(ev, windowed)
	}
}

// openSlot opens the window slot of a request that is no SCSI Command.
func (c *conn) openSlot(windowed bool) {
	if windowed {
		c.ses.win.release()
		c.ses.win.late = true
	}
}
