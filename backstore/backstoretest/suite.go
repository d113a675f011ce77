// Package backstoretest is the suite that every store passes: it holds a store to what package backstore
// promises of all of them. A Gate is a store for tests of what happens while one does not answer.
//
//	func TestRAM(t *testing.T) {
//		backstoretest.Run(t, func(t *testing.T) backstore.Store { … })
//	}
package backstoretest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// MinSize is the smallest store, in bytes, that the suite can work on. The largest is 1 MiB more.
const MinSize = 4 << 20

// Run holds the stores that open makes to the promises. Each test opens its own, at least MinSize bytes
// long and without data; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) backstore.Store) {
	RunStoring(t, open)
	RunDiscarding(t, open)
}

// RunAllocating leaves out of Run that requests allocate nothing.
func RunAllocating(t *testing.T, open func(t *testing.T) backstore.Store) {
	RunStoring(t, open)
	RunComputed(t, open)
	run(t, open, offered)
}

// offered are promises about what is handed in and out, which hold whatever a store keeps.
var offered = map[string]func(*testing.T, backstore.Store){
	"mapped memory":     mapped,
	"buffers unchanged": unchanged,
	"optional ranges":   optionalBounds,
}

// RunStoring holds stores only to keeping what is written.
func RunStoring(t *testing.T, open func(t *testing.T) backstore.Store) {
	run(t, open, map[string]func(*testing.T, backstore.Store){
		"new store reads zeros":     readsZeros,
		"shapes of buffer lists":    shapes,
		"like a slice of bytes":     likeSlice,
		"last byte":                 lastByte,
		"disjoint requests at once": disjoint,
		"overlapping requests":      overlapping,
		"forced write and flush":    forced,
		"zeros":                     zeros,
		"zeros at once":             zerosAtOnce,
		"like a model":              likeModel,
		"size changes":              resizes,
	})
}

// RunDiscarding leaves out what a store that forgets its writes cannot pass.
func RunDiscarding(t *testing.T, open func(t *testing.T) backstore.Store) {
	RunComputed(t, open)
	run(t, open, offered)
	run(t, open, map[string]func(*testing.T, backstore.Store){"no allocation": noAllocation})
}

// RunComputed leaves out, beyond that, what a store cannot pass that takes only some bytes.
func RunComputed(t *testing.T, open func(t *testing.T) backstore.Store) {
	run(t, open, map[string]func(*testing.T, backstore.Store){
		"info":            info,
		"beyond the end":  bounds,
		"nothing to move": nothing,
		"closed":          closed,
	})
}

func run(t *testing.T, open func(t *testing.T) backstore.Store, tests map[string]func(*testing.T, backstore.Store)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, opened(t, open)) })
	}
}

// RunReadOnly holds a read-only store to refusing writes; want is what it holds at offset 0.
func RunReadOnly(t *testing.T, want []byte, open func(t *testing.T) backstore.Store) {
	s := opened(t, open)
	require.True(t, s.Info().ReadOnly)
	require.False(t, s.Info().WriteCache, "nothing is cached")
	for _, fua := range []bool{false, true} {
		require.ErrorIs(t, s.WriteAt([][]byte{make([]byte, 512)}, 0, fua), backstore.ErrReadOnly)
	}
	for name, call := range zeroers(s) {
		require.ErrorIs(t, call(0, 512), backstore.ErrReadOnly, name)
	}
	if r, ok := s.(backstore.Resizer); ok {
		require.ErrorIs(t, r.Resize(s.Info().SizeBytes/2), backstore.ErrReadOnly)
	}
	require.Equal(t, want, read(t, s, 0, len(want)))
	require.NoError(t, s.Flush())
	closed(t, s)
}

