package target

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/goiser/goiser/iscsi"
)

// A session with several connections (RFC 7143, 4.4.1). Who owns what:
//
//   - A connection's loop owns its connection: its numbers, its answers, and the tasks that came on it. Only
//     it ends them, because only it may call the connection's datamover.
//   - What the connections share (window, tasks, memory) is under the session's lock, which a loop holds for
//     a round's work, not while it waits or sends. A session that has agreed on one connection has no other
//     loop, and takes no lock.
//   - Which connections a session has is under the server's lock. It is taken after the session's.
//
// A connection leaves its session when nothing of it runs any more; the last one ends the session. Without
// error recovery one connection that fails ends all (RFC 7143, 7.1.5); one that is logged out, or replaced by
// a login with its CID, goes alone.

// maxConnections is the largest MaxConnections of a session: what we agree to.
const maxConnections = 4

// Why one connection of a session ends without the others.
var (
	errConnReinstated = errors.New("replaced by a new login of the same connection")
	errConnLoggedOut  = errors.New("logged out on another connection")
)

// A member is a connection of a session, or a login that is to become one.
type member struct {
	c       *conn
	entered bool // in full-feature phase
	out     bool // logged out: not counted any more
}

// sharing is what the connections of a session use to take turns.
type sharing struct {
	shared  bool           // it may have more than one connection
	mu      sync.Mutex     // if shared: held by the connection that works on the session
	numbers iscsi.Sequence // ExpCmdSN and MaxCmdSN while none does

	// The server's lock guards these.
	members []member
	opened  bool // connections may join
	failed  bool // none may, and those that are there go
}

// lock makes c the connection that works on its session.
func (c *conn) lock() {
	if c.ses == nil || !c.ses.shared || c.locked {
		return
	}
	c.ses.mu.Lock()
	c.locked = true
	c.load()
}

func (c *conn) unlock() {
	if !c.locked {
		return
	}
	c.store()
	c.locked = false
	c.ses.mu.Unlock()
}

// load takes over the session's numbers, and store leaves them to the next connection.
func (c *conn) load() {
	c.seq.ExpCmdSN, c.seq.MaxCmdSN = c.ses.numbers.ExpCmdSN, c.ses.numbers.MaxCmdSN
	c.ses.win.seq = &c.seq
}

func (c *conn) store() { c.ses.numbers = c.seq }

// join makes c, a login with a TSIH, a member of ses. If an older connection has its CID, that one is told to
// end (connection reinstatement, RFC 7143, 6.3.4), and wait is true: c gets itemLeft when it has.
func (s *Server) join(ses *session, c *conn) (wait bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return false, refusal(iscsi.LoginServiceUnavail, "the server shuts down")
	case !ses.opened || ses.failed || s.sessions[ses.tsih] != ses:
		return false, refusal(iscsi.LoginNoSession, "session %d has ended", ses.tsih)
	}
	mine := slices.IndexFunc(ses.members, func(m member) bool { return m.c == c })
	if mine < 0 && !slices.ContainsFunc(ses.members, func(m member) bool { return m.entered && !m.out }) {
		// Its last connection has logged out, and lingers: the session is closed (RFC 7143, 11.14).
		return false, refusal(iscsi.LoginNoSession, "session %d has ended", ses.tsih)
	}
	others := 0
	for i, m := range ses.members {
		switch {
		case m.c == c:
		case m.c.cid == c.cid && mine >= 0 && i > mine:
			return false, refusal(iscsi.LoginInitiatorError, "another login of connection %d has come", c.cid)
		case m.c.cid == c.cid:
			m.c.post(item{kind: itemClose, err: errConnReinstated})
			wait = true
		case !m.out:
			others++
		}
	}
	if mine < 0 {
		if others >= int(ses.params.MaxConnections) {
			return false, refusal(iscsi.LoginTooManyConns, "session %d has %d connections already", ses.tsih, others)
		}
		if err := s.peerRoomLocked(c); err != nil && !wait {
			return false, err
		}
		mine = len(ses.members)
		ses.members = append(ses.members, member{c: c})
	}
	ses.members[mine].entered = !wait
	return wait, nil
}

// admitMembers lets connections join a session.
func (s *Server) admitMembers(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses.opened = true
}

// loggedOut notes that c is no connection of its session any more in the eyes of the initiator.
func (s *Server) loggedOut(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range c.ses.members {
		if m := &c.ses.members[i]; m.c == c {
			m.out = true
		}
	}
}

// fail ends a session because of c: nobody may join it, and its other connections end.
func (s *Server) fail(ses *session, c *conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses.failed = true
	for _, m := range ses.members {
		if m.c != c && m.entered {
			m.c.post(item{kind: itemClose, err: fmt.Errorf("connection %d of the session: %w", c.cid, err)})
		}
	}
}

// left takes a connection of which nothing runs any more out of its session and tells the others. The last
// one ends the session.
func (s *Server) left(ses *session, c *conn) {
	if !s.unlist(ses, c) {
		return
	}
	if ses.mem != nil {
		s.reserve.put(ses.mem)
	}
	if ses.nexus != nil {
		ses.target.c.Device.Detach(ses.nexus)
	}
	s.release(ses)
}

