package scsi

import "encoding/binary"

// Fields of READ, WRITE and VERIFY CDBs, in byte 1 (SBC-3, 5).
const (
	cdbProtect = 0xe0 // RDPROTECT, WRPROTECT, VRPROTECT
	cdbFUA     = 0x08
)

// An extent is what a CDB says of the medium, and where its length field lies for a field pointer.
type extent struct {
	lba, blocks uint64
	lengthField int
}

// parseExtent reads LBA and TRANSFER LENGTH by the CDB's size class (SPC-4, 4.2.2).
func parseExtent(cdb []byte) extent {
	be := binary.BigEndian
	switch cdb[0] >> 5 {
	case 0: // 6 bytes: 21-bit LBA, and a length of 0 means 256
		e := extent{lba: uint64(be.Uint32(cdb) & 0x1fffff), blocks: uint64(cdb[4]), lengthField: 4}
		if e.blocks == 0 {
			e.blocks = 256
		}
		return e
	case 1, 2: // 10 bytes
		return extent{uint64(be.Uint32(cdb[2:])), uint64(be.Uint16(cdb[7:])), 7}
	case 4: // 16 bytes
		return extent{be.Uint64(cdb[2:]), uint64(be.Uint32(cdb[10:])), 10}
	default: // 12 bytes
		return extent{uint64(be.Uint32(cdb[2:])), uint64(be.Uint32(cdb[6:])), 6}
	}
}

// inRange checks blocks against the capacity without a sum that could wrap. No blocks at the very end
// are in range (SBC-3 leaves it open; LBA = capacity is not beyond the medium).
func (lu *LogicalUnit) inRange(lba, blocks uint64) bool {
	capacity := lu.capacity.Load()
	return lba <= capacity && blocks <= capacity-lba
}

// prepareExtent checks what all media access checks and keeps the extent in the task.
func (t *Task) prepareExtent() error {
	return t.takeExtent(parseExtent(t.CDB), t.lu.maxBlocks)
}

// takeExtent is prepareExtent for an extent of at most so many blocks, a limit that VPD page B0h tells.
func (t *Task) takeExtent(e extent, most uint64) error {
	if t.CDB[0]>>5 != 0 {
		if t.CDB[1]&cdbProtect != 0 {
			return invalidField(1, 7) // no protection information: PROT_EN is 0
		}
		t.fua = t.CDB[1]&cdbFUA != 0
	}
	if !t.lu.inRange(e.lba, e.blocks) {
		return errOutOfRange
	}
	if e.blocks > most {
		return invalidField(e.lengthField, 7)
	}
	t.lba, t.blocks = e.lba, e.blocks
	return nil
}

// offset is where the task's extent lies in the store, in bytes. A store's size is an int64, so an
// extent that is in range does not wrap.
func (t *Task) offset() int64 { return int64(t.lba * t.lu.blockSize) }

// maxTry is the longest read that is tried without a worker, bytes: copying more keeps a connection's loop longer than the
// way to a worker and back takes, and others of its commands may go on meanwhile.
const maxTry = 64 << 10

func prepareRead(_ *Device, t *Task) error {
	if err := t.prepareExtent(); err != nil {
		return err
	}
	t.wantIn(t.blocks * t.lu.blockSize)
	if t.InLen == 0 {
		t.Done = true
		return nil
	}
	if m := t.lu.mapper; m != nil && t.lu.state.Load()&stateCopies == 0 {
		t.mapBuf[0] = m.Map(t.offset(), int(t.InLen))
		t.In, t.Mapped = t.mapBuf[:], true
	}
	// Forced to be on the medium, it waits for that.
	t.mayTry = t.lu.trier != nil && t.InLen <= maxTry && !(t.fua && t.lu.writeCache)
	return nil
}

// tryRead is executeRead of what the store has at hand. False: nothing has been done.
func (t *Task) tryRead() bool {
	if !t.lu.trier.TryReadAt(t.In, t.offset()) {
		return false
	}
	t.lu.readBytes.Add(uint64(t.InLen))
	return true
}

func executeRead(t *Task) error {
	if t.fua && t.lu.writeCache {
		// What is read must be on the medium (SBC-3, FUA bit), or a power cut could bring back older data.
		if err := t.lu.store.Flush(); err != nil {
			return writeError(err, t.lba)
		}
	}
	if !t.Mapped {
		if err := t.lu.store.ReadAt(t.In, t.offset()); err != nil {
			return readError(err, t.lba)
		}
	}
	t.lu.readBytes.Add(uint64(t.InLen))
	return nil
}

// prepareOut checks a command that sends blocks. EDTL may cut it to whole blocks (RFC 7143, 11.4.5),
// never inside a block.
func (t *Task) prepareOut(need uint64) error {
	if err := t.wantOut(need); err != nil {
		return err
	}
	if uint64(t.OutLen)%t.lu.blockSize != 0 {
		return errPartialBlock
	}
	t.Done = t.OutLen == 0
	return nil
}

func prepareWrite(_ *Device, t *Task) error {
	if err := t.lu.writable(); err != nil {
		return err
	}
	if err := t.prepareExtent(); err != nil {
		return err
	}
	return t.prepareOut(t.blocks * t.lu.blockSize)
}

func executeWrite(t *Task) error {
	if err := t.lu.store.WriteAt(t.Out, t.offset(), t.fua); err != nil {
		return writeError(err, t.lba)
	}
	t.lu.writtenBytes.Add(uint64(t.OutLen))
	return nil
}
