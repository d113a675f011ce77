package initiator

import (
	"context"
	"encoding/binary"
)

// limits are a unit's own, of its Block Limits page (SBC-3, 6.5.3). Counts are of blocks.
type limits struct {
	compare   uint64 // of COMPARE AND WRITE; 0: not supported
	unmap     uint64 // of UNMAP; 0: not supported
	writeSame uint64 // of WRITE SAME; 0: none is told
}

const (
	blockLimitsLen   = 64
	maxWriteSame     = 32 << 20 // bytes of one WRITE SAME, so that a slow disk ends it within CommandTimeout
	maxUnmapOneBytes = 1 << 30  // bytes of one UNMAP, for the same reason
)

// readLimits heeds the Block Limits page. Units without the page have no limits, and take nothing but reads, writes
// and perhaps WRITE SAME.
func (d *Disk) readLimits(ctx context.Context) error {
	b, err := d.s.Inquiry(ctx, d.lun, true, pageBlockLimit)
	if isStatus(err) {
		return nil
	}
	if err != nil {
		return err
	}
	page := make([]byte, blockLimitsLen) // older pages are shorter: what they lack is 0
	copy(page, b)
	be := binary.BigEndian
	if most := be.Uint32(page[8:]); most != 0 && uint64(most) < uint64(d.piece/d.blockSize) {
		d.piece = int(most) * d.blockSize
	}
	d.limits = limits{
		compare:   uint64(page[5]),
		unmap:     uint64(be.Uint32(page[20:])),
		writeSame: be.Uint64(page[36:]),
	}
	if be.Uint32(page[24:]) == 0 {
		d.limits.unmap = 0 // no descriptor is taken
	}
	return nil
}
