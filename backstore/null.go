package backstore

import (
	"net"
	"sync/atomic"
)

// A nullStore reads zeros and forgets what is written: for measuring everything else.
type nullStore struct {
	sizeBytes atomic.Int64
	closed    atomic.Bool
}

func openNull(s settings) (Store, error) {
	n := &nullStore{}
	n.sizeBytes.Store(s.size("size"))
	return n, nil
}

func (n *nullStore) ReadAt(bufs [][]byte, off int64) error {
	if err := n.check(bufs, off); err != nil {
		return requestError("null store", "read", bufs, off, err)
	}
	for _, b := range bufs {
		clear(b)
	}
	return nil
}

func (n *nullStore) WriteAt(bufs [][]byte, off int64, _ bool) error {
	if err := n.check(bufs, off); err != nil {
		return requestError("null store", "write", bufs, off, err)
	}
	return nil
}

// Unmap finds zeros there already.
func (n *nullStore) Unmap(off, length int64) error {
	if err := n.checkRange(off, length); err != nil {
		return rangeError("null store", "unmap", off, length, err)
	}
	return nil
}

// WriteZeroes finds zeros there already.
func (n *nullStore) WriteZeroes(off, length int64, _, _ bool) error {
	if err := n.checkRange(off, length); err != nil {
		return rangeError("null store", "write zeros", off, length, err)
	}
	return nil
}

// Extent is one run without anything.
func (n *nullStore) Extent(off, length int64) (allocated bool, run int64, err error) {
	if err := n.checkRange(off, length); err != nil {
		return false, 0, rangeError("null store", "extent", off, length, err)
	}
	return false, length, nil
}

// Resize changes what is said.
func (n *nullStore) Resize(size int64) error {
	err := checkSize(size)
	if n.closed.Load() {
		err = net.ErrClosed
	}
	if err != nil {
		return resizeError("null store", size, err)
	}
	n.sizeBytes.Store(size)
	return nil
}

func (n *nullStore) check(bufs [][]byte, off int64) error {
	if n.closed.Load() {
		return net.ErrClosed
	}
	if !inRange(bufs, off, n.sizeBytes.Load()) {
		return ErrRange
	}
	return nil
}

func (n *nullStore) checkRange(off, length int64) error {
	if n.closed.Load() {
		return net.ErrClosed
	}
	if !within(off, length, n.sizeBytes.Load()) {
		return ErrRange
	}
	return nil
}

func (n *nullStore) Flush() error { return n.check(nil, 0) }

func (n *nullStore) Info() Info {
	return Info{
		SizeBytes: n.sizeBytes.Load(), BlockSize: MinBlock, Volatile: true, NeverBlocks: true,
		Thin: true, UnmapGranularity: MinBlock, AtomicBytes: volatileAtomic,
	}
}

func (n *nullStore) Close() error {
	n.closed.Store(true)
	return nil
}
