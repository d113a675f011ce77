package fabric

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

// errOverrun is what a completion queue, and every post to its queue pairs, says once a completion
// found no room. Nothing mends that but closing everything (IBTA, 10.2.3.2).
var errOverrun = errors.New("completion queue overrun")

// An entry is a completion, and which slots of its queue are free again once it has been polled.
type entry struct {
	rdma.Completion
	qp  *queuePair
	end uint64 // number of the work request, plus one
}

// A completionQueue is a ring of exactly the asked-for depth.
type completionQueue struct {
	f      *Fabric
	notify chan struct{} // one wake-up
	timer  *time.Timer   // of Wait; made when first needed

	mu      sync.Mutex
	ring    []entry
	head    int
	count   int
	armed   bool // a Wait wants to know of the next completion
	overrun bool
	closed  bool
	pairs   int // queue pairs that use it; one that uses it twice counts twice
}

// NewCQ implements rdma.Device.
func (d *device) NewCQ(depth int) (rdma.CompletionQueue, error) {
	if depth < 1 || depth > d.f.limits.MaxCQDepth {
		return nil, fmt.Errorf("fabric: completion queue of %d: the device has 1 to %d", depth, d.f.limits.MaxCQDepth)
	}
	d.f.gauges.completionQueues.Add(1)
	return &completionQueue{f: d.f, notify: make(chan struct{}, 1), ring: make([]entry, depth)}, nil
}

// push adds a completion; false if the queue is overrun.
func (c *completionQueue) push(e *entry) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overrun || c.count == len(c.ring) {
		c.overrun = true
		c.wake()
		return false
	}
	i := c.head + c.count
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = *e
	c.count++
	if c.armed {
		c.armed = false
		c.wake()
	}
	return true
}

func (c *completionQueue) wake() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// Poll implements rdma.CompletionQueue.
func (c *completionQueue) Poll(cs []rdma.Completion) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for ; n < len(cs) && c.count > 0; n++ {
		e := &c.ring[c.head]
		cs[n] = e.Completion
		if e.Recv {
			e.qp.rq.reaped.Store(e.end)
		} else {
			e.qp.sq.reaped.Store(e.end)
		}
		e.qp = nil
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
		c.count--
	}
	switch {
	case n > 0:
		return n, nil
	case c.closed:
		return 0, fmt.Errorf("fabric: poll: %w", net.ErrClosed)
	case c.overrun:
		return 0, fmt.Errorf("fabric: poll: %w", errOverrun)
	}
	return 0, nil
}

// arm reports whether Wait has something to wait for.
func (c *completionQueue) arm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = c.count == 0 && !c.overrun && !c.closed
	return c.armed
}

// Wait implements rdma.CompletionQueue.
func (c *completionQueue) Wait(deadline time.Time) error {
	if !c.arm() {
		return nil
	}
	if deadline.IsZero() {
		<-c.notify
		return nil
	}
	select {
	case <-c.notify:
		return nil
	default:
	}
	d := time.Until(deadline)
	if d <= 0 {
		return nil
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
	return nil
}

// Wake implements rdma.CompletionQueue.
func (c *completionQueue) Wake() { c.wake() }

// use counts the queue pairs.
func (c *completionQueue) use() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.pairs++
	return nil
}

// release ends the use by q and takes its completions out, as a device does when the queue pair is
// destroyed.
func (c *completionQueue) release(q *queuePair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pairs--
	kept := 0
	for i := range c.count {
		e := c.ring[(c.head+i)%len(c.ring)]
		if e.qp != q {
			c.ring[(c.head+kept)%len(c.ring)] = e
			kept++
		}
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
		return errors.New("fabric: close completion queue: queue pairs still use it")
	}
	c.closed = true
	c.wake()
	c.f.gauges.completionQueues.Add(-1)
	return nil
}
