package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/goiser/goiser/iser/rdma"
)

// A listener hands out the requests in its backlog. The backlog is bounded: when it is full, Connect
// waits for room, as a connection manager that repeats its REQ does.
type listener struct {
	f       *Fabric
	addr    netip.AddrPort
	backlog chan *endpoint
	done    chan struct{}
	once    sync.Once
}

func newListener(f *Fabric, addr netip.AddrPort) *listener {
	return &listener{f: f, addr: addr, backlog: make(chan *endpoint, f.opts.Backlog), done: make(chan struct{})}
}

// Addr implements rdma.Listener.
func (s *listener) Addr() netip.AddrPort { return s.addr }

// Accept implements rdma.Listener.
func (s *listener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	for {
		select {
		case <-s.done:
			return nil, s.closedError()
		default:
		}
		select {
		case <-s.done:
			return nil, s.closedError()
		case <-ctx.Done():
			return nil, fmt.Errorf("fabric: accept on %v: %w", s.addr, ctx.Err())
		case e := <-s.backlog:
			if e.take() {
				return e, nil
			}
		}
	}
}

func (s *listener) closedError() error {
	return fmt.Errorf("fabric: accept on %v: %w", s.addr, net.ErrClosed)
}

// Close implements rdma.Listener. Requests not yet taken by Accept are rejected.
func (s *listener) Close() error {
	s.once.Do(func() {
		s.f.mu.Lock()
		delete(s.f.listeners, s.addr)
		s.f.mu.Unlock()
		close(s.done)
	})
	return nil
}

// An endpoint is one side of a link. link.mu guards what can change.
type endpoint struct {
	l             *link
	side          int // 0 connects, 1 accepts
	local, remote netip.AddrPort
	qp            *queuePair
	peer          rdma.ConnParam
	taken         bool // by the listener's Accept
	closed        bool
}

// Device implements rdma.Endpoint.
func (e *endpoint) Device() rdma.Device { return e.l.f.devices[e.side] }

// LocalAddr implements rdma.Endpoint.
func (e *endpoint) LocalAddr() netip.AddrPort { return e.local }

// RemoteAddr implements rdma.Endpoint.
func (e *endpoint) RemoteAddr() netip.AddrPort { return e.remote }

// Peer implements rdma.Endpoint.
func (e *endpoint) Peer() rdma.ConnParam {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	p := e.peer
	p.PrivateData = slices.Clone(p.PrivateData)
	return p
}

// CreateQP implements rdma.Endpoint.
func (e *endpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("fabric: create queue pair: %w", net.ErrClosed)
	}
	if e.qp != nil {
		return nil, errors.New("fabric: create queue pair: the endpoint has one")
	}
	q, err := newQueuePair(e, c)
	if err != nil {
		return nil, fmt.Errorf("fabric: create queue pair: %w", err)
	}
	e.qp = q
	if e.l.state == linkEnded {
		q.toError()
	}
	return q, nil
}

// checkParam holds a REQ or REP to what a device takes.
func (e *endpoint) checkParam(p *rdma.ConnParam, maxPrivate int) error {
	if e.qp == nil {
		return errors.New("no queue pair")
	}
	if len(p.PrivateData) > maxPrivate {
		return fmt.Errorf("private data of %d bytes: the limit is %d", len(p.PrivateData), maxPrivate)
	}
	if depth := e.l.f.limits.MaxReadDepth; p.ResponderResources > depth || p.InitiatorDepth > depth {
		return fmt.Errorf("responder resources %d, initiator depth %d: the device has %d",
			p.ResponderResources, p.InitiatorDepth, depth)
	}
	return nil
}

// private is private data as it arrives.
func (f *Fabric) private(b []byte, size int) []byte {
	b = slices.Clone(b)
	if !f.opts.ExactPrivateData {
		b = append(b, make([]byte, size-len(b))...)
	}
	return b
}

// mirrored is a message's parameters from the point of view of its receiver.
func (f *Fabric) mirrored(p rdma.ConnParam, privateSize int) rdma.ConnParam {
	return rdma.ConnParam{
		PrivateData:        f.private(p.PrivateData, privateSize),
		ResponderResources: p.InitiatorDepth,
		InitiatorDepth:     p.ResponderResources,
	}
}

func (f *Fabric) noListener() error {
	return &rdma.RejectedError{Reason: rdma.ReasonNoListener, Private: f.private(nil, rdma.MaxRejectPrivate)}
}

// Connect implements rdma.Endpoint.
func (e *endpoint) Connect(ctx context.Context, p rdma.ConnParam) error {
	if err := e.connect(ctx, p); err != nil {
		return fmt.Errorf("fabric: connect to %v: %w", e.remote, err)
	}
	return nil
}

