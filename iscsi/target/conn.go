package target

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// Times and bounds of a connection; those that Config does not set.
const (
	// lastPDUTimeout is how long the last PDU before a close may take to leave.
	lastPDUTimeout = time.Second
	// logoutTimeout is how long what was queued before a Logout Response may take to leave.
	logoutTimeout = 10 * time.Second
	// lingerTime is how long an initiator that has logged out may take to close: it does so at once,
	// and if we did it first, an unread PDU of it could make TCP drop the Logout Response. Where a
	// PDU that has left has arrived, we do close first, as LIO and stgt do: libiscsi's thread for
	// connection events may crash on the end of a connection that it has forgotten already.
	lingerTime = time.Second
	// reinstateTimeout is how long a login waits for the commands of the session that it replaces.
	reinstateTimeout = 15 * time.Second
	// dataTimeout is how long an initiator may deliver no write data at all while some is due, and
	// dataTimeoutMax how long it may take for one write.
	dataTimeout    = 60 * time.Second
	dataTimeoutMax = 10 * time.Minute
	// discoveryIdle is how long a discovery session may do nothing. It must not be pinged (RFC 7145, 6.3
	// and ISER.md 2.6).
	discoveryIdle = 60 * time.Second
	// stallTimeout is how long queued PDUs may make no way at all, and how long an initiator may keep
	// silent after its login, before it counts as dead.
	stallTimeout = 2 * time.Minute
	// idlePoll is how often a connection that only waits for its last PDU to leave looks again: no
	// event tells of that.
	idlePoll = 5 * time.Millisecond
	// housekeeping is how often deadlines of single tasks are looked at.
	housekeeping = time.Second
	// loginEvents and sessionEvents are how many events a round takes, before and after login.
	loginEvents   = 4
	sessionEvents = 64
	// maxControls bounds the PDUs other than SCSI Responses that have been queued and not left. A peer
	// that asks for more without reading is closed.
	maxControls = 2 * sessionEvents
)

type connState uint8

const (
	connLogin connState = iota
	// connReinstating: the login waits for an older session of the same name to end.
	connReinstating
	connFull
	// connLeaving: nothing is taken any more, and it closes when what is queued has left.
	connLeaving
	// connLoggedOut: as connLeaving, but then it lingers.
	connLoggedOut
	// connLingering: logged out; it closes when the peer does.
	connLingering
)

// errClosed ends a connection in order: it is not logged as a failure.
var errClosed = errors.New("closed in order")

// A conn is one connection. Its loop, run, owns everything in it but inbox; cid does not change once others
// know of it.
type conn struct {
	s      *Server
	portal *portal
	dm     iscsi.TargetDatamover
	traits iscsi.Traits
	log    logrus.FieldLogger
	// peerNet is whom limits count the connection for.
	peerNet netip.Prefix
	inbox   inbox

	state   connState
	begun   time.Time     // when the loop did
	now     time.Time     // of this round
	elapsed time.Duration // from begun to now
	since   time.Time     // of the present state
	active  time.Time     // of the last event
	err     error         // why the loop shall end
	leaving error         // connLeaving: why
	dead    bool          // the datamover said so
	events  []iscsi.Event
	seq     iscsi.Sequence
	told    iscsi.CmdSN // MaxCmdSN as last sent
	bhs     [iscsi.BHSSize]byte
	text    [2 + senseMax]byte

	login   login
	answer  loginAnswer // while reinstating
	joining *session    // while reinstating: has us as a member
	ses     *session    // nil until login has ended
	cid     uint16
	params  iscsi.Params // of this connection
	neg     *iscsi.Negotiation
	locked  bool // it holds its session's lock
	timed   bool // something of it has a deadline

	sending  int          // bytes of read data queued that have not left
	ready    taskQueue    // read data that waits for room
	running  int          // tasks with the workers (and, when it ends, those whose itemResume is on its way)
	fetched  time.Time    // when write data has come last
	aborts   []abortSet   // not quiet yet
	tmfs     []*tmfOp     // not answered yet
	preempts []*tmfOp     // of tasks that wait for those they have preempted
	acked    iscsi.StatSN // shared session: ExpStatSN as last heard
	parked   []*tmfOp     // wait for commands that were sent before
	exchange textExchange
	logouts  []logoutOp // not answered yet

	controls     []iscsi.Transfer
	freeControls []int32
	logoutTag    uint32 // of the Logout Response's control
	sessionOver  bool   // the logout was of the session
	greeted      bool   // the first full-feature PDU has come: unsolicited PDUs may be sent
	ping         uint32 // TTT of the ping outstanding, or 0
	pinged       time.Time
	lastPing     uint32
	checked      time.Time // of the last housekeeping
	draining     bool      // the server goes down
	drainSince   time.Time
}