func opened(t *testing.T, open func(t *testing.T) backstore.Store) backstore.Store {
	s := open(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	require.GreaterOrEqual(t, s.Info().SizeBytes, int64(MinSize), "the suite needs room")
	return s
}

func read(t *testing.T, s backstore.Store, off int64, n int) []byte {
	b := bytes.Repeat([]byte{0xee}, n)
	require.NoError(t, s.ReadAt([][]byte{b}, off))
	return b
}

// pattern is n bytes that differ by place and by seed.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = rnd.Read(b) // never fails
	return b
}

func info(t *testing.T, s backstore.Store) {
	i := s.Info()
	assert.Zero(t, i.SizeBytes%backstore.MinBlock, "size %d", i.SizeBytes)
	assert.GreaterOrEqual(t, i.BlockSize, backstore.MinBlock)
	assert.Zero(t, i.BlockSize&(i.BlockSize-1), "block size %d", i.BlockSize)
	assert.False(t, i.ReadOnly)
	if i.Volatile {
		assert.False(t, i.WriteCache, "a store that keeps nothing has nothing to flush")
	}
	assert.Equal(t, i, s.Info(), "does not change")
	assert.GreaterOrEqual(t, i.AtomicBytes, 0)
	_, unmaps := s.(backstore.Unmapper)
	assert.True(t, unmaps || i.UnmapGranularity == 0, "frees space but cannot be asked to")
	assert.True(t, i.Thin || i.UnmapGranularity == 0, "a store that keeps its space frees none")
}

func readsZeros(t *testing.T, s backstore.Store) {
	size := s.Info().SizeBytes
	for _, off := range []int64{0, size / 2 &^ 511, size - 4096} {
		require.Equal(t, make([]byte, 4096), read(t, s, off, 4096), "offset %d", off)
	}
}

// shapes writes and reads the same range through lists cut in many ways.
func shapes(t *testing.T, s backstore.Store) {
	const n = 300 << 10
	lists := [][]int{
		{n},
		{0, n, 0},
		{512, n - 512},
		{n - 512, 512},
		{48, 0, 464, n - 512}, // as immediate data cuts it
		{1, 2, 3, n - 6},
	}
	small := []int{} // more buffers than one system call takes
	for left := n; left > 0; left -= min(left, 200) {
		small = append(small, min(left, 200))
	}
	lists = append(lists, small)
	for i, w := range lists {
		for j, r := range lists {
			want := pattern(uint64(i*100+j), n)
			off := int64(4096*(i+1)) + int64(j)*512
			require.NoError(t, s.WriteAt(cut(want, w), off, j%2 == 0))
			got := make([]byte, n)
			require.NoError(t, s.ReadAt(cut(got, r), off))
			require.True(t, bytes.Equal(want, got), "written as %.40v, read as %.40v", w, r)
		}
	}
}

// cut makes a list of buffers of the lengths in sizes over b.
func cut(b []byte, sizes []int) [][]byte {
	var list [][]byte
	for _, n := range sizes {
		list, b = append(list, b[:n:n]), b[n:]
	}
	return list
}

// likeSlice does random requests on the store and on a slice, which must stay the same.
func likeSlice(t *testing.T, s backstore.Store) {
	const window = 1 << 20
	rnd := rand.New(rand.NewPCG(1, 2))
	base := s.Info().SizeBytes - window
	model := make([]byte, window)
	for i := range 300 {
		from := rnd.IntN(window)
		n := rnd.IntN(min(window-from, 1<<uint(rnd.IntN(20))) + 1)
		if i%3 == 0 {
			from, n = from&^511, n&^511
		}
		sizes := []int{}
		for left := n; left > 0; {
			k := 1 + rnd.IntN(left)
			sizes, left = append(sizes, k), left-k
		}
		if rnd.IntN(2) == 0 {
			data := pattern(uint64(i), n)
			copy(model[from:], data)
			require.NoError(t, s.WriteAt(cut(data, sizes), base+int64(from), rnd.IntN(4) == 0))
			continue
		}
		got := make([]byte, n)
		require.NoError(t, s.ReadAt(cut(got, sizes), base+int64(from)))
		require.True(t, bytes.Equal(model[from:from+n], got), "request %d: %d bytes at %d", i, n, from)
	}
	require.True(t, bytes.Equal(model, read(t, s, base, window)))
}

