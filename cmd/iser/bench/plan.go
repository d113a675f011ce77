package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// Bounds of a plan.
const (
	MaxDepth   = 1024     // requests under way for each job
	MaxJobs    = 64       // each has a session of its own
	MaxRequest = 16 << 20 // bytes
	MaxTime    = 24 * time.Hour
	// maxBuffers bounds the memory of all requests under way, bytes.
	maxBuffers = 2 << 30
	// maxUnits bounds what Verify remembers: one bit for each unit of MinBytes, 256 MiB in all.
	maxUnits = 1 << 31
)

// A Plan is what to measure.
type Plan struct {
	ReadPercent int  // of the requests, 0 to 100
	Random      bool // where; else one after the other
	// Requests are MinBytes to MaxBytes long, in steps of MinBytes, and lie at multiples of it.
	MinBytes, MaxBytes int
	Depth              int           // requests under way for each job
	Time               time.Duration // of a turn, after Ramp
	Ramp               time.Duration // of a turn, not measured
	// The part of the disk that is used, in bytes. SizeBytes 0 means to its end.
	OffsetBytes, SizeBytes int64
	Seed                   uint64 // of places, sizes and data
	// Verify writes stamps, and checks what is read of that: during the turns, and all of it in Check.
	Verify bool
}

// Check finds what is wrong with a plan for jobs on a disk, and sets SizeBytes.
func (p *Plan) Check(jobs int, d *Disk) error {
	if p.SizeBytes == 0 {
		p.SizeBytes = d.SizeBytes - p.OffsetBytes
	}
	unit := max(d.BlockSize, stamp.SectorSize)
	switch {
	case jobs < 1 || jobs > MaxJobs:
		return fmt.Errorf("%d jobs: want 1 to %d", jobs, MaxJobs)
	case p.Depth < 1 || p.Depth > MaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", p.Depth, MaxDepth)
	case p.ReadPercent < 0 || p.ReadPercent > 100:
		return fmt.Errorf("%d percent reads: want 0 to 100", p.ReadPercent)
	case p.MinBytes < unit || p.MinBytes%unit != 0:
		return fmt.Errorf("requests of %d bytes: want a multiple of %d", p.MinBytes, unit)
	case p.MaxBytes < p.MinBytes || p.MaxBytes > MaxRequest || p.MaxBytes%p.MinBytes != 0:
		return fmt.Errorf("requests of up to %d bytes: want a multiple of %d, at most %d", p.MaxBytes, p.MinBytes, MaxRequest)
	case p.Time <= 0 || p.Time > MaxTime || p.Ramp < 0 || p.Ramp > MaxTime:
		return fmt.Errorf("time %v after %v: want more than 0, and at most %v", p.Time, p.Ramp, MaxTime)
	case int64(p.Depth)*int64(jobs)*int64(p.MaxBytes) > maxBuffers:
		return fmt.Errorf("%d jobs of depth %d with %d bytes a request need more than %d bytes of memory", jobs, p.Depth, p.MaxBytes, int64(maxBuffers))
	}
	return p.checkRegion(d)
}

func (p *Plan) checkRegion(d *Disk) error {
	switch {
	case p.OffsetBytes < 0 || p.OffsetBytes%int64(p.MinBytes) != 0:
		return fmt.Errorf("offset %d: want a multiple of the request size, %d", p.OffsetBytes, p.MinBytes)
	case p.SizeBytes < int64(p.MaxBytes) || p.OffsetBytes > d.SizeBytes || p.SizeBytes > d.SizeBytes-p.OffsetBytes:
		return fmt.Errorf("%d bytes at %d: want room for a request of %d bytes, on the disk, which has %d", p.SizeBytes, p.OffsetBytes, p.MaxBytes, d.SizeBytes)
	case p.Verify && p.ReadPercent == 100:
		return errors.New("nothing is written that could be verified")
	case p.Verify && p.units() > maxUnits:
		return fmt.Errorf("verifying remembers at most %d requests; give a smaller size than %d, or larger requests", maxUnits, p.SizeBytes)
	}
	return nil
}

// units is how many requests of the smallest size fit.
func (p *Plan) units() int64 { return p.SizeBytes / int64(p.MinBytes) }
