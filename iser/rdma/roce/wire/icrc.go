package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// A Path is one direction between two addresses, as the ICRC covers it (IBTA annex A17). It has scratch memory: use
// it from one goroutine.
type Path struct {
	src, dst netip.Addr
	buf      [8 + 40 + 8]byte // LRH stand-in, IP and UDP with their variant fields masked
	ip       int              // IP header size
	prefixes [cached]prefix   // of the last few lengths and ports
	next     int              // the prefix to be replaced
	solver   solver
}

// cached is how many lengths a Path has intermediate results of: messages of one size are of up to four lengths of
// packets, and the acknowledgements between them are a fifth.
const cached = 8

// A prefix is the CRC of what precedes the BTH, for packets of n bytes from a UDP port, with identification 0.
type prefix struct {
	n, port uint16
	crc     uint32
}

const (
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
	lrhSize  = 8
	protoUDP = 17
)

// NewPath makes the path from src to dst, both of one family. IPv4-mapped addresses count as IPv4.
func NewPath(src, dst netip.Addr) *Path {
	p := &Path{src: src.Unmap(), dst: dst.Unmap()}
	for i := range lrhSize {
		p.buf[i] = 0xff
	}
	ip := p.buf[lrhSize:]
	if p.src.Is4() {
		p.ip = ipv4Size
		ip[0] = 0x45
		ip[1] = 0xff              // type of service
		ip[6] = 0x40              // don't fragment
		ip[8] = 0xff              // time to live
		ip[9] = protoUDP          //
		ip[10], ip[11] = 255, 255 // header checksum
		copy(ip[12:], p.src.AsSlice())
		copy(ip[16:], p.dst.AsSlice())
	} else {
		p.ip = ipv6Size
		ip[0], ip[1], ip[2], ip[3] = 0x6f, 0xff, 0xff, 0xff
		ip[6], ip[7] = protoUDP, 0xff
		copy(ip[8:], p.src.AsSlice())
		copy(ip[24:], p.dst.AsSlice())
	}
	udp := ip[p.ip:]
	binary.BigEndian.PutUint16(udp[2:], Port)
	udp[6], udp[7] = 0xff, 0xff // checksum
	return p
}

// Src and Dst are the path's ends.
func (p *Path) Src() netip.Addr { return p.src }

// Dst is the receiver's address.
func (p *Path) Dst() netip.Addr { return p.dst }

// IPOverhead is the size of the IP and UDP headers, in bytes.
func (p *Path) IPOverhead() int { return p.ip + udpSize }

// idLow and idHigh are what the bytes of an identification change in the CRC up to the BTH: a CRC is linear.
var idLow, idHigh = idTables()

func idTables() (low, high [256]uint32) {
	var b [ipv4Size - 4 + udpSize]byte // from the identification on
	zero := crc32.ChecksumIEEE(b[:])
	for i := range 256 {
		b[0], b[1] = byte(i), 0
		high[i] = crc32.ChecksumIEEE(b[:]) ^ zero
		b[0], b[1] = 0, byte(i)
		low[i] = crc32.ChecksumIEEE(b[:]) ^ zero
	}
	return low, high
}

// bthTables are what each byte of a BTH, and of the CRC before it, changes in the CRC up to its end.
var bthTables = makeBTHTables()

func makeBTHTables() (ts [BTHSize][256]uint32) {
	for i := range ts {
		for v := range 256 {
			crc := crc32.IEEETable[v]
			for range BTHSize - 1 - i { // the bytes behind it
				crc = crc32.IEEETable[byte(crc)] ^ crc>>8
			}
			ts[i][v] = crc
		}
	}
	return ts
}

// addBTH goes on with a CRC over a packet's BTH, of which FECN, BECN and reserved bits may change on the way. It does
// what crc32.Update would byte by byte, one waiting for the other.
func addBTH(crc uint32, b Packet) uint32 {
	_ = b[BTHSize-1]
	t, crc := &bthTables, ^crc^binary.LittleEndian.Uint32(b)
	return ^(t[0][byte(crc)] ^ t[1][byte(crc>>8)] ^ t[2][byte(crc>>16)] ^ t[3][crc>>24] ^
		t[4][0xff] ^ t[5][b[5]] ^ t[6][b[6]] ^ t[7][b[7]] ^ t[8][b[8]] ^ t[9][b[9]] ^ t[10][b[10]] ^ t[11][b[11]])
}

