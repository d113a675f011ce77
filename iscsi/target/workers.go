package target

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/goiser/goiser/scsi"
)

// workers runs commands on stores that may block. They are shared by all sessions and fair to logical
// units: each unit may always have one command running, whatever the others do, and none more than half
// of limit. So a unit that hangs delays no other unit. At most limit goroutines run, plus one for each
// unit that found all of them busy, and for a moment those that were started for a command taken back.
//
// Units are told apart as such, not by number: what hangs in one that was removed does not count against
// the one that has its number now.
//
// What waits here is bounded by the sessions' command windows.
type workers struct {
	limit int

	mu      sync.Mutex
	work    sync.Cond
	running int // commands being executed
	total   int // goroutines
	idle    int // of them, waiting for work
	asked   int // wake-ups that no goroutine has answered yet
	// waiting is the sentinel of a ring of the units that have commands waiting, in turn.
	waiting luQueue
	// queues has the units with commands here; spare is what such entries are made of, linked by next.
	queues map[*scsi.LogicalUnit]*luQueue
	spare  *luQueue
	closed bool
	took   [scsi.Classes]Latency // of Execute
	wg     sync.WaitGroup
}

// A luQueue is a logical unit's commands that wait for a worker.
type luQueue struct {
	taskQueue
	unit     *scsi.LogicalUnit
	running  int
	starting bool // a goroutine was started on its account and has not taken a command yet
	// Ring of units with commands; next is nil outside it.
	prev, next *luQueue
}

func newWorkers(limit int) *workers {
	w := &workers{limit: limit, queues: make(map[*scsi.LogicalUnit]*luQueue)}
	w.work.L = &w.mu
	w.waiting.prev, w.waiting.next = &w.waiting, &w.waiting
	return w
}

// submit queues t, which shall be executed. The result comes into t.c's inbox.
func (w *workers) submit(t *task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queueLocked(t.scsi.Unit())
	t.queue = q
	q.push(t)
	if q.next == nil {
		w.enterLocked(q)
	}
	switch {
	case !w.mayRunLocked(q):
	case w.idle > w.asked:
		w.asked++
		w.work.Signal()
	case w.total < w.limit || q.running == 0 && !q.starting:
		q.starting = true
		w.total++
		w.wg.Add(1)
		go w.loop()
	}
}

// queueLocked finds or makes the queue of a unit.
func (w *workers) queueLocked(unit *scsi.LogicalUnit) *luQueue {
	q := w.queues[unit]
	if q != nil {
		return q
	}
	if q = w.spare; q != nil {
		w.spare, q.next = q.next, nil
	} else {
		q = new(luQueue)
	}
	q.unit = unit
	w.queues[unit] = q
	return q
}

// dropLocked forgets a queue in which nothing waits or runs any more.
func (w *workers) dropLocked(q *luQueue) {
	if q.head != nil || q.running > 0 {
		return
	}
	delete(w.queues, q.unit)
	*q = luQueue{next: w.spare}
	w.spare = q
}

func (w *workers) mayRunLocked(q *luQueue) bool {
	return q.running == 0 || w.running < w.limit && q.running < (w.limit+1)/2
}

// enterLocked puts q at the end of the ring.
func (w *workers) enterLocked(q *luQueue) {
	r := &w.waiting
	q.prev, q.next = r.prev, r
	r.prev.next, r.prev = q, q
}

// pickLocked takes the next command to run, or nil. Units that have none running go first: for each of
// them there is a goroutine on its way here, and it must not be used up by others.
func (w *workers) pickLocked() *task {
	var pick *luQueue
	for q := w.waiting.next; q != &w.waiting; q = q.next {
		if q.running == 0 {
			pick = q
			break
		}
		if pick == nil && w.mayRunLocked(q) {
			pick = q
		}
	}
	if pick == nil {
		return nil
	}
	t := pick.pop()
	pick.unlink()
	if pick.head != nil {
		w.enterLocked(pick)
	}
	pick.running++
	pick.starting = false
	w.running++
	return t
}

// loop executes commands until there are none and enough goroutines wait for more.
func (w *workers) loop() {
	defer w.wg.Done()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if t := w.pickLocked(); t != nil {
			q := t.queue
			t.queue = nil
			w.mu.Unlock()
			class, took := t.executeBlocking()
			w.mu.Lock()
			w.took[class].record(took)
			q.running--
			w.running--
			w.dropLocked(q)
			continue
		}
		if w.closed || w.idle >= w.limit {
			w.total--
			return
		}
		w.idle++
		w.work.Wait()
		w.idle--
		w.asked = max(0, w.asked-1)
	}
}

// executeBlocking executes t and reports to its connection. A panic is contained to that connection.
func (t *task) executeBlocking() (class scsi.Class, took time.Duration) {
	class = scsi.ClassOf(t.cdb[0])
	begun := time.Now()
	defer func() {
		if p := recover(); p != nil {
			t.panicked = fmt.Errorf("panic while executing: %v\n%s", p, debug.Stack())
		}
		t.c.post(item{kind: itemExecuted, task: t})
	}()
	t.device.Execute(&t.scsi)
	return class, time.Since(begun)
}

// cancel takes t out of its queue; false means that it is being executed or has been.
func (w *workers) cancel(t *task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := t.queue
	if q == nil {
		return false
	}
	q.remove(t)
	t.queue = nil
	if q.head == nil {
		q.unlink()
		w.dropLocked(q)
	}
	return true
}

func (q *luQueue) unlink() {
	q.prev.next, q.next.prev = q.next, q.prev
	q.prev, q.next = nil, nil
}

// close ends the goroutines. Nothing may be queued any more.
func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	w.work.Broadcast()
	w.mu.Unlock()
	w.wg.Wait()
}