func newConn(s *Server, p *portal, dm iscsi.TargetDatamover) *conn {
	c := &conn{s: s, portal: p, dm: dm, traits: dm.Traits(), log: s.log}
	c.inbox.bell = make(chan struct{}, 1)
	c.events = make([]iscsi.Event, loginEvents)
	peer := addrOf(dm.RemoteAddr())
	c.peerNet = peerNet(peer)
	discovery, none := s.discoveryRules()
	c.login = login{
		traits: c.traits, tag: p.config.Tag, find: s.find, live: s.live,
		peer: peer, noDiscovery: none,
		auth: authenticator{want: discovery, challenger: s.challenger},
	}
	return c
}

// run is the connection's loop. A panic in it is contained: this connection ends, others go on.
func (c *conn) run() {
	defer c.s.wg.Done()
	c.begun = time.Now()
	c.now, c.since, c.active = c.begun, c.begun, c.begun
	c.guard(func() {
		for c.err == nil {
			c.round()
		}
	})
	c.guard(c.teardown)
	c.s.forget(c)
}

func (c *conn) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			c.unlock()
			c.err = fmt.Errorf("panic: %v", p)
			c.logEvent(eventInternalError).WithField("err", c.err).Errorf("internal error, connection closed; please report:\n%s", debug.Stack())
		}
	}()
	f()
}

// round takes all that has happened, decides, and sends what came of it.
func (c *conn) round() {
	events := c.events // a login puts a longer list in their place
	due := c.deadline()
	n, err := c.dm.Wait(events, due)
	c.elapsed = time.Since(c.begun) // time.Now reads the wall clock too, which nothing here needs
	c.now = c.begun.Add(c.elapsed)
	if n > 0 {
		c.active = c.now
	}
	c.lock()
	c.handle(events[:n])
	if err == nil {
		c.timers(due)
		c.announce()
		c.timed = c.hasDeadlines()
	}
	c.showInFlight()
	c.unlock()
	if err == nil {
		err = c.dm.Flush()
	}
	if err != nil {
		c.lost(err)
	}
}

// handle takes a round's news.
func (c *conn) handle(events []iscsi.Event) {
	for _, it := range c.inbox.take() {
		c.item(it)
	}
	for i := range events {
		c.event(&events[i])
	}
	c.unpark()
}

func (c *conn) lost(err error) {
	c.dead = true
	c.fail(fmt.Errorf("connection: %w", err))
}

// fail ends the loop after this round. The first reason counts.
func (c *conn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *conn) item(it item) {
	switch it.kind {
	case itemExecuted:
		c.executed(it.task)
	case itemGranted:
		c.granted(it.task)
	case itemResume:
		c.resumed(it.task)
	case itemClose:
		c.drop(it.err)
	case itemRetry:
		if c.state == connReinstating && c.err == nil {
			c.enter()
		}
	case itemShutdown:
		c.shutdown()
	case itemAbort:
		it.set.op = it.op
		c.abort(it.set)
	case itemQuiet:
		c.finishTMF(it.op)
	case itemTurn:
		c.turn()
	case itemLeft:
		c.mateLeft()
	}
}

func (c *conn) event(ev *iscsi.Event) {
	switch ev.Kind {
	case iscsi.EventPDU:
		if c.err == nil {
			c.pdu(ev)
		}
	case iscsi.EventGot:
		c.got(c.taskOf(ev.Transfer))
	case iscsi.EventReleased:
		c.released(ev.Transfer)
	}
}

// pdu handles a PDU by the state of the connection.
func (c *conn) pdu(ev *iscsi.Event) {
	if ev.DigestError && c.state <= connFull {
		// Without error recovery (ErrorRecoveryLevel 0) a digest error costs the session (RFC 7143, 7.1.5).
		c.fail(errors.New("data digest error"))
		return
	}
	switch c.state {
	case connLogin:
		c.loginPDU(ev)
	case connReinstating:
		c.fail(fmt.Errorf("%v while its login waits for an answer", iscsi.OpcodeOf(ev.BHS)))
	case connFull:
		c.greeted = true
		c.request(ev)
	default: // after logout, or before a close: ignored
	}
}

// enterState notes a change of the connection's state.
func (c *conn) enterState(s connState) {
	c.state, c.since = s, c.now
}

// taskOf is the task of a transfer that the datamover has named.
func (c *conn) taskOf(x *iscsi.Transfer) *task {
	if c.ses == nil || int(x.Tag) >= len(c.ses.tasks.tasks) || &c.ses.tasks.tasks[x.Tag].transfer != x {
		panic(fmt.Sprintf("target: the datamover names a transfer %d that is none", x.Tag))
	}
	return &c.ses.tasks.tasks[x.Tag]
}

