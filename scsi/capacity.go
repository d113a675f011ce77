package scsi

import "encoding/binary"

// prepareReadCapacity10 answers with the last LBA, or FFFFFFFFh if READ CAPACITY(16) must be asked, and
// the block length (SBC-3, 5.15).
func prepareReadCapacity10(_ *Device, t *Task) error {
	last := min(t.lu.capacity.Load()-1, 0xffffffff)
	b := binary.BigEndian.AppendUint32(nil, uint32(last))
	t.replyFixed(binary.BigEndian.AppendUint32(b, uint32(t.lu.blockSize)))
	return nil
}

// prepareReadCapacity16 answers with parameter data of SBC-3, 5.16.2. There is no protection
// information; the lowest aligned LBA is 0.
//
//	0..7 last LBA  8..11 block length  12 P_TYPE PROT_EN  13 exponent  14..15 LBPME LBPRZ lowest aligned
func prepareReadCapacity16(_ *Device, t *Task) error {
	b := make([]byte, 32)
	binary.BigEndian.PutUint64(b, t.lu.capacity.Load()-1)
	binary.BigEndian.PutUint32(b[8:], uint32(t.lu.blockSize))
	b[13] = t.lu.physicalExp
	if t.lu.provisioned() {
		b[14] = capacityLBPME | capacityLBPRZ
	}
	t.reply(b, binary.BigEndian.Uint32(t.CDB[10:]))
	return nil
}
