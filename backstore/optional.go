package backstore

// What only some stores can do. A caller asks by a type assertion and does without where it fails. All
// offsets and lengths are bytes inside the store; errors are those of Store. The methods may be called
// from many goroutines at once and together with those of Store; who calls them sees to it that nothing
// that must not overlap does.

// An Unmapper gives space back. The ranges that it frees read as zeros afterwards, also after a power cut
// that follows a Flush. A length that is no multiple of Info.UnmapGranularity frees what it covers whole
// and writes zeros over the rest. Where Info.UnmapGranularity is 0 nothing is freed and all is written.
type Unmapper interface {
	Unmap(off, n int64) error
}

// A Zeroer writes zeros faster than WriteAt of zeros would. With unmap it may give the space back, without
// it the space stays allocated, so that a later write cannot fail for lack of it. fua is as in WriteAt.
type Zeroer interface {
	WriteZeroes(off, n int64, unmap, fua bool) error
}

// An Extenter tells what of the store takes space. Extent describes the run that begins at off: whether
// it is allocated and how long the run is, at most n bytes and at least 1 (n is 1 or more). The run may go
// on behind that, and what another request changes meanwhile counts before or after. What is not allocated
// reads as zeros.
type Extenter interface {
	Extent(off, n int64) (allocated bool, length int64, err error)
}

// A Resizer changes its size while in use. Shrinking drops what lies behind the new end: whoever asks has
// ended all use of it. Growing adds zeros. Info says the new size when Resize has returned, and the old one
// after an error.
type Resizer interface {
	Resize(size int64) error
}

// A Measurer lies on something that others can make larger or smaller. Measure takes its size of this moment;
// Info says it afterwards.
type Measurer interface {
	Measure() error
}

// A Trier answers a read at once where that needs no waiting for a medium: all of it lies in the page cache. TryReadAt
// fills bufs as ReadAt does and reports whether it has. If not, bufs hold anything, and ReadAt is due; it tells of errors,
// too.
type Trier interface {
	TryReadAt(bufs [][]byte, off int64) bool
}

// A Pinner is a Mapper whose memory a device may know by physical address (an RDMA device that is no
// software of this process). Pin says that one will: from then on the store keeps the pages that it has,
// for the device would go on with the old ones, and Unmap writes zeros.
type Pinner interface {
	Pin()
}

// within tells whether n bytes at off lie in a store of size bytes.
func within(off, n, size int64) bool { return off >= 0 && n >= 0 && off <= size && n <= size-off }

// whole cuts [off, off+n) in three: the units that it covers whole, [from, to), and what lies before and
// behind them. Where it covers none, from is to.
func whole(off, n, unit int64) (from, to int64) {
	end := off + n
	from, to = off, end-end%unit
	if rest := off % unit; rest != 0 {
		from = off + min(unit-rest, n)
	}
	return from, max(from, to)
}
