package target

import (
	"slices"

	"github.com/goiser/goiser/iscsi"
)

// An immediate function request may overtake, on its connection, commands that were sent before it on
// others. A function that ends a set of tasks waits until all of them have been received (RFC 7143, 4.2.3.3,
// step b): one that slipped through behind it would be executed after the answer.

// overtakes reports whether op came before commands that it concerns.
func (c *conn) overtakes(op *tmfOp) bool {
	if !c.ses.shared || op.windowed {
		return false
	}
	switch f := op.request.Function; {
	case f == iscsi.TMAbortTask, f == iscsi.TMTaskReassign: // RefCmdSN tells what is meant
		return false
	case f.Asks(): // of what is here now
		return false
	}
	return c.seq.ExpCmdSN.Before(op.request.CmdSN) && !op.request.CmdSN.After(c.seq.MaxCmdSN+1)
}

// park keeps op until the commands before it have come.
func (c *conn) park(op *tmfOp) {
	c.parked = append(c.parked, op)
	c.ses.parked++
}

// unpark starts the functions whose turn has come, and tells the other connections of theirs.
func (c *conn) unpark() {
	if c.ses == nil || c.ses.parked == 0 || c.state != connFull {
		return
	}
	c.parked = slices.DeleteFunc(c.parked, func(op *tmfOp) bool {
		if c.overtakes(op) {
			return false
		}
		c.ses.parked--
		c.manage(op)
		return true
	})
	if c.ses.parked > 0 && c.seq.ExpCmdSN != c.ses.numbers.ExpCmdSN {
		mates, _ := c.s.neighbours(c)
		for _, m := range mates {
			m.post(item{kind: itemTurn})
		}
	}
}

// overdueParked rejects functions before which commands never came.
func (c *conn) overdueParked() {
	for len(c.parked) > 0 && c.now.Sub(c.parked[0].since) > taskManagementTimeout {
		op := c.parked[0]
		c.parked = slices.Delete(c.parked, 0, 1)
		c.ses.parked--
		c.answerTMF(op, iscsi.TMRejected)
	}
}