// reply queues a PDU that is no SCSI Response. bhs is c.bhs.
func (c *conn) reply(data []byte) (tag uint32) {
	c.told = c.seq.MaxCmdSN
	if len(c.freeControls) == 0 {
		c.fail(fmt.Errorf("peer does not read: %d answers wait", len(c.controls)))
		return iscsi.ReservedTag
	}
	i := c.freeControls[len(c.freeControls)-1]
	c.freeControls = c.freeControls[:len(c.freeControls)-1]
	x := &c.controls[i]
	*x = iscsi.Transfer{Tag: controlTag + uint32(i), ITT: iscsi.ITTOf(&c.bhs)}
	c.dm.Respond(x, &c.bhs, data)
	return x.Tag
}

// controlTag is where the tags of transfers that are no tasks begin.
const controlTag = 1 << 16

func (c *conn) openControls() {
	c.controls = make([]iscsi.Transfer, maxControls)
	for i := range c.controls {
		c.freeControls = append(c.freeControls, int32(i))
	}
}

// released takes back what the datamover uses no more.
func (c *conn) released(x *iscsi.Transfer) {
	if x.Tag >= controlTag {
		c.freeControls = append(c.freeControls, int32(x.Tag-controlTag))
		if x.Tag == c.logoutTag && c.state == connLoggedOut {
			c.enterState(connLingering)
			if c.traits.Acknowledged {
				c.fail(errClosed)
			}
		}
		return
	}
	t := c.taskOf(x)
	if t.state == taskAborting {
		c.endTask(t)
		return
	}
	c.taskLeft(t)
}

// nextStatSN numbers a PDU that carries status (RFC 7143, 4.2.2.2).
func (c *conn) nextStatSN() iscsi.StatSN {
	sn := c.seq.StatSN
	c.seq.StatSN++
	return sn
}

// announce tells the initiator of slots that have opened, if it has used up those that it knows of and no
// response does.
func (c *conn) announce() {
	if c.ses == nil || !c.ses.win.late || c.state != connFull || c.err != nil {
		return
	}
	if c.told != c.seq.MaxCmdSN {
		if !c.told.Before(c.seq.ExpCmdSN) || c.ses.discovery || !c.greeted {
			return
		}
		c.sendNOPIn(iscsi.ReservedTag, iscsi.ReservedTag, c.seq.StatSN, nil)
	}
	c.ses.win.late = false
}

// teardown ends the connection and everything of it. It returns when nothing of it is left: a store that
// still works for it holds it up, and with it a login that reinstates the session.
func (c *conn) teardown() {
	c.report()
	if !c.dead {
		_ = c.dm.Flush() // answers to earlier PDUs may still arrive
	}
	c.inbox.deafen()
	_ = c.dm.Close()
	switch {
	case c.ses != nil:
		c.leaveSession()
	case c.joining != nil:
		c.s.left(c.joining, c)
	}
	for _, it := range c.inbox.shutAndTake() {
		if it.kind == itemAbort {
			it.op.quiet()
		}
	}
}

// report logs why the connection has ended: one line, unless the initiator has logged out, which has
// been logged.
func (c *conn) report() {
	if c.state == connLeaving {
		c.err = c.leaving // whoever closed first
	}
	clean := errors.Is(c.err, errClosed) || c.state > connLeaving
	if c.ses == nil {
		if clean {
			return
		}
		c.s.tallies.count(func(t *tallies) { t.noLogin++ })
		if c.s.quiet.allow(time.Now()) {
			c.logEvent(eventNoLogin).WithFields(logrus.Fields{"initiator": c.peer(), "err": c.err}).Info("connection closed before login")
		}
		return
	}
	switch {
	case clean, c.ses.discovery && errors.Is(c.err, io.EOF):
		c.s.tallies.count(func(t *tallies) { t.loggedOut++ })
	case errors.Is(c.err, errConnReinstated), errors.Is(c.err, errConnLoggedOut):
		c.s.tallies.count(func(t *tallies) { t.closed++ })
		c.logEvent(eventConnectionClosed).WithField("err", c.err).Infof("connection %d closed", c.cid)
	case errors.Is(c.err, errShutdown), errors.Is(c.err, errTargetRemoved), errors.Is(c.err, errReinstated), errors.Is(c.err, errLoggedOut),
		errors.Is(c.err, errColdReset), errors.Is(c.err, errByAdministrator), errors.Is(c.err, errRightsChanged), errors.Is(c.err, errPortalRemoved):
		c.s.tallies.count(func(t *tallies) { t.closed++ })
		c.logEvent(eventSessionClosed).WithField("err", c.err).Info("session closed")
	default:
		c.s.tallies.count(func(t *tallies) { t.lost++ })
		c.logEvent(eventSessionLost).WithField("err", c.err).Warn("session failed")
	}
}

// peer names who has not said a name yet.
func (c *conn) peer() string {
	if c.login.initiator != "" {
		return string(c.login.initiator)
	}
	return c.dm.RemoteAddr().String()
}
