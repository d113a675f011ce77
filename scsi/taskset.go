package scsi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// The task set of a logical unit: one for all I_T nexuses (TST is 000b in the Control mode page).
//
// The rule (SAM-5, 8.6), in which a task is older than another if it came to Prepare first, and has ended
// when Release has been called for it:
//
//   - HEAD OF QUEUE starts at once.
//   - SIMPLE starts when the set holds no HEAD OF QUEUE task and no older ORDERED one.
//   - ORDERED starts when the set holds no HEAD OF QUEUE task and no older one of any kind.
//
// ACA is refused, as NORMACA=0 in INQUIRY data says; no attribute at all is SIMPLE. What has not started is
// dormant. Dormant tasks start in the order in which they came: whatever keeps the oldest of them from
// starting keeps back all behind it. So the set needs no list of its tasks, only the queue of the dormant
// ones and a count of those that have started.
//
// Ordinary commands are SIMPLE in a set where nothing has to wait. They pay one atomic addition to come in,
// which also holds the unit, and one to leave. The addition shows whether somebody has set a flag that
// says otherwise; then the lock is taken. A flag is set before the count is read, and the count changed before
// the flags are read, so that of a task that leaves and one that begins to wait for it, one sees the other.
//
// No deadlock: a task waits here for older ones and for HEAD OF QUEUE ones only, and those do not wait for it;
// the oldest waits for none. A dormant task has been looked at by nobody and holds nothing but its place (and
// what a transport has received of it unasked), so that older ones get all the memory and workers that they need.
type taskSet struct {
	// state is the count of started SIMPLE tasks and of other users of the unit (hold), with the flags above it.
	state atomic.Int64

	mu      sync.Mutex // guards what follows, and the place of every task that is not placeSimple
	queue   dormantQueue
	heads   int  // HEAD OF QUEUE tasks that have started and not ended
	ordered bool // an ORDERED task has started and not ended
	alone   bool // and it has the unit for itself: see Exclusive
	// idle is signalled when the last user of a removed unit has gone.
	idle chan struct{}
}

// Flags in taskSet.state. Counts stay far below them: they are bounded by the sessions' command windows.
const (
	// setOrdering: tasks are dormant, or some that started let no SIMPLE task start.
	setOrdering = 1 << 61
	// setAlone: Exclusive has the unit, and nobody gets hold of it.
	setAlone = 1 << 62
	// setRemoved: nobody new gets in.
	setRemoved = 1 << 60
	setCount   = setRemoved - 1
)

// place is where a task is in the set of its unit.
type place uint8

const (
	placeNone place = iota
	placeSimple
	placeOrdered
	placeHead
	placeDormant
)

func (s *taskSet) open() { s.idle = make(chan struct{}, 1) }

// isSimple tells whether an attribute counts as SIMPLE for ordering. Those that will be refused do.
func (a Attr) isSimple() bool { return a != Ordered && a != HeadOfQueue }

// enter puts t into the set. started is false if it is dormant: t.Ready will be called when it may
// start, unless withdraw comes first. ok is false if the unit has been removed.
func (s *taskSet) enter(t *Task) (started, ok bool) {
	if t.Attr.isSimple() {
		if v := s.state.Add(1); v < setRemoved {
			t.place = placeSimple
			return true, true
		}
	}
	return s.enterSlow(t)
}

func (s *taskSet) enterSlow(t *Task) (started, ok bool) {
	s.mu.Lock()
	if t.Attr.isSimple() {
		s.state.Add(-1) // what enter added
	}
	if ok = s.state.Load()&setRemoved == 0; ok {
		s.state.Or(setOrdering)
		t.place = placeDormant
		if t.Attr == HeadOfQueue {
			s.queue.pushFront(t)
		} else {
			s.queue.push(t)
		}
	}
	// Others may start too: the addition may have hidden from the last task to leave that it was the last.
	return s.settle(t), ok
}

// leave ends t's part in the set.
func (s *taskSet) leave(t *Task) {
	if t.place == placeSimple {
		t.place = placeNone
		s.release()
		return
	}
	s.leaveSlow(t)
}

func (s *taskSet) leaveSlow(t *Task) {
	switch p := t.place; p {
	case placeOrdered, placeHead:
		s.mu.Lock()
		t.place = placeNone
		if p == placeHead {
			s.heads--
		} else {
			s.ordered, s.alone = false, false
			s.state.And(^int64(setAlone))
		}
		s.settle(nil)
	case placeDormant:
		panic("scsi: a task that has not started is to end")
	}
}

// withdraw takes a dormant task out. False means that it has started: t.Ready has been called, or is about
// to be.
func (s *taskSet) withdraw(t *Task) bool {
	s.mu.Lock()
	if t.place != placeDormant {
		s.mu.Unlock()
		return false
	}
	s.queue.remove(t)
	t.place = placeNone
	s.settle(nil)
	return true
}

// hold keeps the unit in use until release, without a place in the order of tasks. It fails while
// Exclusive has the unit, and once the unit has been removed.
func (s *taskSet) hold() bool {
	if s.state.Add(1)&(setRemoved|setAlone) != 0 {
		s.release()
		return false
	}
	return true
}

// release ends a hold.
func (s *taskSet) release() {
	if v := s.state.Add(-1); v < 0 || v >= setRemoved {
		s.releaseSlow(v)
	}
}

