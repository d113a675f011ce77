package roce

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// Options of New; the zero value will do.
type Options struct {
	// Addr is the local address for everything. Zero: a listener's own, and for connections the source address of the
	// route to the peer. Peers on this machine are reached from a loopback address that is free, 127.0.0.2 and on.
	Addr netip.Addr
	// External is what peers see our address as, if that differs (NAT, published ports of containers). Without Addr
	// it does not concern loopback addresses and those of the other family.
	External netip.Addr
	// Link opens the link of an address; nil: UDP. Tests simulate.
	Link func(netip.Addr) (link.Link, error)
	// NoOffload does without the kernel's segmentation offload.
	NoOffload bool
	// Seed makes keys, ids and sequence numbers predictable, for tests; 0: they are not.
	Seed uint64
	// AckTimeout is how long a peer may take to acknowledge, at most, before each retry; it is rounded up to a power
	// of two times 4.096 microseconds. A peer that is gone is noticed after eight. 0: DefaultAckTimeout.
	AckTimeout time.Duration
	// Window is how many packets of a queue pair are in flight at most, ReadWindow how many bytes of RDMA Read
	// responses; 0: DefaultWindow, and what a quarter of the receive buffer holds.
	Window     int
	ReadWindow int
	// Warn, if not nil, is told once if what the system grants a socket to receive is less than goodBuffer, and what to
	// do about it.
	Warn func(string)
}

const (
	// DefaultAckTimeout: retries come after 30 ms, 60 ms and so on up to this, 4 s in all.
	DefaultAckTimeout = 1073741824 * time.Nanosecond
	// DefaultWindow is 512 KiB at path MTU 4096.
	DefaultWindow = 128
	// goodBuffer is what a socket should have to receive, in bytes of packets: three sessions' windows.
	goodBuffer = 3 * DefaultWindow * link.MaxMTU
	// maxReadWindow is where more in flight is of no use on networks that this provider is for.
	maxReadWindow = 1 << 20
)

// A Provider makes RoCE connections. It implements rdma.Provider. Sockets that it has opened stay open until Close: to
// refuse connections, and because their addresses are part of what peers know.
type Provider struct {
	o   Options
	dev *device
	tap link.Tap

	mu     sync.Mutex // guards what follows; no other lock is taken with it held
	rng    *rand.Rand
	ports  map[netip.Addr]*port
	local  *port // whose loopback address we have chosen
	qpns   map[wire.QPN]struct{}
	last   wire.QPN
	warned bool
	closed bool
}

var _ rdma.Provider = (*Provider)(nil)

// New makes a provider. It opens nothing yet.
func New(o Options) *Provider {
	if o.AckTimeout <= 0 {
		o.AckTimeout = DefaultAckTimeout
	}
	if o.Window <= 0 {
		o.Window = DefaultWindow
	}
	o.Addr, o.External = o.Addr.Unmap(), o.External.Unmap()
	rng := newRand(o.Seed)
	p := &Provider{o: o, rng: rng, ports: make(map[netip.Addr]*port), qpns: make(map[wire.QPN]struct{})}
	p.last = wire.QPN(rng.Uint32() & maxQPN)
	p.dev = &device{memory: rc.NewMemory(rng.Uint64())}
	return p
}

func newRand(seed uint64) *rand.Rand {
	var s [32]byte
	if seed != 0 {
		binary.LittleEndian.PutUint64(s[:], seed)
	} else {
		_, _ = crand.Read(s[:]) // it cannot fail (crypto/rand)
	}
	return rand.New(rand.NewChaCha8(s))
}

// Name implements rdma.Provider.
func (p *Provider) Name() string { return "roce" }

// Watch shows all packets to w from now on, those of connections that are there already included; nil ends it. Packets
// of Options.Link are not shown: who simulates sees them there.
func (p *Provider) Watch(w link.Watcher) { p.tap.Watch(w) }

// Queue pair numbers are 24 bits; 0 and 1 are management's, the last is multicast's (IBTA 3.9).
const (
	minQPN = 2
	maxQPN = 1<<24 - 2
)

// number takes a queue pair number that is free. The next one up: none comes again before all others have been used.
func (p *Provider) number() (wire.QPN, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, net.ErrClosed
	}
	if len(p.qpns) >= maxQueuePairs {
		return 0, fmt.Errorf("%d queue pairs are in use", len(p.qpns))
	}
	for {
		if p.last++; p.last > maxQPN || p.last < minQPN {
			p.last = minQPN
		}
		if _, used := p.qpns[p.last]; !used {
			p.qpns[p.last] = struct{}{}
			return p.last, nil
		}
	}
}

// maxQueuePairs bounds queue pairs, those not forgotten by the connection manager yet included.
const maxQueuePairs = 1 << 16

func (p *Provider) free(n wire.QPN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.qpns, n)
}

// port is that of a local address, opened if need be.
func (p *Provider) port(addr netip.Addr) (*port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.portLocked(addr)
}

func (p *Provider) portLocked(addr netip.Addr) (*port, error) {
	if p.closed {
		return nil, fmt.Errorf("roce: provider: %w", net.ErrClosed)
	}
	if o := p.ports[addr]; o != nil {
		return o, nil
	}
	l, err := p.open(addr)
	if err != nil {
		return nil, err
	}
	return p.addLocked(l), nil
}

// addLocked makes a port on a link.
func (p *Provider) addLocked(l link.Link) *port {
	o := newPort(p, l)
	p.ports[l.Addr()] = o
	if n := l.RecvBuffer(); n < goodBuffer && p.o.Warn != nil && !p.warned {
		p.warned = true
		p.o.Warn(fmt.Sprintf("RoCE on %v: the system lets a socket hold %d KiB of packets, which the bursts of a few sessions overflow: they are lost and sent again, slowly; "+
			"raise it with `sysctl -w net.core.rmem_max=16777216`, or grant CAP_NET_ADMIN, and start again", l.Addr(), n>>10))
	}
	return o
}

func (p *Provider) open(addr netip.Addr) (link.Link, error) {
	if p.o.Link != nil {
		return p.o.Link(addr)
	}
	return link.Listen(addr, link.Options{External: p.external(addr), NoOffload: p.o.NoOffload, Tap: &p.tap})
}

// external is what peers see an address as; zero: the same.
func (p *Provider) external(addr netip.Addr) netip.Addr {
	if x := p.o.External; addr == p.o.Addr || !addr.IsLoopback() && addr.Is4() == x.Is4() {
		return x
	}
	return netip.Addr{}
}

// Close ends all connections without waiting for peers, and closes the sockets. Endpoints and queue pairs give errors
// that wrap net.ErrClosed from then on. Closing again does nothing.
func (p *Provider) Close() error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	p.mu.Unlock()
	if again {
		return nil
	}
	var errs []error
	for _, o := range p.allPorts() { // they stay, for their counters; none is added any more
		errs = append(errs, o.close())
	}
	return errors.Join(errs...)
}