// start is the CRC of what precedes the BTH of a packet of n bytes.
func (p *Path) start(n, port uint16) uint32 {
	for i := range p.prefixes {
		if c := &p.prefixes[i]; c.n == n && c.port == port {
			return c.crc
		}
	}
	ip, size := p.buf[lrhSize:], udpSize+n
	if p.ip == ipv4Size {
		binary.BigEndian.PutUint16(ip[2:], ipv4Size+size)
	} else {
		binary.BigEndian.PutUint16(ip[4:], size)
	}
	udp := ip[p.ip:]
	binary.BigEndian.PutUint16(udp[0:], port)
	binary.BigEndian.PutUint16(udp[4:], size)
	c := &p.prefixes[p.next]
	p.next = (p.next + 1) % cached
	*c = prefix{n, port, crc32.ChecksumIEEE(p.buf[:lrhSize+p.ip+udpSize])}
	return c.crc
}

// sum is the ICRC of a packet as an integer: sent from a UDP port, with an IPv4 identification.
func (p *Path) sum(pkt Packet, port, id uint16) uint32 {
	crc := p.start(uint16(len(pkt)), port)
	if p.ip == ipv4Size {
		crc ^= idLow[id&0xff] ^ idHigh[id>>8]
	}
	return crc32.Update(addBTH(crc, pkt), crc32.IEEETable, pkt[BTHSize:len(pkt)-ICRCSize])
}

// Seal writes the ICRC for a packet to be sent from a UDP port with an IPv4 identification: 0 from a plain socket,
// i for segment i of a burst that the kernel cuts up.
func (p *Path) Seal(pkt Packet, port, id uint16) {
	binary.LittleEndian.PutUint32(pkt[len(pkt)-ICRCSize:], p.sum(pkt, port, id))
}

// Verify reports whether the ICRC of a packet received from a UDP port is right. A UDP socket does not show the
// IPv4 identification that the ICRC covers. guess is tried first: i for packet i of a run that the kernel has joined,
// since it is numbered so (see Seal). Where that is wrong it is solved for: the check is then 2^-15 weak instead of 2^-32.
func (p *Path) Verify(pkt Packet, port, guess uint16) bool {
	got := binary.LittleEndian.Uint32(pkt[len(pkt)-ICRCSize:])
	diff := got ^ p.sum(pkt, port, guess)
	if diff == 0 {
		return true
	}
	if p.ip != ipv4Size {
		return false
	}
	// The identification and fragment fields are followed by 12 bytes of IP header and what UDP carries.
	_, flags := p.solver.solve(diff, ipv4Size-8+udpSize+len(pkt)-ICRCSize)
	return flags == fragDF || flags == fragNone
}

// IPv4 flags and fragment offset, in the order of the solver's bytes: don't fragment was assumed, so a difference
// of none means that it was set.
const (
	fragDF   = 0x0000
	fragNone = 0x0040
)

// A solver finds the four IPv4 header bytes (identification, flags and fragment offset) that explain a wrong ICRC.
// A CRC is linear: the difference of two CRCs is that of the messages, moved on by the bytes that follow.
type solver struct {
	lengths [4]int // the last few lengths and their multipliers
	factors [4]uint32
	next    int
}

const crcPoly = 0xedb88320

// crcMul multiplies polynomials modulo the CRC's, bits reflected: bit 31 is x^0.
func crcMul(a, b uint32) (r uint32) {
	for range 32 {
		if a&0x80000000 != 0 {
			r ^= b
		}
		a <<= 1
		if b&1 != 0 {
			b = b>>1 ^ crcPoly
		} else {
			b >>= 1
		}
	}
	return r
}

// crcBack divides by x.
func crcBack(r uint32) uint32 {
	if r&0x80000000 != 0 {
		return (r^crcPoly)<<1 | 1
	}
	return r << 1
}

// factor is x^(-8n).
func factor(n int) uint32 {
	f := uint32(0x80000000) // 1
	sq := f
	for range 8 {
		sq = crcBack(sq) // x^-8
	}
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			f = crcMul(f, sq)
		}
		sq = crcMul(sq, sq)
	}
	return f
}

// solve finds the difference of the identification and of the flags, given the CRC's and the number of covered
// bytes behind them.
func (s *solver) solve(diff uint32, behind int) (id, flags uint16) {
	d := crcMul(s.factor(behind+4), diff)
	return uint16(d)<<8 | uint16(d)>>8, uint16(d >> 16)
}

func (s *solver) factor(n int) uint32 {
	for i, l := range s.lengths {
		if l == n {
			return s.factors[i]
		}
	}
	f := factor(n)
	s.lengths[s.next], s.factors[s.next] = n, f
	s.next = (s.next + 1) % len(s.lengths)
	return f
}
