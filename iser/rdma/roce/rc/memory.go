package rc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"github.com/goiser/goiser/iser/rdma"
)

// A key is 24 bits of index and 8 that change, so that a stale key is noticed (IBTA 10.6.3.3).
const (
	variantBits = 8
	shardCount  = 256
	// maxGrants bounds a table: a sixteenth of the indices, so that drawing a free one takes one or two draws.
	maxGrants = 1 << 20
	// Addresses of regions are drawn between these, on pages. No sum of one and a region's size wraps.
	minAddr  = 1 << 40
	maxAddr  = 1 << 62
	pageSize = 4096
)

// localRead is the right to send from memory. Regions always have it, windows never.
const localRead rdma.Access = 1 << 7

// Memory is the registered memory of a device: regions and windows by key (IBTA 10.6). Keys are random and change
// with every registration and bind; 0 is never one. Its methods may be called from any goroutine; the data of a
// region may be touched by queue pairs until Deregister has returned, and not after.
//
// A look-up loads one pointer to a map that never changes: registering copies the map of its shard. A grant found
// that way may be ending just then, so whoever copies data holds its lock for reading and compares the key again.
// Whoever ends a grant holds that lock for writing and clears the key: once it has the lock no copy is under way,
// and none can begin after it.
type Memory struct {
	shards [shardCount]atomic.Pointer[map[uint32]*grant]

	mu    sync.Mutex // guards writing to shards, and what follows
	rng   *rand.Rand
	count int
}

// A grant is what a key opens: bytes [addr, addr+len(mem)).
type grant struct {
	key    atomic.Uint32 // 0: nothing; written with mu held
	mu     sync.RWMutex  // held for reading while data is copied
	addr   uint64
	mem    []byte
	access rdma.Access
	window *window // nil for a region
}

// NewMemory makes an empty table; keys are drawn from seed.
func NewMemory(seed uint64) *Memory {
	var s [32]byte
	binary.LittleEndian.PutUint64(s[:], seed)
	return &Memory{rng: rand.New(rand.NewChaCha8(s))}
}

// Keys is how many keys are in use: regions, and windows that are bound or have been.
func (m *Memory) Keys() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// find is the grant that key's index belongs to, or nil. Its key must be compared with its lock held.
func (m *Memory) find(key uint32) *grant {
	i := key >> variantBits
	if t := m.shards[i%shardCount].Load(); t != nil {
		return (*t)[i]
	}
	return nil
}

// add puts g into the table and returns a key for it.
func (m *Memory) add(g *grant) (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.count >= maxGrants {
		return 0, errors.New("no keys left")
	}
	for {
		key := m.rng.Uint32()
		if key>>variantBits == 0 || m.find(key) != nil {
			continue
		}
		m.count++
		m.change(key, func(t map[uint32]*grant) { t[key>>variantBits] = g })
		return key, nil
	}
}

// remove takes the grant of key's index out of the table.
func (m *Memory) remove(key uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count--
	m.change(key, func(t map[uint32]*grant) { delete(t, key>>variantBits) })
}

// change replaces the shard of key by a changed copy. m.mu is held.
func (m *Memory) change(key uint32, f func(map[uint32]*grant)) {
	s := &m.shards[key>>variantBits%shardCount]
	t := make(map[uint32]*grant)
	if old := s.Load(); old != nil {
		maps.Copy(t, *old)
	}
	f(t)
	s.Store(&t)
}

// drawAddr is a page-aligned address. m.mu is not held.
func (m *Memory) drawAddr() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return (minAddr + m.rng.Uint64N(maxAddr-minAddr)) &^ (pageSize - 1)
}

// slice is n bytes at addr, if key opens them to q for need. The form of the comparisons cannot wrap. g.mu is held.
func (g *grant) slice(q *QP, key uint32, addr, n uint64, need rdma.Access) ([]byte, bool) {
	if g.key.Load() != key && !q.faults.staleKey || g.access&need != need {
		return nil, false
	}
	if g.window != nil && g.window.owner != q {
		return nil, false
	}
	off, size := addr-g.addr, uint64(len(g.mem))
	if addr < g.addr || off > size || n > size-off {
		return nil, false
	}
	return g.mem[off : off+n : off+n], true
}

// lookup finds key's grant, first in *hot, which remembers the last one.
func (q *QP) lookup(hot **grant, key uint32) *grant {
	if g := *hot; g != nil && g.key.Load() == key {
		return g
	}
	g := q.cfg.Memory.find(key)
	if g != nil {
		*hot = g
	}
	return g
}

