package target

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
)

// command takes a SCSI Command (RFC 7143, 11.3).
func (c *conn) command(ev *iscsi.Event, windowed bool) {
	var cmd iscsi.SCSICommand
	if err := cmd.Parse(ev.BHS); err != nil {
		c.fail(err)
		return
	}
	n := uint32(len(ev.Data))
	if err := c.checkCommand(&cmd, n); err != nil {
		c.fail(fmt.Errorf("SCSI Command %08x: %w", cmd.ITT, err))
		return
	}
	if !windowed && c.ses.immediate >= spareTasks {
		c.tooMany(&cmd)
		return
	}
	t := c.ses.tasks.take(c, cmd.ITT)
	if !windowed {
		c.ses.immediate++
	}
	c.ses.gone.remove(cmd.ITT)
	t.windowed, t.aborted, t.prepared, t.refused, t.full, t.panicked = windowed, false, false, false, false, nil
	t.unsolicited, t.dataSN, t.sent, t.arrived = 0, 0, 0, c.elapsed
	t.transfer.LUN, t.transfer.EDTL, t.transfer.Remote = cmd.LUN, cmd.EDTL, ev.Remote
	t.transfer.Unsolicited = c.params.Announced(cmd.EDTL, n, cmd.Final)
	// Data that was announced against InitialR2T=Yes is not waited for: it ends the session when it comes.
	t.due = !cmd.Final && !c.params.InitialR2T && n < t.transfer.Unsolicited
	t.device = c.ses.target.c.Device
	c.fillTask(t, &cmd)
	if code := c.refuses(t, &cmd, ev); code != 0 {
		c.refuseTask(t, code, n)
		return
	}
	t.device.Prepare(&t.scsi)
	if t.scsi.Held {
		c.holdBack(t, ev.Data)
		return
	}
	t.prepared = !t.scsi.Done
	if code := c.cannotMove(t); code != 0 {
		c.refuseTask(t, code, n)
		return
	}
	switch {
	case n > 0 || t.due:
		c.writeCommand(t, ev.Data)
	case t.scsi.Done:
		c.respond(t)
	default:
		c.fetch(t)
	}
}

// holdBack keeps a command whose turn has not come (SAM-5, 8.6), with the data that comes unasked. It holds no
// other memory: see memory.go. An immediate command with such data has no place for it, and is not kept.
func (c *conn) holdBack(t *task, data []byte) {
	t.state, t.since = taskHeld, c.now
	switch {
	case len(data) == 0 && !t.due:
	case t.windowed:
		c.placeUnsolicited(t, int(t.transfer.Unsolicited))
		copyTo(t.data, 0, data)
		t.unsolicited = uint32(len(data))
	case t.device.Withdraw(&t.scsi):
		c.taskSetFull(t)
	default:
		t.full = true // resumed is on its way
	}
}

// resumed goes on with a task that has been held back.
func (c *conn) resumed(t *task) {
	switch {
	case t.aborted, c.err != nil:
		c.endTask(t)
		return
	case t.full:
		c.taskSetFull(t)
		return
	case t.refused:
		c.answerRefused(t)
		return
	}
	s := &t.scsi
	t.device.Resume(s)
	t.prepared = !s.Done
	if code := c.cannotMove(t); code != 0 {
		c.refuseTask(t, code, t.unsolicited)
		return
	}
	if t.piece != nil {
		t.data = appendPrefix(t.data[:0], t.piece, min(int(s.OutLen), c.ses.mem.unit))
	}
	if t.due {
		t.state, t.since = taskCollecting, c.now
		return
	}
	c.collected(t)
}

// checkCommand finds what cannot be answered: the session ends for it.
func (c *conn) checkCommand(cmd *iscsi.SCSICommand, n uint32) error {
	switch {
	case cmd.ITT == iscsi.ReservedTag:
		return errors.New("reserved task tag")
	case c.ses.tasks.find(cmd.ITT) != nil:
		return errors.New("task tag in use")
	case !cmd.Write && !cmd.Final:
		return errors.New("more data announced by a command that writes none")
	case !cmd.Write && n > 0:
		return errors.New("data in a command that writes none")
	case !cmd.Final && n == cmd.EDTL:
		return errors.New("more data announced than expected")
	}
	return nil
}

