package verify

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// Overlapping writers and readers go over the ranges window by window, because what may be read of each sector must be
// remembered: windowBytes of disk take 4.5 MB. Each window is filled, then written and read at random for twice its size each,
// and read as a whole when all is quiet and flushed. What a later window does to an earlier one is not seen: runs
// without Overlap see that.
const (
	windowBytes  = 16 << 20
	overlapTimes = 2
)

func (p *Plan) overlapBytes() int64 { return p.sizeBytes() * (2 + 2*overlapTimes) * int64(p.Runs) }

// overlap runs every window, in a random order, runs times.
func (r *Runner) overlap(ctx context.Context) error {
	start := time.Now()
	defer func() { // reads and writes go on at once, so that each took all of the time
		took := time.Since(start).Seconds()
		r.res.WriteSeconds, r.res.ReadSeconds = took, took
	}()
	l := newLayout(r.plan.Ranges, max(windowBytes/int64(r.plan.RequestBytes), 1)*int64(r.plan.RequestBytes))
	for ; r.plan.Runs == 0 || r.pos.Run <= uint64(r.plan.Runs); r.pos.Run, r.pos.Done = r.pos.Run+1, 0 {
		r.res.Runs = int(r.pos.Run)
		order := r.writeOrder(l, r.pos.Run)
		for r.pos.Done < l.slots {
			if r.timeUp() {
				return nil
			}
			w := &window{Runner: r, Range: l.slot(order(r.pos.Done)), salt: uint64(r.pos.Done)<<32 ^ r.pos.Run}
			w.history = newHistory(int(w.Len()/stamp.SectorSize), r.pos.Clock)
			if err := w.run(ctx); err != nil {
				return r.stopped(ctx, r.pos.Done, err)
			}
			r.pos.Done, r.pos.Clock = r.pos.Done+1, w.history.now
			r.settle()
			if err := r.due(ctx, func() int64 { return r.pos.Done }); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle notes that a window was checked although its flush was doubtful: it cannot be done again.
func (r *Runner) settle() {
	if r.doubtful.Swap(false) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.res.CacheDoubtful = true
	}
}

// A window is a part of the disk with its history.
type window struct {
	*Runner
	Range
	history *history
	salt    uint64
}

func (w *window) run(ctx context.Context) error {
	if err := w.all(ctx, w.write); err != nil {
		return err
	}
	if err := w.mix(ctx); err != nil {
		return err
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	return w.all(ctx, w.read)
}

// all does one thing with every request of the window.
func (w *window) all(ctx context.Context, do func(context.Context, Disk, []byte, Range, *reading) error) error {
	c := newCursor(newLayout([]Range{w.Range}, int64(w.plan.RequestBytes)), w.workers())
	return w.work(ctx, func(ctx context.Context, worker int, d Disk, buf []byte) error {
		var note reading
		for q, ok := c.take(worker); ok && ctx.Err() == nil; q, ok = c.take(worker) {
			if err := do(ctx, d, buf[:q.Len()], q, &note); err != nil {
				return err
			}
		}
		return nil
	})
}

// mix has every worker write, zero, unmap and read where it likes.
func (w *window) mix(ctx context.Context) error {
	var left atomic.Int64
	left.Store(2 * overlapTimes * w.Len())
	return w.work(ctx, func(ctx context.Context, worker int, d Disk, buf []byte) error {
		rng := rand.New(rand.NewPCG(w.plan.Seed^uint64(w.Start), w.salt^uint64(worker)<<48))
		var note reading
		for ctx.Err() == nil && left.Load() > 0 && !w.timeUp() {
			q := w.pick(rng, d.BlockSize())
			left.Add(-q.Len())
			do := w.read
			if rng.IntN(2) == 0 {
				do = w.change(w.plan.draw(rng.IntN(100)))
			}
			if err := do(ctx, d, buf[:q.Len()], q, &note); err != nil {
				return err
			}
		}
		return nil
	})
}

// pick is a request somewhere in the window. Half of them lie in its first sixteenth, so that they meet.
func (w *window) pick(rng *rand.Rand, blockSize int) Range {
	unit := max(blockSize, stamp.SectorSize)
	n := w.plan.RequestBytes
	if w.plan.Mixed {
		n = mixedSize(rng, unit, n)
	}
	size := min(int64(n), w.Len())
	places := (w.Len()-size)/int64(unit) + 1
	if rng.IntN(2) == 0 {
		places = max(places/16, 1)
	}
	start := w.Start + rng.Int64N(places)*int64(unit)
	return Range{start, start + size}
}

// sectors are where in the history a request lies.
func (w *window) sectors(q Range) (first, n int) {
	return int((q.Start - w.Start) / stamp.SectorSize), int(q.Len() / stamp.SectorSize)
}

// write writes a generation of its own, unless too many others write there.
func (w *window) write(ctx context.Context, d Disk, p []byte, q Range, note *reading) error {
	return w.change(written)(ctx, d, p, q, note)
}

// change makes a write, or zeroing, or unmapping.
func (w *window) change(f fate) func(context.Context, Disk, []byte, Range, *reading) error {
	return func(ctx context.Context, d Disk, p []byte, q Range, _ *reading) error {
		first, n := w.sectors(q)
		g, ok := w.history.beginWrite(first, n, w.leaves(f))
		if !ok {
			return nil
		}
		err := w.do(ctx, d, f, p, q, g)
		sure := err == nil && f != unmapped
		if errors.Is(err, ErrOutcomeUnknown) {
			w.unknown()
			err = d.ReadAt(ctx, p[:d.BlockSize()], q.Start) // after which it is over
		}
		if err == nil {
			w.history.endWrite(first, n, g, sure)
		}
		return err
	}
}

// leaves is what a sector is after what was done to it.
func (w *window) leaves(f fate) content {
	switch {
	case f == written:
		return stamped
	case f == unmapped && !w.plan.UnmapZeroes:
		return anything
	}
	return zeros
}

func (w *window) do(ctx context.Context, d Disk, f fate, p []byte, q Range, g uint64) error {
	if f != written {
		return w.zero(ctx, d, f, q)
	}
	stamp.Fill(p, w.id(q, g))
	if err := d.WriteAt(ctx, p, q.Start); err != nil {
		return err
	}
	w.wrote(q)
	return nil
}

// read reads and asks the history about each sector.
func (w *window) read(ctx context.Context, d Disk, p []byte, q Range, note *reading) error {
	first, n := w.sectors(q)
	stamp.Poison(p)
	w.history.beginRead(note, first, n)
	if err := d.ReadAt(ctx, p, q.Start); err != nil {
		return err
	}
	var c stamp.Checker
	for i := range n {
		if m := w.judge(&c, note, i, p[i*stamp.SectorSize:(i+1)*stamp.SectorSize], w.id(q, 0).Sector+uint64(i)); m != nil {
			w.bad(m)
		}
	}
	w.recorder.read(q)
	return nil
}

// judge is what is wrong with a sector that was read, nil if nothing.
func (w *window) judge(c *stamp.Checker, note *reading, i int, got []byte, sector uint64) *stamp.Mismatch {
	want := stamp.ID{Seed: w.plan.Seed, Sector: sector}
	found, _, whole := c.Parse(got)
	switch {
	case !whole && stamp.IsZeros(got):
		found = want
		found.Generation = stamp.Zeroed
	case !whole:
		return w.damaged(c, note, i, got, want)
	case found.Seed != want.Seed || found.Sector != want.Sector:
		if w.history.open(note, i) {
			return nil
		}
		want.Generation = w.history.newest(note, i)
		return c.Check(got, want)
	}
	v := w.history.endRead(note, i, found.Generation)
	if v.ok {
		return nil
	}
	want.Generation = v.newest
	m := c.Check(got, want)
	if v.begun {
		m.Kind = stamp.Stale // whatever its number: it is superseded
	}
	return m
}

// damaged is what is wrong with a sector that is no whole stamp: with the write that it is nearest to of those that
// could be there, or else with the newest of them.
func (w *window) damaged(c *stamp.Checker, note *reading, i int, got []byte, want stamp.ID) *stamp.Mismatch {
	if w.history.open(note, i) {
		return nil
	}
	maybe := w.history.candidates(note, i)
	if gens, ok := stamp.Mixture(got, want.Seed, want.Sector, maybe); ok && w.history.allows(note, i, gens) {
		w.mixture()
		return nil
	}
	for _, g := range maybe {
		want.Generation = g
		if m := c.Check(got, want); m.Kind == stamp.BitFlip {
			return m
		}
	}
	want.Generation = w.history.newest(note, i)
	return c.Check(got, want)
}
