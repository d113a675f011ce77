package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// LinkType says what a packet's data begins with (the LINKTYPE registry of tcpdump.org).
type LinkType uint16

// The link types that captures of RoCE have.
const (
	Ethernet LinkType = 1
	RawIP    LinkType = linkRaw
)

// Direction is which way a packet went, if the file tells.
type Direction uint8

// The directions.
const (
	Unknown  Direction = 0
	Inbound  Direction = inbound
	Outbound Direction = outbound
)

// A Packet is one record of a file.
type Packet struct {
	Time      time.Time
	LinkType  LinkType
	Interface string // its name, if the file has one
	Direction Direction
	Lost      uint64 // packets of the interface that are not in the file, since the one before
	Data      []byte // valid until the next call of Next
	Size      int    // of the packet when it was captured, bytes; Data may be less
}

// ErrFormat: not a capture, or a damaged one.
var ErrFormat = errors.New("not a pcap or pcapng file, or damaged")

const (
	// maxBlock bounds what is taken into memory at a time: the longest IP packet many times over.
	maxBlock = 1 << 20
	// maxReadInterfaces bounds the interfaces of a section.
	maxReadInterfaces = 4 * maxInterfaces
)

// The numbers that a pcap file begins with, for times in microseconds and in nanoseconds.
const (
	pcapMicro = 0xa1b2c3d4
	pcapNano  = 0xa1b23c4d
)

// A Reader reads a capture.
type Reader struct {
	r      *bufio.Reader
	order  binary.ByteOrder
	next   func(*Packet) error
	buf    []byte
	ifaces []source
	unit   uint64 // of a pcap file's time: 1000 for microseconds, 1 for nanoseconds
	link   LinkType
}

// A source is an interface of a pcapng section.
type source struct {
	link       LinkType
	name       string
	resolution byte
}

// NewReader begins to read a pcapng or pcap file, of either byte order.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{r: bufio.NewReaderSize(r, 64<<10)}
	head, err := d.r.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", ErrFormat)
	}
	if binary.LittleEndian.Uint32(head) == blockSection {
		d.next = d.block
		return d, nil
	}
	return d, d.pcap(head)
}

// Next reads the next packet. At the end of the file it returns io.EOF; where the file ends within a record, as one does
// whose writer was killed, io.ErrUnexpectedEOF; and where it makes no sense, an error that wraps ErrFormat.
func (d *Reader) Next(p *Packet) error {
	*p = Packet{}
	return d.next(p)
}

// take reads n bytes.
func (d *Reader) take(n int) ([]byte, error) {
	if cap(d.buf) < n {
		d.buf = make([]byte, n)
	}
	b := d.buf[:n]
	if _, err := io.ReadFull(d.r, b); err != nil {
		return nil, err
	}
	return b, nil
}

// within makes the end of the file one that came too early.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func bad(format string, args ...any) error {
	return fmt.Errorf("capture: %w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// pcap reads the header of a pcap file.
func (d *Reader) pcap(magic []byte) error {
	d.next = d.record
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(magic) {
		case pcapMicro:
			d.order, d.unit = order, 1000
		case pcapNano:
			d.order, d.unit = order, 1
		}
	}
	if d.order == nil {
		return fmt.Errorf("capture: %w", ErrFormat)
	}
	b, err := d.take(24)
	if err != nil {
		return fmt.Errorf("capture: file header: %w", within(err))
	}
	d.link = LinkType(d.order.Uint32(b[20:]))
	return nil
}

// record reads the next packet of a pcap file.
func (d *Reader) record(p *Packet) error {
	b, err := d.take(16)
	if err != nil {
		return err
	}
	sec, frac := d.order.Uint32(b), uint64(d.order.Uint32(b[4:]))
	n, size := d.order.Uint32(b[8:]), d.order.Uint32(b[12:])
	if n > maxBlock {
		return bad("a packet of %d bytes", n)
	}
	p.Time, p.LinkType, p.Size = time.Unix(int64(sec), int64(frac*d.unit)), d.link, int(size)
	if p.Data, err = d.take(int(n)); err != nil {
		return within(err)
	}
	return nil
}

// block reads blocks up to the next packet of a pcapng file.
func (d *Reader) block(p *Packet) error {
	for {
		kind, body, err := d.body()
		if err != nil {
			return err
		}
		switch kind {
		case blockSection:
			d.ifaces = d.ifaces[:0]
		case blockInterface:
			if err := d.source(body); err != nil {
				return err
			}
		case blockPacket:
			return d.packet(p, body)
		}
	}
}

