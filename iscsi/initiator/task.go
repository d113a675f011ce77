package initiator

import (
	"time"

	"github.com/goiser/goiser/iscsi"
)

// An ITT is a generation and the index of a slot, so that no value comes back soon (RFC 7143, 11.2.1.8;
// ISER.md 4.6, rule 7). The indexes of tasks, of management requests and of the ABORT TASK for a task are
// apart from each other; none makes the reserved tag.
const (
	indexBits       = 12
	indexMask       = 1<<indexBits - 1
	indexManagement = 0x400
	indexAbort      = 0x800
	maxQueueDepth   = indexManagement
)

func makeITT(generation uint32, index int) uint32 { return generation<<indexBits | uint32(index) }

// A task is the slot of one SCSI command.
//
//	free ─► waiting ─► sent ─► response and release, in either order ─► free
//	           │         └─► detached: abort queued ─► abort sent ─► answer, response and release ─► free
//	           └─► free (gave up before it was sent)
//
// The caller is told when both the response and the release are there, or at once when its buffers have
// been detached; one of a command in place, whose buffers cannot be, waits for the release. The slot is free when nothing can refer to it any more (ISER.md 4.6).
type task struct {
	transfer iscsi.Transfer
	req      *request // nil once the caller has been told
	prev     *task    // neighbours in core.age
	next     *task
	deadline time.Time

	generation uint32
	itt        uint32
	cmdSN      iscsi.CmdSN

	used     bool
	sent     bool
	answered bool // the response came, or the target has promised that none will come
	released bool // EventReleased
	abort    abortState
	abortITT uint32
	abortEnd time.Time // when a sent abort must have been answered

	buffer  *buffer  // in which its data lies
	owed    *request // of a command in place that was given up: its caller, still to be told
	owedErr error    // this

	in, out [1][]byte // back Transfer.In and Out, which saves an allocation
}

type abortState uint8

const (
	abortNone abortState = iota
	abortQueued
	abortSent
)

// idle reports whether nothing can refer to the slot any more.
func (t *task) idle() bool {
	return t.req == nil && t.owed == nil && t.abort == abortNone && (!t.sent || t.answered && t.released)
}

// taskList is an intrusive list in order of admission. Commands are sent in that order, so that those not
// yet sent are its tail, from unsent on, and the first one has the earliest deadline.
type taskList struct {
	first, last, unsent *task
}

func (l *taskList) push(t *task) {
	t.prev, t.next = l.last, nil
	if l.last != nil {
		l.last.next = t
	} else {
		l.first = t
	}
	l.last = t
	if l.unsent == nil {
		l.unsent = t
	}
}

func (l *taskList) remove(t *task) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.last = t.prev
	}
	if l.unsent == t {
		l.unsent = t.next
	}
	t.prev, t.next = nil, nil
}
