package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// A blockDevice is what verify, dd and bench need of a disk.
type blockDevice interface {
	SizeBytes() int64
	BlockSize() int
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64) error
	Flush(ctx context.Context) error
}

// A verifyPlan is what to verify. Sizes are in bytes.
type verifyPlan struct {
	offset, size int64
	bs           int
	mixed        bool
	seed         uint64
	runs, depth  int
	checkOnly    bool
	generation   uint64
}

// maxReported bounds the mismatches kept for the report; all are counted.
const maxReported = 16

// A verifyResult is what verify found.
type verifyResult struct {
	URL          string            `json:"url"`
	Seed         uint64            `json:"seed"`
	Runs         int               `json:"runs"`
	WrittenBytes int64             `json:"written_bytes"`
	ReadBytes    int64             `json:"read_bytes"`
	WriteSeconds float64           `json:"write_seconds"`
	ReadSeconds  float64           `json:"read_seconds"`
	Wrong        int               `json:"mismatches"`
	Mismatches   []*stamp.Mismatch `json:"first_mismatches,omitempty"`
}

// A verifier runs a plan with plan.depth workers.
type verifier struct {
	disk blockDevice
	plan verifyPlan
	tick func(done int64)
	done atomic.Int64

	mu  sync.Mutex
	res verifyResult
}

func newVerifier(d blockDevice, p verifyPlan) *verifier {
	return &verifier{disk: d, plan: p, tick: func(int64) {}, res: verifyResult{Seed: p.seed, Runs: p.runs}}
}

func (v *verifier) run(ctx context.Context) (verifyResult, error) {
	if v.plan.checkOnly {
		err := v.check(ctx, v.plan.generation)
		return v.res, err
	}
	for g := uint64(1); g <= uint64(v.plan.runs); g++ {
		if err := v.write(ctx, g); err != nil {
			return v.res, err
		}
		if err := v.check(ctx, g); err != nil {
			return v.res, err
		}
	}
	return v.res, nil
}

// write stamps the range with generation g and flushes.
func (v *verifier) write(ctx context.Context, g uint64) error {
	start := time.Now()
	err := v.each(ctx, 2*g, func(ctx context.Context, p []byte, off int64) error {
		stamp.Fill(p, v.id(off, g))
		return v.disk.WriteAt(ctx, p, off)
	})
	if err == nil {
		err = v.disk.Flush(ctx)
	}
	v.res.WriteSeconds += time.Since(start).Seconds()
	v.res.WrittenBytes += v.plan.size
	return err
}

// check reads the range, cut and ordered unlike the writes were, into poisoned buffers.
func (v *verifier) check(ctx context.Context, g uint64) error {
	start := time.Now()
	err := v.each(ctx, 2*g+1, func(ctx context.Context, p []byte, off int64) error {
		stamp.Poison(p)
		if err := v.disk.ReadAt(ctx, p, off); err != nil {
			return err
		}
		v.compare(p, v.id(off, g))
		return nil
	})
	v.res.ReadSeconds += time.Since(start).Seconds()
	v.res.ReadBytes += v.plan.size
	return err
}

func (v *verifier) id(off int64, g uint64) stamp.ID {
	return stamp.ID{Seed: v.plan.seed, Sector: uint64(off / stamp.SectorSize), Generation: g}
}

// compare records every wrong sector of p.
func (v *verifier) compare(p []byte, id stamp.ID) {
	var c stamp.Checker
	for m := c.Check(p, id); m != nil; m = c.Check(p, id) {
		v.mu.Lock()
		v.res.Wrong++
		if len(v.res.Mismatches) < maxReported {
			v.res.Mismatches = append(v.res.Mismatches, m)
		}
		v.mu.Unlock()
		n := m.Want.Sector + 1 - id.Sector
		p, id.Sector = p[n*stamp.SectorSize:], m.Want.Sector+1
	}
}

// An extent is one request's range in bytes.
type extent struct {
	off int64
	n   int
}

// extents cuts the range in requests, in an order that depends on the seed and salt only.
func (p verifyPlan) extents(blockSize int, salt uint64) []extent {
	unit := max(blockSize, stamp.SectorSize)
	rng := rand.New(rand.NewPCG(p.seed, salt))
	var all []extent
	for off, end := p.offset, p.offset+p.size; off < end; {
		n := p.bs
		if p.mixed {
			n = unit << rng.IntN(12)
			n = min(n-unit*rng.IntN(max(n/unit/2, 1)), p.bs)
		}
		n = int(min(int64(n), end-off))
		all = append(all, extent{off, n})
		off += int64(n)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// each runs do for every extent on depth workers, each with a buffer of its own; the first error ends it.
func (v *verifier) each(ctx context.Context, salt uint64, do func(context.Context, []byte, int64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := v.plan.extents(v.disk.BlockSize(), salt)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(v.plan.depth, len(all)) {
		wg.Go(func() {
			buf := make([]byte, v.plan.bs)
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(all)) {
					return
				}
				e := all[i]
				if err := do(ctx, buf[:e.n], e.off); err != nil {
					cancel(err)
					return
				}
				v.progressed(int64(e.n))
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (v *verifier) progressed(n int64) {
	done := v.done.Add(n)
	v.mu.Lock()
	v.tick(done)
	v.mu.Unlock()
}
