package fabric_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
)

// The suite takes what any device may do; here stands what this one does.

func send(id uint64, sgl []rdma.SGE) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: sgl}
}

func write(id uint64, b *rdmatest.End, off uint64, sgl []rdma.SGE) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: sgl, RemoteAddr: b.MR.Addr() + off, RKey: b.MR.RKey()}
}

func read(id uint64, b *rdmatest.End, off uint64, sgl []rdma.SGE) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: sgl, RemoteAddr: b.MR.Addr() + off, RKey: b.MR.RKey()}
}

// fails checks that a's next completion is id with status, and that both queue pairs are in the error
// state if both is set, only a's otherwise.
func fails(t *testing.T, a, b *rdmatest.End, id uint64, status rdma.Status, both bool) {
	t.Helper()
	a.Ended(a.Sends(1), status, id)
	a.Recv(500, 0, 8)
	a.Flushed(500, 1)
	b.Recv(501, 0, 8)
	if both {
		b.Flushed(501, 1)
	} else {
		rdmatest.Quiet(t, b.RecvCQ, 1)
	}
}

func TestSlotsComeBackWithAPolledCompletion(t *testing.T) {
	const depth = 8
	a, b := connect(t, fabric.New(fabric.Options{}), rdmatest.Config{Depth: depth})
	w := write(0, b, 0, a.Piece(0, 8))
	w.Flags = 0
	post := func(n int, want int) {
		t.Helper()
		wrs := make([]rdma.SendWR, n)
		for i := range wrs {
			wrs[i] = w
		}
		wrs[n-1].Flags = rdma.Signaled
		got, err := a.QP.PostSend(wrs)
		require.Equal(t, want, got)
		if want < n {
			require.ErrorIs(t, err, rdma.ErrQueueFull)
		}
	}
	post(5, 5)
	post(4, 3) // executed, but nobody has polled; the signaled one was not taken
	a.Sends(1)
	post(9, 5) // five slots came back with one completion; the three behind it did not
	rdmatest.Quiet(t, a.SendCQ, 1)
	_, err := a.QP.PostSend([]rdma.SendWR{w})
	require.ErrorIs(t, err, rdma.ErrQueueFull, "a queue without a signaled request is stuck for ever")

	for i := range uint64(depth) {
		b.Recv(i, 0, 8)
	}
	_, err = b.QP.PostRecv([]rdma.RecvWR{{}})
	require.ErrorIs(t, err, rdma.ErrQueueFull)
}

func TestReceivesComeBackWithAPolledCompletion(t *testing.T) {
	const depth = 4
	a, b := connect(t, fabric.New(fabric.Options{}), rdmatest.Config{Depth: depth})
	for i := range uint64(depth) {
		b.Recv(i, 0, 8)
	}
	a.Post(send(1, nil))
	_, err := b.QP.PostRecv([]rdma.RecvWR{{}})
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	b.Recvs(1)
	b.Recv(9, 0, 8)
}

func TestLongMessage(t *testing.T) {
	a, b := connect(t, fabric.New(fabric.Options{}), rdmatest.Config{})
	b.Recv(1, 0, 64)
	a.Post(send(5, a.Piece(0, 65)))
	b.Ended(b.Recvs(1), rdma.LocLenErr, 1)
	fails(t, a, b, 5, rdma.RemInvReqErr, true)
}

func TestReceiveWithADeadKey(t *testing.T) {
	a, b := connect(t, fabric.New(fabric.Options{}), rdmatest.Config{})
	mr, err := b.EP.Device().Register(b.Memory, rdma.LocalWrite)
	require.NoError(t, err)
	_, err = b.QP.PostRecv([]rdma.RecvWR{{ID: 1, SGL: []rdma.SGE{rdma.Piece(mr, 0, 8)}}})
	require.NoError(t, err)
	require.NoError(t, mr.Deregister())
	a.Post(send(5, a.Piece(0, 8)))
	b.Ended(b.Recvs(1), rdma.LocProtErr, 1)
	fails(t, a, b, 5, rdma.RemOpErr, true)
}

func TestMessageLongerThanTheDeviceHas(t *testing.T) {
	lim := fabric.DefaultLimits()
	lim.MaxMessage = 1000
	a, b := connect(t, fabric.New(fabric.Options{Limits: &lim}), rdmatest.Config{})
	b.Recv(1, 0, 2000)
	a.Post(send(5, a.Piece(0, 1001)))
	fails(t, a, b, 5, rdma.LocLenErr, false)
}

