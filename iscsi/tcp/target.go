package tcp

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/goiser/goiser/iscsi"
)

// maxOpenR2T bounds a task's R2Ts in flight, whatever was negotiated.
const maxOpenR2T = 8

// A target is the target's end of a connection.
type target struct {
	conn
	r2ts r2tTable
	open *r2tSlot // whose Data-Out is coming in, nil if it is dropped
	got  iscsi.DataOut
}

// NewTarget makes the target's end of a connection of any kind (tests use net.Pipe).
func NewTarget(c net.Conn) iscsi.TargetDatamover {
	d := &target{}
	d.init(c, d)
	return d
}

// CanPut and CanGet implement iscsi.TargetDatamover: data travels in PDUs and needs no memory to be named.
func (d *target) CanPut(*iscsi.Transfer) bool { return true }
func (d *target) CanGet(*iscsi.Transfer) bool { return true }

// PutData implements iscsi.TargetDatamover.
func (d *target) PutData(t *iscsi.Transfer, bufs [][]byte, off uint32) {
	n := total(bufs)
	if d.err != nil || n == 0 {
		return
	}
	it := d.tx.push(itemDataIn, t)
	it.src, it.off, it.end = cursor{bufs: bufs}, off, off+uint32(n)
}

// GetData implements iscsi.TargetDatamover.
func (d *target) GetData(t *iscsi.Transfer, bufs [][]byte, off uint32) {
	if d.err != nil {
		return
	}
	if t.DM.Flags&flagGetting != 0 {
		panic(fmt.Sprintf("iscsi over tcp: second GetData for task %#x", t.ITT))
	}
	t.DM.Flags |= flagGetting
	t.DM.Bufs, t.DM.Offset, t.DM.End = bufs, off, off+uint32(total(bufs))
	t.DM.Words[wordStart], t.DM.Words[wordGot] = uint64(off), 0
	d.ask(t)
	d.checkGot(t)
}

// ask sends R2Ts for what has not been asked for yet, as many as may be open (RFC 7143, 11.8).
func (d *target) ask(t *iscsi.Transfer) {
	limit := uint64(min(d.p.MaxOutstandingR2T, maxOpenR2T))
	for t.DM.Offset < t.DM.End && t.DM.Words[wordOpen] < limit {
		n := min(t.DM.End-t.DM.Offset, d.p.MaxBurstLength)
		dst := seek(t.DM.Bufs, t.DM.Offset-uint32(t.DM.Words[wordStart]))
		p := iscsi.R2T{
			LUN:      t.LUN,
			ITT:      t.ITT,
			TTT:      d.r2ts.open(t, dst, t.DM.Offset, t.DM.Offset+n),
			StatSN:   d.seq.StatSN,
			ExpCmdSN: d.seq.ExpCmdSN,
			MaxCmdSN: d.seq.MaxCmdSN,
			R2TSN:    t.DM.SN,
			Offset:   t.DM.Offset,
			Length:   n,
		}
		t.DM.SN++
		t.DM.Offset += n
		t.DM.Words[wordOpen]++
		var bhs [iscsi.BHSSize]byte
		p.Put(&bhs)
		d.queuePDU(t, &bhs, nil)
	}
}

// checkGot tells the engine when all of a GetData has come.
func (d *target) checkGot(t *iscsi.Transfer) {
	if start := uint32(t.DM.Words[wordStart]); uint32(t.DM.Words[wordGot]) == t.DM.End-start {
		t.DM.Flags &^= flagGetting
		t.DM.Bufs = nil
		d.due = append(d.due, happening{iscsi.EventGot, t})
	}
}

// Respond implements iscsi.TargetDatamover.
func (d *target) Respond(t *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, data []byte) {
	d.abandon(t)
	if d.err == nil {
		if it := d.tx.tail(); it != nil && it.kind == itemDataIn && it.t == t && mergeable(bhs, data) {
			it.status, it.bhs = true, *bhs
		} else {
			d.queuePDU(t, bhs, data)
		}
	}
	d.finish(t)
}

// Abort implements iscsi.TargetDatamover.
func (d *target) Abort(t *iscsi.Transfer) {
	if t.DM.Flags&flagFinished != 0 {
		return // Respond came first: its PDU has a StatSN and must leave
	}
	d.abandon(t)
	d.tx.cut(&d.conn, t, func(*item) bool { return false })
	d.finish(t)
}

