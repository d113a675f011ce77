package tcp

import (
	"fmt"

	"github.com/goiser/goiser/iscsi"
)

// slotState is what an R2T's slot stands for.
type slotState uint8

const (
	slotUnused    slotState = iota
	slotOpen                // Data-Out is awaited
	slotDone                // all of it has come: more is an error
	slotAbandoned           // its task has gone: more is dropped
)

// An r2tSlot is one R2T, open or past. Its TTT is the generation above the slot's index, so that a TTT of the
// past is told from one that never was.
type r2tSlot struct {
	state     slotState
	gen       uint16
	t         *iscsi.Transfer
	dst       cursor // where the byte at next goes
	next, end uint32 // task offsets
	sn        uint32 // DataSN expected next: it starts at 0 for each R2T (RFC 7143, 11.7.5)
}

// maxSlots keeps every TTT below ReservedTag.
const maxSlots = 1<<16 - 1

// An r2tTable finds R2Ts by TTT. Free slots are used in turn, the longest unused first. It grows with the
// R2Ts that are open at the same time, at most maxOpenR2T a task of the window.
type r2tTable struct {
	slots []*r2tSlot
	free  []uint16 // ring of indices
	head  int
	count int
}

// open takes a slot for bytes [off, end) of t, which go to dst, and returns its TTT.
func (r *r2tTable) open(t *iscsi.Transfer, dst cursor, off, end uint32) uint32 {
	if r.count == 0 {
		r.grow()
	}
	i := r.free[r.head]
	r.head = (r.head + 1) % len(r.free)
	r.count--
	s := r.slots[i]
	*s = r2tSlot{state: slotOpen, gen: s.gen + 1, t: t, dst: dst, next: off, end: end}
	return uint32(s.gen)<<16 | uint32(i)
}

func (r *r2tTable) grow() {
	n := len(r.slots)
	size := min(max(16, 2*n), maxSlots)
	if size == n {
		panic(fmt.Sprintf("iscsi over tcp: %d R2Ts open at the same time", n))
	}
	block := make([]r2tSlot, size-n)
	for i := range block {
		r.slots = append(r.slots, &block[i])
	}
	r.free, r.head, r.count = make([]uint16, size), 0, 0
	for i := n; i < size; i++ {
		r.put(uint16(i))
	}
}

func (r *r2tTable) put(i uint16) {
	r.free[(r.head+r.count)%len(r.free)] = i
	r.count++
}

// find is the open slot of a TTT; nil and stale for one that was abandoned, or is so old that nobody knows.
func (r *r2tTable) find(ttt uint32) (s *r2tSlot, stale bool) {
	i, gen := int(uint16(ttt)), uint16(ttt>>16)
	if i >= len(r.slots) {
		return nil, false
	}
	s = r.slots[i]
	switch {
	case gen != s.gen:
		return nil, int16(gen-s.gen) < 0
	case s.state == slotOpen:
		return s, false
	}
	return nil, s.state == slotAbandoned
}

// close ends an R2T that has been answered.
func (r *r2tTable) close(ttt uint32) { r.end(uint16(ttt), slotDone) }

func (r *r2tTable) end(i uint16, state slotState) {
	s := r.slots[i]
	if s.state != slotOpen {
		panic(fmt.Sprintf("iscsi over tcp: R2T slot %d ended twice", i))
	}
	s.state, s.t, s.dst = state, nil, cursor{}
	r.put(i)
}

// abandon ends all R2Ts of a task that is given up.
func (r *r2tTable) abandon(t *iscsi.Transfer) {
	for i, s := range r.slots {
		if s.t == t {
			r.end(uint16(i), slotAbandoned)
		}
	}
}
