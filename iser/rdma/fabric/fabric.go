package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/goiser/goiser/iser/rdma"
)

// Options of New. The zero value is an orderly fabric: every work request is executed, and completed,
// before the post that made it possible returns.
type Options struct {
	// Seed orders what may legally come in any order: how long work requests and their completions are
	// held back, and so how completions of different queue pairs mix; when the data of an RDMA Write is
	// placed and that of an RDMA Read fetched. 0: everything at once, in order. Any other seed needs
	// callers that Wait, for it is a timer that lets go what is held back.
	Seed uint64
	// TwoDevices gives the accepting side of each connection another device than the connecting side,
	// so that a local key of one is not valid at the other. Otherwise all share one device.
	TwoDevices bool
	// ExactPrivateData delivers private data with its true length, as iWARP does. Otherwise it arrives
	// filled with zeros to 56 bytes in a request, 196 in a reply and 148 in a reject, as on InfiniBand
	// and RoCE.
	ExactPrivateData bool
	// RNRFatal makes a Send that finds no receive posted end with RNRRetryExcErr at once. Otherwise it
	// waits, as with an RNR retry count of 7, and Counters.RNRWaits counts it.
	RNRFatal bool
	// Backlog is the number of connection requests a listener holds; more of them wait. 0: 128.
	Backlog int
	// Limits are what the devices say they can do and hold callers to; nil: DefaultLimits.
	Limits *rdma.Limits
	// MaxWindows bounds the windows of all devices together, as devices do; 0: no bound.
	MaxWindows int
	// Tap, if set, is told of every operation as it is executed.
	Tap func(*Operation)
	// Fault, if set, is asked about every work request of every send queue before it is queued, on the
	// goroutine that posts it; it must not use the fabric.
	Fault func(qp uint32, wr *rdma.SendWR) Fault
}

// An Operation is one executed work request as Options.Tap sees it, before its completions can be
// polled. It and its Data are valid during the call only, and the call must not use the fabric. Calls
// come one at a time, on whichever goroutine makes the fabric go on.
type Operation struct {
	Op     rdma.OpCode
	QP     uint32      // of the requester
	Peer   uint32      // the responder's queue pair; 0 for OpLocalInv and OpBindWindow
	Status rdma.Status // what the requester is told
	// Key and Addr are the remote key and address of an RDMA Read or Write, the key that is invalidated,
	// or the key and address that a window was bound to.
	Key    uint32
	Addr   uint64
	Length uint64 // bytes
	// Data shows the bytes where they ended up (Send, RDMA Write) or where they came from (RDMA Read);
	// nil unless Status is Success.
	Data [][]byte
}

// A Fault is what Options.Fault does to a work request; the zero value is nothing.
type Fault struct {
	// Post, if set, is what PostSend returns in place of taking the work request, for instance
	// rdma.ErrQueueFull.
	Post error
	// Status, unless Success, is how the work request ends, without being executed. The queue pair goes
	// to the error state, its peer too if the status is one that a responder causes.
	Status rdma.Status
}

// Counters count what happened in a fabric.
type Counters struct {
	Operations atomic.Uint64 // work requests of send queues that were executed with success
	Bytes      atomic.Uint64 // payload bytes they moved
	RNRWaits   atomic.Uint64 // Sends that found no receive posted
	// Recycled counts Sends whose memory was changed before they completed; seeds other than 0 notice.
	Recycled atomic.Uint64
}

// Gauges are what a fabric holds at one moment; all zero once everything has been closed.
type Gauges struct {
	Listeners, Endpoints, QueuePairs, CompletionQueues, Regions, Windows int
}

type gauges struct {
	endpoints, queuePairs, completionQueues, regions, windows atomic.Int64
}

const (
	defaultBacklog = 128
	// firstPort is where free ports are looked for (IANA, dynamic ports).
	firstPort = 49152
)

// DefaultLimits are those of a device that can do everything.
func DefaultLimits() rdma.Limits {
	return rdma.Limits{
		MaxMessage: 1 << 30, MaxSGE: 30, MaxReadSGE: 30, MaxQPDepth: 16384, MaxCQDepth: 65536,
		MaxReadDepth: 16, SendInvalidate: true, Windows: true,
	}
}

