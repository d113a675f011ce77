package verify

import (
	"fmt"
	"slices"
	"sync"

	"github.com/goiser/goiser/backstore/stamp"
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
// A write of which it is not known whether it was carried out, but that is over (its session is), may have had no effect:
// it is superseded as others are, and supersedes nothing.
//
// Zeroing is a write of zeros, which do not say of themselves which write they are: zeros are right if one of the writes
// that could have left them is, and supersede what cannot have. Unmapping is a hint (SBC-3, 4.7.3): where unmapped
// blocks read as zeros it is a write of zeros that may have had no effect; where they read as anything, any content is right
// and tells nothing until the unmapping is superseded by a write.
//
// A sector may also mix writes each of which the rule allows: SBC-3 does not say that a block is written or read at one
// moment, and stores in memory do not. Such sectors are counted, and are no mismatch.
//
// That a read supersedes is what catches data that goes back to an older state by itself: of two writes in flight at once
// either may win, but not first the one and then the other.
//
// What may be returned is kept for each sector, no more: what is superseded goes when the O ends, and readers
// under way have noted what there was when they began. Time is a counter that every beginning and end advances; a write's
// generation is the time when it began.

// maxWriters bounds the writes in flight for one sector, and maxVersions all that may be returned: writers observe both
// by going elsewhere. Besides those in flight there are such that were so when the last acknowledged one began, and those
// without a known effect, until an acknowledged write or a read supersedes them.
const (
	maxWriters  = 4
	maxVersions = 2 * maxWriters
)

// A content is what a write leaves.
type content uint8

const (
	stamped  content = iota
	zeros            // of which it is not known whose they are
	anything         // each time another, perhaps
)

// versions are the writes that a read of a sector may return. End is zero while a write is in flight.
type versions struct {
	n    int
	gen  [maxVersions]uint64
	end  [maxVersions]uint64
	what [maxVersions]content
	last [anything + 1]uint64 // the newest write of each content, superseded or not
}

func (v *versions) index(gen uint64) int {
	for i := range v.n {
		if v.gen[i] == gen {
			return i
		}
	}
	return -1
}

// has is whether a write of a content is there.
func (v *versions) has(c content) bool {
	for i := range v.n {
		if v.what[i] == c {
			return true
		}
	}
	return false
}

// full is whether there is no room for another write.
func (v *versions) full() bool {
	inFlight := 0
	for i := range v.n {
		if v.end[i] == 0 {
			inFlight++
		}
	}
	return inFlight == maxWriters || v.n == maxVersions
}

func (v *versions) add(gen uint64, c content) {
	if v.n == maxVersions {
		panic(fmt.Sprintf("verify: a sector with %d versions: %v ended %v", v.n, v.gen, v.end))
	}
	v.gen[v.n], v.end[v.n], v.what[v.n] = gen, 0, c
	v.n++
	v.last[c] = gen
}

// drop drops the versions that are to go.
func (v *versions) drop(gone func(i int) bool) {
	kept := 0
	for i := range v.n {
		if !gone(i) {
			v.gen[kept], v.end[kept], v.what[kept] = v.gen[i], v.end[i], v.what[i]
			kept++
		}
	}
	v.n = kept
}

// over is whether version i was acknowledged, or ended otherwise, before a time.
func (v *versions) over(i int, before uint64) bool { return v.end[i] != 0 && v.end[i] <= before }

// supersede drops what was over before a time, but for one.
func (v *versions) supersede(before, except uint64) {
	v.drop(func(i int) bool { return v.over(i, before) && v.gen[i] != except })
}

// supersedeByZeros drops what was over before a time and cannot have left zeros.
func (v *versions) supersedeByZeros(before uint64) {
	v.drop(func(i int) bool { return v.over(i, before) && v.what[i] != zeros })
}

// merge drops other versions that are over, for version i, which is just over and has the same content, of which nobody can
// say whose it is: whenever they would be right, i is.
func (v *versions) merge(i int) {
	gen, now, what := v.gen[i], v.end[i], v.what[i]
	v.drop(func(i int) bool { return v.what[i] == what && v.over(i, now) && v.gen[i] != gen })
}

// A history is what may be read of each sector of a window.
type history struct {
	mu    sync.Mutex
	now   uint64
	sects []versions
}

// newHistory is of sectors whose content is not known: until they are written they may read as anything. Time goes on from
// now.
func newHistory(sectors int, now uint64) *history {
	h := &history{now: now + 1, sects: make([]versions, sectors)}
	for i := range h.sects {
		h.sects[i].add(h.now, anything)
		h.sects[i].end[0] = h.now
	}
	return h
}

func (h *history) tick() uint64 {
	h.now++
	return h.now
}

// beginWrite gives the generation of a write of n sectors from the first; false if there are too many writes of one of
// them.
func (h *history) beginWrite(first, n int, c content) (uint64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.sects[first : first+n]
	for i := range all {
		if all[i].full() {
			return 0, false
		}
	}
	g := h.tick()
	for i := range all {
		all[i].add(g, c)
	}
	return g, true
}

// endWrite tells that a write is over; sure is whether it is known to have had its effect.
func (h *history) endWrite(first, n int, gen uint64, sure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.tick()
	all := h.sects[first : first+n]
	for i := range all {
		v := &all[i]
		at := v.index(gen)
		v.end[at] = now
		switch {
		case sure:
			v.supersede(gen, gen)
		case v.what[at] != stamped:
			v.merge(at)
		}
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
	newest uint64 // if not ok: the latest write that could have been returned, or stamp.Zeroed
	begun  bool   // if not ok: whether the generation found has begun at all
}

// endRead judges what a read found in its sector i: a whole stamp of that sector, of a generation, or zeros, which is
// stamp.Zeroed. It tells the history what others may still find.
func (h *history) endRead(r *reading, i int, gen uint64) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.tick()
	v := &h.sects[r.first+i]
	switch ok := h.allowedLocked(r, i, gen, now); {
	case !ok, h.openLocked(r, i): // what is right anyhow tells nothing
		return verdict{ok: ok || h.openLocked(r, i), newest: h.newestLocked(r, i), begun: gen < now}
	case gen == stamp.Zeroed && v.has(zeros):
		v.supersedeByZeros(r.began)
	case gen != stamp.Zeroed && v.index(gen) >= 0:
		v.supersede(r.began, gen)
	}
	return verdict{ok: true}
}

// allowedLocked is whether a read may return a generation, or zeros, in its sector i.
func (h *history) allowedLocked(r *reading, i int, gen, now uint64) bool {
	seen, v := &r.sects[i], &h.sects[r.first+i]
	if gen == stamp.Zeroed {
		return seen.has(zeros) || v.last[zeros] > r.began
	}
	n := seen.index(gen)
	return n >= 0 && seen.what[n] == stamped || r.began < gen && gen < now
}

// openLocked is whether a read may return anything in its sector i.
func (h *history) openLocked(r *reading, i int) bool {
	return r.sects[i].has(anything) || h.sects[r.first+i].last[anything] > r.began
}

// open is whether a read may return anything in its sector i.
func (h *history) open(r *reading, i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.openLocked(r, i)
}

// allows is whether a read may return each of some generations in its sector i. It supersedes nothing.
func (h *history) allows(r *reading, i int, gens []uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.ContainsFunc(gens, func(g uint64) bool { return !h.allowedLocked(r, i, g, h.now+1) })
}

// candidates are the generations that a read may return in its sector i, but for such as began and were superseded
// while it went on. Zeros among them are stamp.Zeroed.
func (h *history) candidates(r *reading, i int) (gens []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range []*versions{&r.sects[i], &h.sects[r.first+i]} {
		for n := range v.n {
			if v.what[n] == stamped {
				gens = append(gens, v.gen[n])
			}
		}
	}
	if h.allowedLocked(r, i, stamp.Zeroed, h.now) {
		gens = append(gens, stamp.Zeroed)
	}
	return gens
}

// newest is what a sector that a read found to be no stamp should have been: the latest that it could be.
func (h *history) newest(r *reading, i int) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newestLocked(r, i)
}

// newestLocked is a generation, or stamp.Zeroed if the latest write is one of zeros.
func (h *history) newestLocked(r *reading, i int) uint64 {
	newest, what := uint64(0), stamped
	for _, v := range []*versions{&r.sects[i], &h.sects[r.first+i]} {
		for n, g := range v.gen[:v.n] {
			if g >= newest {
				newest, what = g, v.what[n]
			}
		}
	}
	if what != stamped {
		return stamp.Zeroed
	}
	return newest
}
