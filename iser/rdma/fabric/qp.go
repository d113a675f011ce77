package fabric

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

var (
	errNotConnected = errors.New("queue pair not connected")
	errInvalid      = errors.New("invalid work request")
)

// firstQP is the lowest number given to a queue pair; 0 and 1 are special (IBTA, 10.2.4).
const firstQP = 0x10

type qpState uint8

const (
	qpInitial   qpState = iota // receives can be posted
	qpConnected                // ready to send
	qpError
	qpDestroyed
)

// Numbers of a queue's work requests count from 0 and never wrap. Those below done have completed;
// those from reaped to posted occupy slots.
type sendQueue struct {
	slots                  []sendEntry
	posted, executed, done uint64
	reaped                 atomic.Uint64
}

type recvQueue struct {
	slots        []recvEntry
	posted, done uint64
	reaped       atomic.Uint64
}

// A sendEntry is a work request of a send queue.
type sendEntry struct {
	wr      rdma.SendWR // SGL is in storage of the slot's own
	key     uint32      // of OpBindWindow: the window's new one
	fault   rdma.Status
	reading bool      // an RDMA Read whose data has not come yet
	sum     uint32    // of the memory of a Send or Write whose completion is held back
	due     time.Time // before: not executed; once executed: not completed
}

type recvEntry struct {
	id  uint64
	sgl []rdma.SGE
}

// A placement is data of an RDMA Write that has been acknowledged and is not in memory yet.
type placement struct {
	entry sendEntry
	data  []byte
	due   time.Time
}

// A queuePair is one end of a link. link.mu guards everything but the reaped counts.
type queuePair struct {
	l                *link
	d                *device
	num              uint32
	cfg              rdma.QPConfig
	sendCQ, recvCQ   *completionQueue
	state            qpState
	peer             *queuePair
	sq               sendQueue
	rq               recvQueue
	reads            int // RDMA Reads in flight
	maxReads, serves int // reads we may have in flight, reads we serve
	leaving          bool
	leaveAt          time.Time // when the peer's disconnect arrives
	retryAt          time.Time // when the peer's silence becomes an error
	overrun          bool
	rnr              bool // the next Send has found no receive
	late             []placement
	src, dst         [][]byte // scratch
}

func newQueuePair(e *endpoint, c rdma.QPConfig) (*queuePair, error) {
	lim := &e.l.f.limits
	if c.SendDepth < 1 || c.RecvDepth < 1 || c.SendDepth > lim.MaxQPDepth || c.RecvDepth > lim.MaxQPDepth {
		return nil, fmt.Errorf("depths %d and %d: the device has 1 to %d", c.SendDepth, c.RecvDepth, lim.MaxQPDepth)
	}
	if c.MaxSendSGE < 0 || c.MaxRecvSGE < 0 || c.MaxSendSGE > lim.MaxSGE || c.MaxRecvSGE > lim.MaxSGE {
		return nil, fmt.Errorf("%d and %d scatter/gather entries: the device has %d", c.MaxSendSGE, c.MaxRecvSGE, lim.MaxSGE)
	}
	q := &queuePair{l: e.l, d: e.l.f.devices[e.side], cfg: c}
	var ok1, ok2 bool
	q.sendCQ, ok1 = c.SendCQ.(*completionQueue)
	q.recvCQ, ok2 = c.RecvCQ.(*completionQueue)
	if !ok1 || !ok2 || q.sendCQ.f != e.l.f || q.recvCQ.f != e.l.f {
		return nil, errors.New("needs completion queues of this fabric")
	}
	if err := q.sendCQ.use(); err != nil {
		return nil, err
	}
	if err := q.recvCQ.use(); err != nil {
		q.sendCQ.release(q)
		return nil, err
	}
	q.num = firstQP + e.l.f.lastQP.Add(1)
	q.sq.slots = make([]sendEntry, c.SendDepth)
	q.rq.slots = make([]recvEntry, c.RecvDepth)
	for i := range q.sq.slots {
		q.sq.slots[i].wr.SGL = make([]rdma.SGE, 0, c.MaxSendSGE)
	}
	for i := range q.rq.slots {
		q.rq.slots[i].sgl = make([]rdma.SGE, 0, c.MaxRecvSGE)
	}
	e.l.f.gauges.queuePairs.Add(1)
	return q, nil
}

func (s *sendQueue) at(n uint64) *sendEntry { return &s.slots[n%uint64(len(s.slots))] }
func (r *recvQueue) at(n uint64) *recvEntry { return &r.slots[n%uint64(len(r.slots))] }

