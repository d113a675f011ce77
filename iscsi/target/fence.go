package target

import (
	"encoding/binary"

	"github.com/goiser/goiser/iscsi"
)

// Responses on one connection and the response of a function on another have no order on the wire. So that the
// initiator does not see a task end after the function that has ended all tasks, the function waits until the
// initiator has acknowledged what was sent on the other connections of its session (RFC 7143, 4.2.3.3, step f). A
// connection that is silent is asked by a ping: its answer carries ExpStatSN.

// A fence is the StatSN up to which a connection's answers must have been acknowledged.
type fence struct {
	set  bool
	upTo iscsi.StatSN
}

// fence is what a function of another connection has to wait for here.
func (c *conn) fence() fence {
	if !c.acked.Before(c.seq.StatSN) {
		return fence{}
	}
	if c.ping == 0 && c.mayTell() {
		c.sendPing()
	}
	return fence{true, c.seq.StatSN}
}

// passed reports whether the initiator has acknowledged what f asks for.
func (c *conn) passed(f fence) bool { return !f.set || !c.acked.Before(f.upTo) }

// acknowledge takes the ExpStatSN of a request; it stands at the same place in all of them (RFC 7143, 11). One
// beyond what was sent is nonsense.
func (c *conn) acknowledge(bhs *[iscsi.BHSSize]byte) {
	sn := iscsi.StatSN(binary.BigEndian.Uint32(bhs[28:]))
	if !c.acked.Before(sn) || c.seq.StatSN.Before(sn) {
		return
	}
	c.acked = sn
	if len(c.aborts) > 0 {
		c.checkAborts()
	}
}

// askAgain pings if the answer to the last ping came from before what a fence asks for.
func (c *conn) askAgain() {
	for i := range c.aborts {
		if !c.passed(c.aborts[i].fence) && c.mayTell() {
			c.sendPing()
			return
		}
	}
}
