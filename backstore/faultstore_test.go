package backstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const faultyBytes = 5 << 20

// newFaulty is a fault store over a RAM store, which is returned too: it knows what is really there.
func newFaulty(t testing.TB, opts backstore.Options) (*backstore.FaultStore, backstore.Store) {
	below := open(t, "ram", backstore.Options{"size": fmt.Sprint(faultyBytes)})
	if opts == nil {
		opts = backstore.Options{}
	}
	opts["store"] = "ram"
	s, err := backstore.OpenOver("fault", opts, below)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, s.Close())
		assert.NoError(t, below.Close())
	})
	return s.(*backstore.FaultStore), below
}

// TestFaultStoreWithoutRules passes everything through; that what is written is kept is tried with rules.
func TestFaultStoreWithoutRules(t *testing.T) {
	backstoretest.RunDiscarding(t, func(t *testing.T) backstore.Store { s, _ := newFaulty(t, nil); return s })
}

// TestFaultStoreWithIdleRules takes the way through the rules, none of which fires, and through the memory of what was
// there.
func TestFaultStoreWithIdleRules(t *testing.T) {
	opts := backstore.Options{
		"rules": "error any skip=1000000000; stale read skip=1000000000; latency any delay=1h skip=1000000000",
		"cache": "64KiB",
	}
	backstoretest.RunStoring(t, func(t *testing.T) backstore.Store { s, _ := newFaulty(t, opts); return s })
}

func TestFaultStoreReadOnly(t *testing.T) {
	dir := t.TempDir() + "/a.img"
	s := open(t, "file", backstore.Options{"path": dir, "size": fmt.Sprint(faultyBytes)})
	require.NoError(t, s.Close())
	for _, opts := range []backstore.Options{{}, {"rules": "lost any skip=9999"}, {"cache": "1MiB"}} {
		backstoretest.RunReadOnly(t, make([]byte, 512), func(t *testing.T) backstore.Store {
			below := open(t, "file", backstore.Options{"path": dir, "readonly": "yes"})
			t.Cleanup(func() { assert.NoError(t, below.Close()) })
			opts["store"] = "a"
			s, err := backstore.OpenOver("fault", opts, below)
			require.NoError(t, err)
			return s
		})
	}
}

func TestFaultStoreSaysWhatItIs(t *testing.T) {
	s, below := newFaulty(t, nil)
	want := below.Info()
	want.NeverBlocks = false
	require.Equal(t, want, s.Info())
	_, maps := backstore.Store(s).(backstore.Mapper)
	require.False(t, maps, "memory would pass the rules by")
	s, _ = newFaulty(t, backstore.Options{"cache": "64KiB"})
	require.True(t, s.Info().WriteCache)
	require.False(t, s.Info().Volatile)
}

// written is a store with stamps of generation 1 in its first MiB.
func written(t *testing.T, opts backstore.Options) (f *backstore.FaultStore, below backstore.Store) {
	f, below = newFaulty(t, opts)
	put(t, f, 0, 1<<20, 1)
	require.NoError(t, f.Flush())
	return f, below
}

func sectors(off int64, n int, generation uint64) []byte {
	p := make([]byte, n)
	stamp.Fill(p, stamp.ID{Seed: 1, Sector: uint64(off / stamp.SectorSize), Generation: generation})
	return p
}

func put(t *testing.T, s backstore.Store, off int64, n int, generation uint64) {
	p := sectors(off, n, generation)
	kept := bytes.Clone(p)
	require.NoError(t, s.WriteAt([][]byte{p[:n/3], p[n/3:]}, off, false))
	require.Equal(t, kept, p, "what is written is not changed")
}

// look reads a range and explains its first wrong sector; nil if all is of the generation.
func look(t *testing.T, s backstore.Store, off int64, n int, generation uint64) *stamp.Mismatch {
	p := make([]byte, n)
	stamp.Poison(p)
	require.NoError(t, s.ReadAt([][]byte{p[:n/2], p[n/2:]}, off))
	var c stamp.Checker
	return c.Check(p, stamp.ID{Seed: 1, Sector: uint64(off / stamp.SectorSize), Generation: generation})
}

