package scsi

import "bytes"

// BYTCHK, bits 2 and 1 of byte 1 of VERIFY and WRITE AND VERIFY (SBC-3).
const (
	bytchkMask    = 0x06
	bytchkShift   = 1
	bytchkMedium  = 0 // the medium can be read
	bytchkCompare = 1 // the medium equals Data-Out
	bytchkBlock   = 3 // every block equals the one block of Data-Out
)

// verifyChunk is how much is read at a time to be verified, in bytes. It is a multiple of every block
// size.
const verifyChunk = 64 << 10

func bytchk(cdb []byte) byte { return cdb[1] & bytchkMask >> bytchkShift }

func prepareVerify(_ *Device, t *Task) error {
	if err := t.prepareExtent(); err != nil {
		return err
	}
	t.fua = false // that bit is reserved here
	if bytchk(t.CDB) != bytchkCompare && t.blocks*t.lu.blockSize > loopBytes {
		t.MayBlock = true
	}
	switch bytchk(t.CDB) {
	case bytchkMedium:
		t.Done = t.blocks == 0
		return t.wantOut(0)
	case bytchkCompare:
		return t.prepareOut(t.blocks * t.lu.blockSize)
	case bytchkBlock:
		return t.prepareOut(min(t.blocks, 1) * t.lu.blockSize)
	}
	return invalidField(1, 2)
}

func executeVerify(t *Task) error {
	switch bytchk(t.CDB) {
	case bytchkCompare:
		return t.verify(uint64(t.OutLen), t.Out)
	case bytchkBlock:
		return t.verify(t.blocks*t.lu.blockSize, t.Out)
	}
	return t.verify(t.blocks*t.lu.blockSize, nil)
}

func prepareWriteAndVerify(d *Device, t *Task) error {
	if b := bytchk(t.CDB); b != bytchkMedium && b != bytchkCompare {
		return invalidField(1, 2)
	}
	return prepareWrite(d, t)
}

func executeWriteAndVerify(t *Task) error {
	t.fua = true // what is verified is the medium, not a cache
	if err := executeWrite(t); err != nil {
		return err
	}
	if bytchk(t.CDB) == bytchkCompare {
		return t.verify(uint64(t.OutLen), t.Out)
	}
	return t.verify(uint64(t.OutLen), nil)
}

// verify reads n bytes from the task's extent, in whole blocks, and compares them with want, over and
// over if that is shorter; an empty want only reads.
func (t *Task) verify(n uint64, want [][]byte) error {
	scratch := make([]byte, min(n, verifyChunk))
	c := cursor{bufs: want}
	for done := uint64(0); done < n; {
		chunk := scratch[:min(n-done, verifyChunk)]
		if err := t.lu.store.ReadAt([][]byte{chunk}, t.offset()+int64(done)); err != nil {
			return readError(err, t.lba+done/t.lu.blockSize)
		}
		if len(want) > 0 {
			if at, equal := c.compare(chunk); !equal {
				return miscompare(t.lba + (done+uint64(at))/t.lu.blockSize)
			}
		}
		done += uint64(len(chunk))
	}
	return nil
}

// A cursor walks over a list of buffers, again and again.
type cursor struct {
	bufs       [][]byte
	index, off int // next byte: bufs[index][off]
}

// compare compares b with the bytes at the cursor and moves it on. It returns the index of the first
// byte that differs.
func (c *cursor) compare(b []byte) (at int, equal bool) {
	for at < len(b) {
		want := c.bufs[c.index][c.off:]
		n := min(len(want), len(b)-at)
		if !bytes.Equal(b[at:at+n], want[:n]) {
			return at + firstDifference(b[at:at+n], want), false
		}
		at += n
		if c.off += n; c.off == len(c.bufs[c.index]) {
			c.index, c.off = (c.index+1)%len(c.bufs), 0
		}
	}
	return at, true
}

// firstDifference is the index of the first byte of a that b has not.
func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return 0 // the memory changed meanwhile; the block was different when it was compared
}

// miscompare is MISCOMPARE DURING VERIFY OPERATION; INFORMATION is where the first difference is: the LBA of
// its block (SBC-3, sense data), or what the command says.
func miscompare(at uint64) error {
	return &senseError{key: keyMiscompare, asc: 0x1d, information: at, hasInformation: true}
}
