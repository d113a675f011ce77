package target

import (
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
)

// spareTasks is how many commands a session can have beyond its window: immediate ones.
const spareTasks = 16

type taskState uint8

// The states of a task (the answer is due in all but the last two).
const (
	taskFree taskState = iota
	// taskHeld: other tasks of the unit come first; itemResume will come.
	taskHeld
	// taskCollecting: unsolicited Data-Out is still to come.
	taskCollecting
	// taskWaiting: in the pool's queue.
	taskWaiting
	// taskFetching: GetData is under way.
	taskFetching
	// taskRunning: with the workers.
	taskRunning
	// taskPreempting: executed; the tasks that it has preempted are to be quiet before its answer.
	taskPreempting
	// taskReady: read data waits for its turn to be sent.
	taskReady
	// taskAborting: the datamover has been told to drop it; EventReleased will come.
	taskAborting
	// taskResponding: the response is queued; EventReleased will come.
	taskResponding
)

// A task is one SCSI command from its arrival until the datamover uses its memory no more.
type task struct {
	transfer iscsi.Transfer
	scsi     scsi.Task
	device   *scsi.Device
	c        *conn // has its allegiance (RFC 7143, 4.2.5.2): the others of the session leave it alone
	index    int32
	state    taskState
	serial   uint64        // order of arrival in the session
	since    time.Time     // of the present state, where it has a deadline
	arrived  time.Duration // by conn.elapsed
	// windowed: it holds a slot of the command window, which opens with the response.
	windowed bool
	// aborted: no response will be sent, and it ends as soon as nobody uses it.
	aborted bool
	// prepared: the device has prepared it, and has neither executed nor abandoned it.
	prepared bool
	// refused: sense answers it, whatever it is; it only waits for its unsolicited data to have come.
	refused bool
	// due: unsolicited Data-Out is still to come.
	due bool
	// full: there was no place for its unsolicited data while it is held back.
	full     bool
	sense    senseCode
	panicked error

	unsolicited uint32 // bytes taken without R2T
	dataSN      uint32 // of the next Data-Out

	piece piece    // of the session's reserve
	bufs  [][]byte // of the pool
	data  [][]byte // what the device sees: Out or In
	sub   [][]byte // what the datamover sees
	one   [1][]byte
	wait  arena.Waiter
	cdb   [scsi.MaxCDB]byte
	sent  int // bytes of read data handed to the datamover

	preempting *tmfOp // in state taskPreempting

	next     *task    // in a luQueue or the send queue
	queue    *luQueue // while waiting there; the workers' lock guards it
	hashNext int32
}

// A taskTable holds a session's tasks, all made at login, and finds them by ITT.
type taskTable struct {
	tasks   []task
	free    []int32
	buckets []int32 // index of the first task of a chain, or -1
	serial  uint64
}

func (tt *taskTable) open(n int) {
	tt.tasks = make([]task, n)
	tt.free = make([]int32, 0, n)
	size := 64
	for size < 2*n {
		size *= 2
	}
	tt.buckets = make([]int32, size)
	for i := range tt.buckets {
		tt.buckets[i] = -1
	}
	for i := n - 1; i >= 0; i-- {
		t := &tt.tasks[i]
		t.index = int32(i)
		t.wait.Ready = func() { t.c.post(item{kind: itemGranted, task: t}) }
		t.scsi.Ready = func() { t.c.post(item{kind: itemResume, task: t}) }
		tt.free = append(tt.free, int32(i))
	}
}

// take makes a task of c with an ITT that find does not know. The window and spareTasks see to it that one
// is left.
func (tt *taskTable) take(c *conn, itt uint32) *task {
	t := &tt.tasks[tt.free[len(tt.free)-1]]
	tt.free = tt.free[:len(tt.free)-1]
	tt.serial++
	t.c, t.serial = c, tt.serial
	t.transfer.ITT, t.transfer.Tag = itt, uint32(t.index)
	b := tt.bucket(itt)
	t.hashNext, *b = *b, t.index
	return t
}

// bucket is where itt's chain starts. Initiators count tags up or number slots, in either byte order.
func (tt *taskTable) bucket(itt uint32) *int32 {
	h := uint64(itt) * 0x9e3779b97f4a7c15
	return &tt.buckets[h>>32&uint64(len(tt.buckets)-1)]
}

// find is the task that an ITT names, nil if it names none.
func (tt *taskTable) find(itt uint32) *task {
	if len(tt.buckets) == 0 { // a discovery session
		return nil
	}
	for i := *tt.bucket(itt); i >= 0; i = tt.tasks[i].hashNext {
		if tt.tasks[i].transfer.ITT == itt {
			return &tt.tasks[i]
		}
	}
	return nil
}

// forget makes t's ITT free for the initiator to use again. t stays taken.
func (tt *taskTable) forget(t *task) {
	for p := tt.bucket(t.transfer.ITT); *p >= 0; p = &tt.tasks[*p].hashNext {
		if *p == t.index {
			*p = t.hashNext
			return
		}
	}
	panic("target: a task to be forgotten is not known")
}

// put makes t free.
func (tt *taskTable) put(t *task) {
	t.state = taskFree
	tt.free = append(tt.free, t.index)
}

// active is how many of the session's tasks wait for anything but their response to leave.
func (tt *taskTable) active() int {
	n := 0
	for i := range tt.tasks {
		if s := tt.tasks[i].state; s != taskFree && s != taskResponding {
			n++
		}
	}
	return n
}

// own yields the tasks of the session that came on this connection.
func (c *conn) own(yield func(*task) bool) {
	for i := range c.ses.tasks.tasks {
		if t := &c.ses.tasks.tasks[i]; t.c == c && t.state != taskFree && !yield(t) {
			return
		}
	}
}

// A senseCode is a sense key and an additional sense code with its qualifier: 0xKKAAQQ.
type senseCode uint32

// What the transport refuses by itself (RFC 7143, 11.4.7.2 and SPC-4, annex F).
const (
	senseInvalidField   senseCode = 0x05_24_00 // INVALID FIELD IN CDB
	senseAborted        senseCode = 0x0b_00_00
	senseUnexpectedData senseCode = 0x0b_0c_0c // UNEXPECTED UNSOLICITED DATA
	senseWrongAmount    senseCode = 0x0b_0c_0d // NOT ENOUGH UNSOLICITED DATA
)
