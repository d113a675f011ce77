package iser

import (
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// A recvBuffer is the memory of one receive.
type recvBuffer struct {
	mem []byte
	sgl [1]rdma.SGE
}

// receiving is a connection's receive side. A buffer is posted, or consumed (the engine may look at it),
// or idle (its views have ended, and it waits to be posted).
type receiving struct {
	bufs       []*recvBuffer
	recvBlocks []*block
	posted     int
	consumed   []int32
	idle       []int32
	recvWRs    []rdma.RecvWR
	depth      int // of the receive queue
	heard      bool
	msg        message // the one being handled: here, for one on the stack would move to the heap
}

// addReceives makes n more receive buffers, within the receive queue's depth, and posts them.
func (c *conn) addReceives(n int) error {
	if n = min(n, c.depth-len(c.bufs)); n <= 0 {
		return nil
	}
	b, err := newBlock(c.dev, n*recvSize, rdma.LocalWrite)
	if err != nil {
		return err
	}
	c.recvBlocks = append(c.recvBlocks, b)
	fresh := make([]int32, n)
	for i := range n {
		fresh[i] = int32(len(c.bufs))
		rb := &recvBuffer{mem: b.mem[i*recvSize:][:recvSize:recvSize]}
		rb.sgl[0] = b.sge(i*recvSize, recvSize)
		c.bufs = append(c.bufs, rb)
	}
	return c.postReceives(fresh)
}

// postReceives posts buffers.
func (c *conn) postReceives(list []int32) error {
	c.recvWRs = c.recvWRs[:0]
	for _, i := range list {
		c.recvWRs = append(c.recvWRs, rdma.RecvWR{ID: workID(kindRecv, i), SGL: c.bufs[i].sgl[:]})
	}
	n, err := c.qp.PostRecv(c.recvWRs)
	c.posted += n
	if err != nil {
		return fmt.Errorf("post %d receives, %d of %d posted: %w", len(list), c.posted, c.depth, err)
	}
	return nil
}

// received handles the completion of a receive.
func (c *conn) received(index int32, comp *rdma.Completion) (ev iscsi.Event, ok bool) {
	if index < 0 || int(index) >= len(c.bufs) || c.posted == 0 {
		c.fail(fmt.Errorf("completion of unknown receive %#x", comp.ID))
		return ev, false
	}
	c.posted--
	if comp.Status != rdma.Success {
		c.fail(c.workError(comp))
		return ev, false
	}
	if c.err != nil {
		return ev, false
	}
	c.consumed = append(c.consumed, index)
	if int64(comp.ByteLen) > recvSize {
		c.fail(fmt.Errorf("%w: %d bytes received in a buffer of %d", ErrProtocol, comp.ByteLen, recvSize))
		return ev, false
	}
	m := &c.msg
	b := c.bufs[index].mem[:comp.ByteLen]
	if err := m.parse(b); err != nil {
		if !c.heard && isOldFormat(b) {
			err = fmt.Errorf("the peer speaks RFC 5046, which is obsolete: %w", err)
		}
		c.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		return ev, false
	}
	c.heard = true
	return c.role.receive(m, comp)
}

// endViews ends the life of the views that were handed out.
func (c *conn) endViews() {
	c.idle = append(c.idle, c.consumed...)
	c.consumed = c.consumed[:0]
}

// repost posts idle buffers again. It leaves a send slot for the answer to every message that can still
// arrive: a peer that asks faster than it takes answers finds no receive buffer and has to wait. A peer
// that keeps to its command window never gets there.
func (c *conn) repost() {
	n := min(len(c.idle), c.slots.spare()-spareSlots-c.posted)
	if n <= 0 {
		return
	}
	if err := c.postReceives(c.idle[:n]); err != nil {
		c.fail(err)
		return
	}
	c.idle = c.idle[:copy(c.idle, c.idle[n:])]
}
