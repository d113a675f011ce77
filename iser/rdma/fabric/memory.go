package fabric

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/goiser/goiser/iser/rdma"
)

// Keys are 32 bits: 24 of index into the device's key table, and 8 that change with each use of the
// index, so that a stale key is noticed (IBTA, 10.6.3.3).
const (
	keyIndexShift = 8
	maxKeys       = 1<<24 - 1
)

// Addresses of regions come one after the other from a base that no real memory has, with a gap that
// makes running off the end of one miss the next.
const (
	firstAddress = uint64(0xfab0) << 44
	addressAlign = 4096
	addressGap   = 1 << 30
)

// A device is one protection domain with its keys. Fabric.mem guards table, free and nextAddr.
type device struct {
	f        *Fabric
	name     string
	table    []slot
	free     []uint32 // indices, first freed first
	nextAddr uint64
}

// A slot is one entry of the key table: a region's local or remote key, or a window's key.
type slot struct {
	key    uint32 // 0: no key is valid here
	last   uint8  // changing part last used
	local  bool
	region *region // of a window: what it is bound to
	window *window // nil for a region's own keys
}

func newDevice(f *Fabric, name string) *device {
	return &device{f: f, name: name, table: make([]slot, 1), nextAddr: firstAddress} // index 0 is no key
}

// Name implements rdma.Device.
func (d *device) Name() string { return d.name }

// Limits implements rdma.Device.
func (d *device) Limits() rdma.Limits { return d.f.limits }

// takeSlot finds an unused index; it needs Fabric.mem.
func (d *device) takeSlot() (uint32, error) {
	if len(d.free) > 0 {
		i := d.free[0]
		d.free = d.free[1:]
		return i, nil
	}
	if len(d.table) > maxKeys {
		return 0, errors.New("no keys left")
	}
	d.table = append(d.table, slot{})
	return uint32(len(d.table) - 1), nil
}

// nextKey changes the changing part of a slot's key.
func (d *device) nextKey(i uint32) uint32 {
	d.table[i].last++
	return i<<keyIndexShift | uint32(d.table[i].last)
}

// dropSlot makes an index unused; it needs Fabric.mem.
func (d *device) dropSlot(i uint32) {
	d.table[i] = slot{last: d.table[i].last}
	d.free = append(d.free, i)
}

// find is the slot of a valid key, or nil; it needs Fabric.mem.
func (d *device) find(key uint32) *slot {
	i := key >> keyIndexShift
	if key == 0 || uint64(i) >= uint64(len(d.table)) || d.table[i].key != key {
		return nil
	}
	return &d.table[i]
}

// A region is registered memory.
type region struct {
	d          *device
	mem        []byte
	addr       uint64
	access     rdma.Access
	lkey, rkey uint32
	bound      int // windows bound to it
	dead       bool
}

// Register implements rdma.Device. mem may be on Go's heap.
func (d *device) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	if len(mem) == 0 {
		return nil, errors.New("fabric: register no memory: invalid argument")
	}
	if err := access.Check(); err != nil {
		return nil, fmt.Errorf("fabric: register: %w", err)
	}
	d.f.mem.Lock()
	defer d.f.mem.Unlock()
	r := &region{d: d, mem: mem, addr: d.nextAddr, access: access}
	li, err := d.takeSlot()
	if err != nil {
		return nil, fmt.Errorf("fabric: register: %w", err)
	}
	r.lkey = d.nextKey(li)
	d.table[li] = slot{key: r.lkey, last: d.table[li].last, local: true, region: r}
	if access&(rdma.RemoteRead|rdma.RemoteWrite) != 0 {
		ri, err := d.takeSlot()
		if err != nil {
			d.dropSlot(li)
			return nil, fmt.Errorf("fabric: register: %w", err)
		}
		r.rkey = d.nextKey(ri)
		d.table[ri] = slot{key: r.rkey, last: d.table[ri].last, region: r}
	}
	size := (uint64(len(mem)) + addressAlign - 1) &^ (addressAlign - 1)
	d.nextAddr += size + addressGap
	d.f.gauges.regions.Add(1)
	return r, nil
}

func (r *region) LKey() uint32 { return r.lkey }

// RKey is 0 for a region without remote rights.
func (r *region) RKey() uint32 { return r.rkey }
func (r *region) Addr() uint64 { return r.addr }

// Deregister implements rdma.MemoryRegion. As on real devices a region with windows bound to it stays.
func (r *region) Deregister() error {
	f := r.d.f
	f.mem.Lock()
	defer f.mem.Unlock()
	if r.dead {
		return fmt.Errorf("fabric: deregister twice: %w", net.ErrClosed)
	}
	if r.bound > 0 {
		return fmt.Errorf("fabric: deregister: %d windows are bound to the region", r.bound)
	}
	r.dead = true
	r.d.dropSlot(r.lkey >> keyIndexShift)
	if r.rkey != 0 {
		r.d.dropSlot(r.rkey >> keyIndexShift)
	}
	r.mem = nil
	f.gauges.regions.Add(-1)
	return nil
}

