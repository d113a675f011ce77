package scsi

// maxCompareAndWrite is the most that the one byte of NUMBER OF LOGICAL BLOCKS can say (SBC-3, 5.2).
const maxCompareAndWrite = 255

// numberOfBlocks is the byte of that field.
const numberOfBlocks = 13

// maxCompare is MAXIMUM COMPARE AND WRITE LENGTH, in blocks: Data-Out has twice as many.
func (lu *LogicalUnit) maxCompare() uint64 { return min(maxCompareAndWrite, lu.maxBlocks/2) }

// prepareExactly checks a command that makes sense only with all of its Data-Out and nothing else: to do
// the part that EDTL leaves would be another command than the one asked for. wrong is what it gets
// otherwise.
func (t *Task) prepareExactly(need uint64, wrong error) error {
	if err := t.wantOut(need); err != nil {
		return err
	}
	if uint64(t.edtl) != need || need > 0 && !t.Write {
		return wrong
	}
	t.Done = need == 0
	return nil
}

// prepareCompareAndWrite checks SBC-3, 5.2. Data-Out has the blocks to compare with, then those to write. One
// of another size contradicts the number of blocks, also if that is 0, which else is no error: a number above
// 255, cut to a byte, would pass for it.
func prepareCompareAndWrite(_ *Device, t *Task) error {
	if err := t.lu.writable(); err != nil {
		return err
	}
	e := parseExtent(t.CDB)
	e.blocks, e.lengthField = uint64(t.CDB[numberOfBlocks]), numberOfBlocks
	if err := t.takeExtent(e, t.lu.maxCompare()); err != nil {
		return err
	}
	return t.prepareExactly(2*t.blocks*t.lu.blockSize, invalidField(numberOfBlocks, 7))
}

// executeCompareAndWrite runs alone. What it compares with is read once, so a store that fails in between
// is told of as such and nothing is written.
func executeCompareAndWrite(t *Task) error {
	n := t.blocks * t.lu.blockSize
	medium := make([]byte, n)
	if err := t.lu.store.ReadAt([][]byte{medium}, t.offset()); err != nil {
		return readError(err, t.lba)
	}
	c := cursor{bufs: t.Out}
	if at, equal := c.compare(medium); !equal {
		return miscompare(uint64(at)) // an offset in Data-Out, in bytes (SBC-3, 5.2)
	}
	if err := t.lu.store.WriteAt(after(t.Out, n), t.offset(), t.fua); err != nil {
		return writeError(err, t.lba)
	}
	t.lu.writtenBytes.Add(n)
	return nil
}

// after is what follows the first n bytes of a list of buffers.
func after(bufs [][]byte, n uint64) [][]byte {
	for i, b := range bufs {
		if n < uint64(len(b)) {
			return append([][]byte{b[n:]}, bufs[i+1:]...)
		}
		n -= uint64(len(b))
	}
	return nil
}

// executeOrWrite sets the bits that Data-Out has set, alone (SBC-3, ORWRITE(16)).
func executeOrWrite(t *Task) error {
	medium := make([]byte, t.OutLen)
	if err := t.lu.store.ReadAt([][]byte{medium}, t.offset()); err != nil {
		return readError(err, t.lba)
	}
	at := medium
	for _, b := range t.Out {
		for i, bits := range b {
			at[i] |= bits
		}
		at = at[len(b):]
	}
	if err := t.lu.store.WriteAt([][]byte{medium}, t.offset(), t.fua); err != nil {
		return writeError(err, t.lba)
	}
	t.lu.readBytes.Add(uint64(t.OutLen))
	t.lu.writtenBytes.Add(uint64(t.OutLen))
	return nil
}
