package roce_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/link"
)

var (
	activeAddr  = netip.MustParseAddr("10.0.0.2")
	passiveAddr = netip.MustParseAddr("10.0.0.1")
)

func anyPort() netip.AddrPort { return netip.AddrPortFrom(passiveAddr, 0) }

// Sides are two providers as one: one listens, the other connects.
type sides struct{ active, passive *roce.Provider }

func (s sides) Name() string { return "roce" }
func (s sides) Listen(a netip.AddrPort) (rdma.Listener, error) {
	return s.passive.Listen(a)
}

func (s sides) Resolve(ctx context.Context, a netip.AddrPort) (rdma.Endpoint, error) {
	return s.active.Resolve(ctx, a)
}

// simulate makes two providers on a simulated network. The caller closes them.
func simulate(n *link.Net, seed uint64, o roce.Options) sides {
	o.Link = func(a netip.Addr) (link.Link, error) { return n.Link(a), nil }
	a, b := o, o
	a.Addr, a.Seed = activeAddr, 2*seed+1
	b.Addr, b.Seed = passiveAddr, 2*seed+2
	return sides{roce.New(a), roce.New(b)}
}

func (s sides) close(t testing.TB) {
	require.NoError(t, s.active.Close())
	require.NoError(t, s.passive.Close())
}

// weathers are what the suite runs in. It runs in real time, so delays are for other tests.
var weathers = map[string]link.Weather{
	"fair":      {MTU: 1024},
	"reordered": {Duplicate: 0.01, Reorder: 0.01},
}

func TestSuiteOverSimulatedLink(t *testing.T) {
	for name, w := range weathers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := simulate(link.NewNet(1, link.NetOptions{Weather: w}), 1, roce.Options{})
			defer s.close(t)
			rdmatest.Run(t, s, anyPort)
			require.Empty(t, s.active.QueuePairs(), "left open")
			require.Empty(t, s.passive.QueuePairs(), "left open")
		})
	}
}

func TestSuiteOverLossyLink(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w := link.Weather{Loss: 0.005, Corrupt: 0.005}
			s := simulate(link.NewNet(seed, link.NetOptions{Weather: w}), seed, roce.Options{})
			defer s.close(t)
			rdmatest.Run(t, s, anyPort)
			c := s.active.Counters()
			require.NotZero(t, c.BadICRC)
			require.NotZero(t, c.QP.Retransmits)
		})
	}
}

// bubble runs f in virtual time on two simulated providers.
func bubble(t *testing.T, seed uint64, w link.Weather, o roce.Options, f func(t *testing.T, s sides, n *link.Net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := link.NewNet(seed, link.NetOptions{Weather: w})
		s := simulate(n, seed, o)
		t.Cleanup(func() { s.close(t) }) // after the ends that f has made
		f(t, s, n)
	})
}

// A copy of a Read request that comes late, when the key it names has been invalidated, asks for nothing any more.
func TestLateCopyOfAReadOfAnInvalidatedWindowIsHarmless(t *testing.T) {
	w := link.Weather{Duplicate: 1, ReorderWindow: 20 * time.Millisecond}
	bubble(t, 1, w, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		window, err := b.EP.Device().NewWindow()
		require.NoError(t, err)
		defer window.Close()
		b.Post(rdma.SendWR{
			ID: 1, Op: rdma.OpBindWindow, Flags: rdma.Signaled, Window: window, Region: b.MR, SGL: b.Piece(0, 4096), Access: rdma.RemoteRead,
		})
		b.Ended(b.Sends(1), rdma.Success, 1)
		a.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(0, 4096), RemoteAddr: b.MR.Addr(), RKey: window.RKey()})
		a.Ended(a.Sends(1), rdma.Success, 2)
		b.Post(rdma.SendWR{ID: 3, Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvalidateKey: window.RKey()})
		b.Ended(b.Sends(1), rdma.Success, 3)
		time.Sleep(time.Second) // virtual: all copies have come
		b.Recv(4, 0, 64)
		a.Post(rdma.SendWR{ID: 4, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		a.Ended(a.Sends(1), rdma.Success, 4)
		b.Ended(b.Recvs(1), rdma.Success, 4)
	})
}
