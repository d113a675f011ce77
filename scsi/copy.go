package scsi

import (
	"encoding/binary"
	"errors"

	"github.com/goiser/goiser/backstore"
)

// EXTENDED COPY(LID1) (SPC-4, 5.17 and 6.4) copies blocks between units of this device, or within one, as
// hypervisors ask for when they clone disks. Each unit has a copy manager, which is this one.
//
//   - Sources and destinations are looked for among the units that the nexus sees, and no others (case SE-08);
//     reservations of others on them count as for a read and a write. All of it is checked, for every segment,
//     before the first block is copied, and the reservations again with each chunk: whoever has been preempted
//     copies no more, be the command one of another unit (SPC-4, 5.12.11.2.6).
//   - Units taking part are held until the copy has ended, so that none is taken away meanwhile.
//   - It copies in chunks. For each it enters the gate of the source, leaves it, and then that of the
//     destination: never two at a time, and nobody waits longer than for a chunk. So a COMPARE AND WRITE
//     comes before or after a chunk, and the copy as a whole is no more atomic than a host that reads and
//     writes.
//   - Between chunks it looks whether it has been told to stop (Task.Stop).
//   - What overlaps within one store is copied from the end that is not written first, so that the
//     destination gets what the source held.
//   - What the source does not have (backstore.Extenter) becomes zeros in the destination, without space
//     where the destination can do so.
const (
	// copyChunk is how many bytes are read and written at a time, and all the memory that a copy takes. It is a
	// multiple of every block size.
	copyChunk = 1 << 20
	// maxCopies is how many copies one device does at a time; others are told BUSY.
	maxCopies = 16
)

// A copyEnd is a place in a unit, in bytes.
type copyEnd struct {
	lu  *LogicalUnit
	off uint64
}

// A copySegment is what one segment descriptor asks for.
type copySegment struct {
	from, to copyEnd
	n        uint64 // bytes
}

// prepareExtendedCopy wants the parameter list. An empty one is no error (SPC-4, 6.4.1).
func prepareExtendedCopy(_ *Device, t *Task) error {
	n := binary.BigEndian.Uint32(t.CDB[10:])
	if n == 0 {
		t.Done = true
		return t.wantOut(0)
	}
	if n < copyHeaderLen || n > copyHeaderLen+maxCopyDescriptors {
		return errListLength
	}
	t.MayBlock = true // whatever the stores are: it takes long
	return t.wantList(uint64(n), errListLength)
}

// executeExtendedCopy carries it out.
func executeExtendedCopy(t *Task) error {
	d := t.lu.device
	if d.copies.Add(1) > maxCopies {
		d.copies.Add(-1)
		return errBusy
	}
	defer d.copies.Add(-1)
	list, err := parseCopyList(t.list())
	if err != nil {
		return err
	}
	c := copier{t: t}
	defer c.release()
	if c.progress, err = t.Nexus.copies.begin(t.lu, list); err != nil {
		return err
	}
	err = c.run(list)
	c.progress.end(err)
	return err
}

// A copier does one EXTENDED COPY command.
type copier struct {
	t        *Task
	held     []*LogicalUnit
	progress *copyProgress
	chunk    []byte
}

func (c *copier) release() {
	for _, lu := range c.held {
		lu.release()
	}
}

func (c *copier) run(list *copyList) error {
	units, err := c.resolve(list)
	if err != nil {
		return err
	}
	segments := make([]copySegment, len(list.segments))
	for i := range list.segments {
		if segments[i], err = c.plan(&list.segments[i], units); err != nil {
			return copyFailed(err, i)
		}
	}
	for i := range segments {
		if err := c.copy(&segments[i]); err != nil {
			return copyFailed(err, i)
		}
		c.progress.segments.Add(1)
	}
	return nil
}

// resolve finds and holds the units of the CSCD descriptors. One that is not found is nil: that is an error
// only if a segment names it.
func (c *copier) resolve(list *copyList) ([]*LogicalUnit, error) {
	units := make([]*LogicalUnit, len(list.ends))
	for i := range list.ends {
		lu := c.find(&list.ends[i])
		if lu == nil {
			continue
		}
		if n := list.ends[i].blockSize; n != 0 && n != lu.blockSize {
			return nil, invalidParameter(copyHeaderLen+i*cscdLen+cscdBlockLength, 7)
		}
		units[i] = lu
	}
	return units, nil
}

