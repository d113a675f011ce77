package fabric_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
)

func anyPort() netip.AddrPort { return netip.MustParseAddrPort("10.0.0.1:0") }

func TestSuite(t *testing.T) {
	iwarp := fabric.DefaultLimits()
	iwarp.MaxReadSGE, iwarp.Windows, iwarp.SendInvalidate, iwarp.ReadSinkNeedsRemoteWrite = 1, false, false, true
	for name, o := range map[string]fabric.Options{
		"orderly": {}, "seed1": {Seed: 1}, "seed2": {Seed: 2, TwoDevices: true}, "seed3": {Seed: 3},
		"iwarp": {ExactPrivateData: true, TwoDevices: true, Limits: &iwarp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fabric.New(o)
			t.Run("run", func(t *testing.T) { rdmatest.Run(t, f, anyPort) })
			require.Equal(t, fabric.Gauges{}, f.Gauges(), "left open")
			require.Zero(t, f.Counters.Recycled.Load())
			require.NotZero(t, f.Counters.Bytes.Load())
			require.Equal(t, "fabric", f.Name())
		})
	}
}

func connect(t testing.TB, f *fabric.Fabric, c rdmatest.Config) (a, b *rdmatest.End) {
	return rdmatest.Connect(t, f, anyPort(), c)
}

// within is a context for t that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestPrivateDataIsPaddedUnlessExact(t *testing.T) {
	p := rdma.ConnParam{PrivateData: []byte{0xc0, 0, 0, 0}}
	for exact, want := range map[bool][2]int{false: {56, 196}, true: {4, 4}} {
		a, b := connect(t, fabric.New(fabric.Options{ExactPrivateData: exact}), rdmatest.Config{Active: &p, Passive: &p})
		assert.Len(t, b.EP.Peer().PrivateData, want[0])
		assert.Len(t, a.EP.Peer().PrivateData, want[1])
	}
}

func TestListenerOfAllAddresses(t *testing.T) {
	f := fabric.New(fabric.Options{})
	l, err := f.Listen(netip.MustParseAddrPort("[::]:3260"))
	require.NoError(t, err)
	l4, err := f.Listen(netip.MustParseAddrPort("0.0.0.0:3260"))
	require.NoError(t, err)
	_, err = f.Listen(netip.MustParseAddrPort("0.0.0.0:3260"))
	require.ErrorContains(t, err, "in use")
	for addr, l := range map[string]rdma.Listener{"[fd00::7]:3260": l, "10.9.8.7:3260": l4} {
		ep, err := f.Resolve(t.Context(), netip.MustParseAddrPort(addr))
		require.NoError(t, err)
		a := rdmatest.NewEnd(t, ep, rdmatest.Config{})
		go func() {
			if p, err := l.Accept(t.Context()); err == nil {
				_ = p.Reject(nil)
			}
		}()
		require.ErrorIs(t, ep.Connect(t.Context(), rdma.ConnParam{}), rdma.ErrRejected)
		a.Close()
	}
	require.NoError(t, l.Close())
	require.NoError(t, l4.Close())
}

func TestAddressesThatCannotBe(t *testing.T) {
	f := fabric.New(fabric.Options{})
	_, err := f.Listen(netip.AddrPort{})
	assert.Error(t, err)
	_, err = f.Resolve(t.Context(), netip.AddrPort{})
	assert.Error(t, err)
	_, err = f.Resolve(t.Context(), anyPort())
	assert.Error(t, err, "no port")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Resolve(ctx, netip.MustParseAddrPort("10.0.0.1:1"))
	assert.ErrorIs(t, err, context.Canceled)
}

func TestRequestsBeyondTheBacklogWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fabric.New(fabric.Options{Backlog: 1})
		l, err := f.Listen(anyPort())
		require.NoError(t, err)
		ends, errs := make([]*rdmatest.End, 3), make([]chan error, 3)
		for i := range ends {
			ep, err := f.Resolve(t.Context(), l.Addr())
			require.NoError(t, err)
			ends[i], errs[i] = rdmatest.NewEnd(t, ep, rdmatest.Config{}), make(chan error, 1)
			ctx := within(t, time.Hour)
			if i == 1 {
				ctx = within(t, time.Second)
			}
			go func() { errs[i] <- ep.Connect(ctx, rdma.ConnParam{}) }()
			synctest.Wait()
		}
		// One is in the backlog, the second gives up waiting for room, the third still waits.
		require.ErrorIs(t, <-errs[1], context.DeadlineExceeded)
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		var re *rdma.RejectedError
		require.ErrorAs(t, <-errs[0], &re)
		assert.Equal(t, rdma.ReasonConsumer, re.Reason)
		require.ErrorAs(t, <-errs[2], &re)
		assert.Equal(t, rdma.ReasonNoListener, re.Reason)
		for _, e := range ends {
			e.Close()
		}
		require.Equal(t, fabric.Gauges{}, f.Gauges())
	})
}

func TestDeadRequestsInTheBacklogAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fabric.New(fabric.Options{})
		l, err := f.Listen(anyPort())
		require.NoError(t, err)
		defer l.Close()
		ep, err := f.Resolve(t.Context(), l.Addr())
		require.NoError(t, err)
		a := rdmatest.NewEnd(t, ep, rdmatest.Config{})
		connected := make(chan error, 1)
		go func() { connected <- ep.Connect(t.Context(), rdma.ConnParam{}) }()
		synctest.Wait()
		a.Close()
		require.ErrorIs(t, <-connected, net.ErrClosed)
		_, err = l.Accept(within(t, time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestListenerClosedUnderATakenRequest(t *testing.T) {
	f := fabric.New(fabric.Options{})
	l, err := f.Listen(anyPort())
	require.NoError(t, err)
	ep, err := f.Resolve(t.Context(), l.Addr())
	require.NoError(t, err)
	a := rdmatest.NewEnd(t, ep, rdmatest.Config{})
	defer a.Close()
	connected := make(chan error, 1)
	go func() { connected <- ep.Connect(t.Context(), rdma.ConnParam{}) }()
	p, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	b := rdmatest.NewEnd(t, p, rdmatest.Config{})
	defer b.Close()
	require.NoError(t, p.Accept(rdma.ConnParam{}))
	require.NoError(t, <-connected)
}

func TestCallsInTheWrongOrderFail(t *testing.T) {
	f := fabric.New(fabric.Options{})
	ep, err := f.Resolve(t.Context(), netip.MustParseAddrPort("10.0.0.1:1"))
	require.NoError(t, err)
	require.Error(t, ep.Connect(t.Context(), rdma.ConnParam{}), "no queue pair")
	require.Error(t, ep.Accept(rdma.ConnParam{}), "active side")
	require.Error(t, ep.Reject(nil), "active side")
	e := rdmatest.NewEnd(t, ep, rdmatest.Config{})
	_, err = e.QP.PostSend([]rdma.SendWR{{Op: rdma.OpSend}})
	require.ErrorContains(t, err, "not connected")
	_, err = ep.CreateQP(rdma.QPConfig{})
	require.ErrorContains(t, err, "has one")
	require.Error(t, ep.Connect(t.Context(), rdma.ConnParam{PrivateData: make([]byte, 57)}))
	require.Error(t, ep.Connect(t.Context(), rdma.ConnParam{InitiatorDepth: 17}))
	e.Close()
	require.ErrorIs(t, ep.Connect(t.Context(), rdma.ConnParam{}), net.ErrClosed)
	require.ErrorIs(t, ep.Accept(rdma.ConnParam{}), net.ErrClosed)
	require.ErrorIs(t, ep.Reject(nil), net.ErrClosed)
	_, err = ep.CreateQP(rdma.QPConfig{})
	require.ErrorIs(t, err, net.ErrClosed)

	a, b := connect(t, f, rdmatest.Config{})
	require.Error(t, a.EP.Connect(t.Context(), rdma.ConnParam{}), "twice")
	require.Error(t, b.EP.Accept(rdma.ConnParam{}), "twice")
	require.Error(t, b.EP.Reject(nil), "accepted")
}

func TestDisconnectBeforeConnectIsFinal(t *testing.T) {
	f := fabric.New(fabric.Options{})
	l, err := f.Listen(anyPort())
	require.NoError(t, err)
	defer l.Close()
	ep, err := f.Resolve(t.Context(), l.Addr())
	require.NoError(t, err)
	a := rdmatest.NewEnd(t, ep, rdmatest.Config{})
	defer a.Close()
	a.Recv(1, 0, 8)
	require.NoError(t, ep.Disconnect())
	a.Flushed(1, 1)
	require.Error(t, ep.Connect(within(t, time.Second), rdma.ConnParam{}))
}

func TestQueuePairsAreHeldToTheLimits(t *testing.T) {
	f := fabric.New(fabric.Options{})
	ep, err := f.Resolve(t.Context(), netip.MustParseAddrPort("10.0.0.1:1"))
	require.NoError(t, err)
	defer ep.Close()
	lim := ep.Device().Limits()
	_, err = ep.Device().NewCQ(0)
	require.Error(t, err)
	_, err = ep.Device().NewCQ(lim.MaxCQDepth + 1)
	require.Error(t, err)
	cq, err := ep.Device().NewCQ(8)
	require.NoError(t, err)
	good := rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1}
	for name, spoil := range map[string]func(c *rdma.QPConfig){
		"no depth":      func(c *rdma.QPConfig) { c.SendDepth = 0 },
		"too deep":      func(c *rdma.QPConfig) { c.RecvDepth = lim.MaxQPDepth + 1 },
		"too many SGEs": func(c *rdma.QPConfig) { c.MaxSendSGE = lim.MaxSGE + 1 },
		"no queue":      func(c *rdma.QPConfig) { c.SendCQ = nil },
	} {
		c := good
		spoil(&c)
		_, err := ep.CreateQP(c)
		assert.Error(t, err, name)
	}
	require.NoError(t, cq.Close())
	require.NoError(t, cq.Close())
	_, err = ep.CreateQP(good)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = cq.Poll(make([]rdma.Completion, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, cq.Wait(time.Time{}), "does not block")
	require.Equal(t, fabric.Gauges{Endpoints: 1}, f.Gauges())
}
