package roce

import (
	"sync/atomic"
	"time"
)

// Who reads a port has the reader's role. It is best had by who waits for what comes: a hand-over to him from a
// goroutine that does nothing but read costs more than the packet. So a Wait takes the role if it is free, and reads
// until there is something in its completion queue; the port's own goroutine, the keeper, has it when nobody does:
//
//   - Nobody waits, because the program has something else to do. The keeper looks every watchInterval whether the role
//     was had since it last looked, and takes it if not. So packets wait twice that at most.
//   - Several wait, for different completion queues. Who leaves while others wait hands the role to the keeper, who wakes
//     each for what is his, and keeps the role while more than one waits: to hand it from one to the next costs as much,
//     and more when that one has work to do.
//
// The keeper offers the role to who waits once he was the only one for a while (crowdPeriod).
type role struct {
	taken   atomic.Bool
	leader  *completionQueue // whose Wait has it, nil: the keeper's; guarded by taken
	changes atomic.Uint64    // how often it was taken by a Wait, or left
	waiting atomic.Int32     // Waits without it
	kick    chan struct{}    // one, for the keeper
	handed  atomic.Bool      // the keeper is to take it now
	dozing  atomic.Bool      // the keeper watches nothing: whoever leaves the role kicks it
	dead    atomic.Bool      // the link is closed: nobody can read any more

	last  atomic.Pointer[completionQueue] // that has waited without the role
	crowd atomic.Bool                     // there was more than one since the keeper last looked
}

const (
	// watchInterval is long against the time that a program takes to handle what it got, and costs a busy port half a
	// percent of a processor; peers' retry timers are longer by far.
	watchInterval = time.Millisecond
	// dozeAfter is how many intervals the same Wait must have had the role before the keeper stops looking.
	dozeAfter = 50
	// crowdPeriod is how long the keeper keeps the role at least.
	crowdPeriod = 20 * time.Millisecond
)

func (r *role) take() bool { return !r.dead.Load() && r.taken.CompareAndSwap(false, true) }

// leave ends the role of a Wait. hand: somebody must read on at once.
func (r *role) leave(hand bool) {
	r.leader = nil
	r.taken.Store(false)
	r.changes.Add(1)
	if hand || r.waiting.Load() > 0 { // who waits saw that it was taken, or is seen here
		r.handed.Store(true)
		r.wake()
	} else if r.dozing.Load() {
		r.wake()
	}
}

// wake kicks the keeper.
func (r *role) wake() {
	select {
	case r.kick <- struct{}{}:
	default: // it has not noticed the last one yet
	}
}

// noteWait remembers who waits without the role.
func (r *role) noteWait(c *completionQueue) {
	if old := r.last.Load(); old != c {
		r.last.Store(c)
		if old != nil {
			r.crowd.Store(true)
		}
	}
}

// watch returns once the keeper has the role: because it was handed over, or nobody else takes it.
func (r *role) watch() {
	timer := time.NewTimer(watchInterval)
	defer timer.Stop()
	for quiet := 0; ; {
		seen := r.changes.Load()
		if quiet > dozeAfter {
			r.doze(seen)
			quiet = 0
		} else {
			timer.Reset(watchInterval)
			select {
			case <-timer.C:
			case <-r.kick:
			}
		}
		if r.handed.Swap(false) || r.changes.Load() == seen {
			if r.taken.CompareAndSwap(false, true) {
				return
			}
			quiet++
		} else {
			quiet = 0
		}
	}
}

// doze waits until the role, which is had by a Wait, is left.
func (r *role) doze(seen uint64) {
	r.dozing.Store(true)
	if r.changes.Load() == seen && r.taken.Load() { // else who has left it did not see that we doze
		<-r.kick
	}
	r.dozing.Store(false)
}

// lead has a Wait read o until there is something in c, or it is to end for another reason.
func (o *port) lead(c *completionQueue, deadline time.Time) {
	r := &o.role
	r.changes.Add(1)
	r.leader = c
	c.leading.Store(o) // before looking: a Wake from here on ends Recv
	var err error
	for err == nil && c.waits(deadline) {
		err = o.round(deadline)
	}
	c.leading.Store(nil)
	if err != nil {
		r.dead.Store(true)
	}
	r.leave(err != nil || len(o.rounds) > 0)
}

// read is the keeper, which begins with the role. It ends when the link is closed.
func (o *port) read() {
	defer close(o.done)
	for r := &o.role; ; r.watch() {
		for since := time.Now(); !r.offer(&since); {
			if o.round(time.Time{}) != nil {
				r.dead.Store(true)
				o.lost()
				return
			}
		}
	}
}

// offer gives the role up if all Waits of a period were for one completion queue, and reports whether it did so. That
// one takes it now if it waits, else when it waits next.
func (r *role) offer(since *time.Time) bool {
	now := time.Now()
	if now.Sub(*since) < crowdPeriod {
		return false
	}
	*since = now
	crowd, c := r.crowd.Swap(false), r.last.Swap(nil)
	if crowd || c == nil {
		return false
	}
	r.taken.Store(false)
	if r.waiting.Load() > 0 {
		c.Wake()
	}
	return true
}