// find looks for the unit with a designator among those that the nexus sees.
func (c *copier) find(e *cscd) *LogicalUnit {
	for _, lu := range *c.t.lu.device.units.Load() {
		if lu == nil || !c.t.Nexus.mask.sees(lu.number) || !e.names(lu) {
			continue
		}
		if !lu.hold() {
			return nil // it is being removed
		}
		c.held = append(c.held, lu)
		return lu
	}
	return nil
}

// plan checks a segment and finds its ends.
func (c *copier) plan(d *segment, units []*LogicalUnit) (s copySegment, err error) {
	from, err := c.end(d.from, units, accessRead)
	if err != nil {
		return s, err
	}
	to, err := c.end(d.to, units, accessWrite)
	if err != nil {
		return s, err
	}
	n := d.bytes
	if !d.offsets {
		unit := from.blockSize
		if d.countsTo {
			unit = to.blockSize
		}
		n = d.blocks * unit
		if n%from.blockSize != 0 || n%to.blockSize != 0 {
			return s, errInexactSegment
		}
	}
	if n > maxCopySegment || d.fromOffset >= from.blockSize || d.toOffset >= to.blockSize {
		return s, errCopyList
	}
	if n%copyGranularity != 0 {
		return s, errInexactSegment
	}
	if !from.copyable(d.fromLBA, d.fromOffset, n) || !to.copyable(d.toLBA, d.toOffset, n) {
		return s, errCopyUnreachable
	}
	return copySegment{
		from: copyEnd{from, d.fromLBA*from.blockSize + d.fromOffset},
		to:   copyEnd{to, d.toLBA*to.blockSize + d.toOffset}, n: n,
	}, nil
}

// end is the unit that a segment names, if the nexus may use it so.
func (c *copier) end(id uint16, units []*LogicalUnit, a access) (*LogicalUnit, error) {
	lu := c.t.lu
	if id != cscdThisUnit {
		if int(id) >= len(units) {
			return nil, errCopyNoEnd
		}
		lu = units[id]
	}
	switch {
	case lu == nil:
		return nil, errCopyUnreachable
	case lu.stopped.Load(), lu.conflict(c.t.Nexus, a, nil), lu.reachable(c.t.Nexus.relativePort, c.t.op) != nil, a == accessWrite && lu.writable() != nil:
		return nil, errCopyDevice
	}
	return lu, nil
}

// copyable reports whether n bytes from a byte of a block on are there. Segments are small, so the sum
// cannot wrap.
func (lu *LogicalUnit) copyable(lba, offset, n uint64) bool {
	return lu.inRange(lba, (offset+n+lu.blockSize-1)/lu.blockSize)
}

// copy copies a segment.
func (c *copier) copy(s *copySegment) error {
	// Where the destination begins inside the source, going forward would write what is still to be read.
	same := s.from.lu.store == s.to.lu.store
	overlaps := same && s.from.off < s.to.off+s.n && s.to.off < s.from.off+s.n
	backward := overlaps && s.from.off < s.to.off
	for done := uint64(0); done < s.n; {
		if c.t.stopped() {
			return errCopyDevice // nobody is told: the task has been aborted
		}
		n := min(copyChunk, s.n-done)
		at := done
		if backward {
			at = s.n - done - n
		}
		from, to := s.from.at(at), s.to.at(at)
		var err error
		if hole := from.hole(n); hole > 0 && to.lu.zeroer != nil && !overlaps {
			n = hole
			err = c.zero(to, n)
		} else {
			err = c.move(from, to, n)
		}
		if err != nil {
			return copyError(err)
		}
		done += n
		c.progress.bytes.Add(n)
	}
	return nil
}

// copyError is the condition that a chunk's error makes. A full store is told as to any other write (SBC-3,
// 4.7.3), and a unit that takes no block commands tells itself why.
func copyError(err error) error {
	var e *senseError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, backstore.ErrNoSpace):
		return errNoSpace
	}
	return errCopyDevice
}

