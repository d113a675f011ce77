package verify

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// A Disk is what is verified. Its methods may be called from many goroutines.
type Disk interface {
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64) error
	Flush(ctx context.Context) error
	BlockSize() int
}

// Errors of a Disk that goes on when its session is lost.
var (
	// ErrOutcomeUnknown: whether the request was carried out, in whole or in part, is not known. It is carried out no more
	// once a later request of the same Disk has succeeded. Only with Overlap does a Run go on after it.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrFlushDoubtful: the flush succeeded, but what was written before may be lost with the disk's cache.
	ErrFlushDoubtful = errors.New("what was written before the flush may be lost")
)

// A Runner runs a plan once. Each disk is a way to the same disk: a job with requests of its own in flight.
type Runner struct {
	disks []Disk
	plan  Plan
	*recorder
	keeper
	deadline time.Time   // zero: none
	doubtful atomic.Bool // a flush of this run was
	rewrites int         // of this run
}

// maxRewrites bounds how often a run is written again after doubtful flushes: sessions may be lost for ever.
const maxRewrites = 3

// New is for a plan that Check found good; tick is told how many bytes were written and read, by one worker at a time, and
// may be nil.
func New(disks []Disk, p Plan, tick func(doneBytes int64)) *Runner {
	r := &Runner{disks: disks, plan: p, recorder: newRecorder(&p, len(disks))}
	if tick != nil {
		r.tick = tick
	}
	r.pos.Run = 1
	if p.Time > 0 {
		r.deadline = r.start.Add(p.Time)
	}
	return r
}

// Heat is the map of what Run has found; for when Run has returned.
func (r *Runner) Heat() *Heat { return r.heat }

// TotalBytes is how much Run writes and reads, 0 if the time decides that.
func (p *Plan) TotalBytes() int64 {
	switch {
	case p.Time > 0:
		return 0
	case p.CheckOnly:
		return p.sizeBytes()
	case p.Overlap:
		return p.overlapBytes()
	}
	return 2 * p.sizeBytes() * int64(p.Runs)
}

// Run writes, reads and compares. Mismatches are in the result; err is about the disk or ctx, and what was found until
// then is in the result too.
func (r *Runner) Run(ctx context.Context) (Result, error) {
	err := r.runs(ctx)
	return r.res, err
}