func lastByte(t *testing.T, s backstore.Store) {
	size := s.Info().SizeBytes
	require.NoError(t, s.WriteAt([][]byte{{0x5a}}, size-1, false))
	require.Equal(t, []byte{0, 0x5a}, read(t, s, size-2, 2))
}

func bounds(t *testing.T, s backstore.Store) {
	size := s.Info().SizeBytes
	one := [][]byte{make([]byte, 1)}
	two := [][]byte{make([]byte, 1), make([]byte, 512)}
	before := read(t, s, size-511, 511)
	for _, c := range []struct {
		bufs [][]byte
		off  int64
	}{
		{one, size},
		{two, size - 512},
		{two, size - 1},
		{one, -1},
		{one, math.MinInt64},
		{one, math.MaxInt64},
		{two, math.MaxInt64 - 512},
		{nil, size + 1},
		{nil, -1},
	} {
		require.ErrorIs(t, s.ReadAt(c.bufs, c.off), backstore.ErrRange, "read at %d", c.off)
		require.ErrorIs(t, s.WriteAt(c.bufs, c.off, false), backstore.ErrRange, "write at %d", c.off)
		require.ErrorIs(t, s.WriteAt(c.bufs, c.off, true), backstore.ErrRange, "forced write at %d", c.off)
	}
	require.Equal(t, before, read(t, s, size-511, 511), "nothing of a refused write was done")
	require.Equal(t, size, s.Info().SizeBytes, "no write makes it grow")
}

func nothing(t *testing.T, s backstore.Store) {
	for _, bufs := range [][][]byte{nil, {}, {nil}, {{}, nil, {}}} {
		for _, off := range []int64{0, 1, s.Info().SizeBytes} {
			require.NoError(t, s.ReadAt(bufs, off))
			require.NoError(t, s.WriteAt(bufs, off, false))
			require.NoError(t, s.WriteAt(bufs, off, true))
		}
	}
}

// disjoint has writers of neighbouring ranges at work at once, down to neighbours within one block.
func disjoint(t *testing.T, s backstore.Store) {
	const workers, size, rounds = 8, 3072, 20
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			off := int64(w * size)
			got := make([]byte, size)
			for r := range rounds {
				want := pattern(uint64(w*rounds+r), size)
				if err := s.WriteAt(cut(want, []int{100, size - 100}), off, r%8 == 0); !assert.NoError(t, err) {
					return
				}
				if err := s.ReadAt(cut(got, []int{1000, size - 1000}), off); !assert.NoError(t, err) {
					return
				}
				if !assert.True(t, bytes.Equal(want, got), "worker %d round %d", w, r) {
					return
				}
				if r%10 == 0 {
					assert.NoError(t, s.Flush())
				}
			}
		})
	}
	wg.Wait()
	for w := range workers {
		want := pattern(uint64(w*rounds+rounds-1), size)
		require.True(t, bytes.Equal(want, read(t, s, int64(w*size), size)), "range %d at the end", w)
	}
}

// overlapping reads while the same range is written: every byte is the old or a new one.
func overlapping(t *testing.T, s backstore.Store) {
	const size, rounds = 8192, 100
	require.NoError(t, s.WriteAt([][]byte{bytes.Repeat([]byte{1}, size)}, 0, false))
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			b := bytes.Repeat([]byte{byte(2 + w)}, size)
			for range rounds {
				assert.NoError(t, s.WriteAt([][]byte{b}, 0, false))
			}
		})
	}
	for range rounds {
		got := read(t, s, 0, size)
		foreign := slices.IndexFunc(got, func(b byte) bool { return b < 1 || b > 3 })
		require.Negative(t, foreign, "the first byte that nobody wrote")
	}
	wg.Wait()
}

