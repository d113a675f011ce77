package link

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Weather is what happens to packets on the way from one address to another. Chances are 0 to 1 for each packet.
type Weather struct {
	Loss    float64
	Corrupt float64 // of arriving with one bit wrong
	// BurstLoss is the chance that a packet begins a run of BurstLength packets that are all lost.
	BurstLoss   float64
	BurstLength int
	// Duplicate is the chance of arriving twice, the second time up to ReorderWindow later.
	Duplicate float64
	// Reorder is the chance of being held back up to ReorderWindow (0: DefaultReorderWindow), so that later packets
	// overtake. Others keep their order.
	Reorder       float64
	ReorderWindow time.Duration
	// Delay is how long a packet takes at least, Jitter how much more at most.
	Delay, Jitter time.Duration
	// MTU is the path MTU; 0: MaxMTU.
	MTU int
}

const (
	// DefaultReorderWindow is what a Weather's zero means.
	DefaultReorderWindow = 100 * time.Microsecond
	// DefaultSimBuffer is the receive buffer of a simulated link in bytes, if NetOptions say nothing else.
	DefaultSimBuffer = 1 << 20
	// maxFlying is how many packets may be on the way to a link; more are lost. Only a long Delay gets there.
	maxFlying = 1 << 16
)

// NetOptions of NewNet.
type NetOptions struct {
	// Weather is that of every way that SetWeather has not been called for.
	Weather Weather
	// RecvBuffer is how many bytes of packets can wait at a link, 0: DefaultSimBuffer. A packet that arrives when
	// they do is lost.
	RecvBuffer int
	// NoOffload: packets are received one by one, never joined.
	NoOffload bool
}

// A Fate is what becomes of a packet.
type Fate uint8

// The fates. A packet that is doubled or held back arrives all the same.
const (
	Arrives Fate = iota
	Doubled
	HeldBack
	Corrupted   // arrives with a wrong bit
	Lost        // by chance
	Dropped     // by a rule of DropNth
	Cut         // by a Partition
	TooLong     // for the MTU
	Unreachable // no link has the address
	Overflowed  // arrived and found the receive buffer full
)

func (f Fate) String() string {
	return [...]string{"arrives", "doubled", "held back", "corrupted", "lost", "dropped", "cut", "too long", "unreachable", "overflowed"}[f]
}

// An Event is a packet and what becomes of it. Overflowed is a second event of one that seemed to arrive.
type Event struct {
	At       time.Time
	From, To netip.Addr
	Packet   wire.Packet // sealed, as sent; valid during the call
	Fate     Fate
}

// A Net joins links in memory, for tests: under testing/synctest in virtual time, or outside in real time. All chance
// comes from its seed and, for each direction between two addresses, depends only on the packets sent in it before.
// Packets travel as bytes, sealed with an identification of chance, as from a peer that counts them. Unlike a UDP link
// there is no checksum besides the ICRC.
type Net struct {
	seed uint64
	o    NetOptions

	mu    sync.Mutex // guards all below, and the links' state
	links map[netip.Addr]*simLink
	ways  map[[2]netip.Addr]*way
	rules []*rule
	tap   func(Event)
}

// A way is one direction between two addresses.
type way struct {
	weather Weather
	rng     *rand.Rand
	check   *wire.Path
	port    uint16    // that packets come from
	last    time.Time // arrival of the latest packet that keeps order
	run     int       // packets of a loss burst to come
	cut     bool
}

// A rule drops the packet that makes left zero.
type rule struct {
	left  int
	match func(from, to netip.Addr, p wire.Packet) bool
}

// NewNet makes a net. Under synctest, make it in the bubble.
func NewNet(seed uint64, o NetOptions) *Net {
	if o.RecvBuffer == 0 {
		o.RecvBuffer = DefaultSimBuffer
	}
	return &Net{seed: seed, o: o, links: make(map[netip.Addr]*simLink), ways: make(map[[2]netip.Addr]*way)}
}

// Link opens the link of an address. It panics if one is open already.
func (n *Net) Link(addr netip.Addr) Link {
	addr = addr.Unmap()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[addr] != nil {
		panic(fmt.Sprintf("link: simulated address %v is taken", addr))
	}
	l := newSimLink(n, addr)
	n.links[addr] = l
	return l
}

// SetWeather changes the weather from one address to another, for packets not yet sent.
func (n *Net) SetWeather(from, to netip.Addr, w Weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wayLocked(from, to).weather = w
}

// Partition cuts two addresses off from each other, or joins them again. What is on the way still arrives.
func (n *Net) Partition(a, b netip.Addr, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wayLocked(a, b).cut = cut
	n.wayLocked(b, a).cut = cut
}

// DropNth drops the k-th packet (from 1) that match is true for, counted from now on, and only that. It is asked before
// chance, and not of packets that are cut off, too long or malformed. Match must not use the net.
func (n *Net) DropNth(k int, match func(from, to netip.Addr, p wire.Packet) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = append(n.rules, &rule{k, match})
}