// fillTask says the command in SCSI's terms. Without expected data, or without a direction for it, no
// data moves whatever the flags say. The priority is not carried: a device server need not look at it (SAM-5, 8.7), and
// ours says that it does not (PRIOR_SUP of the Extended INQUIRY Data page).
func (c *conn) fillTask(t *task, cmd *iscsi.SCSICommand) {
	s := &t.scsi
	s.Nexus, s.LUN, s.Attr, s.EDTL = c.ses.nexus, uint64(cmd.LUN), scsi.Attr(cmd.Attr), cmd.EDTL
	s.Read, s.Write = cmd.Read && cmd.EDTL > 0, cmd.Write && cmd.EDTL > 0
	if !s.Read && !s.Write {
		s.EDTL = 0
	}
	copy(t.cdb[:16], cmd.CDB[:])
	s.CDB = t.cdb[:16]
	s.Out, s.In, s.Done, s.OutLen, s.InLen, s.MayBlock = nil, nil, false, 0, 0, false
}

// refuses finds what a command is refused for before the device server sees it (ISER.md 3.2), 0 if
// nothing. It completes the CDB from the additional header segments.
func (c *conn) refuses(t *task, cmd *iscsi.SCSICommand, ev *iscsi.Event) senseCode {
	p, n := &c.params, uint32(len(ev.Data))
	var ahs iscsi.AHS
	if len(ev.AHS) > 0 {
		var err error
		if ahs, err = iscsi.ParseAHS(ev.AHS); err != nil {
			return senseAborted
		}
		t.scsi.CDB = append(t.scsi.CDB, ahs.ExtendedCDB...)
	}
	switch {
	case cmd.Read && cmd.Write && cmd.EDTL > 0, ahs.HasBidi:
		return senseInvalidField
	case n > 0 && !p.ImmediateData:
		return senseUnexpectedData
	case n > p.MaxRecvData, n > p.FirstBurstLength, n > cmd.EDTL:
		return senseWrongAmount
	case !cmd.Final && p.InitialR2T:
		return senseUnexpectedData
	case !cmd.Final && n == t.transfer.Unsolicited:
		return senseWrongAmount
	}
	return 0
}

// cannotMove finds that a prepared task's data cannot be moved: the initiator has offered no memory, or
// there will never be as many buffers here.
func (c *conn) cannotMove(t *task) senseCode {
	s := &t.scsi
	switch {
	case s.OutLen > c.s.maxTransfer, s.InLen > c.s.maxTransfer:
		return senseInvalidField
	case s.InLen > 0 && !c.dm.CanPut(&t.transfer):
		return senseAborted
	case s.OutLen > t.transfer.Unsolicited && !c.dm.CanGet(&t.transfer):
		return senseAborted
	}
	return 0
}

// refuseTask answers a command with CHECK CONDITION, once the data that comes unasked has come: it would
// name a task that is gone. n bytes of it are here.
func (c *conn) refuseTask(t *task, code senseCode, n uint32) {
	c.abandon(t)
	t.refused, t.unsolicited = true, n
	t.sense = code
	c.answerRefused(t)
}

func (c *conn) answerRefused(t *task) {
	if t.due {
		t.state, t.since = taskCollecting, c.now
		return
	}
	c.respond(t)
}

// abandon ends what Prepare has begun if Execute has not.
func (c *conn) abandon(t *task) {
	if t.prepared {
		t.prepared = false
		t.device.Abandon(&t.scsi)
	}
}

// tooMany answers an immediate command beyond what a session keeps.
func (c *conn) tooMany(cmd *iscsi.SCSICommand) {
	if !cmd.Final {
		c.ses.gone.add(cmd.ITT)
	}
	r := iscsi.SCSIResponse{
		Status:   uint8(scsi.TaskSetFull),
		ITT:      cmd.ITT,
		StatSN:   c.nextStatSN(),
		ExpCmdSN: c.seq.ExpCmdSN,
		MaxCmdSN: c.seq.MaxCmdSN,
	}
	if cmd.Read || cmd.Write {
		r.Residual, r.Underflow = cmd.EDTL, cmd.EDTL > 0
	}
	c.ses.stats.answer(cmd.CDB[0], r.Status)
	r.Put(&c.bhs)
	c.reply(nil)
}
