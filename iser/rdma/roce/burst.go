package roce

import (
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

const (
	// roomBytes is what a queue pair sends in a round: 64 KiB of payload and its headers.
	roomBytes = 64<<10 + 64*wire.MaxHeaders
	// roomBursts is how many runs of equal packets that may be; a message has three at most.
	roomBursts = 48
)

// An outgoing is the room for the packets of a round. Runs of equal packets become one burst, whose last may be
// shorter: what the kernel cuts up in one piece.
type outgoing struct {
	path   *wire.Path
	buf    []byte
	used   int
	bursts []link.Burst
	ended  bool // the last burst has had its shorter packet
}

func newOutgoing(path *wire.Path) *outgoing {
	return &outgoing{path: path, buf: make([]byte, roomBytes), bursts: make([]link.Burst, 0, roomBursts)}
}

// packet lays out the next packet; nil if there is no room.
func (o *outgoing) packet(op wire.Opcode, n int) wire.Packet {
	size := op.HeaderSize() + n + (-n & 3) + wire.ICRCSize
	if len(o.buf)-o.used < size {
		return nil
	}
	last := len(o.bursts) - 1
	if last < 0 || o.ended || size > o.bursts[last].Size {
		if len(o.bursts) == cap(o.bursts) {
			return nil
		}
		o.bursts = append(o.bursts, link.Burst{Path: o.path, Data: o.buf[o.used:o.used], Size: size})
		o.ended = false
		last++
	}
	b := &o.bursts[last]
	o.ended = size < b.Size
	p := wire.New(o.buf[o.used:], op, n)
	o.used += size
	b.Data = b.Data[:len(b.Data)+size]
	return p
}

// again repeats the last packet, if there is room.
func (o *outgoing) again() {
	b := &o.bursts[len(o.bursts)-1]
	size := len(b.Data) % b.Size
	if size == 0 {
		size = b.Size
	}
	last := wire.Packet(b.Data[len(b.Data)-size:])
	if p := o.packet(last.Opcode(), len(last.Payload())); p != nil {
		copy(p, last)
	}
}

// reset gives the room back.
func (o *outgoing) reset() {
	o.used, o.bursts, o.ended = 0, o.bursts[:0], false
}
