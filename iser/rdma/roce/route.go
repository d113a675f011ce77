package roce

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// Resolve implements rdma.Provider. It sends nothing: whether the peer is there, Connect finds out.
func (p *Provider) Resolve(ctx context.Context, addr netip.AddrPort) (rdma.Endpoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("roce: resolve %v: %w", addr, err)
	}
	to := addr.Addr().Unmap()
	if !to.IsValid() || to.IsUnspecified() || to.IsMulticast() || addr.Port() == 0 {
		return nil, fmt.Errorf("roce: resolve %v: not the address and port of a peer", addr)
	}
	o, err := p.route(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("roce: resolve %v: %w", addr, err)
	}
	if o.addr.Is4() != to.Is4() {
		return nil, fmt.Errorf("roce: resolve %v: our address %v is of another family", addr, o.addr)
	}
	return o.newActive(netip.AddrPortFrom(to, addr.Port())), nil
}

// route is the port from which an address is reached.
func (p *Provider) route(ctx context.Context, to netip.Addr) (*port, error) {
	if p.o.Addr.IsValid() {
		return p.port(p.o.Addr)
	}
	from, err := source(ctx, to)
	if err != nil {
		return nil, err
	}
	if to.Is4() && (to.IsLoopback() || from == to) { // port 4791 of that address is the peer's
		return p.loopback()
	}
	return p.port(from)
}

// source asks the kernel for our address on the way to another. Connecting a UDP socket sends nothing.
func source(ctx context.Context, to netip.Addr) (netip.Addr, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(to, wire.Port).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// loopback is the port for peers on this machine.
func (p *Provider) loopback() (*port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.local != nil && !p.closed {
		return p.local, nil
	}
	if p.o.Link != nil || p.closed {
		o, err := p.portLocked(netip.AddrFrom4([4]byte{127, 0, 0, 2}))
		p.local = o
		return o, err
	}
	l, err := link.ListenLoopback(link.Options{NoOffload: p.o.NoOffload, Tap: &p.tap})
	if err != nil {
		return nil, err
	}
	p.local = p.addLocked(l)
	return p.local, nil
}
