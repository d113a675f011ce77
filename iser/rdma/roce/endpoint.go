package roce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

type epState uint8

const (
	epIdle       epState = iota // active: resolved; passive: has a request
	epConnecting                // active: the REQ is on its way
	epConnected
	epEnded
)

// An endpoint is one side of a connection. Its port's lock guards what can change.
type endpoint struct {
	o             *port
	active        bool
	local, remote netip.AddrPort
	result        chan error // of Connect: one

	conn   *cm.Conn // nil before Connect
	qp     *queuePair
	peer   rdma.ConnParam
	state  epState
	freed  bool // the connection manager has forgotten conn
	closed bool
}

// newActive makes an endpoint that can connect to a peer.
func (o *port) newActive(remote netip.AddrPort) *endpoint {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ephemeral++; o.ephemeral < firstEphemeral {
		o.ephemeral = firstEphemeral
	}
	e := &endpoint{o: o, active: true, local: netip.AddrPortFrom(o.addr, o.ephemeral), remote: remote, result: make(chan error, 1)}
	e.closed = o.closed
	o.endpoints[e] = struct{}{}
	return e
}

// newPassiveLocked makes the endpoint of a request.
func (o *port) newPassiveLocked(c *cm.Conn) *endpoint {
	e := &endpoint{
		o: o, conn: c, local: netip.AddrPortFrom(o.addr, uint16(c.REQ.ServiceID)), remote: netip.AddrPortFrom(c.Peer, c.REQ.SrcPort),
		peer: rdma.ConnParam{
			PrivateData: slices.Clone(c.REQ.Private[:]), ResponderResources: c.REQ.InitiatorDepth, InitiatorDepth: c.REQ.ResponderResources,
		},
	}
	c.User = e
	o.endpoints[e] = struct{}{}
	return e
}

// Device implements rdma.Endpoint.
func (e *endpoint) Device() rdma.Device { return e.o.p.dev }

// LocalAddr implements rdma.Endpoint.
func (e *endpoint) LocalAddr() netip.AddrPort { return e.local }

// RemoteAddr implements rdma.Endpoint.
func (e *endpoint) RemoteAddr() netip.AddrPort { return e.remote }

// Peer implements rdma.Endpoint.
func (e *endpoint) Peer() rdma.ConnParam {
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	p := e.peer
	p.PrivateData = slices.Clone(p.PrivateData)
	return p
}

// CreateQP implements rdma.Endpoint.
func (e *endpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("roce: create queue pair: %w", net.ErrClosed)
	}
	if e.qp != nil {
		return nil, errors.New("roce: create queue pair: the endpoint has one")
	}
	q, err := newQueuePair(e, c)
	if err != nil {
		return nil, fmt.Errorf("roce: create queue pair: %w", err)
	}
	e.qp = q
	e.o.qps[q.num] = q
	if e.state == epEnded { // the peer has given up meanwhile
		q.fail()
	}
	return q, nil
}

// checkLocked holds a REQ or REP to what can be sent.
func (e *endpoint) checkLocked(p *rdma.ConnParam, maxPrivate int) error {
	switch {
	case e.closed:
		return net.ErrClosed
	case e.qp == nil:
		return errors.New("no queue pair")
	case len(p.PrivateData) > maxPrivate:
		return fmt.Errorf("private data of %d bytes: the limit is %d", len(p.PrivateData), maxPrivate)
	case p.ResponderResources > maxReadDepth || p.InitiatorDepth > maxReadDepth:
		return fmt.Errorf("responder resources %d, initiator depth %d: the device has %d", p.ResponderResources, p.InitiatorDepth, maxReadDepth)
	}
	return nil
}

// Connect implements rdma.Endpoint. Whether the peer refused is told by rdma.ErrRejected; that nobody answered, by the
// context's error or, after 24 seconds, os.ErrDeadlineExceeded.
func (e *endpoint) Connect(ctx context.Context, p rdma.ConnParam) error {
	if err := e.connect(ctx, p); err != nil {
		return fmt.Errorf("roce: connect from %v to %v: %w", e.local.Addr(), e.remote, err)
	}
	return nil
}

func (e *endpoint) connect(ctx context.Context, p rdma.ConnParam) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.request(p); err != nil {
		return err
	}
	select {
	case err := <-e.result:
		return err
	case <-ctx.Done():
	}
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	select {
	case err := <-e.result: // just now
		return err
	default:
	}
	e.endLocked()
	return fmt.Errorf("no answer yet: %w", ctx.Err())
}

// request has a REQ sent.
func (e *endpoint) request(p rdma.ConnParam) error {
	o := e.o
	mtu := o.link.MTU(e.remote.Addr()) // a system call, so not under the lock
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := e.checkLocked(&p, rdma.MaxRequestPrivate); err != nil {
		return err
	}
	if !e.active || e.state != epIdle {
		return errors.New("not an endpoint that can connect")
	}
	c := &cm.Conn{Peer: e.remote.Addr(), User: e}
	c.REQ = cm.REQ{
		ServiceID: cm.ServiceID(e.remote.Port()), QPN: e.qp.Num(), PSN: o.rng.Uint32() & psnMask,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		MTU: cm.MTUCode(mtu), AckTimeout: cm.Code(o.p.o.AckTimeout), SrcPort: e.local.Port(),
	}
	copy(c.REQ.Private[:], p.PrivateData)
	e.conn, e.state = c, epConnecting
	o.stepLocked(cm.Connect{Conn: c})
	return nil
}