// abandon ends a GetData: what still comes for it is dropped without a word.
func (d *target) abandon(t *iscsi.Transfer) {
	if t.DM.Words[wordOpen] > 0 {
		d.r2ts.abandon(t)
		t.DM.Words[wordOpen] = 0
	}
	if d.rx.t == t {
		d.rx.forget(t)
		d.open = nil
	}
	t.DM.Bufs = nil
	t.DM.Flags &^= flagGetting
}

// mergeable says whether a response can ride on the last Data-In: GOOD, without sense or anything of the
// write direction of a bidirectional command, for which Data-In has no fields (RFC 7143, 11.7.3).
func mergeable(bhs *[iscsi.BHSSize]byte, data []byte) bool {
	if iscsi.OpcodeOf(bhs) != iscsi.OpSCSIResponse || len(data) > 0 {
		return false
	}
	var p iscsi.SCSIResponse
	return p.Parse(bhs) == nil && p.Response == 0 && p.Status == 0 && !p.BidiOverflow && !p.BidiUnderflow
}

// mergeStatus puts a response into the last Data-In.
func mergeStatus(p *iscsi.DataIn, bhs *[iscsi.BHSSize]byte) {
	var r iscsi.SCSIResponse
	_ = r.Parse(bhs) // it was mergeable
	p.HasStatus = true
	p.Status, p.Residual = r.Status, r.Residual
	p.Overflow, p.Underflow = r.Overflow, r.Underflow
	p.StatSN = r.StatSN
}

// putExpDataSN sets how many Data-In and R2T PDUs the task has had, which only we know. It stays zero if the
// command was not completed at the target (RFC 7143, 11.4.8).
func putExpDataSN(bhs *[iscsi.BHSSize]byte, sn uint32) {
	if bhs[2] == 0 {
		binary.BigEndian.PutUint32(bhs[36:], sn)
	}
}

// direct implements role: a Data-Out that answers an R2T. The LUN field is not looked at: the task knows its
// unit, and some initiators send all ones.
func (d *target) direct(bhs *[iscsi.BHSSize]byte, n uint32) (bool, error) {
	if iscsi.OpcodeOf(bhs) != iscsi.OpDataOut {
		return false, nil
	}
	p := &d.got
	if err := p.Parse(bhs); err != nil {
		return false, err
	}
	if p.TTT == iscsi.ReservedTag {
		return false, nil
	}
	slot, stale := d.r2ts.find(p.TTT)
	d.open = slot
	if slot == nil {
		if !stale {
			return false, d.wrong("unknown TTT %#x", p.TTT)
		}
		d.rx.t, d.rx.dst = nil, cursor{}
		return true, nil
	}
	left := slot.end - slot.next
	switch {
	case p.ITT != slot.t.ITT:
		return false, d.wrong("TTT %#x belongs to task %#x", p.TTT, slot.t.ITT)
	case p.DataSN != slot.sn:
		return false, d.wrong("DataSN %d, expected %d", p.DataSN, slot.sn)
	case p.Offset != slot.next:
		return false, d.wrong("offset %d, expected %d", p.Offset, slot.next)
	case n > left:
		return false, d.wrong("%d bytes, but the R2T has %d left", n, left)
	case p.Final != (n == left):
		return false, d.wrong("F=%v with %d of %d bytes", p.Final, n, left)
	}
	d.rx.t, d.rx.dst = slot.t, slot.dst
	return true, nil
}

// wrong is an error about the Data-Out in got.
func (d *target) wrong(format string, args ...any) error {
	return &ProtocolError{iscsi.OpDataOut, d.got.ITT, fmt.Sprintf(format, args...)}
}

// placed implements role.
func (d *target) placed(*iscsi.Event) (bool, error) {
	slot := d.open
	d.open = nil
	if slot == nil {
		return false, nil
	}
	t, n := slot.t, d.got.DataLength
	slot.dst = d.rx.dst
	slot.next += n
	slot.sn++
	t.DM.Words[wordGot] += uint64(n)
	if d.got.Final {
		d.r2ts.close(d.got.TTT)
		t.DM.Words[wordOpen]--
		d.ask(t)
		d.checkGot(t)
	}
	return false, nil
}

// arrived implements role: all else is the engine's.
func (d *target) arrived(*iscsi.Event) (bool, error) { return true, nil }

// died implements role. Transfers that have not been answered stay until the engine aborts them.
func (d *target) died() {}
