package initiator

import (
	"errors"
	"fmt"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// Bounds of a session.
const (
	maxManagement     = 4 // pings and task management of callers, outstanding
	maxAborts         = 4 // ABORT TASK outstanding; targets keep few receive buffers for immediate PDUs (ISER.md 3.10)
	managementTimeout = 10 * time.Second
	logoutTimeout     = 3 * time.Second
	maxDrain          = 10 * time.Second // the longest that a target's wish for a logout waits for commands
)

const (
	slotKeepalive = maxManagement     // our own ping
	slotLogout    = maxManagement + 1 // the session's one Logout
	slotCount     = maxManagement + 2
)

// Errors of requests.
var (
	// ErrTimeout ends a command that was not answered in time and has been aborted.
	ErrTimeout = errors.New("no answer in time")
	// ErrAborted ends commands that a task management function has ended.
	ErrAborted = errors.New("ended by task management")
	// ErrTargetLogout ends a session that the target wants to be over.
	ErrTargetLogout = errors.New("the target asked for logout")
)

// A ProtocolError says which rule the target's PDU breaks. If it ends a command, the session goes on.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "the target broke the protocol: " + e.What }

func violation(format string, args ...any) *ProtocolError {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

// A management is the slot of a request other than a SCSI command.
type management struct {
	used       bool
	opcode     iscsi.Opcode // of the request
	req        *request     // nil: our own, or the caller is gone
	generation uint32
	itt        uint32
	function   iscsi.TMFunction
	lun        iscsi.LUN
	cmdSN      iscsi.CmdSN // first command that the function does not concern
	start, end time.Time
}

type timing struct{ command, ping time.Duration } // ping 0: never

// core is a session in full-feature phase without its goroutine: it is told the time and what happened,
// and queues PDUs on the datamover. Only the loop touches it.
type core struct {
	dm     iscsi.InitiatorDatamover
	log    logrus.FieldLogger
	timing timing

	seq   iscsi.Sequence // StatSN is the next one expected; the datamover reads it
	cmdSN iscsi.CmdSN    // of the next command

	tasks   []task
	free    []*task // a stack of unused slots
	age     taskList
	aborts  []*task // abortQueued, in order
	aborted []*task // abortSent, at most maxAborts
	buffers buffers
	slots   [slotCount]management

	proved bool // a command has been answered

	taskFreed, managementFreed int // since the loop last gave tokens back

	heard    time.Time // of the last PDU
	placed   uint64    // bytes of the reads outstanding, as last looked at
	draining bool      // the target wants a logout
	drainEnd time.Time
	leaving  error // why no new command is taken: a logout is due

	finished []*request // to be told after the next Flush
	err      error      // why the session is over

	bhs [iscsi.BHSSize]byte // scratch: a local one would be allocated for each PDU
	ahs []byte
}

func newCore(dm iscsi.InitiatorDatamover, log logrus.FieldLogger, depth int, t timing) *core {
	c := &core{dm: dm, log: log, timing: t}
	c.tasks = make([]task, depth)
	c.free = make([]*task, 0, depth)
	c.aborts = make([]*task, 0, depth)
	for i := range c.tasks {
		s := &c.tasks[depth-1-i]
		s.transfer.Tag = uint32(depth - 1 - i)
		c.free = append(c.free, s)
	}
	return c
}

// fail ends the session; the first reason stays.
func (c *core) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// finish ends a caller's wait. It is told after the next Flush.
func (c *core) finish(r *request, err error) {
	if r.ended {
		panic("initiator: request ended twice")
	}
	r.ended, r.err, r.task = true, err, nil
	c.finished = append(c.finished, r)
}

// submit takes a letter from a caller.
func (c *core) submit(now time.Time, l letter) {
	r := l.r
	switch {
	case l.cancel != nil:
		c.giveUp(r, l.cancel)
	case r.kind == requestClose:
		c.leave(errClosed)
		c.finish(r, nil)
	case r.kind == requestUnregister: // also of a session that is leaving: the caller waits for its memory
		c.managementFreed++
		c.finish(r, c.unregisterBuffer(r.buffer))
	case c.leaving != nil:
		c.refuse(r, c.leaving)
	case c.draining:
		c.refuse(r, ErrTargetLogout)
	case r.kind == requestCommand:
		c.admit(now, r)
	case r.kind == requestRegister:
		c.managementFreed++
		c.finish(r, c.registerBuffer(r.buffer))
	default:
		c.manage(now, r)
	}
}

// refuse ends a request that gets no slot, and gives back its semaphore token.
func (c *core) refuse(r *request, err error) {
	if r.kind == requestCommand {
		c.taskFreed++
	} else {
		c.managementFreed++
	}
	c.finish(r, &lostError{err, true})
}

// giveUp handles a cancellation.
func (c *core) giveUp(r *request, why error) {
	switch {
	case r.ended: // the answer was faster
	case r.task != nil && r.task.owed == r: // given up already
	case r.task != nil:
		c.detach(r.task, why)
	default: // management: the slot waits for the answer without the caller
		for i := range c.slots {
			if c.slots[i].req == r {
				c.slots[i].req = nil
			}
		}
		c.finish(r, why)
	}
}

// admit gives a command a slot. The session's semaphore lets no more callers in than there are slots.
func (c *core) admit(now time.Time, r *request) {
	t := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	t.used, t.req, r.task = true, r, t
	t.deadline = now.Add(c.timing.command)
	c.age.push(t)
}

// detach parts a command from its caller's buffers, tells the caller why, and sees to it that the target
// forgets the command, too. If the response is already there it is the result.
func (c *core) detach(t *task, err error) {
	c.age.remove(t)
	r := t.req
	t.req = nil
	switch {
	case t.answered: // only the release was missing
		c.part(t, r, r.err)
	case t.sent:
		t.abort = abortQueued
		c.aborts = append(c.aborts, t)
		c.part(t, r, err)
	default:
		c.finish(r, err)
	}
	c.settle(t)
}

// settle tells the caller when both halves of a command's end are there, and frees the slot when nothing
// refers to it any more.
func (c *core) settle(t *task) {
	if t.req != nil && t.answered && t.released {
		c.age.remove(t)
		r := t.req
		t.req = nil
		c.finish(r, r.err)
	}
	if r := t.owed; r != nil && t.answered && t.released {
		t.owed = nil
		c.finish(r, t.owedErr)
	}
	if !t.used || !t.idle() {
		return
	}
	*t = task{transfer: iscsi.Transfer{Tag: t.transfer.Tag}, generation: t.generation}
	c.free = append(c.free, t)
	c.taskFreed++
}

// tick acts on what has taken too long.
func (c *core) tick(now time.Time) {
	for t := c.age.first; t != nil && !now.Before(t.deadline); t = c.age.first {
		c.log.WithFields(logrus.Fields{"lun": t.req.cmd.LUN, "itt": t.itt}).Warn("command timed out")
		c.detach(t, fmt.Errorf("command %#02x: %w", t.req.cmd.CDB[0], ErrTimeout))
	}
	for _, t := range c.aborted {
		if !now.Before(t.abortEnd) {
			c.fail(errors.New("abort task was not answered"))
		}
	}
	for i := range c.slots {
		m := &c.slots[i]
		if !m.used || now.Before(c.slotEnd(i)) {
			continue
		}
		switch {
		case i == slotLogout:
			c.fail(c.leaving)
		case i == slotKeepalive && c.flows():
			c.heard = now
		default:
			c.fail(fmt.Errorf("%s was not answered within %v", m.opcode, managementTimeout))
		}
	}
	if c.timing.ping > 0 && !c.slots[slotKeepalive].used && !now.Before(c.heard.Add(c.timing.ping)) {
		c.ping(now, slotKeepalive, nil)
	}
}

// flows reports whether read data has come since the last look. On a slow link the answer to a ping stands behind it,
// and it is no PDU of its own (field report RC-08).
func (c *core) flows() bool {
	was := c.placed
	c.placed = 0
	for i := range c.tasks {
		if t := &c.tasks[i]; t.used {
			c.placed += uint64(c.dm.Received(&t.transfer))
		}
	}
	return c.placed != was
}

// slotEnd is when a slot's answer is overdue. Whatever the target sends proves that it lives, so that the
// answer to our own ping may come late behind other PDUs; the others have a fixed end.
func (c *core) slotEnd(i int) time.Time {
	m := &c.slots[i]
	if i == slotKeepalive && c.heard.After(m.start) {
		return c.heard.Add(managementTimeout)
	}
	return m.end
}

// deadline is when tick is due again at the latest; zero: never.
func (c *core) deadline() time.Time {
	var d time.Time
	earlier := func(t time.Time) {
		if d.IsZero() || t.Before(d) {
			d = t
		}
	}
	if t := c.age.first; t != nil {
		earlier(t.deadline)
	}
	for _, t := range c.aborted {
		earlier(t.abortEnd)
	}
	for i := range c.slots {
		if c.slots[i].used {
			earlier(c.slotEnd(i))
		}
	}
	if c.timing.ping > 0 && !c.slots[slotKeepalive].used {
		earlier(c.heard.Add(c.timing.ping))
	}
	if c.draining && !c.slots[slotLogout].used {
		earlier(c.drainEnd)
	}
	return d
}

// end finishes everything with err after the datamover has been closed: no memory is in use any more. A
// command whose response had come has succeeded or failed by that.
func (c *core) end(err error) {
	for t := c.age.first; t != nil; t = c.age.first {
		c.age.remove(t)
		r := t.req
		t.req = nil
		if t.answered {
			c.finish(r, r.err)
		} else {
			c.finish(r, &lostError{err, !t.sent})
		}
	}
	for i := range c.tasks {
		if t := &c.tasks[i]; t.owed != nil {
			c.finish(t.owed, t.owedErr)
			t.owed = nil
		}
	}
	for i := range c.slots {
		if r := c.slots[i].req; r != nil {
			c.slots[i].req = nil
			c.finish(r, err)
		}
	}
}
