package roce

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

const (
	// maxBatch is how many datagrams, joined or not, the reader takes at a time.
	maxBatch = 32
	// batchBytes is about how many bytes that shall be: what is taken should be in the processor's nearest caches still
	// when it is checked and when it is copied.
	batchBytes = 128 << 10
)

// A port is one local address: a link, who reads it (the reader, see role), and the connections.
//
// Locks, in the order in which they are taken:
//
//	port.mu       the connection manager and the endpoints' state; held over the sending of its messages
//	queuePair.mu  a queue pair's core; held over the sending of its packets
//	completionQueue.mu, Provider.mu, and those of package rc's memory: nothing is taken with them held
//
// The reader holds the locks of all queue pairs of a round while it sends what they have. Nobody else holds two of them,
// and the reader does not take port.mu then. No lock is held while it waits in link.Recv.
type port struct {
	p     *Provider
	link  link.Link
	addr  netip.Addr // local
	ext   netip.Addr // as peers see it
	start time.Time
	next  atomic.Int64  // when the reader must look at deadlines, in ns after start
	done  chan struct{} // closed when the keeper has ended

	counters portCounters

	// Of the reader: who has the role.
	role    role
	rs      []link.Received
	batch   int          // of rs to be filled next
	rounds  []*queuePair // that have packets to send
	current *queuePair   // locked: packets come in runs
	bursts  []link.Burst
	news    []news // of rounds
	scan    []*queuePair
	gsiPath *wire.Path // from the sender of the last management datagram

	mu        sync.Mutex // guards what follows
	cm        *cm.Manager
	rng       *rand.Rand
	qps       map[wire.QPN]*queuePair
	endpoints map[*endpoint]struct{}
	listeners map[uint16]*listener
	ephemeral uint16
	madPSN    wire.PSN
	retired   rc.Counters // of queue pairs that are gone
	closed    bool
}

const never = math.MaxInt64

// newPort makes a port on a link and starts its keeper. The provider's lock is held, for its rng.
func newPort(p *Provider, l link.Link) *port {
	o := &port{
		p: p, link: l, addr: l.Addr(), ext: l.External(), start: time.Now(), done: make(chan struct{}),
		rs: make([]link.Received, maxBatch), batch: maxBatch, role: role{kick: make(chan struct{}, 1)},
		qps: make(map[wire.QPN]*queuePair), endpoints: make(map[*endpoint]struct{}), listeners: make(map[uint16]*listener),
		rng: newRand(p.rng.Uint64() | 1),
	}
	o.next.Store(never)
	o.role.taken.Store(true) // the keeper's
	o.ephemeral = firstEphemeral | uint16(o.rng.Uint32())
	o.madPSN = wire.PSN(o.rng.Uint32() & psnMask)
	o.cm = cm.New(cm.Config{GUID: o.rng.Uint64() | 1, Addr: o.ext.WithZone(""), MTU: l.MTU, Rand: o.rng})
	go o.read()
	return o
}

const (
	psnMask = 1<<24 - 1
	// firstEphemeral is where port numbers begin that are picked for listeners and callers.
	firstEphemeral = 49152
)

// arm makes the reader look at deadlines at d, zero for never. wake: it is not the reader that says so. If nobody is,
// then who will be looks first.
func (o *port) arm(d time.Time, wake bool) {
	if d.IsZero() {
		return
	}
	ns := int64(d.Sub(o.start))
	for {
		old := o.next.Load()
		if old <= ns {
			return
		}
		if o.next.CompareAndSwap(old, ns) {
			break
		}
	}
	if wake && o.role.taken.Load() {
		o.link.Wake()
	}
}

