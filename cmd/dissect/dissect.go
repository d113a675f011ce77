// Package dissect says in words what the packets of a capture are: RoCEv2, the connection manager's messages, iSER and
// iSCSI. It reads them with the code that reads them in earnest, and believes nothing that they say.
package dissect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Packet is what is known of one. A field that it has not is empty.
type Packet struct {
	Time      time.Time `json:"time"`
	Direction string    `json:"direction,omitempty"` // "in" or "out" of who captured
	Lost      uint64    `json:"lost,omitempty"`      // packets that are missing before it
	Src       string    `json:"src"`
	Dst       string    `json:"dst"`
	QP        uint32    `json:"qp"` // the destination
	PSN       uint32    `json:"psn"`
	Opcode    string    `json:"opcode"`
	Bytes     int       `json:"bytes"`             // of payload
	Summary   string    `json:"summary,omitempty"` // of what it carries
	Problem   string    `json:"problem,omitempty"` // what is wrong with it
}

// maxKnown bounds the tasks, keys and paths that are remembered. When there are so many of one they are all forgotten: what
// is shown of those in flight is lost then, and nothing else.
const maxKnown = 1 << 16

// maxPayload is the largest path MTU (IBTA 9.6).
const maxPayload = 4096

// A Dissector remembers, from packet to packet, which task a key or a response belongs to.
type Dissector struct {
	paths map[[2]netip.Addr]*wire.Path
	tasks map[taskID]string // the names of commands
	keys  map[keyID]uint32  // whose task they are
}

// A taskID is a task of an initiator with a target: two sessions between one pair of hosts are told apart by luck alone.
type taskID struct {
	initiator, target netip.Addr
	itt               uint32
}

// A keyID is a key of an initiator.
type keyID struct {
	owner netip.Addr
	key   uint32
}

// New makes a dissector for one capture.
func New() *Dissector {
	return &Dissector{paths: map[[2]netip.Addr]*wire.Path{}, tasks: map[taskID]string{}, keys: map[keyID]uint32{}}
}

// remember adds to a map that is bounded: it begins anew when it is full.
func remember[K comparable, V any](m map[K]V, k K, v V) {
	if len(m) >= maxKnown {
		clear(m)
	}
	m[k] = v
}

// Packet dissects a packet. It reports false for one that is not RoCEv2.
func (d *Dissector) Packet(c *capture.Packet) (Packet, bool) {
	f, ok := parseFrame(c)
	if !ok {
		return Packet{}, false
	}
	p := Packet{Time: c.Time, Lost: c.Lost, Src: f.src.String(), Dst: f.dst.String()}
	switch c.Direction {
	case capture.Inbound:
		p.Direction = "in"
	case capture.Outbound:
		p.Direction = "out"
	}
	if f.cut {
		p.Problem = "cut off when captured"
		return p, true
	}
	w, err := wire.Parse(f.payload)
	if err != nil {
		p.Problem = err.Error()
		return p, true
	}
	p.QP, p.PSN, p.Opcode, p.Bytes = uint32(w.DestQP()), uint32(w.PSN()), w.Opcode().String(), len(w.Payload())
	if len(w.Payload()) > maxPayload {
		p.Problem = "several packets in one: captured where the sender's interface had not cut them up yet"
		return p, true
	}
	if !d.path(&f).Verify(w, f.port, f.id) {
		p.Problem = "bad ICRC"
		return p, true // whatever it says
	}
	p.Summary = d.transport(&f, w)
	return p, true
}

// path is the one that a packet's ICRC goes by.
func (d *Dissector) path(f *frame) *wire.Path {
	k := [2]netip.Addr{f.src, f.dst}
	w := d.paths[k]
	if w == nil {
		w = wire.NewPath(f.src, f.dst)
		remember(d.paths, k, w)
	}
	return w
}

// A frame is a UDP datagram to RoCE's port.
type frame struct {
	src, dst netip.Addr
	port     uint16 // it comes from
	id       uint16 // of IPv4
	payload  []byte
	cut      bool // payload is not all of it
}

const (
	etherSize  = 14
	vlanSize   = 4
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	etherVLAN  = 0x8100
	ipv4Size   = 20
	ipv6Size   = 40
	udpSize    = 8
	protoUDP   = 17
	fragmented = 0x3fff // more fragments, and the offset
)

