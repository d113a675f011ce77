package roce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/cm"
)

// A listener hands out the requests for one TCP port of one address, or of all of this machine's.
type listener struct {
	addr    netip.AddrPort
	ports   []*port
	backlog chan *endpoint // full: a request is refused
	done    chan struct{}
	once    sync.Once
}

// Listen implements rdma.Provider. UDP port 4791 of the address must be free; the error says who may have it. The
// unspecified address means every address of its family that this machine has now, [::] those of IPv4 as well.
func (p *Provider) Listen(addr netip.AddrPort) (rdma.Listener, error) {
	l, err := p.listen(addr)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (p *Provider) listen(addr netip.AddrPort) (*listener, error) {
	addrs, err := p.localAddrs(addr.Addr().Unmap())
	if err != nil {
		return nil, fmt.Errorf("roce: listen on %v: %w", addr, err)
	}
	l := &listener{backlog: make(chan *endpoint, cm.MaxHalfOpen), done: make(chan struct{})}
	for _, a := range addrs {
		o, err := p.port(a)
		if err != nil {
			return nil, err // it says what was to be listened on
		}
		l.ports = append(l.ports, o)
	}
	n := addr.Port()
	if n == 0 {
		n = l.ports[0].freePort()
	}
	l.addr = netip.AddrPortFrom(addr.Addr().Unmap(), n)
	for i, o := range l.ports {
		if err := o.listen(n, l); err != nil {
			l.leave(l.ports[:i])
			return nil, fmt.Errorf("roce: listen on %v: %w", addr, err)
		}
	}
	return l, nil
}

// localAddrs are the addresses that a listener's means.
func (p *Provider) localAddrs(a netip.Addr) ([]netip.Addr, error) {
	own := p.o.Addr
	switch {
	case !a.IsValid() || a.IsMulticast():
		return nil, errors.New("not an address of this machine")
	case own.IsValid() && (a.IsUnspecified() || a == own || a == p.o.External):
		return []netip.Addr{own}, nil
	case own.IsValid():
		return nil, fmt.Errorf("the provider's address is %v", own)
	case !a.IsUnspecified():
		return []netip.Addr{a}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, x := range all {
		ip, ok := netip.AddrFromSlice(x.(*net.IPNet).IP)
		if ip = ip.Unmap(); ok && (ip.Is4() || a.Is6()) && !ip.IsLinkLocalUnicast() {
			addrs = append(addrs, ip)
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("this machine has no such address")
	}
	return addrs, nil
}

// freePort picks a TCP port that nobody listens at.
func (o *port) freePort() uint16 {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n := firstEphemeral | uint16(o.rng.Uint32())
		if o.listeners[n] == nil {
			return n
		}
	}
}

// listen opens a TCP port for l.
func (o *port) listen(n uint16, l *listener) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.checkLocked(); err != nil {
		return err
	}
	if o.listeners[n] != nil {
		return fmt.Errorf("port %d of %v is in use", n, o.addr)
	}
	o.listeners[n] = l
	o.stepLocked(cm.Listen{Port: n})
	return nil
}

// offer puts a request into the backlog. The port's lock is held, so Close has either not begun or is past caring.
func (l *listener) offer(e *endpoint) bool {
	select {
	case l.backlog <- e:
		return true
	default:
		return false
	}
}

// Accept implements rdma.Listener.
func (l *listener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	for {
		select {
		case <-l.done:
			return nil, l.closedError()
		default:
		}
		select {
		case <-l.done:
			return nil, l.closedError()
		case <-ctx.Done():
			return nil, fmt.Errorf("roce: accept on %v: %w", l.addr, ctx.Err())
		case e := <-l.backlog:
			if e.take() {
				return e, nil
			}
		}
	}
}

func (l *listener) closedError() error {
	return fmt.Errorf("roce: accept on %v: %w", l.addr, net.ErrClosed)
}

// take hands a request to Accept's caller; false if it has ended meanwhile.
func (e *endpoint) take() bool {
	e.o.mu.Lock()
	defer e.o.mu.Unlock()
	if e.state == epEnded {
		e.closeLocked()
		return false
	}
	return true
}

// Addr implements rdma.Listener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close implements rdma.Listener. Requests that Accept has not taken are refused as if nobody had listened.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.leave(l.ports)
		for {
			select {
			case e := <-l.backlog:
				e.o.mu.Lock()
				e.o.stepLocked(cm.Reject{Conn: e.conn, Reason: cm.ReasonInvalidService})
				e.closeLocked()
				e.o.mu.Unlock()
			default:
				return
			}
		}
	})
	return nil
}

// leave closes the TCP port: no request comes from there any more.
func (l *listener) leave(ports []*port) {
	for _, o := range ports {
		o.mu.Lock()
		delete(o.listeners, l.addr.Port())
		o.stepLocked(cm.Unlisten{Port: l.addr.Port()})
		o.mu.Unlock()
	}
}
