package target

import (
	"errors"
	"fmt"
	"sync/atomic"
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
	errCrowdedOut    = errors.New("too many connections that have not logged in")
)

// A sessionKey says which sessions are the same one in the eyes of an initiator: a login with the key of
// a live session reinstates it (RFC 7143, 6.3.5).
type sessionKey struct {
	initiator, target iscsi.Name
	isid              iscsi.ISID
	tag               uint16
}

// A session is the state of an I_T nexus. For now it has exactly one connection, whose loop owns it.
type session struct {
	s         *Server
	c         *conn
	initiator iscsi.Name
	key       sessionKey
	tsih      uint16
	target    *Target // nil: discovery
	discovery bool
	params    iscsi.Params
	since     time.Time
	nexus     *scsi.Nexus
	waiters   []*conn // logins that wait for its end; the server's lock guards it

	win       window
	tasks     taskTable
	mem       *sessionMemory // nil: discovery
	held      int            // bytes of requests held out of order
	sending   int            // bytes of read data queued that have not left
	ready     taskQueue      // read data that waits for room
	running   int            // tasks with the workers
	fetched   time.Time      // when write data has come last
	immediate int            // tasks that came outside the window
	aborts    []abortSet     // not quiet yet
	tmfs      []*tmfOp       // not answered yet
	gone      goneRing
	exchange  textExchange

	commands, readBytes, writtenBytes, errors, rejects, dropped atomic.Uint64
}

// timed reports whether single tasks have deadlines.
func (ses *session) timed() bool {
	return len(ses.tmfs) > 0 || ses.mem != nil && len(ses.tasks.free) < len(ses.tasks.tasks)
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
	if c.s.quiet.allow(c.now) {
		f := logrus.Fields{"initiator": c.peer(), "err": a.err}
		if c.login.target != nil {
			f["target"] = c.login.target.c.Name
		}
		c.log.WithFields(f).Warn("login refused")
	}
	c.sendLogin(a)
	c.enterState(connLeaving)
}

// enter makes the session of a login that has agreed on everything, or waits until the one that it
// replaces has ended.
func (c *conn) enter() {
	l := &c.login
	ses := &session{
		s: c.s, c: c, initiator: l.initiator, target: l.target, discovery: l.discovery,
		params: l.params, since: c.now,
	}
	if t := l.target; t != nil {
		ses.key = sessionKey{initiator: l.initiator, target: t.c.Name, isid: l.first.ISID, tag: l.tag}
	}
	switch wait, err := c.s.claim(ses); {
	case err != nil:
		c.refuse(err)
		return
	case wait:
		if c.state != connReinstating {
			c.enterState(connReinstating)
		}
		return
	}
	if err := c.open(ses); err != nil {
		c.s.release(ses)
		c.refuse(err)
		return
	}
	c.ses, c.cid = ses, l.first.CID
	c.answer.resp.TSIH = ses.tsih
	c.sendLogin(&c.answer)
	c.answer = loginAnswer{}
	c.enterState(connFull)
	c.s.entered(c)
	c.log = c.s.log.WithFields(logrus.Fields{"session": ses.tsih, "initiator": l.initiator, "target": ses.targetName()})
	c.log.Info(ses.greeting(c))
	c.login = login{initiator: l.initiator}
}

func (ses *session) targetName() string {
	if ses.target == nil {
		return ""
	}
	return string(ses.target.c.Name)
}

func (ses *session) greeting(c *conn) string {
	kind := "logged in"
	if ses.discovery {
		kind = "discovery"
	}
	return fmt.Sprintf("%s over %s from %v", kind, c.traits.Name, c.dm.RemoteAddr())
}

// open gives a claimed session its memory and readies the datamover.
func (c *conn) open(ses *session) error {
	size := uint32(discoveryWindow)
	if !ses.discovery {
		ses.mem = c.s.reserve.take(pieceSize(&ses.params), c.s.c.Window)
		if size = uint32(len(ses.mem.free)); size == 0 {
			return refusal(iscsi.LoginOutOfResources, "no data buffers left for another session")
		}
		ses.tasks.open(c, int(2*size)+spareTasks)
		ses.gone.open(len(ses.tasks.tasks))
	}
	ses.win.open(&c.seq, c.seq.ExpCmdSN, size)
	c.openControls()
	c.events = make([]iscsi.Event, sessionEvents)
	if err := c.dm.Enable(&ses.params, &c.seq); err != nil {
		if ses.mem != nil {
			c.s.reserve.put(ses.mem)
		}
		return refusal(iscsi.LoginOutOfResources, "transport: %v", err)
	}
	if !ses.discovery {
		isid := c.login.first.ISID
		ses.nexus = ses.target.c.Device.Attach(scsi.NexusConfig{
			Initiator:    fmt.Sprintf("%s,i,0x%x", ses.key.initiator, isid[:]),
			RelativePort: c.portal.config.Tag,
		})
	}
	return nil
}

// endSession takes a session down. The datamover is closed and uses no memory any more.
func (c *conn) endSession() {
	ses := c.ses
	for i := range ses.tasks.tasks {
		if t := &ses.tasks.tasks[i]; t.state != taskFree {
			c.dropTask(t)
		}
	}
	for ses.running > 0 {
		items := c.inbox.take()
		if len(items) == 0 {
			<-c.inbox.bell
		}
		for _, it := range items {
			switch it.kind {
			case itemExecuted:
				ses.running--
				c.reportPanic(it.task)
				c.freeTask(it.task)
			case itemAbort:
				ses.aborts = append(ses.aborts, abortSet{op: it.op}) // quiet when nothing runs any more
			}
		}
	}
	for _, set := range ses.aborts {
		set.op.quiet()
	}
	if ses.mem != nil {
		c.s.reserve.put(ses.mem)
	}
	if ses.nexus != nil {
		ses.target.c.Device.Detach(ses.nexus)
	}
	c.s.release(ses)
}

// dropTask ends a task of a connection that is gone, unless a worker has it.
func (c *conn) dropTask(t *task) {
	switch t.state {
	case taskWaiting:
		if !c.s.c.Pool.Cancel(&t.wait) {
			t.bufs = t.wait.Bufs // granted: the item in the inbox is not looked at any more
		}
	case taskRunning:
		if !c.recall(t) {
			return // counted in running
		}
	}
	c.freeTask(t)
}

func (c *conn) reportPanic(t *task) {
	if t.panicked != nil {
		t.device.Abandon(&t.scsi)
		c.log.WithFields(logrus.Fields{"lun": t.transfer.LUN, "itt": t.transfer.ITT, "err": t.panicked}).
			Error("internal error while executing, session closed; please report")
	}
}
