package isertest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
)

// A post is a work request that has not ended.
type post struct {
	id       uint64 // ours: users have one for several work requests
	user     uint64 // the user's
	signaled bool
	op       rdma.OpCode // 0: a receive
	sgl      []rdma.SGE
	summed   bool
	sum      uint32 // of what it reads
	before   []byte // what an RDMA Read will overwrite, for faults
	offers   uint32 // the key that a Send offers
	ends     uint32 // the key that OpLocalInv ends
	seen     Event  // what was told of it
}

// A workQueue is one of a queue pair's.
type workQueue struct {
	posted []post
	failed bool // an error completion has come
}

type watchedQP struct {
	rdma.QueuePair
	w            *Watch
	sends, recvs workQueue
	closed       bool
	betrayed     bool // the peer has invalidated a key that was not its to
}

// PostSend implements rdma.QueuePair.
func (q *watchedQP) PostSend(wrs []rdma.SendWR) (int, error) {
	wrs = slices.Clone(wrs)
	regions := make([]*watchedRegion, len(wrs))
	q.w.mu.Lock()
	for i := range wrs {
		if r, ok := wrs[i].Region.(*watchedRegion); ok {
			regions[i], wrs[i].Region = r, r.MemoryRegion
		}
		if x, ok := wrs[i].Window.(*watchedWindow); ok {
			wrs[i].Window = x.Window
		}
		q.posting(&wrs[i])
	}
	q.w.mu.Unlock()
	n, err := q.QueuePair.PostSend(wrs)
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.sends.drop(len(wrs) - n)
	for i := range wrs[:n] {
		q.posted(&wrs[i], regions[i])
	}
	q.w.faults.posted(q.w, wrs[:n])
	return n, err
}

// posting notes a work request before the device has it.
func (q *watchedQP) posting(wr *rdma.SendWR) {
	w := q.w
	p := post{id: w.next(), user: wr.ID, signaled: wr.Flags&rdma.Signaled != 0, op: wr.Op, sgl: slices.Clone(wr.SGL)}
	if p.summed = isSend(wr.Op) || w.stable && wr.Op == rdma.OpWrite; p.summed {
		p.sum = w.sum(wr.SGL)
	}
	if wr.Op == rdma.OpLocalInv {
		p.ends = wr.InvalidateKey
		w.invalidating(q, p.ends)
	}
	if q.betrayed {
		w.failf("queue pair %#x: goes on after the peer has invalidated a key that was not its to invalidate", q.Num())
	}
	p.seen = q.seen(wr)
	w.event(p.seen)
	w.faults.posting(w, &p)
	q.sends.posted = append(q.sends.posted, p)
	wr.ID = p.id
}

// posted checks a work request that the device has taken: a window has its key only now.
func (q *watchedQP) posted(wr *rdma.SendWR, r *watchedRegion) {
	switch {
	case wr.Op == rdma.OpBindWindow:
		q.w.bound(q, wr, r)
	case isSend(wr.Op):
		q.sending(q.find(wr.ID), q.w.first(wr.SGL))
	}
}

// seen is what is told of a work request.
func (q *watchedQP) seen(wr *rdma.SendWR) Event {
	e := Event{Step: Posted, QP: q.Num(), Op: wr.Op, Key: wr.RKey, Addr: wr.RemoteAddr, Length: uint32(rdma.Length(wr.SGL))}
	switch wr.Op {
	case rdma.OpSend, rdma.OpSendInv:
		e.Key = wr.InvalidateKey
		q.w.describe(q.w.first(wr.SGL), &e)
	case rdma.OpWrite:
		e.Word = word(q.w.first(wr.SGL))
	case rdma.OpBindWindow:
		e.Step, e.Key, e.Addr = Bound, rdma.NextKey(wr.Window.RKey()), wr.SGL[0].Addr
	case rdma.OpLocalInv:
		e.Key = wr.InvalidateKey
	}
	return e
}

// describe says which PDU is sent, and what a command offers.
func (w *Watch) describe(b []byte, e *Event) {
	h, bhs, ok := pdu(b)
	if !ok {
		return
	}
	e.What, e.Tag = iscsi.OpcodeOf(bhs).String(), iscsi.ITTOf(bhs)
	if iscsi.OpcodeOf(bhs) != iscsi.OpSCSICommand {
		return
	}
	e.Length = binary.BigEndian.Uint32(bhs[offEDTL:])
	switch {
	case h.Flags&iser.ReadValid != 0:
		e.Key, e.Addr = h.ReadSTag, h.ReadBase
	case h.Flags&iser.WriteValid != 0:
		e.Key, e.Addr = h.WriteSTag, h.WriteBase
	}
}

// find is the post that has not ended with our number, nil if it has.
func (q *watchedQP) find(id uint64) *post {
	for i := range q.sends.posted {
		if q.sends.posted[i].id == id {
			return &q.sends.posted[i]
		}
	}
	return nil
}

// PostRecv implements rdma.QueuePair.
func (q *watchedQP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	wrs = slices.Clone(wrs)
	q.w.mu.Lock()
	for i := range wrs {
		wr := &wrs[i]
		p := post{id: q.w.next(), user: wr.ID, signaled: true, sgl: slices.Clone(wr.SGL)}
		q.recvs.posted = append(q.recvs.posted, p)
		wr.ID = p.id
	}
	q.w.mu.Unlock()
	n, err := q.QueuePair.PostRecv(wrs)
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.recvs.drop(len(wrs) - n)
	return n, err
}

