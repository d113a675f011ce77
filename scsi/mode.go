package scsi

import "encoding/binary"

// Mode pages (SPC-4, 7.5; SBC-3, 6.4).
const (
	modeErrorRecovery = 0x01
	modeCaching       = 0x08
	modeControl       = 0x0a
	modeExceptions    = 0x1c
	modeAllPages      = 0x3f
	modeAllSubpages   = 0xff
)

var modePages = [...]byte{modeErrorRecovery, modeCaching, modeControl, modeExceptions}

// Page control (SPC-4, 6.13), bits 7 and 6 of byte 2.
const (
	pcCurrent = iota
	pcChangeable
	pcDefault
	pcSaved
)

// Fields of MODE SENSE's CDB and header.
const (
	modeDBD      = 0x08 // disable block descriptors
	modeLLBAA    = 0x10 // long LBA accepted
	modePageMask = 0x3f

	deviceSpecificWP     = 0x80 // SBC-3, mode parameter header
	deviceSpecificDPOFUA = 0x10
	headerLongLBA        = 0x01
)

// prepareModeSense6 makes a 4-byte header, an 8-byte block descriptor and pages (SPC-4, 7.5).
func prepareModeSense6(_ *Device, t *Task) error {
	pages, err := t.lu.modePages(t.CDB)
	if err != nil {
		return err
	}
	var descriptor []byte
	if t.CDB[1]&modeDBD == 0 {
		descriptor = t.lu.shortDescriptor()
	}
	// MODE DATA LENGTH does not count itself. All pages fit in its one byte.
	b := []byte{byte(3 + len(descriptor) + len(pages)), 0, t.deviceSpecific(), byte(len(descriptor))}
	t.reply(append(append(b, descriptor...), pages...), uint32(t.CDB[4]))
	return nil
}

// prepareModeSense10 makes an 8-byte header, a block descriptor of 8 or 16 bytes, and pages.
func prepareModeSense10(_ *Device, t *Task) error {
	pages, err := t.lu.modePages(t.CDB)
	if err != nil {
		return err
	}
	var descriptor []byte
	var long byte
	switch {
	case t.CDB[1]&modeDBD != 0:
	case t.CDB[1]&modeLLBAA != 0:
		descriptor, long = t.lu.longDescriptor(), headerLongLBA
	default:
		descriptor = t.lu.shortDescriptor()
	}
	b := binary.BigEndian.AppendUint16(nil, uint16(6+len(descriptor)+len(pages)))
	b = append(b, 0, t.deviceSpecific(), long, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(descriptor)))
	allocation := uint32(binary.BigEndian.Uint16(t.CDB[7:]))
	t.reply(append(append(b, descriptor...), pages...), allocation)
	return nil
}

func (lu *LogicalUnit) deviceSpecific() byte {
	if lu.writable() != nil {
		return deviceSpecificWP | deviceSpecificDPOFUA
	}
	return deviceSpecificDPOFUA
}

// shortDescriptor is the short LBA mode parameter block descriptor (SBC-3, 6.4).
func (lu *LogicalUnit) shortDescriptor() []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(min(lu.capacity.Load(), 0xffffffff)))
	return binary.BigEndian.AppendUint32(b, uint32(lu.blockSize)) // a reserved byte and 24 bits
}

// longDescriptor is the long LBA one.
func (lu *LogicalUnit) longDescriptor() []byte {
	b := binary.BigEndian.AppendUint64(nil, lu.capacity.Load())
	return binary.BigEndian.AppendUint64(b, uint64(lu.blockSize)) // four reserved bytes and 32 bits
}

// modePages makes the pages that a MODE SENSE CDB names. There are no subpages but 00h.
func (lu *LogicalUnit) modePages(cdb []byte) ([]byte, error) {
	control, page, subpage := cdb[2]>>6, cdb[2]&modePageMask, cdb[3]
	if control == pcSaved {
		return nil, errSavingParameters
	}
	if subpage != 0 && subpage != modeAllSubpages {
		return nil, invalidField(3, 7)
	}
	var b []byte
	for _, p := range modePages {
		if page == p || page == modeAllPages {
			b = lu.appendModePage(b, p, control)
		}
	}
	if b == nil {
		return nil, invalidField(2, 5)
	}
	return b, nil
}

// appendModePage appends a page with its current, default or changeable values.
func (lu *LogicalUnit) appendModePage(b []byte, page, control byte) []byte {
	body := make([]byte, 10)
	switch page {
	case modeErrorRecovery: // no recovery of ours to tune
	case modeCaching: // SBC-3, 6.4
		body = make([]byte, 18)
		if lu.writeCache {
			body[0] = 0x04 // WCE
		}
	case modeControl: // SPC-4, 7.5.8
		body[1] = 0x10                               // QUEUE ALGORITHM MODIFIER: unrestricted reordering
		binary.BigEndian.PutUint16(body[6:], 0xffff) // BUSY TIMEOUT PERIOD: unlimited
	case modeExceptions: // SPC-4, 7.5
		body[0] = 0x08 // DEXCPT: no informational exceptions
	}
	if control == pcChangeable {
		clear(body)
	}
	if page == modeControl {
		switch control {
		case pcCurrent:
			putControl(body, lu.control.Load())
		case pcChangeable:
			putControl(body, ^uint32(0))
		}
	}
	return append(append(b, page, byte(len(body))), body...)
}
