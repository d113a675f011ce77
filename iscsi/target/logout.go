package target

import (
	"fmt"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// Logout responses (RFC 7143, 11.15.1).
const (
	logoutClosed       = 0
	logoutNoCID        = 1
	logoutNotSupported = 2
)

// shutdownGrace is how long initiators have to log out when the server goes down. After it no new
// command is taken.
const shutdownGrace = 500 * time.Millisecond

// logout takes a Logout Request (RFC 7143, 11.14). With one connection, closing it and closing the session
// are the same. What still runs for the session gets no response any more; a login that replaces the
// session waits for it.
func (c *conn) logout(ev *iscsi.Event, windowed bool) {
	var req iscsi.LogoutRequest
	if err := req.Parse(ev.BHS); err != nil {
		c.fail(err)
		return
	}
	c.openSlot(windowed)
	response := uint8(logoutClosed)
	switch req.Reason {
	case iscsi.LogoutSession:
	case iscsi.LogoutConnection:
		if req.CID != c.cid {
			response = logoutNoCID
		}
	case iscsi.LogoutRecovery:
		response = logoutNotSupported
	default:
		c.fail(fmt.Errorf("logout for reason %d", req.Reason))
		return
	}
	if response == logoutClosed {
		c.silence()
	}
	r := iscsi.LogoutResponse{
		Response:    response,
		ITT:         req.ITT,
		StatSN:      c.nextStatSN(),
		ExpCmdSN:    c.seq.ExpCmdSN,
		MaxCmdSN:    c.seq.MaxCmdSN,
		Time2Wait:   uint16(c.ses.params.DefaultTime2Wait),
		Time2Retain: uint16(c.ses.params.DefaultTime2Retain),
	}
	r.Put(&c.bhs)
	tag := c.reply(nil)
	if response == logoutClosed && c.err == nil {
		c.log.Info("logged out")
		c.logoutTag = tag
		c.enterState(connLoggedOut)
	}
}

// silence ends all tasks without a response, as far as they can be ended.
func (c *conn) silence() {
	for i := range c.ses.tasks.tasks {
		if t := &c.ses.tasks.tasks[i]; t.state != taskFree {
			c.abortTask(t)
		}
	}
}

// shutdown begins to end the connection because the server goes down.
func (c *conn) shutdown() {
	c.draining, c.drainSince = true, c.now
	switch c.state {
	case connLogin, connReinstating:
		c.fail(errShutdown)
	case connFull:
		c.sendAsyncLogout()
	}
}

// drain closes the session once it has nothing to do.
func (c *conn) drain() {
	told := !c.ses.discovery && c.greeted
	if told && c.now.Sub(c.drainSince) < shutdownGrace {
		return
	}
	if c.ses.tasks.active() == 0 && c.dm.Idle() {
		c.fail(errShutdown)
	}
}
