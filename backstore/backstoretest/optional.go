package backstoretest

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// zeroers are the ways in which a store makes zeros, by name.
func zeroers(s backstore.Store) map[string]func(off, n int64) error {
	m := map[string]func(off, n int64) error{}
	if u, ok := s.(backstore.Unmapper); ok {
		m["unmap"] = u.Unmap
	}
	if z, ok := s.(backstore.Zeroer); ok {
		m["zero"] = func(off, n int64) error { return z.WriteZeroes(off, n, false, false) }
		m["zero, forced"] = func(off, n int64) error { return z.WriteZeroes(off, n, false, true) }
		m["zero and unmap"] = func(off, n int64) error { return z.WriteZeroes(off, n, true, false) }
		m["zero and unmap, forced"] = func(off, n int64) error { return z.WriteZeroes(off, n, true, true) }
	}
	return m
}

// optionalBounds: what lies outside is refused, with arithmetic that cannot wrap, and a length of nothing
// is nothing.
func optionalBounds(t *testing.T, s backstore.Store) {
	size := s.Info().SizeBytes
	calls := zeroers(s)
	if e, ok := s.(backstore.Extenter); ok {
		calls["extent"] = func(off, n int64) error { _, _, err := e.Extent(off, max(n, 1)); return err }
	}
	for name, call := range calls {
		for _, c := range []struct{ off, n int64 }{
			{-1, 1},
			{size, 1},
			{size - 511, 512},
			{0, size + 1},
			{1, math.MaxInt64},
			{math.MaxInt64, math.MaxInt64},
			{math.MinInt64, 1},
			{math.MinInt64, math.MinInt64},
			{size + 1, 0},
		} {
			require.ErrorIs(t, call(c.off, c.n), backstore.ErrRange, "%s of %d at %d", name, c.n, c.off)
		}
		if name == "extent" {
			continue
		}
		require.ErrorIs(t, call(0, -1), backstore.ErrRange, name)
		require.NoError(t, call(0, 0), name)
		require.NoError(t, call(size, 0), name)
		require.NoError(t, call(size-1, 1), name)
	}
	if r, ok := s.(backstore.Resizer); ok {
		for _, n := range []int64{0, -512, math.MinInt64, 1, MinSize + 1, math.MaxInt64} {
			require.Error(t, r.Resize(n), "%d bytes", n)
		}
		require.Equal(t, size, s.Info().SizeBytes)
	}
}

// zeros: what has been zeroed reads as zeros, also through memory that was mapped before, its neighbours
// do not, and what is freed is told to be.
func zeros(t *testing.T, s backstore.Store) {
	const from, length = 1<<20 + 700, 300<<10 + 1
	info := s.Info()
	ones := bytes.Repeat([]byte{0xff}, 2<<20)
	for name, call := range zeroers(s) {
		require.NoError(t, s.WriteAt([][]byte{ones}, 0, false))
		var view []byte
		if m, ok := s.(backstore.Mapper); ok {
			view = m.Map(from, length)
		}
		require.NoError(t, call(from, length), name)
		want := bytes.Clone(ones)
		clear(want[from : from+length])
		require.True(t, bytes.Equal(want, read(t, s, 0, len(want))), name)
		if view != nil {
			require.True(t, bytes.Equal(want[from:from+length], view), "%s, through memory", name)
		}
		require.NoError(t, s.WriteAt([][]byte{ones[:1000]}, from+1000, true))
		copy(want[from+1000:], ones[:1000])
		require.True(t, bytes.Equal(want, read(t, s, 0, len(want))), "written again after %s", name)
	}
	u, unmaps := s.(backstore.Unmapper)
	e, tells := s.(backstore.Extenter)
	if !unmaps || !tells {
		return
	}
	require.NoError(t, s.WriteAt([][]byte{ones}, 0, false))
	allocated, n, err := e.Extent(4096, 1<<20)
	require.NoError(t, err)
	require.True(t, allocated)
	require.EqualValues(t, 1<<20, n)
	require.NoError(t, u.Unmap(0, 2<<20))
	allocated, n, err = e.Extent(4096, 1<<20)
	require.NoError(t, err)
	require.Equal(t, info.UnmapGranularity == 0, allocated, "thin stores free what they can")
	require.EqualValues(t, 1<<20, n)
	allocated, n, err = e.Extent(4097, 3)
	require.NoError(t, err)
	require.Equal(t, info.UnmapGranularity == 0, allocated)
	require.EqualValues(t, 3, n)
}

