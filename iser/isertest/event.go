package isertest

import (
	"encoding/binary"

	"github.com/goiser/goiser/iser/rdma"
)

// A Step is what an Event tells of.
type Step string

// The steps. What a device places it does not tell: who watches its link sees that.
const (
	Posted      Step = "posted"
	Completed   Step = "completed"   // of the send queue, polled
	Delivered   Step = "delivered"   // a receive, polled
	Bound       Step = "bound"       // a window
	Invalidated Step = "invalidated" // by the peer, with what was delivered
)

// An Event is one step at one end.
type Event struct {
	Step   Step
	QP     uint32
	Op     rdma.OpCode // 0: a receive
	Status rdma.Status // of Completed and Delivered
	What   string      // of a Send or what was delivered: its PDU
	Tag    uint32      // the task, 0 if none
	Key    uint32      // of remote memory, or that is offered
	Addr   uint64
	Length uint32 // bytes
	Word   uint32 // the first word of the data, big-endian
}

func (w *Watch) event(e Event) {
	if w.tell != nil {
		w.tell(e)
	}
}

// word is the first word of b, 0 if it is shorter.
func word(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
