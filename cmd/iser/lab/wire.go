package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A rule decides whether a packet that is sent to an address goes on its way: false loses it.
type rule func(to netip.Addr, p wire.Packet) bool

// A wireLink is an end's link: it loses what its rule says, and notes what arrives.
type wireLink struct {
	link.Link
	w    *world
	name string

	mu      sync.Mutex // guards what follows, but streams, which the receiver owns
	passes  rule       // nil: all
	out     []link.Burst
	streams map[stream]*arrivals
}

// A stream is the requests to one queue pair.
type stream struct {
	from netip.Addr
	to   wire.QPN
}

// arrivals follow the RDMA Writes of a stream: a device takes packets in order, each once (IBTA 9.7.4.1), and puts their
// data in its place as they come.
type arrivals struct {
	started bool
	next    wire.PSN
	key     uint32
	addr    uint64
	length  uint32
	word    uint32
}

// Send implements link.Link.
func (l *wireLink) Send(bs []link.Burst) error {
	l.mu.Lock()
	defer l.mu.Unlock() // several queue pairs may send at once
	if l.passes == nil {
		return l.Link.Send(bs)
	}
	l.out = l.out[:0]
	for _, b := range bs {
		for p := b.Data; len(p) > 0; {
			k := min(len(p), b.Size)
			if pkt := wire.Packet(p[:k]); pkt.DestQP() == wire.GSI || l.passes(b.Path.Dst(), pkt) {
				l.out = append(l.out, link.Burst{Path: b.Path, Data: p[:k], Size: k})
			} else {
				l.w.rec.add(packetEvent(whatSent, l.name, l.w.nameOf(b.Path.Dst()), pkt, "lost"))
			}
			p = p[k:]
		}
	}
	return l.Link.Send(l.out)
}

// lose has the link lose what r says no to; nil: nothing.
func (l *wireLink) lose(r rule) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passes = r
}

// Recv implements link.Link.
func (l *wireLink) Recv(rs []link.Received, deadline time.Time) (int, error) {
	n, err := l.Link.Recv(rs, deadline)
	if l.w.rec != nil {
		for i := range rs[:n] {
			l.note(&rs[i])
		}
	}
	return n, err
}

// note records what has arrived whole.
func (l *wireLink) note(r *link.Received) {
	path := wire.NewPath(r.From.Addr(), l.Addr())
	for b := r.Data; len(b) > 0; {
		k := min(len(b), r.Size)
		if p, err := wire.Parse(b[:k:k]); err == nil && p.DestQP() != wire.GSI && path.Verify(p, r.From.Port(), 0) {
			l.w.rec.add(packetEvent(whatArrives, l.name, l.w.nameOf(r.From.Addr()), p, ""))
			l.placed(r.From.Addr(), p)
		}
		b = b[k:]
	}
}

// placed records the end of an RDMA Write.
func (l *wireLink) placed(from netip.Addr, p wire.Packet) {
	op := p.Opcode()
	if !op.Is(wire.Request) {
		return
	}
	a := l.streams[stream{from, p.DestQP()}]
	if a == nil {
		a = &arrivals{}
		l.streams[stream{from, p.DestQP()}] = a
	}
	if a.started && a.next != p.PSN() {
		return
	}
	a.started, a.next = true, p.PSN().Add(1)
	if op.Is(wire.Read) {
		_, _, n := p.RETH()
		a.next = p.PSN().Add(max(1, (n+l.w.mtu-1)/l.w.mtu))
	}
	if !op.Is(wire.Write) {
		return
	}
	if op.Is(wire.First) {
		a.addr, a.key, a.length = p.RETH()
		a.word = firstWord(p.Payload())
	}
	if op.Is(wire.Last) {
		l.w.rec.add(Event{Where: l.name, What: whatPlaced, Of: "RDMA Write", Key: a.key, Addr: a.addr, Length: a.length, Word: a.word})
	}
}

func firstWord(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// packetEvent tells of a packet at the end called where.
func packetEvent(what, where, peer string, p wire.Packet, note string) Event {
	e := Event{Where: where, What: what, Of: p.Opcode().String(), To: peer, PSN: uint32(p.PSN()), Length: uint32(len(p.Payload())), Note: note}
	switch {
	case p.Opcode().HasRETH():
		e.Addr, e.Key, _ = p.RETH()
	case p.Opcode() == wire.Acknowledge:
		s, _ := p.AETH()
		if !s.IsAck() {
			e.Of = fmt.Sprintf("NAK %#x", uint8(s))
		}
	case p.Opcode().HasIETH():
		e.Key = p.InvalidateKey()
	}
	return e
}

// tap records what is sent and what becomes of it.
func (w *world) tap(e link.Event) {
	p, err := wire.Parse(e.Packet)
	if err != nil || p.DestQP() == wire.GSI {
		return
	}
	note := ""
	if e.Fate != link.Arrives {
		note = e.Fate.String()
	}
	w.rec.add(packetEvent(whatSent, w.nameOf(e.From), w.nameOf(e.To), p, note))
}
