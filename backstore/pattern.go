package backstore

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/goiser/goiser/backstore/stamp"
)

// maxWrong is how many wrong sectors a PatternStore keeps to show; all are counted.
const maxWrong = 16

// keptRuns is how long a list of runs is kept for the next write; one write hardly ever has more than one.
const keptRuns = 64

// errWholeSectors is a change of a part of a sector, which no stamp could describe.
var errWholeSectors = errors.New("not whole sectors of 512 bytes, which alone can be checked")

// A PatternStore is a disk of any size without a disk: it computes what it reads, the stamps of package stamp, and
// checks what is written to be such stamps. So a verification of 100 TiB needs neither space nor time to fill it.
//
// What was never written reads as stamps of the base generation. A write must be whole sectors, each a valid stamp of
// the store's seed and of the sector's own place, and of no older generation than the sector has: a write that comes
// late, after a newer one, is wrong. Or zeros: these, zeroing and unmapping leave zeros, after which any generation may
// come. The store remembers the generations of ranges, a bounded number of them, and not the bytes.
//
// So it sees data that arrives torn, flipped, at another place, of another writer or too late, and says which. It
// does not see what never arrives: a write that was answered but not done reads as the older generation, which the reader
// sees. Nor does it see the same write done twice, and of writes that overlap in time it keeps either.
type PatternStore struct {
	size   int64
	seed   uint64
	count  bool // wrong sectors are counted and dropped; else the write fails
	closed atomic.Bool
	work   freeList[patternWork]

	mu    sync.Mutex
	runs  runs
	wrong uint64
	first []*stamp.Mismatch
}

// patternWork is what a request needs while it runs.
type patternWork struct {
	checker stamp.Checker
	sector  [MinBlock]byte
	written []run
}

func patternType() Type {
	return Type{
		Name: "pattern", Summary: "no disk: reads are computed stamps, as of iser verify, and writes are checked to be such", open: openPattern,
		Options: []Option{
			{Name: "size", Default: "100TiB", Summary: "bytes", check: storeSize},
			{Name: "seed", Default: "1", Summary: "of the stamps: that of iser verify --seed", check: checkSeed},
			{Name: "generation", Default: "1", Summary: "what was never written reads as stamps of this generation", check: checkGeneration},
			{
				Name: "wrong", Default: "refuse", Values: []string{"refuse", "count"},
				Summary: "refuse: a write with a wrong sector fails; count: it succeeds, and the wrong sectors are dropped and counted",
			},
		},
	}
}

func checkGeneration(v string) error {
	if err := checkSeed(v); err != nil || v == fmt.Sprint(uint64(stamp.Zeroed)) {
		return fmt.Errorf("%q is not a number from 0 to 2^64-2", v)
	}
	return nil
}

func openPattern(s settings) (Store, error) {
	p := &PatternStore{size: s.size("size"), seed: s.number("seed"), count: s["wrong"] == "count", work: newFreeList[patternWork]()}
	p.runs.base = s.number("generation")
	return p, nil
}

// Wrong is how many wrong sectors were written, and the first of them, explained.
func (p *PatternStore) Wrong() (count uint64, first []*stamp.Mismatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wrong, append(first, p.first...)
}

// ReadAt computes.
func (p *PatternStore) ReadAt(bufs [][]byte, off int64) error {
	if err := p.usable(off, total(bufs)); err != nil {
		return requestError("pattern store", "read", bufs, off, err)
	}
	w := p.work.get()
	defer p.work.put(w)
	var g uint64
	until := int64(-1) // the first sector whose generation is not known to be g
	for _, b := range bufs {
		for len(b) > 0 {
			s, in := off/MinBlock, off%MinBlock
			if s >= until {
				g, until = p.generation(s)
			}
			n := min(int64(len(b))/MinBlock, until-s) * MinBlock
			if in == 0 && n > 0 {
				p.fill(b[:n], s, g)
			} else {
				p.fill(w.sector[:], s, g)
				n = int64(copy(b, w.sector[in:]))
			}
			b, off = b[n:], off+n
		}
	}
	return nil
}

func (p *PatternStore) fill(b []byte, sector int64, generation uint64) {
	if generation == stamp.Zeroed {
		clear(b)
		return
	}
	stamp.Fill(b, stamp.ID{Seed: p.seed, Sector: uint64(sector), Generation: generation})
}

func (p *PatternStore) generation(sector int64) (generation uint64, until int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs.at(sector)
}

// WriteAt checks. A write that is refused for a wrong sector has changed nothing; its error tells which.
func (p *PatternStore) WriteAt(bufs [][]byte, off int64, _ bool) error {
	n := total(bufs)
	err := p.changeable(off, n)
	if err == nil {
		w := p.work.get()
		if err = p.check(w, bufs, off/MinBlock, (off+n)/MinBlock); err == nil {
			err = p.take(w.written)
		}
		if cap(w.written) <= keptRuns {
			p.work.put(w)
		}
	}
	if err != nil {
		return requestError("pattern store", "write", bufs, off, err)
	}
	return nil
}

