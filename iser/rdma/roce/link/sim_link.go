package link

import (
	"container/heap"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// poison overwrites what a Recv lent when the next one begins, so that who keeps it notices.
const poison = 0xdb

// joinLimit is how much a receiver gets in one piece, as the kernel's 64 KiB.
const joinLimit = 65535

// A simLink is one address on a Net. The net's lock guards it.
type simLink struct {
	n      *Net
	addr   netip.Addr
	flying flying
	serial uint64
	queue  []parcel // arrived
	queued int      // their bytes
	lent   [][]byte // Data of the last Recv
	woken  bool
	closed bool
	stats  Stats
	kick   chan struct{} // something has changed: Recv looks again
	timer  *time.Timer
}

// A parcel is a packet on the way or arrived.
type parcel struct {
	at     time.Time
	serial uint64
	from   netip.AddrPort
	data   []byte
}

// flying is a heap of parcels by arrival, and by serial number where that is the same.
type flying []parcel

func (f flying) Len() int { return len(f) }
func (f flying) Less(i, j int) bool {
	return f[i].at.Before(f[j].at) || f[i].at.Equal(f[j].at) && f[i].serial < f[j].serial
}
func (f flying) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flying) Push(x any)   { *f = append(*f, x.(parcel)) }
func (f *flying) Pop() any {
	p := (*f)[len(*f)-1]
	(*f)[len(*f)-1] = parcel{}
	*f = (*f)[:len(*f)-1]
	return p
}

func newSimLink(n *Net, addr netip.Addr) *simLink {
	l := &simLink{n: n, addr: addr, kick: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	l.timer.Stop()
	return l
}

// Addr implements Link.
func (l *simLink) Addr() netip.Addr { return l.addr }

// External implements Link.
func (l *simLink) External() netip.Addr { return l.addr }

// MTU implements Link.
func (l *simLink) MTU(to netip.Addr) int {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return l.n.wayLocked(l.addr, to).mtu()
}

// RecvBuffer implements Link.
func (l *simLink) RecvBuffer() int { return l.n.o.RecvBuffer }

// Stats implements Link.
func (l *simLink) Stats() Stats {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	s := l.stats
	s.SendOffload, s.ReceiveOffload = !l.n.o.NoOffload, !l.n.o.NoOffload
	return s
}

// Send implements Link.
func (l *simLink) Send(bs []Burst) error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.closed {
		return fmt.Errorf("roce: send from %v: %w", l.addr, net.ErrClosed)
	}
	now := time.Now()
	for _, b := range bs {
		if b.Size <= 0 {
			panic(fmt.Sprintf("roce: burst of %d bytes in packets of %d", len(b.Data), b.Size))
		}
		for p := b.Data; len(p) > 0; {
			k := min(len(p), b.Size)
			if l.n.launchLocked(now, b.Path, p[:k]) == TooLong {
				l.stats.SendDropped++
			} else {
				l.stats.SentPackets++
				l.stats.SentBytes += uint64(k)
			}
			p = p[k:]
		}
	}
	return nil
}

// launchLocked puts a packet on its way to l.
func (l *simLink) launchLocked(at time.Time, from netip.AddrPort, data []byte) {
	l.serial++
	heap.Push(&l.flying, parcel{at, l.serial, from, data})
	l.kickLocked()
}

func (l *simLink) kickLocked() {
	select {
	case l.kick <- struct{}{}:
	default: // it has not been seen yet
	}
}

// Recv implements Link.
func (l *simLink) Recv(rs []Received, deadline time.Time) (int, error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for _, b := range l.lent {
		b[0] = poison
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
	l.lent = l.lent[:0]
	for {
		if l.closed {
			return 0, fmt.Errorf("roce: receive on %v: %w", l.addr, net.ErrClosed)
		}
		now := time.Now()
		l.landLocked(now)
		if n := l.fillLocked(rs); n > 0 {
			return n, nil
		}
		if l.woken || !deadline.IsZero() && !now.Before(deadline) {
			l.woken = false
			return 0, nil
		}
		next := deadline
		if len(l.flying) > 0 && (next.IsZero() || l.flying[0].at.Before(next)) {
			next = l.flying[0].at
		}
		l.n.mu.Unlock()
		l.wait(now, next)
		l.n.mu.Lock()
	}
}

// wait waits for a kick, or for a time if it is not zero.
func (l *simLink) wait(now, until time.Time) {
	if until.IsZero() {
		<-l.kick
		return
	}
	l.timer.Reset(until.Sub(now))
	select {
	case <-l.kick:
		l.timer.Stop()
	case <-l.timer.C:
	}
}

// landLocked moves what has arrived by now into the queue, in order of arrival, as far as there is room. Nobody has
// taken from the queue since the last call, so it is as if each had arrived in time.
func (l *simLink) landLocked(now time.Time) {
	for len(l.flying) > 0 && !l.flying[0].at.After(now) {
		p := heap.Pop(&l.flying).(parcel)
		if l.queued+len(p.data) > l.n.o.RecvBuffer {
			l.stats.ReceiveDropped++
			l.n.tellLocked(Event{p.at, p.from.Addr(), l.addr, p.data, Overflowed})
			continue
		}
		l.queue = append(l.queue, p)
		l.queued += len(p.data)
	}
}

// fillLocked hands out what is queued, joined as the kernel would.
func (l *simLink) fillLocked(rs []Received) (n int) {
	taken := 0
	for ; n < len(rs) && taken < len(l.queue); n++ {
		run := 1
		if !l.n.o.NoOffload {
			run = joinable(l.queue[taken:])
		}
		first := l.queue[taken]
		data := first.data
		for _, p := range l.queue[taken+1 : taken+run] {
			data = append(data, p.data...)
		}
		rs[n] = Received{From: first.from, Data: data[:len(data):len(data)], Size: len(first.data)}
		l.lent = append(l.lent, data)
		l.queued -= len(data)
		l.stats.ReceivedPackets += uint64(run)
		l.stats.ReceivedBytes += uint64(len(data))
		taken += run
	}
	l.queue = slices.Delete(l.queue, 0, taken)
	return n
}

// joinable is how many packets at the front of q make one: of one sender and one size, but that the last may be shorter.
func joinable(q []parcel) int {
	size, total := len(q[0].data), len(q[0].data)
	for i, p := range q[1:] {
		total += len(p.data)
		if p.from != q[0].from || len(p.data) > size || total > joinLimit {
			return i + 1
		}
		if len(p.data) < size {
			return i + 2
		}
	}
	return len(q)
}

// Wake implements Link.
func (l *simLink) Wake() {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.woken = true
	l.kickLocked()
}

// Close implements Link. What was on the way is lost, and the address is free again.
func (l *simLink) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.closed {
		return fmt.Errorf("roce: close %v: %w", l.addr, net.ErrClosed)
	}
	l.closed = true
	l.flying, l.queue = nil, nil
	delete(l.n.links, l.addr)
	l.kickLocked()
	return nil
}