// Tap calls f for each packet sent from now on, and when one overflows a buffer; nil ends it. F must not use the net.
func (n *Net) Tap(f func(Event)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tap = f
}

func (n *Net) wayLocked(from, to netip.Addr) *way {
	k := [2]netip.Addr{from.Unmap(), to.Unmap()}
	w := n.ways[k]
	if w == nil {
		rng := rand.New(rand.NewPCG(n.seed, addrSeed(k)))
		w = &way{weather: n.o.Weather, rng: rng, check: wire.NewPath(k[0], k[1]), port: 0xc000 | uint16(rng.Uint32())}
		n.ways[k] = w
	}
	return w
}

// addrSeed makes a direction's chance its own (FNV-1a).
func addrSeed(k [2]netip.Addr) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, a := range k {
		for _, b := range a.As16() {
			h = (h ^ uint64(b)) * 0x100000001b3
		}
	}
	return h
}

// launchLocked seals a copy of a packet and sends it on its way.
func (n *Net) launchLocked(now time.Time, path *wire.Path, pkt []byte) Fate {
	w := n.wayLocked(path.Src(), path.Dst())
	p := wire.Packet(bytes.Clone(pkt))
	path.Seal(p, w.port, uint16(w.rng.Uint32()))
	l := n.links[path.Dst()]
	fate := n.fateLocked(w, path, p, l)
	n.tellLocked(Event{now, path.Src(), path.Dst(), p, fate})
	if fate > Corrupted {
		return fate
	}
	from := netip.AddrPortFrom(path.Src(), w.port)
	at := w.arrival(now, fate)
	if fate == Doubled {
		l.launchLocked(at.Add(w.holdBack()), from, bytes.Clone(p))
	}
	if fate == Corrupted {
		w.corrupt(p)
	}
	l.launchLocked(at, from, p)
	return fate
}

// fateLocked decides what becomes of a packet, but for its delay.
func (n *Net) fateLocked(w *way, path *wire.Path, p wire.Packet, to *simLink) Fate {
	switch {
	case len(p) > w.mtu()+wire.MaxHeaders:
		return TooLong
	case w.cut:
		return Cut
	case n.droppedLocked(path, p):
		return Dropped
	case w.lost():
		return Lost
	case to == nil:
		return Unreachable
	case len(to.flying) >= maxFlying:
		return Lost
	case w.chance(w.weather.Corrupt):
		return Corrupted
	case w.chance(w.weather.Duplicate):
		return Doubled
	case w.chance(w.weather.Reorder):
		return HeldBack
	}
	return Arrives
}

// droppedLocked asks the rules. Each sees every packet, and what is malformed none.
func (n *Net) droppedLocked(path *wire.Path, b []byte) (drop bool) {
	if len(n.rules) == 0 {
		return false
	}
	p, err := wire.Parse(b)
	if err != nil {
		return false
	}
	left := n.rules[:0]
	for _, r := range n.rules {
		if r.match(path.Src(), path.Dst(), p) {
			r.left--
		}
		if r.left > 0 {
			left = append(left, r)
		} else {
			drop = true
		}
	}
	n.rules = left
	return drop
}

func (n *Net) tellLocked(e Event) {
	if n.tap != nil {
		n.tap(e)
	}
}

func (w *way) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *way) lost() bool {
	if w.run == 0 && w.chance(w.weather.BurstLoss) {
		w.run = w.weather.BurstLength
	}
	if w.run > 0 {
		w.run--
		return true
	}
	return w.chance(w.weather.Loss)
}

func (w *way) mtu() int {
	if w.weather.MTU == 0 {
		return MaxMTU
	}
	return w.weather.MTU
}

// upTo is a chance duration, at least 1 ns.
func (w *way) upTo(d time.Duration) time.Duration { return 1 + time.Duration(w.rng.Int64N(int64(d))) }

func (w *way) holdBack() time.Duration {
	if w.weather.ReorderWindow > 0 {
		return w.upTo(w.weather.ReorderWindow)
	}
	return w.upTo(DefaultReorderWindow)
}

// arrival is when a packet sent now arrives. Jitter does not reorder, as it does not on one queue.
func (w *way) arrival(now time.Time, fate Fate) time.Time {
	at := now.Add(w.weather.Delay)
	if w.weather.Jitter > 0 {
		at = at.Add(w.upTo(w.weather.Jitter))
	}
	if at.Before(w.last) {
		at = w.last
	}
	if fate == HeldBack {
		return at.Add(w.holdBack())
	}
	w.last = at
	return at
}

// corrupt flips a bit that the ICRC tells of. It does not cover the BTH's congestion bits; and of the others, one in
// some 30000 looks like another IPv4 identification to a receiver who must solve for it (ROCE.md 1.8.4). In the
// field those are caught by the UDP checksum or the link's own, which are not simulated.
func (w *way) corrupt(p wire.Packet) {
	for {
		i, bit := w.rng.IntN(len(p)), byte(1)<<w.rng.IntN(8)
		p[i] ^= bit
		if !w.check.Verify(p, w.port, 0) {
			return
		}
		p[i] ^= bit
	}
}