func forced(t *testing.T, s backstore.Store) {
	want := pattern(9, 5000)
	require.NoError(t, s.WriteAt([][]byte{want}, 1000, true))
	require.NoError(t, s.Flush())
	require.NoError(t, s.Flush(), "with nothing to do")
	require.True(t, bytes.Equal(want, read(t, s, 1000, 5000)))
}

// unchanged: a write leaves the caller's buffers and the list alone, a read leaves the list alone.
func unchanged(t *testing.T, s backstore.Store) {
	data := pattern(3, 4096)
	bufs := cut(bytes.Clone(data), []int{512, 0, 3584})
	require.NoError(t, s.WriteAt(bufs, 512, false))
	require.NoError(t, s.WriteAt(bufs, 513, true))
	require.Equal(t, data, bytes.Join(bufs, nil))
	require.NoError(t, s.ReadAt(bufs, 512))
	require.Equal(t, []int{512, 0, 3584}, []int{len(bufs[0]), len(bufs[1]), len(bufs[2])})
}

func noAllocation(t *testing.T, s backstore.Store) {
	buf := make([]byte, 64<<10+100)
	bufs := cut(buf, []int{100, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 32 << 10})
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if s.WriteAt(bufs, 512, false) != nil || s.ReadAt(bufs, 512) != nil {
			t.Error("failed")
		}
	}))
}

// mapped: what a Mapper maps is what it reads and writes.
func mapped(t *testing.T, s backstore.Store) {
	m, ok := s.(backstore.Mapper)
	if !ok {
		return
	}
	require.Len(t, m.Memory(), int(s.Info().SizeBytes))
	want := pattern(5, 1000)
	require.NoError(t, s.WriteAt([][]byte{want}, 700, false))
	view := m.Map(700, 1000)
	require.Equal(t, want, view)
	require.Equal(t, len(view), cap(view), "an append must not reach the store")
	view[0]++
	require.Equal(t, view[0], read(t, s, 700, 1)[0])
	require.Equal(t, view[0], m.Memory()[700])
	require.Empty(t, m.Map(s.Info().SizeBytes, 0))
	require.Panics(t, func() { m.Map(s.Info().SizeBytes, 1) })
}

func closed(t *testing.T, s backstore.Store) {
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "again")
	buf := [][]byte{make([]byte, 512)}
	require.ErrorIs(t, s.ReadAt(buf, 0), net.ErrClosed)
	require.ErrorIs(t, s.WriteAt(buf, 0, false), net.ErrClosed)
	require.ErrorIs(t, s.WriteAt(buf, 0, true), net.ErrClosed)
	require.ErrorIs(t, s.Flush(), net.ErrClosed)
	for name, call := range zeroers(s) {
		require.ErrorIs(t, call(0, 512), net.ErrClosed, name)
	}
	if e, ok := s.(backstore.Extenter); ok {
		_, _, err := e.Extent(0, 512)
		require.ErrorIs(t, err, net.ErrClosed)
	}
	if r, ok := s.(backstore.Resizer); ok {
		require.ErrorIs(t, r.Resize(MinSize), net.ErrClosed)
	}
}

// Benchmark measures reads and writes of size bytes at places spread over the store's first 32 MiB, which
// have been written once before.
func Benchmark(b *testing.B, size int, open func(b *testing.B) backstore.Store) {
	for _, op := range []string{"read", "write"} {
		b.Run(op, func(b *testing.B) {
			s := open(b)
			defer func() { assert.NoError(b, s.Close()) }()
			bufs := [][]byte{make([]byte, size)}
			places := min(s.Info().SizeBytes, 32<<20) / int64(size)
			for place := range places {
				if err := s.WriteAt(bufs, place*int64(size), false); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			place := int64(0)
			for b.Loop() {
				place = (place + 7919) % places // a prime, so that every place is reached
				var err error
				if op == "read" {
					err = s.ReadAt(bufs, place*int64(size))
				} else {
					err = s.WriteAt(bufs, place*int64(size), false)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
