package rc

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/goiser/goiser/iser/rdma"
)

// A window is a type 2 memory window (IBTA 10.6.7.2). While it is bound its region cannot be deregistered, so the
// window's lock is enough to use the region's memory.
type window struct {
	grant          // key 0 while not bound; its lock guards what follows, too
	m      *Memory //
	name   uint32  // a key with the window's index
	owner  *QP     // the queue pair it was bound on, whose peer alone may use it
	region *region //
	closed bool    //
	posted atomic.Uint32
}

// NewWindow makes an unbound type 2 window.
func (m *Memory) NewWindow() (rdma.Window, error) {
	w := &window{m: m}
	w.window = w
	key, err := m.add(&w.grant)
	if err != nil {
		return nil, fmt.Errorf("new memory window: %w", err)
	}
	w.name = key
	w.posted.Store(key)
	return w, nil
}

// RKey implements rdma.Window. Any goroutine may call it.
func (w *window) RKey() uint32 { return w.posted.Load() }

// Close implements rdma.Window: it unbinds, after the copies of packets that are under way.
func (w *window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("close memory window: %w", net.ErrClosed)
	}
	w.closed = true
	w.unbind()
	w.m.remove(w.name)
	return nil
}

// postKey is the key of the next bind: the changing part moves on with each one posted.
func (w *window) postKey() uint32 {
	k := rdma.NextKey(w.posted.Load())
	w.posted.Store(k)
	return k
}

// bind opens a piece of r to q's peer under key. A bound window must be invalidated first, the piece lies in the
// region and is not empty, and remote write needs a locally writable region (IBTA 10.6.7.2.3).
func (w *window) bind(q *QP, key uint32, r *region, piece rdma.SGE, access rdma.Access) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.key.Load() != 0 || piece.Length == 0 || piece.LKey != r.name {
		return false
	}
	if access == 0 || access&^(rdma.RemoteRead|rdma.RemoteWrite) != 0 {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	need := rdma.WindowBind
	if access&rdma.RemoteWrite != 0 {
		need |= rdma.LocalWrite
	}
	mem, ok := r.slice(q, r.name, piece.Addr, uint64(piece.Length), need)
	if !ok {
		return false
	}
	r.windows.Add(1)
	w.owner, w.region = q, r
	w.addr, w.mem, w.access = piece.Addr, mem, access
	w.key.Store(key)
	return true
}

// unbind closes the window's memory to the peer. w.mu is held.
func (w *window) unbind() {
	if w.key.Load() == 0 {
		return
	}
	w.key.Store(0)
	w.region.windows.Add(-1)
	w.owner, w.region, w.mem = nil, nil, nil
}

// invalidate ends a key for q, or for its peer. Only a window bound on this very queue pair has a key that can be
// (IBTA 10.6.7.2.5, 9.4.1.1.1).
func (q *QP) invalidate(key uint32) bool {
	g := q.cfg.Memory.find(key)
	if g == nil || g.window == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if key == 0 || g.key.Load() != key || g.window.owner != q {
		return false
	}
	g.window.unbind()
	return true
}
