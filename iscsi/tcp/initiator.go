package tcp

import (
	"fmt"
	"net"

	"github.com/goiser/goiser/iscsi"
)

// synthSize is how many SCSI Responses are made of Data-In PDUs in a round without an allocation.
const synthSize = 128

// An initiator is the initiator's end of a connection.
type initiator struct {
	conn
	tasks taskTable
	in    iscsi.DataIn // the Data-In that is coming in
	// Responses that came as Data-In, made until the next Flush. A full array is left to its views.
	synth  *[synthSize][iscsi.BHSSize]byte
	synths int
}

// NewInitiator makes the initiator's end.
func NewInitiator(c net.Conn) iscsi.InitiatorDatamover {
	d := &initiator{}
	d.init(c, d)
	return d
}

// Prepare implements iscsi.InitiatorDatamover; a byte stream needs nothing.
func (d *initiator) Prepare(*iscsi.Params) error { return d.err }

// Flush implements iscsi.Datamover.
func (d *initiator) Flush() error {
	d.synths = 0
	return d.conn.Flush()
}

// SendCommand implements iscsi.InitiatorDatamover.
func (d *initiator) SendCommand(t *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, ahs []byte) {
	t.DM = iscsi.TransferState{Flags: flagCommand}
	if d.err != nil {
		d.finish(t)
		return
	}
	t.DM.Bufs, t.DM.End = t.In, uint32(min(total(t.In), uint64(t.EDTL)))
	d.tasks.add(t)
	immediate, unsolicited := d.p.Unsolicited(uint32(min(total(t.Out), uint64(t.EDTL))))
	t.Unsolicited = unsolicited
	it := d.queuePDU(t, bhs, ahs)
	iscsi.SetFinal(&it.bhs, unsolicited == immediate)
	iscsi.SetDataLength(&it.bhs, immediate)
	it.src, it.end = cursor{bufs: t.Out}, immediate
	if unsolicited > immediate {
		d.sendOut(t, immediate, unsolicited, iscsi.ReservedTag)
	}
}

// sendOut queues a sequence of Data-Out for bytes [off, end) of t.
func (d *initiator) sendOut(t *iscsi.Transfer, off, end, ttt uint32) {
	it := d.tx.push(itemDataOut, t)
	it.src, it.off, it.end, it.ttt = seek(t.Out, off), off, end, ttt
}

// Received implements iscsi.InitiatorDatamover.
func (d *initiator) Received(t *iscsi.Transfer) uint32 { return t.DM.Offset }

// Forget implements iscsi.InitiatorDatamover.
func (d *initiator) Forget(t *iscsi.Transfer) {
	if d.tasks.find(t.ITT) == t {
		d.end(t)
	}
}

// end finishes a task: no more data moves for it.
func (d *initiator) end(t *iscsi.Transfer) {
	d.tasks.remove(t)
	d.rx.forget(t)
	d.tx.cut(&d.conn, t, isCommand)
	d.finish(t)
}

// isCommand keeps a command in the queue: its CmdSN must be seen by the target.
func isCommand(it *item) bool { return it.kind == itemPDU }

// Detach implements iscsi.InitiatorDatamover. Data that the target has asked for and that has not begun to be
// sent is not sent any more: there is nothing right to send, and the engine aborts the task.
func (d *initiator) Detach(t *iscsi.Transfer) {
	if t.DM.Flags&(flagCommand|flagDetached) != flagCommand {
		return
	}
	t.DM.Flags |= flagDetached
	d.rx.divert(t)
	t.DM.Bufs, t.DM.Tag = nil, 0
	d.tx.cut(&d.conn, t, isCommand)
	for i := range d.tx.count {
		if it := d.tx.at(i); it.t == t {
			it.own()
		}
	}
	if d.tx.busy && d.tx.b.has(t) {
		d.ownBatch()
	}
	t.In, t.Out = nil, nil
}

// own copies an item's payload.
func (it *item) own() {
	if n := int(it.end - it.off); n > 0 {
		flat := make([]byte, 0, n)
		for len(flat) < n {
			flat = append(flat, it.src.next(n-len(flat))...)
		}
		it.src = cursor{bufs: [][]byte{flat}}
	}
}

// ownBatch takes the batch from the writer, copies what has not been written and lets the writer go on. It
// does not wait for the peer.
func (d *initiator) ownBatch() {
	if err := d.writer.interrupt(); err != nil {
		d.tx.busy = false
		d.fail(err)
		return
	}
	if len(d.tx.b.rest) > 0 {
		d.tx.b.own()
	}
	d.writer.start() // also if nothing is left: it then comes back at once and is reaped as always
}

