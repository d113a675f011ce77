package bench

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi/initiator"
)

// A job is one goroutine's share of a run: its own queue, requests and counts. It shares with the others what is
// written, and the series, which it adds to once a window.
type job struct {
	run   *Run
	q     Queue
	piece int // bytes that the queue takes at once
	rng   *rand.Rand
	next  int64 // unit, of sequential requests
	slots []slot
	free  []int
	fresh []int // added in this round
	done  []initiator.Completion
	check stamp.Checker

	// Of the turn. Times count from its start.
	began     time.Time
	base      time.Duration // of the series
	sides     [2]Side
	now       window // since windowAt
	windowAt  time.Duration
	end       time.Duration // of the last request
	cpuAtRamp time.Duration
	measuring bool
}

// A slot is one request.
type slot struct {
	buf    []byte
	off    int64
	n      int // bytes
	parts  int // under way
	write  bool
	check  bool          // what is read has been written before
	start  time.Duration // when it was made
	handed time.Duration // when it had been handed over
}

func (r *Run) newJob(d *Disk, i, jobs int) (*job, error) {
	p := &r.plan
	piece := max(min(d.MaxTransfer, p.MaxBytes)/d.BlockSize, 1) * d.BlockSize
	parts := p.Depth * ((p.MaxBytes + piece - 1) / piece)
	q, err := d.Open(parts)
	if err != nil {
		return nil, err
	}
	j := &job{
		run: r, q: q, piece: piece, rng: rand.New(rand.NewPCG(p.Seed, uint64(i))),
		next:  p.units() / int64(jobs) * int64(i), // sequential jobs start apart
		slots: make([]slot, p.Depth), free: make([]int, 0, p.Depth), fresh: make([]int, 0, p.Depth),
		done: make([]initiator.Completion, parts), sides: newSides(),
	}
	for d := range j.now.lat {
		j.now.lat[d] = newHist(fewDigits)
	}
	for s := range j.slots {
		j.slots[s].buf = make([]byte, p.MaxBytes)
		j.free = append(j.free, s)
		if p.ReadPercent < 100 { // data that does not compress
			for b := j.slots[s].buf; len(b) >= 8; b = b[8:] {
				x := j.rng.Uint64()
				for k := range 8 {
					b[k] = byte(x >> (8 * k))
				}
			}
		}
	}
	return j, nil
}

func (j *job) idle() bool { return len(j.free) == len(j.slots) }

// take is the index of a slot that was free.
func (j *job) take() int {
	i := j.free[len(j.free)-1]
	j.free = j.free[:len(j.free)-1]
	return i
}

// turn works from start on for the plan's ramp and time.
func (j *job) turn(ctx context.Context, start time.Time, base time.Duration) error {
	j.began, j.base, j.end, j.windowAt, j.measuring = start, base, 0, 0, false
	for d := range j.sides {
		j.sides[d] = Side{Latency: j.sides[d].Latency}
		j.sides[d].Latency.Reset()
	}
	for {
		busy, err := j.round(ctx)
		if err != nil || !busy {
			j.flush()
			return err
		}
	}
}

// round fills the queue, hands it over and waits for the first end. It tells whether there is more to do.
func (j *job) round(ctx context.Context) (bool, error) {
	p := &j.run.plan
	now := time.Since(j.began)
	j.measure(now)
	more := now < p.Ramp+p.Time && !j.run.stopped.Load()
	for len(j.free) > 0 && (more || j.end == 0) { // once in any case, however late we come to run
		i := j.take()
		j.fresh = append(j.fresh, i)
		j.choose(&j.slots[i])
		j.slots[i].start = now
		if err := j.start(i); err != nil {
			return false, err
		}
	}
	if j.idle() {
		return false, nil
	}
	if err := j.q.Submit(ctx); err != nil {
		return false, err
	}
	handed := time.Since(j.began)
	for _, i := range j.fresh {
		j.slots[i].handed = handed
	}
	j.fresh = j.fresh[:0]
	n, err := j.q.Wait(ctx, j.done, 1)
	if err != nil {
		return false, err
	}
	return true, j.collect(j.done[:n], time.Since(j.began))
}

