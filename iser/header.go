package iser

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
)

// ErrShort, ErrReserved and ErrLength are the causes of a *iscsi.WireError about a message, as in
// package iscsi.
var (
	ErrShort    = iscsi.ErrShort
	ErrReserved = iscsi.ErrReserved
	ErrLength   = iscsi.ErrLength
)

// ErrProtocol: the peer broke the rules of iSER; the connection is over.
var ErrProtocol = errors.New("iSER protocol error")

// Flags say which STags of a Header are valid.
type Flags uint8

// The flags (RFC 7145, 9.2).
const (
	WriteValid Flags = 0x08 // WSV: WriteSTag and WriteBase name memory the target may read
	ReadValid  Flags = 0x04 // RSV: ReadSTag and ReadBase name memory the target may write
)

// The message types, in the high nibble of byte 0 (RFC 7145, 9.1).
const (
	opControl    = 1
	opHello      = 2
	opHelloReply = 3
)

// A Header precedes every control message on an iSER connection (RFC 7145, 9.2, with the virtual
// addresses of IBTA annex A12).
//
//	byte 0     1..3      4..7        8..15       16..19     20..27
//	op|flags   reserved  write STag  write base  read STag  read base
type Header struct {
	Flags     Flags
	WriteSTag uint32
	WriteBase uint64
	ReadSTag  uint32
	ReadBase  uint64
}

// HeaderSize is the size of a Header on the wire, in bytes.
const HeaderSize = 28

// Append appends h's wire form to b. Fields that Flags does not declare valid are sent as they are:
// callers leave them zero.
func (h *Header) Append(b []byte) []byte {
	b = append(b, opControl<<4|byte(h.Flags&(WriteValid|ReadValid)), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.WriteSTag)
	b = binary.BigEndian.AppendUint64(b, h.WriteBase)
	b = binary.BigEndian.AppendUint32(b, h.ReadSTag)
	return binary.BigEndian.AppendUint64(b, h.ReadBase)
}

// Parse reads h from the front of b and returns what follows it. h keeps no part of b. Reserved bits are
// ignored, and so are the fields whose valid bit is off: they read as zero. Errors are
// *iscsi.WireError.
func (h *Header) Parse(b []byte) (rest []byte, err error) {
	if len(b) < HeaderSize {
		return nil, &iscsi.WireError{What: "iSER header", Offset: len(b), Err: ErrShort}
	}
	if op := b[0] >> 4; op != opControl {
		return nil, &iscsi.WireError{What: messageName(op), Offset: 0, Err: ErrReserved}
	}
	*h = Header{Flags: Flags(b[0]) & (WriteValid | ReadValid)}
	if h.Flags&WriteValid != 0 {
		h.WriteSTag = binary.BigEndian.Uint32(b[4:])
		h.WriteBase = binary.BigEndian.Uint64(b[8:])
	}
	if h.Flags&ReadValid != 0 {
		h.ReadSTag = binary.BigEndian.Uint32(b[16:])
		h.ReadBase = binary.BigEndian.Uint64(b[20:])
	}
	return b[HeaderSize:], nil
}

func messageName(op byte) string {
	switch op {
	case opHello:
		return "iSER Hello, which was not negotiated,"
	case opHelloReply:
		return "iSER HelloReply, which was not negotiated,"
	}
	return fmt.Sprintf("iSER message type %d", op)
}

// Sizes of a message, in bytes.
const (
	// fixedSize is what every message has: header and BHS.
	fixedSize = HeaderSize + iscsi.BHSSize
	// maxAHS bounds the additional header segments of a PDU that we receive: the default of MaxAHSLength
	// (RFC 7145, 6.8). A CDB of 260 bytes fits.
	maxAHS = 256
	// maxPad is how much longer than its PDU a message may be: padding to 4 is optional, and peers that
	// pad what is a multiple of 4 already have been seen.
	maxPad = 4
)

// A message is one received Send, taken apart. BHS, AHS and Data are views of the receive buffer.
type message struct {
	Header
	BHS  *[iscsi.BHSSize]byte
	AHS  []byte
	Data []byte
}

// parse takes b, all that was received, apart. The length is checked before any field is believed; the
// rest of the receive buffer is never looked at. Errors are *iscsi.WireError.
func (m *message) parse(b []byte) error {
	if len(b) < fixedSize {
		return &iscsi.WireError{What: "iSER message", Offset: len(b), Err: ErrShort}
	}
	rest, err := m.Header.Parse(b)
	if err != nil {
		return err
	}
	m.BHS = (*[iscsi.BHSSize]byte)(rest)
	rest = rest[iscsi.BHSSize:]
	ahs, data := iscsi.AHSLengthOf(m.BHS), int(iscsi.DataLengthOf(m.BHS))
	if ahs > maxAHS {
		return &iscsi.WireError{What: "TotalAHSLength", Offset: HeaderSize + 4, Err: ErrLength}
	}
	if need := ahs + data; need > len(rest) || len(rest) > need+maxPad {
		return fmt.Errorf("%d bytes received for a PDU of %d: %w", len(b), fixedSize+need,
			&iscsi.WireError{What: "DataSegmentLength", Offset: HeaderSize + 5, Err: ErrLength})
	}
	m.AHS, m.Data = rest[:ahs:ahs], rest[ahs:ahs+data:ahs+data]
	return nil
}

// isOldFormat reports whether a first message looks like RFC 5046: a header of 12 bytes without
// addresses. Nothing that is alive speaks it; the answer is only for a helpful error.
func isOldFormat(b []byte) bool {
	const oldHeader = 12
	login := func(at int) bool {
		return len(b) >= at+iscsi.BHSSize && iscsi.Opcode(b[at]&0x3f) == iscsi.OpLoginRequest
	}
	return login(oldHeader) && !login(HeaderSize)
}