// opens reports whether key opens n bytes at addr for need, now.
func (q *QP) opens(hot **grant, key uint32, addr, n uint64, need rdma.Access) bool {
	g := q.lookup(hot, key)
	if g == nil {
		return false
	}
	g.mu.RLock()
	_, ok := g.slice(q, key, addr, n, need)
	g.mu.RUnlock()
	return ok
}

// load copies registered memory to dst.
func (q *QP) load(hot **grant, key uint32, addr uint64, dst []byte, need rdma.Access) bool {
	g := q.lookup(hot, key)
	if g == nil {
		return false
	}
	g.mu.RLock()
	src, ok := g.slice(q, key, addr, uint64(len(dst)), need)
	copy(dst, src)
	g.mu.RUnlock()
	return ok
}

// store copies src to registered memory.
func (q *QP) store(hot **grant, key uint32, addr uint64, src []byte, need rdma.Access) bool {
	g := q.lookup(hot, key)
	if g == nil {
		return false
	}
	g.mu.RLock()
	dst, ok := g.slice(q, key, addr, uint64(len(src)), need)
	copy(dst, src)
	g.mu.RUnlock()
	return ok
}

// gather copies the bytes from off on of what sgl names to dst.
func (q *QP) gather(sgl []rdma.SGE, off uint32, dst []byte) bool {
	for i := range sgl {
		e := &sgl[i]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		n := min(uint32(len(dst)), e.Length-off)
		if n == 0 {
			break
		}
		if !q.load(&q.hotLocal, e.LKey, e.Addr+uint64(off), dst[:n], localRead) {
			return false
		}
		dst, off = dst[n:], 0
	}
	return len(dst) == 0
}

// scatter copies src to the bytes from off on of what sgl names.
func (q *QP) scatter(sgl []rdma.SGE, off uint32, src []byte) bool {
	for i := range sgl {
		e := &sgl[i]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		n := min(uint32(len(src)), e.Length-off)
		if n == 0 {
			break
		}
		if !q.store(&q.hotLocal, e.LKey, e.Addr+uint64(off), src[:n], rdma.LocalWrite) {
			return false
		}
		src, off = src[n:], 0
	}
	return len(src) == 0
}

// holds reports whether all that sgl names may be used for need, now.
func (q *QP) holds(sgl []rdma.SGE, need rdma.Access) bool {
	for i := range sgl {
		if e := &sgl[i]; e.Length > 0 && !q.opens(&q.hotLocal, e.LKey, e.Addr, uint64(e.Length), need) {
			return false
		}
	}
	return true
}

// A region is registered memory. Its local and its remote key are one: what it may be used for is looked up.
type region struct {
	grant
	m       *Memory
	base    uint64
	name    uint32       // the key, also when it is dead
	remote  bool         // has remote rights
	windows atomic.Int32 // bound to it; grows only with mu held for reading
}

// Register opens mem. It implements rdma.Device.Register. mem may be on Go's heap.
func (m *Memory) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	const all = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.WindowBind
	if len(mem) == 0 || access&^all != 0 {
		return nil, fmt.Errorf("register %d bytes with access %#x: invalid argument", len(mem), uint8(access))
	}
	if err := access.Check(); err != nil {
		return nil, fmt.Errorf("register memory: %w", err)
	}
	base := m.drawAddr()
	r := &region{m: m, base: base, remote: access&(rdma.RemoteRead|rdma.RemoteWrite) != 0}
	r.addr, r.mem, r.access = base, mem, access|localRead
	key, err := m.add(&r.grant)
	if err != nil {
		return nil, fmt.Errorf("register memory: %w", err)
	}
	r.name = key
	r.key.Store(key) // until here the grant opens nothing
	return r, nil
}

func (r *region) LKey() uint32 { return r.name }

// RKey is 0 for a region without remote rights.
func (r *region) RKey() uint32 {
	if !r.remote {
		return 0
	}
	return r.name
}

func (r *region) Addr() uint64 { return r.base }

// Deregister implements rdma.MemoryRegion. It waits for the copies of packets that are under way.
func (r *region) Deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key.Load() == 0 {
		return fmt.Errorf("deregister memory twice: %w", net.ErrClosed)
	}
	if n := r.windows.Load(); n > 0 {
		return fmt.Errorf("deregister memory: %d windows are bound to it", n)
	}
	r.key.Store(0)
	r.mem = nil
	r.m.remove(r.name)
	return nil
}
