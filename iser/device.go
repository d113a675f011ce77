package iser

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/goiser/goiser/iser/rdma"
)

// ErrOverlap: memory to be registered overlaps memory that is registered already.
var ErrOverlap = errors.New("memory overlaps registered memory")

// A region is memory that the users of a listener, or of an initiator's connection, registered with one device.
type region struct {
	base, end uintptr // [base, end)
	mr        rdma.MemoryRegion
	count     int // how often it was registered
}

// A device is what a listener, or an initiator's connection, keeps of one RDMA device: the memory that can be used in place. The data
// path looks regions up without a lock; changes copy the list.
type device struct {
	rdma.Device
	access rdma.Access

	mu      sync.Mutex // held by writers of regions
	regions atomic.Pointer[[]region]
	users   int // the listener and its connections; the listener's lock guards it
}

// newDevice starts with no memory; what is registered will grant access.
func newDevice(d rdma.Device, access rdma.Access) *device {
	dev := &device{Device: d, access: access}
	dev.regions.Store(&[]region{})
	return dev
}

// localAccess is what a target's data memory must grant: the device writes to it when an RDMA Read
// arrives. An iWARP device wants that to be a remote write (RFC 5040: a Read Response is a tagged
// write to the sink's STag).
func localAccess(d rdma.Device) rdma.Access {
	if d.Limits().ReadSinkNeedsRemoteWrite {
		return rdma.LocalWrite | rdma.RemoteWrite
	}
	return rdma.LocalWrite
}

// register makes mem usable in place. Memory that was registered before is only counted; memory that
// overlaps other registered memory is ErrOverlap, for a lookup could not tell which to use.
func (d *device) register(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	base := address(mem)
	end := base + uintptr(len(mem))
	old := *d.regions.Load()
	i := sort.Search(len(old), func(i int) bool { return old[i].end > base })
	if i < len(old) && old[i].base < end {
		if old[i].base != base || old[i].end != end {
			return fmt.Errorf("register %d bytes at %#x: %w", len(mem), base, ErrOverlap)
		}
		list := slices.Clone(old)
		list[i].count++
		d.regions.Store(&list)
		return nil
	}
	mr, err := d.Register(mem, d.access)
	if err != nil {
		return fmt.Errorf("register %d bytes with %s: %w", len(mem), d.Name(), err)
	}
	list := slices.Insert(slices.Clone(old), i, region{base: base, end: end, mr: mr, count: 1})
	d.regions.Store(&list)
	return nil
}

// unregister undoes one register. Unknown memory is ignored: a listener is told of all of it, whether
// or not its devices knew it.
func (d *device) unregister(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	base := address(mem)
	list := slices.Clone(*d.regions.Load())
	i := slices.IndexFunc(list, func(r region) bool { return r.base == base && r.end == base+uintptr(len(mem)) })
	if i < 0 {
		return nil
	}
	if list[i].count--; list[i].count > 0 {
		d.regions.Store(&list)
		return nil
	}
	mr := list[i].mr
	list = slices.Delete(list, i, i+1)
	d.regions.Store(&list)
	return mr.Deregister()
}

// closeRegions ends every registration.
func (d *device) closeRegions() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, r := range *d.regions.Load() {
		errs = append(errs, r.mr.Deregister())
	}
	d.regions.Store(&[]region{})
	return errors.Join(errs...)
}

// find returns the region that holds the byte at addr, nil if none does.
func (d *device) find(addr uintptr) *region {
	list := *d.regions.Load()
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if list[mid].end <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(list) && list[lo].base <= addr {
		return &list[lo]
	}
	return nil
}

// A cursor is a place in a list of buffers.
type cursor struct{ buf, off int }

// gather names the registered memory of bufs from cur on: up to max bytes in at most room pieces,
// appended to sgl. It stops before a byte that is not registered. cur moves behind what was taken.
// Neighbours that are one run of memory become one piece.
func (d *device) gather(bufs [][]byte, cur *cursor, sgl []rdma.SGE, room int, max uint32) ([]rdma.SGE, uint32) {
	var total uint32
	for cur.buf < len(bufs) && total < max {
		b := bufs[cur.buf][cur.off:]
		if len(b) == 0 {
			*cur = cursor{buf: cur.buf + 1}
			continue
		}
		at := address(b)
		r := d.find(at)
		if r == nil {
			break
		}
		n := uint32(min(uint64(len(b)), uint64(r.end-at), uint64(max-total)))
		piece := rdma.SGE{Addr: r.mr.Addr() + uint64(at-r.base), Length: n, LKey: r.mr.LKey()}
		if last := len(sgl) - 1; last >= 0 && sgl[last].LKey == piece.LKey && sgl[last].Addr+uint64(sgl[last].Length) == piece.Addr {
			sgl[last].Length += n
		} else if len(sgl) < room {
			sgl = append(sgl, piece)
		} else {
			break
		}
		total += n
		cur.off += int(n)
	}
	return sgl, total
}

// copyOut copies up to len(dst) bytes of bufs from cur on to dst and moves cur.
func copyOut(dst []byte, bufs [][]byte, cur *cursor) (n int) {
	for n < len(dst) && cur.buf < len(bufs) {
		m := copy(dst[n:], bufs[cur.buf][cur.off:])
		n += m
		if cur.off += m; cur.off == len(bufs[cur.buf]) {
			*cur = cursor{buf: cur.buf + 1}
		}
	}
	return n
}

// copyIn copies src to bufs from cur on, as far as there is room, and moves cur.
func copyIn(bufs [][]byte, cur *cursor, src []byte) (n int) {
	for n < len(src) && cur.buf < len(bufs) {
		m := copy(bufs[cur.buf][cur.off:], src[n:])
		n += m
		if cur.off += m; cur.off == len(bufs[cur.buf]) {
			*cur = cursor{buf: cur.buf + 1}
		}
	}
	return n
}

// total is the number of bytes in bufs.
func total(bufs [][]byte) (n uint64) {
	for _, b := range bufs {
		n += uint64(len(b))
	}
	return n
}
