//go:build linux && cgo && rdma

package verbs

// #include "verbs.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/goiser/goiser/iser/rdma"
)

// Address and route resolution: each try waits so long, and lost ARP or path record answers are worth
// as many.
const (
	resolveTimeout = 5 * time.Second
	resolveTries   = 3
)

// An endpoint is an rdma_cm_id. mu is held in every call on the id but the last ones, so that Close is
// not overtaken.
type endpoint struct {
	p             *Provider
	ev            *events
	handle        uint64
	answers       chan event // to resolve and Connect
	dev           *device    // once resolved; so are the addresses
	local, remote netip.AddrPort

	mu     sync.Mutex
	id     *C.struct_rdma_cm_id // nil once closed
	peer   rdma.ConnParam
	qp     *queuePair
	closed chan struct{} // when Close is done
	// disconnected: Disconnect was called, or the connection ended.
	disconnected bool
}

func newEndpoint(p *Provider, ev *events, handle uint64) *endpoint {
	// One question is open at a time: one answer, and the end of the connection.
	return &endpoint{p: p, ev: ev, handle: handle, answers: make(chan event, 4), closed: make(chan struct{})}
}

// resolve makes an active endpoint.
func (p *Provider) resolve(ctx context.Context, addr netip.AddrPort) (*endpoint, error) {
	ev, err := p.acquire()
	if err != nil {
		return nil, err
	}
	e := newEndpoint(p, ev, ev.handle())
	e.remote = addr
	if e.id, err = C.gv_create_id(p.lib, ev.ch, C.uint64_t(e.handle)); e.id == nil {
		p.release()
		return nil, fmt.Errorf("make connection id: %w", err)
	}
	ev.attach(e.handle, e)
	if err := e.resolve(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *endpoint) resolve(ctx context.Context) error {
	a := toC(e.remote)
	ms := C.int(resolveTimeout.Milliseconds())
	err := e.retry(ctx, C.RDMA_CM_EVENT_ADDR_RESOLVED, func() C.int { return C.gv_resolve_addr(e.p.lib, e.id, &a, ms) })
	if err != nil {
		return e.noPath("address", err)
	}
	err = e.retry(ctx, C.RDMA_CM_EVENT_ROUTE_RESOLVED, func() C.int { return C.gv_resolve_route(e.p.lib, e.id, ms) })
	if err != nil {
		return e.noPath("route", err)
	}
	return e.setDevice()
}

// noPath explains a resolution that did not work out.
func (e *endpoint) noPath(what string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("resolve %s of %s: %w", what, e.remote, err)
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("no RDMA path to %s: no RDMA device has an address in its network (`rdma link`, `ip route get`): %w: %w", e.remote, err, rdma.ErrUnavailable)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("no RDMA path to %s: nobody answered for the %s within %d tries of %s: %w", e.remote, what, resolveTries, resolveTimeout, err)
	}
	return fmt.Errorf("no RDMA path to %s: resolve %s: %w", e.remote, what, err)
}

// retry asks until the answer is want; only a timeout is worth another try.
func (e *endpoint) retry(ctx context.Context, want C.int32_t, ask func() C.int) error {
	var err error
	for range resolveTries {
		if err = e.locked(ask); err != nil {
			return err
		}
		var a event
		if a, err = e.answer(ctx); err != nil {
			return err
		}
		if a.kind == want {
			return nil
		}
		if err = statusError(a); !errors.Is(err, syscall.ETIMEDOUT) {
			return err
		}
	}
	return err
}

// locked makes a call on the id.
func (e *endpoint) locked(call func() C.int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.id == nil {
		return closedError("RDMA endpoint")
	}
	return errno(call())
}

func (e *endpoint) answer(ctx context.Context) (event, error) {
	select {
	case a := <-e.answers:
		return a, nil
	case <-e.closed:
		return event{}, closedError("RDMA endpoint")
	case <-ctx.Done():
		return event{}, ctx.Err()
	}
}

// statusError is the error in a negative answer.
func statusError(a event) error {
	if a.status < 0 {
		return syscall.Errno(-a.status)
	}
	return fmt.Errorf("connection manager event %d, status %d: %w", a.kind, a.status, syscall.EIO)
}