// Num implements rdma.QueuePair.
func (q *queuePair) Num() uint32 { return q.num }

// PostSend implements rdma.QueuePair.
func (q *queuePair) PostSend(wrs []rdma.SendWR) (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if q.state == qpInitial {
		return 0, fmt.Errorf("fabric: post send: %w", errNotConnected)
	}
	n := 0
	var err error
	for n < len(wrs) {
		if err = q.takeSend(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		q.l.pump()
	}
	return n, err
}

// PostRecv implements rdma.QueuePair.
func (q *queuePair) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	n := 0
	var err error
	for n < len(wrs) {
		if err = q.takeRecv(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		q.l.pump()
	}
	return n, err
}

// usable is why nothing can be posted.
func (q *queuePair) usable() error {
	switch {
	case q.state == qpDestroyed:
		return fmt.Errorf("fabric: post: %w", net.ErrClosed)
	case q.overrun:
		return fmt.Errorf("fabric: post: %w", errOverrun)
	}
	return nil
}

// takeSend puts one work request in the send queue.
func (q *queuePair) takeSend(wr *rdma.SendWR) error {
	if err := q.usable(); err != nil {
		return err
	}
	if q.sq.posted-q.sq.reaped.Load() == uint64(len(q.sq.slots)) {
		return rdma.ErrQueueFull
	}
	if err := q.check(wr); err != nil {
		return err
	}
	var fault Fault
	if q.l.f.opts.Fault != nil {
		if fault = q.l.f.opts.Fault(q.num, wr); fault.Post != nil {
			return fault.Post
		}
	}
	e := q.sq.at(q.sq.posted)
	sgl := append(e.wr.SGL[:0], wr.SGL...)
	*e = sendEntry{wr: *wr, fault: fault.Status, due: q.l.hold(maxExecuteHold)}
	e.wr.SGL = sgl
	if wr.Op == rdma.OpBindWindow {
		e.key = wr.Window.(*window).postKey()
	}
	q.sq.posted++
	return nil
}

// check refuses what a driver would not hand to the device.
func (q *queuePair) check(wr *rdma.SendWR) error {
	lim := &q.l.f.limits
	sges := q.cfg.MaxSendSGE
	switch wr.Op {
	case rdma.OpSend, rdma.OpWrite:
	case rdma.OpRead:
		sges = min(sges, lim.MaxReadSGE)
	case rdma.OpSendInv:
		if !lim.SendInvalidate {
			return fmt.Errorf("fabric: %v: %w: the device has it not", wr.Op, errInvalid)
		}
	case rdma.OpLocalInv:
		if !lim.Windows || len(wr.SGL) != 0 {
			return fmt.Errorf("fabric: %v: %w", wr.Op, errInvalid)
		}
	case rdma.OpBindWindow:
		w, ok1 := wr.Window.(*window)
		r, ok2 := wr.Region.(*region)
		if !ok1 || !ok2 || len(wr.SGL) != 1 || w.d != q.d || r.d != q.d {
			return fmt.Errorf("fabric: %v: %w: needs a window and a region of the device, and one piece of it", wr.Op, errInvalid)
		}
		return nil
	default:
		return fmt.Errorf("fabric: %v: %w", wr.Op, errInvalid)
	}
	if len(wr.SGL) > sges {
		return fmt.Errorf("fabric: %v: %w: %d scatter/gather entries, the limit is %d", wr.Op, errInvalid, len(wr.SGL), sges)
	}
	return nil
}

// takeRecv puts one work request in the receive queue.
func (q *queuePair) takeRecv(wr *rdma.RecvWR) error {
	if err := q.usable(); err != nil {
		return err
	}
	if q.rq.posted-q.rq.reaped.Load() == uint64(len(q.rq.slots)) {
		return rdma.ErrQueueFull
	}
	if len(wr.SGL) > q.cfg.MaxRecvSGE {
		return fmt.Errorf("fabric: receive: %w: %d scatter/gather entries, the limit is %d", errInvalid, len(wr.SGL), q.cfg.MaxRecvSGE)
	}
	e := q.rq.at(q.rq.posted)
	e.id, e.sgl = wr.ID, append(e.sgl[:0], wr.SGL...)
	q.rq.posted++
	return nil
}

// destroy ends the queue pair: what has not completed never will.
func (q *queuePair) destroy() {
	q.state = qpDestroyed
	q.late = nil
	q.sendCQ.release(q)
	q.recvCQ.release(q)
	q.l.f.gauges.queuePairs.Add(-1)
}
