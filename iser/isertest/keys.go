package isertest

import (
	"maps"
	"slices"

	"github.com/goiser/goiser/iser/rdma"
)

// A windowKey is what a window is bound to, for as long as it is.
type windowKey struct {
	q      *watchedQP
	region *watchedRegion
	piece  rdma.SGE
	access rdma.Access
}

// What a key may grant, by what a command needs of it.
func needs(write bool) rdma.Access {
	if write {
		return rdma.RemoteWrite
	}
	return rdma.RemoteRead
}

// opened is the region of the memory that a command offers, nil if that is not right: the key must open it for what the
// command needs and for nothing else.
func (w *Watch) opened(q *watchedQP, itt uint32, write bool, key uint32, addr uint64, n uint32) *watchedRegion {
	r, from, size, access := w.find(key)
	if r == nil {
		w.failf("command %08x offers memory with the unknown key %#x", itt, key)
		return nil
	}
	if off := addr - from; addr < from || off > size || uint64(n) > size-off {
		w.failf("command %08x offers %d bytes at %#x, beyond what its key opens", itt, n, addr)
		return nil
	}
	if access&(rdma.RemoteRead|rdma.RemoteWrite) != needs(write) {
		w.failf("command %08x offers a key that grants %#x and not only %#x", itt, uint8(access), uint8(needs(write)))
	}
	if k := w.keys[key]; k != nil && k.q != q {
		w.failf("command %08x offers a key of another connection", itt)
	}
	return r
}

// find is what a key opens: a region's own, or a window's part of one.
func (w *Watch) find(key uint32) (r *watchedRegion, from, size uint64, access rdma.Access) {
	if k := w.keys[key]; k != nil {
		return k.region, k.piece.Addr, uint64(k.piece.Length), k.access
	}
	if i := slices.IndexFunc(w.regions, func(r *watchedRegion) bool { return r.RKey() == key && key != 0 }); i >= 0 {
		r = w.regions[i]
		return r, r.Addr(), uint64(len(r.mem)), r.access
	}
	return nil, 0, 0, 0
}

// bound notes that a window has been bound.
func (w *Watch) bound(q *watchedQP, wr *rdma.SendWR, r *watchedRegion) {
	w.checks.Keys++
	w.keys[wr.Window.RKey()] = &windowKey{q: q, region: r, piece: wr.SGL[0], access: wr.Access}
}

// invalidating checks that a key is ended for the first time, and that the device is done with the Send that offered it.
func (w *Watch) invalidating(q *watchedQP, key uint32) {
	if w.keys[key] == nil {
		w.failf("queue pair %#x: the key %#x is invalidated, which is not bound: twice?", q.Num(), key)
	}
	for _, p := range q.sends.posted {
		if key != 0 && p.offers == key {
			w.failf("queue pair %#x: the key %#x is invalidated before the Send that offered it has completed", q.Num(), key)
		}
	}
	delete(w.keys, key)
}

// dead notes that nothing can use a key any more.
func (w *Watch) dead(key uint32) {
	delete(w.keys, key)
	w.each(func(o *offer) {
		if o.key == key && !o.ended {
			w.end(o)
		}
	})
}

// gone notes that a queue pair is no more: its peer cannot reach anything any more.
func (w *Watch) gone(q *watchedQP) {
	maps.DeleteFunc(w.keys, func(_ uint32, k *windowKey) bool { return k.q == q })
	w.each(func(o *offer) {
		if o.q == q && !o.ended {
			w.end(o)
		}
	})
}

// invalidated notes that the peer has ended a key with the answer to a command. If it is not that command's, nothing may
// follow on the queue pair.
func (w *Watch) invalidated(q *watchedQP, itt, key uint32) {
	mine := false
	w.each(func(o *offer) { mine = mine || o.itt == itt && o.key == key && !o.ended })
	if !mine {
		q.betrayed = true
	}
	delete(w.keys, key)
}
