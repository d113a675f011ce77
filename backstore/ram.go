package backstore

import (
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
)

// A ramStore keeps its bytes in memory that it maps outside Go's heap, so that the memory can be
// registered with a device, costs the garbage collector nothing, and takes pages only when first written.
//
// It has no lock: every request only copies, and a lock would not order what goes through Map and a
// device anyway. Overlapping requests may see mixtures of bytes (see the package's comment). That is
// no data race that could harm Go: the region holds bytes only, none of them a pointer, a length or
// anything the program decides by. The race detector does not watch memory outside Go's heap.
//
// The memory never moves. Address space for growing is reserved behind it, and Resize only moves the end.
type ramStore struct {
	region *region
	size   atomic.Int64
	pinned atomic.Bool
	closed atomic.Bool
	resize sync.Mutex // one Resize at a time
}

// ramRoom is how much a ram store can grow, in bytes: address space, which costs nothing.
const ramRoom = 64 << 30

// volatileAtomic is what stores that keep nothing promise as Info.AtomicBytes, in bytes: after a crash
// there is nothing to be found in half, and no transfer is larger than this.
const volatileAtomic = 1 << 30

func openRAM(s settings) (Store, error) {
	size := s.size("size")
	if size > math.MaxInt {
		return nil, fmt.Errorf("ram store: size of %d bytes does not fit this machine's address space", size)
	}
	region, err := mapRegion(int(size), ramRoom)
	if err != nil {
		return nil, fmt.Errorf("ram store: map %d bytes: %w; give a smaller size", size, err)
	}
	r := &ramStore{region: region}
	r.size.Store(size)
	return r, nil
}

func (r *ramStore) ReadAt(bufs [][]byte, off int64) error {
	if err := r.check(bufs, off); err != nil {
		return requestError("ram store", "read", bufs, off, err)
	}
	from := r.region.mem[off:]
	for _, b := range bufs {
		from = from[copy(b, from):]
	}
	return nil
}

func (r *ramStore) WriteAt(bufs [][]byte, off int64, _ bool) error {
	if err := r.check(bufs, off); err != nil {
		return requestError("ram store", "write", bufs, off, err)
	}
	to := r.region.mem[off:]
	for _, b := range bufs {
		to = to[copy(to, b):]
	}
	return nil
}

// Unmap gives whole pages back to the system.
func (r *ramStore) Unmap(off, n int64) error { return r.zero("unmap", off, n, true) }

// WriteZeroes is Unmap with unmap, and clears the memory without.
func (r *ramStore) WriteZeroes(off, n int64, unmap, _ bool) error {
	return r.zero("write zeros", off, n, unmap)
}

func (r *ramStore) zero(op string, off, n int64, unmap bool) error {
	if err := r.checkRange(off, n); err != nil {
		return rangeError("ram store", op, off, n, err)
	}
	r.clear(off, n, unmap)
	return nil
}

// clear makes zeros, and gives whole pages back if they are wanted back and nobody has pinned them.
func (r *ramStore) clear(off, n int64, unmap bool) {
	mem := r.region.mem[off : off+n]
	if !unmap || r.pinned.Load() {
		clear(mem)
		return
	}
	from, to := whole(off, n, int64(r.region.page))
	clear(mem[:from-off])
	r.region.drop(mem[from-off : to-off])
	clear(mem[to-off:])
}

// Extent is what the system says of the pages.
func (r *ramStore) Extent(off, n int64) (allocated bool, length int64, err error) {
	if err := r.checkRange(off, n); err != nil {
		return false, 0, rangeError("ram store", "extent", off, n, err)
	}
	allocated, length = r.region.extent(off, n)
	return allocated, length, nil
}

// Resize moves the end. Memory that a device knows keeps its pages (Pin), so that only zeros are written
// there; what Memory returned before stays valid.
func (r *ramStore) Resize(size int64) error {
	r.resize.Lock()
	defer r.resize.Unlock()
	old := r.size.Load()
	switch {
	case r.closed.Load():
		return resizeError("ram store", size, net.ErrClosed)
	case size > int64(len(r.region.mem)):
		return resizeError("ram store", size, fmt.Errorf("%w: it can grow to %d bytes until it is opened again", ErrNoSpace, len(r.region.mem)))
	}
	if err := checkSize(size); err != nil {
		return resizeError("ram store", size, err)
	}
	if size > old {
		if err := r.region.use(int(size)); err != nil {
			return resizeError("ram store", size, err)
		}
		r.size.Store(size)
		return nil
	}
	r.size.Store(size)
	r.clear(size, old-size, true)
	return nil
}

// Pin keeps the pages from now on.
func (r *ramStore) Pin() { r.pinned.Store(true) }

// Map returns the store's own bytes. It panics if they are not in the store: the caller has checked.
func (r *ramStore) Map(off int64, n int) []byte {
	end := off + int64(n)
	return r.Memory()[off:end:end]
}

// Memory is the whole store, as large as it is now.
func (r *ramStore) Memory() []byte {
	size := r.size.Load()
	return r.region.mem[:size:size]
}

func (r *ramStore) check(bufs [][]byte, off int64) error {
	if r.closed.Load() {
		return net.ErrClosed
	}
	if !inRange(bufs, off, r.size.Load()) {
		return ErrRange
	}
	return nil
}

func (r *ramStore) checkRange(off, n int64) error {
	if r.closed.Load() {
		return net.ErrClosed
	}
	if !within(off, n, r.size.Load()) {
		return ErrRange
	}
	return nil
}

func (r *ramStore) Flush() error { return r.check(nil, 0) }

// Info says that unmapping works, although pages stay where they are once they are pinned: zeros are
// promised either way, and how much memory there is left is nobody's business but this machine's.
func (r *ramStore) Info() Info {
	return Info{
		SizeBytes: r.size.Load(), BlockSize: MinBlock, Volatile: true, NeverBlocks: true,
		Thin: true, UnmapGranularity: r.region.page, AtomicBytes: volatileAtomic,
	}
}

func (r *ramStore) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	if err := r.region.close(); err != nil {
		return fmt.Errorf("ram store: unmap: %w", err)
	}
	return nil
}
