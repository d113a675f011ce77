package isertest

import (
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Skipper is a link whose device skips a retransmission: a Write of one packet was lost, is due again, and is taken
// as sent and acknowledged. Its peer never sees it, and gets what follows with the sequence numbers from there on.
type Skipper struct {
	link.Link

	mu    sync.Mutex // guards what follows
	state skipState
	peer  netip.Addr // of the one that was
	to    wire.QPN
	at    wire.PSN
	out   []link.Burst
}

type skipState uint8

const (
	skipWaits skipState = iota
	skipLost
	skipDone
)

// Send implements link.Link.
func (s *Skipper) Send(bs []link.Burst) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = s.out[:0]
	for _, b := range bs {
		for p := b.Data; len(p) > 0; {
			k := min(len(p), b.Size)
			if s.passes(b.Path.Dst(), wire.Packet(p[:k])) {
				s.out = append(s.out, link.Burst{Path: b.Path, Data: p[:k], Size: k})
			}
			p = p[k:]
		}
	}
	return s.Link.Send(s.out)
}

// passes decides on a packet that is sent, and renumbers it.
func (s *Skipper) passes(to netip.Addr, p wire.Packet) bool {
	if !p.Opcode().Is(wire.Request) || p.DestQP() == wire.GSI {
		return true
	}
	if s.state == skipWaits && p.Opcode() == wire.WriteOnly && len(p.Payload()) >= sector {
		s.state, s.peer, s.to, s.at = skipLost, to, p.DestQP(), p.PSN()
		return false
	}
	if s.state == skipWaits || s.to != p.DestQP() {
		return true
	}
	d := p.PSN().Sub(s.at)
	if d == 0 {
		s.state = skipDone
		return false
	}
	if d > 0 && s.state == skipDone {
		p.SetPSN(p.PSN().Add(oneLess))
	}
	return true
}

const oneLess = 1<<24 - 1

// Recv implements link.Link: answers get the sequence numbers that the device knows.
func (s *Skipper) Recv(rs []link.Received, deadline time.Time) (int, error) {
	n, err := s.Link.Recv(rs, deadline)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rs[:n] {
		if r := &rs[i]; s.state == skipDone && r.From.Addr() == s.peer {
			s.renumber(r)
		}
	}
	return n, err
}

func (s *Skipper) renumber(r *link.Received) {
	path := wire.NewPath(r.From.Addr(), s.Addr())
	for b := r.Data; len(b) > 0; {
		k := min(len(b), r.Size)
		p, err := wire.Parse(b[:k:k])
		if err == nil && p.Opcode().Is(wire.Response) && !p.PSN().Before(s.at) && path.Verify(p, r.From.Port(), 0) {
			p.SetPSN(p.PSN().Add(1))
			path.Seal(p, r.From.Port(), 0)
		}
		b = b[k:]
	}
}
