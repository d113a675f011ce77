package initiator

import (
	"time"

	"github.com/goiser/goiser/iscsi"
)

// pump queues what may be sent: aborts, the logout, and commands as far as the target's window reaches
// (RFC 7143, 4.2.2.1).
func (c *core) pump(now time.Time) {
	for len(c.aborts) > 0 && len(c.aborted) < maxAborts {
		t := c.aborts[0]
		c.aborts = append(c.aborts[:0], c.aborts[1:]...)
		if t.answered { // the response was faster
			t.abort = abortNone
			c.settle(t)
			continue
		}
		c.abortTask(now, t)
	}
	if c.draining && (c.age.first == nil || !now.Before(c.drainEnd)) {
		c.leave(ErrTargetLogout)
	}
	if c.leaving != nil {
		c.logout(now)
		return
	}
	for t := c.age.unsent; t != nil && !c.cmdSN.After(c.seq.MaxCmdSN); t = c.age.unsent {
		c.sendCommand(t)
	}
}

func (c *core) sendCommand(t *task) {
	cmd := &t.req.cmd
	t.generation++
	t.itt = makeITT(t.generation, int(t.transfer.Tag))
	t.cmdSN = c.cmdSN
	c.cmdSN = c.cmdSN.Add(1)

	t.transfer.ITT, t.transfer.LUN = t.itt, cmd.LUN
	if len(cmd.In) > 0 {
		t.in[0] = cmd.In
		t.transfer.In = t.in[:]
	}
	if len(cmd.Out) > 0 {
		t.out[0] = cmd.Out
		t.transfer.Out = t.out[:]
	}
	t.transfer.EDTL = uint32(len(cmd.In) + len(cmd.Out))

	pdu := iscsi.SCSICommand{
		Final: true, Read: len(cmd.In) > 0, Write: len(cmd.Out) > 0, Attr: cmd.Attr,
		LUN: cmd.LUN, ITT: t.itt, EDTL: t.transfer.EDTL, CmdSN: t.cmdSN, ExpStatSN: c.seq.StatSN,
	}
	if pdu.Attr == iscsi.AttrUntagged {
		pdu.Attr = iscsi.AttrSimple
	}
	c.ahs = c.ahs[:0]
	if n := copy(pdu.CDB[:], cmd.CDB); n < len(cmd.CDB) {
		c.ahs = (&iscsi.AHS{ExtendedCDB: cmd.CDB[n:]}).Append(c.ahs)
		pdu.AHSLength = uint8(len(c.ahs) / 4)
	}
	pdu.Put(&c.bhs)
	c.occupy(t, cmd.In)
	c.occupy(t, cmd.Out)
	t.sent = true
	c.age.unsent = t.next
	c.dm.SendCommand(&t.transfer, &c.bhs, c.ahs)
}

func (c *core) abortTask(now time.Time, t *task) {
	t.abort = abortSent
	t.abortITT = makeITT(t.generation, indexAbort|int(t.transfer.Tag))
	t.abortEnd = now.Add(managementTimeout)
	c.aborted = append(c.aborted, t)
	(&iscsi.TMFRequest{
		Immediate: true, Function: iscsi.TMAbortTask, LUN: t.transfer.LUN, ITT: t.abortITT,
		RefITT: t.itt, RefCmdSN: t.cmdSN, CmdSN: c.cmdSN, ExpStatSN: c.seq.StatSN,
	}).Put(&c.bhs)
	c.dm.Send(&c.bhs, nil)
}

// manage sends a caller's ping or task management function. The session's semaphore lets no more callers
// in than there are slots.
func (c *core) manage(now time.Time, r *request) {
	for i := range maxManagement {
		if c.slots[i].used {
			continue
		}
		if r.kind == requestPing {
			c.ping(now, i, r)
			return
		}
		m := c.takeSlot(now, i, iscsi.OpTMFRequest, r)
		m.function, m.lun = r.function, r.lun
		(&iscsi.TMFRequest{
			Immediate: true, Function: r.function, LUN: r.lun, ITT: m.itt,
			RefITT: iscsi.ReservedTag, CmdSN: c.cmdSN, ExpStatSN: c.seq.StatSN,
		}).Put(&c.bhs)
		c.dm.Send(&c.bhs, nil)
		return
	}
	panic("initiator: more management requests than slots")
}

// ping sends a NOP-Out without data: LIO does not echo data (ISER.md 9.4).
func (c *core) ping(now time.Time, slot int, r *request) {
	m := c.takeSlot(now, slot, iscsi.OpNOPOut, r)
	(&iscsi.NOPOut{Immediate: true, ITT: m.itt, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN, ExpStatSN: c.seq.StatSN}).Put(&c.bhs)
	c.dm.Send(&c.bhs, nil)
}

func (c *core) takeSlot(now time.Time, slot int, op iscsi.Opcode, r *request) *management {
	m := &c.slots[slot]
	*m = management{
		used: true, opcode: op, req: r, generation: m.generation + 1, cmdSN: c.cmdSN,
		start: now, end: now.Add(managementTimeout),
	}
	m.itt = makeITT(m.generation, indexManagement|slot)
	return m
}

func (c *core) freeSlot(slot int) {
	m := &c.slots[slot]
	*m = management{generation: m.generation}
	if slot < maxManagement {
		c.managementFreed++
	}
}

// leave stops new commands and makes a logout due; the first reason stays. Commands that have not been sent
// end now.
func (c *core) leave(why error) {
	if c.leaving != nil {
		return
	}
	c.leaving = why
	for t := c.age.unsent; t != nil; t = c.age.unsent {
		c.detach(t, &lostError{why, true})
	}
}

// logout sends the Logout Request once.
func (c *core) logout(now time.Time) {
	if c.slots[slotLogout].used {
		return
	}
	m := c.takeSlot(now, slotLogout, iscsi.OpLogoutReq, nil)
	m.end = now.Add(logoutTimeout)
	(&iscsi.LogoutRequest{Immediate: true, Reason: iscsi.LogoutSession, ITT: m.itt, CmdSN: c.cmdSN, ExpStatSN: c.seq.StatSN}).Put(&c.bhs)
	c.dm.Send(&c.bhs, nil)
}