// TestEveryPlantedFaultIsNamed: each kind is found by the checker under its own name, at the place that the log
// tells.
func TestEveryPlantedFaultIsNamed(t *testing.T) {
	for _, c := range []struct {
		rule string
		op   string
		kind stamp.Kind
	}{
		{"bitflip read 64KiB-128KiB", "read", stamp.BitFlip},
		{"bitflip write 64KiB-128KiB", "write", stamp.BitFlip},
		{"bitflip write 64KiB-128KiB bits=3", "write", stamp.BitFlip},
		{"lost write 64KiB-128KiB", "write", stamp.Stale},
		{"stale read 64KiB-128KiB", "read", stamp.Stale},
		{"misplaced read 64KiB-128KiB by=8KiB", "read", stamp.Misplaced},
		{"misplaced read 64KiB-128KiB by=-8KiB", "read", stamp.Misplaced},
		{"misplaced write 64KiB-128KiB by=256KiB", "write", stamp.Stale},
		{"torn write 64KiB-128KiB", "write", stamp.Torn},
	} {
		t.Run(c.rule, func(t *testing.T) {
			f, below := written(t, backstore.Options{"seed": "7"})
			require.NoError(t, f.SetRules(c.rule+" count=1"))
			put(t, f, 32<<10, 128<<10, 2)
			m := look(t, f, 32<<10, 128<<10, 2)
			require.NotNil(t, m)
			require.Equal(t, c.kind, m.Kind, m)

			faults, forgotten := f.Faults()
			require.Zero(t, forgotten)
			require.Len(t, faults, 1)
			got := faults[0]
			assert.Equal(t, c.op, got.Op)
			assert.Equal(t, c.rule+" count=1", got.Rule)
			assert.EqualValues(t, 1, got.Sequence)
			assert.False(t, got.Time.IsZero())
			assert.GreaterOrEqual(t, got.Offset, int64(64<<10))
			assert.LessOrEqual(t, got.Offset+got.Length, int64(128<<10))
			if got.Bits != nil {
				assert.Equal(t, slices.Min(got.Bits)/8, m.OffsetBytes())
			} else {
				assert.EqualValues(t, got.Offset/stamp.SectorSize, m.Want.Sector, "where the bad bytes begin")
			}
			if got.Elsewhere != 0 && c.op == "write" {
				m := look(t, below, got.Elsewhere, int(got.Length), 1)
				require.NotNil(t, m)
				require.Equal(t, stamp.Misplaced, m.Kind)
				require.EqualValues(t, got.Offset/stamp.SectorSize, m.Found.Sector)
			}
			require.Nil(t, look(t, below, 32<<10, 32<<10, 2), "before the range")
			require.Nil(t, look(t, below, 128<<10, 32<<10, 2), "behind the range")
			if c.op == "read" {
				require.Nil(t, look(t, f, 32<<10, 128<<10, 2), "the next read is right")
			}
		})
	}
}

func TestErrorsAndShortWrites(t *testing.T) {
	f, below := written(t, nil)
	require.NoError(t, f.SetRules("error read 0-4KiB; short write 4KiB-8KiB; error flush; error zero 512+512"))
	buf := [][]byte{make([]byte, 8<<10)}
	require.ErrorIs(t, f.ReadAt(buf, 0), backstore.ErrInjected)
	require.NoError(t, f.ReadAt(buf, 4<<10))
	require.ErrorIs(t, f.Flush(), backstore.ErrInjected)
	require.ErrorIs(t, f.WriteAt(buf, 64<<10, true), backstore.ErrInjected, "it cannot be made durable")
	require.ErrorIs(t, f.Unmap(0, 4096), backstore.ErrInjected)
	require.ErrorIs(t, f.WriteZeroes(0, 4096, false, false), backstore.ErrInjected)
	require.NoError(t, f.Unmap(1024, 4096))

	p := sectors(0, 16<<10, 2)
	err := f.WriteAt([][]byte{p}, 0, false)
	require.ErrorIs(t, err, backstore.ErrInjected)
	faults, _ := f.Faults()
	last := faults[len(faults)-1]
	require.Equal(t, backstore.FaultShort, last.Kind)
	require.EqualValues(t, 16<<10, last.Offset+last.Length)
	require.ErrorContains(t, err, fmt.Sprintf("done up to byte %d", last.Offset))
	got := make([]byte, 16<<10)
	require.NoError(t, below.ReadAt([][]byte{got}, 0))
	require.Equal(t, p[:last.Offset], got[:last.Offset])
	require.NotEqual(t, p[last.Offset:], got[last.Offset:])
	require.NoError(t, f.SetRules(""))
	require.NoError(t, f.Close())
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaulty(t, backstore.Options{"rules": "latency read delay=5ms; latency read 0-4KiB delay=1s jitter=1s; latency flush delay=3s"})
		took := func(do func() error) time.Duration {
			start := time.Now()
			require.NoError(t, do())
			return time.Since(start)
		}
		buf := [][]byte{make([]byte, 512)}
		require.Equal(t, 5*time.Millisecond, took(func() error { return f.ReadAt(buf, 4<<10) }))
		require.Zero(t, took(func() error { return f.WriteAt(buf, 0, false) }))
		require.Equal(t, 3*time.Second, took(f.Flush))
		require.Equal(t, 3*time.Second, took(func() error { return f.WriteAt(buf, 0, true) }), "forced")
		seen := map[time.Duration]bool{}
		for range 10 {
			d := took(func() error { return f.ReadAt(buf, 0) })
			require.GreaterOrEqual(t, d, 1005*time.Millisecond)
			require.LessOrEqual(t, d, 2005*time.Millisecond)
			seen[d] = true
		}
		require.Greater(t, len(seen), 5, "jitter")
		faults, _ := f.Faults()
		require.Equal(t, 5*time.Millisecond, faults[0].Delay)

		done := make(chan error, 1)
		require.NoError(t, f.SetRules("latency read delay=1h"))
		go func() { done <- f.ReadAt(buf, 0) }()
		synctest.Wait()
		require.NoError(t, f.Close())
		require.ErrorIs(t, <-done, net.ErrClosed, "nobody waits for a closed store")
	})
}