// parseFrame takes a packet apart down to UDP.
func parseFrame(c *capture.Packet) (f frame, ok bool) {
	b := c.Data
	switch c.LinkType {
	case capture.RawIP:
	case capture.Ethernet:
		if len(b) >= etherSize+vlanSize && binary.BigEndian.Uint16(b[12:]) == etherVLAN {
			b = b[vlanSize:]
		}
		if len(b) < etherSize {
			return f, false
		}
		if t := binary.BigEndian.Uint16(b[12:]); t != etherIPv4 && t != etherIPv6 {
			return f, false
		}
		b = b[etherSize:]
	default:
		return f, false
	}
	if len(b) == 0 {
		return f, false
	}
	if b[0]>>4 == 4 {
		b, ok = f.ipv4(b)
	} else {
		b, ok = f.ipv6(b)
	}
	return f, ok && f.udp(b)
}

func (f *frame) ipv4(b []byte) (rest []byte, ok bool) {
	if len(b) < ipv4Size {
		return nil, false
	}
	size := int(b[0]&0xf) * 4
	if size < ipv4Size || len(b) < size || b[9] != protoUDP || binary.BigEndian.Uint16(b[6:])&fragmented != 0 {
		return nil, false
	}
	f.id = binary.BigEndian.Uint16(b[4:])
	f.src, f.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return b[size:], true
}

func (f *frame) ipv6(b []byte) (rest []byte, ok bool) {
	if len(b) < ipv6Size || b[0]>>4 != 6 || b[6] != protoUDP {
		return nil, false
	}
	f.src, f.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	return b[ipv6Size:], f.src.Is4In6() == f.dst.Is4In6()
}

func (f *frame) udp(b []byte) bool {
	if len(b) < udpSize || binary.BigEndian.Uint16(b[2:]) != wire.Port {
		return false
	}
	f.port = binary.BigEndian.Uint16(b)
	n := int(binary.BigEndian.Uint16(b[4:])) - udpSize
	b = b[udpSize:]
	if n < 0 {
		return false
	}
	f.cut = n > len(b)
	f.payload = b[:min(n, len(b))]
	return true
}

// transport is what the headers behind the BTH say, and what they carry.
func (d *Dissector) transport(f *frame, w wire.Packet) string {
	op := w.Opcode()
	switch {
	case w.DestQP() == wire.GSI && op == wire.UDSendOnly:
		return message(w.Payload())
	case op.HasRETH():
		va, key, n := w.RETH()
		s := fmt.Sprintf("key 0x%08x va 0x%016x, %d bytes", key, va, n)
		if itt, ok := d.keys[keyID{f.dst, key}]; ok {
			s += fmt.Sprintf(", of ITT 0x%x", itt)
			if name := d.tasks[taskID{f.dst, f.src, itt}]; name != "" {
				s += " " + name
			}
		}
		return s
	case op == wire.Acknowledge:
		return acknowledgement(w)
	case op.Is(wire.Send | wire.First):
		s := d.iser(f, w.Payload(), op.Is(wire.Last))
		if op.HasIETH() {
			s = fmt.Sprintf("%s; invalidates 0x%08x", s, w.InvalidateKey())
		}
		return s
	case op.HasIETH():
		return fmt.Sprintf("invalidates 0x%08x", w.InvalidateKey())
	}
	return ""
}

// acknowledgement is what an AETH says (IBTA 9.7.5.2).
func acknowledgement(w wire.Packet) string {
	syndrome, msn := w.AETH()
	switch {
	case syndrome.IsAck():
		return fmt.Sprintf("MSN %d", msn)
	case syndrome.IsRNR():
		return fmt.Sprintf("receiver not ready, timer %d", syndrome&0x1f)
	case syndrome == wire.NakSequence:
		return "NAK: sequence error"
	case syndrome == wire.NakInvalidRequest:
		return "NAK: invalid request"
	case syndrome == wire.NakRemoteAccess:
		return "NAK: remote access error"
	case syndrome == wire.NakRemoteOp:
		return "NAK: remote operational error"
	}
	return fmt.Sprintf("syndrome 0x%02x", uint8(syndrome))
}
