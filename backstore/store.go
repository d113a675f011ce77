package backstore

import (
	"errors"
	"fmt"
)

// Errors that callers branch on; what a store returns wraps the system's error too. Errors of a closed
// store wrap net.ErrClosed.
var (
	ErrReadOnly = errors.New("store is read-only")
	ErrNoSpace  = errors.New("no space left in the store")
	ErrRange    = errors.New("beyond the end of the store")
	ErrInUse    = errors.New("in use by another store or process") // from Open
)

// MinBlock is the unit of every store's size, in bytes.
const MinBlock = 512

// A Store holds bytes at offsets. Its methods may be called from many goroutines at once. Reads and
// writes are whole or an error: short counts do not exist.
type Store interface {
	// ReadAt fills bufs, in order, from offset off (bytes).
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt writes bufs, in order, at offset off. The bytes are durable after Flush, or on return if
	// fua is set or the store has no WriteCache. After an error the range may hold any mixture of old
	// and new bytes.
	WriteAt(bufs [][]byte, off int64, fua bool) error
	// Flush makes every completed write durable as far as the store can promise (Info.Volatile).
	Flush() error
	Info() Info
	// Close flushes and frees the store. The caller has ended all other calls and all use of mapped
	// memory before. Closing it again is harmless.
	Close() error
}

// Info is what a store says of itself.
type Info struct {
	SizeBytes int64
	// BlockSize is the smallest unit (bytes) that the store writes without reading first, a power of two
	// of at least 512.
	BlockSize int
	ReadOnly  bool
	// WriteCache: completed writes may still be lost by a power cut until Flush: what MODE SENSE's WCE
	// says.
	WriteCache bool
	// Volatile: nothing survives the process (ram, null).
	Volatile bool
	// NeverBlocks: reads and writes only touch memory and may run on a connection's loop.
	NeverBlocks bool
	// Rotational: the medium is known to spin, so that distance costs time.
	Rotational bool
	// Thin: unwritten or unmapped ranges take no space and read as zeros.
	Thin bool
	// UnmapGranularity is the unit in which an Unmapper frees space, in bytes; 0 without one.
	UnmapGranularity int
	// AtomicBytes is the largest write, in bytes, that is found whole or not at all after a crash, aligned to
	// its own size; 0 promises nothing beyond a block of BlockSize.
	AtomicBytes int
}

// A Mapper's bytes lie in memory: Map returns those at [off, off+n) without a copy, and Memory the whole
// region, for registration with a transport. They may change while another request writes.
type Mapper interface {
	Map(off int64, n int) []byte
	Memory() []byte
}

// inRange tells whether bufs fit in a store of size bytes at offset off.
func inRange(bufs [][]byte, off, size int64) bool {
	if off < 0 || off > size {
		return false
	}
	left := size - off
	for _, b := range bufs {
		if left -= int64(len(b)); left < 0 {
			return false
		}
	}
	return true
}

// total is the number of bytes in bufs.
func total(bufs [][]byte) int64 {
	var n int64
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// requestError says which request failed.
func requestError(store, op string, bufs [][]byte, off int64, err error) error {
	return rangeError(store, op, off, total(bufs), err)
}

func rangeError(store, op string, off, n int64, err error) error {
	return fmt.Errorf("%s: %s %d bytes at %d: %w", store, op, n, off, err)
}

func resizeError(store string, size int64, err error) error {
	return fmt.Errorf("%s: resize to %d bytes: %w", store, size, err)
}
