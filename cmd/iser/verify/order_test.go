package verify

import (
	"testing"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAPermutationHasEachNumberOnce(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 4, 5, 7, 16, 17, 1000, 4097} {
		p, q := newPermutation(n, 7, 1), newPermutation(n, 7, 2)
		seen := make([]bool, n)
		same := int64(0)
		for i := range n {
			x := p.at(i)
			require.Less(t, x, n)
			require.False(t, seen[x], "%d of %d", x, n)
			seen[x] = true
			if x == q.at(i) {
				same++
			}
		}
		if n >= 1000 {
			assert.Less(t, same, n/10, "salts make other orders")
		}
	}
}

func TestACursorCoversTheRangesOnce(t *testing.T) {
	ranges := []Range{{1 << 16, 1<<20 + 4096}, {2 << 20, 2<<20 + 512}, {3 << 20, 4 << 20}}
	for _, unit := range []int{0, 512} {
		l := newLayout(ranges, 1<<18)
		c := newCursor(l, 1)
		p := newPermutation(l.slots, 1, 1)
		c.slotOf, c.unit = p.at, unit
		seen := make([]int, 8<<20/512)
		for q, ok := c.take(0); ok; q, ok = c.take(0) {
			for s := q.Start / 512; s < q.End/512; s++ {
				seen[s]++
			}
		}
		for s, n := range seen {
			at, in := int64(s)*512, 0
			for _, r := range ranges {
				if r.Start <= at && at < r.End {
					in = 1
				}
			}
			require.Equal(t, in, n, "sector %d", s)
		}
		assert.Equal(t, l.slots, c.done())
	}
}

// A slot counts as done when all of its requests are, and those of the slots before.
func TestACursorKnowsWhatIsDone(t *testing.T) {
	c := newCursor(newLayout([]Range{{0, 1 << 20}}, 1<<18), 2)
	take := func(worker int) {
		_, ok := c.take(worker)
		require.True(t, ok)
	}
	take(0)
	take(1)
	assert.EqualValues(t, 0, c.done())
	take(1) // slot 2; slot 1 is done, slot 0 is not
	assert.EqualValues(t, 0, c.done())
	take(0)
	assert.EqualValues(t, 2, c.done())
	c.stop()
	_, ok := c.take(1)
	assert.False(t, ok)
	assert.EqualValues(t, 3, c.done())
}

// Nothing grows with the disk: requests over 100 TiB need no memory.
func TestACursorOf100TiBDoesNotAllocate(t *testing.T) {
	l := newLayout([]Range{{0, 100 << 40}}, 4096)
	c := newCursor(l, 1)
	p := newPermutation(l.slots, 1, 1)
	c.slotOf = p.at
	c.take(0)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		q, ok := c.take(0)
		if !ok || q.Len() != 4096 || q.End > 100<<40 {
			t.Fatal(q)
		}
	}))
}

func TestHeatMapKeepsItsSize(t *testing.T) {
	h := newHeat([]Range{{0, 1 << 62}})
	h.bad(&stamp.Mismatch{Kind: stamp.Stale, Want: stamp.ID{Sector: 1<<53 - 1}}, 0)
	h.bad(&stamp.Mismatch{Kind: stamp.Torn}, time.Second)
	h.bad(&stamp.Mismatch{Kind: stamp.Torn}, 240*time.Hour)
	total := int64(0)
	for i := range h.cells {
		for _, c := range h.cells[i] {
			total += c.wrong
		}
	}
	assert.EqualValues(t, 3, total)
	assert.EqualValues(t, 1, h.cells[0][heatColumns-1].wrong)
	assert.GreaterOrEqual(t, heatRows*h.row, 240*time.Hour)
}