func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, below := newFaulty(t, backstore.Options{"rules": "stuck write 0-4KiB count=3"})
		one := [][]byte{bytes.Repeat([]byte{1}, 512)}
		done := make(chan error, 3)
		write := func() { go func() { done <- f.WriteAt(one, 512, false) }() }
		write()
		write()
		synctest.Wait()
		require.Equal(t, 2, f.Stuck())
		require.NoError(t, f.WriteAt(one, 4<<10, false), "others go on")
		got := [][]byte{make([]byte, 512)}
		require.NoError(t, below.ReadAt(got, 512))
		require.Equal(t, make([]byte, 512), got[0], "nothing is done yet")
		require.Equal(t, 2, f.Release())
		require.NoError(t, errors.Join(<-done, <-done))
		require.NoError(t, below.ReadAt(got, 512))
		require.Equal(t, one, got)
		require.Zero(t, f.Release())

		write()
		synctest.Wait()
		require.NoError(t, f.SetRules("stuck write"), "new rules let them go")
		require.NoError(t, <-done)
		write()
		synctest.Wait()
		require.NoError(t, f.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
	})
}

// TestSameSeedSameFaults: and another seed makes others.
func TestSameSeedSameFaults(t *testing.T) {
	run := func(seed string) []backstore.Fault {
		f, _ := newFaulty(t, backstore.Options{
			"seed":  seed,
			"rules": "bitflip read rate=1/3 bits=2; misplaced write rate=0.2; torn write every=5 skip=2; lost write rate=1/7 count=4",
		})
		for i := range int64(300) {
			off := i * 7 % 100 * 4096
			require.NoError(t, f.WriteAt([][]byte{make([]byte, 4096)}, off, false))
			require.NoError(t, f.ReadAt([][]byte{make([]byte, 8192)}, off))
		}
		list, _ := f.Faults()
		for i := range list {
			list[i].Time = time.Time{}
		}
		return list
	}
	first := run("1")
	require.Equal(t, first, run("1"))
	require.NotEqual(t, first, run("2"))
	kinds := map[backstore.FaultKind]int{}
	for _, f := range first {
		kinds[f.Kind]++
	}
	assert.InDelta(t, 100, kinds[backstore.FaultBitFlip], 30)
	assert.InDelta(t, 60, kinds[backstore.FaultMisplaced], 25)
	assert.InDelta(t, 240/5, kinds[backstore.FaultTorn], 6)
	assert.Equal(t, 4, kinds[backstore.FaultLost])
}

func TestFaultLogIsBounded(t *testing.T) {
	f, _ := newFaulty(t, backstore.Options{"rules": "lost write"})
	for i := range 5000 {
		require.NoError(t, f.WriteAt([][]byte{{1}}, int64(i), false))
	}
	list, forgotten := f.Faults()
	require.Len(t, list, 4096)
	require.EqualValues(t, 904, forgotten)
	for i, l := range list {
		require.EqualValues(t, 905+i, l.Sequence)
		require.EqualValues(t, 904+i, l.Offset)
	}
}

