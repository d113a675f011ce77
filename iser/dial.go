package iser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// Name is "iser".
func (d *Dialer) Name() string { return "iser" }

// Dial connects to host:port, ready for login. Errors wrap rdma.ErrUnavailable, rdma.ErrRejected or what
// the name lookup or ctx says.
func (d *Dialer) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	c, err := d.Config.withDefaults()
	if err != nil {
		return nil, err
	}
	addr, err := lookup(ctx, address)
	if err != nil {
		return nil, err
	}
	ep, err := d.Provider.Resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("iSER connection to %s: %w", address, err)
	}
	i := &initiator{
		conn:   conn{ep: ep, dev: newDevice(ep.Device(), windowRights), trace: c.Trace},
		config: c, byITT: make(map[uint32]*command, c.QueueDepth),
	}
	i.role = i
	if err := i.connect(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("iSER connection to %s: %w", address, err), i.discard(), i.closeMemory())
	}
	return i, nil
}

func (c InitiatorConfig) withDefaults() (InitiatorConfig, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.QueueDepth, defaultQueueDepth)
	def(&c.PoolBytes, defaultPoolBytes)
	def(&c.MaxImmediate, defaultMaxImmediate)
	if c.QueueDepth < 1 || c.QueueDepth > maxQueueDepth {
		return c, fmt.Errorf("iSER queue depth of %d: want 1 to %d", c.QueueDepth, maxQueueDepth)
	}
	if c.PoolBytes < 0 || c.MaxImmediate < 0 {
		return c, fmt.Errorf("iSER pool of %d bytes, immediate data of %d: want positive numbers", c.PoolBytes, c.MaxImmediate)
	}
	c.MaxImmediate = min(c.MaxImmediate, maxRecvData)
	return c, nil
}

// lookup finds the address of host:port.
func lookup(ctx context.Context, address string) (netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("iSER address: %w", err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("iSER address %s: port: %w", address, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip, uint16(port)), nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("iSER address %s: %w", address, err)
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(port)), nil
}

// connect makes the initiator's end. All receives are posted before the request is sent.
func (i *initiator) connect(ctx context.Context) error {
	lim := i.dev.Limits()
	n := i.config.QueueDepth
	if err := i.openMemory(); err != nil {
		return err
	}
	// Every Send has a slot: see Enable.
	d := depths{send: 3*n + recvReserve + 2*spareSlots + loginSlots, recv: n + recvReserve}
	if i.keys != nil {
		d.send += 2 * n // a command binds its window and may have to invalidate its key
	}
	if err := d.fit(&lim, n+recvReserve); err != nil {
		return err
	}
	if err := i.open(d, d.recv); err != nil {
		return err
	}
	return i.ep.Connect(ctx, rdma.ConnParam{
		PrivateData: privateData(i.keys != nil), ResponderResources: max(minReads, min(maxReads, lim.MaxReadDepth)),
	})
}