// body reads a block.
func (d *Reader) body() (kind uint32, body []byte, err error) {
	head, err := d.r.Peek(blockFrame)
	if err != nil {
		if len(head) > 0 {
			err = within(err)
		}
		return 0, nil, err
	}
	if binary.LittleEndian.Uint32(head) == blockSection { // the same in both orders
		switch uint32(byteOrderMagic) {
		case binary.LittleEndian.Uint32(head[8:]):
			d.order = binary.LittleEndian
		case binary.BigEndian.Uint32(head[8:]):
			d.order = binary.BigEndian
		default:
			return 0, nil, bad("byte order %x", head[8:])
		}
	}
	kind = d.order.Uint32(head)
	n := d.order.Uint32(head[4:])
	if n < blockFrame || n > maxBlock || n%4 != 0 {
		return 0, nil, bad("a block of %d bytes", n)
	}
	b, err := d.take(int(n))
	if err != nil {
		return 0, nil, within(err)
	}
	if d.order.Uint32(b[n-4:]) != n {
		return 0, nil, bad("a block whose lengths differ")
	}
	return kind, b[8 : n-4], nil
}

// source takes the description of an interface.
func (d *Reader) source(b []byte) error {
	if len(b) < 8 || len(d.ifaces) >= maxReadInterfaces {
		return bad("interface description %d", len(d.ifaces))
	}
	s := source{link: LinkType(d.order.Uint16(b)), resolution: 6} // microseconds, unless it is said
	d.options(b[8:], func(code uint16, v []byte) {
		switch {
		case code == optName:
			s.name = string(v)
		case code == optResolution && len(v) == 1:
			s.resolution = v[0]
		}
	})
	d.ifaces = append(d.ifaces, s)
	return nil
}

// packet takes an enhanced packet block.
func (d *Reader) packet(p *Packet, b []byte) error {
	if len(b) < 20 {
		return bad("a packet's block of %d bytes", len(b))
	}
	n, size := d.order.Uint32(b[12:]), d.order.Uint32(b[16:])
	number, rest := d.order.Uint32(b), b[20:]
	if uint64(n) > uint64(len(rest)) || number >= uint32(len(d.ifaces)) {
		return bad("a packet of %d bytes on interface %d of %d", n, number, len(d.ifaces))
	}
	s := &d.ifaces[number]
	p.Time = instant(uint64(d.order.Uint32(b[4:]))<<32|uint64(d.order.Uint32(b[8:])), s.resolution)
	p.LinkType, p.Interface, p.Data, p.Size = s.link, s.name, rest[:n:n], int(size)
	d.options(rest[min(len(rest), int(n+3)&^3):], func(code uint16, v []byte) {
		switch {
		case code == optFlags && len(v) == 4:
			p.Direction = Direction(d.order.Uint32(v) & 3)
		case code == optDropCount && len(v) == 8:
			p.Lost = d.order.Uint64(v)
		}
	})
	return nil
}

// instant is the time that a count of units since 1970 stands for: 10^-r s, or 2^-r s with the top bit set. What is
// finer than nanoseconds is cut off; a resolution that 64 bits cannot hold a second of is none.
func instant(n uint64, r byte) time.Time {
	if binary := r&0x80 != 0; binary {
		r &= 0x7f
		if r > 63 {
			return time.Time{}
		}
		hi, lo := bits.Mul64(n&(1<<r-1), 1e9)
		return time.Unix(int64(n>>r), int64(hi<<(64-r)|lo>>r))
	}
	if r > 19 {
		return time.Time{}
	}
	unit := uint64(1)
	for range r {
		unit *= 10
	}
	sec, frac := n/unit, n%unit
	for ; r > 9; r-- {
		frac /= 10
	}
	for ; r < 9; r++ {
		frac *= 10
	}
	return time.Unix(int64(sec), int64(frac))
}

// options calls f for each option; what makes no sense ends them.
func (d *Reader) options(b []byte, f func(code uint16, v []byte)) {
	for len(b) >= 4 {
		code, n := d.order.Uint16(b), int(d.order.Uint16(b[2:]))
		if code == optEnd || 4+n > len(b) {
			return
		}
		f(code, b[4:4+n])
		b = b[min(len(b), 4+(n+3)&^3):]
	}
}
