package roce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

var errNotConnected = errors.New("queue pair is not connected")

// A queuePair drives an rc.QP. It is the core's Sink.
type queuePair struct {
	o       *port
	ep      *endpoint
	num     wire.QPN
	cfg     rdma.QPConfig
	sendCQ  *completionQueue
	recvCQ  *completionQueue
	waiting [2]atomic.Int64 // completions not polled yet, of the send and the receive queue
	touched bool            // the reader's: has work for the end of the round

	mu     sync.Mutex // guards what follows, the core and the sending of its packets, which so leave in order
	core   *rc.QP     // nil until connected, or failed
	early  []rdma.RecvWR
	peer   netip.Addr
	in     *wire.Path // from the peer
	out    *outgoing
	news   news
	heard  bool // the peer has sent something
	told   bool // the error state has been made known
	closed bool
}

// News of a step are told once the lock is released.
type news struct {
	sends, recvs bool // completions
	heard        bool // the first packet
	failed       bool
}

const (
	sendSide = 0
	recvSide = 1
)

// room is how many completions one queue can have waiting: its own depth that were not polled, and as many in the
// core. See PostSend.
func room(depth int) int { return 2 * depth }

func newQueuePair(e *endpoint, c rdma.QPConfig) (*queuePair, error) {
	s, ok1 := c.SendCQ.(*completionQueue)
	r, ok2 := c.RecvCQ.(*completionQueue)
	switch {
	case !ok1 || !ok2:
		return nil, errors.New("completion queues of another provider")
	case c.SendDepth < 1 || c.SendDepth > maxQPDepth || c.RecvDepth < 1 || c.RecvDepth > maxQPDepth:
		return nil, fmt.Errorf("queues of %d and %d: the device has 1 to %d", c.SendDepth, c.RecvDepth, maxQPDepth)
	case c.MaxSendSGE < 0 || c.MaxSendSGE > maxSGE || c.MaxRecvSGE < 0 || c.MaxRecvSGE > maxSGE:
		return nil, fmt.Errorf("%d and %d scatter/gather entries: the device has 0 to %d", c.MaxSendSGE, c.MaxRecvSGE, maxSGE)
	}
	n, err := e.o.p.number()
	if err != nil {
		return nil, err
	}
	q := &queuePair{o: e.o, ep: e, num: n, cfg: c, sendCQ: s, recvCQ: r}
	if err := s.attach(e.o, room(c.SendDepth)); err != nil {
		e.o.p.free(n)
		return nil, err
	}
	if err := r.attach(e.o, room(c.RecvDepth)); err != nil {
		s.detach(q, room(c.SendDepth))
		e.o.p.free(n)
		return nil, err
	}
	return q, nil
}

// Num implements rdma.QueuePair.
func (q *queuePair) Num() uint32 { return uint32(q.num) }

// PostSend implements rdma.QueuePair. What was posted leaves before it returns, on this goroutine, as far as the
// window lets it.
func (q *queuePair) PostSend(wrs []rdma.SendWR) (int, error) {
	q.mu.Lock()
	if err := q.usable(); err != nil {
		q.mu.Unlock()
		return 0, fmt.Errorf("roce: post send: %w", err)
	}
	if q.core == nil {
		q.mu.Unlock()
		return 0, fmt.Errorf("roce: post send: %w", errNotConnected)
	}
	fit := q.fit(len(wrs), sendSide, q.cfg.SendDepth)
	n, err := q.core.PostSend(wrs[:fit], q)
	if err == nil && fit < len(wrs) {
		err = rdma.ErrQueueFull
	}
	for now := time.Now(); q.roundLocked(now); now = time.Now() {
		q.unlock()
		q.mu.Lock()
	}
	d := q.deadlineLocked()
	q.unlock()
	q.o.arm(d, true)
	return n, err
}

// fit is how many of n work requests may be handed to the core. Completions that nobody polls hold the poster back;
// in the error state each is one at once.
func (q *queuePair) fit(n, side, depth int) int {
	left := depth - int(q.waiting[side].Load())
	switch {
	case left <= 0:
		return 0
	case q.core != nil && q.core.Failed():
		return min(n, left)
	}
	return n
}

// PostRecv implements rdma.QueuePair.
func (q *queuePair) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.unlock()
	if err := q.usable(); err != nil {
		return 0, fmt.Errorf("roce: post receive: %w", err)
	}
	if q.core == nil {
		return q.postEarly(wrs)
	}
	fit := q.fit(len(wrs), recvSide, q.cfg.RecvDepth)
	n, err := q.core.PostRecv(wrs[:fit], q)
	if err == nil && fit < len(wrs) {
		err = rdma.ErrQueueFull
	}
	return n, err
}

// postEarly keeps receives for when there is a core: only the connection says how to make it.
func (q *queuePair) postEarly(wrs []rdma.RecvWR) (int, error) {
	for i, wr := range wrs {
		if len(q.early) >= q.cfg.RecvDepth {
			return i, rdma.ErrQueueFull
		}
		if len(wr.SGL) > max(q.cfg.MaxSendSGE, q.cfg.MaxRecvSGE) {
			return i, fmt.Errorf("roce: post receive: %d scatter/gather entries, the limit is %d", len(wr.SGL), q.cfg.MaxRecvSGE)
		}
		q.early = append(q.early, rdma.RecvWR{ID: wr.ID, SGL: slices.Clone(wr.SGL)})
	}
	return len(wrs), nil
}

func (q *queuePair) usable() error {
	if q.closed {
		return net.ErrClosed
	}
	return nil
}

// start makes the core, once the connection manager has said how.
func (q *queuePair) start(c rc.Config, path, back *wire.Path) {
	q.mu.Lock()
	defer q.unlock()
	if q.closed || q.core != nil {
		return
	}
	q.peer, q.in, q.out = path.Dst(), back, newOutgoing(path)
	q.startLocked(c)
}

