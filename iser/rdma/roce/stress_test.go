package roce_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/link"
)

// Connections come and go on one pair of ports while others move data, are disconnected from either end, or closed
// under load. What matters is that nothing is wrong, nothing hangs, and nothing is left.
func TestManyConnectionsAtOnce(t *testing.T) {
	p, q := open(t, roce.Options{}), open(t, roce.Options{})
	l, err := q.Listen(loopback())
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	passive := make(chan *rdmatest.End, 64)
	var accepting, talking sync.WaitGroup
	accepting.Go(func() {
		for {
			ep, err := l.Accept(ctx)
			if err != nil {
				assert.ErrorIs(t, err, net.ErrClosed)
				return
			}
			e := rdmatest.NewEnd(t, ep, rdmatest.Config{Memory: 128 << 10})
			assert.NoError(t, ep.Accept(rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
			passive <- e
		}
	})
	const users, rounds = 6, 8
	for u := range uint64(users) {
		talking.Go(func() {
			rng := rand.New(rand.NewPCG(u, 1))
			for range rounds {
				ep, err := p.Resolve(ctx, l.Addr())
				if !assert.NoError(t, err) {
					return
				}
				a := rdmatest.NewEnd(t, ep, rdmatest.Config{Memory: 128 << 10})
				if !assert.NoError(t, ep.Connect(ctx, rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4})) {
					return
				}
				loopOnItself(t, a, rng)
				a.Close()
			}
		})
	}
	// The passive ends, in whatever order they come, have data moved to and from them by nobody but their own peer;
	// they send a little and go.
	talking.Go(func() {
		for range users * rounds {
			e := <-passive
			n, _ := e.QP.PostSend([]rdma.SendWR{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: e.Piece(0, 4096)}})
			_ = rdmatest.Collect(t, e.SendCQ, n) // delivered or flushed
			e.Close()
		}
	})
	talking.Wait()
	require.NoError(t, l.Close())
	accepting.Wait()
	require.Empty(t, p.QueuePairs())
	require.Empty(t, q.QueuePairs())
}

// loopOnItself posts receives and sends until the peer has gone, or for a few messages.
func loopOnItself(t *testing.T, a *rdmatest.End, rng *rand.Rand) {
	a.Recv(1, 0, 4096)
	n, err := a.QP.PostSend([]rdma.SendWR{
		{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: a.Piece(0, 64<<10), RemoteAddr: a.MR.Addr(), RKey: a.MR.RKey()},
	})
	if err != nil || rng.IntN(4) == 0 {
		return
	}
	// The address is not the peer's: it refuses, and both ends are flushed, unless the peer left first.
	for _, c := range a.Sends(n) {
		assert.Contains(t, []rdma.Status{rdma.RemAccessErr, rdma.WRFlushErr}, c.Status)
	}
	if rng.IntN(2) == 0 {
		assert.NoError(t, a.EP.Disconnect())
	}
	_ = a.Recvs(1)
}

func TestListenerOfAllAddresses(t *testing.T) {
	p := open(t, roce.Options{})
	l, err := p.Listen(netip.MustParseAddrPort("0.0.0.0:3260"))
	if errors.Is(err, syscall.EADDRINUSE) {
		t.Skipf("an address of this machine is in use: %v", err)
	}
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, netip.MustParseAddrPort("0.0.0.0:3260"), l.Addr())
	_, err = p.Listen(netip.MustParseAddrPort("127.0.0.1:3260"))
	require.ErrorContains(t, err, "in use")
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	c := open(t, roce.Options{})
	tried := 0
	for _, x := range addrs {
		ip, _ := netip.AddrFromSlice(x.(*net.IPNet).IP)
		if ip = ip.Unmap(); !ip.Is4() {
			continue
		}
		tried++
		ep, err := c.Resolve(t.Context(), netip.AddrPortFrom(ip, 3260))
		require.NoError(t, err)
		a := rdmatest.NewEnd(t, ep, rdmatest.Config{})
		connected := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		go func() { connected <- ep.Connect(ctx, rdma.ConnParam{}) }()
		pep, err := l.Accept(ctx)
		require.NoError(t, err)
		b := rdmatest.NewEnd(t, pep, rdmatest.Config{})
		require.NoError(t, pep.Accept(rdma.ConnParam{}))
		require.NoError(t, <-connected)
		require.Equal(t, netip.AddrPortFrom(ip, 3260), pep.LocalAddr())
		exchange(t, a, b, 1)
		a.Close()
		b.Close()
		cancel()
	}
	require.NotZero(t, tried)
}

// A receive buffer that holds a quarter of the window, as unprivileged processes get it: the window gives way, and
// data still flows.
func TestSmallReceiveBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := link.NewNet(1, link.NetOptions{RecvBuffer: 128 << 10, Weather: link.Weather{Delay: 20 * time.Microsecond}})
		s := simulate(n, 1, roce.Options{})
		t.Cleanup(func() { s.close(t) })
		const size, each = 1 << 20, 8
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{Memory: size})
		for _, op := range []rdma.OpCode{rdma.OpWrite, rdma.OpRead} {
			rdmatest.Fill(a.Memory, uint64(op))
			rdmatest.Fill(b.Memory, uint64(op))
			start := time.Now()
			p := newPump(a, b, op, size, 4)
			for range each {
				p.post()
			}
			p.reap(0)
			require.Zero(t, p.bad)
			rdmatest.Check(t, a.Memory, uint64(op))
			rdmatest.Check(t, b.Memory, uint64(op))
			t.Logf("op %d: %v, %+v", op, time.Since(start), s.active.Counters().QP)
			require.Less(t, time.Since(start), each*time.Second)
		}
	})
}
