package scsi

import "encoding/binary"

// UNMAP parameter list (SBC-3, 5.28.2): a header, then a descriptor an extent.
//
//	header: 0..1 length  2..3 length of the descriptors      descriptor: 0..7 LBA  8..11 blocks
const (
	unmapHeaderLen     = 8
	unmapDescriptorLen = 16
)

// prepareUnmap wants the list.
func prepareUnmap(_ *Device, t *Task) error {
	if err := t.lu.writable(); err != nil {
		return err
	}
	n := uint64(binary.BigEndian.Uint16(t.CDB[7:]))
	if n == 0 {
		t.Done = true // SBC-3, 5.28.1: not an error
		return t.wantOut(0)
	}
	if n < unmapHeaderLen {
		return errListLength
	}
	t.MayBlock = true // how long it takes is the store's affair
	t.lba, t.blocks = 0, t.lu.capacity.Load()
	return t.wantList(n, errDataLength)
}

// executeUnmap checks all of the list before it does any of it. Extents may overlap, and one of no blocks
// does nothing (SBC-3, 5.28.2). What unmapping cuts in the middle of the store's unit reads as zeros too.
func executeUnmap(t *Task) error {
	extents, err := t.lu.parseUnmap(t.list())
	if err != nil {
		return err
	}
	size := t.lu.blockSize
	for _, e := range extents {
		if e.blocks == 0 {
			continue
		}
		if err := t.lu.unmapper.Unmap(int64(e.lba*size), int64(e.blocks*size)); err != nil {
			return writeError(err, e.lba)
		}
	}
	return nil
}

// parseUnmap reads a list of at least a header. A descriptor that is cut is no descriptor.
func (lu *LogicalUnit) parseUnmap(list []byte) ([]extent, error) {
	descriptors := list[unmapHeaderLen:]
	if n := int(binary.BigEndian.Uint16(list[2:])); n < len(descriptors) {
		descriptors = descriptors[:n]
	}
	n := len(descriptors) / unmapDescriptorLen
	if n > maxUnmapDescriptors {
		return nil, invalidParameter(2, 7)
	}
	extents := make([]extent, n)
	var blocks uint64 // of at most maxUnmapDescriptors 32-bit numbers
	for i := range extents {
		d := descriptors[i*unmapDescriptorLen:]
		e := extent{lba: binary.BigEndian.Uint64(d), blocks: uint64(binary.BigEndian.Uint32(d[8:]))}
		if !lu.inRange(e.lba, e.blocks) {
			return nil, errOutOfRange
		}
		if blocks += e.blocks; blocks > maxUnmapBlocks {
			return nil, invalidParameter(unmapHeaderLen+i*unmapDescriptorLen+8, 7)
		}
		extents[i] = e
	}
	return extents, nil
}