func TestReceiverNotReadyIsCounted(t *testing.T) {
	f := fabric.New(fabric.Options{})
	a, b := connect(t, f, rdmatest.Config{})
	b.Recv(1, 0, 8)
	a.Post(send(1, nil))
	require.Zero(t, f.Counters.RNRWaits.Load())
	a.Post(send(2, nil), send(3, nil))
	require.EqualValues(t, 1, f.Counters.RNRWaits.Load())
	b.Recv(2, 0, 8)
	require.EqualValues(t, 2, f.Counters.RNRWaits.Load(), "the next waits too")
	b.Recv(3, 0, 8)
	a.Ended(a.Sends(3), rdma.Success, 1, 2, 3)
	require.EqualValues(t, 2, f.Counters.RNRWaits.Load())
}

func TestReceiverNotReadyCanBeFatal(t *testing.T) {
	a, b := connect(t, fabric.New(fabric.Options{RNRFatal: true}), rdmatest.Config{})
	a.Post(send(5, nil))
	fails(t, a, b, 5, rdma.RNRRetryExcErr, false)
}

func TestOverrunIsFatal(t *testing.T) {
	f := fabric.New(fabric.Options{})
	a, b := connect(t, f, rdmatest.Config{Depth: 8, OneCQ: true})
	// A queue pair on a completion queue that does not hold all its work: 4 receives and 4 Sends on 4.
	l, err := f.Listen(anyPort())
	require.NoError(t, err)
	defer l.Close()
	ep, err := f.Resolve(t.Context(), l.Addr())
	require.NoError(t, err)
	cq, err := ep.Device().NewCQ(4)
	require.NoError(t, err)
	qp, err := ep.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4})
	require.NoError(t, err)
	accepted := make(chan *rdmatest.End, 1)
	go func() {
		p, err := l.Accept(t.Context())
		if err != nil {
			return
		}
		e := rdmatest.NewEnd(t, p, rdmatest.Config{})
		if p.Accept(rdma.ConnParam{}) == nil {
			accepted <- e
		}
	}()
	require.NoError(t, ep.Connect(t.Context(), rdma.ConnParam{}))
	peer := <-accepted
	defer peer.Close()
	for i := range uint64(4) {
		_, err = qp.PostRecv([]rdma.RecvWR{{ID: i}})
		require.NoError(t, err)
		peer.Post(send(i, nil))
	}
	peer.Sends(4)
	peer.Recv(7, 0, 8)
	_, err = qp.PostSend([]rdma.SendWR{send(9, nil)})
	require.NoError(t, err)
	peer.Recvs(1)
	peer.Recv(8, 0, 8)
	peer.Flushed(8, 1)
	_, err = qp.PostSend([]rdma.SendWR{send(9, nil)})
	require.ErrorContains(t, err, "overrun")
	rdmatest.Collect(t, cq, 4)
	_, err = cq.Poll(make([]rdma.Completion, 1))
	require.ErrorContains(t, err, "overrun")
	require.NoError(t, ep.Close())
	require.NoError(t, cq.Close())
	// Others are not touched.
	b.Recv(1, 0, 8)
	a.Post(send(1, nil))
	a.Ended(a.Sends(1), rdma.Success, 1)
}

func TestReadsNobodyServes(t *testing.T) {
	for name, c := range map[string]struct{ active, passive rdma.ConnParam }{
		"the peer serves none":  {rdma.ConnParam{ResponderResources: 0}, rdma.ConnParam{InitiatorDepth: 1}},
		"we said we would none": {rdma.ConnParam{ResponderResources: 1}, rdma.ConnParam{InitiatorDepth: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connect(t, fabric.New(fabric.Options{}), rdmatest.Config{Active: &c.active, Passive: &c.passive})
			b.Post(read(5, a, 0, b.Piece(0, 8)))
			fails(t, b, a, 5, rdma.RemInvReqErr, true)
		})
	}
}

func TestMoreReadsThanThePeerServes(t *testing.T) {
	active, passive := rdma.ConnParam{ResponderResources: 1}, rdma.ConnParam{InitiatorDepth: 8}
	a, b := connect(t, fabric.New(fabric.Options{Seed: 1}), rdmatest.Config{Active: &active, Passive: &passive})
	var wrs []rdma.SendWR
	for i := range uint64(20) {
		wrs = append(wrs, read(i, a, 0, b.Piece(0, 8)))
	}
	b.Post(wrs...)
	for _, c := range b.Sends(20) {
		if c.Status != rdma.Success {
			require.Equal(t, rdma.RemInvReqErr, c.Status)
			return
		}
	}
	t.Fatal("20 Reads at a time, and the peer serves 1")
}