// TestPowerCut (of a FaultStore): what was flushed or forced stays, all else is as before; a lost flush
// flushes nothing.
func TestSimulatedPowerCut(t *testing.T) {
	f, below := written(t, backstore.Options{"cache": "1MiB"})
	put(t, f, 0, 64<<10, 2)
	require.NoError(t, f.Flush())
	put(t, f, 0, 64<<10, 3)
	put(t, f, 32<<10, 64<<10, 4)
	require.NoError(t, f.WriteAt([][]byte{sectors(4<<10, 4<<10, 5)}, 4<<10, true))
	require.NoError(t, f.WriteZeroes(128<<10, 4<<10, false, false))
	require.NoError(t, f.Unmap(192<<10, 4<<10))
	lost, err := f.PowerCut()
	require.NoError(t, err)
	require.EqualValues(t, (96-4+4+4)<<10, lost)
	require.Nil(t, look(t, below, 0, 4<<10, 2))
	require.Nil(t, look(t, below, 4<<10, 4<<10, 5), "forced")
	require.Nil(t, look(t, below, 8<<10, 56<<10, 2))
	require.Nil(t, look(t, below, 64<<10, 960<<10, 1))
	lost, err = f.PowerCut()
	require.NoError(t, err)
	require.Zero(t, lost)

	require.NoError(t, f.SetRules("lost flush"))
	put(t, f, 0, 4<<10, 6)
	require.NoError(t, f.Flush(), "it says")
	require.NoError(t, f.WriteAt([][]byte{sectors(4<<10, 4<<10, 6)}, 4<<10, true))
	_, err = f.PowerCut()
	require.NoError(t, err)
	require.Nil(t, look(t, f, 0, 4<<10, 2))
	require.Nil(t, look(t, f, 4<<10, 4<<10, 5))
	list, _ := f.Faults()
	require.Len(t, list, 2)
	require.Equal(t, "flush", list[0].Op)
}

// TestPowerCutLikeAModel: after a cut each sector is what was last made durable; the cache is never too small.
func TestPowerCutLikeAModel(t *testing.T) {
	const size = 64 << 10
	rapid.Check(t, func(rt *rapid.T) {
		below := open(t, "ram", backstore.Options{"size": fmt.Sprint(size)})
		defer below.Close()
		s, err := backstore.OpenOver("fault", backstore.Options{"store": "a", "cache": "1MiB"}, below)
		require.NoError(rt, err)
		f := s.(*backstore.FaultStore)
		now, durable := make([]byte, size), make([]byte, size)
		for i := range rapid.IntRange(1, 30).Draw(rt, "steps") {
			off := rapid.IntRange(0, size/512-1).Draw(rt, "at") * 512
			n := rapid.IntRange(1, min(16, (size-off)/512)).Draw(rt, "sectors") * 512
			fua := rapid.Bool().Draw(rt, "fua")
			switch rapid.SampledFrom([]string{"write", "zero", "flush", "cut"}).Draw(rt, "op") {
			case "write":
				p := bytes.Repeat([]byte{byte(i + 1)}, n)
				require.NoError(rt, f.WriteAt([][]byte{p}, int64(off), fua))
				copy(now[off:], p)
			case "zero":
				require.NoError(rt, f.WriteZeroes(int64(off), int64(n), rapid.Bool().Draw(rt, "unmap"), fua))
				clear(now[off : off+n])
			case "flush":
				require.NoError(rt, f.Flush())
				copy(durable, now)
				continue
			case "cut":
				_, err := f.PowerCut()
				require.NoError(rt, err)
				copy(now, durable)
				fua = false
			}
			if fua {
				copy(durable[off:off+n], now[off:])
			}
			got := make([]byte, size)
			require.NoError(rt, f.ReadAt([][]byte{got}, 0))
			require.True(rt, bytes.Equal(now, got))
		}
	})
}

// TestSmallCache: what it cannot hold is as if the disk had written it by itself, the oldest first.
func TestSmallCache(t *testing.T) {
	f, below := written(t, backstore.Options{"cache": "4KiB"})
	put(t, f, 0, 4<<10, 2)
	put(t, f, 8<<10, 1<<10, 2)
	lost, err := f.PowerCut()
	require.NoError(t, err)
	require.EqualValues(t, 4<<10, lost)
	require.Nil(t, look(t, below, 0, 1<<10, 2), "written back by itself")
	require.Nil(t, look(t, below, 1<<10, 32<<10, 1))
	put(t, f, 1<<10, 2<<10, 2)
	put(t, f, 0, 8<<10, 3)
	lost, err = f.PowerCut()
	require.NoError(t, err)
	require.Zero(t, lost, "more than it holds goes through")
	require.Nil(t, look(t, below, 0, 8<<10, 3))
}

