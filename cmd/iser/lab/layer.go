package lab

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/goiser/goiser/iser/rdma"
)

// A layer stands between iser and a provider, above what checks the provider. It tells what passes to its hooks, which
// may change it: so a peer becomes hostile, or an end forgetful. Hooks are called with the layer's lock held, from when
// the layer is armed.
type layer struct {
	armed bool
	// posting may change work requests before they are posted, add some, or take some out: those must not have had an end
	// to be told of.
	posting func(q *layerQP, wrs []rdma.SendWR) []rdma.SendWR
	// polled may change completions, and returns how many there are.
	polled func(c *layerCQ, cs []rdma.Completion, n int) int

	mu      sync.Mutex // guards what follows, armed and the hooks' own state
	dev     *layerDevice
	regions []*layerRegion
	qps     map[uint32]*layerQP
	eps     []rdma.Endpoint
}

func (l *layer) provider(p rdma.Provider) rdma.Provider {
	l.qps = make(map[uint32]*layerQP)
	return &layerProvider{p, l}
}

// arm lets the hooks begin, or end. A layer that is nil has none.
func (l *layer) arm(yes bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = yes
}

// disconnect ends all connections, as a cable that is pulled does not: the peer is told.
func (l *layer) disconnect() {
	l.mu.Lock()
	eps := slices.Clone(l.eps)
	l.mu.Unlock()
	for _, e := range eps {
		_ = e.Disconnect() // it may have ended already
	}
}

// bytes is the memory that e names, nil if it is not registered through the layer.
func (l *layer) bytes(e rdma.SGE) []byte {
	for _, r := range l.regions {
		if off := e.Addr - r.Addr(); r.LKey() == e.LKey && off <= uint64(len(r.mem)) && uint64(e.Length) <= uint64(len(r.mem))-off {
			return r.mem[off : off+uint64(e.Length)]
		}
	}
	return nil
}

type layerProvider struct {
	rdma.Provider
	l *layer
}

func (p *layerProvider) Listen(a netip.AddrPort) (rdma.Listener, error) {
	x, err := p.Provider.Listen(a)
	if err != nil {
		return nil, err
	}
	return &layerListener{x, p.l}, nil
}

func (p *layerProvider) Resolve(ctx context.Context, a netip.AddrPort) (rdma.Endpoint, error) {
	e, err := p.Provider.Resolve(ctx, a)
	if err != nil {
		return nil, err
	}
	return p.l.endpoint(e), nil
}

type layerListener struct {
	rdma.Listener
	l *layer
}

func (l *layerListener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	e, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return l.l.endpoint(e), nil
}

func (l *layer) endpoint(e rdma.Endpoint) rdma.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.eps = append(l.eps, e)
	return &layerEndpoint{e, l}
}

type layerEndpoint struct {
	rdma.Endpoint
	l *layer
}

// Device gives the same one each time: users compare it.
func (e *layerEndpoint) Device() rdma.Device {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.l.dev == nil {
		e.l.dev = &layerDevice{e.Endpoint.Device(), e.l}
	}
	return e.l.dev
}

func (e *layerEndpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	cq := c.SendCQ.(*layerCQ)
	c.SendCQ, c.RecvCQ = cq.CompletionQueue, c.RecvCQ.(*layerCQ).CompletionQueue
	qp, err := e.Endpoint.CreateQP(c)
	if err != nil {
		return nil, err
	}
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	q := &layerQP{QueuePair: qp, l: e.l, cq: cq, recvs: make(map[uint64][]rdma.SGE)}
	e.l.qps[qp.Num()] = q
	return q, nil
}

type layerDevice struct {
	rdma.Device
	l *layer
}

func (d *layerDevice) NewCQ(depth int) (rdma.CompletionQueue, error) {
	c, err := d.Device.NewCQ(depth)
	if err != nil {
		return nil, err
	}
	return &layerCQ{CompletionQueue: c, l: d.l}, nil
}

func (d *layerDevice) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	mr, err := d.Device.Register(mem, access)
	if err != nil {
		return nil, err
	}
	r := &layerRegion{mr, d.l, mem}
	d.l.mu.Lock()
	defer d.l.mu.Unlock()
	d.l.regions = append(d.l.regions, r)
	return r, nil
}

type layerRegion struct {
	rdma.MemoryRegion
	l   *layer
	mem []byte
}

func (r *layerRegion) Deregister() error {
	r.l.mu.Lock()
	r.l.regions = slices.DeleteFunc(r.l.regions, func(x *layerRegion) bool { return x == r })
	r.l.mu.Unlock()
	return r.MemoryRegion.Deregister()
}

type layerQP struct {
	rdma.QueuePair
	l     *layer
	cq    *layerCQ
	recvs map[uint64][]rdma.SGE // by ID, posted
}

func (q *layerQP) PostSend(wrs []rdma.SendWR) (int, error) {
	wrs = slices.Clone(wrs)
	q.l.mu.Lock()
	for i := range wrs {
		if r, ok := wrs[i].Region.(*layerRegion); ok {
			wrs[i].Region = r.MemoryRegion
		}
	}
	given := len(wrs)
	if q.l.armed && q.l.posting != nil {
		wrs = q.l.posting(q, wrs)
	}
	q.l.mu.Unlock()
	n, err := q.QueuePair.PostSend(wrs)
	if n == len(wrs) {
		n = given
	}
	return min(n, given), err
}

func (q *layerQP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.l.mu.Lock()
	for i := range wrs {
		q.recvs[wrs[i].ID] = slices.Clone(wrs[i].SGL)
	}
	q.l.mu.Unlock()
	return q.QueuePair.PostRecv(wrs)
}

// received is the message of a completion.
func (q *layerQP) received(c *rdma.Completion) []byte {
	sgl := q.recvs[c.ID]
	if len(sgl) == 0 || c.ByteLen > sgl[0].Length {
		return nil
	}
	return q.l.bytes(sgl[0])[:c.ByteLen]
}

// ownID is that of work requests that a hook has added: nobody else is told of their end.
const ownID = 1 << 63

type layerCQ struct {
	rdma.CompletionQueue
	l     *layer
	early []rdma.Completion // to be given before those of the device
}

func (c *layerCQ) Poll(cs []rdma.Completion) (int, error) {
	c.l.mu.Lock()
	n := copy(cs, c.early)
	c.early = slices.Delete(c.early, 0, n)
	c.l.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	n, err := c.CompletionQueue.Poll(cs)
	n = len(slices.DeleteFunc(cs[:n], func(d rdma.Completion) bool { return d.ID == ownID }))
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.armed && c.l.polled != nil {
		n = c.l.polled(c, cs, n)
	}
	return n, err
}
