package arena_test

import (
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goiser/goiser/iscsi/arena"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newPool(t testing.TB, chunks int) *arena.Pool {
	p, err := arena.New(int64(chunks) * arena.ChunkSize)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func get(t testing.TB, p *arena.Pool, n int) [][]byte {
	bufs, ok := p.Get(nil, n)
	require.True(t, ok, "%d bytes", n)
	return bufs
}

func lengths(bufs [][]byte) []int {
	out := []int{}
	for _, b := range bufs {
		out = append(out, len(b))
	}
	return out
}

func address(b []byte) uintptr { return reflect.ValueOf(b).Pointer() }

func TestSizesThatMakeNoPool(t *testing.T) {
	for _, size := range []int64{0, -1, math.MinInt64, math.MaxInt64, math.MaxInt64 - arena.ChunkSize} {
		_, err := arena.New(size)
		require.Error(t, err, "%d", size)
	}
	p, err := arena.New(1)
	require.NoError(t, err)
	assert.Equal(t, 1, p.Chunks())
	assert.Len(t, p.Memory(), arena.ChunkSize)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "a second Close")
	_, ok := p.Get(nil, 1)
	assert.False(t, ok, "Get after Close")
	assert.False(t, p.Wait(&arena.Waiter{}, 1), "Wait after Close")
}

func TestGetGivesAllOrNothing(t *testing.T) {
	p := newPool(t, 3)
	for _, c := range []struct {
		n    int
		want []int
	}{
		{0, []int{}},
		{1, []int{1}},
		{arena.ChunkSize, []int{arena.ChunkSize}},
		{arena.ChunkSize + 1, []int{arena.ChunkSize, 1}},
		{3 * arena.ChunkSize, []int{arena.ChunkSize, arena.ChunkSize, arena.ChunkSize}},
	} {
		bufs := get(t, p, c.n)
		assert.Equal(t, c.want, lengths(bufs), "%d bytes", c.n)
		assert.Equal(t, 3-len(bufs), p.Free())
		for _, b := range bufs {
			assert.Zero(t, address(b)%uintptr(os.Getpagesize()), "page-aligned")
			assert.Equal(t, arena.ChunkSize, cap(b), "append must not reach the next chunk")
		}
		p.Put(bufs)
	}
	keep := [][]byte{[]byte("x")}
	dst, ok := p.Get(keep, 3*arena.ChunkSize+1)
	assert.False(t, ok)
	assert.Equal(t, keep, dst)
	assert.Equal(t, 3, p.Free())
}

func TestGetAppends(t *testing.T) {
	p := newPool(t, 2)
	bufs := get(t, p, 10)
	bufs, ok := p.Get(bufs, 20)
	require.True(t, ok)
	require.Equal(t, []int{10, 20}, lengths(bufs))
	p.Put(bufs)
}

func TestBuffersLieInMemory(t *testing.T) {
	p := newPool(t, 4)
	bufs := get(t, p, 4*arena.ChunkSize)
	for i, b := range bufs {
		b[0] = byte(i + 1)
		assert.Equal(t, byte(i+1), p.Memory()[address(b)-address(p.Memory())])
	}
	p.Put(bufs)
}

func TestHotChunksAreUsedAgain(t *testing.T) {
	p := newPool(t, 64)
	first := get(t, p, 3*arena.ChunkSize)
	for range 10 {
		p.Put(first)
		again := get(t, p, 3*arena.ChunkSize)
		for i := range first {
			require.Equal(t, address(first[i]), address(again[i]))
		}
	}
	p.Put(first)
}

func TestPutOfWhatWasNotHandedOutPanics(t *testing.T) {
	p, other := newPool(t, 2), newPool(t, 2)
	bufs := get(t, p, arena.ChunkSize)
	mine := get(t, other, arena.ChunkSize)
	assert.PanicsWithValue(t, "arena: buffer starts 512 bytes into a chunk", func() { p.Put([][]byte{bufs[0][512:]}) })
	assert.Panics(t, func() { p.Put(mine) }, "of another pool")
	assert.Panics(t, func() { p.Put([][]byte{make([]byte, 10)}) }, "of no pool")
	assert.Panics(t, func() { p.Put([][]byte{nil}) }, "nil")
	p.Put([][]byte{bufs[0][:0]}) // shortened, even to nothing: still that chunk
	assert.PanicsWithValue(t, "arena: chunk 0 given back twice", func() { p.Put(bufs) })
	assert.Equal(t, 2, p.Free(), "a panic leaves the pool usable")
	other.Put(mine)
	assert.Panics(t, func() { p.Get(nil, -1) })
}

func TestCloseRefusesWhileInUse(t *testing.T) {
	p, err := arena.New(1)
	require.NoError(t, err)
	bufs := get(t, p, 1)
	require.ErrorContains(t, p.Close(), "1 of 1 chunks are in use")
	bufs[0][0] = 1 // still mapped
	p.Put(bufs)
	require.NoError(t, p.Close())
}

