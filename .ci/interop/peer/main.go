// Peer is the far end of programs that come with librdmacm and perftest, over our own RoCE: rping, ucmatose, and
// ib_write_bw, ib_read_bw and ib_send_bw with -R. It checks the bytes where those programs' own ends do, ends after one
// run, and fails if the run did.
//
//	peer PROGRAM [-c] [-source ADDRESS] [-n COUNT] [-size BYTES] [-limit DURATION] ADDRESS:PORT
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// options of a run.
type options struct {
	count int
	size  int // bytes of a message
}

func main() {
	fs := flag.NewFlagSet("peer", flag.ExitOnError)
	active := fs.Bool("c", false, "connect (default: listen)")
	source := fs.String("source", "", "our `ADDRESS` (default: that of the route)")
	var o options
	fs.IntVar(&o.count, "n", 10, "messages or rounds")
	fs.IntVar(&o.size, "size", 4096, "bytes of each")
	limit := fs.Duration("limit", time.Minute, "time for all")
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "peer: want the name of a program")
		os.Exit(2)
	}
	_ = fs.Parse(os.Args[2:]) // it exits
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	if err := run(ctx, os.Args[1], *active, *source, fs.Arg(0), o); err != nil {
		fmt.Fprintf(os.Stderr, "peer: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	fmt.Printf("%s: done\n", os.Args[1])
}

// A role is one side of a program's protocol.
type role func(ctx context.Context, p *roce.Provider, addr netip.AddrPort, o options) error

func run(ctx context.Context, program string, active bool, source, address string, o options) (err error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	var ro roce.Options
	if source != "" {
		if ro.Addr, err = netip.ParseAddr(source); err != nil {
			return err
		}
	}
	roles := map[string][2]role{
		"rping":       {rpingServer, rpingClient},
		"ucmatose":    {ucmatoseServer, ucmatoseClient},
		"ib_write_bw": {perftestServer, bandwidth{rdma.OpWrite, 3, true}.client},
		"ib_read_bw":  {perftestServer, bandwidth{rdma.OpRead, 3, true}.client},
		"ib_send_bw":  {perftestServer, bandwidth{rdma.OpSend, 4, false}.client},
	}
	r := roles[program][0]
	if active {
		r = roles[program][1]
	}
	if r == nil {
		return fmt.Errorf("no such side of %q", program)
	}
	p := roce.New(ro)
	defer func() {
		if e := p.Close(); err == nil {
			err = e
		}
	}()
	return r(ctx, p, addr, o)
}

// serve hands one connection request to f.
func serve(ctx context.Context, p *roce.Provider, addr netip.AddrPort, f func(rdma.Endpoint) error) error {
	l, err := p.Listen(addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening at", l.Addr())
	ep, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return f(ep)
}

// depth of every queue.
const depth = 64

// param says that we take part in up to 16 RDMA Reads each way.
var param = rdma.ConnParam{ResponderResources: 16, InitiatorDepth: 16}

// A conn is a connection with memory that the peer may use.
type conn struct {
	ctx          context.Context
	ep           rdma.Endpoint
	qp           rdma.QueuePair
	mr           rdma.MemoryRegion
	mem          []byte
	sends, recvs rdma.CompletionQueue
}

func newConn(ctx context.Context, ep rdma.Endpoint, size int) (*conn, error) {
	c := &conn{ctx: ctx, ep: ep, mem: make([]byte, size)}
	d := ep.Device()
	var err error
	if c.mr, err = d.Register(c.mem, rdma.LocalWrite|rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		return nil, err
	}
	if c.sends, err = d.NewCQ(depth); err != nil {
		return nil, err
	}
	if c.recvs, err = d.NewCQ(depth); err != nil {
		return nil, err
	}
	c.qp, err = ep.CreateQP(rdma.QPConfig{SendCQ: c.sends, RecvCQ: c.recvs, SendDepth: depth, RecvDepth: depth, MaxSendSGE: 1, MaxRecvSGE: 1})
	return c, err
}

func (c *conn) sgl(off, n int) []rdma.SGE {
	return []rdma.SGE{{Addr: c.mr.Addr() + uint64(off), Length: uint32(n), LKey: c.mr.LKey()}}
}

// recv posts a receive.
func (c *conn) recv(id uint64, off, n int) error {
	_, err := c.qp.PostRecv([]rdma.RecvWR{{ID: id, SGL: c.sgl(off, n)}})
	return err
}

// do posts a work request of n bytes of our memory from off on, and waits until it has completed.
func (c *conn) do(w rdma.SendWR, off, n int) error {
	w.Flags, w.SGL = rdma.Signaled, c.sgl(off, n)
	if _, err := c.qp.PostSend([]rdma.SendWR{w}); err != nil {
		return err
	}
	_, err := c.next(c.sends)
	return err
}

// next waits for a completion, which must be of success.
func (c *conn) next(cq rdma.CompletionQueue) (rdma.Completion, error) {
	deadline, _ := c.ctx.Deadline()
	var cs [1]rdma.Completion
	for {
		n, err := cq.Poll(cs[:])
		switch {
		case err != nil:
			return cs[0], err
		case n == 1 && cs[0].Status != rdma.Success:
			return cs[0], fmt.Errorf("work request %d: %w", cs[0].ID, statusError(cs[0].Status))
		case n == 1:
			return cs[0], nil
		case !time.Now().Before(deadline):
			return cs[0], fmt.Errorf("no completion: %w", context.DeadlineExceeded)
		}
		if err := cq.Wait(deadline); err != nil {
			return cs[0], err
		}
	}
}

// inOrder takes steps until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// got waits for a message of n bytes.
func (c *conn) got(n int) error {
	m, err := c.next(c.recvs)
	if err == nil && int(m.ByteLen) != n {
		err = fmt.Errorf("got a message of %d bytes, not %d", m.ByteLen, n)
	}
	return err
}

// left waits until the peer disconnects, which flushes a receive.
func (c *conn) left() error {
	m, err := c.next(c.recvs)
	if err == nil {
		return fmt.Errorf("a message of %d bytes more than there should be", m.ByteLen)
	}
	if m.Status != rdma.WRFlushErr {
		return err
	}
	return nil
}

type statusError rdma.Status

func (e statusError) Error() string { return rdma.Status(e).String() }
