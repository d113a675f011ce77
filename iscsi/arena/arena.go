// Package arena hands out page-aligned data buffers from one region outside Go's heap, so that a
// transport can register the region once. A buffer has one owner at a time.
package arena

// ChunkSize is the size of one buffer in bytes.
const ChunkSize = 64 << 10

// A Pool is a fixed region cut in chunks. Its methods may be called from any goroutine.
type Pool struct{}

// New maps a pool of at least sizeBytes (rounded up to whole chunks). Pages are touched on first use only.
func New(sizeBytes int64) (*Pool, error) { panic("not written") }

// Memory is the whole region, for registration.
func (p *Pool) Memory() []byte { panic("not written") }

// Chunks is the number of chunks in all, Free of those not handed out.
func (p *Pool) Chunks() int { panic("not written") }
func (p *Pool) Free() int   { panic("not written") }

// Get appends buffers that total n bytes (the last one cut to fit) to dst: all, or none and false. It does
// not overtake a Waiter.
func (p *Pool) Get(dst [][]byte, n int) ([][]byte, bool) { panic("not written") }

// Put gives buffers from Get or a Waiter back and wakes the waiters that can now be served. A buffer
// given back twice panics.
func (p *Pool) Put(bufs [][]byte) { panic("not written") }

// A Waiter waits for buffers in the order of Wait calls.
type Waiter struct {
	// Ready is called once, on some other goroutine with the pool's lock held, when Bufs is filled.
	Ready func()
	Bufs  [][]byte
}

// Wait queues w for n bytes; it may be served before Wait returns (then too Ready is called). It
// reports false, without queueing, if the pool is smaller than n.
func (p *Pool) Wait(w *Waiter, n int) bool { panic("not written") }

// Cancel takes w out of the queue; false means that it has been served already.
func (p *Pool) Cancel(w *Waiter) bool { panic("not written") }

// Close unmaps the region. No buffer may be in use.
func (p *Pool) Close() error { panic("not written") }