func TestReadSinkOfIWARP(t *testing.T) {
	lim := fabric.DefaultLimits()
	lim.ReadSinkNeedsRemoteWrite = true
	a, b := connect(t, fabric.New(fabric.Options{Limits: &lim}), rdmatest.Config{})
	mr, err := a.EP.Device().Register(a.Memory, rdma.LocalWrite)
	require.NoError(t, err)
	defer mr.Deregister()
	a.Post(read(5, b, 0, []rdma.SGE{rdma.Piece(mr, 0, 8)}))
	fails(t, a, b, 5, rdma.LocProtErr, false)
}

func TestKeysOfOneDeviceAreNotThoseOfTheOther(t *testing.T) {
	for _, two := range []bool{false, true} {
		f := fabric.New(fabric.Options{TwoDevices: two})
		a, b := connect(t, f, rdmatest.Config{})
		require.Equal(t, !two, a.EP.Device() == b.EP.Device())
		// A region of b's, used as a local one at a: the same key may exist there, not the addresses.
		extra, err := b.EP.Device().Register(make([]byte, 64), rdma.LocalWrite)
		require.NoError(t, err)
		a.Post(write(5, b, 0, []rdma.SGE{rdma.Piece(extra, 0, 8)}))
		if two {
			fails(t, a, b, 5, rdma.LocProtErr, false)
		} else {
			a.Ended(a.Sends(1), rdma.Success, 5)
		}
		require.NoError(t, extra.Deregister())
	}
}

func TestLocalAndRemoteKeysAreTwoThings(t *testing.T) {
	f := fabric.New(fabric.Options{})
	a, b := connect(t, f, rdmatest.Config{})
	w := write(5, b, 0, a.Piece(0, 8))
	w.RKey = b.MR.LKey()
	a.Post(w)
	fails(t, a, b, 5, rdma.RemAccessErr, true)
	a, b = connect(t, f, rdmatest.Config{})
	a.Post(write(5, b, 0, []rdma.SGE{{Addr: a.MR.Addr(), Length: 8, LKey: a.MR.RKey()}}))
	fails(t, a, b, 5, rdma.LocProtErr, false)
}

func TestRegistration(t *testing.T) {
	f := fabric.New(fabric.Options{})
	ep, err := f.Resolve(t.Context(), netip.MustParseAddrPort("10.0.0.1:3260"))
	require.NoError(t, err)
	defer ep.Close()
	d := ep.Device()
	_, err = d.Register(nil, rdma.LocalWrite)
	require.Error(t, err)
	_, err = d.Register(make([]byte, 8), rdma.RemoteWrite)
	require.Error(t, err)
	seen := map[uint32]bool{0: true}
	for range 1000 {
		mr, err := d.Register(make([]byte, 8), rdma.LocalWrite|rdma.RemoteRead)
		require.NoError(t, err)
		require.False(t, seen[mr.LKey()] || seen[mr.RKey()], "keys %#x, %#x come back at once", mr.LKey(), mr.RKey())
		if len(seen) > 100 {
			clear(seen)
		}
		seen[mr.LKey()], seen[mr.RKey()] = true, true
		require.NoError(t, mr.Deregister())
		require.ErrorIs(t, mr.Deregister(), net.ErrClosed)
	}
	local, err := d.Register(make([]byte, 8), rdma.LocalWrite)
	require.NoError(t, err)
	require.Zero(t, local.RKey(), "no remote right, no remote key")
	require.NoError(t, local.Deregister())
}

// TestNothingTouchesDeregisteredMemory: a peer writes and reads a region all the time; once Deregister
// has returned, its memory is Go's again. The race detector watches.
func TestNothingTouchesDeregisteredMemory(t *testing.T) {
	for _, seed := range []uint64{0, 1, 2} {
		f := fabric.New(fabric.Options{Seed: seed})
		for range 20 {
			a, b := connect(t, f, rdmatest.Config{})
			mem := make([]byte, 4096)
			mr, err := b.EP.Device().Register(mem, rdma.LocalWrite|rdma.RemoteRead|rdma.RemoteWrite)
			require.NoError(t, err)
			var wg sync.WaitGroup
			started := make(chan struct{})
			wg.Go(func() {
				for i := uint64(0); ; i++ {
					w := write(i, b, 0, a.Piece(0, 4096))
					r := read(i, b, 0, a.Piece(8192, 4096))
					w.RemoteAddr, w.RKey, r.RemoteAddr, r.RKey = mr.Addr(), mr.RKey(), mr.Addr(), mr.RKey()
					a.Post(w, r)
					if i == 3 {
						close(started)
					}
					if a.Sends(2)[1].Status != rdma.Success {
						return
					}
				}
			})
			<-started
			require.NoError(t, mr.Deregister())
			rdmatest.Fill(mem, 1)
			wg.Wait()
			rdmatest.Check(t, mem, 1)
		}
	}
}

