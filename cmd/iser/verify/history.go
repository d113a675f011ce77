package verify

import (
	"fmt"
	"slices"
	"sync"
)

// The rule of overlapping writers. Each write has a generation of its own, and each sector is a register of which
// readers and writers see one order that agrees with time (SAM-5 leaves the order of simple tasks to the device
// server, but a command that began after another was answered must not precede it). So a read of a sector may
// return what a write W put there unless
//
//	(1) W began after the read ended, or
//	(2) W is superseded: there is an O with W acknowledged before O began, and O ended before the read began,
//	    where O is another write of the sector that was acknowledged, or a read that returned another write
//	    and not wrongly so.
//
// A write that was never acknowledged is in flight for ever: it is never superseded, and supersedes nothing.
// A sector may also mix writes each of which the rule allows: SBC-3 does not say that a block is written or read at one
// moment, and stores in memory do not. Such sectors are counted, and are no mismatch.
//
// That a read supersedes is what catches data that goes back to an older state by itself: of two writes in flight at once
// either may win, but not first the one and then the other.
//
// What may be returned is kept for each sector, no more: what is superseded goes when the O ends, and readers
// under way have noted what there was when they began. Time is a counter that every beginning and end advances; a write's
// generation is the time when it began.

// maxWriters bounds the writes in flight for one sector, which writers observe by going elsewhere. So it bounds what
// a sector may hold too: those, and such that were in flight when the last acknowledged one began.
const (
	maxWriters  = 4
	maxVersions = 2 * maxWriters
)

// versions are the writes that a read of a sector may return. End is zero while a write is in flight.
type versions struct {
	n   int
	gen [maxVersions]uint64
	end [maxVersions]uint64
}

func (v *versions) index(gen uint64) int {
	for i := range v.n {
		if v.gen[i] == gen {
			return i
		}
	}
	return -1
}

func (v *versions) inFlight() int {
	n := 0
	for i := range v.n {
		if v.end[i] == 0 {
			n++
		}
	}
	return n
}

func (v *versions) add(gen uint64) {
	if v.n == maxVersions {
		panic(fmt.Sprintf("verify: a sector with %d versions: %v ended %v", v.n, v.gen, v.end))
	}
	v.gen[v.n], v.end[v.n] = gen, 0
	v.n++
}

// supersede drops what was acknowledged before a time, but for one.
func (v *versions) supersede(before, except uint64) {
	kept := 0
	for i := range v.n {
		if v.end[i] == 0 || v.end[i] > before || v.gen[i] == except {
			v.gen[kept], v.end[kept] = v.gen[i], v.end[i]
			kept++
		}
	}
	v.n = kept
}

// A history is what may be read of each sector of a window.
type history struct {
	mu    sync.Mutex
	now   uint64
	sects []versions
}

// newHistory is of sectors whose content is not known yet: they must be written before they are read. Time goes on
// from now.
func newHistory(sectors int, now uint64) *history {
	return &history{now: now, sects: make([]versions, sectors)}
}

func (h *history) tick() uint64 {
	h.now++
	return h.now
}

// beginWrite gives the generation of a write of n sectors from the first; false if too many writes are
// in flight for one of them.
func (h *history) beginWrite(first, n int) (uint64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.sects[first : first+n]
	for i := range all {
		if all[i].inFlight() == maxWriters {
			return 0, false
		}
	}
	g := h.tick()
	for i := range all {
		all[i].add(g)
	}
	return g, true
}

// endWrite tells that a write was acknowledged.
func (h *history) endWrite(first, n int, gen uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.tick()
	all := h.sects[first : first+n]
	for i := range all {
		v := &all[i]
		v.end[v.index(gen)] = now
		v.supersede(gen, gen)
	}
}

// A reading is a read under way: when it began, and what could be returned then.
type reading struct {
	first int
	began uint64
	sects []versions
}

// beginRead notes what a read of n sectors may return. r is used again from read to read.
func (h *history) beginRead(r *reading, first, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.first, r.began = first, h.tick()
	r.sects = append(r.sects[:0], h.sects[first:first+n]...)
}

// A verdict is what the history says of a sector that was read.
type verdict struct {
	ok     bool
	newest uint64 // the latest write that could have been returned
	begun  bool   // whether the generation found has begun at all
}

// endRead judges what a read found in its sector i: a whole stamp of that sector, of a generation. It tells the history
// what others may still find.
func (h *history) endRead(r *reading, i int, gen uint64) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.tick()
	v, seen := &h.sects[r.first+i], &r.sects[i]
	ok := seen.index(gen) >= 0 || r.began < gen && gen < now
	if ok && v.index(gen) >= 0 {
		v.supersede(r.began, gen)
	}
	return verdict{ok: ok, newest: h.newestLocked(r, i), begun: gen < now}
}

// allows is whether a read may return each of some generations in its sector i. It supersedes nothing.
func (h *history) allows(r *reading, i int, gens []uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range gens {
		if r.sects[i].index(g) < 0 && (g <= r.began || g > h.now) {
			return false
		}
	}
	return true
}

// candidates are the generations that a read may return in its sector i, but for such as began and were superseded
// while it went on.
func (h *history) candidates(r *reading, i int) []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &h.sects[r.first+i]
	return slices.Concat(r.sects[i].gen[:r.sects[i].n], v.gen[:v.n])
}

// newest is what a sector that a read found to be no stamp should have been: the latest that it could be.
func (h *history) newest(r *reading, i int) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newestLocked(r, i)
}

func (h *history) newestLocked(r *reading, i int) uint64 {
	newest := uint64(0)
	for _, v := range []*versions{&r.sects[i], &h.sects[r.first+i]} {
		for _, g := range v.gen[:v.n] {
			newest = max(newest, g)
		}
	}
	return newest
}
