package roce

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce/link"
)

// A pairing is two connected ends on a simulated network that delays by 10 us, in virtual time.
type pairing struct {
	p, q *Provider
	a, b *rdmatest.End
}

func inBubble(t *testing.T, f func(t *testing.T, x *pairing)) {
	synctest.Test(t, func(t *testing.T) {
		n := link.NewNet(1, link.NetOptions{Weather: link.Weather{Delay: 10 * time.Microsecond}})
		o := Options{Link: func(a netip.Addr) (link.Link, error) { return n.Link(a), nil }}
		x := &pairing{}
		for i, p := range []**Provider{&x.p, &x.q} {
			o.Addr = netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
			*p = New(o)
			defer (*p).Close()
		}
		l, err := x.q.Listen(netip.AddrPortFrom(x.q.o.Addr, 0))
		require.NoError(t, err)
		defer l.Close()
		x.a, x.b = x.connect(t, l)
		f(t, x)
	})
}

func (x *pairing) connect(t *testing.T, l rdma.Listener) (a, b *rdmatest.End) {
	ep, err := x.p.Resolve(t.Context(), l.Addr())
	require.NoError(t, err)
	a = rdmatest.NewEnd(t, ep, rdmatest.Config{})
	var g sync.WaitGroup
	g.Go(func() {
		ep, err := l.Accept(t.Context())
		require.NoError(t, err)
		b = rdmatest.NewEnd(t, ep, rdmatest.Config{})
		require.NoError(t, ep.Accept(rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	})
	require.NoError(t, ep.Connect(t.Context(), rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	g.Wait()
	t.Cleanup(a.Close)
	t.Cleanup(b.Close)
	return a, b
}

// message sends one from a to b and waits for it there.
func (x *pairing) message(id uint64) {
	x.b.Recv(id, 0, 64)
	x.a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, SGL: x.a.Piece(0, 64)})
	x.b.Ended(x.b.Recvs(1), rdma.Success, id)
}

// lead makes b's receive side the one that reads its port: it alone has waited there for long enough.
func (x *pairing) lead(t *testing.T) {
	x.message(0)
	time.Sleep(2 * crowdPeriod)
	x.message(1)
	synctest.Wait()
	_ = x.b.RecvCQ.Wait(time.Now()) // takes the wake-up that came with the offer
	require.False(t, x.q.role(t).taken.Load(), "the keeper has offered the role, and nobody waits")
}

func (p *Provider) role(t *testing.T) *role {
	os := p.allPorts()
	require.Len(t, os, 1)
	return &os[0].role
}

// wait begins a Wait on a completion queue; what it returns is closed when that has ended.
func wait(cq rdma.CompletionQueue, deadline time.Time) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cq.Wait(deadline)
	}()
	synctest.Wait()
	return done
}

func ended(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestWhoWaitsAloneReads(t *testing.T) {
	inBubble(t, func(t *testing.T, x *pairing) {
		x.lead(t)
		r := x.q.role(t)
		done := wait(x.b.RecvCQ, time.Time{})
		require.True(t, r.taken.Load())
		require.Same(t, x.b.RecvCQ, r.leader)
		x.b.Recv(7, 0, 64)
		x.a.Post(rdma.SendWR{ID: 7, Op: rdma.OpSend, SGL: x.a.Piece(0, 64)})
		time.Sleep(10 * time.Microsecond)
		require.True(t, ended(done))
		require.False(t, r.taken.Load())
		x.b.Ended(x.b.Recvs(1), rdma.Success, 7)
	})
}

// A program that has read and does something else now stops nobody: its peer's Writes are done within two looks of
// the keeper.
func TestKeeperReadsWhenNobodyWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, x *pairing) {
		x.lead(t)
		for id := range uint64(100) { // wherever in its interval
			x.message(id)
			require.False(t, x.q.role(t).taken.Load())
			start := time.Now()
			x.a.Post(rdma.SendWR{ID: id, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: x.a.Piece(0, 64), RemoteAddr: x.b.MR.Addr(), RKey: x.b.MR.RKey()})
			x.a.Ended(x.a.Sends(1), rdma.Success, id)
			require.LessOrEqual(t, time.Since(start), 2*watchInterval+20*time.Microsecond)
			x.lead(t)
			time.Sleep(time.Duration(id%50) * 17 * time.Microsecond)
		}
	})
}