// connectedLocked: the peer has granted our request.
func (e *endpoint) connectedLocked() {
	if e.state != epConnecting {
		return
	}
	rep := &e.conn.REP
	e.peer = rdma.ConnParam{
		PrivateData: slices.Clone(rep.Private[:]), ResponderResources: rep.InitiatorDepth, InitiatorDepth: rep.ResponderResources,
	}
	e.state = epConnected
	e.qp.start(e.o.activeConfig(e.conn), wire.NewPath(e.o.ext, e.conn.Peer), wire.NewPath(e.conn.Peer, e.o.ext))
	e.result <- nil
}

// refuseLocked ends an endpoint that is connecting.
func (e *endpoint) refuseLocked(err error) {
	if e.state != epConnecting {
		return
	}
	e.state = epEnded
	e.qp.fail()
	e.result <- err
}

// Accept implements rdma.Endpoint. If the peer has given up meanwhile, the receives have been flushed, which tells it.
func (e *endpoint) Accept(p rdma.ConnParam) error {
	o := e.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := e.checkLocked(&p, rdma.MaxReplyPrivate); err != nil {
		return fmt.Errorf("roce: accept: %w", err)
	}
	if e.active || e.state == epConnected {
		return errors.New("roce: accept: not an endpoint that can accept")
	}
	if e.state == epEnded {
		return nil
	}
	req := &e.conn.REQ
	rep := cm.REP{
		QPN: e.qp.Num(), PSN: o.rng.Uint32() & psnMask,
		ResponderResources: min(p.ResponderResources, req.InitiatorDepth), InitiatorDepth: min(p.InitiatorDepth, req.ResponderResources),
	}
	copy(rep.Private[:], p.PrivateData)
	e.state = epConnected
	e.qp.start(o.passiveConfig(e.conn, &rep), wire.NewPath(o.ext, e.conn.Peer), wire.NewPath(e.conn.Peer, o.ext))
	o.stepLocked(cm.Accept{Conn: e.conn, REP: rep})
	return nil
}

// Reject implements rdma.Endpoint.
func (e *endpoint) Reject(private []byte) error {
	if len(private) > rdma.MaxRejectPrivate {
		return fmt.Errorf("roce: reject: private data of %d bytes: the limit is %d", len(private), rdma.MaxRejectPrivate)
	}
	e.o.mu.Lock()
	switch {
	case e.closed:
		e.o.mu.Unlock()
		return fmt.Errorf("roce: reject: %w", net.ErrClosed)
	case e.active || e.state == epConnected:
		e.o.mu.Unlock()
		return errors.New("roce: reject: not an endpoint that can reject")
	}
	e.o.stepLocked(cm.Reject{Conn: e.conn, Reason: cm.ReasonConsumer, Private: private})
	e.o.mu.Unlock()
	return e.Close()
}

// Disconnect implements rdma.Endpoint.
func (e *endpoint) Disconnect() error {
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	e.endLocked()
	return nil
}

// endLocked ends the connection, or what would become one: the queue pair first, then the peer is told.
func (e *endpoint) endLocked() {
	if e.state == epEnded {
		return
	}
	was := e.state
	e.state = epEnded
	if e.qp != nil {
		e.qp.fail()
	}
	if e.conn != nil {
		e.o.stepLocked(cm.Disconnect{Conn: e.conn})
	}
	if was == epConnecting {
		e.result <- net.ErrClosed
	}
}

// failed: the queue pair has gone to the error state by itself.
func (e *endpoint) failed() { _ = e.Disconnect() }

// confirm: the queue pair has had its first packet, which may come before the RTU or instead of it.
func (e *endpoint) confirm() {
	if e.active {
		return
	}
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	e.o.stepLocked(cm.Confirm{Conn: e.conn})
}

// Close implements rdma.Endpoint.
func (e *endpoint) Close() error {
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	e.closeLocked()
	return nil
}

func (e *endpoint) closeLocked() {
	if e.closed {
		return
	}
	e.endLocked()
	e.closed = true
	delete(e.o.endpoints, e)
	if e.qp == nil {
		return
	}
	delete(e.o.qps, e.qp.num)
	add(&e.o.retired, e.qp.close())
	if e.conn == nil || e.freed {
		e.o.p.free(e.qp.num)
	}
}

// freedLocked: the connection manager has forgotten the connection. Its queue pair's number may be used again.
func (e *endpoint) freedLocked() {
	e.freed = true
	if e.closed && e.qp != nil {
		e.o.p.free(e.qp.num)
	}
}
