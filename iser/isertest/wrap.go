package isertest

import (
	"context"
	"net/netip"
	"slices"

	"github.com/goiser/goiser/iser/rdma"
)

// Provider is p, watched.
func (w *Watch) Provider(p rdma.Provider) rdma.Provider { return &watchedProvider{p, w} }

type watchedProvider struct {
	rdma.Provider
	w *Watch
}

func (p *watchedProvider) Listen(a netip.AddrPort) (rdma.Listener, error) {
	l, err := p.Provider.Listen(a)
	if err != nil {
		return nil, err
	}
	return &watchedListener{l, p.w}, nil
}

func (p *watchedProvider) Resolve(ctx context.Context, a netip.AddrPort) (rdma.Endpoint, error) {
	e, err := p.Provider.Resolve(ctx, a)
	if err != nil {
		return nil, err
	}
	return &watchedEndpoint{Endpoint: e, w: p.w}, nil
}

type watchedListener struct {
	rdma.Listener
	w *Watch
}

func (l *watchedListener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	e, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedEndpoint{Endpoint: e, w: l.w}, nil
}

type watchedEndpoint struct {
	rdma.Endpoint
	w  *Watch
	qp *watchedQP
}

// Device gives the same one each time: users compare it.
func (e *watchedEndpoint) Device() rdma.Device {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.dev == nil {
		e.w.dev = &watchedDevice{e.Endpoint.Device(), e.w}
	}
	return e.w.dev
}

func (e *watchedEndpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	c.SendCQ, c.RecvCQ = c.SendCQ.(*watchedCQ).CompletionQueue, c.RecvCQ.(*watchedCQ).CompletionQueue
	qp, err := e.Endpoint.CreateQP(c)
	if err != nil {
		return nil, err
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.qp = &watchedQP{QueuePair: qp, w: e.w}
	e.w.qps[qp.Num()] = e.qp
	return e.qp, nil
}

func (e *watchedEndpoint) Close() error {
	err := e.Endpoint.Close()
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.qp != nil {
		e.qp.closed = true
		e.qp.sends.posted, e.qp.recvs.posted = nil, nil
		e.w.gone(e.qp)
	}
	return err
}

type watchedDevice struct {
	rdma.Device
	w *Watch
}

func (d *watchedDevice) Limits() rdma.Limits {
	l := d.Device.Limits()
	if o := &d.w.limits; o.MaxMessage > 0 {
		l.MaxMessage, l.MaxSGE, l.MaxReadSGE = o.MaxMessage, o.MaxSGE, o.MaxReadSGE
	}
	return l
}

func (d *watchedDevice) NewCQ(depth int) (rdma.CompletionQueue, error) {
	c, err := d.Device.NewCQ(depth)
	if err != nil {
		return nil, err
	}
	return &watchedCQ{CompletionQueue: c, w: d.w}, nil
}

func (d *watchedDevice) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	mr, err := d.Device.Register(mem, access)
	if err != nil {
		return nil, err
	}
	r := &watchedRegion{MemoryRegion: mr, w: d.w, mem: mem, access: access}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.regions = append(d.w.regions, r)
	return r, nil
}

func (d *watchedDevice) NewWindow() (rdma.Window, error) {
	x, err := d.Device.NewWindow()
	if err != nil {
		return nil, err
	}
	return &watchedWindow{x, d.w}, nil
}

type watchedWindow struct {
	rdma.Window
	w *Watch
}

// Close also unbinds.
func (x *watchedWindow) Close() error {
	err := x.Window.Close()
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	x.w.dead(x.RKey())
	return err
}

// A watchedRegion knows what of it has been offered to the peer.
type watchedRegion struct {
	rdma.MemoryRegion
	w      *Watch
	mem    []byte
	access rdma.Access
	offers []*offer
}

type watchedCQ struct {
	rdma.CompletionQueue
	w *Watch
}

func (c *watchedCQ) Poll(cs []rdma.Completion) (int, error) {
	n, err := c.CompletionQueue.Poll(cs)
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.faults.polled(c.w, cs[:n])
	for i := range cs[:n] {
		c.w.completed(&cs[i])
	}
	return n, err
}

func (r *watchedRegion) Deregister() error {
	r.w.mu.Lock()
	for _, q := range r.w.qps {
		if i := slices.IndexFunc(append(slices.Clone(q.sends.posted), q.recvs.posted...), r.usedBy); i >= 0 {
			r.w.failf("queue pair %#x: memory is deregistered, but a work request that uses it has not ended", q.Num())
		}
	}
	r.w.faults.place()
	for _, o := range r.offers {
		r.w.unchanged(o)
	}
	r.w.regions = slices.DeleteFunc(r.w.regions, func(x *watchedRegion) bool { return x == r })
	r.w.mu.Unlock()
	return r.MemoryRegion.Deregister()
}

func (r *watchedRegion) usedBy(p post) bool {
	return slices.ContainsFunc(p.sgl, func(e rdma.SGE) bool { return e.Length > 0 && e.LKey == r.LKey() })
}
