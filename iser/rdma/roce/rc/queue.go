package rc

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
)

var errInvalid = errors.New("invalid work request")

// maxMessage is the longest message, in bytes (IBTA 9.7.7.1.1).
const maxMessage = 1 << 31

// A sequence number (seq) is a PSN that does not wrap: its low 24 bits are the PSN.

// A sendEntry is a work request of the send queue.
type sendEntry struct {
	wr      rdma.SendWR // its SGL is in storage of the slot's own
	length  uint32
	key     uint32      // of a bind: the window's new one
	started bool        // first and count are known, or it was executed locally
	status  rdma.Status // not Success: what it ends with as soon as it is the oldest
	first   uint64      // seq of its first packet
	count   uint64      // packets; of a Read: of its responses; 0: executed locally
	got     uint64      // of a Read: responses placed
}

func (e *sendEntry) end() uint64 { return e.first + e.count }

func (e *sendEntry) isRead() bool { return e.wr.Op == rdma.OpRead }

// A sendQueue numbers work requests from 0; the numbers do not wrap. Those from freed on occupy slots:
//
//	freed <= done <= cursor <= begun <= posted
type sendQueue struct {
	slots  []sendEntry
	freed  uint64 // before: a later one's completion was handed over
	done   uint64 // before: ended
	cursor uint64 // the one being transmitted, perhaps again
	begun  uint64 // before: started
	posted uint64
	read   uint64 // before: no Read that lacks responses
}

func (s *sendQueue) at(n uint64) *sendEntry { return &s.slots[n%uint64(len(s.slots))] }

// A recvEntry is a work request of the receive queue.
type recvEntry struct {
	id     uint64
	length uint64 // at most maxMessage is used
	sgl    []rdma.SGE
}

type recvQueue struct {
	slots        []recvEntry
	done, posted uint64
}

func (r *recvQueue) at(n uint64) *recvEntry { return &r.slots[n%uint64(len(r.slots))] }

func (r *recvQueue) empty() bool { return r.done == r.posted }

func newQueues(c *Config) (sendQueue, recvQueue) {
	s := sendQueue{slots: make([]sendEntry, max(c.SendDepth, 1))}
	r := recvQueue{slots: make([]recvEntry, max(c.RecvDepth, 1))}
	for i := range s.slots {
		s.slots[i].wr.SGL = make([]rdma.SGE, 0, c.MaxSGE)
	}
	for i := range r.slots {
		r.slots[i].sgl = make([]rdma.SGE, 0, c.MaxSGE)
	}
	return s, r
}

// PostSend takes work requests, in order, and returns how many: fewer than all with rdma.ErrQueueFull or what is
// wrong with the next. Nothing is transmitted before Transmit. In the error state they complete, flushed.
func (q *QP) PostSend(wrs []rdma.SendWR, s Sink) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if err := q.check(wr); err != nil {
			return i, err
		}
		if q.failed {
			s.Complete(q, rdma.Completion{ID: wr.ID, Status: rdma.WRFlushErr, QPNum: uint32(q.cfg.QPN)})
			continue
		}
		if q.sq.posted-q.sq.freed >= uint64(q.cfg.SendDepth) {
			return i, rdma.ErrQueueFull
		}
		q.take(wr)
	}
	return len(wrs), nil
}

// take puts a work request into its slot.
func (q *QP) take(wr *rdma.SendWR) {
	e := q.sq.at(q.sq.posted)
	q.sq.posted++
	sgl := append(e.wr.SGL[:0], wr.SGL...)
	*e = sendEntry{wr: *wr}
	e.wr.SGL = sgl
	if wr.Op == rdma.OpBindWindow {
		e.key = wr.Window.(*window).postKey()
	}
	n := rdma.Length(sgl)
	if n > maxMessage {
		e.status = rdma.LocLenErr
		return
	}
	e.length = uint32(n)
}