func (q *queuePair) startLocked(c rc.Config) {
	c.QPN, c.Memory = q.num, q.o.p.dev.memory
	c.SendDepth, c.RecvDepth, c.MaxSGE = q.cfg.SendDepth, q.cfg.RecvDepth, max(q.cfg.MaxSendSGE, q.cfg.MaxRecvSGE, 1)
	q.core = rc.New(c)
	if n, err := q.core.PostRecv(q.early, q); err != nil {
		panic(fmt.Sprintf("roce: %d of %d receives fit a new queue pair: %v", n, len(q.early), err))
	}
	q.early = nil
}

// fail moves the queue pair to the error state because its connection has ended. A port's lock may be held.
func (q *queuePair) fail() {
	q.mu.Lock()
	defer q.unlock()
	if q.closed {
		return
	}
	q.told, q.news.heard = true, false // the connection manager knows more than that
	if q.core == nil {                 // one that was never connected flushes as any other
		q.startLocked(rc.Config{MTU: 256})
	}
	if q.out != nil { // the peer's last message has been taken, whatever comes now
		q.core.Acknowledge(q)
		q.sendLocked()
	}
	q.core.Fail(rdma.WRFlushErr, q)
}

// close ends the queue pair. It touches no memory once close has returned.
func (q *queuePair) close() (c rc.Counters) {
	q.mu.Lock()
	if q.core != nil {
		c = q.core.Counters()
	}
	q.closed, q.told, q.early = true, true, nil
	q.mu.Unlock()
	q.sendCQ.detach(q, room(q.cfg.SendDepth))
	q.recvCQ.detach(q, room(q.cfg.RecvDepth))
	return c
}

// roundLocked lets the core transmit, sends that, and reports whether there is more to send at once.
func (q *queuePair) roundLocked(now time.Time) (more bool) {
	out, more := q.transmitLocked(now)
	if out != nil {
		q.sendLocked()
	}
	return more
}

// sendLocked sends the packets laid out.
func (q *queuePair) sendLocked() {
	if len(q.out.bursts) > 0 {
		_ = q.o.link.Send(q.out.bursts) // its only error is that the link is closed: then the port is closing
		q.out.reset()
	}
}

// transmitLocked is roundLocked without sending: that is up to the caller, who then resets what is returned, all
// before it unlocks.
func (q *queuePair) transmitLocked(now time.Time) (*outgoing, bool) {
	if q.closed || q.out == nil {
		return nil, false
	}
	q.core.Transmit(now, q)
	if len(q.out.bursts) == 0 {
		return nil, q.core.More()
	}
	if q.core.Failed() && !q.told { // a NAK that ended it: nobody would repeat that if it were lost, and the DREQ follows
		q.out.again()
	}
	return q.out, q.core.More()
}

func (q *queuePair) deadlineLocked() time.Time {
	if q.closed || q.core == nil {
		return time.Time{}
	}
	return q.core.Deadline()
}

// signalLocked wakes who waits for completions before the step's packets are sent: the system call that sends an
// acknowledgement takes about as long as the waiter takes to run.
func (q *queuePair) signalLocked(leader *completionQueue) {
	if q.news.sends {
		q.sendCQ.signal(leader)
	}
	if q.news.recvs {
		q.recvCQ.signal(leader)
	}
	q.news.sends, q.news.recvs = false, false
}

// unlock ends a step: it releases the lock and tells what is new. No port's lock is held, except from fail and start,
// which have no news for the connection manager.
func (q *queuePair) unlock() {
	n := q.newsLocked()
	q.mu.Unlock()
	q.tell(n, nil)
}

// newsLocked takes the news, to be told when no lock is held.
func (q *queuePair) newsLocked() news {
	n := q.news
	q.news = news{}
	n.failed = q.core != nil && q.core.Failed() && !q.told
	q.told = q.told || n.failed
	return n
}

// tell wakes who waits for completions, and has the connection manager told once of the error state and of the first
// packet.
func (q *queuePair) tell(n news, leader *completionQueue) {
	if n.sends {
		q.sendCQ.signal(leader)
	}
	if n.recvs {
		q.recvCQ.signal(leader)
	}
	if n.failed {
		q.ep.failed()
	} else if n.heard {
		q.ep.confirm()
	}
}

// receiveLocked takes a packet for the queue pair, number i of those that came joined.
func (q *queuePair) receiveLocked(now time.Time, from netip.AddrPort, p wire.Packet, i uint16) {
	c := &q.o.counters
	switch {
	case q.closed || q.out == nil:
		c.notReady.Add(1)
	case from.Addr() != q.peer:
		c.wrongPeer.Add(1)
	case !q.in.Verify(p, from.Port(), i):
		c.badICRC.Add(1)
	default:
		if !q.heard {
			q.heard, q.news.heard = true, true
		}
		q.core.Receive(now, p, q)
	}
}

// Packet implements rc.Sink.
func (q *queuePair) Packet(_ *rc.QP, op wire.Opcode, n int) wire.Packet { return q.out.packet(op, n) }

// Complete implements rc.Sink.
func (q *queuePair) Complete(_ *rc.QP, c rdma.Completion) {
	if c.Recv {
		q.waiting[recvSide].Add(1)
		q.recvCQ.push(q, &c)
		q.news.recvs = true
	} else {
		q.waiting[sendSide].Add(1)
		q.sendCQ.push(q, &c)
		q.news.sends = true
	}
}

// polled notes that a completion has been taken.
func (q *queuePair) polled(recv bool) {
	side := sendSide
	if recv {
		side = recvSide
	}
	q.waiting[side].Add(-1)
}
