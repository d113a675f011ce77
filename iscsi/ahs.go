package iscsi

import "encoding/binary"

// Additional header segments (RFC 7143, 11.2.2).
//
//	bytes 0..1   2       3                     4..
//	AHSLength    type    AHS-specific, AHSLength bytes from here on, padded to a multiple of 4
const (
	ahsExtendedCDB = 1 // byte 3 reserved, then the CDB's bytes from 16 on
	ahsBidiEDTL    = 2 // byte 3 reserved, then the read data length
	ahsHeader      = 3 // bytes that AHSLength does not count
	ahsCDBOffset   = 4 // where an extended CDB's bytes start
	ahsMaskType    = 0x3f
)

const (
	// MaxCDB is the longest CDB, bytes: the variable length CDB of SPC-4, 4.2.3 (8 + 252).
	MaxCDB = 260
	// MaxAHS is the longest AHS chain that a BHS can announce, bytes.
	MaxAHS = 255 * 4
)

// AHS is what a SCSI Command's additional header segments say.
type AHS struct {
	// ExtendedCDB are the CDB's bytes from the 17th on; a view of what was parsed.
	ExtendedCDB []byte
	// BidiEDTL is the expected length, in bytes, of a bidirectional command's read data, if HasBidi.
	BidiEDTL uint32
	HasBidi  bool
}

// ParseAHS reads a chain. Segments of a type that we do not know, repeated segments, and lengths that
// do not fit are a *WireError. The result's ExtendedCDB is a part of b.
func ParseAHS(b []byte) (AHS, error) {
	var a AHS
	for off := 0; off < len(b); {
		if len(b)-off < 4 {
			return AHS{}, &WireError{What: "AHS", Offset: off, Err: ErrShort}
		}
		n := int(binary.BigEndian.Uint16(b[off:]))
		size := Pad4(ahsHeader + n)
		if size > len(b)-off {
			return AHS{}, &WireError{What: "AHSLength", Offset: off, Err: ErrLength}
		}
		if err := a.take(b[off:off+ahsHeader+n], off); err != nil {
			return AHS{}, err
		}
		off += size
	}
	return a, nil
}

// take reads one segment, without its padding, that was found at off.
func (a *AHS) take(seg []byte, off int) error {
	switch seg[2] & ahsMaskType {
	case ahsExtendedCDB:
		if a.ExtendedCDB != nil {
			return &WireError{What: "second extended CDB AHS", Offset: off, Err: ErrReserved}
		}
		if len(seg) <= ahsCDBOffset || len(seg)-ahsCDBOffset > MaxCDB-16 {
			return &WireError{What: "extended CDB AHS", Offset: off, Err: ErrLength}
		}
		a.ExtendedCDB = seg[ahsCDBOffset:]
	case ahsBidiEDTL:
		if a.HasBidi {
			return &WireError{What: "second bidirectional AHS", Offset: off, Err: ErrReserved}
		}
		if len(seg) != ahsCDBOffset+4 {
			return &WireError{What: "bidirectional AHS", Offset: off, Err: ErrLength}
		}
		a.HasBidi, a.BidiEDTL = true, binary.BigEndian.Uint32(seg[ahsCDBOffset:])
	default:
		return &WireError{What: "AHS type", Offset: off + 2, Err: ErrReserved}
	}
	return nil
}

// Append appends the chain's wire form to b; the length added is a multiple of 4. An ExtendedCDB of more
// than MaxCDB-16 bytes panics.
func (a *AHS) Append(b []byte) []byte {
	if n := len(a.ExtendedCDB); n > 0 {
		if n > MaxCDB-16 {
			panic("iscsi: CDB too long")
		}
		b = append(b, byte((n+1)>>8), byte(n+1), ahsExtendedCDB, 0)
		b = append(b, a.ExtendedCDB...)
		b = append(b, make([]byte, Pad4(n)-n)...)
	}
	if a.HasBidi {
		b = append(b, 0, 5, ahsBidiEDTL, 0)
		b = binary.BigEndian.AppendUint32(b, a.BidiEDTL)
	}
	return b
}

// FullCDB appends the whole CDB of cmd to dst: the 16 bytes of the header and what the AHS adds.
func FullCDB(dst []byte, cmd *SCSICommand, ahs *AHS) []byte {
	return append(append(dst, cmd.CDB[:]...), ahs.ExtendedCDB...)
}