func TestStaleIsTheWriteBefore(t *testing.T) {
	f, _ := written(t, nil)
	require.NoError(t, f.SetRules("stale read 4KiB-8KiB"))
	require.Nil(t, look(t, f, 0, 16<<10, 1), "nothing was written since: nothing is stale")
	faults, _ := f.Faults()
	require.Empty(t, faults)
	put(t, f, 0, 16<<10, 2)
	put(t, f, 0, 16<<10, 3)
	require.Nil(t, look(t, f, 0, 4<<10, 3))
	require.Nil(t, look(t, f, 4<<10, 4<<10, 2), "the last but one")
	require.Nil(t, look(t, f, 8<<10, 8<<10, 3))
	require.NoError(t, f.Unmap(4<<10, 512))
	require.Nil(t, look(t, f, 4<<10, 512, 3), "what was unmapped is still there")
}

func TestMisplacedAnywhere(t *testing.T) {
	below := open(t, "ram", backstore.Options{"size": "64KiB"})
	defer below.Close()
	rapid.Check(t, func(rt *rapid.T) {
		f, err := backstore.OpenOver("fault", backstore.Options{"store": "a", "rules": "misplaced write", "seed": fmt.Sprint(rapid.Uint64().Draw(rt, "seed"))}, below)
		require.NoError(rt, err)
		n := rapid.IntRange(1, 63<<10).Draw(rt, "length")
		off := rapid.IntRange(0, 64<<10-n).Draw(rt, "offset")
		want := bytes.Repeat([]byte{7}, n)
		require.NoError(rt, f.WriteAt([][]byte{want}, int64(off), false))
		faults, _ := f.(*backstore.FaultStore).Faults()
		require.Len(rt, faults, 1)
		require.NotEqual(rt, int64(off), faults[0].Elsewhere)
		got := make([]byte, n)
		require.NoError(rt, below.ReadAt([][]byte{got}, faults[0].Elsewhere))
		require.Equal(rt, want, got)
	})
}

func TestRulesThatCannotBe(t *testing.T) {
	f, _ := newFaulty(t, backstore.Options{"rules": "lost flush"})
	for text, want := range map[string]string{
		"fire read":                     `rule "fire read": "fire" is no kind of fault; there are latency, stuck, error, short, torn, misplaced, stale, lost, bitflip`,
		"torn":                          `rule "torn": no operation; give read, write, zero, flush or any`,
		"torn read":                     `rule "torn read": there is no torn of a read`,
		"error erase":                   `rule "error erase": "erase" is no operation; there are read, write, zero, flush, any`,
		"error read 5":                  `rule "error read 5": 5: not a range; give 0-1MiB, 1GiB- or 4096+512`,
		"error read 8k-4k":              `rule "error read 8k-4k": 8k-4k: an empty range`,
		"error read count=1 0-4k":       `rule "error read count=1 0-4k": 0-4k: not KEY=VALUE`,
		"error read rate=2":             `rule "error read rate=2": rate=2: not a rate; give 1/1000 or 0.001`,
		"error read rate=NaN":           `rule "error read rate=NaN": rate=NaN: not a rate; give 1/1000 or 0.001`,
		"error read rate=1/0":           `rule "error read rate=1/0": rate=1/0: not a count of 1 or more`,
		"error read every=0":            `rule "error read every=0": every=0: not a count of 1 or more`,
		"error read delay=5ms":          `rule "error read delay=5ms": delay=5ms: only of latency`,
		"latency read":                  `rule "latency read": no delay; give delay=5ms, jitter=5ms or both`,
		"latency read delay=2h":         `rule "latency read delay=2h": delay=2h: not a time up to 1h0m0s; give 5ms`,
		"misplaced read by=100":         `rule "misplaced read by=100": by=100: not a multiple of 512 bytes, before or behind`,
		"bitflip read bits=65":          `rule "bitflip read bits=65": bits=65: not between 1 and 64`,
		"lost write; error read colour": `rule "error read colour": colour: not a range; give 0-1MiB, 1GiB- or 4096+512`,
		"error read colour=red":         `rule "error read colour=red": colour=red: no such key; there are rate, every, skip, count, delay, jitter, by, bits`,
	} {
		require.EqualError(t, f.SetRules(text), want)
		require.EqualError(t, backstore.Check("fault", backstore.Options{"store": "a", "rules": text}), "fault store: option rules: "+want)
	}
	require.Error(t, f.SetRules(strings.Repeat("lost write;", 65)))
	require.Error(t, f.SetRules(strings.Repeat(" ", 8<<10+1)))
	require.Equal(t, "lost flush", f.Rules(), "the old ones stay")
	require.NoError(t, f.SetRules("lost  write 4096+512;\nerror read 1GiB-;;"))
	require.Equal(t, "lost write 4096+512; error read 1GiB-", f.Rules())
	require.NoError(t, f.SetRules(f.Rules()))
}

