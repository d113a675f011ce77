package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// rping's messages are all of one kind: address (64 bits), key and size (32 bits each), big endian. In each round the
// client offers a source buffer, which the server reads; then a sink, to which the server writes the same bytes. The
// server answers each offer, when it has done so, with a message of which only the length counts.
const advertSize = 16

// The memory of either side: what is received, what is sent, and two buffers of the size of a round.
const (
	rpingRecv = 0
	rpingSend = advertSize
	rpingData = 4096
)

func (c *conn) advertise(off, n int) error {
	b := c.mem[rpingSend:rpingSend:rpingData]
	b = binary.BigEndian.AppendUint64(b, c.mr.Addr()+uint64(off))
	b = binary.BigEndian.AppendUint32(b, c.mr.RKey())
	_ = binary.BigEndian.AppendUint32(b, uint32(n))
	return c.do(rdma.SendWR{Op: rdma.OpSend}, rpingSend, advertSize)
}

// message waits for one and makes room for the next. Its bytes are a copy.
func (c *conn) message() ([]byte, error) {
	if err := c.got(advertSize); err != nil {
		return nil, err
	}
	return bytes.Clone(c.mem[rpingRecv:][:advertSize]), c.recv(0, rpingRecv, advertSize)
}

// rpingServer is `rping -s`, for one connection. Without -c on its side rping's client goes on for ever: o.count rounds
// are wanted.
func rpingServer(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error {
	return serve(ctx, p, addr, func(ep rdma.Endpoint) error {
		c, err := newConn(ctx, ep, rpingData+o.size)
		if err != nil {
			return err
		}
		defer ep.Close()
		if err := c.recv(0, rpingRecv, advertSize); err != nil {
			return err
		}
		if err := ep.Accept(param); err != nil {
			return err
		}
		for i := range o.count {
			if err := c.serveRound(o.size); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
		return c.left()
	})
}

func (c *conn) serveRound(size int) error {
	for _, op := range []rdma.OpCode{rdma.OpRead, rdma.OpWrite} {
		m, err := c.message()
		if err != nil {
			return fmt.Errorf("offer: %w", err)
		}
		w := rdma.SendWR{Op: op, RemoteAddr: binary.BigEndian.Uint64(m), RKey: binary.BigEndian.Uint32(m[8:])}
		if n := binary.BigEndian.Uint32(m[12:]); int(n) != size {
			return fmt.Errorf("offer of %d bytes, not %d", n, size)
		}
		if err := c.do(w, rpingData, size); err != nil {
			return fmt.Errorf("read or write: %w", err)
		}
		if err := c.advertise(0, 0); err != nil {
			return fmt.Errorf("go-ahead: %w", err)
		}
	}
	return nil
}

// rpingClient is `rping -c -V`.
func rpingClient(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error {
	ep, err := p.Resolve(ctx, addr)
	if err != nil {
		return err
	}
	defer ep.Close()
	c, err := newConn(ctx, ep, rpingData+2*o.size)
	if err != nil {
		return err
	}
	if err := c.recv(0, rpingRecv, advertSize); err != nil {
		return err
	}
	if err := ep.Connect(ctx, param); err != nil {
		return err
	}
	for i := range o.count {
		if err := c.askRound(i, o.size); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return ep.Disconnect()
}

func (c *conn) askRound(round, size int) error {
	source, sink := c.mem[rpingData:][:size], c.mem[rpingData+size:][:size]
	for i := range source {
		source[i] = 'A' + byte((i+round)%57)
	}
	source[size-1] = 0 // the server takes it for a string
	clear(sink)
	for _, off := range []int{rpingData, rpingData + size} {
		if err := c.advertise(off, size); err != nil {
			return fmt.Errorf("offer: %w", err)
		}
		if _, err := c.message(); err != nil {
			return fmt.Errorf("go-ahead: %w", err)
		}
	}
	if !bytes.Equal(source, sink) {
		return errors.New("what came back is not what was there")
	}
	return nil
}
