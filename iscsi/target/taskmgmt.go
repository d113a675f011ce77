package target

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

const (
	// taskManagementTimeout is how long a function waits for tasks that a store holds; then the answer is
	// "rejected", because "complete" would not be true. Linux gives a logical unit reset 30 s.
	taskManagementTimeout = 25 * time.Second
	// maxTMF bounds the functions that wait on a connection; further ones are rejected.
	maxTMF = 64
)

// A tmfOp is a task management function, or a PREEMPT AND ABORT (preempt.go), that waits until all that it ends is
// quiet: nothing of it will touch the store or the initiator's memory any more, and no response of it is still to be
// queued.
// It may reach into other connections and sessions of the target; the last one to be quiet tells the asking
// connection.
type tmfOp struct {
	c        *conn // asked, and will be answered
	request  iscsi.TMFRequest
	windowed bool
	task     *task // not nil: it is what will be answered, and there is no request
	since    time.Time
	pending  atomic.Int32 // connections that are not quiet
	over     atomic.Bool  // answered, or never to be
	info     [3]byte      // additional response information
}

// quiet notes that one connection is quiet.
func (op *tmfOp) quiet() {
	if op.pending.Add(-1) == 0 {
		op.c.post(item{kind: itemQuiet, op: op})
	}
}

// An abortSet says which tasks of a connection end.
type abortSet struct {
	op     *tmfOp
	only   uint64 // serial of one task; 0: all that follows
	mate   bool   // asked for on another connection of the session: serial is set
	byLUN  bool
	lun    iscsi.LUN
	by     *scsi.Nexus // another session asks, and not byLUN: only units that are there for it
	but    uint64      // serial of a task that does not end
	serial uint64      // the last task received before
	fence  fence       // mate: what must have been acknowledged
	// cleared: it is another nexus that ends them, which is told by a unit attention.
	cleared bool
}

func (a *abortSet) has(t *task) bool {
	switch {
	case a.only != 0:
		return t.serial == a.only
	case t.serial > a.serial, t.serial == a.but:
		return false
	}
	return a.covers(t.transfer.LUN)
}

// sameLUN reports whether two LUNs name one unit, though perhaps in different forms.
func sameLUN(a, b iscsi.LUN) bool {
	n, ok := a.Number()
	m, ok2 := b.Number()
	return a == b || ok && ok2 && n == m
}

// taskManagement takes a Task Management Function Request (RFC 7143, 11.5).
func (c *conn) taskManagement(ev *iscsi.Event, windowed bool) {
	op := &tmfOp{c: c, windowed: windowed, since: c.now}
	if err := op.request.Parse(ev.BHS); err != nil {
		c.fail(err)
		return
	}
	op.pending.Store(1)
	switch {
	case len(c.tmfs)+len(c.parked) >= maxTMF:
		c.answerTMF(op, iscsi.TMRejected)
	case c.overtakes(op):
		c.park(op)
	default:
		c.manage(op)
	}
}

// manage starts a function.
func (c *conn) manage(op *tmfOp) {
	switch f := op.request.Function; f {
	case iscsi.TMAbortTask:
		c.abortOne(op)
	case iscsi.TMAbortTaskSet, iscsi.TMClearTaskSet, iscsi.TMLogicalUnitReset:
		if !c.ses.target.c.Device.Sees(c.ses.nexus, uint64(op.request.LUN)) {
			c.answerTMF(op, iscsi.TMNoLUN)
			return
		}
		c.abortMany(op, abortSet{byLUN: true, lun: op.request.LUN, cleared: f == iscsi.TMClearTaskSet}, f != iscsi.TMAbortTaskSet)
	case iscsi.TMTargetWarmReset, iscsi.TMTargetColdReset:
		c.abortMany(op, abortSet{by: c.ses.nexus}, true)
	case iscsi.TMTaskReassign: // needs ErrorRecoveryLevel 2
		c.answerTMF(op, iscsi.TMReassignNotSupp)
	case iscsi.TMQueryTask, iscsi.TMQueryTaskSet, iscsi.TMNexusReset, iscsi.TMQueryAsyncEvent:
		c.manageLevel2(op)
	default:
		c.answerTMF(op, iscsi.TMNotSupported)
	}
}

// abortOne is ABORT TASK. A task that is not here may be one whose command is still to come: its CmdSN is
// then taken as received, and the command dropped if it comes (RFC 7143, 11.5.5).
func (c *conn) abortOne(op *tmfOp) {
	if t := c.ses.tasks.find(op.request.RefITT); t != nil {
		c.tmfs = append(c.tmfs, op)
		set := abortSet{op: op, only: t.serial}
		if t.c == c {
			c.abort(set)
			return
		}
		set.mate, set.serial = true, t.serial
		t.c.postAbort(set)
		return
	}
	if sn := op.request.RefCmdSN; sn.Before(op.request.CmdSN) && c.skip(sn) {
		c.ses.gone.add(op.request.RefITT)
		c.answerTMF(op, iscsi.TMComplete)
		c.deliverHeld()
		return
	}
	if c.ses.gone.has(op.request.RefITT) {
		c.answerTMF(op, iscsi.TMComplete)
		return
	}
	c.answerTMF(op, iscsi.TMNoTask)
}