// setDevice fills in what is known once the id is bound to a device.
func (e *endpoint) setDevice() (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.id == nil {
		return closedError("RDMA endpoint")
	}
	if e.dev, err = e.p.device(e.id.verbs); err != nil {
		return err
	}
	var a C.struct_gv_addr
	C.gv_local_addr(e.id, &a)
	e.local = fromC(&a)
	C.gv_remote_addr(e.id, &a)
	e.remote = fromC(&a)
	return nil
}

// event implements sink. What ends a connection moves the queue pair to the error state: the kernel does
// not do that for user space, and without it receives would stay posted for ever.
func (e *endpoint) event(a event) {
	switch a.kind {
	case C.RDMA_CM_EVENT_ESTABLISHED:
		e.mu.Lock()
		if e.id != nil && e.disconnected {
			e.disconnectLocked() // the peer could not be told before
		}
		e.mu.Unlock()
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		e.mu.Lock()
		dev := e.dev
		e.mu.Unlock()
		e.p.forget(dev)
		_ = e.Disconnect()
	case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_TIMEWAIT_EXIT, C.RDMA_CM_EVENT_ADDR_CHANGE,
		C.RDMA_CM_EVENT_CONNECT_ERROR, C.RDMA_CM_EVENT_REJECTED, C.RDMA_CM_EVENT_UNREACHABLE:
		_ = e.Disconnect()
	}
	select {
	case e.answers <- a:
	default: // nobody asks any more
	}
}

// Device implements rdma.Endpoint.
func (e *endpoint) Device() rdma.Device { return e.dev }

// LocalAddr implements rdma.Endpoint.
func (e *endpoint) LocalAddr() netip.AddrPort { return e.local }

// RemoteAddr implements rdma.Endpoint.
func (e *endpoint) RemoteAddr() netip.AddrPort { return e.remote }

// Peer implements rdma.Endpoint.
func (e *endpoint) Peer() rdma.ConnParam {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peer
}

// CreateQP implements rdma.Endpoint.
func (e *endpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	qp, err := e.createQP(c)
	if err != nil {
		return nil, fmt.Errorf("%s: make queue pair (send depth %d, receive depth %d): %w", e.dev.name, c.SendDepth, c.RecvDepth, err)
	}
	return qp, nil
}

func (e *endpoint) createQP(c rdma.QPConfig) (*queuePair, error) {
	scq, ok := c.SendCQ.(*completionQueue)
	rcq, ok2 := c.RecvCQ.(*completionQueue)
	switch {
	case e.id == nil:
		return nil, closedError("RDMA endpoint")
	case e.qp != nil:
		return nil, fmt.Errorf("the endpoint has one: %w", syscall.EEXIST)
	case !ok || !ok2 || scq.cq == nil || rcq.cq == nil:
		return nil, fmt.Errorf("completion queues must be open and of the same device: %w", syscall.EINVAL)
	}
	c.MaxSendSGE, c.MaxRecvSGE = max(c.MaxSendSGE, 1), max(c.MaxRecvSGE, 1)
	err := errno(C.gv_create_qp(e.p.lib, e.id, e.dev.pd, scq.cq, rcq.cq,
		C.int(c.SendDepth), C.int(c.RecvDepth), C.int(c.MaxSendSGE), C.int(c.MaxRecvSGE)))
	if err != nil {
		return nil, lockAdvice(err, uint64(c.SendDepth+c.RecvDepth)*bytesPerRequest)
	}
	e.qp = newQueuePair(e.dev, e.id.qp, c)
	return e.qp, nil
}

// bytesPerRequest is about what a work request takes of locked memory, for advice only.
const bytesPerRequest = 128

// Connect implements rdma.Endpoint.
func (e *endpoint) Connect(ctx context.Context, p rdma.ConnParam) error {
	if err := e.connect(ctx, p); err != nil {
		return fmt.Errorf("verbs: connect to %s: %w", e.remote, err)
	}
	return nil
}

