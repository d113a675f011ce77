package roce

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

// An entry is a completion and whose it is.
type entry struct {
	rdma.Completion
	qp *queuePair
}

// A completionQueue is a ring that cannot overflow: each queue pair adds room for the completions that it can have
// (queuePair.room), and posts nothing beyond.
type completionQueue struct {
	notify  chan struct{}        // one wake-up
	timer   *time.Timer          // of Wait, made when first needed
	leading atomic.Pointer[port] // that Wait reads, or nil

	mu      sync.Mutex // guards what follows; no other lock is taken with it held
	ring    []entry
	head    int
	count   int
	armed   bool // a Wait wants to know of the next completion
	closed  bool
	port    *port // of all its queue pairs; nil if there are none yet, or several
	several bool
	pairs   int // queue pairs that use it; one that uses it twice counts twice
	room    int // that they need
	depth   int
}

// NewCQ implements rdma.Device.
func (d *device) NewCQ(depth int) (rdma.CompletionQueue, error) {
	if depth < 1 || depth > maxCQDepth {
		return nil, fmt.Errorf("roce: completion queue of %d: the device has 1 to %d", depth, maxCQDepth)
	}
	return &completionQueue{notify: make(chan struct{}, 1), ring: make([]entry, depth), depth: depth}, nil
}

// push adds a completion. Who waits is told by signal.
func (c *completionQueue) push(q *queuePair, d *rdma.Completion) {
	c.mu.Lock()
	if c.count == len(c.ring) {
		c.mu.Unlock()
		panic(fmt.Sprintf("roce: completion queue of %d is full", len(c.ring)))
	}
	i := c.head + c.count
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = entry{*d, q}
	c.count++
	c.mu.Unlock()
}

// signal ends a Wait if there is something to poll. The Wait that reads the port, leader, will see by itself.
func (c *completionQueue) signal(leader *completionQueue) {
	if c == leader {
		return
	}
	c.mu.Lock()
	ring := c.armed && c.count > 0
	if ring {
		c.armed = false
	}
	c.mu.Unlock()
	if ring {
		c.Wake()
	}
}

// Wake implements rdma.CompletionQueue.
func (c *completionQueue) Wake() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
	if o := c.leading.Load(); o != nil {
		o.link.Wake()
	}
}

// Poll implements rdma.CompletionQueue.
func (c *completionQueue) Poll(cs []rdma.Completion) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(cs), c.count)
	for i := range n {
		e := &c.ring[c.head]
		cs[i] = e.Completion
		e.qp.polled(e.Recv)
		e.qp = nil
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
	}
	c.count -= n
	if n == 0 && c.closed {
		return 0, fmt.Errorf("roce: poll: %w", net.ErrClosed)
	}
	return n, nil
}

// arm reports whether Wait has something to wait for, and which port brings it, if it is one.
func (c *completionQueue) arm() (*port, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = c.count == 0 && !c.closed
	return c.port, c.armed
}

// waits reports whether a Wait that reads the port has still nothing to return for.
func (c *completionQueue) waits(deadline time.Time) bool {
	if _, armed := c.arm(); !armed {
		return false
	}
	select {
	case <-c.notify:
		return false
	default:
	}
	return deadline.IsZero() || time.Now().Before(deadline)
}

// Wait implements rdma.CompletionQueue.
func (c *completionQueue) Wait(deadline time.Time) error {
	o, armed := c.arm()
	switch {
	case !armed:
	case o == nil:
		c.wait(deadline)
	case o.role.take():
		o.lead(c, deadline)
	default:
		r := &o.role
		r.noteWait(c)
		r.waiting.Add(1) // from here on who leaves the role sees us; it may have been left just before
		if r.take() {
			r.waiting.Add(-1)
			o.lead(c, deadline)
			return nil
		}
		c.wait(deadline)
		r.waiting.Add(-1)
	}
	return nil
}

// wait waits for a wake-up until deadline, zero: none.
func (c *completionQueue) wait(deadline time.Time) {
	if deadline.IsZero() {
		<-c.notify
		return
	}
	select {
	case <-c.notify:
		return
	default:
	}
	d := time.Until(deadline)
	if d <= 0 {
		return
	}
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	select {
	case <-c.notify:
		c.timer.Stop()
	case <-c.timer.C:
	}
}

// attach makes room for the completions of one queue of a queue pair of o.
func (c *completionQueue) attach(o *port, room int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	switch {
	case c.port == nil && !c.several:
		c.port = o
	case c.port != o:
		c.port, c.several = nil, true
	}
	c.pairs++
	c.room += room
	if size := c.depth + c.room; size > len(c.ring) {
		ring := make([]entry, size)
		for i := range c.count {
			ring[i] = c.ring[(c.head+i)%len(c.ring)]
		}
		c.ring, c.head = ring, 0
	}
	return nil
}

// detach ends the use by a queue of q and takes q's completions out, as a device does when a queue pair is destroyed.
func (c *completionQueue) detach(q *queuePair, room int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pairs--
	c.room -= room
	kept := 0
	for i := range c.count {
		e := c.ring[(c.head+i)%len(c.ring)]
		if e.qp != q {
			c.ring[(c.head+kept)%len(c.ring)] = e
			kept++
		}
	}
	for i := kept; i < c.count; i++ {
		c.ring[(c.head+i)%len(c.ring)] = entry{}
	}
	c.count = kept
}

// Close implements rdma.CompletionQueue.
func (c *completionQueue) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.pairs > 0 {
		return errors.New("roce: close completion queue: queue pairs still use it")
	}
	c.closed = true
	c.Wake()
	return nil
}