func (s *Server) unlist(ses *session, c *conn) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(ses.members, func(m member) bool { return m.c == c })
	if i < 0 { // refused
		return false
	}
	ses.members = slices.Delete(ses.members, i, i+1)
	ses.tell(item{kind: itemLeft})
	return len(ses.members) == 0
}

// mate is the connection of c's session with a CID, nil if there is none.
func (s *Server) mate(c *conn, cid uint16) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range c.ses.members {
		if m.c.cid == cid && m.entered && m.c != c {
			return m.c
		}
	}
	return nil
}

// neighbours lists the other connections of c's session, and those of all other sessions of its target.
func (s *Server) neighbours(c *conn) (mates, strangers []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.sessions {
		if !ses.target.same(c.ses.target) {
			continue
		}
		for _, m := range ses.members {
			switch {
			case m.c == c:
			case ses == c.ses:
				mates = append(mates, m.c)
			default:
				strangers = append(strangers, m.c)
			}
		}
	}
	return mates, strangers
}

// tell posts to all connections of a session. The server's lock is held.
func (ses *session) tell(it item) {
	for _, m := range ses.members {
		m.c.post(it)
	}
}

// mateLeft goes on with what has waited for another connection of the session to end.
func (c *conn) mateLeft() {
	switch {
	case c.err != nil:
	case c.state == connReinstating:
		c.enter()
	case c.state == connFull:
		c.deliverHeld()
		c.answerLogouts()
	}
}

// turn goes on with the request that the session's ExpCmdSN stands at.
func (c *conn) turn() {
	if c.ses != nil {
		c.deliverHeld()
	}
}

// leaveSession takes a connection out of its session. The datamover is closed and uses no memory any more.
// It returns when no store works for the connection.
func (c *conn) leaveSession() {
	ses := c.ses
	if !c.leavesAlone() {
		c.s.fail(ses, c, c.err)
	}
	c.lock()
	ses.parked -= len(c.parked)
	for _, op := range c.tmfs { // nobody will answer them
		op.over.Store(true)
		c.openSlot(op.windowed)
	}
	c.tmfs = nil
	c.dropHeld()
	for t := range c.own {
		c.dropTask(t)
	}
	c.unlock()
	for c.running > 0 {
		items := c.inbox.take()
		if len(items) == 0 {
			<-c.inbox.bell
		}
		for _, it := range items {
			c.lateItem(it)
		}
	}
	for _, set := range c.aborts {
		set.op.quiet()
	}
	if !ses.shared {
		c.store()
	}
	c.s.left(ses, c)
}

// leavesAlone reports whether the session goes on without c.
func (c *conn) leavesAlone() bool {
	switch {
	case errors.Is(c.err, errConnReinstated), errors.Is(c.err, errConnLoggedOut):
		return true
	}
	return c.state > connLeaving && !c.sessionOver
}

// lateItem takes what comes for a connection that is gone.
func (c *conn) lateItem(it item) {
	switch it.kind {
	case itemExecuted:
		c.lock()
		defer c.unlock()
		c.running--
		c.reportPanic(it.task)
		c.dropped(it.task)
	case itemResume:
		c.lock()
		defer c.unlock()
		if it.task.state == taskHeld {
			c.running--
			c.dropped(it.task)
		}
	case itemAbort:
		c.aborts = append(c.aborts, abortSet{op: it.op}) // quiet when nothing runs any more
	}
}

// dropTask ends a task of a connection that is gone, unless a worker has it.
func (c *conn) dropTask(t *task) {
	switch t.state {
	case taskHeld:
		if !t.device.Withdraw(&t.scsi) {
			c.running++ // until itemResume, which is on its way: nobody else must get it
			return
		}
	case taskWaiting:
		if !c.s.c.Pool.Cancel(&t.wait) {
			t.bufs = t.wait.Bufs // granted: the item in the inbox is not looked at any more
		}
	case taskRunning:
		if !c.recall(t) {
			return // counted in running
		}
	case taskPreempting:
		c.endPreempt(t.preempting)
	}
	c.dropped(t)
}

// dropped frees a task that can send nothing any more, and its slot of the window: the session may go on.
func (c *conn) dropped(t *task) {
	responded := t.state == taskResponding
	if !responded {
		c.ses.stats.aborted.Add(1)
		c.ses.gone.add(t.transfer.ITT)
		c.ses.tasks.forget(t)
	}
	c.freeTask(t)
	switch {
	case !t.windowed:
	case responded:
		c.ses.win.left()
	default:
		c.openSlot(true)
	}
}

// dropHeld drops the requests of c that wait for their turn, as if they had had it: nobody would deliver
// them.
func (c *conn) dropHeld() {
	w := &c.ses.win
	for sn := w.seq.ExpCmdSN; c.ses.held > 0 && !sn.After(w.seq.MaxCmdSN); sn++ {
		if s := w.at(sn); s.state == slotHeld && s.pdu.c == c {
			if iscsi.OpcodeOf(&s.pdu.bhs) == iscsi.OpSCSICommand {
				c.ses.gone.add(iscsi.ITTOf(&s.pdu.bhs))
			}
			c.skip(sn)
		}
	}
}
