package verify_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A thinDisk is a memDisk that zeroes and unmaps: unmap says what becomes of the blocks.
type thinDisk struct {
	*memDisk
	zero  func(b []byte, off int64)
	unmap func(b []byte, off int64)
}

func newThin() *thinDisk {
	zeros := func(b []byte, _ int64) { clear(b) }
	return &thinDisk{newMemDisk(2<<20, 512), zeros, zeros}
}

func (d *thinDisk) WriteZeroes(_ context.Context, off, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.zero(d.data[off:off+n], off)
	return d.fail
}

func (d *thinDisk) Unmap(_ context.Context, off, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unmap(d.data[off:off+n], off)
	return d.fail
}

func (d *thinDisk) verify(t *testing.T, p verify.Plan) verify.Result {
	t.Helper()
	require.NoError(t, p.Check(int64(len(d.data)), d.bs))
	res, err := verify.New([]verify.Disk{d, d}, p, nil).Run(t.Context())
	require.NoError(t, err)
	return res
}

// thinPlan zeroes and unmaps much in both modes.
func thinPlan(overlap bool) verify.Plan {
	p := plan(verify.Range{Start: 0, End: 256 << 10})
	p.RequestBytes = 16 << 10
	p.Zero, p.Unmap, p.UnmapZeroes, p.Overlap = 30, 30, true, overlap
	return p
}

func eachMode(t *testing.T, f func(t *testing.T, p verify.Plan)) {
	t.Run("runs", func(t *testing.T) { f(t, thinPlan(false)) })
	t.Run("overlap", func(t *testing.T) { f(t, thinPlan(true)) })
}

// Whatever a disk makes of UNMAP within what it says of itself is right, and nothing else.
func TestUnmappedBlocksReadAsTheDiskSays(t *testing.T) {
	half := func(b []byte, off int64) { // what is not aligned to 4 KiB stays mapped
		from, to := min((off+4095)&^4095-off, int64(len(b))), (off+int64(len(b)))&^4095-off
		clear(b[from:max(from, to)])
	}
	junk := func(b []byte, _ int64) { copy(b, bytes.Repeat([]byte("junk"), len(b)/4)) }
	for _, row := range []struct {
		name   string
		unmap  func([]byte, int64)
		zeroes bool
		good   bool
		keeps  bool
	}{
		{"zeros", func(b []byte, _ int64) { clear(b) }, true, true, false},
		{"kept", func([]byte, int64) {}, true, true, true},
		{"kept at the edges", half, true, true, true},
		{"anything", junk, false, true, false},
		{"junk instead of zeros", junk, true, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, p verify.Plan) {
				p.UnmapZeroes = row.zeroes
				d := newThin()
				d.unmap = row.unmap
				res := d.verify(t, p)
				assert.Equal(t, row.good, res.Wrong == 0, res.Kinds)
				assert.NotZero(t, res.ZeroedBytes)
				assert.NotZero(t, res.UnmappedBytes)
				assert.Equal(t, row.keeps && !p.Overlap, res.KeptBytes > 0)
				if !row.good {
					assert.NotZero(t, res.Kinds[stamp.Foreign], res.Kinds)
				}
			})
		})
	}
}

func TestLostZeroingIsFound(t *testing.T) {
	eachMode(t, func(t *testing.T, p verify.Plan) {
		d := newThin()
		n := 0
		d.zero = func(b []byte, _ int64) {
			if n++; n < 3 {
				clear(b)
			}
		}
		res := d.verify(t, p)
		require.NotZero(t, res.Wrong)
		assert.Equal(t, res.Wrong, res.Kinds[stamp.Stale], res.Kinds)
		if !p.Overlap {
			assert.Contains(t, res.Bad[0].Text, "expected zeros, found generation 1: an older write of this sector (lost zeroing)")
			assert.Equal(t, make([]byte, 512), res.Bad[0].Expected)
		}
	})
}

// A write that is lost over zeros is not taken for zeroing, nor zeros of the neighbour's for one's own.
func TestZerosWhereNoneWereWrittenAreFound(t *testing.T) {
	eachMode(t, func(t *testing.T, p verify.Plan) {
		d := newThin()
		d.zero = func(b []byte, off int64) { // one sector too many
			clear(d.data[off:min(off+int64(len(b))+512, int64(len(d.data)))])
		}
		res := d.verify(t, p)
		require.NotZero(t, res.Wrong)
		assert.NotZero(t, res.Kinds[stamp.Zeros], res.Kinds)
	})
}

// What an earlier run zeroed and unmapped is known to a later one by the plan alone.
func TestZerosAreCheckedLater(t *testing.T) {
	d, p := newThin(), thinPlan(false)
	require.Zero(t, d.verify(t, p).Wrong)
	p.CheckOnly, p.Generation = true, 2
	require.Zero(t, d.verify(t, p).Wrong)
	p.Zero, p.Unmap = 0, 0
	require.NotZero(t, d.verify(t, p).Wrong)
}

// A losing disk loses its session now and then: the request then ends with an unknown outcome, and is done at once, or
// by the time that the next one is, or not at all.
type losing struct {
	*thinDisk
	mu   sync.Mutex
	rng  *rand.Rand
	late []func()
}

