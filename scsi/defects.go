package scsi

import "encoding/binary"

// READ DEFECT DATA (SBC-3, 5.17 and 5.18): which lists are asked for, and in what format.
const (
	defectLists      = 0x18 // REQ_PLIST and REQ_GLIST, and PLISTV and GLISTV in the answer
	defectFormatMask = 0x07
	maxDefectFormat  = 0x05 // of those that SBC-3 defines
)

// prepareReadDefects10 and 12 answer with empty lists: the store has no defects that it tells of.
//
//	(10): 1 lists and format  2..3 length      (12): 1 lists and format  2..3 generation  4..7 length
func prepareReadDefects10(_ *Device, t *Task) error {
	if t.CDB[2]&defectFormatMask > maxDefectFormat {
		return invalidField(2, 2)
	}
	t.reply([]byte{0, t.CDB[2] & (defectLists | defectFormatMask), 0, 0}, uint32(binary.BigEndian.Uint16(t.CDB[7:])))
	return nil
}

func prepareReadDefects12(_ *Device, t *Task) error {
	if t.CDB[1]&defectFormatMask > maxDefectFormat {
		return invalidField(1, 2)
	}
	if binary.BigEndian.Uint32(t.CDB[2:]) != 0 {
		return invalidField(2, 7) // ADDRESS DESCRIPTOR INDEX: there is none
	}
	t.reply([]byte{0, t.CDB[1] & (defectLists | defectFormatMask), 0, 0, 0, 0, 0, 0}, binary.BigEndian.Uint32(t.CDB[6:]))
	return nil
}
