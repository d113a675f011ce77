package capture

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/link"
)

// Block types (draft-ietf-opsawg-pcapng, 10.1).
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockSimple     = 3
	blockStatistics = 5
	blockPacket     = 6 // enhanced
)

// Options of blocks. Those of one number differ by block.
const (
	optEnd         = 0
	optComment     = 1
	optAppl        = 4 // of a section
	optName        = 2 // of an interface
	optDescription = 3
	optIPv4        = 4
	optIPv6        = 5
	optResolution  = 9
	optFlags       = 2 // of a packet
	optDropCount   = 4
	optReceived    = 4 // of statistics
	optDropped     = 5
)

// The direction, in a packet's flags.
const (
	inbound  = 1
	outbound = 2
)

const (
	byteOrderMagic = 0x1a2b3c4d
	// linkRaw is LINKTYPE_RAW: packets begin with their IPv4 or IPv6 header.
	linkRaw = 101
	// nanoseconds is an interface's resolution of time, a power of ten.
	nanoseconds = 9
	// blockFrame is what a block has around its body: type, and length at either end.
	blockFrame = 12
)

// begin starts a block; finish ends it, once its body is there.
func begin(b []byte, kind uint32) (_ []byte, at int) {
	at = len(b)
	b = binary.LittleEndian.AppendUint32(b, kind)
	return append(b, 0, 0, 0, 0), at
}

func finish(b []byte, at int) []byte {
	size := uint32(len(b) - at + 4)
	binary.LittleEndian.PutUint32(b[at+4:], size)
	return binary.LittleEndian.AppendUint32(b, size)
}

func pad(b []byte, n int) []byte {
	var zero [3]byte
	return append(b, zero[:-n&3]...)
}

func option(b []byte, code uint16, value []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return pad(append(b, value...), len(value))
}

func option64(b []byte, code uint16, v uint64) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = append(b, 8, 0)
	return binary.LittleEndian.AppendUint64(b, v)
}

func endOptions(b []byte) []byte { return append(b, optEnd, 0, 0, 0) }

// appendSection appends a section header: what follows, up to the end of the file, is little-endian.
func appendSection(b []byte, application string) []byte {
	b, at := begin(b, blockSection)
	b = binary.LittleEndian.AppendUint32(b, byteOrderMagic)
	b = append(b, 1, 0, 0, 0)                        // version 1.0
	b = binary.LittleEndian.AppendUint64(b, 1<<64-1) // of unknown length
	b = endOptions(option(b, optAppl, []byte(application)))
	return finish(b, at)
}

// appendInterface appends the description of a local address.
func appendInterface(b []byte, addr netip.Addr) []byte {
	b, at := begin(b, blockInterface)
	b = append(b, linkRaw, 0, 0, 0, 0, 0, 0, 0) // no limit of length
	b = option(b, optName, []byte("roce "+addr.String()))
	b = option(b, optDescription, []byte("RoCEv2 of one process; IP and UDP headers are made up"))
	if a := addr.AsSlice(); len(a) == 4 {
		b = option(b, optIPv4, append(a, 255, 255, 255, 255))
	} else {
		b = option(b, optIPv6, append(a, 128))
	}
	b = option(b, optResolution, []byte{nanoseconds})
	return finish(endOptions(b), at)
}

// appendTime appends a time as packets and statistics have it.
func appendTime(b []byte, t time.Time) []byte {
	ns := uint64(t.UnixNano())
	b = binary.LittleEndian.AppendUint32(b, uint32(ns>>32))
	return binary.LittleEndian.AppendUint32(b, uint32(ns))
}

// appendPacket appends packet number i of a run. lost is how many the interface has lost since the one before.
func appendPacket(b []byte, n uint32, t time.Time, s *link.Sight, p []byte, i uint16, lost uint64) []byte {
	b, at := begin(b, blockPacket)
	b = binary.LittleEndian.AppendUint32(b, n)
	b = appendTime(b, t)
	size := ipSize(s.Src.Addr()) + udpSize + len(p)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = appendHeaders(b, s.Src, s.Dst, len(p), i)
	b = pad(append(b, p...), size)
	direction := byte(inbound)
	if s.Sent {
		direction = outbound
	}
	b = append(b, optFlags, 0, 4, 0, direction, 0, 0, 0)
	if lost > 0 {
		b = option64(b, optDropCount, lost)
	}
	return finish(endOptions(b), at)
}

const (
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
	// packetRoom bounds what a packet's block has besides the packet: frame, fixed fields, IPv6 and UDP headers,
	// padding and options.
	packetRoom = blockFrame + 20 + ipv6Size + udpSize + 3 + 8 + 12 + 4
	// statisticsSize is the size of the block that ends an interface's packets.
	statisticsSize = blockFrame + 12 + 12 + 12 + 4
)

func ipSize(a netip.Addr) int {
	if a.Is4() {
		return ipv4Size
	}
	return ipv6Size
}

const (
	protoUDP   = 17
	timeToLive = 64
)

// appendHeaders appends IP and UDP headers for n bytes. UDP checksums are zero, as those of RDMA devices often are.
func appendHeaders(b []byte, src, dst netip.AddrPort, n int, id uint16) []byte {
	size := uint16(udpSize + n)
	if src.Addr().Is4() {
		from, to := src.Addr().As4(), dst.Addr().As4()
		at := len(b)
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, ipv4Size+size)
		b = binary.BigEndian.AppendUint16(b, id)
		b = append(b, 0x40, 0, timeToLive, protoUDP, 0, 0) // don't fragment
		b = append(append(b, from[:]...), to[:]...)
		binary.BigEndian.PutUint16(b[at+10:], checksum(b[at:]))
	} else {
		from, to := src.Addr().As16(), dst.Addr().As16()
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, size)
		b = append(b, protoUDP, timeToLive)
		b = append(append(b, from[:]...), to[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, size)
	return append(b, 0, 0)
}

// checksum is that of an IPv4 header (RFC 791, 3.1).
func checksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// appendStatistics appends how many packets an interface had, and how many of them are not in the file.
func appendStatistics(b []byte, n uint32, t time.Time, packets, dropped uint64) []byte {
	b, at := begin(b, blockStatistics)
	b = binary.LittleEndian.AppendUint32(b, n)
	b = appendTime(b, t)
	b = option64(b, optReceived, packets)
	b = option64(b, optDropped, dropped)
	return finish(endOptions(b), at)
}
