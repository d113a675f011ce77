package arena

// A Waiter waits for buffers in the order of Wait calls. It can be used again once it has been served
// or cancelled.
type Waiter struct {
	// Ready is called once, on some other goroutine with the pool's lock held, when Bufs is filled. It
	// must be short and not call the pool; it hands the news on.
	Ready func()
	// Bufs is overwritten from its start, so that its room is used again.
	Bufs [][]byte

	pool       *Pool // while queued
	n          int   // bytes wanted
	prev, next *Waiter
}

// Wait queues w for n bytes; it may be served before Wait returns (then too Ready is called). It
// reports false, without queueing, if the pool is smaller than n. The queue holds what callers queue:
// its bound is theirs. A Waiter that is queued already panics.
func (p *Pool) Wait(w *Waiter, n int) bool {
	if chunksFor(n) > p.chunks {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return false
	}
	if w.pool != nil {
		panic("arena: a waiter waits already")
	}
	w.pool, w.n, w.prev, w.next = p, n, p.tail, nil
	if p.tail == nil {
		p.head = w
	} else {
		p.tail.next = w
	}
	p.tail = w
	p.serveLocked()
	return true
}

// Cancel takes w out of the queue; false means that it has been served already, or never waited.
func (p *Pool) Cancel(w *Waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.pool != p {
		return false
	}
	p.unlinkLocked(w)
	p.serveLocked() // w may have been a large one that kept small ones waiting
	return true
}

// serveLocked serves waiters in order, as far as the free chunks reach. A large one at the head makes
// the others wait: if they passed it, it might wait for ever.
func (p *Pool) serveLocked() {
	for w := p.head; w != nil && chunksFor(w.n) <= len(p.free); w = p.head {
		p.unlinkLocked(w)
		w.Bufs = p.takeLocked(w.Bufs[:0], w.n)
		w.Ready()
	}
}

func (p *Pool) unlinkLocked(w *Waiter) {
	if w.prev == nil {
		p.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		p.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.pool, w.prev, w.next = nil, nil, nil
}