func TestRegionWithABoundWindowStays(t *testing.T) {
	_, b := connect(t, fabric.New(fabric.Options{}), rdmatest.Config{})
	mr, err := b.EP.Device().Register(make([]byte, 64), rdma.LocalWrite|rdma.WindowBind)
	require.NoError(t, err)
	w, err := b.EP.Device().NewWindow()
	require.NoError(t, err)
	b.Post(rdma.SendWR{Op: rdma.OpBindWindow, Flags: rdma.Signaled, Window: w, Region: mr, SGL: []rdma.SGE{rdma.Piece(mr, 0, 64)}, Access: rdma.RemoteRead})
	b.Ended(b.Sends(1), rdma.Success, 0)
	require.Error(t, mr.Deregister())
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Close(), net.ErrClosed)
	require.NoError(t, mr.Deregister())
}

func TestBindsThatFail(t *testing.T) {
	f := fabric.New(fabric.Options{})
	for name, spoil := range map[string]func(t *testing.T, b *rdmatest.End, wr *rdma.SendWR){
		"local right":           func(_ *testing.T, _ *rdmatest.End, wr *rdma.SendWR) { wr.Access |= rdma.LocalWrite },
		"no right":              func(_ *testing.T, _ *rdmatest.End, wr *rdma.SendWR) { wr.Access = 0 },
		"no bytes":              func(_ *testing.T, b *rdmatest.End, wr *rdma.SendWR) { wr.SGL = b.Piece(0, 0) },
		"another region's key":  func(_ *testing.T, b *rdmatest.End, wr *rdma.SendWR) { wr.SGL[0].LKey = b.MR.RKey() },
		"closed window":         func(t *testing.T, _ *rdmatest.End, wr *rdma.SendWR) { require.NoError(t, wr.Window.Close()) },
		"region without a bind": func(t *testing.T, b *rdmatest.End, wr *rdma.SendWR) { region(t, b, wr, rdma.LocalWrite) },
		"write to unwritable":   func(t *testing.T, b *rdmatest.End, wr *rdma.SendWR) { region(t, b, wr, rdma.WindowBind) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connect(t, f, rdmatest.Config{})
			w, err := b.EP.Device().NewWindow()
			require.NoError(t, err)
			defer w.Close()
			wr := rdma.SendWR{ID: 5, Op: rdma.OpBindWindow, Window: w, Region: b.MR, SGL: b.Piece(0, 64), Access: rdma.RemoteWrite}
			spoil(t, b, &wr)
			b.Post(wr)
			fails(t, b, a, 5, rdma.MWBindErr, false)
		})
	}
}

// region has wr bind to a region with these rights.
func region(t *testing.T, b *rdmatest.End, wr *rdma.SendWR, access rdma.Access) {
	mr, err := b.EP.Device().Register(make([]byte, 64), access)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, mr.Deregister()) })
	wr.Region, wr.SGL = mr, []rdma.SGE{rdma.Piece(mr, 0, 64)}
}

func TestInvalidationThatFailsBreaksTheReceiver(t *testing.T) {
	f := fabric.New(fabric.Options{})
	for name, badKey := range map[string]func(t *testing.T, b *rdmatest.End) uint32{
		"no key":          func(*testing.T, *rdmatest.End) uint32 { return 0 },
		"ordinary region": func(_ *testing.T, b *rdmatest.End) uint32 { return b.MR.RKey() },
		"unbound":         func(t *testing.T, b *rdmatest.End) uint32 { return boundKey(t, b, true) },
		"another queuepair": func(t *testing.T, _ *rdmatest.End) uint32 {
			_, b2 := connect(t, f, rdmatest.Config{})
			return boundKey(t, b2, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connect(t, f, rdmatest.Config{})
			key := badKey(t, b)
			b.Recv(1, 0, 8)
			a.Post(rdma.SendWR{ID: 5, Op: rdma.OpSendInv, InvalidateKey: key})
			b.Ended(b.Recvs(1), rdma.RemInvReqErr, 1)
			fails(t, a, b, 5, rdma.RemAccessErr, true)
		})
		t.Run(name+" locally", func(t *testing.T) {
			a, b := connect(t, f, rdmatest.Config{})
			b.Post(rdma.SendWR{ID: 5, Op: rdma.OpLocalInv, InvalidateKey: badKey(t, b)})
			fails(t, b, a, 5, rdma.LocQPOpErr, false)
		})
	}
}

