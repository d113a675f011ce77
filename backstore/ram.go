package backstore

import (
	"fmt"
	"math"
	"net"
	"sync/atomic"
)

// A ramStore keeps its bytes in memory that it maps outside Go's heap, so that the memory can be
// registered with a device, costs the garbage collector nothing, and takes pages only when first written.
//
// It has no lock: every request only copies, and a lock would not order what goes through Map and a
// device anyway. Overlapping requests may see mixtures of bytes (see the package's comment). That is
// no data race that could harm Go: the region holds bytes only, none of them a pointer, a length or
// anything the program decides by. The race detector does not watch memory outside Go's heap.
type ramStore struct {
	mem    []byte
	closed atomic.Bool
}

func openRAM(s settings) (Store, error) {
	size := s.size("size")
	if size > math.MaxInt {
		return nil, fmt.Errorf("ram store: size of %d bytes does not fit this machine's address space", size)
	}
	mem, err := mapMemory(int(size))
	if err != nil {
		return nil, fmt.Errorf("ram store: map %d bytes: %w; give a smaller size", size, err)
	}
	return &ramStore{mem: mem}, nil
}

func (r *ramStore) ReadAt(bufs [][]byte, off int64) error {
	if err := r.check(bufs, off); err != nil {
		return requestError("ram store", "read", bufs, off, err)
	}
	from := r.mem[off:]
	for _, b := range bufs {
		from = from[copy(b, from):]
	}
	return nil
}

func (r *ramStore) WriteAt(bufs [][]byte, off int64, _ bool) error {
	if err := r.check(bufs, off); err != nil {
		return requestError("ram store", "write", bufs, off, err)
	}
	to := r.mem[off:]
	for _, b := range bufs {
		to = to[copy(to, b):]
	}
	return nil
}

// Map returns the store's own bytes. It panics if they are not in the store: the caller has checked.
func (r *ramStore) Map(off int64, n int) []byte {
	end := off + int64(n)
	return r.mem[off:end:end]
}

// Memory is the whole store.
func (r *ramStore) Memory() []byte { return r.mem }

func (r *ramStore) check(bufs [][]byte, off int64) error {
	if r.closed.Load() {
		return net.ErrClosed
	}
	if !inRange(bufs, off, int64(len(r.mem))) {
		return ErrRange
	}
	return nil
}

func (r *ramStore) Flush() error { return r.check(nil, 0) }

func (r *ramStore) Info() Info {
	return Info{SizeBytes: int64(len(r.mem)), BlockSize: MinBlock, Volatile: true, NeverBlocks: true, Thin: true}
}

func (r *ramStore) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	if err := unmapMemory(r.mem); err != nil {
		return fmt.Errorf("ram store: unmap: %w", err)
	}
	return nil
}
