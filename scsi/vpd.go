package scsi

import (
	"encoding/binary"
	"fmt"
)

// Vital product data pages (SPC-4, 7.8; SBC-3, 6.5).
const (
	vpdSupportedPages = 0x00
	vpdSerialNumber   = 0x80
	vpdIdentification = 0x83
	vpdExtended       = 0x86
	vpdThirdPartyCopy = 0x8f
	vpdBlockLimits    = 0xb0
	vpdCharacteristic = 0xb1
	vpdProvisioning   = 0xb2
)

var vpdPages = [...]byte{
	vpdSupportedPages, vpdSerialNumber, vpdIdentification, vpdExtended, vpdThirdPartyCopy, vpdBlockLimits, vpdCharacteristic, vpdProvisioning,
}

// vpd makes a VPD page, nil if there is no such page. Where no unit is, only the list of pages is.
func (d *Device) vpd(t *Task, page byte) []byte {
	if t.lu == nil {
		if page != vpdSupportedPages {
			return nil
		}
		return []byte{noUnitByte, page, 0, 1, vpdSupportedPages}
	}
	var body []byte
	switch page {
	case vpdSupportedPages:
		body = vpdPages[:]
	case vpdSerialNumber:
		body = []byte(t.lu.serial())
	case vpdIdentification:
		body = d.identification(t)
	case vpdExtended:
		body = t.lu.extended()
	case vpdThirdPartyCopy:
		body = thirdPartyCopy()
	case vpdBlockLimits:
		body = t.lu.blockLimits()
	case vpdCharacteristic: // SBC-3, 6.5.2
		body = make([]byte, 60)
		if !t.lu.rotational {
			body[1] = 0x01 // MEDIUM ROTATION RATE 0001h: non-rotating; 0 is not reported
		}
		if t.lu.erases() {
			body[3] = 0x40 // WABEREQ 01b: reads after a block erase succeed
		}
		body[4] = 0x01 // VBULS: VERIFY reads what is unmapped as zeros
	case vpdProvisioning:
		body = t.lu.provisioning()
	default:
		return nil
	}
	b := binary.BigEndian.AppendUint16([]byte{t.peripheral(), page}, uint16(len(body)))
	return append(b, body...)
}

// extended makes the body of the Extended INQUIRY Data page (SPC-4, 7.8.7): no protection information, and all task
// attributes but ACA (taskset.go).
func (lu *LogicalUnit) extended() []byte {
	b := make([]byte, 60)
	b[1] = 0x07 // HEADSUP, ORDSUP, SIMPSUP
	if lu.writeCache {
		b[2] = 0x01 // V_SUP: there is a volatile cache
	}
	return b
}

// unmapAligned is UGAVALID with an UNMAP GRANULARITY ALIGNMENT of 0: the store's units begin at its start.
const unmapAligned = 0x80000000

// blockLimits makes the body of the Block Limits page (SBC-3, 6.5.3; from ATOMIC on SBC-4). What it says is
// what the commands enforce. Zero limits are commands that are not supported, or no limit.
//
//	0 WSNZ  1 COMPARE AND WRITE  2 granularity  4 transfer  8 optimal  12 prefetch  16 UNMAP blocks
//	20 UNMAP descriptors  24 UNMAP granularity  28 alignment  32 WRITE SAME
//	40 ATOMIC transfer  44 alignment  48 granularity  52 transfer with boundary  56 boundary
func (lu *LogicalUnit) blockLimits() []byte {
	be := binary.BigEndian
	b := make([]byte, 60)
	b[1] = byte(lu.maxCompare())
	be.PutUint16(b[2:], 1<<lu.physicalExp) // OPTIMAL TRANSFER LENGTH GRANULARITY
	be.PutUint32(b[4:], uint32(lu.maxBlocks))
	if lu.provisioned() {
		be.PutUint32(b[16:], maxUnmapBlocks)
		be.PutUint32(b[20:], maxUnmapDescriptors)
		be.PutUint32(b[24:], uint32(lu.unmapUnit))
		be.PutUint32(b[28:], unmapAligned)
	}
	be.PutUint64(b[32:], lu.maxWriteSame())
	if lu.writesAtomic() {
		be.PutUint32(b[40:], uint32(lu.atomic.most))
		be.PutUint32(b[44:], uint32(lu.atomic.unit))
		be.PutUint32(b[48:], uint32(lu.atomic.unit))
	}
	return b
}

// Designators (SPC-4, 7.8.6.2).
const (
	codeSetBinary = 0x1
	codeSetASCII  = 0x2
	codeSetUTF8   = 0x3

	protocolISCSI = 0x5 << 4 // PROTOCOL IDENTIFIER, valid with PIV

	designatorPIV          = 0x80
	designatorUnit         = 0x00 // ASSOCIATION
	designatorPort         = 0x10
	designatorDevice       = 0x20
	designatorT10Vendor    = 0x1 // DESIGNATOR TYPE
	designatorNAA          = 0x3
	designatorRelativePort = 0x4
	designatorPortGroup    = 0x5
	designatorName         = 0x8

	naaLocal = 0x3 // locally assigned: 60 bits that are ours, since we have no IEEE company ID
)

// identification makes the body of the Device Identification page: the unit, the port that the command
// came through and its group, and the device.
func (d *Device) identification(t *Task) []byte {
	vendor := make([]byte, vendorLen)
	putPadded(vendor, d.config.Vendor)
	b := appendDesignator(nil, codeSetASCII, designatorUnit|designatorT10Vendor, append(vendor, t.lu.serial()...))

	naa := t.lu.naa()
	b = appendDesignator(b, codeSetBinary, designatorUnit|designatorNAA, naa[:])

	port := t.Nexus.relativePort
	b = appendDesignator(b, protocolISCSI|codeSetBinary, designatorPIV|designatorPort|designatorRelativePort,
		binary.BigEndian.AppendUint16([]byte{0, 0}, port))
	b = appendDesignator(b, protocolISCSI|codeSetBinary, designatorPIV|designatorPort|designatorPortGroup,
		binary.BigEndian.AppendUint16([]byte{0, 0}, port))
	b = appendDesignator(b, protocolISCSI|codeSetUTF8, designatorPIV|designatorPort|designatorName,
		nameString(fmt.Sprintf("%s,t,0x%04x", d.config.Name, port)))
	return appendDesignator(b, protocolISCSI|codeSetUTF8, designatorPIV|designatorDevice|designatorName,
		nameString(d.config.Name))
}

// naa is the unit's NAA designator: the one that hosts name it by.
func (lu *LogicalUnit) naa() (id [8]byte) {
	copy(id[:], lu.identity[:])
	id[0] = naaLocal<<4 | id[0]&0x0f
	return id
}

func appendDesignator(b []byte, codeSet, kind byte, id []byte) []byte {
	return append(append(b, codeSet, kind, 0, byte(len(id))), id...)
}

// maxNameString is the longest SCSI name string, in bytes (SPC-4, 7.8.6.11); an iSCSI name has at most
// 223.
const maxNameString = 252

// nameString ends a SCSI name string with at least one null, padded to a multiple of four bytes.
func nameString(s string) []byte {
	s = s[:min(len(s), maxNameString-1)]
	return append([]byte(s), make([]byte, 4-len(s)%4)...)
}
