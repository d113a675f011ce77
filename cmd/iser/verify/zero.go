package verify

import (
	"context"
	"fmt"

	"github.com/goiser/goiser/backstore/stamp"
)

// A Zeroer is a Disk that can be told to zero and to unmap ranges of blocks.
type Zeroer interface {
	WriteZeroes(ctx context.Context, off, n int64) error
	Unmap(ctx context.Context, off, n int64) error
}

// A fate is what is done to blocks.
type fate uint8

const (
	written fate = iota
	zeroed
	unmapped
)

// What an unmapped block may read as is the unit's affair (SBC-3, 4.7.3): UNMAP is a hint, so that the block may be as
// before. If it was unmapped, it reads as zeros where the unit says so (LBPRZ), and else as anything, today this and
// tomorrow that, until it is written.
//
// Without Overlap a request is first written and then, by chance, zeroed or unmapped, so that there is something to
// unmap, and something to be found if that is lost. Which requests that befell can be computed when they are read, as
// everything else: it is not kept.

// zeroes reports whether anything is zeroed or unmapped at all.
func (p *Plan) zeroes() bool { return p.Zero+p.Unmap > 0 }

// draw makes a fate of a number from 0 to 99.
func (p *Plan) draw(percent int) fate {
	switch {
	case percent < p.Zero:
		return zeroed
	case percent < p.Zero+p.Unmap:
		return unmapped
	}
	return written
}

// fateOf is that of the request that wrote at a byte.
func (c *cutter) fateOf(p *Plan, start int64) fate {
	if !p.zeroes() {
		return written
	}
	return p.draw(c.chance(start, forFates).IntN(100))
}

// zero zeroes or unmaps a range.
func (r *Runner) zero(ctx context.Context, d Disk, f fate, q Range) (err error) {
	z, ok := d.(Zeroer)
	if f != written && !ok {
		panic(fmt.Sprintf("verify: %T can neither zero nor unmap, the plan wants both", d))
	}
	switch f {
	case zeroed:
		err = z.WriteZeroes(ctx, q.Start, q.Len())
	case unmapped:
		err = z.Unmap(ctx, q.Start, q.Len())
	}
	if err == nil {
		r.befell(f, q)
	}
	return err
}

// compareFates is compare where some of the generation's requests were zeroed or unmapped: c cut them.
func (r *Runner) compareFates(c *cutter, l *layout, p []byte, q Range, g uint64) {
	for _, w := range c.cut(nil, l.holding(q.Start)) {
		part := Range{max(w.Start, q.Start), min(w.End, q.End)}
		if part.Len() <= 0 {
			continue
		}
		b := p[part.Start-q.Start : part.End-q.Start]
		switch c.fateOf(&r.plan, w.Start) {
		case written:
			r.compare(b, r.id(part, g))
		case zeroed:
			r.compare(b, r.id(part, stamp.Zeroed))
		case unmapped:
			r.compareUnmapped(b, part, g)
		}
	}
}

// compareUnmapped records what is neither as it was before it was unmapped, nor as an unmapped block is.
func (r *Runner) compareUnmapped(p []byte, q Range, g uint64) {
	if !r.plan.UnmapZeroes {
		return
	}
	var c stamp.Checker
	kept := int64(0)
	for id := r.id(q, g); len(p) > 0; p, id.Sector = p[stamp.SectorSize:], id.Sector+1 {
		sector := p[:stamp.SectorSize]
		if stamp.IsZeros(sector) {
			continue
		}
		m := c.Check(sector, id)
		if m == nil {
			kept += stamp.SectorSize
			continue
		}
		if m.Kind != stamp.BitFlip { // not near to what it was: then it should have been unmapped
			zeros := id
			zeros.Generation = stamp.Zeroed
			m = c.Check(sector, zeros)
		}
		r.bad(m)
	}
	r.keptMapped(kept)
}
