package iser

import (
	"errors"
	"fmt"
	"time"

	"github.com/goiser/goiser/iser/rdma"
)

// staging is where a round's work requests are collected, so that one post carries them all. A work
// request that is staged has its place in the send queue; only its post may still be refused.
type staging struct {
	wrs     []rdma.SendWR // wrs[next:] are to be posted
	sges    []rdma.SGE    // maxSGE for each of wrs
	next    int
	maxSGE  int
	credits int // send queue entries free, without those set aside for RDMA Reads
	since   time.Time
}

func newStaging(sendDepth, readDepth, maxSGE int) staging {
	n := sendDepth + readDepth
	return staging{wrs: make([]rdma.SendWR, 0, n), sges: make([]rdma.SGE, n*maxSGE), maxSGE: maxSGE, credits: sendDepth}
}

// room is how many work requests other than Reads can be staged.
func (s *staging) room() int { return min(s.credits, s.roomAny()) }

// roomAny is how many work requests the list holds.
func (s *staging) roomAny() int { return cap(s.wrs) - len(s.wrs) }

// stalled reports whether the device has refused a post and nothing is outstanding whose completion
// would make it worthwhile to try again.
func (s *staging) stalled() bool { return !s.since.IsZero() }

// wr stages one more work request, zero but for the room of its SGL.
func (s *staging) wr() *rdma.SendWR {
	i := len(s.wrs)
	s.wrs = s.wrs[:i+1]
	w := &s.wrs[i]
	*w = rdma.SendWR{SGL: s.sges[i*s.maxSGE : i*s.maxSGE : (i+1)*s.maxSGE]}
	return w
}

// stageSend stages the Send of a slot. unsignalled work requests were staged before it in the same chain.
func (c *conn) stageSend(slot int32, unsignalled int) *op {
	s := &c.slots.all[slot]
	index, o := c.ops.get(kindSend)
	o.slot, o.covers = slot, int32(unsignalled+1)
	w := c.wr()
	w.ID, w.Op, w.InvalidateKey = workID(kindSend, index), s.op, s.inv
	w.Flags = rdma.Signaled | rdma.Solicited // RFC 7145, 7.1: SendSE and SendInvSE
	w.SGL = append(w.SGL, s.sge)
	if s.data.Length > 0 {
		w.SGL = append(w.SGL, s.data)
	}
	c.credits--
	c.sends++
	return o
}

// post hands the staged work requests to the device, with one doorbell. What it refuses for want of room
// stays staged, in order.
func (c *conn) post() {
	if c.err != nil || c.next == len(c.wrs) {
		return
	}
	list := c.wrs[c.next:]
	n, err := c.qp.PostSend(list)
	for i := range list[:n] {
		if list[i].Flags&rdma.Signaled != 0 {
			c.onWire++
		}
	}
	if c.next += n; c.next == len(c.wrs) {
		c.wrs, c.next = c.wrs[:0], 0
	}
	switch {
	case err == nil:
		c.since = time.Time{}
	case !errors.Is(err, rdma.ErrQueueFull):
		c.fail(fmt.Errorf("post %d work requests: %w", len(list), err))
	default:
		c.refused(n, err)
	}
}

// refused: the device has less room than we have counted; some count in other units. Its next completion
// is when to try again. If none is outstanding we can only ask again after a while, but not for ever.
func (c *conn) refused(n int, err error) {
	switch {
	case c.onWire > 0:
		c.since = time.Time{}
	case c.since.IsZero() || n > 0:
		c.since = time.Now()
	case time.Since(c.since) > retryTimeout:
		c.fail(fmt.Errorf("the device takes no work request though none is outstanding: %w", err))
	}
}

// unstage drops what has not been posted. The connection is over.
func (c *conn) unstage() {
	for i := c.next; i < len(c.wrs); i++ {
		k, index := splitID(c.wrs[i].ID)
		if k == kindWrite || k == kindBind {
			continue
		}
		o := c.ops.at(k, index)
		if part := int(o.covers) - 1; part > i-c.next && o.task != nil {
			// Some RDMA Writes of this chain were posted, without a completion to come: nobody can tell
			// when the device is done with their memory, short of the queue pair's end.
			o.task.held = true
		}
		c.finish(index, o, false)
	}
	c.wrs, c.next = c.wrs[:0], 0
}
