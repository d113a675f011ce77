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

	"github.com/goiser/goiser/iser/rdma"
)

// backlog bounds connection requests that wait for Accept; one more is refused.
const backlog = 128

// A listener is a listening rdma_cm_id.
type listener struct {
	p      *Provider
	ev     *events
	handle uint64
	addr   netip.AddrPort
	queue  chan *endpoint
	done   chan struct{} // closed with err set

	mu  sync.Mutex
	id  *C.struct_rdma_cm_id // nil once closed
	err error                // why it ended
}

func (p *Provider) listen(addr netip.AddrPort) (*listener, error) {
	ev, err := p.acquire()
	if err != nil {
		return nil, err
	}
	l := &listener{p: p, ev: ev, handle: ev.handle(), queue: make(chan *endpoint, backlog), done: make(chan struct{})}
	if l.id, err = C.gv_create_id(p.lib, ev.ch, C.uint64_t(l.handle)); l.id == nil {
		p.release()
		return nil, fmt.Errorf("make connection id: %w", err)
	}
	ev.attach(l.handle, l) // requests may come before gv_listen returns
	a := toC(addr)
	if err = errno(C.gv_listen(p.lib, l.id, &a, backlog)); err != nil {
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EADDRNOTAVAIL) {
			err = fmt.Errorf("the address is on no RDMA device (`rdma link`): %w: %w", err, rdma.ErrUnavailable)
		}
		return nil, errors.Join(err, l.Close())
	}
	C.gv_local_addr(l.id, &a)
	l.addr = fromC(&a)
	return l, nil
}

// Addr implements rdma.Listener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Accept implements rdma.Listener.
func (l *listener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	select {
	case e := <-l.queue:
		return e, nil
	case <-l.done:
		return nil, fmt.Errorf("verbs: listener on %s: %w", l.addr, l.err)
	case <-ctx.Done():
		return nil, fmt.Errorf("verbs: accept on %s: %w", l.addr, ctx.Err())
	}
}

// event implements sink.
func (l *listener) event(a event) {
	switch a.kind {
	case C.RDMA_CM_EVENT_CONNECT_REQUEST:
		l.request(a)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		l.end(fmt.Errorf("its RDMA device was removed: %w", closedError("listener")))
	}
}

// request queues a connection request, or refuses it if that is not possible.
func (l *listener) request(a event) {
	e := newEndpoint(l.p, l.ev, a.handle)
	e.id, e.peer = a.id, a.peer
	if err := e.setDevice(); err == nil && l.push(e) {
		return
	}
	// The peer may be gone as well: errors say nothing.
	C.gv_reject(l.p.lib, a.id, nil, 0)
	C.gv_destroy_id(l.p.lib, a.id)
}

// push makes e a user of the event channel and queues it. The listener is a user itself until after it
// has ended, so there is a channel as long as push succeeds.
func (l *listener) push(e *endpoint) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || len(l.queue) == cap(l.queue) { // this goroutine is the only one that sends
		return false
	}
	l.p.adopt()
	l.ev.attach(e.handle, e)
	l.queue <- e
	return true
}

// end makes Accept return err, once.
func (l *listener) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// Close implements rdma.Listener. Requests that nobody accepted are refused.
func (l *listener) Close() error {
	l.end(closedError("listener"))
	l.mu.Lock()
	id := l.id
	l.id = nil
	l.mu.Unlock()
	if id == nil {
		return nil
	}
	var err error
	for len(l.queue) > 0 { // nobody adds to it any more; Accept may still take from it
		select {
		case e := <-l.queue:
			_ = e.reject(nil) // it fails if the peer has given up
			err = errors.Join(err, e.Close())
		default:
		}
	}
	err = errors.Join(err, errno(C.gv_destroy_id(l.p.lib, id)))
	l.ev.detach(l.handle)
	l.p.release()
	if err != nil {
		return fmt.Errorf("verbs: close listener on %s: %w", l.addr, err)
	}
	return nil
}
