package iser

import (
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
)

// A kind of work request. It is in the top byte of a work request's ID, for an error completion says
// nothing else about what has failed; the rest of the ID is an index.
type kind uint8

const (
	kindRecv       kind = iota + 1 // receive buffer
	kindSend                       // op
	kindStep                       // op: the last RDMA Write of a step of a long chain
	kindWrite                      // slot of the response; not signalled, seen only when it fails
	kindRead                       // op
	kindBind                       // slot of the command; not signalled, seen only when it fails
	kindInvalidate                 // op
)

func (k kind) String() string {
	switch k {
	case kindRecv:
		return "receive"
	case kindSend:
		return "Send"
	case kindStep, kindWrite:
		return "RDMA Write"
	case kindRead:
		return "RDMA Read"
	case kindBind:
		return "Bind Window"
	case kindInvalidate:
		return "Local Invalidate"
	}
	return fmt.Sprintf("work request of kind %d", uint8(k))
}

func workID(k kind, index int32) uint64 { return uint64(k)<<56 | uint64(uint32(index)) }

func splitID(id uint64) (kind, int32) { return kind(id >> 56), int32(uint32(id)) }

// An op is one signalled work request between its staging and its completion.
type op struct {
	kind   kind // 0: free
	slot   int32
	covers int32    // send queue entries that its completion frees: itself and unsignalled ones before
	chunk  int32    // bounce chunks to free with it, noChunk if none
	task   *task    // Read or step
	cmd    *command // Invalidate
	// An RDMA Read into a bounce chunk is copied to here.
	cur cursor
	// What it did, for traces and errors.
	key  uint32
	addr uint64
	n    uint32
}

// ops is a fixed table of op.
type ops struct {
	all  []op
	free []int32
}

func newOps(n int) ops {
	o := ops{all: make([]op, n), free: make([]int32, n)}
	for i := range o.free {
		o.free[i] = int32(n - 1 - i)
	}
	return o
}

// get takes a free op: there is one for every entry of the send queue, and callers have an entry.
func (o *ops) get(k kind) (int32, *op) {
	last := len(o.free) - 1
	if last < 0 {
		panic(fmt.Sprintf("iser: more than %d work requests outstanding", len(o.all)))
	}
	i := o.free[last]
	o.free = o.free[:last]
	o.all[i] = op{kind: k, chunk: noChunk}
	return i, &o.all[i]
}

// put frees an op.
func (o *ops) put(i int32) {
	o.all[i] = op{}
	o.free = append(o.free, i)
}

// at returns the op that a completion names, nil if there is none of that kind in use.
func (o *ops) at(k kind, i int32) *op {
	if i < 0 || int(i) >= len(o.all) || o.all[i].kind != k {
		return nil
	}
	return &o.all[i]
}

// A CompletionError is a work request that failed, and with it the connection.
type CompletionError struct {
	Work   string // "Send", "RDMA Write", "RDMA Read", "receive"
	Status rdma.Status
	Vendor uint32
	ITT    uint32 // of the task, if HasITT
	HasITT bool
	Key    uint32 // remote memory of an RDMA Read or Write, or the STag invalidated
	Addr   uint64
	Length uint32
	Hint   string // what to look at, if we can tell
}

func (e *CompletionError) Error() string {
	s := e.Work
	if e.HasITT {
		s += fmt.Sprintf(" for task %08x", e.ITT)
	}
	if e.Key != 0 {
		s += fmt.Sprintf(" (STag %08x, address %#x, %d bytes)", e.Key, e.Addr, e.Length)
	}
	s += ": " + e.Status.String()
	if e.Vendor != 0 {
		s += fmt.Sprintf(", vendor error %#x", e.Vendor)
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// hint says what a status usually means here (ISER failures are rarely what the status says).
func hint(k kind, invalidate bool, s rdma.Status) string {
	switch {
	case invalidate && s == rdma.LocQPOpErr:
		return "the device may not be able to post Send with Invalidate: switch it off"
	case s == rdma.RNRRetryExcErr:
		return "the peer has too few receive buffers"
	case s == rdma.RemAccessErr && (k == kindRead || k == kindWrite || k == kindStep):
		return "the initiator's STag does not allow it"
	case s == rdma.RemInvReqErr && k == kindSend:
		return "the message is longer than the peer's receive buffer"
	case s == rdma.LocLenErr && k == kindRecv:
		return "the message is longer than our receive buffer"
	}
	return ""
}