// slice is bytes [addr, addr+n) of a region; false if they are not all in it.
func (r *region) slice(addr, n uint64) ([]byte, bool) {
	if addr < r.addr {
		return nil, false
	}
	off, size := addr-r.addr, uint64(len(r.mem))
	if off > size || n > size-off {
		return nil, false
	}
	return r.mem[off : off+n : off+n], true
}

// local appends the memory that a scatter/gather list names to segs. The rights in need must be there
// besides local read. It needs Fabric.mem.
func (d *device) local(segs [][]byte, sgl []rdma.SGE, need rdma.Access) ([][]byte, bool) {
	for i := range sgl {
		s := &sgl[i]
		if s.Length == 0 {
			continue
		}
		e := d.find(s.LKey)
		if e == nil || !e.local || e.region.access&need != need {
			return segs, false
		}
		b, ok := e.region.slice(s.Addr, uint64(s.Length))
		if !ok {
			return segs, false
		}
		segs = append(segs, b)
	}
	return segs, true
}

// remote is the memory that a peer may use through key on queue pair q. The key and address of an access
// of no bytes are not looked at (IBTA, 9.7.4.1.5). It needs Fabric.mem.
func (d *device) remote(q *queuePair, key uint32, addr, n uint64, need rdma.Access) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	e := d.find(key)
	if e == nil || e.local {
		return nil, false
	}
	if w := e.window; w != nil {
		if w.qp != q || w.access&need == 0 || addr < w.addr || addr-w.addr > w.length || n > w.length-(addr-w.addr) {
			return nil, false
		}
	} else if e.region.access&need == 0 {
		return nil, false
	}
	return e.region.slice(addr, n)
}

// A window is a type 2 memory window. Fabric.mem guards all but posted.
type window struct {
	d      *device
	index  uint32
	posted atomic.Uint32 // key of the last bind posted
	closed bool
	// While bound, the slot has a key:
	qp           *queuePair
	region       *region
	addr, length uint64
	access       rdma.Access
}

// NewWindow implements rdma.Device.
func (d *device) NewWindow() (rdma.Window, error) {
	if !d.f.limits.Windows {
		return nil, errors.New("fabric: new window: the device has no memory windows")
	}
	d.f.mem.Lock()
	defer d.f.mem.Unlock()
	if most := int64(d.f.opts.MaxWindows); most > 0 && d.f.gauges.windows.Load() >= most {
		return nil, fmt.Errorf("fabric: new window: all %d are in use", most)
	}
	i, err := d.takeSlot()
	if err != nil {
		return nil, fmt.Errorf("fabric: new window: %w", err)
	}
	w := &window{d: d, index: i}
	d.table[i].window = w
	w.posted.Store(d.nextKey(i))
	d.f.gauges.windows.Add(1)
	return w, nil
}

func (w *window) RKey() uint32 { return w.posted.Load() }

// Close implements rdma.Window; it unbinds.
func (w *window) Close() error {
	f := w.d.f
	f.mem.Lock()
	defer f.mem.Unlock()
	if w.closed {
		return fmt.Errorf("fabric: close window: %w", net.ErrClosed)
	}
	w.closed = true
	w.unbind()
	w.d.table[w.index].last = uint8(w.posted.Load()) // no earlier key of it comes back
	w.d.dropSlot(w.index)
	f.gauges.windows.Add(-1)
	return nil
}

// postKey is the key that the next bind gets: the changing part moves on with each bind posted.
func (w *window) postKey() uint32 {
	k := rdma.NextKey(w.posted.Load())
	w.posted.Store(k)
	return k
}

// bind opens a piece of a region to q's peer under key. A bound window must be invalidated first, the
// piece must lie in the region and not be empty, and remote write needs a locally writable region (IBTA,
// 10.6.7.2.3). It needs Fabric.mem, for writing.
func (w *window) bind(q *queuePair, key uint32, r *region, sge rdma.SGE, access rdma.Access) bool {
	if w.closed || w.region != nil || r.dead || r.d != w.d || r.access&rdma.WindowBind == 0 || sge.Length == 0 {
		return false
	}
	if access&^(rdma.RemoteRead|rdma.RemoteWrite) != 0 || access == 0 ||
		access&rdma.RemoteWrite != 0 && r.access&rdma.LocalWrite == 0 {
		return false
	}
	if _, ok := r.slice(sge.Addr, uint64(sge.Length)); !ok || sge.LKey != r.lkey {
		return false
	}
	w.qp, w.region, w.addr, w.length, w.access = q, r, sge.Addr, uint64(sge.Length), access
	s := &w.d.table[w.index]
	s.key, s.last, s.region = key, uint8(key), r
	r.bound++
	return true
}

// unbind closes the window's memory to the peer. It needs Fabric.mem, for writing.
func (w *window) unbind() {
	if w.region == nil {
		return
	}
	w.region.bound--
	w.qp, w.region = nil, nil
	s := &w.d.table[w.index]
	s.key, s.region = 0, nil
}

// invalidate ends a key on behalf of q, or of its peer. Only a window bound on this very queue pair has
// a key that can be invalidated (IBTA, 10.6.7.2.5 and 9.4.1.1.1). It needs Fabric.mem, for writing.
func (d *device) invalidate(q *queuePair, key uint32) bool {
	s := d.find(key)
	if s == nil || s.window == nil || s.window.qp != q {
		return false
	}
	s.window.unbind()
	return true
}