func (s *taskSet) releaseSlow(v int64) {
	switch {
	case v < 0:
		panic("scsi: a unit was released too often")
	case v&setCount != 0:
		return // what waits, waits for more than this
	}
	s.mu.Lock()
	s.settle(nil)
}

// settle starts what may start, unlocks, and tells it; of t, which has just come (or nil), it returns
// whether it has started.
func (s *taskSet) settle(t *Task) (started bool) {
	var ready dormantQueue
	s.startLocked(&ready)
	s.signalLocked()
	s.mu.Unlock()
	for r := ready.head; r != nil; {
		next := r.setNext
		r.setPrev, r.setNext = nil, nil
		if r == t {
			started = true
		} else {
			r.Ready() // r may end, and be used again, at once
		}
		r = next
	}
	return started
}

// startLocked moves what may start to ready. When nothing is left that anybody must wait for, ordinary
// tasks need the lock no more.
func (s *taskSet) startLocked(ready *dormantQueue) {
	for t := s.queue.head; t != nil && s.mayStartLocked(t); t = s.queue.head {
		s.queue.remove(t)
		switch {
		case t.Attr == HeadOfQueue:
			t.place = placeHead
			s.heads++
		case t.Attr.isSimple():
			t.place = placeSimple
			s.state.Add(1)
		default:
			t.place = placeOrdered
			s.ordered, s.alone = true, t.alone
		}
		ready.push(t)
	}
	if s.queue.head == nil && s.heads == 0 && !s.ordered {
		s.state.And(^int64(setOrdering))
	}
}

// mayStartLocked reports whether the oldest dormant task may start. All that have started are older than it,
// but for HEAD OF QUEUE tasks.
func (s *taskSet) mayStartLocked(t *Task) bool {
	switch {
	case t.Attr == HeadOfQueue:
		return !s.alone
	case s.heads > 0 || s.ordered:
		return false
	}
	if t.alone {
		// Set before the count is read: whoever gets hold is seen, or sees it.
		if s.state.Or(setAlone); s.state.Load()&setCount == 0 {
			return true
		}
		s.state.And(^int64(setAlone))
		return false
	}
	return t.Attr.isSimple() || s.state.Load()&setCount == 0
}

// emptyLocked reports whether nobody uses the unit.
func (s *taskSet) emptyLocked() bool {
	return s.state.Load()&setCount == 0 && s.heads == 0 && !s.ordered && s.queue.head == nil
}

func (s *taskSet) signalLocked() {
	if s.state.Load()&setRemoved != 0 && s.emptyLocked() {
		s.signal()
	}
}

func (s *taskSet) signal() {
	select {
	case s.idle <- struct{}{}:
	default: // drain has not seen the last signal yet
	}
}

// isRemoved reports whether close has been called.
func (s *taskSet) isRemoved() bool { return s.state.Load()&setRemoved != 0 }

// close lets nobody in any more. Dormant tasks start in their turn.
func (s *taskSet) close() { s.state.Or(setRemoved) }

// drain waits for whoever is in a set that has been closed, or for ctx.
func (s *taskSet) drain(ctx context.Context) error {
	for {
		s.mu.Lock()
		empty := s.emptyLocked()
		s.mu.Unlock()
		if empty {
			s.signal() // others may wait too
			return nil
		}
		select {
		case <-s.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A dormantQueue is tasks in order of arrival, linked by Task.setPrev and setNext.
type dormantQueue struct{ head, tail *Task }

func (q *dormantQueue) push(t *Task) {
	t.setPrev, t.setNext = q.tail, nil
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.setNext = t
	}
	q.tail = t
}

func (q *dormantQueue) pushFront(t *Task) {
	t.setPrev, t.setNext = nil, q.head
	if q.head == nil {
		q.tail = t
	} else {
		q.head.setPrev = t
	}
	q.head = t
}

func (q *dormantQueue) remove(t *Task) {
	if t.setPrev == nil {
		q.head = t.setNext
	} else {
		t.setPrev.setNext = t.setNext
	}
	if t.setNext == nil {
		q.tail = t.setPrev
	} else {
		t.setNext.setPrev = t.setPrev
	}
	t.setPrev, t.setNext = nil, nil
}

// Exclusive runs f while no command of the unit has started and none starts, of whatever attribute, once
// those before it have ended: f may take away what they use. Other users of the unit (hold) are waited
// for too. It fails while a sanitize operation goes on or has failed, with ctx's error if that ends first, or
// with ErrNoLUN if the unit has been removed.
func (lu *LogicalUnit) Exclusive(ctx context.Context, f func() error) error {
	turn := make(chan struct{})
	t := &Task{Attr: Ordered, alone: true, Ready: func() { close(turn) }}
	started, ok := lu.set.enter(t)
	if !ok {
		return fmt.Errorf("lun %d: %w", lu.number, ErrNoLUN)
	}
	if !started {
		select {
		case <-turn:
		case <-ctx.Done():
			if lu.set.withdraw(t) {
				return fmt.Errorf("lun %d: wait for its commands: %w", lu.number, ctx.Err())
			}
			<-turn
		}
	}
	defer lu.set.leave(t)
	if lu.state.Load()&stateSanitizing != 0 {
		return fmt.Errorf("lun %d: %w", lu.number, errSanitizeOpen)
	}
	return f()
}
