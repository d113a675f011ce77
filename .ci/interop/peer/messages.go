package main

import (
	"context"
	"encoding/binary"
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

// perftest's programs make two connections with -R, both to the same port: one over which client and server exchange
// settings, keys, synchronization and results in turn, the client first; and one for the test. Each exchange is of
// values of one kind, so a server may answer with what it got, but for where its memory is: that is in messages of
// destSize bytes, the key at destKey and the address at destAddr.
const (
	destSize = 56
	destKey  = 16
	destAddr = 24
)

// controlSize is room for any message of the first connection.
const controlSize = 1024

func perftestServer(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error {
	l, err := p.Listen(addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening at", l.Addr())
	accept := func(size, recvSize int) (*conn, error) {
		ep, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		c, err := newConn(ctx, ep, size)
		if err != nil {
			return nil, err
		}
		if err := c.room(depth/2, recvSize); err != nil {
			return nil, err
		}
		return c, ep.Accept(param)
	}
	control, err := accept(controlSize, controlSize)
	if err != nil {
		return err
	}
	defer control.ep.Close()
	ended := make(chan error, 1)
	test := make(chan *conn, 1)
	go func() { ended <- control.answer(test) }()
	// Room for a buffer on each side of a page boundary, and as much again: perftest counts in cycles of 4 KiB.
	c, err := accept(4*max(o.size, 4096), o.size)
	if err != nil {
		return err
	}
	defer c.ep.Close()
	test <- c
	got := make(chan int, 1)
	go func() { got <- c.drain(o.size) }()
	if err := <-ended; err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	fmt.Println("messages received:", <-got)
	return nil
}

// answer answers on the control connection until the client leaves. The memory that it tells of is that of the test
// connection, which the client makes after the first of the messages in which it counts.
func (c *conn) answer(test <-chan *conn) error {
	var t *conn
	for dests := 0; ; {
		m, err := c.next(c.recvs)
		switch {
		case m.Status == rdma.WRFlushErr:
			return nil
		case err != nil:
			return err
		}
		if m.ByteLen == destSize {
			if dests++; dests == 2 {
				t = <-test
			}
			if t != nil {
				binary.BigEndian.PutUint32(c.mem[destKey:], t.mr.RKey())
				binary.BigEndian.PutUint64(c.mem[destAddr:], t.mr.Addr())
			}
		}
		if err := c.do(rdma.SendWR{Op: rdma.OpSend}, 0, int(m.ByteLen)); err != nil {
			return err
		}
		if err := c.recv(0, 0, controlSize); err != nil {
			return err
		}
	}
}

// drain counts messages until the client leaves.
func (c *conn) drain(size int) int {
	for n := 0; ; n++ {
		if _, err := c.next(c.recvs); err != nil {
			return n
		}
		if err := c.recv(0, 0, size); err != nil {
			return n
		}
	}
}
