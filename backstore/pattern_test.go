package backstore_test

import (
	"bytes"
	"math"
	"net"
	"sync"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newPattern(t testing.TB, opts backstore.Options) *backstore.PatternStore {
	s := open(t, "pattern", opts)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s.(*backstore.PatternStore)
}

func TestPattern(t *testing.T) {
	for _, size := range []string{"4MiB", "9223372036854775296"} {
		backstoretest.RunComputed(t, func(t *testing.T) backstore.Store { return open(t, "pattern", backstore.Options{"size": size}) })
	}
}

// TestPatternOfEverySize: the last sector of the largest store is as good as the first.
func TestPatternOfEverySize(t *testing.T) {
	const largest = math.MaxInt64 - 511
	p := newPattern(t, backstore.Options{"size": "9223372036854775296", "seed": "1"})
	require.EqualValues(t, largest, p.Info().SizeBytes)
	last := int64(largest - 64<<10)
	require.Nil(t, look(t, p, 0, 64<<10, 1))
	require.Nil(t, look(t, p, last, 64<<10, 1))
	put(t, p, last, 64<<10, 2)
	require.Nil(t, look(t, p, last, 64<<10, 2))
	require.NoError(t, p.Unmap(0, largest))
	require.Equal(t, stamp.Zeros, look(t, p, last, 512, 2).Kind)
	put(t, p, last, 64<<10, 1) // after zeros anything may come
	require.Nil(t, look(t, p, last, 64<<10, 1))
	allocated, n, err := p.Extent(0, largest)
	require.NoError(t, err)
	require.False(t, allocated)
	require.Equal(t, last, n)
	allocated, n, err = p.Extent(last+512, 1000)
	require.NoError(t, err)
	require.True(t, allocated)
	require.EqualValues(t, 1000, n)
	require.ErrorIs(t, p.ReadAt([][]byte{make([]byte, 1)}, largest), backstore.ErrRange)
	require.ErrorIs(t, p.Unmap(largest, 512), backstore.ErrRange)
}

// TestPatternReadsAnyBytes: reads may begin and end anywhere, across generations and buffers.
func TestPatternReadsAnyBytes(t *testing.T) {
	p := newPattern(t, backstore.Options{"size": "1MiB"})
	put(t, p, 8<<10, 4<<10, 3)
	require.NoError(t, p.WriteZeroes(16<<10, 4<<10, false, true))
	want := sectors(0, 64<<10, 1)
	copy(want[8<<10:], sectors(8<<10, 4<<10, 3))
	clear(want[16<<10 : 20<<10])
	rapid.Check(t, func(rt *rapid.T) {
		off := rapid.IntRange(0, len(want)).Draw(rt, "offset")
		got := bytes.Repeat([]byte{0xee}, rapid.IntRange(0, len(want)-off).Draw(rt, "length"))
		a := rapid.IntRange(0, len(got)).Draw(rt, "cut")
		b := rapid.IntRange(a, len(got)).Draw(rt, "second cut")
		require.NoError(rt, p.ReadAt([][]byte{got[:a], got[a:b], nil, got[b:]}, int64(off)))
		require.True(rt, bytes.Equal(want[off:off+len(got)], got))
	})
}

// TestPatternSeesWhatIsWrong: a wrong sector is named, and refused or counted; what it was is kept.
func TestPatternSeesWhatIsWrong(t *testing.T) {
	const off = 64 << 10
	good := sectors(off, 4<<10, 5)
	change := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b[1024:1536]) // the third sector
		return b
	}
	other := make([]byte, 512)
	stamp.Fill(other, stamp.ID{Seed: 2, Sector: off/512 + 2, Generation: 5})
	for name, c := range map[string]struct {
		p    []byte
		kind stamp.Kind
		word string
	}{
		"a bit":          {change(func(b []byte) { b[100] ^= 1 }), stamp.Foreign, ""},
		"elsewhere":      {change(func(b []byte) { copy(b, sectors(0, 512, 5)) }), stamp.Misplaced, "sector 0"},
		"another seed":   {change(func(b []byte) { copy(b, other) }), stamp.OtherWriter, "seed 2"},
		"too late":       {change(func(b []byte) { copy(b, sectors(off+1024, 512, 2)) }), stamp.Stale, "generation 2"},
		"poison":         {change(stamp.Poison), stamp.Unwritten, "poison"},
		"last moment":    {change(func(b []byte) { copy(b[24:], bytes.Repeat([]byte{0xff}, 8)) }), stamp.Foreign, "foreign"}, // what zeros are called,
		"no stamp":       {change(func(b []byte) { copy(b, bytes.Repeat([]byte("text"), 128)) }), stamp.Foreign, "foreign"},
		"torn to zeros":  {change(func(b []byte) { clear(b[256:]) }), "", ""},
		"shifted stamps": {append(bytes.Clone(good[512:]), good[:512]...), stamp.Misplaced, "misdirected"},
	} {
		t.Run(name, func(t *testing.T) {
			refuses, counts := newPattern(t, nil), newPattern(t, backstore.Options{"wrong": "count"})
			for _, p := range []*backstore.PatternStore{refuses, counts} {
				put(t, p, off, 4<<10, 4)
			}
			err := refuses.WriteAt([][]byte{c.p[:700], c.p[700:]}, off, false)
			require.ErrorContains(t, err, "pattern store: write 4096 bytes at 65536: sector ")
			require.ErrorContains(t, err, c.word)
			require.Nil(t, look(t, refuses, off, 4<<10, 4), "nothing was taken")
			require.NoError(t, counts.WriteAt([][]byte{c.p}, off, false))
			n, first := counts.Wrong()
			if name == "shifted stamps" {
				require.EqualValues(t, 8, n)
				return
			}
			require.EqualValues(t, 1, n)
			require.EqualValues(t, off/512+2, first[0].Want.Sector)
			if c.kind != "" && name != "a bit" {
				require.Equal(t, c.kind, first[0].Kind)
			}
			require.Nil(t, look(t, counts, off, 1024, 5), "right ones are taken")
			require.Nil(t, look(t, counts, off+1024, 512, 4))
			require.Nil(t, look(t, counts, off+1536, 2560, 5))
		})
	}
	p := newPattern(t, nil)
	require.ErrorContains(t, p.WriteAt([][]byte{good}, off+1, false), "not whole sectors")
	require.ErrorContains(t, p.WriteAt([][]byte{good[:513]}, off, false), "not whole sectors")
	require.ErrorContains(t, p.Unmap(1, 512), "not whole sectors")
	require.NoError(t, p.WriteAt([][]byte{make([]byte, 512), good[512:]}, off, false), "zeros are right")
	n, _ := p.Wrong()
	require.Zero(t, n)
}