func FuzzRules(f *testing.F) {
	for _, s := range []string{
		"bitflip read 0-1MiB rate=1/1000 bits=3", "latency any delay=5ms jitter=2ms", "misplaced write 4096+512 by=-8KiB every=2 skip=1 count=9",
		"lost flush; torn write 1GiB-", "error read 9223372036854775807+9223372036854775807",
	} {
		f.Add(s)
	}
	below, err := backstore.Open("null", nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := backstore.OpenOver("fault", backstore.Options{"store": "null", "rules": text}, below)
		if err != nil {
			return
		}
		faulty := s.(*backstore.FaultStore)
		rules := faulty.Rules()
		require.NoError(t, faulty.SetRules(rules))
		require.Equal(t, rules, faulty.Rules())
		if strings.Contains(rules, "stuck") || strings.Contains(rules, "latency") {
			return
		}
		_ = s.WriteAt([][]byte{make([]byte, 1024)}, 4096, true) // must not panic
		_ = s.ReadAt([][]byte{make([]byte, 1024)}, 4096)
		_ = s.Flush()
	})
}

func TestStoresAreWrappedByOpenOver(t *testing.T) {
	ram := open(t, "ram", backstore.Options{"size": "1MiB"})
	defer ram.Close()
	_, err := backstore.Open("fault", backstore.Options{"store": "a"})
	require.EqualError(t, err, "fault store: option store: it wraps a store, which OpenOver is given")
	_, err = backstore.OpenOver("null", nil, ram)
	require.EqualError(t, err, `store type "null": it wraps no store`)
	name, wraps := backstore.Wraps("fault", backstore.Options{"store": "a"})
	require.True(t, wraps)
	require.Equal(t, "a", name)
	_, wraps = backstore.Wraps("null", nil)
	require.False(t, wraps)
}

func TestClosingLeavesTheStoreBelowOpen(t *testing.T) {
	f, below := newFaulty(t, nil)
	require.NoError(t, f.Close())
	require.NoError(t, below.Flush())
}

// A bare store can do nothing but what every store can.
type bare struct{ backstore.Store }

func TestOptionalMethodsOverAStoreWithout(t *testing.T) {
	below := open(t, "ram", backstore.Options{"size": "4MiB"})
	defer below.Close()
	s, err := backstore.OpenOver("fault", backstore.Options{"store": "a"}, bare{below})
	require.NoError(t, err)
	f := s.(*backstore.FaultStore)
	defer f.Close()
	require.NoError(t, f.WriteAt([][]byte{bytes.Repeat([]byte{1}, 300<<10)}, 0, false))
	require.NoError(t, f.Unmap(1, 100<<10))
	require.NoError(t, f.WriteZeroes(200<<10, 99<<10, true, true))
	got := make([]byte, 300<<10)
	require.NoError(t, below.ReadAt([][]byte{got}, 0))
	require.Equal(t, 101<<10, bytes.Count(got, []byte{1}))
	allocated, n, err := f.Extent(0, 1<<20)
	require.NoError(t, err)
	require.True(t, allocated)
	require.EqualValues(t, 1<<20, n)
	require.ErrorIs(t, f.Resize(1<<20), errors.ErrUnsupported)
	require.NoError(t, f.Measure())
}

func BenchmarkFaultPassThrough4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { s, _ := newFaulty(b, nil); return s })
}

func BenchmarkFaultIdleRules4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store {
		s, _ := newFaulty(b, backstore.Options{"rules": "error any 1GiB-; bitflip any rate=0.000000001; lost flush"})
		return s
	})
}
