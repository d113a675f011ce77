package verify

import (
	"math/rand/v2"
	"sync"

	"github.com/goiser/goiser/backstore/stamp"
)

// A cursor hands out the requests of one pass over the slots, and knows up to where all are done. It is the only
// memory that a pass needs, whatever the size of the disk.
type cursor struct {
	layout *layout
	slotOf func(i int64) int64 // the slot that comes i-th
	count  int64               // slots to do
	unit   int                 // bytes; 0: a slot is one request
	seed   uint64
	salt   uint64

	mu     sync.Mutex
	next   int64 // the slot to cut next, by place in the order
	pieces []Range
	busy   []int64 // the slot that each worker is at, by place; idle if none
}

// idle is a worker's place when it has no request.
const idle = -1

func newCursor(l *layout, workers int) *cursor {
	c := &cursor{layout: l, slotOf: func(i int64) int64 { return i }, count: l.slots, busy: make([]int64, workers)}
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
		c.cut(c.layout.slot(c.slotOf(c.next)))
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

// cut cuts a slot in requests of mixed sizes, in any order. Sizes are spread over the powers of two and lie
// between them; they depend on the seed, the salt and the slot only.
func (c *cursor) cut(slot Range) {
	if c.unit == 0 {
		c.pieces = append(c.pieces, slot)
		return
	}
	rng := rand.New(rand.NewPCG(c.seed^uint64(slot.Start/stamp.SectorSize), c.salt))
	for slot.Len() > 0 {
		n := min(int64(mixedSize(rng, c.unit, int(c.layout.bytes))), slot.Len())
		c.pieces = append(c.pieces, Range{slot.Start, slot.Start + n})
		slot.Start += n
	}
	rng.Shuffle(len(c.pieces), func(i, j int) { c.pieces[i], c.pieces[j] = c.pieces[j], c.pieces[i] })
}

// mixedSize is a size from one unit to most, a multiple of the unit.
func mixedSize(rng *rand.Rand, unit, most int) int {
	const doublings = 12
	n := unit << rng.IntN(doublings)
	return min(n-unit*rng.IntN(max(n/unit/2, 1)), most)
}
