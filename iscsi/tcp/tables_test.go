package tcp

import (
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTaskTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h taskTable
		want := map[uint32]*iscsi.Transfer{}
		// Few distinct ITTs, alike in their low bits or in their high bits, so that they collide.
		shift := rapid.SampledFrom([]int{0, 8, 24}).Draw(t, "shift")
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			itt := rapid.Uint32Range(0, 150).Draw(t, "itt") << shift
			assert.Same(t, want[itt], h.find(itt))
			if tr := want[itt]; tr != nil {
				h.remove(tr)
				delete(want, itt)
			} else {
				want[itt] = &iscsi.Transfer{ITT: itt}
				h.add(want[itt])
			}
		}
		require.Equal(t, len(want), h.count)
		for itt := range uint32(151) {
			assert.Same(t, want[itt<<shift], h.find(itt<<shift))
		}
		h.each(func(tr *iscsi.Transfer) {
			require.Same(t, want[tr.ITT], tr)
			h.remove(tr)
			delete(want, tr.ITT)
		})
		require.Empty(t, want)
	})
}

func TestR2TTableKnowsThePast(t *testing.T) {
	var r r2tTable
	var a, b iscsi.Transfer
	seen := map[uint32]bool{}
	for range 1000 {
		ttt := r.open(&a, cursor{}, 0, 4)
		require.False(t, seen[ttt])
		seen[ttt] = true
		s, stale := r.find(ttt)
		require.NotNil(t, s)
		require.False(t, stale)
		require.Same(t, &a, s.t)
		r.close(ttt)
		s, stale = r.find(ttt)
		require.Nil(t, s)
		require.False(t, stale, "answered: more is an error")
	}
	assert.Len(t, r.slots, 16, "slots are used again")
	one, two := r.open(&a, cursor{}, 0, 4), r.open(&b, cursor{}, 0, 4)
	r.abandon(&a)
	s, stale := r.find(one)
	assert.Nil(t, s)
	assert.True(t, stale)
	s, _ = r.find(two)
	assert.NotNil(t, s)
	for range 100 {
		r.close(r.open(&a, cursor{}, 0, 4))
	}
	_, stale = r.find(one)
	assert.True(t, stale, "so old that nobody knows")
	for _, never := range []uint32{0xffff, iscsi.ReservedTag, 0x7000_0003} {
		s, stale = r.find(never)
		assert.Nil(t, s)
		assert.False(t, stale, "%#x", never)
	}
	assert.Panics(t, func() { r.close(one) })
}

func TestCursor(t *testing.T) {
	bufs := [][]byte{{}, {1, 2, 3}, {}, {4}, {5, 6}, {}}
	for n := range 8 {
		c := seek(bufs, uint32(n))
		var rest []byte
		for p := c.next(2); len(p) > 0; p = c.next(2) {
			rest = append(rest, p...)
		}
		assert.Equal(t, []byte{1, 2, 3, 4, 5, 6}[min(n, 6):], append([]byte{}, rest...))
	}
	assert.EqualValues(t, 6, total(bufs))
	c := cursor{bufs: bufs}
	assert.Empty(t, c.peek(0))
	assert.Equal(t, []byte{1}, c.peek(1))
}

func TestBatchJoinsWhatIsContiguous(t *testing.T) {
	var b batch
	b.add([]byte("ab"))
	b.add([]byte("cd"))
	b.refer([]byte("PAYLOAD"))
	b.add([]byte("ef"))
	b.add(nil)
	b.add(make([]byte, slabMin)) // a new slab
	b.add([]byte("gh"))
	require.Equal(t, 4, len(b.pieces))
	assert.Equal(t, "abcd", string(b.pieces[0]))
	assert.Equal(t, "ef", string(b.pieces[2]))
	assert.Equal(t, 15+slabMin, b.size)
	b.ready()
	b.wrote(3)
	assert.Equal(t, "d", string(b.rest[0]))
	b.wrote(1 + 7 + 1)
	assert.Equal(t, "f", string(b.rest[0]))
	b.own()
	require.Len(t, b.rest, 1)
	assert.Equal(t, 1+slabMin+2, len(b.rest[0]))
	b.wrote(len(b.rest[0]))
	assert.Empty(t, b.rest)
	b.reset()
	assert.Zero(t, b.size)
}
