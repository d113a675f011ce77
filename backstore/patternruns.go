package backstore

import (
	"fmt"
	"slices"
	"sort"
)

// maxRuns bounds how many runs a PatternStore remembers: some 1.5 MB. Writes in order make one run; writes in
// disorder make up to one for each two of them until the gaps are filled.
const maxRuns = 1 << 16

// A run is the sectors [from, to), which hold stamps of one generation.
type run struct {
	from, to   int64
	generation uint64
}

// runs are what has been written, in order, without overlap; what is in none is of the base generation. It is
// not for concurrent use.
type runs struct {
	base uint64
	list []run
}

// at is the generation of a sector, and the first sector behind it that may have another.
func (r *runs) at(sector int64) (generation uint64, until int64) {
	i := r.after(sector)
	switch {
	case i == len(r.list):
		return r.base, 1<<63 - 1
	case sector < r.list[i].from:
		return r.base, r.list[i].from
	}
	return r.list[i].generation, r.list[i].to
}

// after is the index of the first run that ends behind a sector.
func (r *runs) after(sector int64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.list[i].to > sector })
}

// set gives the sectors of n their generation; ErrNoSpace if that would be too many runs.
func (r *runs) set(n run) error {
	// [i, j) are the runs that touch n, or join it without a gap.
	i := sort.Search(len(r.list), func(i int) bool { return r.list[i].to >= n.from })
	j := i
	var repl [3]run
	parts := repl[:0]
	joined := n
	var tail run
	for ; j < len(r.list) && r.list[j].from <= n.to; j++ {
		o := r.list[j]
		if o.generation == n.generation {
			joined.from, joined.to = min(joined.from, o.from), max(joined.to, o.to)
			continue
		}
		if o.from < n.from {
			parts = append(parts, run{o.from, n.from, o.generation})
		}
		if o.to > n.to {
			tail = run{max(o.from, n.to), o.to, o.generation}
		}
	}
	if n.generation != r.base {
		parts = append(parts, joined)
	}
	if tail.to > 0 {
		parts = append(parts, tail)
	}
	if more := len(parts) - (j - i); more > 0 && len(r.list)+more > maxRuns {
		return fmt.Errorf("%w: %d runs of generations are remembered at most; write in order, or a smaller range", ErrNoSpace, maxRuns)
	}
	r.list = slices.Replace(r.list, i, j, parts...)
	return nil
}
