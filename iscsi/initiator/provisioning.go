package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// Operation codes of what is not READ or WRITE (SBC-3).
const (
	opUnmap           = 0x42
	opWriteSame16     = 0x93
	opCompareAndWrite = 0x89
)

const (
	ascInvalidOpcode = 0x20
	ascInvalidField  = 0x24
)

// provisioned are LBPME and LBPRZ of READ CAPACITY (16) (SBC-3, 5.16.2): the unit manages provisioning, and unmapped
// blocks read as zeros.
const provisioned = 0xc0

// CanUnmap reports whether the unit takes UNMAP.
func (d *Disk) CanUnmap() bool { return d.limits.unmap != 0 }

// UnmapZeroes asks whether a block that is unmapped reads as zeros (LBPRZ). Where it does not, an unmapped block may read as
// anything, each time, until it is written. Whether Unmap unmaps a block remains the unit's affair. Errors are those of
// the session, or *StatusError.
func (d *Disk) UnmapZeroes(ctx context.Context) (bool, error) {
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[13] = opServiceActionIn16, actionReadCapacity16, 32
	var b []byte
	err := d.run(ctx, replayAlways, span{}, func(s *Session) (err error) {
		b, err = s.attentive(ctx, d.lun, d, cdb, 32)
		return err
	})
	if isIllegalRequest(err) { // a unit that does not know the command does not provision
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lun %s: read capacity: %w", d.lun, err)
	}
	return len(b) > 14 && b[14]&provisioned == provisioned, nil
}

// Unmap tells the unit that n bytes at off are not needed any more (SBC-3, 4.7.3). They are whole blocks. It is a hint:
// the blocks may read as zeros or as before, and keep their content where the unit unmaps in larger pieces. A unit that
// does not unmap is an error that wraps errors.ErrUnsupported. Unmapping is on stable storage after Flush.
func (d *Disk) Unmap(ctx context.Context, off, n int64) error {
	if err := d.checkRange(n, off); err != nil {
		return fmt.Errorf("lun %s: unmap: %w", d.lun, err)
	}
	if d.limits.unmap == 0 {
		return fmt.Errorf("lun %s: unmap: %w", d.lun, errors.ErrUnsupported)
	}
	most := min(d.limits.unmap, max(maxUnmapOneBytes/uint64(d.blockSize), 1))
	return d.inPieces(ctx, off, n, most, func(lba, blocks uint64) error {
		if err := d.unmapOne(ctx, lba, uint32(blocks)); err != nil {
			return fmt.Errorf("lun %s: unmap %d blocks at %d: %w", d.lun, blocks, lba, err)
		}
		return nil
	})
}

// inPieces calls do for the blocks of a range, at most most at a time, in order, with the range to itself.
func (d *Disk) inPieces(ctx context.Context, off, n int64, most uint64, do func(lba, blocks uint64) error) error {
	return d.alone(ctx, off, n, func() error {
		lba, left := uint64(off)/uint64(d.blockSize), uint64(n)/uint64(d.blockSize)
		for left > 0 {
			blocks := min(left, most)
			if err := do(lba, blocks); err != nil {
				return err
			}
			lba, left = lba+blocks, left-blocks
		}
		return nil
	})
}

// span are blocks in bytes.
func (d *Disk) span(lba, blocks uint64) span {
	return span{int64(lba) * int64(d.blockSize), int64(lba+blocks) * int64(d.blockSize)}
}

