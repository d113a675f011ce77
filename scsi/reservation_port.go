package scsi

import (
	"encoding/binary"
	"strings"
)

// TransportID for iSCSI (SPC-4, 7.6.4.6).
//
//	0 FORMAT CODE|protocol  2..3 additional length  4.. name, or name ",i,0x" ISID; zeros to a multiple of 4
const (
	transportIDHeader   = 4
	transportIDProtocol = 0x05 // iSCSI
	transportIDByName   = 0x00 // FORMAT CODE: the initiator device
	transportIDByPort   = 0x40 // FORMAT CODE: the initiator port
	minTransportName    = 20   // the least additional length, bytes

	isidSeparator = ",i,0x"
	isidDigits    = 12
	// maxPortName bounds the name in a TransportID, in bytes: an iSCSI name has at most 223 (RFC 7143, 4.2.7.1).
	maxPortName = 223
)

// A portID is an initiator, and its port if isid is not empty.
type portID struct{ name, isid string }

// port is the initiator port's name, as NexusConfig has it.
func (id portID) port() string { return id.name + isidSeparator + id.isid }

// splitPort is the inverse of port; a name without ISID is one of a device.
func splitPort(port string) portID {
	if i := strings.LastIndex(port, isidSeparator); i >= 0 {
		return portID{port[:i], port[i+len(isidSeparator):]}
	}
	return portID{name: port}
}

// parseTransportID reads a TransportID from the front of b, and how long it is.
func parseTransportID(b []byte) (id portID, n int, ok bool) {
	if len(b) < transportIDHeader || b[0]&0x0f != transportIDProtocol {
		return id, 0, false
	}
	n = transportIDHeader + int(binary.BigEndian.Uint16(b[2:]))
	if n < transportIDHeader+minTransportName || n%4 != 0 || n > len(b) {
		return id, 0, false
	}
	text, _, ended := strings.Cut(string(b[transportIDHeader:n]), "\x00")
	if !ended {
		return id, 0, false
	}
	text = strings.ToLower(text) // iSCSI names have no case (RFC 7143, 4.2.7.2)
	switch b[0] &^ 0x0f {
	case transportIDByName:
		id.name = text
	case transportIDByPort:
		id = splitPort(text)
		if len(id.isid) != isidDigits || strings.Trim(id.isid, "0123456789abcdef") != "" {
			return id, 0, false
		}
	default:
		return id, 0, false
	}
	return id, n, validPortName(id.name)
}

// validPortName refuses what is no iSCSI name of any kind.
func validPortName(s string) bool {
	return s != "" && len(s) <= maxPortName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ',' })
}

// appendTransportID appends the TransportID of an initiator port.
func appendTransportID(b []byte, port string) []byte {
	format := byte(transportIDByName)
	if splitPort(port).isid != "" {
		format = transportIDByPort
	}
	name := nameString(port)
	if short := minTransportName - len(name); short > 0 {
		name = append(name, make([]byte, short)...)
	}
	b = append(b, format|transportIDProtocol, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	return append(b, name...)
}
