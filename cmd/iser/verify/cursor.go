package verify

import (
	"math/rand/v2"
	"sync"
)

// A cursor hands out the requests of one pass over the slots, and knows up to where all are done. It is the only
// memory that a pass needs, whatever the size of the disk.
type cursor struct {
	layout *layout
	slotOf func(i int64) int64 // the slot that comes i-th
	count  int64               // slots to do
	cutter

	mu     sync.Mutex
	next   int64 // the slot to cut next, by place in the order
	pieces []Range
	busy   []int64 // the slot that each worker is at, by place; idle if none
}

// idle is a worker's place when it has no request.
const idle = -1

func newCursor(l *layout, workers int) *cursor {
	c := &cursor{layout: l, slotOf: func(i int64) int64 { return i }, count: l.slots, busy: make([]int64, workers), cutter: cutter{most: l.bytes}}
	for i := range c.busy {
		c.busy[i] = idle
	}
	return c
}

// take is the next request of a worker, whose last one is done with; false if there is none.
func (c *cursor) take(worker int) (Range, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[worker] = idle
	if len(c.pieces) == 0 {
		if c.next >= c.count {
			return Range{}, false
		}
		c.pieces = c.mixed(c.pieces, c.layout.slot(c.slotOf(c.next)))
		c.next++
	}
	last := len(c.pieces) - 1
	r := c.pieces[last]
	c.pieces = c.pieces[:last]
	c.busy[worker] = c.next - 1
	return r, true
}

// stop hands out no slot more. What was handed out must still be done.
func (c *cursor) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count = min(c.count, c.next)
}

// done is how many slots, from the first in order, are done whole.
func (c *cursor) done() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.next
	if len(c.pieces) > 0 {
		n--
	}
	for _, b := range c.busy {
		if b != idle {
			n = min(n, b)
		}
	}
	return n
}

// A cutter cuts slots in requests. Their sizes are spread over the powers of two and lie between them; they depend on the
// seed, the salt and the slot only.
type cutter struct {
	unit int   // bytes; 0: a slot is one request
	most int64 // bytes of a request
	seed uint64
	salt uint64
}

// cut appends the requests of a slot, in the order of the disk.
func (c *cutter) cut(pieces []Range, slot Range) []Range {
	if c.unit == 0 {
		return append(pieces, slot)
	}
	for rng := c.chance(slot.Start, forSizes); slot.Len() > 0; {
		n := min(int64(mixedSize(rng, c.unit, int(c.most))), slot.Len())
		pieces = append(pieces, Range{slot.Start, slot.Start + n})
		slot.Start += n
	}
	return pieces
}

// mixed is cut, in any order.
func (c *cutter) mixed(pieces []Range, slot Range) []Range {
	if pieces = c.cut(pieces, slot); len(pieces) == 1 {
		return pieces
	}
	rng := c.chance(slot.Start, forOrder)
	rng.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	return pieces
}

// What chance is for.
const (
	forSizes = iota
	forOrder
	forFates
)

// chance is what is drawn for a place and a purpose.
func (c *cutter) chance(at int64, purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed^uint64(at), c.salt^purpose<<62))
}

// mixedSize is a size from one unit to most, a multiple of the unit.
func mixedSize(rng *rand.Rand, unit, most int) int {
	const doublings = 12
	n := unit << rng.IntN(doublings)
	return min(n-unit*rng.IntN(max(n/unit/2, 1)), most)
}