func (r *Runner) runs(ctx context.Context) error {
	l := newLayout(r.plan.Ranges, int64(r.plan.RequestBytes))
	switch {
	case r.plan.CheckOnly:
		r.res.Runs = 1
		r.pos.Reading, r.pos.Slots = true, l.slots
		return r.check(ctx, l, r.plan.Generation)
	case r.plan.Overlap:
		return r.overlap(ctx)
	}
	for r.pos.Reading || (r.plan.Runs == 0 || r.pos.Run <= uint64(r.plan.Runs)) && !r.timeUp() {
		r.res.Runs = int(r.pos.Run)
		if err := r.pass(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// pass does what comes next: it writes a generation, or reads it.
func (r *Runner) pass(ctx context.Context, l *layout) error {
	if !r.pos.Reading {
		slots, err := r.write(ctx, l, r.pos.Run)
		if err == nil && !r.again() {
			r.pos.Reading, r.pos.Slots, r.pos.Done = true, slots, 0
		}
		return err
	}
	if err := r.check(ctx, l, r.pos.Run); err != nil {
		return err
	}
	r.pos.Run, r.pos.Reading, r.pos.Slots, r.pos.Done = r.pos.Run+1, false, 0, 0
	r.rewrites = 0
	return nil
}

// again is whether a run that was written must be written anew, from its beginning: what is doubtful proves nothing about
// the disk. If that does not help, the run is checked as it is, and the result says so.
func (r *Runner) again() bool {
	if !r.doubtful.Swap(false) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rewrites == maxRewrites || !r.deadline.IsZero() && time.Now().After(r.deadline) {
		r.res.CacheDoubtful = true
		return false
	}
	r.rewrites++
	r.res.Rewritten++
	r.pos.Done = 0
	return true
}

// flush flushes for every disk: each answers for what was written through it. It notes whether one was in doubt.
func (r *Runner) flush(ctx context.Context) error {
	for _, d := range r.disks {
		if err := d.Flush(ctx); errors.Is(err, ErrFlushDoubtful) {
			r.doubtful.Store(true)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// timeUp is whether the plan's time has passed.
func (r *Runner) timeUp() bool {
	if r.deadline.IsZero() || time.Now().Before(r.deadline) {
		return false
	}
	r.cutShort()
	return true
}

func (r *Runner) cutShort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.TimeUp = true
}

// writeOrder is the order in which generation g is written; readOrder that in which the first slots of it are read, which
// is another. Both are the order of the disk if the plan says so.
func (r *Runner) writeOrder(l *layout, g uint64) func(int64) int64 {
	if r.plan.Sequential {
		return func(i int64) int64 { return i }
	}
	p := newPermutation(l.slots, r.plan.Seed, 2*g)
	return p.at
}

func (r *Runner) readOrder(l *layout, g uint64, slots int64) func(int64) int64 {
	written := r.writeOrder(l, g)
	if r.plan.Sequential {
		return written
	}
	p := newPermutation(slots, r.plan.Seed, 2*g+1)
	return func(i int64) int64 { return written(p.at(i)) }
}

func (r *Runner) cursor(l *layout, order func(int64) int64, salt uint64) *cursor {
	c := newCursor(l, r.workers())
	c.slotOf, c.cutter, c.next = order, r.cutter(l, salt), r.pos.Done
	return c
}

func (r *Runner) cutter(l *layout, salt uint64) cutter {
	c := cutter{most: l.bytes, seed: r.plan.Seed, salt: salt}
	if r.plan.Mixed {
		c.unit = max(r.disks[0].BlockSize(), stamp.SectorSize)
	}
	return c
}

// write stamps the ranges with generation g and flushes; it returns how many slots it has written, in writeOrder.
// With a deadline it stops when half of the time left is over: what was written is to be read too.
func (r *Runner) write(ctx context.Context, l *layout, g uint64) (int64, error) {
	start := time.Now()
	defer func() { r.res.WriteSeconds += time.Since(start).Seconds() }()
	c := r.cursor(l, r.writeOrder(l, g), 2*g)
	until := r.deadline
	if !until.IsZero() {
		until = start.Add(until.Sub(start) / 2)
	}
	err := r.each(ctx, c, until, func(ctx context.Context, d Disk, p []byte, q Range) error {
		stamp.Fill(p, r.id(q, g))
		if err := d.WriteAt(ctx, p, q.Start); err != nil {
			return err
		}
		r.wrote(q)
		return r.zero(ctx, d, c.fateOf(&r.plan, q.Start), q)
	})
	if err == nil {
		err = r.flush(ctx)
	}
	return c.done(), r.stopped(ctx, c.done(), err)
}

// check reads the slots written, cut and ordered unlike they were, into poisoned buffers.
func (r *Runner) check(ctx context.Context, l *layout, g uint64) error {
	start := time.Now()
	defer func() { r.res.ReadSeconds += time.Since(start).Seconds() }()
	c := r.cursor(l, r.readOrder(l, g, r.pos.Slots), 2*g+1)
	c.count = r.pos.Slots
	writing := r.cutter(l, 2*g) // as write had it
	err := r.each(ctx, c, r.deadline, func(ctx context.Context, d Disk, p []byte, q Range) error {
		stamp.Poison(p)
		if err := d.ReadAt(ctx, p, q.Start); err != nil {
			return err
		}
		if r.plan.zeroes() {
			r.compareFates(&writing, l, p, q, g)
		} else {
			r.compare(p, r.id(q, g))
		}
		r.read(q)
		return nil
	})
	return r.stopped(ctx, c.done(), err)
}

func (r *Runner) id(q Range, g uint64) stamp.ID {
	return stamp.ID{Seed: r.plan.Seed, Sector: uint64(q.Start / stamp.SectorSize), Generation: g}
}

// compare records every wrong sector of p.
func (r *Runner) compare(p []byte, id stamp.ID) {
	var c stamp.Checker
	for m := c.Check(p, id); m != nil; m = c.Check(p, id) {
		r.bad(m)
		n := m.Want.Sector + 1 - id.Sector
		p, id.Sector = p[n*stamp.SectorSize:], m.Want.Sector+1
	}
}

func (r *Runner) workers() int { return len(r.disks) * r.plan.Depth }

// each does every request of a cursor, with a worker for each request that may be in flight; the first error ends it.
// At a time, if it is not zero, no more are begun.
func (r *Runner) each(ctx context.Context, c *cursor, until time.Time, do func(context.Context, Disk, []byte, Range) error) error {
	return r.work(ctx, func(ctx context.Context, worker int, d Disk, buf []byte) error {
		for ctx.Err() == nil {
			if !until.IsZero() && time.Now().After(until) {
				c.stop()
				r.cutShort()
			}
			q, ok := c.take(worker)
			if !ok {
				return nil
			}
			if err := do(ctx, d, buf[:q.Len()], q); err != nil {
				return err
			}
			if err := r.due(ctx, c.done); err != nil {
				return err
			}
		}
		return nil
	})
}

// work runs the workers, each with its disk and a buffer of the request size, until all have ended.
func (r *Runner) work(ctx context.Context, do func(ctx context.Context, worker int, d Disk, buf []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range r.workers() {
		wg.Go(func() {
			if err := do(ctx, i, r.disks[i/r.plan.Depth], make([]byte, r.plan.RequestBytes)); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