// move copies one chunk.
func (c *copier) move(from, to copyEnd, n uint64) error {
	if c.chunk == nil {
		c.chunk = make([]byte, copyChunk)
	}
	p := [][]byte{c.chunk[:n]}
	if err := c.through(from, n, accessRead, func() error { return from.lu.store.ReadAt(p, int64(from.off)) }); err != nil {
		return err
	}
	from.lu.readBytes.Add(n)
	if err := c.through(to, n, accessWrite, func() error { return to.lu.store.WriteAt(p, int64(to.off), false) }); err != nil {
		return err
	}
	to.lu.writtenBytes.Add(n)
	return nil
}

func (e copyEnd) at(off uint64) copyEnd { return copyEnd{e.lu, e.off + off} }

// through does something to the blocks that n bytes lie in, inside the unit's gate, unless somebody else has
// reserved them meanwhile.
func (c *copier) through(e copyEnd, n uint64, a access, do func() error) error {
	e.lu.copying.RLock()
	defer e.lu.copying.RUnlock()
	if e.lu.conflict(c.t.Nexus, a, nil) {
		return errCopyDevice
	}
	first, last := e.off/e.lu.blockSize, (e.off+n-1)/e.lu.blockSize
	return e.lu.through(first, last-first+1, do)
}

// waitForCopies returns when the chunks that copies read or write now are done. Those that come later find the
// reservations of this moment.
func (lu *LogicalUnit) waitForCopies() {
	lu.copying.Lock()
	defer lu.copying.Unlock()
}

// hole is how many bytes, up to n, the store does not have from here on.
func (e copyEnd) hole(n uint64) uint64 {
	x := e.lu.extenter
	if x == nil {
		return 0
	}
	if allocated, length, err := x.Extent(int64(e.off), int64(n)); err == nil && !allocated {
		return uint64(length)
	}
	return 0
}

// zero makes n bytes zeros, without space if the unit is thin.
func (c *copier) zero(e copyEnd, n uint64) error {
	return c.through(e, n, accessWrite, func() error {
		return e.lu.zeroer.WriteZeroes(int64(e.off), int64(n), e.lu.provisioned(), false)
	})
}

// Conditions of EXTENDED COPY (SPC-4, 5.17.7 and annex D).
var (
	errTooManyEnds     = &senseError{key: keyIllegalRequest, asc: 0x26, ascq: 0x06} // TOO MANY TARGET DESCRIPTORS
	errEndType         = &senseError{key: keyIllegalRequest, asc: 0x26, ascq: 0x07} // UNSUPPORTED TARGET DESCRIPTOR TYPE CODE
	errTooManySegments = &senseError{key: keyIllegalRequest, asc: 0x26, ascq: 0x08} // TOO MANY SEGMENT DESCRIPTORS
	errSegmentType     = &senseError{key: keyIllegalRequest, asc: 0x26, ascq: 0x09} // UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE
	errInlineData      = &senseError{key: keyIllegalRequest, asc: 0x26, ascq: 0x0b} // INLINE DATA LENGTH EXCEEDED
	errCopyList        = &senseError{key: keyIllegalRequest, asc: 0x26}             // INVALID FIELD IN PARAMETER LIST
	errCopyInProgress  = &senseError{key: keyIllegalRequest, asc: 0x00, ascq: 0x16} // OPERATION IN PROGRESS

	errInexactSegment  = &senseError{key: keyCopyAborted, asc: 0x26, ascq: 0x0a} // UNEXPECTED INEXACT SEGMENT
	errCopyNoEnd       = &senseError{key: keyCopyAborted, asc: 0x08, ascq: 0x04} // UNREACHABLE COPY TARGET
	errCopyDevice      = &senseError{key: keyCopyAborted, asc: 0x0d, ascq: 0x01} // THIRD PARTY DEVICE FAILURE
	errCopyUnreachable = &senseError{key: keyCopyAborted, asc: 0x0d, ascq: 0x02} // COPY TARGET DEVICE NOT REACHABLE
	errCopyKind        = &senseError{key: keyCopyAborted, asc: 0x0d, ascq: 0x03} // INCORRECT COPY TARGET DEVICE TYPE
)

// copyFailed adds the number of the segment, which COMMAND-SPECIFIC INFORMATION has in its last two bytes
// (SPC-4, 5.17.7.4).
func copyFailed(err error, segment int) error {
	var e *senseError
	if !errors.As(err, &e) || e.key != keyCopyAborted {
		return err
	}
	told := *e
	told.commandSpecific, told.hasCommandSpecific = uint32(segment), true
	return &told
}
