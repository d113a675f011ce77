package roce_test

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// Faults are what a watched provider does wrong, below the checks.
type faults struct {
	earlyRead  bool // an RDMA Read completes before its data is in memory
	earlySend  bool // a message is delivered before the data of the RDMA Writes before it is in memory
	staleOffer bool // an RDMA Write for a command that has been answered is still let in, where its memory is in use again
	endedOffer bool // the same, where its memory is not in use
	swapped    bool // two completions change places
	twice      bool // a completion is given twice
	reused     bool // what a Send reads is overwritten once it is posted

	armed bool // a disk is there: so it is about its data, and not the login that fails
	late  []placement
}

// A placement is data that is put in memory when it is too late.
type placement struct{ mem, data []byte }

// posting is called before a work request is posted.
func (f *faults) posting(w *watch, p *post) {
	if f.earlyRead && p.op == rdma.OpRead {
		for _, e := range p.sgl {
			p.before = append(p.before, w.bytes(e)...)
		}
	}
}

// posted is called after work requests were posted.
func (f *faults) posted(w *watch, wrs []rdma.SendWR) {
	for i := range wrs {
		if f.reused && isSend(wrs[i].Op) {
			b := w.first(wrs[i].SGL)
			b[len(b)-1] ^= 1
		}
	}
}

// place puts what is late in its place.
func (f *faults) place() {
	for _, l := range f.late {
		copy(l.mem, l.data)
	}
	f.late = f.late[:0]
}

// polled is called with completions before they are checked.
func (f *faults) polled(w *watch, cs []rdma.Completion) {
	f.place()
	for i := range cs {
		if f.earlyRead && !cs[i].Recv && cs[i].Status == rdma.Success {
			f.unread(w, &cs[i])
		}
		if i == 0 || cs[i].QPNum != cs[i-1].QPNum || cs[i].Recv != cs[i-1].Recv {
			continue
		}
		switch {
		case f.swapped:
			cs[i], cs[i-1] = cs[i-1], cs[i]
		case f.twice:
			cs[i] = cs[i-1]
		}
	}
}

// unread takes the data of an RDMA Read away until the next poll.
func (f *faults) unread(w *watch, c *rdma.Completion) {
	q := w.qps[c.QPNum]
	i := slices.IndexFunc(q.sends.posted, func(p post) bool { return p.id == c.ID && p.op == rdma.OpRead })
	if i < 0 {
		return
	}
	before := q.sends.posted[i].before
	for _, e := range q.sends.posted[i].sgl {
		b := w.bytes(e)
		f.delay(b, before)
		before = before[len(b):]
	}
}

// delay puts back what mem held before, until the next poll.
func (f *faults) delay(mem, before []byte) {
	f.late = append(f.late, placement{mem, bytes.Clone(mem)})
	copy(mem, before)
}

// offered is called when memory is offered to the peer, again if old is not nil.
func (f *faults) offered(o, old *offer) {
	if f.armed && f.earlySend && o.write && o.before == nil {
		o.before = bytes.Clone(o.mem())
	}
	if f.armed && f.staleOffer && o.write && old != nil {
		o.stale, old.before = old, bytes.Clone(old.mem())
	}
}

// answered is called when the response of the command that has offered memory is delivered.
func (f *faults) answered(o *offer) {
	if f.earlySend && o.before != nil {
		f.delay(o.mem(), o.before)
	}
	if f.armed && f.endedOffer && o.write {
		late := bytes.Clone(o.mem())
		late[0] ^= 1
		f.late = append(f.late, placement{o.mem(), late})
	}
	if s := o.stale; s != nil {
		copy(s.mem(), s.before)
		o.stale = nil
	}
}

// A skipper is a link whose device skips a retransmission: a Write of one packet was lost, is due again, and is taken
// as sent and acknowledged. Its peer never sees it, and gets what follows with the sequence numbers from there on.
type skipper struct {
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
func (s *skipper) Send(bs []link.Burst) error {
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
func (s *skipper) passes(to netip.Addr, p wire.Packet) bool {
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
func (s *skipper) Recv(rs []link.Received, deadline time.Time) (int, error) {
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

func (s *skipper) renumber(r *link.Received) {
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
