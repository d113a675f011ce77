package scsi

// Bits of byte 1 of WRITE SAME (SBC-3). ANCHOR is refused by the usage map: ANC_SUP is 0.
const (
	writeSameUnmap = 0x08
	writeSameNDOB  = 0x01 // no Data-Out: zeros; WRITE SAME(16) only
)

// prepareWriteSame checks WRITE SAME(10) and (16). A number of 0 blocks means all up to the end (WSNZ is
// 0), if the limit allows so many.
func prepareWriteSame(_ *Device, t *Task) error {
	lu := t.lu
	if err := lu.writable(); err != nil {
		return err
	}
	if t.CDB[1]&writeSameUnmap != 0 && !lu.provisioned() {
		return invalidField(1, 3)
	}
	e := parseExtent(t.CDB)
	if capacity := lu.capacity.Load(); e.blocks == 0 {
		if e.lba >= capacity {
			return errOutOfRange
		}
		e.blocks = capacity - e.lba
	}
	if err := t.takeExtent(e, lu.maxWriteSame()); err != nil {
		return err
	}
	t.fua = false // that bit is UNMAP here
	t.MayBlock = t.MayBlock || t.blocks*lu.blockSize > loopBytes
	if t.noDataOut() {
		return t.wantOut(0)
	}
	return t.prepareExactly(lu.blockSize, errDataLength)
}

// noDataOut: NDOB is set. In WRITE SAME(10) that bit is obsolete, and refused.
func (t *Task) noDataOut() bool { return t.CDB[1]&writeSameNDOB != 0 }

func executeWriteSame(t *Task) error {
	n := t.blocks * t.lu.blockSize
	var err error
	switch unmap := t.CDB[1]&writeSameUnmap != 0; {
	// UNMAP lets the store give the space back, which is right only for zeros, since that is what is read
	// then (SBC-3, WRITE SAME, UNMAP bit; LBPRZ is 1).
	case !t.noDataOut() && !allZero(t.Out):
		err = t.lu.fill(t.lba, n, t.Out)
	case t.lu.zeroer != nil:
		err = t.lu.zeroer.WriteZeroes(t.offset(), int64(n), unmap, false)
	case unmap:
		err = t.lu.unmapper.Unmap(t.offset(), int64(n))
	default:
		err = t.lu.fill(t.lba, n, nil)
	}
	if err != nil {
		return writeError(err, t.lba)
	}
	t.lu.writtenBytes.Add(n)
	return nil
}

func allZero(bufs [][]byte) bool {
	for _, b := range bufs {
		for _, c := range b {
			if c != 0 {
				return false
			}
		}
	}
	return true
}

// patternChunk is how many bytes of a pattern are made, and patternWrite how many go in one write. Both are
// multiples of every block size.
const (
	patternChunk = 64 << 10
	patternWrite = 1 << 20
)

// fill writes n bytes from lba on, whole blocks, with a block (nil: zeros), over and over.
func (lu *LogicalUnit) fill(lba, n uint64, block [][]byte) error {
	chunk := make([]byte, min(n, patternChunk))
	for at := chunk; len(block) > 0 && len(at) > 0; {
		for _, b := range block {
			at = at[copy(at, b):]
		}
	}
	bufs := make([][]byte, 0, patternWrite/patternChunk)
	for done := uint64(0); done < n; {
		bufs = bufs[:0]
		for left := min(n-done, patternWrite); left > 0; left -= min(left, patternChunk) {
			bufs = append(bufs, chunk[:min(left, patternChunk)])
		}
		if err := lu.store.WriteAt(bufs, int64(lba*lu.blockSize+done), false); err != nil {
			return err
		}
		done += length(bufs)
	}
	return nil
}