// skip takes a CmdSN in the window that has not had its turn as received.
func (c *conn) skip(sn iscsi.CmdSN) bool {
	p, ok := c.ses.win.skip(sn)
	if p != nil {
		c.ses.held -= p.size()
	}
	return ok
}

// abortMany ends a set of tasks, in all sessions of the target if others is set.
func (c *conn) abortMany(op *tmfOp, set abortSet, others bool) {
	c.tmfs = append(c.tmfs, op)
	set.op = op
	mates, strangers := c.s.neighbours(c)
	if others {
		for _, m := range strangers {
			op.pending.Add(1)
			m.postAbort(set)
		}
	}
	set.cleared, set.by = false, nil // of its own the nexus ends all, and knows that it does
	mate := set
	mate.mate, mate.serial = true, c.ses.tasks.serial
	for _, m := range mates {
		op.pending.Add(1)
		m.postAbort(mate)
	}
	c.abort(set)
	c.deliverHeld()
}

// postAbort makes c end the tasks of a set. A connection that is gone has none.
func (c *conn) postAbort(set abortSet) {
	if !c.post(item{kind: itemAbort, op: set.op, set: set}) {
		set.op.quiet()
	}
}

// abort ends the tasks of a set on this connection, and tells set.op once they are quiet.
func (c *conn) abort(set abortSet) {
	ses := c.ses
	if ses == nil {
		set.op.quiet()
		return
	}
	ended := 0
	switch {
	case set.mate:
		set.fence = c.fence()
	case set.only != 0 || ses.shared && set.op.c == c: // what is held of our own session was sent later: see overtakes
		set.serial = ses.tasks.serial
	default:
		set.serial = ses.tasks.serial
		ended = c.abortHeld(&set)
	}
	for t := range c.own {
		if set.has(t) && c.abortTask(t) {
			ended++
		}
	}
	if set.cleared && ended > 0 {
		ses.target.c.Device.CommandsCleared(ses.nexus, uint64(set.lun))
	}
	c.aborts = append(c.aborts, set)
	c.checkAborts()
}

// abortHeld drops the commands of a set that wait for their turn, and counts them.
func (c *conn) abortHeld(set *abortSet) (n int) {
	for sn, cmd := range c.heldCommands {
		if set.covers(cmd.LUN) {
			c.ses.gone.add(cmd.ITT)
			c.skip(sn)
			n++
		}
	}
	return n
}

// heldCommands yields the commands of the session that wait for their turn in the window, with their CmdSN.
func (c *conn) heldCommands(yield func(iscsi.CmdSN, *iscsi.SCSICommand) bool) {
	w := &c.ses.win
	for sn := c.seq.ExpCmdSN; c.ses.held > 0 && !sn.After(c.seq.MaxCmdSN); sn++ {
		s := w.at(sn)
		if s.state != slotHeld || iscsi.OpcodeOf(&s.pdu.bhs) != iscsi.OpSCSICommand {
			continue
		}
		var cmd iscsi.SCSICommand
		if cmd.Parse(&s.pdu.bhs) == nil && !yield(sn, &cmd) {
			return
		}
	}
}

// abortTask ends a task without a response, now or as soon as whoever has it lets go. A response that is
// queued goes out before the one of the function, which is as it should be. It reports whether it has ended it.
func (c *conn) abortTask(t *task) bool {
	if t.aborted || t.state == taskResponding {
		return false
	}
	t.aborted = true
	switch t.state {
	case taskHeld:
		if !t.device.Withdraw(&t.scsi) {
			return true // its turn has come: resumed will end it
		}
	case taskWaiting:
		if !c.s.c.Pool.Cancel(&t.wait) {
			return true // served already: granted will end it
		}
	case taskFetching:
		t.state = taskAborting
		c.dm.Abort(&t.transfer)
		return true
	case taskRunning:
		if !c.recall(t) {
			return true // executed will end it
		}
	case taskPreempting:
		c.endPreempt(t.preempting)
	case taskReady:
		c.ready.remove(t)
	}
	c.endTask(t)
	return true
}

// recall takes a task back that no worker has begun. One that has been is asked to end soon.
func (c *conn) recall(t *task) bool {
	if !c.s.workers.cancel(t) {
		t.scsi.Stop()
		return false
	}
	c.running--
	t.prepared = true
	return true
}

// checkAborts looks which sets have become quiet.
func (c *conn) checkAborts() {
	kept := c.aborts[:0]
	for i := range c.aborts {
		set := c.aborts[i]
		switch {
		case set.op.over.Load(): // answered for lack of time
		case c.busy(&set):
			kept = append(kept, set)
		default:
			set.op.quiet()
		}
	}
	clear(c.aborts[len(kept):])
	c.aborts = kept
}