func (w *Watch) next() uint64 { w.serial++; return w.serial }

// drop forgets the last n posts: they were not taken.
func (u *workQueue) drop(n int) {
	if len(u.posted) >= n { // else the queue pair has been closed meanwhile
		u.posted = u.posted[:len(u.posted)-n]
	}
}

func isSend(op rdma.OpCode) bool { return op == rdma.OpSend || op == rdma.OpSendInv }

// pdu takes the iSER header off a message.
func pdu(b []byte) (h iser.Header, bhs *[iscsi.BHSSize]byte, ok bool) {
	rest, err := h.Parse(b)
	if err != nil || len(rest) < iscsi.BHSSize {
		return h, nil, false
	}
	return h, (*[iscsi.BHSSize]byte)(rest), true
}

const offEDTL = 20 // expected data transfer length in a SCSI Command's BHS

// sending looks for a command in what is sent.
func (q *watchedQP) sending(p *post, b []byte) {
	w := q.w
	h, bhs, ok := pdu(b)
	if !ok || iscsi.OpcodeOf(bhs) != iscsi.OpSCSICommand {
		return
	}
	itt, n := iscsi.ITTOf(bhs), binary.BigEndian.Uint32(bhs[offEDTL:])
	if h.Flags&iser.ReadValid != 0 {
		w.offered(q, itt, true, h.ReadSTag, h.ReadBase, n)
	}
	if h.Flags&iser.WriteValid != 0 {
		w.offered(q, itt, false, h.WriteSTag, h.WriteBase, n-min(n, w.unsolicited(bhs, n)))
	}
	if p != nil {
		p.offers = p.seen.Key
	}
}

// unsolicited is how much of a write's n bytes goes before the part that is offered: with the command if that is
// final, else as much as negotiated (RFC 7143, 11.3.4).
func (w *Watch) unsolicited(bhs *[iscsi.BHSSize]byte, n uint32) uint32 {
	if iscsi.IsFinal(bhs) {
		return iscsi.DataLengthOf(bhs)
	}
	return min(n, w.burst)
}

// received looks for a response in what has come.
func (q *watchedQP) received(c *rdma.Completion, b []byte) {
	e := Event{Step: Delivered, QP: c.QPNum, Length: c.ByteLen, Word: word(b)}
	_, bhs, ok := pdu(b)
	if ok {
		e.What, e.Tag = iscsi.OpcodeOf(bhs).String(), iscsi.ITTOf(bhs)
	}
	if c.Invalidated {
		q.w.event(Event{Step: Invalidated, QP: c.QPNum, Tag: e.Tag, Key: c.InvalidatedKey})
		q.w.invalidated(q, e.Tag, c.InvalidatedKey)
	}
	if ok && iscsi.OpcodeOf(bhs) == iscsi.OpSCSIResponse {
		q.w.faults.recycle(q, e.Tag)
		q.w.answered(e.Tag)
	}
	q.w.event(e)
}

// completed checks a completion.
func (w *Watch) completed(c *rdma.Completion) {
	w.checks.Completions++
	q := w.qps[c.QPNum]
	if q == nil || q.closed {
		w.failf("queue pair %#x: completion %+v, but it is closed", c.QPNum, *c)
		return
	}
	u, what := &q.sends, "send"
	if c.Recv {
		u, what = &q.recvs, "receive"
	}
	if c.Status == rdma.Success && u.failed {
		w.failf("queue pair %#x: a %s succeeded after one that failed: %+v", c.QPNum, what, *c)
	}
	p, err := u.take(c)
	u.failed = u.failed || c.Status != rdma.Success
	if err != nil {
		w.failf("queue pair %#x, %s queue: %v", c.QPNum, what, err)
		return
	}
	c.ID = p[len(p)-1].user
	for i := range p {
		q.ended(&p[i], c)
	}
	if !c.Recv {
		return
	}
	if c.Status != rdma.Success {
		return
	}
	if b := w.first(p[0].sgl); uint64(len(b)) >= uint64(c.ByteLen) {
		q.received(c, b[:c.ByteLen])
	}
}

// ended checks what a work request has read, now that it has ended with c.
func (q *watchedQP) ended(p *post, c *rdma.Completion) {
	w := q.w
	if p.summed {
		if isSend(p.op) {
			w.checks.Sends++
		} else {
			w.checks.Writes++
		}
		if w.sum(p.sgl) != p.sum {
			w.failf("queue pair %#x: what %s %#x reads has changed before it has completed", c.QPNum, p.op, p.id)
		}
	}
	if p.ends != 0 && c.Status == rdma.Success {
		w.dead(p.ends)
	}
	if p.op != 0 {
		e := p.seen
		if e.Step, e.Status = Completed, c.Status; p.op == rdma.OpRead && c.Status == rdma.Success {
			e.Word = word(w.first(p.sgl))
		}
		w.event(e)
	}
}

// take takes the work requests that a completion ends: those without one of their own, and that which it names. After
// an error each has one.
func (u *workQueue) take(c *rdma.Completion) ([]post, error) {
	for i, p := range u.posted {
		if p.id == c.ID {
			ended := u.posted[:i+1]
			u.posted = u.posted[i+1:]
			return ended, nil
		}
		if p.signaled || u.failed {
			return nil, fmt.Errorf("%#x ended, but %#x was to end before", c.ID, p.id)
		}
	}
	return nil, fmt.Errorf("%#x ended, which was not posted or has ended before", c.ID)
}