// Fabric is a provider; endpoints of one Fabric reach each other.
type Fabric struct {
	// Counters may be read at any time.
	Counters Counters

	opts    Options
	limits  rdma.Limits
	gauges  gauges
	devices [2]*device // of the connecting and of the accepting side; may be the same

	// mem guards all key tables and what they lead to. It is read-locked while a work request moves
	// data, so that who holds it for writing (to register, deregister, bind, invalidate) knows that
	// nothing is in the middle of an access. Order: link.mu, mem, completionQueue.mu.
	mem sync.RWMutex

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	nextPort  uint16
	links     uint64 // made so far
	lastQP    atomic.Uint32

	tapMu sync.Mutex // one call of Options.Tap at a time
}

// New makes a fabric.
func New(o Options) *Fabric {
	f := &Fabric{opts: o, limits: DefaultLimits(), listeners: make(map[netip.AddrPort]*listener), nextPort: firstPort}
	if o.Limits != nil {
		f.limits = *o.Limits
	}
	if f.opts.Backlog <= 0 {
		f.opts.Backlog = defaultBacklog
	}
	f.devices[0] = newDevice(f, "fabric0")
	f.devices[1] = f.devices[0]
	if o.TwoDevices {
		f.devices[1] = newDevice(f, "fabric1")
	}
	return f
}

// Name is "fabric".
func (f *Fabric) Name() string { return "fabric" }

// Gauges counts what is open now.
func (f *Fabric) Gauges() Gauges {
	f.mu.Lock()
	n := len(f.listeners)
	f.mu.Unlock()
	return Gauges{
		Listeners: n, Endpoints: int(f.gauges.endpoints.Load()), QueuePairs: int(f.gauges.queuePairs.Load()),
		CompletionQueues: int(f.gauges.completionQueues.Load()),
		Regions:          int(f.gauges.regions.Load()), Windows: int(f.gauges.windows.Load()),
	}
}

// Listen implements rdma.Provider. An unspecified address (0.0.0.0, ::) takes requests for any.
func (f *Fabric) Listen(addr netip.AddrPort) (rdma.Listener, error) {
	if !addr.IsValid() {
		return nil, fmt.Errorf("fabric: listen on %v: invalid address", addr)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for addr.Port() == 0 {
		if a := netip.AddrPortFrom(addr.Addr(), f.freePortLocked()); f.listeners[a] == nil {
			addr = a
		}
	}
	if f.listeners[addr] != nil {
		return nil, fmt.Errorf("fabric: listen on %v: address already in use", addr)
	}
	l := newListener(f, addr)
	f.listeners[addr] = l
	return l, nil
}

// Resolve implements rdma.Provider. Every address is reachable; whether somebody listens there is
// found out by Connect.
func (f *Fabric) Resolve(ctx context.Context, addr netip.AddrPort) (rdma.Endpoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("fabric: resolve %v: %w", addr, err)
	}
	if !addr.IsValid() || addr.Port() == 0 {
		return nil, fmt.Errorf("fabric: resolve %v: invalid address", addr)
	}
	f.mu.Lock()
	f.links++
	number, port := f.links, f.freePortLocked()
	f.mu.Unlock()
	l := newLink(f, number)
	return l.addEndpoint(0, netip.AddrPortFrom(addr.Addr(), port), addr), nil
}

// freePortLocked takes the dynamic ports in turn.
func (f *Fabric) freePortLocked() uint16 {
	p := f.nextPort
	if f.nextPort++; f.nextPort == 0 {
		f.nextPort = firstPort
	}
	return p
}

// findListener is who takes requests for addr.
func (f *Fabric) findListener(addr netip.AddrPort) *listener {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.listeners[addr]; l != nil {
		return l
	}
	all := netip.IPv6Unspecified()
	if addr.Addr().Is4() {
		all = netip.IPv4Unspecified()
	}
	return f.listeners[netip.AddrPortFrom(all, addr.Port())]
}
