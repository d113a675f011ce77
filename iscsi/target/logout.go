package target

import (
	"fmt"
	"slices"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// Logout responses (RFC 7143, 11.15.1).
const (
	logoutClosed       = 0
	logoutNoCID        = 1
	logoutNotSupported = 2
	logoutCleanup      = 3
)

// shutdownGrace is how long initiators have to log out when the server goes down. After it no new
// command is taken.
const shutdownGrace = 500 * time.Millisecond

// logout takes a Logout Request (RFC 7143, 11.14). Closing the only connection closes the session. What still
// runs gets no response any more; a login that replaces the session, or the connection, waits for it.
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
		c.sessionOver = true
	case iscsi.LogoutConnection:
		if req.CID != c.cid {
			c.logoutMate(&req)
			return
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
	tag := c.answerLogout(req.ITT, response)
	if response != logoutClosed || c.err != nil {
		return
	}
	c.logEvent(eventLogout).Info("logged out")
	c.logoutTag = tag
	c.enterState(connLoggedOut)
	if c.s.loggedOut(c); c.sessionOver {
		c.s.fail(c.ses, c, errLoggedOut)
	}
}

func (c *conn) answerLogout(itt uint32, response uint8) (tag uint32) {
	r := iscsi.LogoutResponse{
		Response:    response,
		ITT:         itt,
		StatSN:      c.nextStatSN(),
		ExpCmdSN:    c.seq.ExpCmdSN,
		MaxCmdSN:    c.seq.MaxCmdSN,
		Time2Wait:   uint16(c.params.DefaultTime2Wait),
		Time2Retain: uint16(c.params.DefaultTime2Retain),
	}
	r.Put(&c.bhs)
	return c.reply(nil)
}

// A logoutOp is a logout of another connection of the session, which is answered when that one has ended.
type logoutOp struct {
	itt   uint32
	cid   uint16
	since time.Time
}

// logoutMate ends another connection of the session.
func (c *conn) logoutMate(req *iscsi.LogoutRequest) {
	other := c.s.mate(c, req.CID)
	switch {
	case other == nil:
		c.answerLogout(req.ITT, logoutNoCID)
	case len(c.logouts) >= maxConnections:
		c.fail(fmt.Errorf("%d logouts at once", len(c.logouts)+1))
	default:
		c.logouts = append(c.logouts, logoutOp{itt: req.ITT, cid: req.CID, since: c.now})
		other.post(item{kind: itemClose, err: errConnLoggedOut})
	}
}

// answerLogouts answers the logouts of connections that are gone.
func (c *conn) answerLogouts() {
	c.logouts = slices.DeleteFunc(c.logouts, func(l logoutOp) bool {
		if c.s.mate(c, l.cid) != nil {
			return false
		}
		c.answerLogout(l.itt, logoutClosed)
		return true
	})
}

// overdueLogouts answers the logouts of connections for which a store works too long.
func (c *conn) overdueLogouts() {
	for len(c.logouts) > 0 && c.now.Sub(c.logouts[0].since) > reinstateTimeout {
		c.answerLogout(c.logouts[0].itt, logoutCleanup)
		c.logouts = slices.Delete(c.logouts, 0, 1)
	}
}

// silence ends all tasks of the connection without a response, as far as they can be ended.
func (c *conn) silence() {
	c.dropHeld()
	for t := range c.own {
		c.abortTask(t)
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
	if c.mayTell() && c.now.Sub(c.drainSince) < shutdownGrace {
		return
	}
	if c.ses.tasks.active() == 0 && c.dm.Idle() {
		c.drop(errShutdown)
	}
}
