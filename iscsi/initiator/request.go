package initiator

import (
	"sync"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// requestKind is what a caller asks of the loop.
type requestKind uint8

const (
	requestCommand requestKind = iota
	requestPing
	requestTMF
	requestClose
	requestRegister
	requestUnregister
)

// A request is one caller's wait. Until it is posted it is the caller's, from then on the loop's until
// done has been sent: exactly once.
type request struct {
	kind requestKind
	done chan struct{} // capacity 1, so that the loop never waits for a caller

	cmd      Command
	cdb      [16]byte // backs cmd.CDB where it fits
	function iscsi.TMFunction
	lun      iscsi.LUN
	buffer   *Buffer // to be registered, or not any more

	batch *Batch // which is told of the end, in place of done
	op    int    // of the batch

	task  *task // the loop's: the slot that serves it, nil before and after
	ended bool  // the loop's: finished

	result   Result
	response iscsi.TMResponse
	elapsed  time.Duration
	err      error
}

// requestPool keeps requests for reuse. Each session has one of its own: a channel belongs to the test
// bubble (testing/synctest) in which it was made.
type requestPool struct{ pool sync.Pool }

func (p *requestPool) get(kind requestKind) *request {
	r, _ := p.pool.Get().(*request)
	if r == nil {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.kind = kind
	return r
}

// put gives r back. A cancelled request is left to the garbage collector instead: its cancellation may
// still stand in the loop's mailbox.
func (p *requestPool) put(r *request) {
	*r = request{done: r.done}
	p.pool.Put(r)
}

// A letter is a request for the loop or, with cancel set, the cancellation of one posted before.
type letter struct {
	r      *request
	cancel error
}

// A mailbox hands letters to the loop. It is bounded by the session's semaphores: a request and its
// cancellation for each one that may be outstanding.
type mailbox struct {
	mu     sync.Mutex
	in     []letter
	spare  []letter // the loop's last batch, for reuse
	closed error    // set when the loop takes no more
}

// put queues letters; wake is true if the loop may not know of the queue yet, err why there is no loop.
func (m *mailbox) put(l ...letter) (wake bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed != nil {
		return false, m.closed
	}
	m.in = append(m.in, l...)
	return len(m.in) == len(l), nil
}

// take returns what was put since the last take. The slice is valid until the next one.
func (m *mailbox) take() []letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.spare)
	m.in, m.spare = m.spare[:0], m.in
	return m.spare
}

// close refuses everything from now on with err and returns what had been put.
func (m *mailbox) close(err error) []letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = err
	return m.in
}
