package backstore

import (
	"net"
	"sync/atomic"
)

// A nullStore reads zeros and forgets what is written: for measuring everything else.
type nullStore struct {
	sizeBytes int64
	closed    atomic.Bool
}

func openNull(s settings) (Store, error) { return &nullStore{sizeBytes: s.size("size")}, nil }

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

func (n *nullStore) check(bufs [][]byte, off int64) error {
	if n.closed.Load() {
		return net.ErrClosed
	}
	if !inRange(bufs, off, n.sizeBytes) {
		return ErrRange
	}
	return nil
}

func (n *nullStore) Flush() error { return n.check(nil, 0) }

func (n *nullStore) Info() Info {
	return Info{SizeBytes: n.sizeBytes, BlockSize: MinBlock, Volatile: true, NeverBlocks: true, Thin: true}
}

func (n *nullStore) Close() error {
	n.closed.Store(true)
	return nil
}
