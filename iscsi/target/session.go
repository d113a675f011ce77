package target

import (
	"errors"
	"fmt"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// discoveryWindow is the command window of a discovery session: it sends one request at a time.
const discoveryWindow = 4

// Why sessions are closed from outside.
var (
	errShutdown      = errors.New("server shuts down")
	errReinstated    = errors.New("replaced by a new login of the same initiator port")
	errTargetRemoved = errors.New("target removed")
	errColdReset     = errors.New("target cold reset")
	errLoggedOut     = errors.New("logged out")
	errCrowdedOut    = errors.New("too many connections that have not logged in")
)

// A sessionKey says which sessions are the same one in the eyes of an initiator: a login with the key of
// a live session reinstates it (RFC 7143, 6.3.5).
type sessionKey struct {
	initiator, target iscsi.Name
	isid              iscsi.ISID
	tag               uint16
}

// A session is the state of an I_T nexus. The loop of its connection owns it; several take turns (sharing).
type session struct {
	sharing
	initiator iscsi.Name
	key       sessionKey
	tsih      uint16
	target    *Target // nil: discovery
	discovery bool
	params    iscsi.Params // of the first connection; in force in all, but for what conn.params says
	transport string
	since     time.Time
	nexus     *scsi.Nexus
	waiters   []*conn // logins that wait for its end; the server's lock guards it

	win       window
	tasks     taskTable
	mem       *sessionMemory // nil: discovery
	held      int            // bytes of requests held out of order
	immediate int            // tasks that came outside the window
	parked    int            // functions that wait in conn.parked
	gone      goneRing

	stats sessionStats
}

// hasDeadlines reports whether single tasks or functions have deadlines.
func (c *conn) hasDeadlines() bool {
	ses := c.ses
	return ses != nil && (len(c.tmfs)+len(c.parked)+len(c.logouts) > 0 || len(ses.tasks.free) < len(ses.tasks.tasks))
}

// loginPDU takes a PDU before full-feature phase.
func (c *conn) loginPDU(ev *iscsi.Event) {
	var req iscsi.LoginRequest
	if err := req.Parse(ev.BHS); err != nil {
		c.fail(fmt.Errorf("%v before login", iscsi.OpcodeOf(ev.BHS)))
		return
	}
	if c.login.rounds == 0 {
		// StatSN may start anywhere (RFC 7143, 4.2.2.2); the initiator's own idea of it will do.
		c.seq = iscsi.Sequence{StatSN: req.ExpStatSN, ExpCmdSN: req.CmdSN, MaxCmdSN: req.CmdSN}
		if req.TSIH != 0 {
			// The session's window is not this connection's to tell yet. This says so: such a pair is ignored
			// (RFC 7143, 4.2.2.1).
			c.seq.MaxCmdSN = req.CmdSN - 2
		}
	}
	a := c.login.step(&req, ev.Data)
	switch a.decision {
	case loginGoesOn:
		c.sendLogin(&a)
	case loginRefused:
		c.sendRefusal(&a)
	case loginEnter:
		// The answer outlives the events of this round if an old session must end first.
		a.text = append([]byte(nil), a.text...)
		c.answer = a
		c.cid, c.params = c.login.first.CID, c.login.params
		c.enter()
	}
}

func (c *conn) sendLogin(a *loginAnswer) {
	r := &a.resp
	r.DataLength = uint32(len(a.text))
	r.StatSN = c.nextStatSN()
	r.ExpCmdSN, r.MaxCmdSN = c.seq.ExpCmdSN, c.seq.MaxCmdSN
	c.told = c.seq.MaxCmdSN
	r.Put(&c.bhs)
	c.dm.Send(&c.bhs, a.text)
}

// refuse ends a login that had come as far as loginEnter.
func (c *conn) refuse(err error) {
	a := c.login.refuse(err)
	c.sendRefusal(&a)
}

func (c *conn) sendRefusal(a *loginAnswer) {
	c.s.tallies.count(func(t *tallies) { t.logins[a.err.Status]++ })
	if c.s.quiet.allow(c.now) {
		f := logrus.Fields{"initiator": c.peer(), "err": a.err}
		if c.login.target != nil {
			f["target"] = c.login.target.c.Name
		}
		c.logEvent(eventLoginRefused).WithFields(f).Warn("login refused")
	}
	c.sendLogin(a)
	c.leave(errClosed)
}

// enter makes the session of a login that has agreed on everything, or joins the one that it named, or waits
// until what it replaces has ended.
func (c *conn) enter() {
	l := &c.login
	ses, wait, err := c.claim()
	switch {
	case err != nil:
		c.refuse(err)
		return
	case wait:
		if c.state != connReinstating {
			c.enterState(connReinstating)
		}
		return
	}
	c.answer.resp.TSIH = ses.tsih
	c.sendLogin(&c.answer)
	c.answer = loginAnswer{}
	c.acked = c.seq.StatSN // nobody waits for an acknowledgement of the login
	c.enterState(connFull)
	c.s.entered(c)
	c.log = c.s.log.WithFields(logrus.Fields{"session": ses.tsih, "initiator": l.initiator, "target": ses.targetName()})
	c.s.tallies.count(func(t *tallies) { t.logins[iscsi.LoginSuccess]++ })
	c.logEvent(eventLogin).Info(ses.greeting(c))
	c.neg = l.neg
	c.neg.SetFullFeature()
	c.login = login{initiator: l.initiator}
}

// claim makes c.ses, or says that something must end first.
func (c *conn) claim() (ses *session, wait bool, err error) {
	l := &c.login
	if ses = l.joins; ses != nil {
		return c.claimMember(ses)
	}
	ses = &session{
		initiator: l.initiator, target: l.target, discovery: l.discovery,
		params: l.params, since: c.now, transport: c.traits.Name,
	}
	ses.shared = !ses.discovery && ses.params.MaxConnections > 1
	if t := l.target; t != nil {
		ses.key = sessionKey{initiator: l.initiator, target: t.c.Name, isid: l.first.ISID, tag: l.tag}
	}
	if wait, err = c.s.claim(ses, c); wait || err != nil {
		return nil, wait, err
	}
	if err := c.openSession(ses); err != nil {
		c.s.release(ses)
		return nil, false, err
	}
	c.ses = ses
	c.store()
	c.lock() // others may join from here on
	c.s.admitMembers(ses)
	return ses, false, nil
}

// claimMember joins c to a session.
func (c *conn) claimMember(ses *session) (_ *session, wait bool, err error) {
	c.joining = ses
	if wait, err = c.s.join(ses, c); wait {
		return nil, true, nil
	}
	if err == nil {
		c.ses = ses
		if c.lock(); !ses.shared {
			c.load()
		}
		if err = c.open(); err != nil {
			c.unlock()
			c.ses = nil
		}
	}
	c.joining = nil
	if err != nil {
		c.s.left(ses, c)
		return nil, false, err
	}
	return ses, false, nil
}

func (ses *session) targetName() string {
	if ses.target == nil {
		return ""
	}
	return string(ses.target.c.Name)
}

func (ses *session) greeting(c *conn) string {
	kind := "logged in"
	switch {
	case ses.discovery:
		kind = "discovery"
	case c.login.joins != nil:
		kind = fmt.Sprintf("connection %d", c.cid)
	}
	return fmt.Sprintf("%s over %s from %v", kind, c.traits.Name, c.dm.RemoteAddr())
}

// openSession gives a claimed session its memory and readies the datamover.
func (c *conn) openSession(ses *session) error {
	size := uint32(discoveryWindow)
	if !ses.discovery {
		ses.mem = c.s.reserve.take(ses.pieceSize(), c.s.c.Window)
		if size = uint32(len(ses.mem.free)); size == 0 {
			return refusal(iscsi.LoginOutOfResources, "no data buffers left for another session")
		}
		ses.tasks.open(int(2*size) + spareTasks)
		ses.gone.open(len(ses.tasks.tasks))
	}
	ses.win.open(&c.seq, c.seq.ExpCmdSN, size)
	if err := c.open(); err != nil {
		if ses.mem != nil {
			c.s.reserve.put(ses.mem)
		}
		return err
	}
	if !ses.discovery {
		rights := ses.target.rights.of(ses.initiator)
		ses.nexus = ses.target.c.Device.Attach(scsi.NexusConfig{
			Initiator:    fmt.Sprintf("%s,i,0x%x", ses.key.initiator, ses.key.isid[:]),
			RelativePort: ses.key.tag,
			LUNs:         rights.LUNs,
			ReadOnly:     rights.ReadOnly,
			QueryTasks:   ses.params.ProtocolLevel >= iscsi.MaxProtocolLevel,
		})
	}
	return nil
}

// open readies a connection for full-feature phase.
func (c *conn) open() error {
	c.openControls()
	c.events = make([]iscsi.Event, sessionEvents)
	if err := c.dm.Enable(&c.params, &c.seq); err != nil {
		return refusal(iscsi.LoginOutOfResources, "transport: %v", err)
	}
	return nil
}

func (c *conn) reportPanic(t *task) {
	if t.panicked != nil {
		t.device.Abandon(&t.scsi)
		c.logEvent(eventInternalError).WithFields(logrus.Fields{"lun": t.transfer.LUN, "itt": t.transfer.ITT, "err": t.panicked}).
			Error("internal error while executing, session closed; please report")
	}
}