// check lists in w.written what bufs hold for the sectors from one to another.
func (p *PatternStore) check(w *patternWork, bufs [][]byte, s, end int64) error {
	w.written = w.written[:0]
	var old uint64
	var rest []byte // of a buffer
	for until := int64(-1); s < end; s++ {
		if s >= until {
			old, until = p.generation(s)
		}
		for len(rest) == 0 {
			rest, bufs = bufs[0], bufs[1:]
		}
		sector := rest
		if len(rest) >= MinBlock {
			sector, rest = rest[:MinBlock], rest[MinBlock:]
		} else {
			for n := 0; n < MinBlock; {
				if len(rest) == 0 {
					rest, bufs = bufs[0], bufs[1:]
				}
				k := copy(w.sector[n:], rest)
				n, rest = n+k, rest[k:]
			}
			sector = w.sector[:]
		}
		g, m := p.judge(&w.checker, sector, s, old)
		if m != nil {
			p.note(m)
			if !p.count {
				return errors.New(m.String())
			}
			continue
		}
		if last := len(w.written) - 1; last >= 0 && w.written[last].to == s && w.written[last].generation == g {
			w.written[last].to++
		} else {
			w.written = append(w.written, run{s, s + 1, g})
		}
	}
	return nil
}

// judge is the generation of what is written to sector s, whose generation was old, or what is wrong with it.
func (p *PatternStore) judge(c *stamp.Checker, b []byte, s int64, old uint64) (uint64, *stamp.Mismatch) {
	id, _, valid := c.Parse(b)
	if valid && id.Seed == p.seed && id.Sector == uint64(s) && id.Generation != stamp.Zeroed && (old == stamp.Zeroed || id.Generation >= old) {
		return id.Generation, nil
	}
	if !valid && allZeros(b) {
		return stamp.Zeroed, nil
	}
	want := stamp.ID{Seed: p.seed, Sector: uint64(s), Generation: old}
	if old == stamp.Zeroed {
		want.Generation = p.runs.base // never changes
	}
	return 0, c.Check(b, want)
}

func allZeros(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func (p *PatternStore) note(m *stamp.Mismatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong++
	if len(p.first) < maxWrong {
		p.first = append(p.first, m)
	}
}

// take remembers what was written.
func (p *PatternStore) take(written []run) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range written {
		if err := p.runs.set(r); err != nil {
			return err
		}
	}
	return nil
}

// Unmap leaves zeros.
func (p *PatternStore) Unmap(off, n int64) error { return p.zero("unmap", off, n) }

// WriteZeroes leaves zeros.
func (p *PatternStore) WriteZeroes(off, n int64, _, _ bool) error {
	return p.zero("write zeros", off, n)
}

func (p *PatternStore) zero(op string, off, n int64) error {
	err := p.changeable(off, n)
	if err == nil && n > 0 {
		err = p.take([]run{{off / MinBlock, (off + n) / MinBlock, stamp.Zeroed}})
	}
	if err != nil {
		return rangeError("pattern store", op, off, n, err)
	}
	return nil
}

// Extent calls everything allocated but what was zeroed.
func (p *PatternStore) Extent(off, n int64) (allocated bool, length int64, err error) {
	if err := p.usable(off, n); err != nil {
		return false, 0, rangeError("pattern store", "extent", off, n, err)
	}
	g, until := p.generation(off / MinBlock)
	if until > (off+n)/MinBlock {
		return g != stamp.Zeroed, n, nil
	}
	return g != stamp.Zeroed, min(n, until*MinBlock-off), nil
}

func (p *PatternStore) usable(off, n int64) error {
	if p.closed.Load() {
		return net.ErrClosed
	}
	if !within(off, n, p.size) {
		return ErrRange
	}
	return nil
}

// changeable is usable, and whole sectors.
func (p *PatternStore) changeable(off, n int64) error {
	if err := p.usable(off, n); err != nil {
		return err
	}
	if n > 0 && (off%MinBlock != 0 || n%MinBlock != 0) {
		return errWholeSectors
	}
	return nil
}

// Flush has nothing to do.
func (p *PatternStore) Flush() error { return p.usable(0, 0) }

// Info says that it may block: computing takes longer than copying, and is better done by several.
func (p *PatternStore) Info() Info {
	return Info{
		SizeBytes: p.size, BlockSize: MinBlock, Volatile: true,
		Thin: true, UnmapGranularity: MinBlock, AtomicBytes: volatileAtomic,
	}
}

// Close forgets what was written.
func (p *PatternStore) Close() error {
	p.closed.Store(true)
	return nil
}
