package isns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// version is the protocol's (RFC 4171, 5.1.1).
const version = 1

// A Function is a message's function ID (RFC 4171, 5.1.2). A response has the top bit set.
type Function uint16

// The functions that a registering client uses.
const (
	DevAttrReg Function = 0x0001
	DevDereg   Function = 0x0004

	response Function = 0x8000
)

// Flags of a message (RFC 4171, 5.1.4).
type Flags uint16

// The flags.
const (
	FromClient Flags = 0x8000
	FromServer Flags = 0x4000
	// Replace: what the key names is taken out before the attributes are registered.
	Replace  Flags = 0x1000
	LastPDU  Flags = 0x0800
	FirstPDU Flags = 0x0400
)

const (
	headerSize = 12
	attrSize   = 8 // of an attribute's tag and length
	// maxPayload is the longest payload of a PDU, bytes: 16 bits, and a multiple of 4 (RFC 4171, 5.1.3).
	maxPayload = 65532
)

// Errors of messages.
var (
	ErrShort = errors.New("iSNS: too short")
	ErrWire  = errors.New("iSNS: malformed")
)

// A Message is one PDU (RFC 4171, 5.1):
//
//	0..1     2..3      4..5            6..7   8..9         10..11    12...
//	version  function  payload length  flags  transaction  sequence  payload
type Message struct {
	Function    Function
	Flags       Flags
	Transaction uint16
	Sequence    uint16
	Payload     []byte
}

// Append appends the wire form. A payload of more than 65532 bytes panics: whoever makes it bounds it.
func (m *Message) Append(b []byte) []byte {
	if len(m.Payload) > maxPayload || len(m.Payload)%4 != 0 {
		panic(fmt.Sprintf("isns: a payload of %d bytes", len(m.Payload)))
	}
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Function))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Payload)))
	b = binary.BigEndian.AppendUint16(b, uint16(m.Flags))
	b = binary.BigEndian.AppendUint16(b, m.Transaction)
	b = binary.BigEndian.AppendUint16(b, m.Sequence)
	return append(b, m.Payload...)
}

// Parse reads a message from the front of b and returns what follows it. Payload is a view of b. ErrShort means that
// more of b must come, ErrWire that nothing will help.
func (m *Message) Parse(b []byte) (rest []byte, err error) {
	if len(b) < headerSize {
		return nil, ErrShort
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if v := binary.BigEndian.Uint16(b); v != version || n%4 != 0 {
		return nil, fmt.Errorf("%w: version %d, %d bytes of payload", ErrWire, v, n)
	}
	if len(b) < headerSize+n {
		return nil, ErrShort
	}
	*m = Message{
		Function:    Function(binary.BigEndian.Uint16(b[2:])),
		Flags:       Flags(binary.BigEndian.Uint16(b[6:])),
		Transaction: binary.BigEndian.Uint16(b[8:]),
		Sequence:    binary.BigEndian.Uint16(b[10:]),
		Payload:     b[headerSize : headerSize+n],
	}
	return b[headerSize+n:], nil
}

// A Tag names an attribute (RFC 4171, 6).
type Tag uint32

// The attributes of a registration.
const (
	TagDelimiter  Tag = 0
	TagEntity     Tag = 1
	TagProtocol   Tag = 2
	TagPeriod     Tag = 6
	TagPortalAddr Tag = 16
	TagPortalPort Tag = 17
	TagName       Tag = 32
	TagNodeType   Tag = 33
	TagAlias      Tag = 34
	TagGroupAddr  Tag = 49
	TagGroupPort  Tag = 50
	TagGroupTag   Tag = 51
)

const (
	protocolISCSI  = 2 // RFC 4171, 6.2.2
	nodeTypeTarget = 1 // RFC 4171, 6.4.2: bit 31
)

// appendAttr appends an attribute; value is padded to a multiple of 4, which counts (RFC 4171, 5.1.5 and 6).
func appendAttr(b []byte, tag Tag, value ...byte) []byte {
	n := (len(value) + 3) &^ 3
	b = binary.BigEndian.AppendUint32(b, uint32(tag))
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, value...)
	return append(b, make([]byte, n-len(value))...)
}

// appendString appends a text, which ends with at least one NUL.
func appendString(b []byte, tag Tag, s string) []byte {
	return appendAttr(b, tag, append([]byte(s), 0)...)
}

func appendNumber(b []byte, tag Tag, v uint32) []byte {
	return appendAttr(b, tag, binary.BigEndian.AppendUint32(nil, v)...)
}

// appendPlace appends an address, IPv4 in IPv6's clothes, and a TCP port (RFC 4171, 6.3.1 and 6.3.2).
func appendPlace(b []byte, addrTag, portTag Tag, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	b = appendAttr(b, addrTag, ip[:]...)
	return appendNumber(b, portTag, uint32(a.Port()))
}

// eachAttr calls f for each attribute of a payload. Values are views.
func eachAttr(payload []byte, f func(tag Tag, value []byte)) error {
	for len(payload) > 0 {
		if len(payload) < attrSize {
			return fmt.Errorf("%w: %d bytes in place of an attribute", ErrWire, len(payload))
		}
		n := binary.BigEndian.Uint32(payload[4:])
		if uint64(n) > uint64(len(payload)-attrSize) || n%4 != 0 {
			return fmt.Errorf("%w: an attribute of %d bytes in %d", ErrWire, n, len(payload)-attrSize)
		}
		f(Tag(binary.BigEndian.Uint32(payload)), payload[attrSize:attrSize+n])
		payload = payload[attrSize+n:]
	}
	return nil
}
