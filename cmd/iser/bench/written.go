package bench

import (
	"fmt"
	"sync/atomic"

	"github.com/goiser/goiser/backstore/stamp"
)

// generation is that of all stamps of a run: what is written twice is the same both times, so that writes of the same
// place that overlap in time are no matter.
const generation = 1

// A MismatchError is data that was read otherwise than it was written.
type MismatchError struct{ Mismatch *stamp.Mismatch }

func (e *MismatchError) Error() string { return e.Mismatch.String() }

// written remembers which units have been written, a bit each. A bit is set when the write has been acknowledged, so
// that a read that starts later has to find its stamps.
type written struct {
	words []atomic.Uint64
}

func newWritten(units int64) *written { return &written{words: make([]atomic.Uint64, (units+63)/64)} }

func (w *written) set(unit, n int64) {
	for i := unit; i < unit+n; i++ {
		w.words[i/64].Or(1 << (i % 64))
	}
}

// all tells whether n units from unit on have been written.
func (w *written) all(unit, n int64) bool {
	for i := unit; i < unit+n; i++ {
		if !w.has(i) {
			return false
		}
	}
	return true
}

func (w *written) has(unit int64) bool { return w.words[unit/64].Load()&(1<<(unit%64)) != 0 }

// next is the first run of written units at or after unit, at most most long; n is 0 where there is none.
func (w *written) next(unit, most, units int64) (at, n int64) {
	for unit < units && !w.has(unit) {
		if unit%64 == 0 && w.words[unit/64].Load() == 0 {
			unit += 64
		} else {
			unit++
		}
	}
	for unit+n < units && n < most && w.has(unit+n) {
		n++
	}
	return unit, n
}

// stampID is that of the sector at a byte of the disk.
func (p *Plan) stampID(off int64) stamp.ID {
	return stamp.ID{Seed: p.Seed, Sector: uint64(off / stamp.SectorSize), Generation: generation}
}

// checkStamps compares what was read at off.
func (p *Plan) checkStamps(c *stamp.Checker, b []byte, off int64) error {
	if m := c.Check(b, p.stampID(off)); m != nil {
		return fmt.Errorf("read %d bytes at %d: %w", len(b), off, &MismatchError{m})
	}
	return nil
}
