package scsi

import (
	"encoding/binary"
	"slices"
)

// Fields of MODE SELECT's CDB (SPC-4, 6.10).
const (
	modePF = 0x10 // page format: pages are the standard's
	modeSP = 0x01 // save pages

	modeHeader6  = 4
	modeHeader10 = 8
	modePS       = 0x80 // parameters saveable; reserved here
	modeSPF      = 0x40 // a page with a subpage code

	// maxModeList bounds a parameter list, in bytes: all pages fit several times.
	maxModeList = 512
)

// prepareModeSelect6 and prepareModeSelect10 want the parameter list. Nothing can be saved (SP), and
// vendor specific pages (PF 0) there are none. A list of no bytes changes nothing.
func prepareModeSelect6(_ *Device, t *Task) error {
	return t.prepareModeSelect(uint64(t.CDB[4]))
}

func prepareModeSelect10(_ *Device, t *Task) error {
	return t.prepareModeSelect(uint64(binary.BigEndian.Uint16(t.CDB[7:])))
}

func (t *Task) prepareModeSelect(n uint64) error {
	switch {
	case t.CDB[1]&modeSP != 0:
		return invalidField(1, 0)
	case n > 0 && t.CDB[1]&modePF == 0:
		return invalidField(1, 4)
	case n > maxModeList:
		return errListLength
	}
	t.Done = n == 0
	return t.wantList(n, errListLength)
}

// executeModeSelect checks the whole list before it changes anything. Other nexuses are told of a change
// (MODE PARAMETERS CHANGED).
func executeModeSelect(t *Task) error {
	lu := t.lu
	list := t.list()
	pages, at, err := lu.skipModeHeader(list, t.CDB[0]>>5 != 0)
	if err != nil {
		return err
	}
	d := lu.device
	d.mu.Lock()
	defer d.mu.Unlock()
	old := lu.control.Load()
	control := old
	for len(pages) > 0 {
		n, err := lu.checkModePage(pages, at, &control)
		if err != nil {
			return err
		}
		pages, at = pages[n:], at+n
	}
	if control != old {
		lu.control.Store(control)
		d.raiseLocked(lu, modeChanged, t.Nexus)
	}
	return nil
}

// skipModeHeader checks header and block descriptor, and gives the pages and where they begin. MODE DATA
// LENGTH, WP and DPOFUA are reserved here and ignored, so that what MODE SENSE gave can be sent back.
func (lu *LogicalUnit) skipModeHeader(list []byte, long bool) (pages []byte, at int, err error) {
	header, mediumAt, lengthAt := modeHeader6, 1, 3
	if long {
		header, mediumAt, lengthAt = modeHeader10, 2, 6
	}
	if len(list) < header {
		return nil, 0, errListLength
	}
	descriptors, size := int(list[lengthAt]), len(lu.shortDescriptor())
	if long {
		descriptors = int(binary.BigEndian.Uint16(list[lengthAt:]))
		if list[4]&headerLongLBA != 0 {
			size = len(lu.longDescriptor())
		}
	}
	if list[mediumAt] != 0 {
		return nil, 0, invalidParameter(mediumAt, 7)
	}
	at = header + descriptors
	switch {
	case descriptors != 0 && descriptors != size:
		return nil, 0, invalidParameter(lengthAt, 7)
	case len(list) < at:
		return nil, 0, errListLength
	case descriptors != 0:
		if bad := lu.checkBlockDescriptor(list[header:at]); bad >= 0 {
			return nil, 0, invalidParameter(header+bad, 7)
		}
	}
	return list[at:], at, nil
}

// checkBlockDescriptor finds where a block descriptor asks for what is not so; -1 if nowhere. Zero blocks
// and all ones stand for the capacity (SBC-3, 6.4.2).
func (lu *LogicalUnit) checkBlockDescriptor(b []byte) int {
	blocks, blockSize := uint64(binary.BigEndian.Uint32(b)), uint64(binary.BigEndian.Uint32(b[4:])&0xffffff)
	most, lengthAt := uint64(0xffffffff), 5
	if len(b) != len(lu.shortDescriptor()) {
		blocks, blockSize = binary.BigEndian.Uint64(b), uint64(binary.BigEndian.Uint32(b[12:]))
		most, lengthAt = ^uint64(0), 12
	}
	switch {
	case blocks != 0 && blocks != most && blocks != min(lu.capacity.Load(), most):
		return 0
	case blockSize != lu.blockSize:
		return lengthAt
	}
	return -1
}

// checkModePage checks the page at the front of b, takes over what can be changed, and gives its length.
// at is where it stands in the list.
func (lu *LogicalUnit) checkModePage(b []byte, at int, control *uint32) (int, error) {
	if len(b) < 2 {
		return 0, errListLength
	}
	page := b[0] &^ modePS
	if page&modeSPF != 0 || !slices.Contains(modePages[:], page) {
		return 0, invalidParameter(at, 5)
	}
	current, mask := lu.appendModePage(nil, page, pcCurrent), lu.appendModePage(nil, page, pcChangeable)
	if b[1] != current[1] {
		return 0, invalidParameter(at+1, 7)
	}
	if len(b) < len(current) {
		return 0, errListLength
	}
	for i := 2; i < len(current); i++ {
		if bad := (b[i] ^ current[i]) &^ mask[i]; bad != 0 {
			return 0, invalidParameter(at+i, topBit(bad))
		}
	}
	if page == modeControl {
		*control = controlOf(b[2:])
	}
	return len(current), nil
}

// What can be changed in the Control mode page (SPC-4, 7.5.8): a bit each of LogicalUnit.control. All are
// the same for every nexus, and a reset brings back the default: none.
const (
	controlDSense uint32 = 1 << iota // descriptor format sense data
	controlSWP                       // software write protect
)

// Where these are in the page.
const (
	pageDSense, bitDSense = 0, 0x04
	pageSWP, bitSWP       = 2, 0x08
)

func controlOf(body []byte) (control uint32) {
	if body[pageDSense]&bitDSense != 0 {
		control |= controlDSense
	}
	if body[pageSWP]&bitSWP != 0 {
		control |= controlSWP
	}
	return control
}

// putControl is the inverse of controlOf.
func putControl(body []byte, control uint32) {
	if control&controlDSense != 0 {
		body[pageDSense] |= bitDSense
	}
	if control&controlSWP != 0 {
		body[pageSWP] |= bitSWP
	}
}

// writable is nil if the medium may be written to.
func (lu *LogicalUnit) writable() error {
	switch {
	case lu.readOnly.Load():
		return errWriteProtected
	case lu.control.Load()&controlSWP != 0:
		return errSoftwareProtected
	}
	return nil
}
