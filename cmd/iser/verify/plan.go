package verify

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
)

// A Range is a part of a disk in bytes, from Start to before End.
type Range struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// Len is its size in bytes.
func (r Range) Len() int64 { return r.End - r.Start }

// A Plan is what to verify, and how.
type Plan struct {
	Ranges       []Range // in order and apart from each other after Check
	RequestBytes int     // the size of a request; the largest with Mixed
	Mixed        bool    // sizes from one block to RequestBytes
	Sequential   bool    // requests in the order of the disk; else in a random one
	Seed         uint64
	Runs         int // times to write and read the ranges; 0 with Time: as many as there is time for
	Depth        int // requests in flight on each disk
	// Time bounds the whole, zero does not: a run is cut short so that what was written of it can be read.
	Time time.Duration
	// CheckOnly reads only, and expects Generation.
	CheckOnly  bool
	Generation uint64
	// Overlap has writers and readers go against each other over windows of the ranges.
	Overlap bool
	// Zero and Unmap are how many of a hundred writes are zeroed or unmapped as soon as they are done; with Overlap how
	// many zero or unmap instead. Disks must then be Zeroers.
	Zero, Unmap int
	// UnmapZeroes says that an unmapped block reads as zeros, if it was unmapped at all; else it may read as anything.
	UnmapZeroes bool
	// Keep is how many mismatches of each kind are kept with their bytes; 0: a few. All are counted.
	Keep int
}

// Bounds of a plan: the longest request in bytes, the requests in flight on a disk, the disks, the ranges, and the mismatches kept of each kind.
const (
	MaxRequest = 16 << 20
	MaxDepth   = 1024
	MaxJobs    = 64
	MaxRanges  = 1024
	MaxKeep    = 1 << 16
)

// mixedLargest is the largest request with mixed sizes, if the plan does not say.
const mixedLargest = 1 << 20

// Check finds what is wrong with a plan for a disk, whose size and blocks are in bytes, and puts the ranges in order.
func (p *Plan) Check(sizeBytes int64, blockSize int) error {
	unit := int64(max(blockSize, stamp.SectorSize))
	if p.Mixed && p.RequestBytes == 0 {
		p.RequestBytes = mixedLargest
	}
	switch {
	case int64(p.RequestBytes) < unit || p.RequestBytes > MaxRequest:
		return fmt.Errorf("request size %d: want %d to %d bytes", p.RequestBytes, unit, MaxRequest)
	case int64(p.RequestBytes)%unit != 0:
		return fmt.Errorf("request size %d must be a multiple of %d bytes", p.RequestBytes, unit)
	case p.Depth < 1 || p.Depth > MaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", p.Depth, MaxDepth)
	case p.Time < 0:
		return fmt.Errorf("time %v: want more than nothing", p.Time)
	case p.Runs < 0 || p.Runs == 0 && p.Time == 0 && !p.CheckOnly:
		return fmt.Errorf("runs %d: want at least 1", p.Runs)
	case p.Overlap && p.CheckOnly:
		return errors.New("overlapping writers write: they are not for a check only")
	case p.Zero < 0 || p.Unmap < 0 || p.Zero+p.Unmap > 100:
		return fmt.Errorf("zero %d and unmap %d: want percentages, together up to 100", p.Zero, p.Unmap)
	case p.Keep < 0 || p.Keep > MaxKeep:
		return fmt.Errorf("keep %d: want 0 to %d", p.Keep, MaxKeep)
	}
	return p.checkRanges(sizeBytes, unit)
}

func (p *Plan) checkRanges(sizeBytes, unit int64) error {
	if n := len(p.Ranges); n < 1 || n > MaxRanges {
		return fmt.Errorf("%d ranges: want 1 to %d", n, MaxRanges)
	}
	slices.SortFunc(p.Ranges, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	end := int64(0)
	for _, r := range p.Ranges {
		switch {
		case r.Start < 0 || r.End <= r.Start || r.End > sizeBytes:
			return fmt.Errorf("bytes %d to %d are not on the disk, which has %d", r.Start, r.End, sizeBytes)
		case r.Start%unit != 0 || r.End%unit != 0:
			return fmt.Errorf("bytes %d to %d: both must be multiples of %d bytes", r.Start, r.End, unit)
		case r.Start < end:
			return fmt.Errorf("bytes %d to %d: they are in another range too", r.Start, r.End)
		}
		end = r.End
	}
	return nil
}

// sizeBytes is the size of all ranges.
func (p *Plan) sizeBytes() int64 {
	n := int64(0)
	for _, r := range p.Ranges {
		n += r.Len()
	}
	return n
}

// A layout cuts the ranges in slots of the request size; the last slot of a range may be shorter. Slots are what
// is put in order, counted and resumed at: requests do not cross them.
type layout struct {
	ranges []Range
	first  []int64 // the number of a range's first slot
	slots  int64
	bytes  int64 // of a slot
}

func newLayout(ranges []Range, slotBytes int64) *layout {
	l := &layout{ranges: ranges, bytes: slotBytes}
	for _, r := range ranges {
		l.first = append(l.first, l.slots)
		l.slots += (r.Len() + slotBytes - 1) / slotBytes
	}
	return l
}

// slot is what slot i holds.
func (l *layout) slot(i int64) Range {
	n, found := slices.BinarySearch(l.first, i)
	if !found {
		n--
	}
	return l.part(l.ranges[n], i-l.first[n])
}

// holding is the slot that a byte of the ranges lies in.
func (l *layout) holding(at int64) Range {
	n, found := slices.BinarySearchFunc(l.ranges, at, func(r Range, at int64) int { return cmp.Compare(r.Start, at) })
	if !found {
		n--
	}
	return l.part(l.ranges[n], (at-l.ranges[n].Start)/l.bytes)
}

// part is slot i of a range, counted from the range's start.
func (l *layout) part(r Range, i int64) Range {
	start := r.Start + i*l.bytes
	return Range{start, min(start+l.bytes, r.End)}
}