func (c *conn) busy(set *abortSet) bool {
	if !c.passed(set.fence) {
		return true
	}
	for t := range c.own {
		if t.aborted && set.has(t) {
			return true
		}
	}
	return false
}

// finishTMF answers a function whose tasks are quiet everywhere.
func (c *conn) finishTMF(op *tmfOp) {
	if op.over.Load() || c.state != connFull {
		return
	}
	if op.task != nil {
		c.preempted(op)
		return
	}
	device := c.ses.target.c.Device
	switch op.request.Function {
	case iscsi.TMLogicalUnitReset:
		device.ResetLU(uint64(op.request.LUN), c.ses.nexus)
	case iscsi.TMTargetWarmReset, iscsi.TMTargetColdReset:
		device.Reset(c.ses.nexus)
	case iscsi.TMNexusReset:
		device.ResetNexus(c.ses.nexus)
	}
	c.answerTMF(op, iscsi.TMComplete)
	if op.request.Function == iscsi.TMTargetColdReset {
		mates, strangers := c.s.neighbours(c)
		for _, m := range append(mates, strangers...) {
			m.post(item{kind: itemClose, err: errColdReset})
		}
		c.leave(errColdReset)
	}
}

// answerTMF queues the response (RFC 7143, 11.6).
func (c *conn) answerTMF(op *tmfOp, response iscsi.TMResponse) {
	op.over.Store(true)
	c.tmfs = slices.DeleteFunc(c.tmfs, func(p *tmfOp) bool { return p == op })
	c.openSlot(op.windowed)
	c.s.tallies.count(func(t *tallies) { t.functions[Function{op.request.Function, response}]++ })
	r := iscsi.TMFResponse{
		Response: response,
		Info:     op.info,
		ITT:      op.request.ITT,
		StatSN:   c.nextStatSN(),
		ExpCmdSN: c.seq.ExpCmdSN,
		MaxCmdSN: c.seq.MaxCmdSN,
	}
	r.Put(&c.bhs)
	c.reply(nil)
	if !op.request.Function.Asks() { // those may come often, and nothing has happened
		c.logEvent(eventTaskManagement).WithFields(logrus.Fields{"lun": op.request.LUN, "itt": op.request.RefITT}).
			Infof("%v: %v", op.request.Function, response)
	}
}

// overdue looks at the deadlines of single tasks and functions.
func (c *conn) overdue() {
	for t := range c.own {
		if t.aborted || t.state != taskFetching && !t.due {
			continue
		}
		// Data of others may come first on a slow link.
		if c.now.Sub(later(t.since, c.fetched)) > dataTimeout || c.now.Sub(t.since) > dataTimeoutMax {
			c.fail(fmt.Errorf("no data for write %08x on lun %v in %v", t.transfer.ITT, t.transfer.LUN, c.now.Sub(t.since)))
			return
		}
	}
	c.overduePreempts()
	for len(c.tmfs) > 0 && c.now.Sub(c.tmfs[0].since) > taskManagementTimeout {
		c.logStuck(c.tmfs[0])
		c.answerTMF(c.tmfs[0], iscsi.TMRejected)
		c.checkAborts()
	}
}

// logStuck names the tasks that a function waits for in vain.
func (c *conn) logStuck(op *tmfOp) {
	var tags []uint32
	for _, set := range c.aborts {
		for t := range c.own {
			if set.op == op && t.aborted && set.has(t) {
				tags = append(tags, t.transfer.ITT)
			}
		}
	}
	c.logEvent(eventStoreError).WithFields(logrus.Fields{"lun": op.request.LUN, "itt": tags}).
		Warnf("%v waits for a store that does not answer", op.request.Function)
}

// A goneRing remembers tasks that have ended without all that belongs to them: their Data-Out may still be on its
// way, and is no error; and an ABORT TASK that crosses a reset which has ended its task is answered
// "complete", since the initiator has had no response to match "task does not exist" with. It holds as many ITTs
// as a session has tasks; what is pushed out is forgotten.
type goneRing struct {
	itts []uint32
	next int
	used int // entries that are not ReservedTag
}

func (r *goneRing) open(n int) {
	r.itts = make([]uint32, n)
	for i := range r.itts {
		r.itts[i] = iscsi.ReservedTag
	}
}

func (r *goneRing) add(itt uint32) {
	if itt == iscsi.ReservedTag {
		return
	}
	if r.itts[r.next] == iscsi.ReservedTag {
		r.used++
	}
	r.itts[r.next] = itt
	r.next = (r.next + 1) % len(r.itts)
}

// remove forgets an ITT that names a new command.
func (r *goneRing) remove(itt uint32) {
	if r.used == 0 {
		return
	}
	for i := range r.itts {
		if r.itts[i] == itt {
			r.itts[i] = iscsi.ReservedTag
			r.used--
		}
	}
}

func (r *goneRing) has(itt uint32) bool {
	return r.used > 0 && itt != iscsi.ReservedTag && slices.Contains(r.itts, itt)
}
