//go:build linux && cgo && rdma

package verbs

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "verbs.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goiser/goiser/iser/rdma"
)

// The sonames that every distribution has shipped for years.
const (
	soIBVerbs = "libibverbs.so.1"
	soRDMACM  = "librdmacm.so.1"
)

// Provider is the verbs provider.
type Provider struct {
	lib *C.struct_gv_lib

	mu      sync.Mutex
	devices map[*C.struct_ibv_context]*device
	events  *events // while at least one user holds it
	users   int
}

// Open loads the libraries and looks for devices. An error wraps rdma.ErrUnavailable and says what to do.
func Open() (rdma.Provider, error) {
	p, err := open(soIBVerbs, soRDMACM)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w: %w", err, rdma.ErrUnavailable)
	}
	if err := p.look("/dev/infiniband", "/sys/class/infiniband"); err != nil {
		return nil, fmt.Errorf("verbs: %w: %w", err, rdma.ErrUnavailable)
	}
	return p, nil
}

// open loads the two libraries from files or by soname.
func open(ibverbs, rdmacm string) (*Provider, error) {
	v, c := C.CString(ibverbs), C.CString(rdmacm)
	defer C.free(unsafe.Pointer(v))
	defer C.free(unsafe.Pointer(c))
	var msg [256]C.char
	lib := C.gv_load(v, c, &msg[0], C.size_t(len(msg)))
	if lib == nil {
		return nil, fmt.Errorf("%s; install libibverbs1, librdmacm1 and ibverbs-providers (Debian, Ubuntu) or libibverbs and librdmacm (Fedora, RHEL)", C.GoString(&msg[0]))
	}
	return &Provider{lib: lib, devices: map[*C.struct_ibv_context]*device{}}, nil
}

// look says why no device can be used, if none can. The kernel's folders come first: what is wrong there
// explains an empty list better than the list does.
func (p *Provider) look(dev, sys string) error {
	const software = "load the driver of the RDMA card, or make a software device: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`"
	if _, err := os.Stat(sys); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no RDMA in this kernel (%s is missing); %s", sys, software)
	}
	if devices, err := os.ReadDir(sys); err == nil && len(devices) == 0 {
		return fmt.Errorf("no RDMA device (%s is empty); %s", sys, software)
	}
	cm, err := os.OpenFile(dev+"/rdma_cm", os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s/rdma_cm is missing; `modprobe -a ib_uverbs rdma_ucm`, and give a container %s", dev, dev)
	case err != nil:
		return fmt.Errorf("%w; run as root or as a member of the group that owns it", err)
	}
	cm.Close()
	var n C.int
	if e := C.gv_device_count(p.lib, &n); e != 0 {
		return fmt.Errorf("listing RDMA devices: %w; `modprobe ib_uverbs`", syscall.Errno(e))
	}
	if n == 0 {
		return fmt.Errorf("libibverbs knows none of the devices in %s; install ibverbs-providers, and give a container %s", sys, dev)
	}
	return nil
}

// Name is "verbs".
func (p *Provider) Name() string { return "verbs" }

// device is the one Device of an ibv_context; librdmacm has one of those for each device.
func (p *Provider) device(c *C.struct_ibv_context) (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[c]; d != nil {
		return d, nil
	}
	d, err := newDevice(p.lib, c)
	if err != nil {
		return nil, err
	}
	p.devices[c] = d
	return d, nil
}

// forget drops a device that has been removed: librdmacm frees its context.
func (p *Provider) forget(d *device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d != nil && p.devices[d.ctx] == d {
		delete(p.devices, d.ctx)
	}
}

// acquire gives the event channel to one more user, making it for the first.
func (p *Provider) acquire() (*events, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events == nil {
		ev, err := newEvents(p)
		if err != nil {
			return nil, err
		}
		p.events = ev
	}
	p.users++
	return p.events, nil
}

// adopt counts a user that came through the event channel itself.
func (p *Provider) adopt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
}

// release is acquire's counterpart; the last user's ends the channel's goroutine and waits for it.
func (p *Provider) release() {
	p.mu.Lock()
	p.users--
	var last *events
	if p.users == 0 {
		last, p.events = p.events, nil
	}
	p.mu.Unlock()
	if last != nil {
		last.close()
	}
}

// Listen implements rdma.Provider.
func (p *Provider) Listen(addr netip.AddrPort) (rdma.Listener, error) {
	l, err := p.listen(addr)
	if err != nil {
		return nil, fmt.Errorf("verbs: listen on %s: %w", addr, err)
	}
	return l, nil
}

// Resolve implements rdma.Provider.
func (p *Provider) Resolve(ctx context.Context, addr netip.AddrPort) (rdma.Endpoint, error) {
	e, err := p.resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	return e, nil
}

// toC and fromC convert addresses. The scope of an IPv6 link-local address is an interface index here.
func toC(a netip.AddrPort) C.struct_gv_addr {
	ip := a.Addr().Unmap()
	c := C.struct_gv_addr{port: C.uint16_t(a.Port())}
	var b [16]byte
	if ip.Is4() {
		b4 := ip.As4()
		copy(b[:], b4[:])
	} else {
		b = ip.As16()
		c.is6 = 1
		c.scope = C.uint32_t(zoneIndex(ip.Zone()))
	}
	c.ip = *(*[16]C.uint8_t)(unsafe.Pointer(&b)) // the same 16 bytes under C's name of the type
	return c
}

func fromC(c *C.struct_gv_addr) netip.AddrPort {
	b := *(*[16]byte)(unsafe.Pointer(&c.ip))
	ip := netip.AddrFrom16(b).Unmap() // an IPv4 peer of an IPv6 listener
	if c.is6 == 0 {
		ip = netip.AddrFrom4([4]byte(b[:4]))
	} else if c.scope != 0 {
		ip = ip.WithZone(zoneName(uint32(c.scope)))
	}
	return netip.AddrPortFrom(ip, uint16(c.port))
}

// errno is nil or the error of a shim call.
func errno(e C.int) error {
	if e == 0 {
		return nil
	}
	return syscall.Errno(e)
}
