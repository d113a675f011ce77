//go:build linux && cgo && rdma

package verbs

// #include "verbs.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma"
)

// A device is an ibv_context with our protection domain. It lives as long as the process: librdmacm
// keeps the context open too.
type device struct {
	lib    *C.struct_gv_lib
	ctx    *C.struct_ibv_context
	pd     *C.struct_ibv_pd
	name   string
	limits rdma.Limits
	// What librdmacm takes at most in a REQ or REP.
	maxResources, maxDepth uint8
	invFlags               C.uint32_t // gv_poll_cq's
	vectors                uint32
	nextVector             atomic.Uint32
}

func newDevice(lib *C.struct_gv_lib, ctx *C.struct_ibv_context) (*device, error) {
	var a C.struct_gv_limits
	if err := errno(C.gv_query(lib, ctx, &a)); err != nil {
		return nil, fmt.Errorf("query RDMA device: %w", err)
	}
	d := &device{
		lib: lib, ctx: ctx, name: C.GoString(&a.name[0]),
		maxResources: clamp8(a.max_qp_rd_atom), maxDepth: clamp8(a.max_qp_init_rd_atom),
		invFlags: a.inv_flags, vectors: uint32(max(a.comp_vectors, 1)),
	}
	d.limits = rdma.Limits{
		MaxMessage:   uint32(a.max_msg),
		MaxSGE:       int(a.max_sge),
		MaxReadSGE:   int(a.max_sge_rd),
		MaxQPDepth:   int(a.max_qp_wr),
		MaxCQDepth:   int(a.max_cqe),
		MaxReadDepth: min(d.maxResources, d.maxDepth),
		// IBTA names one capability for all of the memory management extensions, Send with Invalidate
		// among them (11.2.1.2).
		SendInvalidate:           a.mem_mgt_extensions != 0,
		Windows:                  a.window_type2 != 0,
		WindowHazard:             a.window_hazard != 0,
		ReadSinkNeedsRemoteWrite: a.iwarp != 0,
	}
	if d.limits.MaxReadSGE <= 0 { // some drivers leave it unset
		d.limits.MaxReadSGE = d.limits.MaxSGE
	}
	var err error
	if d.pd, err = C.gv_alloc_pd(lib, ctx); d.pd == nil {
		return nil, fmt.Errorf("%s: allocate protection domain: %w", d.name, err)
	}
	return d, nil
}

func clamp8(n C.int32_t) uint8 { return uint8(min(max(n, 0), 255)) }

// Name implements rdma.Device.
func (d *device) Name() string { return d.name }

// Limits implements rdma.Device.
func (d *device) Limits() rdma.Limits { return d.limits }

// ibvAccess translates rights.
func ibvAccess(a rdma.Access) C.int {
	var f C.int
	if a&rdma.LocalWrite != 0 {
		f |= C.IBV_ACCESS_LOCAL_WRITE
	}
	if a&rdma.RemoteWrite != 0 {
		f |= C.IBV_ACCESS_REMOTE_WRITE
	}
	if a&rdma.RemoteRead != 0 {
		f |= C.IBV_ACCESS_REMOTE_READ
	}
	if a&rdma.WindowBind != 0 {
		f |= C.IBV_ACCESS_MW_BIND
	}
	return f
}

// Register implements rdma.Device.
func (d *device) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%s: register memory: nothing to register: %w", d.name, syscall.EINVAL)
	}
	if err := access.Check(); err != nil {
		return nil, fmt.Errorf("%s: register memory: %w", d.name, err)
	}
	mr, err := C.gv_reg_mr(d.lib, d.pd, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), ibvAccess(access))
	if mr == nil {
		return nil, fmt.Errorf("%s: register memory: %w", d.name, lockAdvice(err, uint64(len(mem))))
	}
	return &region{lib: d.lib, mr: mr, lkey: uint32(mr.lkey), rkey: uint32(mr.rkey), addr: uint64(uintptr(mr.addr))}, nil
}

// lockAdvice explains the one failure of registration that a user can mend: the limit on locked memory.
func lockAdvice(err error, n uint64) error {
	var lim unix.Rlimit
	if !errors.Is(err, syscall.ENOMEM) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) != nil || lim.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("cannot lock %s for RDMA buffers: limit is %s; set LimitMEMLOCK=infinity in the systemd unit or run `ulimit -l unlimited`: %w",
		humanize.IBytes(n), humanize.IBytes(lim.Cur), err)
}

// A region is an ibv_mr.
type region struct {
	lib        *C.struct_gv_lib
	mr         *C.struct_ibv_mr
	lkey, rkey uint32
	addr       uint64
}

func (r *region) LKey() uint32 { return r.lkey }
func (r *region) RKey() uint32 { return r.rkey }
func (r *region) Addr() uint64 { return r.addr }

// Deregister implements rdma.MemoryRegion; again, it does nothing.
func (r *region) Deregister() error {
	if r.mr == nil {
		return nil
	}
	if err := errno(C.gv_dereg_mr(r.lib, r.mr)); err != nil {
		return fmt.Errorf("deregister memory region %#x: %w", r.lkey, err)
	}
	r.mr = nil
	return nil
}

// NewWindow implements rdma.Device.
func (d *device) NewWindow() (rdma.Window, error) {
	if !d.limits.Windows {
		return nil, fmt.Errorf("%s has no type 2 memory windows: %w", d.name, errors.ErrUnsupported)
	}
	mw, err := C.gv_alloc_mw(d.pd)
	if mw == nil {
		return nil, fmt.Errorf("%s: allocate memory window: %w", d.name, err)
	}
	return &window{mw: mw}, nil
}

// A window is a type 2 ibv_mw. Its key is in C's memory, where posting a bind changes it.
type window struct{ mw *C.struct_ibv_mw }

func (w *window) RKey() uint32 {
	if w.mw == nil {
		return 0
	}
	return uint32(w.mw.rkey)
}

// Close implements rdma.Window; again, it does nothing.
func (w *window) Close() error {
	if w.mw == nil {
		return nil
	}
	if err := errno(C.gv_dealloc_mw(w.mw)); err != nil {
		return fmt.Errorf("free memory window %#x: %w", w.RKey(), err)
	}
	w.mw = nil
	return nil
}

// closedError is the error of a call on something that has been closed.
func closedError(what string) error { return fmt.Errorf("%s: %w", what, net.ErrClosed) }
