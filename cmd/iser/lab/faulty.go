package lab

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/stamp"
)

// Scenarios of disks that lie: the store type fault does it, and every planted fault must be found and named rightly.

// storeFault makes the scenario of one kind of fault. rules are those of the store type fault, drawn by chance; pages is
// how many commands the disk is written with.
func storeFault(name, title string, kind backstore.FaultKind, rules func(*rand.Rand) string) *Scenario {
	return &Scenario{
		Name: name, Title: title,
		Controls: []Control{{
			Name: "checker-off", Breaks: "the reader does not look at what it reads",
			plant: func(s *settings) { s.blind = true },
			sees:  "was not found",
		}},
		set: func(s *settings, rng *rand.Rand) {
			s.weather = rough()
			text := rules(rng)
			s.wrapStore = func(w *world, b backstore.Store) (backstore.Store, error) {
				return backstore.OpenOver("fault", backstore.Options{"store": "below", "seed": fmt.Sprint(w.seed), "rules": text}, b)
			}
		},
		run: func(ctx context.Context, w *world) { w.findFaults(ctx, kind) },
	}
}

// Each of so many requests is so many sectors.
const (
	faultRequests = 12
	faultSectors  = 16
)

func tornWrite() *Scenario {
	return storeFault("torn-write", "A power cut, or a disk, tears a write", backstore.FaultTorn, func(rng *rand.Rand) string {
		return fmt.Sprintf("torn write skip=%d count=2", faultRequests+rng.IntN(faultRequests-2))
	})
}

func misplaced() *Scenario {
	return storeFault("misplaced", "A write or a read goes to the wrong place", backstore.FaultMisplaced, func(rng *rand.Rand) string {
		if rng.IntN(2) == 0 {
			return fmt.Sprintf("misplaced read skip=%d count=1 by=%d", rng.IntN(faultRequests-1), faultSectors*sector)
		}
		// Backwards, for what is misplaced forwards is overwritten by the next request. The first request of each
		// generation does not count: nothing is before it.
		return fmt.Sprintf("misplaced write skip=%d count=1 by=-%d", faultRequests-1+rng.IntN(faultRequests-1), faultSectors*sector)
	})
}

func staleRead() *Scenario {
	return storeFault("stale-read", "A read returns what was there before the last write", backstore.FaultStale, func(rng *rand.Rand) string {
		return fmt.Sprintf("stale read skip=%d count=2", rng.IntN(faultRequests-2))
	})
}

func bitFlip() *Scenario {
	return storeFault("bit-flip", "A bit flips on the way to the disk, on it, or on the way back", backstore.FaultBitFlip, func(rng *rand.Rand) string {
		op := pick(rng, "read", "write")
		skip := rng.IntN(faultRequests - 2)
		if op == "write" {
			skip += faultRequests
		}
		return fmt.Sprintf("bitflip %s skip=%d count=2 bits=%d", op, skip, 1+rng.IntN(3))
	})
}

// findFaults writes two generations, reads the second, explains what is wrong, and holds that against the store's log.
func (w *world) findFaults(ctx context.Context, kind backstore.FaultKind) {
	h := w.hosts[0]
	p := make([]byte, faultSectors*sector)
	for g := uint64(1); g <= 2; g++ {
		for i := range faultRequests {
			x := extent{int64(i) * faultSectors * sector, len(p)}
			stamp.Fill(p, stamp.ID{Seed: w.seed, Sector: uint64(i) * faultSectors, Generation: g})
			h.calls("WRITE", x)
			err := h.disk.WriteAt(ctx, p, x.off)
			h.returns("WRITE", x, err, p)
			if !h.must("write", err) {
				return
			}
		}
	}
	var found []stamp.Mismatch
	for i := range faultRequests {
		x := extent{int64(i) * faultSectors * sector, len(p)}
		stamp.Poison(p)
		h.calls("READ", x)
		err := h.disk.ReadAt(ctx, p, x.off)
		h.returns("READ", x, err, p)
		if !h.must("read", err) {
			return
		}
		found = append(found, w.look(p, uint64(i)*faultSectors)...)
	}
	planted, _ := w.owned.(*backstore.FaultStore).Faults()
	w.compare(kind, planted, found)
}