func TestPatternCountsAllAndKeepsFew(t *testing.T) {
	p := newPattern(t, backstore.Options{"wrong": "count"})
	require.NoError(t, p.WriteAt([][]byte{sectors(0, 64<<10, 1)}, 64<<10, false))
	n, first := p.Wrong()
	require.EqualValues(t, 128, n)
	require.Len(t, first, 16)
}

// TestPatternLikeAModel: the runs of generations are what an array of them would be.
func TestPatternLikeAModel(t *testing.T) {
	const size = 40
	rapid.Check(t, func(rt *rapid.T) {
		s, err := backstore.Open("pattern", backstore.Options{"size": "20KiB"})
		require.NoError(rt, err)
		model := make([]uint64, size)
		for i := range model {
			model[i] = 1
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			from := rapid.IntRange(0, size-1).Draw(rt, "from")
			to := rapid.IntRange(from+1, size).Draw(rt, "to")
			g := rapid.Uint64Range(0, 5).Draw(rt, "generation") // 0 zeroes
			off, n := int64(from)*512, (to-from)*512
			if g == 0 {
				require.NoError(rt, s.(backstore.Unmapper).Unmap(off, int64(n)))
				clear(model[from:to])
			} else {
				late := false
				for _, old := range model[from:to] {
					late = late || old > g
				}
				err := s.WriteAt([][]byte{sectors(off, n, g)}, off, false)
				require.Equal(rt, late, err != nil)
				for i := from; i < to && !late; i++ {
					model[i] = g
				}
			}
			want := make([]byte, size*512)
			for i, g := range model {
				if g > 0 {
					copy(want[i*512:], sectors(int64(i)*512, 512, g))
				}
			}
			got := make([]byte, size*512)
			require.NoError(rt, s.ReadAt([][]byte{got}, 0))
			require.True(rt, bytes.Equal(want, got))
		}
	})
}

