package arena

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
)

// ChunkSize is the size of one buffer in bytes.
const ChunkSize = 64 << 10

// maxChunks bounds a pool (16 TiB) so that chunk numbers fit an int32 and sizes do not wrap.
const maxChunks = 1 << 28

// A Pool is a fixed region cut in chunks. Its methods may be called from any goroutine.
type Pool struct {
	mu     sync.Mutex
	mem    []byte
	base   uintptr // address of mem[0]; the region never moves
	chunks int
	free   []int32 // a stack, so that the chunk used last, still in the cache, is used next
	used   []bool  // by chunk

	head, tail *Waiter // first come, first served
}

// New maps a pool of at least sizeBytes (rounded up to whole chunks). Pages are touched on first use only.
// An error wraps the system's.
func New(sizeBytes int64) (*Pool, error) {
	if sizeBytes <= 0 || (sizeBytes-1)/ChunkSize >= maxChunks || sizeBytes > math.MaxInt-ChunkSize {
		return nil, fmt.Errorf("buffer pool of %d bytes: want 1 byte to %d chunks of %d", sizeBytes, maxChunks, ChunkSize)
	}
	chunks := int((sizeBytes + ChunkSize - 1) / ChunkSize)
	mem, err := mapMemory(chunks * ChunkSize)
	if err != nil {
		return nil, fmt.Errorf("map a buffer pool of %d bytes: %w", chunks*ChunkSize, err)
	}
	p := &Pool{mem: mem, base: address(mem), chunks: chunks, free: make([]int32, chunks), used: make([]bool, chunks)}
	for i := range p.free {
		p.free[i] = int32(chunks - 1 - i) // the lowest chunk on top
	}
	return p, nil
}

// Memory is the whole region, for registration; nil after Close.
func (p *Pool) Memory() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mem
}

// Chunks is the number of chunks in all.
func (p *Pool) Chunks() int { return p.chunks }

// Free is the number of chunks not handed out.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Get appends buffers that total n bytes (the last one cut to fit) to dst: all, or none and false. It does
// not overtake a Waiter. It allocates only if dst has no room. The buffers hold whatever their last
// user left there.
func (p *Pool) Get(dst [][]byte, n int) ([][]byte, bool) {
	need := chunksFor(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if need > 0 && (p.head != nil || need > len(p.free)) {
		return dst, false
	}
	return p.takeLocked(dst, n), true
}

// Put gives buffers from Get or a Waiter back and wakes the waiters that can now be served. A buffer may
// have been shortened, but not moved: it must start where it started. One given back twice, or that was
// never handed out, panics.
func (p *Pool) Put(bufs [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Backwards, so that the next Get of this size returns the same buffers in the same order.
	for i := len(bufs) - 1; i >= 0; i-- {
		c := p.chunkLocked(bufs[i])
		if !p.used[c] {
			panic(fmt.Sprintf("arena: chunk %d given back twice", c))
		}
		p.used[c] = false
		p.free = append(p.free, int32(c))
	}
	p.serveLocked()
}

// Close unmaps the region. While a buffer is in use or somebody waits it does nothing and returns an
// error: unmapped memory that is still in use would end the process.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return nil
	}
	if n := p.chunks - len(p.free); n > 0 {
		return fmt.Errorf("close a buffer pool: %d of %d chunks are in use", n, p.chunks)
	}
	if p.head != nil {
		return errors.New("close a buffer pool: somebody waits for buffers")
	}
	mem := p.mem
	p.mem, p.free = nil, nil
	if err := unmapMemory(mem); err != nil {
		return fmt.Errorf("unmap a buffer pool: %w", err)
	}
	return nil
}

// takeLocked appends n bytes of buffers, which must be free, to dst.
func (p *Pool) takeLocked(dst [][]byte, n int) [][]byte {
	for n > 0 {
		top := len(p.free) - 1
		c := int(p.free[top])
		p.free = p.free[:top]
		if p.used[c] {
			panic(fmt.Sprintf("arena: chunk %d is free and in use", c))
		}
		p.used[c] = true
		size := min(n, ChunkSize)
		// The capacity ends with the chunk, so that no append can reach a neighbour.
		dst = append(dst, p.mem[c*ChunkSize:][:size:ChunkSize])
		n -= size
	}
	return dst
}

// chunkLocked finds the chunk that b is the front of.
func (p *Pool) chunkLocked(b []byte) int {
	if cap(b) == 0 {
		panic("arena: an empty buffer is of no pool")
	}
	off := address(b[:1]) - p.base // wraps to something large below base
	if off >= uintptr(len(p.mem)) {
		panic(fmt.Sprintf("arena: buffer at %#x is not of this pool", address(b[:1])))
	}
	if off%ChunkSize != 0 {
		panic(fmt.Sprintf("arena: buffer starts %d bytes into a chunk", off%ChunkSize))
	}
	return int(off / ChunkSize)
}

// chunksFor is the number of chunks that hold n bytes.
func chunksFor(n int) int {
	if n < 0 {
		panic(fmt.Sprintf("arena: %d bytes wanted", n))
	}
	return n/ChunkSize + min(n%ChunkSize, 1)
}

// address is where b, which is not empty, starts. The region is not moved by Go, so the number stays true.
func address(b []byte) uintptr { return reflect.ValueOf(&b[0]).Pointer() }
