package scsi

import "encoding/binary"

// atomicLimits is what WRITE ATOMIC(16) takes, in blocks (SBC-4, Block Limits page). unit is both ATOMIC
// ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY: what a store finds whole after a crash is aligned to its
// own size. A store that keeps nothing has no crash to show a half of, and any extent will do.
type atomicLimits struct{ most, unit uint64 }

func (lu *LogicalUnit) setAtomicLimits(bytes int, volatile bool) {
	most := uint64(max(bytes, 0)) / lu.blockSize
	if volatile {
		lu.atomic = atomicLimits{min(most, lu.maxBlocks), 1}
		return
	}
	if most > 0 && most <= lu.maxBlocks {
		lu.atomic = atomicLimits{most, most}
	}
}

// writesAtomic: WRITE ATOMIC is offered, since the store keeps a write whole in a crash. That others see it
// whole is the gate's part.
func (lu *LogicalUnit) writesAtomic() bool { return lu.atomic.most > 0 }

// prepareWriteAtomic checks SBC-4, WRITE ATOMIC(16). The ATOMIC BOUNDARY must be 0: MAXIMUM ATOMIC BOUNDARY
// SIZE is.
func prepareWriteAtomic(_ *Device, t *Task) error {
	if err := t.lu.writable(); err != nil {
		return err
	}
	e := parseExtent(t.CDB)
	e.blocks, e.lengthField = uint64(binary.BigEndian.Uint16(t.CDB[12:])), 12
	if err := t.takeExtent(e, t.lu.atomic.most); err != nil {
		return err
	}
	switch unit := t.lu.atomic.unit; {
	case t.lba%unit != 0:
		return invalidField(2, 7)
	case t.blocks%unit != 0:
		return invalidField(12, 7)
	}
	return t.prepareExactly(t.blocks*t.lu.blockSize, errDataLength)
}