// round takes what has come, or waits for it until deadline (zero: none), and does what is due. Its error is that the
// link is closed.
func (o *port) round(deadline time.Time) error {
	n, err := o.link.Recv(o.rs[:o.batch], earlier(o.until(), deadline))
	if err != nil {
		return err
	}
	now, size := time.Now(), 0
	for i := range o.rs[:n] {
		size += len(o.rs[i].Data)
		o.receive(now, &o.rs[i])
	}
	if size > 0 { // the next are likely of a length with these
		o.batch = max(1, min(batchBytes*n/size, maxBatch))
	}
	o.release()
	if int64(now.Sub(o.start)) >= o.next.Load() {
		o.expire(now)
	}
	o.transmit(now)
	return nil
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// until is how long the reader may wait.
func (o *port) until() time.Time {
	if len(o.rounds) > 0 {
		return o.start // not at all
	}
	if ns := o.next.Load(); ns != never {
		return o.start.Add(time.Duration(ns))
	}
	return time.Time{}
}

// receive takes a datagram, or several that came joined.
func (o *port) receive(now time.Time, r *link.Received) {
	for i, b := 0, r.Data; len(b) > 0; i++ {
		k := min(len(b), r.Size)
		o.packet(now, r.From, b[:k:k], uint16(i))
		b = b[k:]
	}
}

// packet hands a packet, which came as number i of those joined, to its queue pair. Work for the end of the round is
// noted.
func (o *port) packet(now time.Time, from netip.AddrPort, b []byte, i uint16) {
	p, err := wire.Parse(b)
	if err != nil {
		o.counters.malformed.Add(1)
		return
	}
	dest := p.DestQP()
	if dest == wire.GSI {
		o.release()
		o.management(from, p)
		return
	}
	q := o.current
	if q == nil || q.num != dest {
		o.release()
		if q = o.find(dest); q == nil {
			o.counters.unknownQP.Add(1)
			return
		}
		q.mu.Lock()
		o.current = q
	}
	if !q.touched {
		q.touched = true
		o.rounds = append(o.rounds, q)
	}
	q.receiveLocked(now, from, p, i)
}

func (o *port) find(n wire.QPN) *queuePair {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.qps[n]
}

// release unlocks the current queue pair. Its news wait for the end of the round, so that waiters wake once.
func (o *port) release() {
	if o.current != nil {
		o.current.mu.Unlock()
		o.current = nil
	}
}

// transmit ends a round: acknowledgements, responses and requests of all queue pairs that had packets leave in one
// Send. Those with more to send than a round has room for go on in the next.
func (o *port) transmit(now time.Time) {
	if len(o.rounds) == 0 {
		return
	}
	for _, q := range o.rounds {
		q.mu.Lock()
		var out *outgoing
		out, q.touched = q.transmitLocked(now)
		if out != nil {
			o.bursts = append(o.bursts, out.bursts...)
		}
		q.signalLocked(o.role.leader)
		o.arm(q.deadlineLocked(), false)
	}
	if len(o.bursts) > 0 {
		_ = o.link.Send(o.bursts) // its only error is that the link is closed, which Recv will say
		clear(o.bursts)
		o.bursts = o.bursts[:0]
	}
	for _, q := range o.rounds { // all locks are released before anything is told: that takes the port's
		if q.out != nil {
			q.out.reset()
		}
		o.news = append(o.news, q.newsLocked())
		q.mu.Unlock()
	}
	rest := o.rounds[:0]
	for i, q := range o.rounds {
		q.tell(o.news[i], o.role.leader)
		if q.touched {
			rest = append(rest, q)
		}
	}
	o.news = o.news[:0]
	clear(o.rounds[len(rest):])
	o.rounds = rest
}

// expire gives a round to all queue pairs whose deadline has passed, and a tick to the connection manager.
func (o *port) expire(now time.Time) {
	o.next.Store(never) // before looking: who arms from now on is not forgotten
	o.mu.Lock()
	if d := o.cm.Deadline(); !d.IsZero() {
		if !d.After(now) {
			o.stepLocked(cm.Tick{})
		}
		o.arm(o.cm.Deadline(), false)
	}
	for _, q := range o.qps {
		o.scan = append(o.scan, q)
	}
	o.mu.Unlock()
	slices.SortFunc(o.scan, func(a, b *queuePair) int { return cmp.Compare(a.num, b.num) })
	for _, q := range o.scan {
		q.mu.Lock()
		d := q.deadlineLocked()
		q.mu.Unlock()
		switch {
		case d.IsZero() || q.touched:
		case d.After(now):
			o.arm(d, false)
		default:
			q.touched = true
			o.rounds = append(o.rounds, q)
		}
	}
	clear(o.scan)
	o.scan = o.scan[:0]
}

// lost ends the connections of a port whose link has failed, or that is closing.
func (o *port) lost() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for e := range o.endpoints {
		e.endLocked()
	}
}

// close ends the port, with what uses it.
func (o *port) close() error {
	o.mu.Lock()
	o.closed = true
	var ls []*listener
	for _, l := range o.listeners {
		ls = append(ls, l)
	}
	var es []*endpoint
	for e := range o.endpoints {
		es = append(es, e)
	}
	o.mu.Unlock()
	for _, l := range ls {
		_ = l.Close()
	}
	for _, e := range es {
		_ = e.Close()
	}
	err := o.link.Close()
	o.role.handed.Store(true)
	o.role.wake()
	<-o.done
	return err
}

// checkLocked says why the port cannot be used any more.
func (o *port) checkLocked() error {
	if o.closed {
		return fmt.Errorf("provider: %w", net.ErrClosed)
	}
	return nil
}
