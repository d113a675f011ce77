package backstore

// What only some stores can do. A caller asks by a type assertion and does without where it fails. All
// offsets and lengths are bytes inside the store; errors are those of Store. The methods may be called
// from many goroutines at once and together with those of Store; who calls them sees to it that nothing
// that must not overlap does.

// An Unmapper gives space back. The ranges that it frees read as zeros afterwards, also after a power cut
// that follows a Flush. A length that is no multiple of Info.UnmapGranularity frees what it covers whole
// and writes zeros over the rest.
type Unmapper interface {
	Unmap(off, n int64) error
}

// A Zeroer writes zeros faster than WriteAt of zeros would. With unmap it may give the space back, without
// it the space stays allocated, so that a later write cannot fail for lack of it. fua is as in WriteAt.
type Zeroer interface {
	WriteZeroes(off, n int64, unmap, fua bool) error
}

// An Extenter tells what of the store takes space. Extent describes the run that begins at off: whether
// it is allocated and how long the run is, at most n bytes and at least 1. What is not allocated reads as
// zeros.
type Extenter interface {
	Extent(off, n int64) (allocated bool, length int64, err error)
}

// A Resizer changes its size while in use. Shrinking drops what lies behind the new end: whoever asks has
// ended all use of it. Info says the new size when Resize has returned.
type Resizer interface {
	Resize(size int64) error
}