// zerosAtOnce has neighbours, down to neighbours within one block, zero and write at once: neither touches
// the other's bytes.
func zerosAtOnce(t *testing.T, s backstore.Store) {
	const workers, size, rounds = 6, 20<<10 + 200, 24
	calls := zeroers(s)
	if len(calls) == 0 {
		return
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			off := int64(w * size)
			got := make([]byte, size)
			for r := range rounds {
				want := pattern(uint64(w*rounds+r), size)
				if !assert.NoError(t, s.WriteAt([][]byte{want}, off, r%8 == 0)) {
					return
				}
				for name, call := range calls { // one of them, in no order
					at, n := r*100, size-r*200
					if !assert.NoError(t, call(off+int64(at), int64(n)), name) {
						return
					}
					clear(want[at : at+n])
					break
				}
				if !assert.NoError(t, s.ReadAt([][]byte{got}, off)) {
					return
				}
				if !assert.True(t, bytes.Equal(want, got), "worker %d round %d", w, r) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// A model is what a store should hold.
type model struct {
	s     backstore.Store
	bytes []byte // with room for modelSize
	// For what is read, and what is there before: modelSize.
	got, poison []byte
}

// modelSize is as large as a store becomes, in bytes.
const modelSize = MinSize + 1<<20

// span draws a range of the store, often aligned, often small.
func (m *model) span(t *rapid.T) (off, n int64) {
	unit := rapid.SampledFrom([]int64{1, 512, 4096, 64 << 10}).Draw(t, "unit")
	size := int64(len(m.bytes))
	off = rapid.Int64Range(0, size/unit).Draw(t, "at") * unit
	limit := min(size-off, rapid.SampledFrom([]int64{4096, 64 << 10, 256 << 10}).Draw(t, "limit"))
	return off, rapid.Int64Range(0, limit/unit).Draw(t, "units") * unit
}

func (m *model) write(t *rapid.T) {
	off, n := m.span(t)
	data := pattern(rapid.Uint64().Draw(t, "seed"), int(n))
	copy(m.bytes[off:], data)
	require.NoError(t, m.s.WriteAt(cut(data, []int{int(n / 3), int(n - n/3)}), off, rapid.Bool().Draw(t, "fua")))
}

func (m *model) read(t *rapid.T) {
	off, n := m.span(t)
	m.check(t, off, n)
}

func (m *model) check(t *rapid.T, off, n int64) {
	got := m.got[:n]
	copy(got, m.poison)
	require.NoError(t, m.s.ReadAt([][]byte{got}, off))
	require.True(t, bytes.Equal(m.bytes[off:off+n], got), "%d bytes at %d", n, off)
}

func (m *model) unmap(t *rapid.T) {
	off, n := m.span(t)
	clear(m.bytes[off : off+n])
	require.NoError(t, m.s.(backstore.Unmapper).Unmap(off, n))
}

func (m *model) zero(t *rapid.T) {
	off, n := m.span(t)
	clear(m.bytes[off : off+n])
	unmap, fua := rapid.Bool().Draw(t, "unmap"), rapid.Bool().Draw(t, "fua")
	require.NoError(t, m.s.(backstore.Zeroer).WriteZeroes(off, n, unmap, fua))
}

// extents walks over a range: the runs cover it, and holes are zeros.
func (m *model) extents(t *rapid.T) {
	off, n := m.span(t)
	for end := off + n; off < end; {
		allocated, run, err := m.s.(backstore.Extenter).Extent(off, end-off)
		require.NoError(t, err)
		require.Positive(t, run)
		require.LessOrEqual(t, run, end-off)
		if !allocated {
			require.Empty(t, bytes.Trim(m.bytes[off:off+run], "\x00"), "%d bytes at %d are called a hole", run, off)
		}
		off += run
	}
}

func (m *model) resize(t *rapid.T) {
	size := rapid.Int64Range(MinSize/4096, modelSize/4096).Draw(t, "blocks") * 4096
	require.NoError(t, m.s.(backstore.Resizer).Resize(size))
	require.Equal(t, size, m.s.Info().SizeBytes)
	old := int64(len(m.bytes))
	m.bytes = m.bytes[:size]
	clear(m.bytes[min(old, size):])
}

// likeModel does random things to the store and to a slice of bytes, which must stay the same.
func likeModel(t *testing.T, s backstore.Store) {
	size := s.Info().SizeBytes
	require.LessOrEqual(t, size, int64(modelSize))
	m := &model{s: s, bytes: make([]byte, size, modelSize), got: make([]byte, modelSize)}
	m.poison = bytes.Repeat([]byte{0xee}, modelSize)
	actions := map[string]func(*rapid.T){
		"write": m.write, "read": m.read,
		"flush": func(t *rapid.T) { require.NoError(t, s.Flush()) },
	}
	if _, ok := s.(backstore.Unmapper); ok {
		actions["unmap"] = m.unmap
	}
	if _, ok := s.(backstore.Zeroer); ok {
		actions["zero"] = m.zero
	}
	if _, ok := s.(backstore.Extenter); ok {
		actions["extents"] = m.extents
	}
	if _, ok := s.(backstore.Resizer); ok {
		actions["resize"] = m.resize
	}
	names := slices.Sorted(maps.Keys(actions))
	rapid.Check(t, func(t *rapid.T) {
		// What an earlier run has left, so that a failure can be made smaller.
		m.bytes = m.bytes[:s.Info().SizeBytes]
		require.NoError(t, s.ReadAt([][]byte{m.bytes}, 0))
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 1, 12).Draw(t, "actions") {
			actions[name](t)
		}
		m.check(t, 0, int64(len(m.bytes)))
	})
}

// resizes: a new end is enforced at once, and what was cut off is gone when the store grows again.
func resizes(t *testing.T, s backstore.Store) {
	r, ok := s.(backstore.Resizer)
	if !ok {
		return
	}
	size := s.Info().SizeBytes
	ones := [][]byte{bytes.Repeat([]byte{0xff}, 64<<10)}
	require.NoError(t, s.WriteAt(ones, size-64<<10, false))
	smaller := size - 12<<10
	require.NoError(t, r.Resize(smaller))
	require.Equal(t, smaller, s.Info().SizeBytes)
	require.ErrorIs(t, s.ReadAt([][]byte{make([]byte, 512)}, smaller), backstore.ErrRange)
	require.ErrorIs(t, s.WriteAt(ones, smaller-512, true), backstore.ErrRange)
	require.NoError(t, r.Resize(size+4096))
	require.Equal(t, size+4096, s.Info().SizeBytes)
	require.Equal(t, make([]byte, 16<<10), read(t, s, smaller, 16<<10))
	require.Equal(t, ones[0][:52<<10], read(t, s, size-64<<10, 52<<10))
	require.NoError(t, s.WriteAt(ones, size+4096-64<<10, true))
	if m, ok := s.(backstore.Mapper); ok {
		require.Len(t, m.Memory(), int(size)+4096)
	}
}
