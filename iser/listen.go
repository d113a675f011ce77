package iser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

const (
	defaultWindow = 128
	maxWindow     = 128 // what initiators have receive buffers for
	// maxPending bounds a listener's connections before full-feature phase: more are rejected, for each
	// has registered memory. Engines have a lower bound of their own and login timeouts.
	maxPending = 256
)

// Listen takes iSER connections on addr. Errors are the provider's.
func Listen(p rdma.Provider, addr netip.AddrPort, c TargetConfig) (iscsi.Listener, error) {
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	if c.Window < 1 || c.Window > maxWindow {
		return nil, fmt.Errorf("iSER command window of %d: want 1 to %d", c.Window, maxWindow)
	}
	if c.ReadDepth == 0 {
		c.ReadDepth = maxReads
	}
	if c.ReadDepth < minReads {
		return nil, fmt.Errorf("iSER read depth of %d: want at least %d", c.ReadDepth, minReads)
	}
	l, err := p.Listen(addr)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, config: c, maxPending: maxPending}, nil
}

// A listener is a target's iSER portal.
type listener struct {
	rdma.Listener
	config     TargetConfig
	maxPending int

	mu      sync.Mutex
	waiting int // connections before full-feature phase
	memory  [][]byte
	devices []*device
	closed  bool
}

// Transport implements iscsi.Listener.
func (l *listener) Transport() string { return "iser" }

// Addr implements iscsi.Listener.
func (l *listener) Addr() net.Addr { return netAddr(l.Listener.Addr()) }

// Accept implements iscsi.Listener. An error that does not wrap net.ErrClosed or ctx's is about one
// connection, which has been rejected.
func (l *listener) Accept(ctx context.Context) (iscsi.TargetDatamover, error) {
	ep, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	t, err := l.accept(ep)
	if err != nil {
		return nil, fmt.Errorf("iSER connection from %v: %w", ep.RemoteAddr(), err)
	}
	return t, nil
}

func (l *listener) accept(ep rdma.Endpoint) (*target, error) {
	// What the initiator serves is what we may have outstanding.
	depth := readDepth(ep.Peer().InitiatorDepth, ep.Device().Limits().MaxReadDepth, l.config.ReadDepth)
	if depth < minReads {
		return nil, errors.Join(errors.New("it serves no RDMA Reads (responder resources 0): no write would work"), ep.Reject(nil))
	}
	if !l.pending(+1) {
		return nil, errors.Join(errTooManyLogins, ep.Reject(nil))
	}
	dev, err := l.join(ep.Device())
	if err != nil {
		l.pending(-1)
		return nil, errors.Join(err, ep.Reject(nil))
	}
	t := &target{conn: conn{ep: ep, dev: dev, trace: l.config.Trace}, lis: l, config: l.config, readDepth: depth}
	t.role = t
	if err := t.start(); err != nil {
		_ = ep.Reject(nil) // it may be too late for that; what counts is err
		l.pending(-1)
		return nil, errors.Join(err, t.discard(), l.leave(dev))
	}
	return t, nil
}

// start makes the target's end and accepts the connection, with the login receive posted.
func (t *target) start() error {
	lim := t.dev.Limits()
	w := t.config.Window
	d := depths{send: w*(1+chainShare) + reserve + 8, read: t.readDepth, recv: w + reserve + maxUnsolicited}
	if t.config.sendDepth > 0 {
		d.send = t.config.sendDepth
	}
	if err := d.fit(&lim, w+reserve); err != nil {
		return err
	}
	t.sendDepth = d.send
	t.invalidate = lim.SendInvalidate && !t.config.NoInvalidate && mayInvalidate(t.ep.Peer().PrivateData)
	t.chunks = noChunk
	if err := t.open(d, 1); err != nil {
		return err
	}
	t.scratch = make([]rdma.SGE, 0, t.maxSGE)
	return t.ep.Accept(rdma.ConnParam{PrivateData: privateData(t.invalidate), InitiatorDepth: uint8(t.readDepth)})
}

// pending counts connections before full-feature phase; false if there are too many for one more.
func (l *listener) pending(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && l.waiting >= l.maxPending {
		return false
	}
	l.waiting += n
	return true
}

// join finds a device, or begins to use it with all memory that was registered so far.
func (l *listener) join(rd rdma.Device) (*device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	i := slices.IndexFunc(l.devices, func(d *device) bool { return d.Device == rd })
	if i < 0 {
		d := newDevice(rd, localAccess(rd))
		for _, mem := range l.memory {
			if err := d.register(mem); err != nil {
				return nil, errors.Join(err, d.closeRegions())
			}
		}
		d.users = 1 // the listener
		i = len(l.devices)
		l.devices = append(l.devices, d)
	}
	l.devices[i].users++
	return l.devices[i], nil
}

// leave ends one use of a device; the last one ends its registrations.
func (l *listener) leave(d *device) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.users--; d.users > 0 {
		return nil
	}
	return d.closeRegions()
}

// Register implements iscsi.Listener. Memory that overlaps memory registered before, but is not the same,
// is ErrOverlap.
func (l *listener) Register(mem []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, d := range l.devices {
		if err := d.register(mem); err != nil {
			for _, done := range l.devices[:i] {
				err = errors.Join(err, done.unregister(mem))
			}
			return err
		}
	}
	l.memory = append(l.memory, mem)
	return nil
}

// Unregister implements iscsi.Listener. Connections that still move data to or from mem end.
func (l *listener) Unregister(mem []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.memory, func(m []byte) bool { return address(m) == address(mem) && len(m) == len(mem) })
	if i < 0 {
		return nil
	}
	l.memory = slices.Delete(l.memory, i, i+1)
	var errs []error
	for _, d := range l.devices {
		errs = append(errs, d.unregister(mem))
	}
	return errors.Join(errs...)
}

// Close implements iscsi.Listener. Connections go on; registrations end with the last of them.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return err
	}
	l.closed = true
	errs := []error{err}
	for _, d := range l.devices {
		if d.users--; d.users == 0 {
			errs = append(errs, d.closeRegions())
		}
	}
	return errors.Join(errs...)
}