func (e *endpoint) connect(ctx context.Context, p rdma.ConnParam) error {
	if len(p.PrivateData) > rdma.MaxRequestPrivate {
		return fmt.Errorf("%d bytes of private data, at most %d: %w", len(p.PrivateData), rdma.MaxRequestPrivate, syscall.EINVAL)
	}
	err := e.locked(func() C.int {
		return C.gv_connect(e.p.lib, e.id, unsafe.Pointer(unsafe.SliceData(p.PrivateData)), C.int(len(p.PrivateData)),
			C.int(min(p.ResponderResources, e.dev.maxResources)), C.int(min(p.InitiatorDepth, e.dev.maxDepth)))
	})
	if err != nil {
		return err
	}
	a, err := e.answer(ctx)
	if err != nil {
		return err
	}
	switch a.kind {
	case C.RDMA_CM_EVENT_ESTABLISHED:
		e.mu.Lock()
		e.peer = a.peer
		e.mu.Unlock()
		return nil
	case C.RDMA_CM_EVENT_REJECTED:
		reason := a.status
		if reason < 0 { // iWARP has no reasons: -ECONNREFUSED
			reason = rdma.ReasonConsumer
		}
		return &rdma.RejectedError{Reason: reason, Private: a.peer.PrivateData}
	case C.RDMA_CM_EVENT_UNREACHABLE:
		return fmt.Errorf("the peer does not answer: %w", statusError(a))
	}
	return statusError(a)
}

// Accept implements rdma.Endpoint.
func (e *endpoint) Accept(p rdma.ConnParam) error {
	err := error(syscall.EINVAL)
	if len(p.PrivateData) <= rdma.MaxReplyPrivate {
		// Reads that we issue are bounded by what the peer serves, too: it is said in the REP.
		err = e.locked(func() C.int {
			return C.gv_accept(e.p.lib, e.id, unsafe.Pointer(unsafe.SliceData(p.PrivateData)), C.int(len(p.PrivateData)),
				C.int(min(p.ResponderResources, e.dev.maxResources)),
				C.int(min(p.InitiatorDepth, e.dev.maxDepth, e.peer.InitiatorDepth)))
		})
	}
	if err != nil {
		return fmt.Errorf("verbs: accept connection from %s: %w", e.remote, err)
	}
	return nil
}

// Reject implements rdma.Endpoint.
func (e *endpoint) Reject(private []byte) error {
	if err := errors.Join(e.reject(private), e.Close()); err != nil {
		return fmt.Errorf("verbs: reject connection from %s: %w", e.remote, err)
	}
	return nil
}

func (e *endpoint) reject(private []byte) error {
	private = private[:min(len(private), rdma.MaxRejectPrivate)]
	return e.locked(func() C.int {
		return C.gv_reject(e.p.lib, e.id, unsafe.Pointer(unsafe.SliceData(private)), C.int(len(private)))
	})
}

// Disconnect implements rdma.Endpoint.
func (e *endpoint) Disconnect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.id == nil {
		return nil
	}
	e.disconnectLocked()
	return nil
}

// disconnectLocked asks the peer to end the connection, if there is one (the error says only that there
// is none), and fails the queue pair in any case. A connection that is accepted but not established yet
// cannot be ended: event does it then.
func (e *endpoint) disconnectLocked() {
	e.disconnected = true
	C.gv_disconnect(e.p.lib, e.id)
	if e.qp != nil {
		_ = e.qp.fail() // a queue pair that cannot be failed is one whose device is gone
	}
}

// Close implements rdma.Endpoint. Once the id is taken out of e, nobody else uses it. Order: the queue
// pair (then no memory is in use), the id. Nothing here waits for our own event goroutine: it has
// acknowledged every event before it looks at it.
func (e *endpoint) Close() error {
	e.mu.Lock()
	id, qp := e.id, e.qp
	if id == nil {
		e.mu.Unlock()
		<-e.closed
		return nil
	}
	e.disconnectLocked()
	e.id = nil
	e.mu.Unlock()

	e.ev.detach(e.handle)
	if qp != nil {
		qp.mu.Lock()
		qp.qp = nil
		C.gv_destroy_qp(e.p.lib, id)
		qp.mu.Unlock()
	}
	err := errno(C.gv_destroy_id(e.p.lib, id))
	close(e.closed)
	e.p.release()
	if err != nil {
		return fmt.Errorf("verbs: free connection id: %w", err)
	}
	return nil
}
