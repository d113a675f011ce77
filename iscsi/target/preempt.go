package target

import (
	"slices"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// PREEMPT AND ABORT ends the tasks of the nexuses that it has preempted before it is answered: the answer
// says that nothing of them will touch the unit any more (SPC-4, 5.12.11.2.8). It goes the way of a task
// management function (tmfOp), with a task to be answered in place of the function.
//
// The task holds no worker while it waits, and none of the tasks that it waits for waits for it: those
// that come after it in the task set are withdrawn, and of two that preempt each other one is among what
// the other aborts, which ends it at once.

// preempt makes t, which the device server has executed, wait until the tasks of the nexuses that it
// names are quiet.
func (c *conn) preempt(t *task) {
	nexuses := t.scsi.Preempted
	t.scsi.Preempted = nil
	op := &tmfOp{c: c, task: t, since: c.now}
	op.pending.Store(1)
	t.state, t.preempting = taskPreempting, op
	c.preempts = append(c.preempts, op)
	set := abortSet{op: op, byLUN: true, lun: t.transfer.LUN}
	for _, m := range c.s.connsOf(nexuses, c.ses) {
		op.pending.Add(1)
		set.cleared = true
		m.postAbort(set)
	}
	if !slices.Contains(nexuses, c.ses.nexus) {
		op.quiet()
		return
	}
	set.cleared, set.but, set.serial = false, t.serial, c.ses.tasks.serial
	mates, _ := c.s.neighbours(c)
	mate := set
	mate.mate = true
	for _, m := range mates {
		op.pending.Add(1)
		m.postAbort(mate)
	}
	c.abort(set)
	c.deliverHeld()
}

// preempted answers a task whose victims are quiet.
func (c *conn) preempted(op *tmfOp) {
	c.endPreempt(op)
	c.answerTask(op.task)
}

// endPreempt takes op's task out of the waiting ones.
func (c *conn) endPreempt(op *tmfOp) {
	op.over.Store(true)
	op.task.preempting = nil
	c.preempts = slices.DeleteFunc(c.preempts, func(p *tmfOp) bool { return p == op })
}

// overduePreempts answers tasks whose victims a store holds up: the reservation is preempted, but GOOD
// would say more than that.
func (c *conn) overduePreempts() {
	for len(c.preempts) > 0 && c.now.Sub(c.preempts[0].since) > taskManagementTimeout {
		op := c.preempts[0]
		c.logEvent(eventStoreError).WithFields(logrus.Fields{"lun": op.task.transfer.LUN, "itt": op.task.transfer.ITT}).
			Warn("PREEMPT AND ABORT waits for a store that does not answer")
		c.endPreempt(op)
		c.refuseTask(op.task, senseAborted, op.task.unsolicited)
	}
}

// connsOf lists the connections of other sessions than but that are of one of the nexuses.
func (s *Server) connsOf(nexuses []*scsi.Nexus, but *session) (conns []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.sessions {
		if ses == but || !ses.target.same(but.target) || !ses.opened || !slices.Contains(nexuses, ses.nexus) {
			continue
		}
		for _, m := range ses.members {
			conns = append(conns, m.c)
		}
	}
	return conns
}

// covers reports whether a set may have tasks of a unit.
func (a *abortSet) covers(lun iscsi.LUN) bool {
	switch {
	case a.byLUN:
		return sameLUN(lun, a.lun)
	case a.by != nil:
		return a.by.Sees(uint64(lun))
	}
	return true
}
