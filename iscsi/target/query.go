package target

import "github.com/goiser/goiser/iscsi"

// The task management functions of RFC 7144. A session has them if its login has agreed on iSCSIProtocolLevel 2;
// without that they are not supported, as before that RFC.
//
// The queries change nothing and wait for nothing. They are answered TMSucceeded if what they ask for is there and
// TMComplete if it is not (SAM-5, 7.8 to 7.10). A command is there from when it has come, even if others must be
// delivered before it, until its response is queued; one that is being aborted is there until it has ended. A response
// that is queued leaves before the answer, on the same connection.

// manageLevel2 starts a function of RFC 7144.
func (c *conn) manageLevel2(op *tmfOp) {
	ses, r := c.ses, &op.request
	device := ses.target.c.Device
	switch {
	case ses.params.ProtocolLevel < iscsi.MaxProtocolLevel:
		c.answerTMF(op, iscsi.TMNotSupported)
	case r.Function == iscsi.TMNexusReset: // its LUN means nothing
		c.abortMany(op, abortSet{}, false)
	case !device.Sees(ses.nexus, uint64(r.LUN)):
		c.answerTMF(op, iscsi.TMNoLUN)
	case r.Function == iscsi.TMQueryTask:
		c.answerQuery(op, c.hasTask(r.LUN, r.RefITT))
	case r.Function == iscsi.TMQueryTaskSet:
		c.answerQuery(op, c.hasTasks(r.LUN))
	default:
		var pending bool
		op.info, pending = device.QueryAttention(ses.nexus, uint64(r.LUN))
		c.answerQuery(op, pending)
	}
}

func (c *conn) answerQuery(op *tmfOp, there bool) {
	if there {
		c.answerTMF(op, iscsi.TMSucceeded)
		return
	}
	c.answerTMF(op, iscsi.TMComplete)
}

// hasTask reports whether the session has a task of a unit, on whichever of its connections.
func (c *conn) hasTask(lun iscsi.LUN, itt uint32) bool {
	if t := c.ses.tasks.find(itt); t != nil {
		return sameLUN(t.transfer.LUN, lun)
	}
	for _, cmd := range c.heldCommands {
		if cmd.ITT == itt && sameLUN(cmd.LUN, lun) {
			return true
		}
	}
	return false
}

// hasTasks reports whether the session has any task of a unit.
func (c *conn) hasTasks(lun iscsi.LUN) bool {
	for i := range c.ses.tasks.tasks {
		t := &c.ses.tasks.tasks[i]
		if t.state != taskFree && t.state != taskResponding && sameLUN(t.transfer.LUN, lun) {
			return true
		}
	}
	for _, cmd := range c.heldCommands {
		if sameLUN(cmd.LUN, lun) {
			return true
		}
	}
	return false
}