// measure ends the ramp when it is time.
func (j *job) measure(now time.Duration) {
	if !j.measuring && now >= j.run.plan.Ramp {
		j.measuring, j.windowAt, j.cpuAtRamp = true, now, j.run.cpu()
	}
}

// choose makes up a request.
func (j *job) choose(s *slot) {
	p := &j.run.plan
	units, unitBytes := p.units(), int64(p.MinBytes)
	n := 1 + j.rng.Int64N(int64(p.MaxBytes)/unitBytes)
	var at int64
	if p.Random {
		at = j.rng.Int64N(units - n + 1)
	} else {
		if j.next > units-n {
			j.next = 0
		}
		at = j.next
		j.next += n
	}
	write := p.ReadPercent == 0 || p.ReadPercent < 100 && j.rng.IntN(100) >= p.ReadPercent
	*s = slot{buf: s.buf, off: p.OffsetBytes + at*unitBytes, n: int(n * unitBytes), write: write}
	if j.run.written == nil {
		return
	}
	if write {
		stamp.Fill(s.buf[:s.n], p.stampID(s.off))
	} else if s.check = j.run.written.all(at, n); s.check {
		stamp.Poison(s.buf[:s.n])
	}
}

// start adds the request of a slot to the queue, in as many parts as that wants.
func (j *job) start(i int) error {
	s := &j.slots[i]
	for from := 0; from < s.n; from += j.piece {
		b := s.buf[from:min(from+j.piece, s.n)]
		var err error
		if s.write {
			err = j.q.WriteAt(b, s.off+int64(from), uint64(i))
		} else {
			err = j.q.ReadAt(b, s.off+int64(from), uint64(i))
		}
		if err != nil {
			return err
		}
		s.parts++
	}
	return nil
}

// ended is the slot whose last part c is, which is free then; nil if it has others under way.
func (j *job) ended(c initiator.Completion) (*slot, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	s := &j.slots[c.Tag]
	if s.parts--; s.parts > 0 {
		return nil, nil
	}
	j.free = append(j.free, int(c.Tag))
	return s, nil
}

// collect counts what had ended at the time now.
func (j *job) collect(done []initiator.Completion, now time.Duration) error {
	j.measure(now)
	if j.measuring && now-j.windowAt >= firstWindow {
		j.flush()
		j.windowAt = now
	}
	for _, c := range done {
		s, err := j.ended(c)
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		if err := j.verified(s); err != nil {
			return err
		}
		if j.measuring {
			j.count(s, now)
		}
	}
	j.end = now
	return nil
}

func (j *job) verified(s *slot) error {
	p := &j.run.plan
	switch {
	case j.run.written == nil:
	case s.write:
		j.run.written.set((s.off-p.OffsetBytes)/int64(p.MinBytes), int64(s.n/p.MinBytes))
	case s.check:
		return p.checkStamps(&j.check, s.buf[:s.n], s.off)
	}
	return nil
}

func (j *job) count(s *slot, now time.Duration) {
	d := Read
	if s.write {
		d = Write
	}
	side := &j.sides[d]
	side.IOs++
	side.Bytes += int64(s.n)
	side.handing += s.handed - s.start
	record(side.Latency, now-s.start)
	j.now.ios[d]++
	j.now.bytes[d] += int64(s.n)
	record(j.now.lat[d], now-s.start)
}

// flush adds the window to the series.
func (j *job) flush() {
	if j.measuring && j.now.ios[Read]+j.now.ios[Write] > 0 {
		j.run.series.add(j.base+max(j.windowAt-j.run.plan.Ramp, 0), &j.now)
		j.now.reset()
	}
}
