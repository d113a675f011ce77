package cm_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
)

const port = 3260

var (
	activeAddr  = netip.MustParseAddr("10.0.0.2")
	passiveAddr = netip.MustParseAddr("10.0.0.1")
	strangeAddr = netip.MustParseAddr("10.0.0.9")
)

func names(a netip.Addr) string {
	return map[netip.Addr]string{activeAddr: "active", passiveAddr: "passive", strangeAddr: "stranger"}[a]
}

// A side is a manager and its user, who says yes to every request unless told otherwise.
type side struct {
	w     *world
	addr  netip.Addr
	m     *cm.Manager
	conn  *cm.Conn // the latest
	slow  bool     // the user answers by hand
	no    cm.Reason
	news  map[cm.Kind]int
	why   cm.Action // of Refused
	freed []*cm.Conn
	calls uint32 // answered
}

// A world joins two sides through a queue of messages, under a clock of its own.
type world struct {
	t     testing.TB
	now   time.Time
	a, p  *side
	queue []cm.Action
	from  []netip.Addr
	log   []string
	// deliver is how often the message number n (from 1) arrives; nil: once.
	deliver func(n int) int
	n       int
	calls   uint32
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, now: time.Unix(1000, 0)}
	w.a, w.p = w.side(activeAddr, 1), w.side(passiveAddr, 2)
	w.p.step(cm.Listen{Port: port})
	return w
}

func (w *world) side(addr netip.Addr, seed uint64) *side {
	s := &side{w: w, addr: addr, news: make(map[cm.Kind]int)}
	s.m = cm.New(cm.Config{
		GUID: 0xa0 + seed, Addr: addr, MTU: func(netip.Addr) int { return 1024 }, Rand: rand.New(rand.NewPCG(seed, seed)),
	})
	return s
}

var kinds = map[cm.Kind]string{
	cm.NewRequest: "new request", cm.Connected: "connected", cm.Confirmed: "confirmed", cm.Refused: "refused",
	cm.Unreachable: "unreachable", cm.Disconnected: "disconnected", cm.Freed: "freed",
}

var attributes = map[cm.Attribute]string{
	cm.AttrREQ: "REQ", cm.AttrMRA: "MRA", cm.AttrREJ: "REJ", cm.AttrREP: "REP", cm.AttrRTU: "RTU", cm.AttrDREQ: "DREQ", cm.AttrDREP: "DREP",
}

// describe names a message, and a REJ's reason.
func describe(t testing.TB, mad []byte) string {
	h, body, err := cm.ParseHeader(mad)
	require.NoError(t, err)
	if h.Attribute == cm.AttrREJ {
		var r cm.REJ
		require.NoError(t, r.Parse(body))
		return fmt.Sprintf("REJ %d", r.Reason)
	}
	return attributes[h.Attribute]
}

// step gives a side an event and does what it says.
func (s *side) step(ev cm.Event) {
	for _, a := range s.m.Step(s.w.now, ev) {
		if a.Kind == cm.SendMAD {
			s.w.log = append(s.w.log, fmt.Sprintf("%s: %s", names(s.addr), describe(s.w.t, a.MAD[:])))
			s.w.queue, s.w.from = append(s.w.queue, a), append(s.w.from, s.addr)
			continue
		}
		s.w.log = append(s.w.log, fmt.Sprintf("%s: %s", names(s.addr), kinds[a.Kind]))
		s.news[a.Kind]++
		switch a.Kind {
		case cm.NewRequest:
			s.conn = a.Conn
			if !s.slow {
				s.answer()
			}
		case cm.Refused:
			s.why = a
		case cm.Freed:
			s.freed = append(s.freed, a.Conn)
		}
	}
}

// answer accepts or rejects the latest request.
func (s *side) answer() {
	if s.no != 0 {
		s.step(cm.Reject{Conn: s.conn, Reason: s.no, Private: []byte("why")})
		return
	}
	rep := cm.REP{QPN: 0x200 + s.calls, PSN: 0x201, ResponderResources: 2, InitiatorDepth: 3}
	s.calls++
	copy(rep.Private[:], "reply")
	s.step(cm.Accept{Conn: s.conn, REP: rep})
}

// connect makes the active side ask.
func (w *world) connect() *cm.Conn {
	c := &cm.Conn{Peer: passiveAddr}
	c.REQ = cm.REQ{
		ServiceID: cm.ServiceID(port), QPN: 0x100 + w.calls, PSN: 0x101, ResponderResources: 4, InitiatorDepth: 5, MTU: 3, AckTimeout: 18, SrcPort: 50000,
	}
	copy(c.REQ.Private[:], "request")
	w.calls++
	w.a.conn = c
	w.a.step(cm.Connect{Conn: c})
	return c
}

func (w *world) to(a netip.Addr) *side {
	switch a {
	case activeAddr:
		return w.a
	case passiveAddr:
		return w.p
	}
	return nil
}

// settle delivers messages until there are none.
func (w *world) settle() {
	for len(w.queue) > 0 {
		a, from := w.queue[0], w.from[0]
		w.queue, w.from = w.queue[1:], w.from[1:]
		w.n++
		times := 1
		if w.deliver != nil {
			times = w.deliver(w.n)
		}
		for range times {
			if s := w.to(a.To); s != nil {
				s.step(cm.Packet{From: from, MAD: a.MAD[:]})
			}
		}
		require.Less(w.t, w.n, 1000, "the sides talk for ever")
	}
}

// pass lets time go by, with all timers.
func (w *world) pass(d time.Duration) {
	for end := w.now.Add(d); ; {
		w.settle()
		next := end
		for _, s := range []*side{w.a, w.p} {
			if d := s.m.Deadline(); !d.IsZero() && d.Before(next) {
				next = d
			}
		}
		if !next.After(w.now) && next.Before(end) {
			next = w.now
		}
		w.now = next
		if next.Equal(end) {
			return
		}
		for _, s := range []*side{w.a, w.p} {
			if d := s.m.Deadline(); !d.IsZero() && !d.After(w.now) {
				s.step(cm.Tick{})
			}
		}
	}
}

// established makes a connection.
func (w *world) established() (a, p *cm.Conn) {
	w.connect()
	w.settle()
	require.Equal(w.t, 1, w.a.news[cm.Connected])
	require.Equal(w.t, 1, w.p.news[cm.Confirmed])
	w.log = nil
	return w.a.conn, w.p.conn
}

// mad writes a message.
func mad(m message) []byte {
	var b [cm.MADSize]byte
	m.Put(&b, 99)
	return b[:]
}