func (e *endpoint) connect(ctx context.Context, p rdma.ConnParam) error {
	s := e.l.f.findListener(e.remote)
	passive, err := e.request(p, s)
	if err != nil {
		return err
	}
	select {
	case s.backlog <- passive:
	case <-s.done:
		return e.l.giveUp(e.l.f.noListener())
	case err := <-e.l.reply:
		return err
	case <-ctx.Done():
		return e.l.giveUp(ctx.Err())
	}
	done := s.done
	for {
		select {
		case err := <-e.l.reply:
			return err
		case <-ctx.Done():
			return e.l.giveUp(ctx.Err())
		case <-done:
			if err := e.l.giveUpUntaken(); err != nil {
				return err
			}
			done = nil
		}
	}
}

// request makes the passive side, whose endpoint waits in the listener's backlog.
func (e *endpoint) request(p rdma.ConnParam, s *listener) (*endpoint, error) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.closed {
		return nil, net.ErrClosed
	}
	if e.side != 0 || l.state != linkIdle {
		return nil, errors.New("not an endpoint that can connect")
	}
	if err := e.checkParam(&p, rdma.MaxRequestPrivate); err != nil {
		return nil, err
	}
	if s == nil {
		l.end()
		return nil, l.f.noListener()
	}
	l.state = linkRequested
	e.qp.maxReads, e.qp.serves = int(p.InitiatorDepth), int(p.ResponderResources)
	passive := l.addEndpointLocked(1, e.remote, e.local)
	passive.peer = l.f.mirrored(p, rdma.MaxRequestPrivate)
	return passive, nil
}

// take hands a request to Accept's caller; false if it has ended meanwhile.
func (e *endpoint) take() bool {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.l.state != linkRequested {
		e.closeLocked()
		return false
	}
	e.taken = true
	return true
}

// Accept implements rdma.Endpoint.
func (e *endpoint) Accept(p rdma.ConnParam) error {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.closed {
		return fmt.Errorf("fabric: accept: %w", net.ErrClosed)
	}
	if e.side != 1 || l.state == linkConnected {
		return errors.New("fabric: accept: not an endpoint that can accept")
	}
	if err := e.checkParam(&p, rdma.MaxReplyPrivate); err != nil {
		return fmt.Errorf("fabric: accept: %w", err)
	}
	if l.state == linkEnded { // the peer vanished; the receives have been flushed, which tells it
		return nil
	}
	active := l.ends[0]
	active.peer = l.f.mirrored(p, rdma.MaxReplyPrivate)
	e.qp.maxReads, e.qp.serves = int(p.InitiatorDepth), int(p.ResponderResources)
	e.qp.peer, active.qp.peer = active.qp, e.qp
	e.qp.state, active.qp.state = qpConnected, qpConnected
	l.state = linkConnected
	l.reply <- nil
	return nil
}

// Reject implements rdma.Endpoint.
func (e *endpoint) Reject(private []byte) error {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.closed {
		return fmt.Errorf("fabric: reject: %w", net.ErrClosed)
	}
	if e.side != 1 || l.state == linkConnected {
		return errors.New("fabric: reject: not an endpoint that can reject")
	}
	if len(private) > rdma.MaxRejectPrivate {
		return fmt.Errorf("fabric: reject: private data of %d bytes: the limit is %d", len(private), rdma.MaxRejectPrivate)
	}
	l.refuse(private)
	e.closeLocked()
	return nil
}

// Disconnect implements rdma.Endpoint.
func (e *endpoint) Disconnect() error {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.closed {
		return nil
	}
	e.disconnectLocked()
	e.l.pump()
	return nil
}

func (e *endpoint) disconnectLocked() {
	l := e.l
	switch l.state {
	case linkRequested:
		if e.side == 0 {
			l.reply <- net.ErrClosed
			l.end()
		} else {
			l.refuse(nil)
		}
	case linkConnected:
		e.qp.toError()
		if p := e.qp.peer; p.state == qpConnected && !p.leaving {
			p.leaving, p.leaveAt = true, l.hold(maxDisconnectHold)
		}
	default:
		l.state = linkEnded // what has been given up before it began does not begin any more
		if e.qp != nil {
			e.qp.toError()
		}
	}
}

// Close implements rdma.Endpoint.
func (e *endpoint) Close() error {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.closeLocked()
	return nil
}

func (e *endpoint) closeLocked() {
	if e.closed {
		return
	}
	e.disconnectLocked()
	e.l.pump()
	e.closed = true
	if e.qp != nil {
		e.qp.destroy()
	}
	e.l.f.gauges.endpoints.Add(-1)
	if other := e.l.ends[1-e.side]; e.l.timer != nil && (other == nil || other.closed) {
		e.l.timer.Stop()
	}
}