// direct implements role: Data-In goes to its task's buffers.
func (d *initiator) direct(bhs *[iscsi.BHSSize]byte, n uint32) (bool, error) {
	if iscsi.OpcodeOf(bhs) != iscsi.OpDataIn {
		return false, nil
	}
	p := &d.in
	if err := p.Parse(bhs); err != nil {
		return false, err
	}
	t := d.tasks.find(p.ITT)
	if t == nil {
		return false, d.wrong("no such task")
	}
	// PDUs come in order and without gaps: we never agree to anything else (RFC 7143, 13.18, 13.19).
	// A PDU without data is only looked at for its status.
	if n > 0 && p.Offset != t.DM.Offset {
		return false, d.wrong("offset %d, expected %d", p.Offset, t.DM.Offset)
	}
	if p.DataSN != t.DM.SN {
		return false, d.wrong("DataSN %d, expected %d", p.DataSN, t.DM.SN)
	}
	room := t.DM.End
	if t.DM.Flags&flagDetached != 0 {
		room = t.EDTL // goes nowhere
	}
	if uint64(t.DM.Offset)+uint64(n) > uint64(room) {
		return false, d.wrong("%d bytes at %d, there is room for %d", n, t.DM.Offset, room)
	}
	d.rx.t, d.rx.dst = t, cursor{bufs: t.DM.Bufs, off: int(t.DM.Tag)}
	return true, nil
}

// wrong is an error about the Data-In in d.in.
func (d *initiator) wrong(format string, args ...any) error {
	return &ProtocolError{iscsi.OpDataIn, d.in.ITT, fmt.Sprintf(format, args...)}
}

// placed implements role: a Data-In with status becomes the SCSI Response it stands for.
func (d *initiator) placed(ev *iscsi.Event) (bool, error) {
	t := d.rx.t
	if t == nil {
		return false, nil // forgotten while it came in
	}
	p := &d.in
	t.DM.SN++
	t.DM.Offset += p.DataLength
	t.DM.Bufs, t.DM.Tag = d.rx.dst.bufs, uint32(d.rx.dst.off)
	if !p.HasStatus {
		return false, nil
	}
	*ev = iscsi.Event{Kind: iscsi.EventPDU, Transfer: t, BHS: d.response(p, t.DM.SN)}
	d.end(t)
	return true, nil
}

// response makes the SCSI Response that a Data-In with status stands for (RFC 7143, 11.7.3).
func (d *initiator) response(p *iscsi.DataIn, sn uint32) *[iscsi.BHSSize]byte {
	if d.synth == nil || d.synths == synthSize {
		d.synth, d.synths = new([synthSize][iscsi.BHSSize]byte), 0
	}
	bhs := &d.synth[d.synths]
	d.synths++
	r := iscsi.SCSIResponse{
		Overflow: p.Overflow, Underflow: p.Underflow,
		Status:    p.Status,
		ITT:       p.ITT,
		StatSN:    p.StatSN,
		ExpCmdSN:  p.ExpCmdSN,
		MaxCmdSN:  p.MaxCmdSN,
		ExpDataSN: sn,
		Residual:  p.Residual,
	}
	r.Put(bhs)
	return bhs
}

// arrived implements role: R2Ts are ours, responses end tasks.
func (d *initiator) arrived(ev *iscsi.Event) (bool, error) {
	switch iscsi.OpcodeOf(ev.BHS) {
	case iscsi.OpR2T:
		var p iscsi.R2T
		if err := p.Parse(ev.BHS); err != nil {
			return false, err
		}
		return false, d.takeR2T(&p)
	case iscsi.OpSCSIResponse:
		if t := d.tasks.find(iscsi.ITTOf(ev.BHS)); t != nil {
			ev.Transfer = t
			d.end(t)
		}
	}
	return true, nil
}

// takeR2T checks an R2T and queues its answer.
func (d *initiator) takeR2T(p *iscsi.R2T) error {
	wrong := func(format string, args ...any) error {
		return &ProtocolError{iscsi.OpR2T, p.ITT, fmt.Sprintf(format, args...)}
	}
	t := d.tasks.find(p.ITT)
	if t == nil {
		return wrong("no such task")
	}
	end := uint64(p.Offset) + uint64(p.Length)
	switch {
	case p.TTT == iscsi.ReservedTag:
		return wrong("reserved TTT")
	case p.R2TSN != t.DM.SN:
		return wrong("R2TSN %d, expected %d", p.R2TSN, t.DM.SN)
	case p.Length == 0 || p.Length > d.p.MaxBurstLength:
		return wrong("length %d, MaxBurstLength is %d", p.Length, d.p.MaxBurstLength)
	case end > uint64(t.EDTL):
		return wrong("bytes up to %d, the task has %d", end, t.EDTL)
	case t.DM.Words[wordOpen] >= uint64(d.p.MaxOutstandingR2T):
		return wrong("more than %d at the same time", d.p.MaxOutstandingR2T)
	}
	t.DM.SN++
	if t.DM.Flags&flagDetached != 0 {
		return nil // there is no data any more, and the task is being aborted
	}
	if end > total(t.Out) {
		return wrong("bytes up to %d, the command has %d", end, total(t.Out))
	}
	t.DM.Words[wordOpen]++
	d.sendOut(t, p.Offset, p.Offset+p.Length, p.TTT)
	return nil
}

// died implements role: every task ends.
func (d *initiator) died() { d.tasks.each(d.end) }
