// Package arena hands out page-aligned data buffers from one region outside Go's heap, so that a
// transport can register the region once. A buffer has one owner at a time.
//
//	bufs, ok := pool.Get(t.bufs[:0], n) // all of it, or nothing
//	if !ok {
//		pool.Wait(&t.waiter, n) // first come, first served
//	}
//	…
//	pool.Put(bufs)
//
// The race detector does not watch memory outside Go's heap: that a buffer has one owner is checked by
// the pool itself (a double Put panics), not by -race.
package arena
