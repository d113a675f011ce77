package backstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A region is private anonymous memory, sparse until written, with room to grow behind it.
type region struct {
	mem  []byte // the room too, which may not be touched before use
	page int    // the system's, bytes

	once    sync.Once // opens pagemap
	pagemap *os.File  // nil where there is none
}

// mapRegion maps size bytes and, where it can, room more. MADV_DONTFORK: a device that knows these pages must
// not be left with a child's copies of them.
func mapRegion(size, room int) (*region, error) {
	mem, err := reserve(size + room)
	if err != nil {
		mem, err = reserve(size) // a limit on address space: it cannot grow then
	}
	if err != nil {
		return nil, err
	}
	r := &region{mem: mem, page: unix.Getpagesize()}
	err = r.use(size)
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_DONTFORK)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	return r, nil
}

// reserve takes address space only. It is made accessible by use, so that a system that accounts for
// memory strictly (vm.overcommit_memory=2) counts no more than what is used.
func reserve(size int) ([]byte, error) {
	if size <= 0 {
		return nil, unix.ENOMEM // size and room do not fit an int
	}
	return unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

// use makes the first size bytes accessible.
func (r *region) use(size int) error {
	pages := (size + r.page - 1) / r.page * r.page
	return unix.Mprotect(r.mem[:min(pages, len(r.mem))], unix.PROT_READ|unix.PROT_WRITE)
}

// drop makes whole pages zeros and gives them back. Memory that is locked stays (madvise(2)) and is cleared.
func (r *region) drop(pages []byte) {
	if len(pages) > 0 && unix.Madvise(pages, unix.MADV_DONTNEED) != nil {
		clear(pages)
	}
}

// Bits of an entry of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagePresent   = 1 << 63
	pageSwapped   = 1 << 62
	pageExclusive = 1 << 56 // mapped here and nowhere else

	pageEntry = 8 // bytes
	// extentPages bounds what one call looks at: 256 MiB of pages of 4 KiB.
	extentPages = 64 << 10
)

// extent tells whether the page at off is there, and how far its neighbours are like it. mincore(2) would
// not do: it calls a page in swap space absent. Reading a page that is not there maps the one page of zeros that
// the system has for all: it is present, not exclusive, and zeros. Where the system does not tell, all is there.
func (r *region) extent(off, n int64) (allocated bool, length int64) {
	r.once.Do(func() { r.pagemap, _ = os.Open("/proc/self/pagemap") })
	if r.pagemap == nil {
		return true, n
	}
	page := int64(r.page)
	start := off / page * page
	first := addressOf(r.mem)/uintptr(page) + uintptr(off/page)
	count := min((off%page+n+page-1)/page, extentPages)
	var entries [512 * pageEntry]byte
	var same int64 // pages
	for same < count {
		b := entries[:min(count-same, 512)*pageEntry]
		if _, err := r.pagemap.ReadAt(b, (int64(first)+same)*pageEntry); err != nil {
			return true, n
		}
		for ; len(b) > 0; b = b[pageEntry:] {
			there := r.there(binary.NativeEndian.Uint64(b), start+same*page)
			if same > 0 && there != allocated {
				return allocated, same*page - off%page
			}
			allocated = there
			same++
		}
	}
	return allocated, min(n, same*page-off%page)
}

// there tells whether the page at off is more than an untouched or a read one.
func (r *region) there(entry uint64, off int64) bool {
	switch {
	case entry&(pagePresent|pageSwapped) == 0:
		return false
	case entry&(pageSwapped|pageExclusive) != 0:
		return true
	}
	p := r.mem[off:min(off+int64(r.page), int64(len(r.mem)))]
	return p[0] != 0 || !bytes.Equal(p[1:], p[:len(p)-1]) // not all zeros
}

func (r *region) close() error {
	err := unix.Munmap(r.mem)
	if r.pagemap != nil {
		err = errors.Join(err, r.pagemap.Close())
	}
	return err
}
