package scsi

import (
	"bytes"
	"encoding/binary"
)

// The parameter list of EXTENDED COPY(LID1) (SPC-4, 6.4.3). CSCD (copy source and copy destination) descriptors
// are target descriptors in older standards.
//
//	0 list identifier  1 STR, LIST ID USAGE, PRIORITY  2..3 CSCD descriptor list length
//	8..11 segment descriptor list length  12..15 inline data length  16.. descriptors
const (
	copyHeaderLen = 16
	cscdLen       = 32
	segmentHeader = 4 // what a segment's length does not count

	maxCopyEnds     = 8  // MAXIMUM CSCD DESCRIPTOR COUNT
	maxCopySegments = 64 // MAXIMUM SEGMENT DESCRIPTOR COUNT
	segmentBlocks   = 28 // bytes of a block to block descriptor
	segmentOffsets  = 32 // bytes of one with offsets
	// maxCopyDescriptors is MAXIMUM DESCRIPTOR LIST LENGTH, in bytes: room for as many as there may be.
	maxCopyDescriptors = maxCopyEnds*cscdLen + maxCopySegments*segmentOffsets
	// maxCopySegment is MAXIMUM SEGMENT LENGTH, in bytes: what 65535 blocks of 4096 nearly are.
	maxCopySegment = 256 << 20
	// copyGranularity is the smallest amount of a segment, in bytes; others are multiples of it.
	copyGranularity    = 1 << copyGranularityLog
	copyGranularityLog = 9
)

// LIST ID USAGE, bits 4 and 3 of byte 1.
const (
	listIDHold    = 0 // results are kept for RECEIVE COPY RESULTS
	listIDDiscard = 2 // may be discarded
	listIDNone    = 3 // there is no list identifier
)

// Descriptor type codes (SPC-4, 6.4.5 and 6.4.6).
const (
	typeBlocks         = 0x02 // block device to block device
	typeOffsets        = 0x0a // the same with offsets in blocks
	typeIdentification = 0xe4
)

var copyTypes = [...]byte{typeBlocks, typeOffsets, typeIdentification}

// Fields of an identification CSCD descriptor (SPC-4, 6.4.5.2).
const (
	cscdDeviceType     = 1
	cscdDeviceTypeMask = 0x1f
	cscdDesignator     = 4 // a designator as in VPD page 83h
	cscdMaxDesignator  = 20
	cscdBlockLength    = 29 // 3 bytes
	// cscdThisUnit is the CSCD descriptor ID of the unit that the command was sent to.
	cscdThisUnit = 0xffff
)

// A copyList is what a parameter list says.
type copyList struct {
	id       byte
	usage    byte
	ends     []cscd
	segments []segment
}

// A cscd names a source or destination.
type cscd struct {
	codeSet, kind byte // kind: association and designator type
	designator    []byte
	blockSize     uint64 // 0: not said
}

// A segment is a block to block segment descriptor.
type segment struct {
	from, to             uint16 // CSCD descriptor IDs
	fromLBA, toLBA       uint64
	blocks               uint64 // of the source, or of the destination if countsTo
	countsTo             bool   // DC
	offsets              bool   // with offsets in blocks: bytes counts, not blocks
	bytes                uint64
	fromOffset, toOffset uint64
}

// parseCopyList reads a parameter list, all of whose bytes may be anything. The result has views of it.
func parseCopyList(b []byte) (*copyList, error) {
	be := binary.BigEndian
	l := &copyList{id: b[0], usage: b[1] >> 3 & 3}
	ends, segments, inline := uint64(be.Uint16(b[2:])), uint64(be.Uint32(b[8:])), uint64(be.Uint32(b[12:]))
	rest := b[copyHeaderLen:]
	switch {
	case ends+segments > maxCopyDescriptors, ends+segments+inline > uint64(len(rest)):
		return nil, errListLength
	case inline > 0:
		return nil, errInlineData
	case l.usage != listIDHold && l.usage != listIDDiscard && l.usage != listIDNone:
		return nil, invalidParameter(1, 4)
	case l.usage == listIDNone && l.id != 0:
		return nil, invalidParameter(0, 7)
	}
	if err := l.parseEnds(rest[:ends]); err != nil {
		return nil, err
	}
	return l, l.parseSegments(rest[ends:ends+segments], copyHeaderLen+int(ends))
}

func (l *copyList) parseEnds(b []byte) error {
	if len(b)%cscdLen != 0 {
		return invalidParameter(2, 7)
	}
	if len(b)/cscdLen > maxCopyEnds {
		return errTooManyEnds
	}
	for at := copyHeaderLen; len(b) > 0; at, b = at+cscdLen, b[cscdLen:] {
		d, n := b[:cscdLen], int(b[cscdDesignator+3])
		switch {
		case d[0] != typeIdentification:
			return errEndType
		case d[cscdDeviceType]&cscdDeviceTypeMask != 0:
			return errCopyKind
		case n > cscdMaxDesignator:
			return invalidParameter(at+cscdDesignator+3, 7)
		}
		l.ends = append(l.ends, cscd{
			codeSet: d[cscdDesignator] & 0x0f, kind: d[cscdDesignator+1] & 0x3f, designator: d[cscdDesignator+4:][:n],
			blockSize: uint64(d[cscdBlockLength])<<16 | uint64(binary.BigEndian.Uint16(d[cscdBlockLength+1:])),
		})
	}
	return nil
}

// parseSegments reads segment descriptors; at is where they lie in the parameter list.
func (l *copyList) parseSegments(b []byte, at int) error {
	be := binary.BigEndian
	for len(b) > 0 {
		if len(b) < segmentHeader {
			return errListLength
		}
		size := segmentBlocks
		switch b[0] {
		case typeBlocks:
		case typeOffsets:
			size = segmentOffsets
		default:
			return errSegmentType
		}
		if int(be.Uint16(b[2:])) != size-segmentHeader {
			return invalidParameter(at+2, 7)
		}
		if len(b) < size {
			return errListLength
		}
		if len(l.segments) == maxCopySegments {
			return errTooManySegments
		}
		l.segments = append(l.segments, parseSegment(b[:size]))
		b, at = b[size:], at+size
	}
	return nil
}

// parseSegment reads one (SPC-4, 6.4.6.3 and 6.4.6.8). CAT is left aside: what it allows to be inexact, is not.
//
//	1 DC, CAT  4..5 source  6..7 destination  10..11 blocks, or 8..11 bytes  12..19 source LBA
//	20..27 destination LBA  28..29, 30..31 offsets in the blocks
func parseSegment(b []byte) segment {
	be := binary.BigEndian
	s := segment{from: be.Uint16(b[4:]), to: be.Uint16(b[6:]), fromLBA: be.Uint64(b[12:]), toLBA: be.Uint64(b[20:])}
	if b[0] == typeBlocks {
		s.countsTo = b[1]&0x02 != 0
		s.blocks = uint64(be.Uint16(b[10:]))
		return s
	}
	s.offsets, s.bytes = true, uint64(be.Uint32(b[8:]))
	s.fromOffset, s.toOffset = uint64(be.Uint16(b[28:])), uint64(be.Uint16(b[30:]))
	return s
}

// names reports whether the designator is that of a unit: the NAA one, since the others of the unit do not fit
// in a descriptor.
func (e *cscd) names(lu *LogicalUnit) bool {
	naa := lu.naa()
	return e.codeSet == codeSetBinary && e.kind == designatorUnit|designatorNAA && bytes.Equal(e.designator, naa[:])
}
