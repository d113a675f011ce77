package target

import (
	"fmt"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// deadline is when the loop must run even if nothing happens.
func (c *conn) deadline() time.Time {
	d := c.idleDeadline()
	if c.draining && c.state == connFull {
		d = earlier(d, later(c.drainSince.Add(shutdownGrace), c.now.Add(idlePoll)))
	}
	if c.timed {
		d = earlier(d, c.checked.Add(housekeeping))
	}
	return d
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// idleDeadline is when the state of the connection as a whole changes by itself; zero: never.
func (c *conn) idleDeadline() time.Time {
	switch c.state {
	case connLogin:
		return c.since.Add(c.s.c.LoginTimeout)
	case connReinstating:
		return c.since.Add(reinstateTimeout)
	case connLeaving:
		return earlier(c.since.Add(lastPDUTimeout), c.now.Add(idlePoll))
	case connLoggedOut:
		return c.since.Add(logoutTimeout)
	case connLingering:
		return c.since.Add(lingerTime)
	}
	switch {
	case c.ses.discovery:
		return c.active.Add(discoveryIdle)
	case c.s.c.PingInterval < 0:
		return time.Time{}
	case !c.greeted: // it may not be pinged yet
		return c.active.Add(max(stallTimeout, c.s.c.PingInterval))
	case !c.dm.Idle(): // what has been queued stands before the answer to a ping, or is that ping
		return later(c.pinged, c.active).Add(max(stallTimeout, c.s.c.PingInterval))
	case c.ping != 0:
		return later(c.pinged, c.active).Add(c.s.c.PingTimeout)
	}
	return c.active.Add(c.s.c.PingInterval)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// timers does what is due. The round has waited until due, the deadline, at the latest: before it nothing is, and a deadline
// that this round has made earlier is the next round's.
func (c *conn) timers(due time.Time) {
	if c.err != nil {
		return
	}
	if c.state == connLeaving && c.dm.Idle() {
		c.fail(c.leaving)
		return
	}
	if c.draining && c.state == connFull {
		c.drain()
	}
	if due.IsZero() || c.now.Before(due) {
		return
	}
	if d := c.idleDeadline(); !d.IsZero() && !c.now.Before(d) {
		c.idle()
	}
	if c.now.Sub(c.checked) >= housekeeping && c.hasDeadlines() {
		c.checked = c.now
		c.overdue()
		c.overdueLogouts()
		c.overdueParked()
	}
}

// idle acts on idleDeadline.
func (c *conn) idle() {
	switch c.state {
	case connLogin:
		c.fail(fmt.Errorf("no login within %v", c.s.c.LoginTimeout))
	case connReinstating:
		c.refuse(refusal(iscsi.LoginServiceUnavail, "commands of the session to be replaced still run after %v", reinstateTimeout))
	case connLeaving:
		if c.now.Sub(c.since) >= lastPDUTimeout {
			c.fail(c.leaving)
		}
	case connLoggedOut, connLingering:
		c.fail(errClosed)
	case connFull:
		switch {
		case c.ses.discovery:
			c.fail(fmt.Errorf("discovery session idle for %v", discoveryIdle))
		case !c.greeted:
			c.fail(fmt.Errorf("nothing came in the %v since the login", c.now.Sub(c.active)))
		case c.awaitsData():
			c.active = c.now // overdue has the say: the answer to a ping would come behind that data
		case !c.dm.Idle():
			c.fail(fmt.Errorf("peer takes no data for %v", c.now.Sub(c.active)))
		case c.ping != 0:
			c.fail(fmt.Errorf("no answer to a ping within %v", c.s.c.PingTimeout))
		default:
			c.sendPing()
		}
	}
}

// awaitsData reports whether write data is under way.
func (c *conn) awaitsData() bool {
	for t := range c.own {
		if t.state == taskFetching {
			return true
		}
	}
	return false
}
