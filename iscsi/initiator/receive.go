package initiator

import (
	"fmt"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// event takes one event of the datamover.
func (c *core) event(now time.Time, ev *iscsi.Event) {
	switch ev.Kind {
	case iscsi.EventReleased:
		t := c.taskOf(ev.Transfer)
		if t == nil || !t.sent || t.released {
			panic("initiator: release of a transfer that is not in use")
		}
		t.released = true
		t.vacate()
		c.settle(t)
	case iscsi.EventPDU:
		c.heard = now
		if ev.DigestError {
			// Without recovery a damaged PDU ends the session (RFC 7143, 7.8).
			c.fail(violation("data digest of a %s", iscsi.OpcodeOf(ev.BHS)))
			return
		}
		if err := c.pdu(now, ev); err != nil {
			c.fail(err)
		}
	}
}

// taskOf is the task whose transfer tr is; nil if it is none of ours.
func (c *core) taskOf(tr *iscsi.Transfer) *task {
	if tr == nil || int64(tr.Tag) >= int64(len(c.tasks)) {
		return nil
	}
	if t := &c.tasks[tr.Tag]; &t.transfer == tr {
		return t
	}
	return nil
}

// findTask is the sent task with this tag that still waits for its response.
func (c *core) findTask(itt uint32) *task {
	if i := int(itt & indexMask); i < len(c.tasks) {
		if t := &c.tasks[i]; t.sent && t.itt == itt && !t.answered {
			return t
		}
	}
	return nil
}

// findSlot is the management slot that waits for an answer with this tag, -1 if there is none.
func (c *core) findSlot(itt uint32, op iscsi.Opcode) int {
	i := int(itt&indexMask) - indexManagement
	if i >= 0 && i < slotCount && c.slots[i].used && c.slots[i].itt == itt && c.slots[i].opcode == op {
		return i
	}
	return -1
}

// pdu takes one PDU. An error ends the session.
func (c *core) pdu(now time.Time, ev *iscsi.Event) error {
	switch op := iscsi.OpcodeOf(ev.BHS); op {
	case iscsi.OpSCSIResponse:
		return c.scsiResponse(ev)
	case iscsi.OpNOPIn:
		return c.nopIn(now, ev)
	case iscsi.OpTMFResponse:
		return c.tmfResponse(ev)
	case iscsi.OpLogoutResp:
		return c.logoutResponse(ev)
	case iscsi.OpAsync:
		return c.async(now, ev)
	case iscsi.OpReject:
		return c.reject(ev)
	default:
		// Data-In and R2T are the datamover's; login is over; we ask for no text.
		return violation("unexpected %s", op)
	}
}

// status notes the numbers of a PDU that carries status.
func (c *core) status(sn iscsi.StatSN, exp, most iscsi.CmdSN) {
	if !sn.Before(c.seq.StatSN) {
		c.seq.StatSN = sn.Add(1)
	}
	c.window(exp, most)
}

// window moves the command window forward, never back; nonsense is ignored (RFC 7143, 4.2.2.1).
func (c *core) window(exp, most iscsi.CmdSN) {
	if most.Before(exp - 1) {
		return
	}
	if exp.After(c.seq.ExpCmdSN) {
		c.seq.ExpCmdSN = exp
	}
	if most.After(c.seq.MaxCmdSN) {
		c.seq.MaxCmdSN = most
	}
}

func (c *core) scsiResponse(ev *iscsi.Event) error {
	var rsp iscsi.SCSIResponse
	if err := rsp.Parse(ev.BHS); err != nil {
		return err
	}
	c.status(rsp.StatSN, rsp.ExpCmdSN, rsp.MaxCmdSN)
	t := c.findTask(rsp.ITT)
	if t == nil {
		return violation("SCSI Response with unknown ITT %08x", rsp.ITT)
	}
	t.answered, c.proved = true, true
	if t.req != nil {
		placed := uint32(0)
		if len(t.transfer.In) > 0 {
			placed = c.dm.Received(&t.transfer)
		}
		t.req.result, t.req.err = evaluate(&rsp, ev.Data, &t.req.cmd, placed)
	}
	c.settle(t)
	return nil
}

func (c *core) nopIn(now time.Time, ev *iscsi.Event) error {
	var nop iscsi.NOPIn
	if err := nop.Parse(ev.BHS); err != nil {
		return err
	}
	if nop.ITT == iscsi.ReservedTag {
		// StatSN is the next one and is not used up (RFC 7143, 11.19.3).
		c.window(nop.ExpCmdSN, nop.MaxCmdSN)
	} else {
		c.status(nop.StatSN, nop.ExpCmdSN, nop.MaxCmdSN)
		slot := c.findSlot(nop.ITT, iscsi.OpNOPOut)
		if slot < 0 {
			return violation("NOP-In with unknown ITT %08x", nop.ITT)
		}
		if r := c.slots[slot].req; r != nil {
			r.elapsed = now.Sub(c.slots[slot].start)
			c.finish(r, nil)
		}
		c.freeSlot(slot)
	}
	if nop.TTT != iscsi.ReservedTag {
		(&iscsi.NOPOut{Immediate: true, LUN: nop.LUN, ITT: iscsi.ReservedTag, TTT: nop.TTT, CmdSN: c.cmdSN, ExpStatSN: c.seq.StatSN}).Put(&c.bhs)
		c.dm.Send(&c.bhs, nil)
	}
	return nil
}

func (c *core) tmfResponse(ev *iscsi.Event) error {
	var rsp iscsi.TMFResponse
	if err := rsp.Parse(ev.BHS); err != nil {
		return err
	}
	c.status(rsp.StatSN, rsp.ExpCmdSN, rsp.MaxCmdSN)
	for i, t := range c.aborted {
		if t.abortITT == rsp.ITT {
			c.aborted = append(c.aborted[:i], c.aborted[i+1:]...)
			return c.abortAnswered(t, rsp.Response)
		}
	}
	slot := c.findSlot(rsp.ITT, iscsi.OpTMFRequest)
	if slot < 0 {
		return violation("Task Management Function Response with unknown ITT %08x", rsp.ITT)
	}
	m := c.slots[slot]
	c.freeSlot(slot)
	if rsp.Response == iscsi.TMComplete {
		c.functionDone(&m)
	}
	if m.req != nil {
		m.req.response = rsp.Response
		c.finish(m.req, nil)
	}
	return nil
}

// abortAnswered ends an ABORT TASK. If the response has come first any answer will do. Else only "function
// complete" promises that none will come: "task does not exist" for a task that is open here means that the
// ends disagree, which only a new session can mend.
func (c *core) abortAnswered(t *task, answer iscsi.TMResponse) error {
	t.abort = abortNone
	if !t.answered {
		if answer != iscsi.TMComplete {
			return violation("abort task answered: %s", answer)
		}
		t.answered = true
		if !t.released {
			c.dm.Forget(&t.transfer)
		}
	}
	c.settle(t)
	return nil
}

// functionDone ends the commands that a task management function has ended at the target: it sends no
// responses for them (RFC 7143, 4.2.3.3).
func (c *core) functionDone(m *management) {
	all := false
	switch m.function {
	case iscsi.TMTargetWarmReset, iscsi.TMTargetColdReset, iscsi.TMNexusReset:
		all = true
	case iscsi.TMAbortTaskSet, iscsi.TMClearTaskSet, iscsi.TMLogicalUnitReset:
	default:
		return
	}
	for i := range c.tasks {
		t := &c.tasks[i]
		if t.sent && !t.answered && t.cmdSN.Before(m.cmdSN) && (all || t.transfer.LUN == m.lun) {
			c.endTask(t, ErrAborted)
		}
	}
}

// endTask ends a command for which no response will come.
func (c *core) endTask(t *task, err error) {
	t.answered = true
	released := t.released
	if r := t.req; r != nil { // nil: detached before, and perhaps about to be aborted
		c.age.remove(t)
		t.req = nil
		c.part(t, r, err)
	}
	if !released {
		c.dm.Forget(&t.transfer)
	}
	c.settle(t)
}

func (c *core) logoutResponse(ev *iscsi.Event) error {
	var rsp iscsi.LogoutResponse
	if err := rsp.Parse(ev.BHS); err != nil {
		return err
	}
	c.status(rsp.StatSN, rsp.ExpCmdSN, rsp.MaxCmdSN)
	if c.findSlot(rsp.ITT, iscsi.OpLogoutReq) < 0 {
		return violation("Logout Response with unknown ITT %08x", rsp.ITT)
	}
	return c.leaving
}

func (c *core) async(now time.Time, ev *iscsi.Event) error {
	var a iscsi.Async
	if err := a.Parse(ev.BHS); err != nil {
		return err
	}
	c.status(a.StatSN, a.ExpCmdSN, a.MaxCmdSN)
	c.log.WithFields(logrus.Fields{"lun": a.LUN}).Infof("asynchronous message from the target, event %d", a.Event)
	switch a.Event {
	case iscsi.AsyncLogoutReq:
		if !c.draining {
			c.draining = true
			c.drainEnd = now.Add(min(time.Duration(a.Parameter3)*time.Second, maxDrain))
		}
	case iscsi.AsyncConnDrop, iscsi.AsyncSessionDrop:
		return fmt.Errorf("the target drops the connection (asynchronous event %d)", a.Event)
	}
	// SCSI events are seen as unit attentions, too. We negotiate nothing more, and tasks ended by event 5
	// time out.
	return nil
}

// reject takes a Reject. One of a SCSI Command or a ping ends that alone; any other leaves the ends in
// disagreement.
func (c *core) reject(ev *iscsi.Event) error {
	var rej iscsi.Reject
	if err := rej.Parse(ev.BHS); err != nil {
		return err
	}
	c.status(rej.StatSN, rej.ExpCmdSN, rej.MaxCmdSN)
	if len(ev.Data) < iscsi.BHSSize {
		return violation("Reject (%s) with %d bytes of header", rej.Reason, len(ev.Data))
	}
	bhs := (*[iscsi.BHSSize]byte)(ev.Data)
	op, itt := iscsi.OpcodeOf(bhs), iscsi.ITTOf(bhs)
	cause := &iscsi.RejectError{Reason: rej.Reason, What: op.String()}
	if op == iscsi.OpSCSICommand {
		if t := c.findTask(itt); t != nil {
			c.endTask(t, cause)
			return nil
		}
	}
	if slot := c.findSlot(itt, op); slot >= 0 && slot < maxManagement {
		if r := c.slots[slot].req; r != nil {
			c.finish(r, cause)
		}
		c.freeSlot(slot)
		return nil
	}
	return cause
}