func (d *losing) lose(ctx context.Context, do func(context.Context) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, do := range d.late {
		do()
	}
	d.late = nil
	switch d.rng.IntN(12) {
	case 0:
		return verify.ErrOutcomeUnknown
	case 1:
		_ = do(ctx)
		return verify.ErrOutcomeUnknown
	case 2:
		d.late = append(d.late, func() { _ = do(ctx) })
		return verify.ErrOutcomeUnknown
	}
	return do(ctx)
}

func (d *losing) WriteAt(ctx context.Context, p []byte, off int64) error {
	own := bytes.Clone(p)
	return d.lose(ctx, func(ctx context.Context) error { return d.thinDisk.WriteAt(ctx, own, off) })
}

func (d *losing) WriteZeroes(ctx context.Context, off, n int64) error {
	return d.lose(ctx, func(ctx context.Context) error { return d.thinDisk.WriteZeroes(ctx, off, n) })
}

func (d *losing) Unmap(ctx context.Context, off, n int64) error {
	return d.lose(ctx, func(ctx context.Context) error { return d.thinDisk.Unmap(ctx, off, n) })
}

func (d *losing) ReadAt(ctx context.Context, p []byte, off int64) error {
	d.mu.Lock()
	for _, do := range d.late {
		do()
	}
	d.late = nil
	d.mu.Unlock()
	return d.thinDisk.ReadAt(ctx, p, off)
}

func TestUnknownOutcomesAreNotBlamed(t *testing.T) {
	for seed := range uint64(3) {
		d := newThin()
		p := thinPlan(true)
		p.RequestBytes, p.Seed = 8<<10, seed
		require.NoError(t, p.Check(2<<20, 512))
		var disks []verify.Disk
		for job := range uint64(2) {
			disks = append(disks, &losing{thinDisk: d, rng: rand.New(rand.NewPCG(seed, job))})
		}
		res, err := verify.New(disks, p, nil).Run(t.Context())
		require.NoError(t, err)
		assert.Zero(t, res.Wrong, res.Bad)
		assert.NotZero(t, res.Unknown)
	}
}

// But a write that was acknowledged and lost among them is found.
func TestLostWritesAmongUnknownOutcomesAreFound(t *testing.T) {
	d := newThin()
	d.lose(func(n int) bool { return n > 5 })
	p := thinPlan(true)
	p.Ranges = []verify.Range{{Start: at - 8192, End: at + 1<<17}} // in its first sixteenth, where half of the writes go
	p.Runs, p.Zero, p.Unmap = 10, 0, 0
	require.NoError(t, p.Check(2<<20, 512))
	res, err := verify.New([]verify.Disk{&losing{thinDisk: d, rng: rand.New(rand.NewPCG(1, 1))}}, p, nil).Run(t.Context())
	require.NoError(t, err)
	require.NotZero(t, res.Wrong)
	assert.EqualValues(t, at/512, res.Bad[0].Want.Sector)
}

// A restarting disk loses what was not flushed, as often as it is told to, and says so at the next flush.
type restarting struct {
	*volatile
	restarts int
}

func (d *restarting) Flush(ctx context.Context) error {
	if d.restarts == 0 {
		return d.volatile.Flush(ctx)
	}
	d.restarts--
	d.powerCut()
	return verify.ErrFlushDoubtful
}

func TestDoubtfulWritesAreWrittenAgain(t *testing.T) {
	for restarts, want := range map[int]int{0: 0, 1: 1, 3: 3} {
		d := &restarting{newVolatile(1 << 16), restarts}
		p := plan(verify.Range{Start: 0, End: 1 << 16})
		p.RequestBytes, p.Mixed = 16<<10, false
		require.NoError(t, p.Check(1<<16, 512))
		res, err := verify.New([]verify.Disk{d}, p, nil).Run(t.Context())
		require.NoError(t, err)
		assert.Zero(t, res.Wrong, res.Kinds)
		assert.Equal(t, want, res.Rewritten)
		assert.False(t, res.CacheDoubtful)
		assert.EqualValues(t, (2+want)<<16, res.WrittenBytes)
	}
	d := &restarting{newVolatile(1 << 16), 4}
	p := plan(verify.Range{Start: 0, End: 1 << 16})
	p.Runs = 1
	require.NoError(t, p.Check(1<<16, 512))
	res, err := verify.New([]verify.Disk{d}, p, nil).Run(t.Context())
	require.NoError(t, err)
	assert.True(t, res.CacheDoubtful, "it goes on, and says so")
	assert.NotZero(t, res.Wrong)
}

// Each disk answers for what was written through it.
func TestAllDisksAreFlushed(t *testing.T) {
	first, second := newVolatile(1<<16), &restarting{newVolatile(1 << 16), 1}
	second.volatile.memDisk, second.volatile.durable = first.memDisk, first.durable
	p := plan(verify.Range{Start: 0, End: 1 << 16})
	p.Runs = 1
	require.NoError(t, p.Check(1<<16, 512))
	res, err := verify.New([]verify.Disk{first, second}, p, nil).Run(t.Context())
	require.NoError(t, err)
	assert.Zero(t, res.Wrong, res.Kinds)
	assert.Equal(t, 1, res.Rewritten)
}