func TestWaitersAreServedInOrder(t *testing.T) {
	p := newPool(t, 4)
	held := get(t, p, 4*arena.ChunkSize)
	var served []string
	wait := func(name string, chunks int) *arena.Waiter {
		w := &arena.Waiter{Ready: func() { served = append(served, name) }}
		require.True(t, p.Wait(w, chunks*arena.ChunkSize))
		return w
	}
	a, b, c := wait("a", 3), wait("b", 1), wait("c", 1)
	p.Put(held[:2])
	require.Empty(t, served, "the large one at the head is not overtaken")
	_, ok := p.Get(nil, 1)
	require.False(t, ok, "Get does not overtake a waiter")
	_, ok = p.Get(nil, 0)
	require.True(t, ok, "nothing is always there")
	p.Put(held[2:])
	require.Equal(t, []string{"a", "b"}, served)
	require.Equal(t, []int{arena.ChunkSize, arena.ChunkSize, arena.ChunkSize}, lengths(a.Bufs))
	p.Put(a.Bufs)
	require.Equal(t, []string{"a", "b", "c"}, served)
	p.Put(b.Bufs)
	p.Put(c.Bufs)
	require.True(t, p.Wait(a, 5), "used again, served at once")
	require.Equal(t, []int{5}, lengths(a.Bufs))
	p.Put(a.Bufs)
	require.False(t, p.Wait(a, 5*arena.ChunkSize), "larger than the pool")
}

func TestCancel(t *testing.T) {
	p := newPool(t, 2)
	held := get(t, p, arena.ChunkSize)
	var served []string
	big := &arena.Waiter{Ready: func() { served = append(served, "big") }}
	small := &arena.Waiter{Ready: func() { served = append(served, "small") }}
	require.False(t, p.Cancel(big), "never waited")
	require.True(t, p.Wait(big, 2*arena.ChunkSize))
	require.True(t, p.Wait(small, 1))
	require.Panics(t, func() { p.Wait(small, 1) }, "queued twice")
	require.ErrorContains(t, p.Close(), "in use")
	require.True(t, p.Cancel(big))
	require.Equal(t, []string{"small"}, served, "cancelling the large one lets the small one through")
	require.False(t, p.Cancel(small), "served already")
	require.False(t, p.Cancel(big), "cancelled already")
	p.Put(small.Bufs)
	p.Put(held)
	require.Equal(t, []string{"small"}, served)
}

// TestOneOwnerAtATime has more takers than chunks. Each stamps its buffers and finds its stamps intact.
func TestOneOwnerAtATime(t *testing.T) {
	const takers, rounds, chunks = 8, 1500, 6
	p := newPool(t, chunks)
	var owners [chunks]atomic.Int32
	base := address(p.Memory())
	use := func(id int32, bufs [][]byte) {
		for _, b := range bufs {
			o := &owners[(address(b)-base)/arena.ChunkSize]
			assert.True(t, o.CompareAndSwap(0, id), "chunk has an owner")
			b[0], b[len(b)-1] = byte(id), byte(id)
		}
		for _, b := range bufs {
			assert.Equal(t, byte(id), b[0])
			assert.Equal(t, byte(id), b[len(b)-1])
			owners[(address(b)-base)/arena.ChunkSize].Store(0)
		}
		p.Put(bufs)
	}
	var wg sync.WaitGroup
	for id := int32(1); id <= takers; id++ {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(id)))
			ready := make(chan struct{}, 1)
			w := &arena.Waiter{Ready: func() { ready <- struct{}{} }}
			var bufs [][]byte
			for range rounds {
				n := 1 + rnd.IntN(chunks*arena.ChunkSize)
				var ok bool
				if bufs, ok = p.Get(bufs[:0], n); ok {
					use(id, bufs)
					continue
				}
				assert.True(t, p.Wait(w, n))
				if rnd.IntN(4) == 0 && p.Cancel(w) {
					continue
				}
				<-ready
				use(id, w.Bufs)
			}
		})
	}
	wg.Wait()
	require.Equal(t, chunks, p.Free())
}

func TestNoAllocation(t *testing.T) {
	p := newPool(t, 16)
	bufs := make([][]byte, 0, 16)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		bufs, _ = p.Get(bufs[:0], 300000)
		p.Put(bufs)
	}))
	w := &arena.Waiter{Ready: func() {}, Bufs: bufs[:0]}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p.Wait(w, 300000)
		p.Put(w.Bufs)
	}))
}

func BenchmarkGetPut(b *testing.B) {
	p := newPool(b, 64)
	var bufs [][]byte
	b.ReportAllocs()
	for b.Loop() {
		bufs, _ = p.Get(bufs[:0], 4096)
		p.Put(bufs)
	}
}
