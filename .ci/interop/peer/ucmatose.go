package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// ucmatose sends messages from the server to the client, then as many back. Their contents do not matter to it. The
// server disconnects.

func ucmatoseServer(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error {
	return serve(ctx, p, addr, func(ep rdma.Endpoint) error {
		defer ep.Close()
		c, err := newConn(ctx, ep, o.size)
		if err != nil {
			return err
		}
		return inOrder(
			func() error { return c.room(o.count, o.size) },
			func() error { return ep.Accept(param) },
			func() error { return c.send(o) },
			func() error { return c.receive(o) },
			ep.Disconnect,
		)
	})
}

func ucmatoseClient(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error {
	ep, err := p.Resolve(ctx, addr)
	if err != nil {
		return err
	}
	defer ep.Close()
	c, err := newConn(ctx, ep, o.size)
	if err != nil {
		return err
	}
	return inOrder(
		func() error { return c.room(o.count+1, o.size) },
		func() error { return ep.Connect(ctx, param) },
		func() error { return c.receive(o) },
		func() error { return c.send(o) },
		c.left,
	)
}

// room posts receives, all for the same memory.
func (c *conn) room(n, size int) error {
	for i := range n {
		if err := c.recv(uint64(i), 0, size); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) send(o options) error {
	for i := range o.count {
		if err := c.do(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend}, 0, o.size); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

func (c *conn) receive(o options) error {
	for range o.count {
		if err := c.got(o.size); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
	return nil
}
