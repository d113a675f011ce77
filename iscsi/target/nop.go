package target

import "github.com/goiser/goiser/iscsi"

// nopOut takes a NOP-Out: a ping, or the answer to ours (RFC 7143, 11.18). A ping is answered at once,
// whatever stores do.
func (c *conn) nopOut(ev *iscsi.Event, windowed bool) {
	var nop iscsi.NOPOut
	if err := nop.Parse(ev.BHS); err != nil {
		c.fail(err)
		return
	}
	c.openSlot(windowed)
	if nop.TTT == c.ping && c.ping != 0 {
		c.ping = 0
		c.askAgain()
	}
	if nop.ITT == iscsi.ReservedTag {
		return
	}
	data := ev.Data[:min(len(ev.Data), c.maxData())]
	c.sendNOPIn(nop.ITT, iscsi.ReservedTag, c.nextStatSN(), data)
}

// sendPing asks the initiator for a sign of life. The PDU carries the next StatSN without using it up
// (RFC 7143, 11.19).
func (c *conn) sendPing() {
	c.lastPing++
	if c.lastPing == iscsi.ReservedTag {
		c.lastPing = 1
	}
	c.ping, c.pinged = c.lastPing, c.now
	c.sendNOPIn(iscsi.ReservedTag, c.ping, c.seq.StatSN, nil)
}

func (c *conn) sendNOPIn(itt, ttt uint32, sn iscsi.StatSN, data []byte) {
	r := iscsi.NOPIn{
		ITT:        itt,
		TTT:        ttt,
		DataLength: uint32(len(data)),
		StatSN:     sn,
		ExpCmdSN:   c.seq.ExpCmdSN,
		MaxCmdSN:   c.seq.MaxCmdSN,
	}
	r.Put(&c.bhs)
	c.reply(data)
}

// maxData is the longest data segment, in bytes, of a PDU to the initiator that is not Data-In.
func (c *conn) maxData() int {
	n := int(c.params.MaxSendData)
	if c.ses.discovery {
		n = min(n, c.traits.MaxLoginData)
	}
	return n
}
