package target

import (
	"errors"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// Asynchronous messages (RFC 7143, 11.9): a logout is asked for when the server goes down (event 1), and an initiator
// is told when we close its session for a reason that it cannot know (event 3). Events 0 and 4 are not used: unit
// attentions need no message, and nothing is negotiated anew.
//
// Not every initiator has room for a PDU that it does not expect, before its first request (ISER.md 2.7).

// mayTell reports whether the initiator can take a message.
func (c *conn) mayTell() bool { return !c.ses.discovery && c.greeted && c.state == connFull }

// sendAsyncLogout asks the initiator to log out within shutdownGrace.
func (c *conn) sendAsyncLogout() {
	if !c.mayTell() {
		return
	}
	c.sendAsync(iscsi.Async{
		Event:      iscsi.AsyncLogoutReq,
		Parameter3: uint16((shutdownGrace + time.Second - 1) / time.Second),
	})
}

// sendAsync queues a message.
func (c *conn) sendAsync(r iscsi.Async) {
	r.StatSN, r.ExpCmdSN, r.MaxCmdSN = c.nextStatSN(), c.seq.ExpCmdSN, c.seq.MaxCmdSN
	r.Put(&c.bhs)
	c.reply(nil)
}

// drop ends the connection because of err, which has come from outside it. The initiator is told, if it does not
// know: that the session ends, and how long to wait before it logs in again. Then nothing is answered any more.
func (c *conn) drop(err error) {
	switch {
	case errors.Is(err, errReinstated), errors.Is(err, errConnReinstated), errors.Is(err, errConnLoggedOut), errors.Is(err, errLoggedOut):
		c.fail(err) // its own doing
		return
	case c.ses == nil || !c.mayTell() || c.err != nil:
		c.fail(err)
		return
	}
	c.silence()
	c.sendAsync(iscsi.Async{
		Event:      iscsi.AsyncSessionDrop,
		Parameter2: uint16(c.params.DefaultTime2Wait),
		Parameter3: 0, // nothing is retained: tasks cannot be taken over without error recovery
	})
	c.leave(err)
}

// leave ends the connection when what is queued has left.
func (c *conn) leave(err error) {
	c.leaving = err
	c.enterState(connLeaving)
}