// unmapOne sends an UNMAP with one descriptor (SBC-3, 5.28).
func (d *Disk) unmapOne(ctx context.Context, lba uint64, blocks uint32) error {
	list := make([]byte, 24)
	binary.BigEndian.PutUint16(list, 22)
	binary.BigEndian.PutUint16(list[2:], 16)
	binary.BigEndian.PutUint64(list[8:], lba)
	binary.BigEndian.PutUint32(list[16:], blocks)
	return d.order(ctx, replayExclusive, d.span(lba, uint64(blocks)), []byte{opUnmap, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list)
}

// order is attentive for commands of a disk that have data for the unit, or none.
func (s *Session) order(ctx context.Context, d *Disk, cdb, out []byte) error {
	var again retry
	for {
		res, err := s.Do(ctx, Command{LUN: d.lun, CDB: cdb, Out: out})
		if err == nil {
			err = judge(&res, len(out), true)
		}
		if !again.after(ctx, s, d.lun, d, err) {
			return err
		}
	}
}

// WriteZeroes makes n bytes at off read as zeros. They are whole blocks. The unit does it by itself where it knows
// WRITE SAME; else zeros are sent.
func (d *Disk) WriteZeroes(ctx context.Context, off, n int64) error {
	if err := d.checkRange(n, off); err != nil {
		return fmt.Errorf("lun %s: write zeroes: %w", d.lun, err)
	}
	zeros := make([]byte, d.blockSize)
	most := max(maxWriteSame/uint64(d.blockSize), 1)
	if d.limits.writeSame != 0 {
		most = min(most, d.limits.writeSame)
	}
	return d.inPieces(ctx, off, n, most, func(lba, blocks uint64) error {
		err := d.writeSame(ctx, lba, uint32(blocks), zeros)
		if isNotOffered(err) {
			if len(zeros) < d.piece {
				zeros = make([]byte, d.piece)
			}
			return d.writeAll(ctx, zeros, lba, blocks)
		}
		if err != nil {
			return fmt.Errorf("lun %s: write zeroes to %d blocks at %d: %w", d.lun, blocks, lba, err)
		}
		return nil
	})
}

// WriteZeroesStable is WriteZeroes with the zeros on stable storage when it returns. WRITE SAME has no FUA bit, so that
// a SYNCHRONIZE CACHE of the unit follows (field report DC-15).
func (d *Disk) WriteZeroesStable(ctx context.Context, off, n int64) error {
	if err := d.WriteZeroes(ctx, off, n); err != nil {
		return err
	}
	return d.Flush(ctx)
}

// writeSame sends a WRITE SAME(16) of one block (SBC-3, 5.46). The UNMAP bit stays clear: who wants blocks unmapped
// says so.
func (d *Disk) writeSame(ctx context.Context, lba uint64, blocks uint32, block []byte) error {
	cdb := make([]byte, 16)
	cdb[0] = opWriteSame16
	binary.BigEndian.PutUint64(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[10:], blocks)
	return d.order(ctx, replayExclusive, d.span(lba, uint64(blocks)), cdb, block[:d.blockSize])
}

// writeAll writes the same piece of zeros again and again.
func (d *Disk) writeAll(ctx context.Context, zeros []byte, lba, blocks uint64) error {
	bs := int64(d.blockSize)
	for off, left := int64(lba)*bs, int64(blocks)*bs; left > 0; {
		n := min(left, int64(len(zeros)))
		if err := d.transfer(ctx, piece{p: zeros[:n], off: off, write: true}); err != nil {
			return err
		}
		off, left = off+n, left-n
	}
	return nil
}

// isNotOffered reports whether a unit does not do such a command at all. LIO knows WRITE SAME even of units that cannot
// do it, and then finds its length invalid: INVALID FIELD IN CDB.
func isNotOffered(err error) bool {
	st, ok := errors.AsType[*StatusError](err)
	return ok && st.Key == keyIllegalRequest && (st.ASC == ascInvalidOpcode || st.ASC == ascInvalidField)
}

// A MiscompareError ends a CompareAndWrite that found other bytes on the unit than it was told: nothing was written.
type MiscompareError struct {
	Offset int64 // bytes from the start of old to the first that differs; -1: the unit does not tell
	Err    *StatusError
}

func (e *MiscompareError) Error() string {
	if e.Offset < 0 {
		return "compare and write: other data is there"
	}
	return fmt.Sprintf("compare and write: other data is there, from byte %d on", e.Offset)
}

// Unwrap is the unit's status.
func (e *MiscompareError) Unwrap() error { return e.Err }

// CompareAndWrite writes now at off if old is there, in one step that no other command to the unit comes between
// (SBC-3, 5.2). Both are the same whole number of blocks. Where other data is there, the error is a *MiscompareError;
// a unit that cannot do it for so many blocks is an error that wraps errors.ErrUnsupported.
func (d *Disk) CompareAndWrite(ctx context.Context, old, now []byte, off int64) error {
	if err := d.compareAndWrite(ctx, old, now, off); err != nil {
		return fmt.Errorf("lun %s: %d bytes at %d: %w", d.lun, len(old), off, err)
	}
	return nil
}

func (d *Disk) compareAndWrite(ctx context.Context, old, now []byte, off int64) error {
	if len(old) != len(now) {
		return fmt.Errorf("compare %d bytes and write %d: want as many", len(old), len(now))
	}
	if err := d.checkRange(int64(len(old)), off); err != nil {
		return err
	}
	blocks := uint64(len(old) / d.blockSize)
	switch {
	case blocks == 0:
		return nil
	case blocks > d.limits.compare:
		return fmt.Errorf("compare and write of %d blocks, the unit takes %d: %w", blocks, d.limits.compare, errors.ErrUnsupported)
	}
	cdb := make([]byte, 16)
	cdb[0], cdb[13] = opCompareAndWrite, byte(blocks)
	binary.BigEndian.PutUint64(cdb[2:], uint64(off)/uint64(d.blockSize))
	both := append(append(make([]byte, 0, 2*len(old)), old...), now...)
	err := d.alone(ctx, off, int64(len(old)), func() error { return d.order(ctx, replayNever, span{off, off + int64(len(old))}, cdb, both) })
	if st, ok := errors.AsType[*StatusError](err); ok && st.Key == keyMiscompare {
		at := int64(-1)
		if info, ok := information(st.Sense); ok && info < uint64(len(old)) {
			at = int64(info)
		}
		return &MiscompareError{at, st}
	}
	return err
}