// Also after it has stopped looking because the same Wait went on for long.
func TestDozingKeeperIsWokenByWhoLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, x *pairing) {
		x.lead(t)
		x.b.Recv(7, 0, 64)
		done := wait(x.b.RecvCQ, time.Time{})
		time.Sleep(2 * dozeAfter * watchInterval)
		require.True(t, x.q.role(t).dozing.Load())
		x.a.Post(rdma.SendWR{ID: 7, Op: rdma.OpSend, SGL: x.a.Piece(0, 64)})
		time.Sleep(10 * time.Microsecond)
		require.True(t, ended(done))
		start := time.Now()
		x.a.Post(rdma.SendWR{ID: 8, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: x.a.Piece(0, 64), RemoteAddr: x.b.MR.Addr(), RKey: x.b.MR.RKey()})
		x.a.Ended(x.a.Sends(1), rdma.Success, 8)
		require.LessOrEqual(t, time.Since(start), 2*watchInterval+20*time.Microsecond)
	})
}

// Who leaves just before the keeper dozes off does not kick it.
func TestKeeperDoesNotDozeWhenNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := role{kick: make(chan struct{}, 1)}
		require.True(t, r.take())
		r.changes.Add(1)
		r.leave(false)
		dozed := make(chan struct{})
		go func() {
			defer close(dozed)
			r.doze(r.changes.Load())
		}()
		awake := ended(dozed)
		r.wake()
		<-dozed
		require.True(t, awake)
	})
}

func TestWaitThatReadsEndsAsAnyOther(t *testing.T) {
	inBubble(t, func(t *testing.T, x *pairing) {
		x.lead(t)
		done := wait(x.b.RecvCQ, time.Time{})
		require.False(t, ended(done))
		x.b.RecvCQ.Wake()
		require.True(t, ended(done), "woken")

		start := time.Now()
		<-wait(x.b.RecvCQ, start.Add(time.Second))
		require.Equal(t, time.Second, time.Since(start), "at its deadline")

		x.b.RecvCQ.Wake()
		require.True(t, ended(wait(x.b.RecvCQ, time.Time{})), "woken before")

		done = wait(x.b.RecvCQ, time.Time{})
		x.b.Recv(1, 0, 64)
		require.NoError(t, x.b.EP.Disconnect())
		require.True(t, ended(done), "flushed")
		x.b.Flushed(1, 1)

		done = wait(x.b.RecvCQ, time.Time{})
		require.NoError(t, x.q.Close())
		require.True(t, ended(done) || ended(wait(x.b.RecvCQ, time.Now())), "the link is closed")
		<-x.q.allPorts()[0].done
	})
}

// Two that wait at a time: who leaves has the other served at once, and the keeper gives the role back only when there
// has been one for a while.
func TestWhoLeavesWhileOthersWaitHandsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, x *pairing) {
		x.lead(t)
		r := x.q.role(t)
		sends := wait(x.b.SendCQ, time.Time{})
		require.Same(t, x.b.SendCQ, r.leader)
		recvs := wait(x.b.RecvCQ, time.Time{})
		x.b.SendCQ.Wake()
		require.True(t, ended(sends))
		require.True(t, r.taken.Load())
		require.Nil(t, r.leader, "the keeper")
		x.b.Recv(7, 0, 64)
		x.a.Post(rdma.SendWR{ID: 7, Op: rdma.OpSend, SGL: x.a.Piece(0, 64)})
		time.Sleep(10 * time.Microsecond)
		require.True(t, ended(recvs))
		x.b.Ended(x.b.Recvs(1), rdma.Success, 7)

		for range 3 { // both go on waiting
			time.Sleep(2 * crowdPeriod)
			sends = wait(x.b.SendCQ, time.Time{})
			x.message(8)
			synctest.Wait()
			require.True(t, r.taken.Load())
			require.Nil(t, r.leader)
			x.b.SendCQ.Wake()
			require.True(t, ended(sends))
		}
		x.lead(t) // one alone
	})
}