// look explains the sectors that are wrong, unless the checker is off.
func (w *world) look(p []byte, first uint64) (found []stamp.Mismatch) {
	var c stamp.Checker
	for s := first; len(p) > 0 && !w.blind; p, s = p[sector:], s+1 {
		if m := c.Check(p[:sector], stamp.ID{Seed: w.seed, Sector: s, Generation: 2}); m != nil {
			w.rec.add(Event{Where: "checker", What: whatNote, Note: m.String()})
			found = append(found, *m)
		}
	}
	return found
}

// compare holds what was found against what was planted: all of it, by its right name, and nothing else.
func (w *world) compare(kind backstore.FaultKind, planted []backstore.Fault, found []stamp.Mismatch) {
	if len(planted) == 0 {
		w.fail("no fault was planted: the run proves nothing")
	}
	var expected []stamp.Mismatch
	for _, f := range planted {
		if f.Kind != kind {
			w.fail("a %s fault was planted, not %s", f.Kind, kind)
		}
		expected = append(expected, w.expect(&f)...)
	}
	for _, e := range expected {
		i := slices.IndexFunc(found, func(m stamp.Mismatch) bool { return m.Want.Sector == e.Want.Sector })
		if i < 0 {
			w.fail("sector %d: a planted fault (%s) was not found", e.Want.Sector, e.Kind)
			continue
		}
		if m := &found[i]; m.Kind != e.Kind || !slices.Equal(m.Flipped, e.Flipped) || m.Kind == stamp.Torn && !tornAlike(e.TornAt, m.TornAt) {
			w.fail("a planted fault (%s) was misjudged: %v", e.Kind, m)
		}
		found = slices.Delete(found, i, i+1)
	}
	for i := range found {
		w.fail("found what was not planted: %v", &found[i])
	}
}

// tornAlike: where the bytes on both sides of a tear are alike nobody can tell to which they belong; it is told to a word.
func tornAlike(want, got int) bool { return got >= want&^7 && got < want+8 }

// torn is what a sector is that was written up to a byte, over the generation before: where both are alike nothing tells.
func (w *world) torn(s uint64, at int64) stamp.Kind {
	var now, before [sector]byte
	stamp.Fill(now[:], stamp.ID{Seed: w.seed, Sector: s, Generation: 2})
	stamp.Fill(before[:], stamp.ID{Seed: w.seed, Sector: s, Generation: 1})
	switch {
	case bytes.Equal(now[:at], before[:at]):
		return stamp.Stale
	case bytes.Equal(now[at:], before[at:]):
		return ""
	}
	return stamp.Torn
}

// expect is what a fault does to the sectors of the disk as they are read.
func (w *world) expect(f *backstore.Fault) (all []stamp.Mismatch) {
	add := func(s int64, k stamp.Kind) *stamp.Mismatch {
		all = append(all, stamp.Mismatch{Kind: k, Want: stamp.ID{Sector: uint64(s)}})
		return &all[len(all)-1]
	}
	end := f.Offset + f.Length
	switch f.Kind {
	case backstore.FaultBitFlip:
		bits := slices.Sorted(slices.Values(f.Bits))
		for _, b := range bits {
			s := b / 8 / sector
			if len(all) == 0 || all[len(all)-1].Want.Sector != uint64(s) {
				add(s, stamp.BitFlip)
			}
			m := &all[len(all)-1]
			m.Flipped = append(m.Flipped, int(b-s*8*sector))
		}
	case backstore.FaultTorn:
		for s := f.Offset / sector; s*sector < end; s++ {
			if k := w.torn(uint64(s), max(0, f.Offset-s*sector)); k != "" {
				add(s, k).TornAt = int(max(0, f.Offset-s*sector))
			}
		}
	case backstore.FaultMisplaced:
		for s := f.Offset / sector; s*sector < end; s++ {
			if f.Op == "read" {
				add(s, stamp.Misplaced)
			} else {
				add(s, stamp.Stale)
				add(s+(f.Elsewhere-f.Offset)/sector, stamp.Misplaced)
			}
		}
	case backstore.FaultStale:
		for s := f.Offset / sector; s*sector < end; s++ {
			add(s, stamp.Stale)
		}
	}
	return all
}
