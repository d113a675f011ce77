package main

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// through sends n numbered frames down a line and returns the numbers that came out.
func through(t *testing.T, r rates, seed uint64, n int) (*line, []uint32) {
	var out []uint32
	l := newLine(r, rand.New(rand.NewPCG(seed, 0)), func(b []byte) error {
		out = append(out, binary.BigEndian.Uint32(b))
		return nil
	})
	b := make([]byte, 4)
	for i := range uint32(n) {
		binary.BigEndian.PutUint32(b, i)
		require.NoError(t, l.take(b))
		require.LessOrEqual(t, len(l.held), maxHeld)
	}
	require.NoError(t, l.idle())
	return l, out
}

func TestAGoodLinePassesAll(t *testing.T) {
	_, out := through(t, rates{}, 1, 1000)
	require.Len(t, out, 1000)
	assert.True(t, slices.IsSorted(out))
}

func TestALineDoesWhatItCounts(t *testing.T) {
	l, out := through(t, rates{1, 1, 1}, 1, 100000)
	times := map[uint32]int{}
	behind := 0
	for i, n := range out {
		if times[n]++; i > 0 && n < out[i-1] {
			behind++
		}
	}
	assert.EqualValues(t, 100000-l.lost, len(times))
	assert.EqualValues(t, 100000-l.lost+l.duplicated, len(out))
	assert.InDelta(t, 1000, l.lost, 150)
	assert.InDelta(t, 1000, l.duplicated, 150)
	assert.InDelta(t, 1000, l.overtaken, 150)
	assert.InDelta(t, l.overtaken, behind, 100)
	_, again := through(t, rates{1, 1, 1}, 1, 100000)
	assert.Equal(t, out, again, "the seed decides")
	_, other := through(t, rates{1, 1, 1}, 2, 100000)
	assert.NotEqual(t, out, other)
}

func TestWhatIsHeldIsBounded(t *testing.T) {
	l, out := through(t, rates{reorder: 100}, 1, 1000)
	assert.Len(t, out, 1000)
	assert.Positive(t, l.overtaken)
}