// check refuses what a driver would not hand to a device.
func (q *QP) check(wr *rdma.SendWR) error {
	switch wr.Op {
	case rdma.OpSend, rdma.OpSendInv, rdma.OpWrite, rdma.OpRead:
	case rdma.OpLocalInv:
		if len(wr.SGL) != 0 {
			return fmt.Errorf("post %v: %w: it has no memory", wr.Op, errInvalid)
		}
	case rdma.OpBindWindow:
		w, ok1 := wr.Window.(*window)
		r, ok2 := wr.Region.(*region)
		if !ok1 || !ok2 || w.m != q.cfg.Memory || r.m != q.cfg.Memory || len(wr.SGL) != 1 {
			return fmt.Errorf("post %v: %w: needs a window and a region of the device, and one piece of it", wr.Op, errInvalid)
		}
		return nil
	default:
		return fmt.Errorf("post %v: %w", wr.Op, errInvalid)
	}
	if len(wr.SGL) > q.cfg.MaxSGE {
		return fmt.Errorf("post %v: %w: %d scatter/gather entries, the limit is %d", wr.Op, errInvalid, len(wr.SGL), q.cfg.MaxSGE)
	}
	return nil
}

// PostRecv does the same for the receive queue.
func (q *QP) PostRecv(wrs []rdma.RecvWR, s Sink) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGL) > q.cfg.MaxSGE {
			return i, fmt.Errorf("post receive: %w: %d scatter/gather entries, the limit is %d", errInvalid, len(wr.SGL), q.cfg.MaxSGE)
		}
		if q.failed {
			s.Complete(q, rdma.Completion{ID: wr.ID, Status: rdma.WRFlushErr, QPNum: uint32(q.cfg.QPN), Recv: true})
			continue
		}
		if q.rq.posted-q.rq.done >= uint64(q.cfg.RecvDepth) {
			return i, rdma.ErrQueueFull
		}
		e := q.rq.at(q.rq.posted)
		q.rq.posted++
		e.id, e.sgl, e.length = wr.ID, append(e.sgl[:0], wr.SGL...), min(rdma.Length(wr.SGL), maxMessage)
	}
	return len(wrs), nil
}

// completeSend ends the oldest work request of the send queue. An unsignalled one that went well makes no
// completion, and its slot waits for the next that does: only then does the poster know.
func (q *QP) completeSend(status rdma.Status, s Sink) {
	e := q.sq.at(q.sq.done)
	q.sq.done++
	q.sq.cursor = max(q.sq.cursor, q.sq.done)
	if status == rdma.Success && e.wr.Flags&rdma.Signaled == 0 {
		return
	}
	c := rdma.Completion{ID: e.wr.ID, Status: status, QPNum: uint32(q.cfg.QPN)}
	if e.isRead() && status == rdma.Success {
		c.ByteLen = e.length
	}
	e.wr.Window, e.wr.Region = nil, nil
	q.sq.freed = q.sq.done
	s.Complete(q, c)
}

// completeRecv ends the oldest receive.
func (q *QP) completeRecv(c rdma.Completion, s Sink) {
	c.ID, c.QPNum, c.Recv = q.rq.at(q.rq.done).id, uint32(q.cfg.QPN), true
	q.rq.done++
	s.Complete(q, c)
}

// reap ends the work requests that are at the head of the send queue and done.
func (q *QP) reap(s Sink) {
	for q.sq.done < q.sq.begun {
		e := q.sq.at(q.sq.done)
		if e.status != rdma.Success {
			q.failAt(q.sq.done, e.status, s)
			return
		}
		if !e.started || e.count > 0 && e.end() > q.req.una {
			return
		}
		q.completeSend(rdma.Success, s)
	}
}

// failAt moves the queue pair to the error state: send number n completes with status, everything else flushed.
func (q *QP) failAt(n uint64, status rdma.Status, s Sink) {
	if q.failed {
		return
	}
	q.failed, q.more = true, false
	q.ackAt, q.rnrAt = zeroTime, zeroTime
	for q.sq.done < q.sq.posted {
		st := rdma.WRFlushErr
		if q.sq.done == n {
			st = status
		}
		q.completeSend(st, s)
	}
	for !q.rq.empty() {
		st := rdma.WRFlushErr
		if q.resp.recvStatus != rdma.Success {
			st, q.resp.recvStatus = q.resp.recvStatus, rdma.Success
		}
		q.completeRecv(rdma.Completion{Status: st}, s)
	}
}
