package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi/initiator"
)

// A Queue keeps requests of one disk under way, as an initiator.Batch does.
type Queue interface {
	ReadAt(p []byte, off int64, tag uint64) error
	WriteAt(p []byte, off int64, tag uint64) error
	Submit(ctx context.Context) error
	Wait(ctx context.Context, done []initiator.Completion, least int) (int, error)
	Close()
}

// A Disk is what one job works on. Sizes are in bytes.
type Disk struct {
	SizeBytes   int64
	BlockSize   int
	MaxTransfer int // the longest request of a Queue: longer ones are cut, and timed as one
	// Open makes a Queue for depth requests, which belongs to one goroutine.
	Open func(depth int) (Queue, error)
}

// A Side is what was measured of one direction.
type Side struct {
	IOs, Bytes int64
	Latency    *hdrhistogram.Histogram // nanoseconds, from when a request is made to when its end is known
	handing    time.Duration           // the part of all latencies in which requests were handed over
}

// MeanHanding is how long a request took to be handed over (fio's slat), of its latency.
func (s *Side) MeanHanding() time.Duration {
	if s.IOs == 0 {
		return 0
	}
	return s.handing / time.Duration(s.IOs)
}

func newSides() [2]Side {
	return [2]Side{Read: {Latency: newHist(digits)}, Write: {Latency: newHist(digits)}}
}

func (s *Side) merge(from *Side) {
	s.IOs += from.IOs
	s.Bytes += from.Bytes
	s.handing += from.handing
	s.Latency.Merge(from.Latency)
}

// A Result is what was measured.
type Result struct {
	Sides   [2]Side // by Direction
	Elapsed time.Duration
	CPU     time.Duration // of this process
}

// A Run measures one target, in one turn or more.
type Run struct {
	plan    Plan
	jobs    []*job
	written *written // nil unless Verify
	series  series
	total   Result
	cpu     func() time.Duration
	stopped atomic.Bool
}

// New prepares a run with one job for each disk; they are the same disk, by several sessions. cpu is the time that this
// process has used of its processors.
func New(disks []Disk, p Plan, cpu func() time.Duration) (*Run, error) {
	if len(disks) == 0 {
		return nil, errors.New("no disk")
	}
	if err := p.Check(len(disks), &disks[0]); err != nil {
		return nil, err
	}
	r := &Run{plan: p, cpu: cpu, series: series{width: firstWindow}, total: Result{Sides: newSides()}}
	if p.Verify {
		r.written = newWritten(p.units())
	}
	for i := range disks {
		j, err := r.newJob(&disks[i], i, len(disks))
		if err != nil {
			r.Close()
			return nil, err
		}
		r.jobs = append(r.jobs, j)
	}
	return r, nil
}

// Close ends what is under way.
func (r *Run) Close() {
	for _, j := range r.jobs {
		j.q.Close()
	}
}

// Live tells how the run goes, from any goroutine.
func (r *Run) Live() Live { return r.series.live() }

// Total is the sum of the turns.
func (r *Run) Total() *Result { return &r.total }

// Series is how a direction went over the time measured, without the ramps and what was between turns.
func (r *Run) Series(d Direction) []Point { return r.series.points(d, r.total.Elapsed) }

// Stop has the turn that runs end early: no more requests are made, and those under way end. Further turns end at once.
func (r *Run) Stop() { r.stopped.Store(true) }

// Turn runs all jobs for the plan's ramp and time, and until the last request has ended. An error of one ends all. It is
// the disk's or ctx's, or holds a MismatchError.
func (r *Run) Turn(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start, base := time.Now(), r.total.Elapsed
	res := &Result{Sides: newSides()}
	var wg sync.WaitGroup
	for _, j := range r.jobs {
		wg.Go(func() {
			if err := j.turn(ctx, start, base); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !r.stopped.Load() {
		res.Elapsed = r.plan.Time // also where nothing ended in the last of it
	}
	for _, j := range r.jobs {
		for d := range res.Sides {
			res.Sides[d].merge(&j.sides[d])
		}
		res.Elapsed = max(res.Elapsed, j.end-r.plan.Ramp)
	}
	res.CPU = r.cpu() - r.jobs[0].cpuAtRamp
	for d := range r.total.Sides {
		r.total.Sides[d].merge(&res.Sides[d])
	}
	r.total.Elapsed += res.Elapsed
	r.total.CPU += res.CPU
	return res, nil
}

// Check reads back all that was written and compares it. It returns how many bytes were right; an error as of Turn.
func (r *Run) Check(ctx context.Context) (int64, error) {
	if r.written == nil {
		return 0, nil
	}
	return r.jobs[0].readBack(ctx)
}

// readBack keeps as many reads under way as the job has slots.
func (j *job) readBack(ctx context.Context) (int64, error) {
	p := &j.run.plan
	unitBytes, units := int64(p.MinBytes), p.units()
	var unit, right int64
	for {
		for len(j.free) > 0 {
			at, n := j.run.written.next(unit, int64(p.MaxBytes)/unitBytes, units)
			if n == 0 {
				break
			}
			unit = at + n
			i := j.take()
			s := &j.slots[i]
			*s = slot{buf: s.buf, off: p.OffsetBytes + at*unitBytes, n: int(n * unitBytes)}
			stamp.Poison(s.buf[:s.n])
			if err := j.start(i); err != nil {
				return right, err
			}
		}
		if j.idle() {
			return right, nil
		}
		n, err := j.q.Wait(ctx, j.done, 1)
		if err != nil {
			return right, err
		}
		for _, c := range j.done[:n] {
			s, err := j.ended(c)
			if err != nil {
				return right, err
			}
			if s == nil {
				continue
			}
			if err := p.checkStamps(&j.check, s.buf[:s.n], s.off); err != nil {
				return right, err
			}
			right += int64(s.n)
		}
	}
}
