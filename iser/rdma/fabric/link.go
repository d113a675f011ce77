package fabric

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

// How long things are held back at most on a fabric with a seed. Acknowledgements are the slowest, so
// that a response often overtakes the completion of its request's Send.
const (
	maxExecuteHold    = 100 * time.Microsecond
	maxReadHold       = 300 * time.Microsecond
	maxAckHold        = 400 * time.Microsecond
	maxPlaceHold      = 500 * time.Microsecond
	maxDisconnectHold = 300 * time.Microsecond
)

// retryTimeout is how long a queue pair whose peer is gone, without having said so, tries until its
// work request ends with RetryExcErr.
const retryTimeout = 2 * time.Second

type linkState uint8

const (
	linkIdle linkState = iota
	linkRequested
	linkConnected
	linkEnded // before it was connected
)

// A link is one connection: two endpoints, and the wire between their queue pairs.
type link struct {
	f     *Fabric
	reply chan error // what ends Connect: exactly one, when the state leaves linkRequested

	mu    sync.Mutex // held while work requests execute
	state linkState
	ends  [2]*endpoint
	rng   *rand.Rand // nil: everything at once
	now   time.Time  // of the present pump, once somebody asked
	wake  time.Time  // when the earliest thing that is held back may go
	timer *time.Timer
	op    Operation // what Tap is shown
}

func newLink(f *Fabric, number uint64) *link {
	l := &link{f: f, reply: make(chan error, 1)}
	if f.opts.Seed != 0 {
		l.rng = rand.New(rand.NewPCG(f.opts.Seed, number))
	}
	return l
}

func (l *link) addEndpoint(side int, local, remote netip.AddrPort) *endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addEndpointLocked(side, local, remote)
}

func (l *link) addEndpointLocked(side int, local, remote netip.AddrPort) *endpoint {
	e := &endpoint{l: l, side: side, local: local, remote: remote}
	l.ends[side] = e
	l.f.gauges.endpoints.Add(1)
	return e
}

// end gives up a link that was not connected: receives are flushed on both sides. A passive endpoint
// that no Accept has taken is closed; nobody else would do it.
func (l *link) end() {
	l.state = linkEnded
	for _, e := range l.ends {
		if e == nil {
			continue
		}
		if e.qp != nil {
			e.qp.toError()
		}
		if e.side == 1 && !e.taken {
			e.closeLocked()
		}
	}
}

// refuse answers a request with a consumer reject.
func (l *link) refuse(private []byte) {
	if l.state != linkRequested {
		return
	}
	l.reply <- &rdma.RejectedError{Reason: rdma.ReasonConsumer, Private: l.f.private(private, rdma.MaxRejectPrivate)}
	l.end()
}

// giveUp ends a request for a reason of the active side's own, unless it has been answered meanwhile.
func (l *link) giveUp(reason error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkRequested {
		return <-l.reply
	}
	l.end()
	return reason
}

// giveUpUntaken ends a request that waits in the backlog of a listener that has been closed.
func (l *link) giveUpUntaken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkRequested || l.ends[1].taken {
		return nil
	}
	l.end()
	return &rdma.RejectedError{Reason: rdma.ReasonConsumer, Private: l.f.private(nil, rdma.MaxRejectPrivate)}
}

// time is the time of this pump.
func (l *link) time() time.Time {
	if l.now.IsZero() {
		l.now = time.Now()
	}
	return l.now
}

// coin is true for half of all things, if there is a seed.
func (l *link) coin() bool { return l.rng != nil && l.rng.Uint32()&1 != 0 }

// hold draws the time until which something is held back; half of all things are not.
func (l *link) hold(longest time.Duration) time.Time {
	if !l.coin() {
		return time.Time{}
	}
	return l.later(longest)
}

// later draws a time within longest from now.
func (l *link) later(longest time.Duration) time.Time {
	return l.time().Add(time.Duration(l.rng.Int64N(int64(longest))))
}

// held reports whether t has not come yet, and sees to it that the link is pumped then.
func (l *link) held(t time.Time) bool {
	if t.IsZero() || !l.time().Before(t) {
		return false
	}
	if l.wake.IsZero() || t.Before(l.wake) {
		l.wake = t
	}
	return true
}

// pump executes and completes what can be. Whatever changes a queue or a state calls it.
func (l *link) pump() {
	l.wake = time.Time{}
	for again := true; again; {
		again = false
		for _, e := range l.ends {
			if e != nil && e.qp != nil && e.qp.run() {
				again = true
			}
		}
	}
	if !l.wake.IsZero() {
		l.setTimer(l.wake.Sub(l.time()))
	}
	l.now = time.Time{}
}

func (l *link) setTimer(d time.Duration) {
	if l.timer != nil {
		l.timer.Reset(d)
		return
	}
	l.timer = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pump()
	})
}

// tap shows an operation to Options.Tap.
func (l *link) tap(q *queuePair, e *sendEntry, status rdma.Status, key uint32, addr, length uint64, data [][]byte) {
	if status == rdma.Success {
		l.f.Counters.Operations.Add(1)
		l.f.Counters.Bytes.Add(length)
	} else {
		data = nil
	}
	if l.f.opts.Tap == nil {
		return
	}
	l.op = Operation{
		Op: e.wr.Op, QP: q.num, Status: status, Key: key, Addr: addr, Length: length, Data: data,
	}
	if e.wr.Op != rdma.OpLocalInv && e.wr.Op != rdma.OpBindWindow {
		l.op.Peer = q.peer.num
	}
	l.f.tapMu.Lock()
	defer l.f.tapMu.Unlock()
	l.f.opts.Tap(&l.op)
}