// boundKey binds a window of e's, and invalidates its key again if it shall be dead.
func boundKey(t *testing.T, e *rdmatest.End, dead bool) uint32 {
	w, err := e.EP.Device().NewWindow()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	e.Post(rdma.SendWR{Op: rdma.OpBindWindow, Flags: rdma.Signaled, Window: w, Region: e.MR, SGL: e.Piece(0, 64), Access: rdma.RemoteRead})
	e.Ended(e.Sends(1), rdma.Success, 0)
	if dead {
		e.Post(rdma.SendWR{Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvalidateKey: w.RKey()})
		e.Ended(e.Sends(1), rdma.Success, 0)
	}
	return w.RKey()
}

func TestRequestsADriverRefuses(t *testing.T) {
	f := fabric.New(fabric.Options{TwoDevices: true})
	a, b := connect(t, f, rdmatest.Config{SGE: 2})
	w, err := a.EP.Device().NewWindow()
	require.NoError(t, err)
	defer w.Close()
	three := []rdma.SGE{{}, {}, {}}
	for name, wr := range map[string]rdma.SendWR{
		"no opcode":                  {},
		"unknown opcode":             {Op: 99},
		"too many entries":           {Op: rdma.OpSend, SGL: three},
		"invalidate with data":       {Op: rdma.OpLocalInv, SGL: a.Piece(0, 8)},
		"bind without window":        {Op: rdma.OpBindWindow, Region: a.MR, SGL: a.Piece(0, 8)},
		"bind without region":        {Op: rdma.OpBindWindow, Window: w, SGL: a.Piece(0, 8)},
		"bind of two pieces":         {Op: rdma.OpBindWindow, Window: w, Region: a.MR, SGL: three[:2]},
		"bind to the other's region": {Op: rdma.OpBindWindow, Window: w, Region: b.MR, SGL: b.Piece(0, 8)},
	} {
		n, err := a.QP.PostSend([]rdma.SendWR{write(1, b, 0, nil), wr, write(2, b, 0, nil)})
		require.Error(t, err, name)
		require.NotErrorIs(t, err, rdma.ErrQueueFull)
		require.Equal(t, 1, n, name)
		a.Ended(a.Sends(1), rdma.Success, 1)
	}
	n, err := b.QP.PostRecv([]rdma.RecvWR{{}, {SGL: three}, {}})
	require.Error(t, err)
	require.Equal(t, 1, n)
}

func TestOperationsTheDeviceHasNot(t *testing.T) {
	lim := fabric.DefaultLimits()
	lim.SendInvalidate, lim.Windows, lim.MaxReadSGE = false, false, 1
	a, b := connect(t, fabric.New(fabric.Options{Limits: &lim}), rdmatest.Config{})
	_, err := a.EP.Device().NewWindow()
	require.Error(t, err)
	for _, wr := range []rdma.SendWR{{Op: rdma.OpSendInv}, {Op: rdma.OpLocalInv}, read(1, b, 0, a.Pieces(0, 100, 2))} {
		_, err := a.QP.PostSend([]rdma.SendWR{wr})
		require.Error(t, err, "%v", wr.Op)
	}
}

// TestPeerThatFellSilent: after an error of a's own, which a device does not tell its peer, b's Sends
// are tried until the retries run out.
func TestPeerThatFellSilent(t *testing.T) {
	for _, seed := range []uint64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
			a.Post(send(5, []rdma.SGE{{Length: 8}}))
			a.Ended(a.Sends(1), rdma.LocProtErr, 5)
			b.Recv(1, 0, 8)
			b.Post(send(6, nil), send(7, nil))
			done := b.Sends(2)
			b.Ended(done[:1], rdma.RetryExcErr, 6)
			b.Ended(done[1:], rdma.WRFlushErr, 7)
			b.Flushed(1, 1)
		})
	}
}