// TestPatternMemoryIsBounded: what it cannot remember it refuses, and goes on.
func TestPatternMemoryIsBounded(t *testing.T) {
	p := newPattern(t, nil)
	var err error
	n := int64(0)
	for ; err == nil && n < 1<<17; n++ {
		err = p.Unmap(n*1024, 512)
	}
	require.ErrorIs(t, err, backstore.ErrNoSpace)
	require.EqualValues(t, 1<<16+1, n)
	put(t, p, 1<<40, 512, 1) // what is as it was needs no memory
	require.NoError(t, p.Unmap(512, 512), "filling a gap needs less")
	require.NoError(t, p.Unmap(n*1024, 512))
	require.Equal(t, stamp.Zeros, look(t, p, n*1024, 512, 1).Kind)
}

func TestPatternManyAtOnce(t *testing.T) {
	p := newPattern(t, nil)
	var wg sync.WaitGroup
	for w := range int64(4) {
		wg.Go(func() {
			var c stamp.Checker
			got := make([]byte, 8<<10)
			for i := range int64(50) {
				off := (i*4 + w) * 8 << 10
				assert.NoError(t, p.WriteAt([][]byte{sectors(off, 8<<10, 2)}, off, false))
				assert.NoError(t, p.ReadAt([][]byte{got}, off))
				assert.Nil(t, c.Check(got, stamp.ID{Seed: 1, Sector: uint64(off / 512), Generation: 2}))
			}
		})
	}
	wg.Wait()
	require.Nil(t, look(t, p, 0, 4*50*8<<10, 2))
}

func TestPatternClosed(t *testing.T) {
	p := newPattern(t, nil)
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Unmap(0, 512), net.ErrClosed)
}

func TestPatternOptions(t *testing.T) {
	require.EqualError(t, backstore.Check("pattern", backstore.Options{"generation": "18446744073709551615"}),
		`pattern store: option generation: "18446744073709551615" is not a number from 0 to 2^64-2`)
	require.EqualError(t, backstore.Check("pattern", backstore.Options{"seed": "-1"}),
		`pattern store: option seed: "-1" is not a number from 0 to 2^64-1`)
	p := newPattern(t, backstore.Options{"generation": "7"})
	require.EqualValues(t, 100<<40, p.Info().SizeBytes)
	require.Nil(t, look(t, p, 50<<40, 4096, 7))
}

// TestPatternDoesNotAllocate: nor does a write that immediate data has cut within a sector.
func TestPatternDoesNotAllocate(t *testing.T) {
	p := newPattern(t, nil)
	data := sectors(0, 64<<10, 2)
	bufs := [][]byte{data[:48], data[48:48], data[48 : 8<<10], data[8<<10:]}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		if p.WriteAt(bufs, 0, false) != nil || p.ReadAt(bufs, 0) != nil {
			t.Error("failed")
		}
	}))
}

func BenchmarkPattern(b *testing.B) {
	for name, size := range map[string]int{"4K": 4 << 10, "1M": 1 << 20} {
		p := newPattern(b, nil)
		data := [][]byte{sectors(0, size, 2)}
		for op, do := range map[string]func() error{
			"read":  func() error { return p.ReadAt(data, 0) },
			"write": func() error { return p.WriteAt(data, 0, false) },
		} {
			require.NoError(b, p.WriteAt(data, 0, false))
			b.Run(name+"/"+op, func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := do(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
