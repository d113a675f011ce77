package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// perftest's programs make two connections with -R, both to the same port: one over which client and server exchange
// settings, synchronization and results in turn, the client first; and one for the test. Synchronization is by messages
// of destSize bytes that say where the sender's memory is: its key at destKey, its address at destAddr. Each exchange is
// of values of one kind, so a server may answer with what it got, but for those.
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

// What a client says first: the version that it is compatible with (later ones exchange numbers of other lengths), the
// page and cache line sizes that its buffers are laid out by, and its path MTU as a verbs enumerator: 4096.
var perftestHello = []string{"6.00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x10\x00", "\x00\x00\x00\x40", "5\x00"}

// A bandwidth is one of perftest's programs: what it does, how many synchronizations it has before that, and whether the
// client tells its results (five numbers of 8 bytes) after it.
type bandwidth struct {
	op    rdma.OpCode
	syncs int
	tells bool
}

// client is the program with the address of a server.
func (b bandwidth) client(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error {
	dial := func(size int) (*conn, error) {
		ep, err := p.Resolve(ctx, addr)
		if err != nil {
			return nil, err
		}
		c, err := newConn(ctx, ep, size)
		if err != nil {
			return nil, err
		}
		if err := c.recv(0, 0, size); err != nil {
			return nil, err
		}
		if err := ep.Connect(ctx, param); err != nil {
			return nil, errors.Join(err, ep.Close())
		}
		return c, nil
	}
	control, err := dial(controlSize)
	if err != nil {
		return err
	}
	defer control.ep.Close()
	for _, s := range perftestHello {
		if err := control.ask([]byte(s)); err != nil {
			return fmt.Errorf("hello: %w", err)
		}
	}
	if err := control.sync(1, nil); err != nil {
		return err
	}
	test, err := dial(o.size)
	for errors.Is(err, rdma.ErrRejected) { // it listens only now
		test, err = dial(o.size)
	}
	if err != nil {
		return fmt.Errorf("test connection: %w", err)
	}
	defer test.ep.Close()
	if err := control.sync(1+b.syncs, test); err != nil {
		return err
	}
	if err := b.run(test, control.mem[:destSize], o); err != nil {
		return err
	}
	if !b.tells {
		return control.sync(1, test)
	}
	if err := control.sync(1, test); err != nil {
		return err
	}
	for range 5 {
		if err := control.ask(make([]byte, 8)); err != nil {
			return fmt.Errorf("results: %w", err)
		}
	}
	return control.sync(1, test)
}

// run is the test: dest says where the server's memory is.
func (b bandwidth) run(c *conn, dest []byte, o options) error {
	w := rdma.SendWR{Op: b.op, RKey: binary.BigEndian.Uint32(dest[destKey:]), RemoteAddr: binary.BigEndian.Uint64(dest[destAddr:])}
	w.Flags, w.SGL = rdma.Signaled, c.sgl(0, o.size)
	for posted, done := 0, 0; done < o.count; {
		if posted < o.count && posted-done < depth {
			if _, err := c.qp.PostSend([]rdma.SendWR{w}); err != nil {
				return err
			}
			posted++
			continue
		}
		if _, err := c.next(c.sends); err != nil {
			return fmt.Errorf("request %d: %w", done, err)
		}
		done++
	}
	return nil
}

// ask is an exchange from the client's side. The answer is left in c.mem.
func (c *conn) ask(b []byte) error {
	copy(c.mem, b)
	if err := c.do(rdma.SendWR{Op: rdma.OpSend}, 0, len(b)); err != nil {
		return err
	}
	if err := c.got(len(b)); err != nil {
		return err
	}
	return c.recv(0, 0, controlSize)
}

// sync synchronizes n times. The memory that we tell of is that of the test connection, if there is one.
func (c *conn) sync(n int, test *conn) error {
	b := make([]byte, destSize)
	if test != nil {
		binary.BigEndian.PutUint32(b[destKey:], test.mr.RKey())
		binary.BigEndian.PutUint64(b[destAddr:], test.mr.Addr())
	}
	for range n {
		if err := c.ask(b); err != nil {
			return fmt.Errorf("synchronization: %w", err)
		}
	}
	return nil
}
