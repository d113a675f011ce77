package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A completion queue keeps its order while it wraps, grows and loses the completions of a queue pair.
func TestCompletionQueueKeepsItsOrder(t *testing.T) {
	q, err := (&device{}).NewCQ(4)
	require.NoError(t, err)
	c := q.(*completionQueue)
	a, b := &queuePair{}, &queuePair{}
	next, want := uint64(0), []uint64{}
	push := func(p *queuePair, n int) {
		for range n {
			p.waiting[sendSide].Add(1)
			c.push(p, &rdma.Completion{ID: next})
			want = append(want, next)
			next++
		}
	}
	poll := func(n int) {
		cs := make([]rdma.Completion, n)
		got, err := c.Poll(cs)
		require.NoError(t, err)
		for _, x := range cs[:got] {
			require.Equal(t, want[0], x.ID)
			want = want[1:]
		}
	}
	push(a, 4)
	poll(3)
	push(b, 2) // wraps
	require.NoError(t, c.attach(nil, 6))
	push(a, 5)
	poll(2)
	kept := want[:0]
	for _, id := range want { // a's are gone: b's second is left
		if id == 5 {
			kept = append(kept, id)
		}
	}
	want = kept
	c.detach(a, 6)
	push(b, 3)
	poll(100)
	require.Empty(t, want)
	require.Zero(t, b.waiting[sendSide].Load())
	require.NoError(t, c.Close())
	_, err = c.Poll(make([]rdma.Completion, 1))
	require.Error(t, err)
}

func TestFullCompletionQueueIsOurFault(t *testing.T) {
	q, err := (&device{}).NewCQ(1)
	require.NoError(t, err)
	c := q.(*completionQueue)
	c.push(&queuePair{}, &rdma.Completion{})
	require.PanicsWithValue(t, "roce: completion queue of 1 is full", func() { c.push(&queuePair{}, &rdma.Completion{}) })
}

// Completions of a round wake a waiter once, and none that comes before Wait is missed.
func TestSignalWakesOncePerArming(t *testing.T) {
	q, err := (&device{}).NewCQ(8)
	require.NoError(t, err)
	c := q.(*completionQueue)
	p := &queuePair{}
	_, armed := c.arm()
	require.True(t, armed)
	for range 3 {
		c.push(p, &rdma.Completion{})
		c.signal(nil)
	}
	require.Len(t, c.notify, 1)
	<-c.notify
	c.signal(nil)
	require.Empty(t, c.notify, "nobody has armed it again")
	require.NoError(t, c.Wait(time.Time{}), "something is there")
}

func TestRunsOfEqualPacketsAreOneBurst(t *testing.T) {
	path := wire.NewPath(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	o := newOutgoing(path)
	shape := func() (s [][2]int) { // of each burst, packet size and bytes
		for _, b := range o.bursts {
			s = append(s, [2]int{b.Size, len(b.Data)})
			require.Equal(t, path, b.Path)
		}
		return s
	}
	for _, p := range []struct {
		op wire.Opcode
		n  int
	}{
		{wire.WriteFirst, 1024}, {wire.WriteMiddle, 1024}, {wire.WriteMiddle, 1024}, {wire.WriteLast, 6}, {wire.WriteOnly, 0}, {wire.SendOnly, 1024}, {wire.Acknowledge, 0},
	} {
		require.NotNil(t, o.packet(p.op, p.n))
	}
	// A shorter packet ends a burst, a longer one begins another.
	assert.Equal(t, [][2]int{{1056, 1056 + 1040}, {1040, 1040 + 24}, {32, 32}, {1040, 1040 + 20}}, shape())
	o.again()
	assert.Equal(t, [2]int{20, 20}, shape()[4])
	assert.Equal(t, o.bursts[3].Data[1040:], o.bursts[4].Data)
	total := 0
	for _, b := range o.bursts {
		total += len(b.Data)
	}
	assert.Equal(t, o.used, total)
	o.reset()
	assert.Empty(t, o.bursts)

	// A round holds 64 KiB of payload at the usual path MTUs, and no more bursts than there is room for.
	for _, mtu := range []int{1024, 2048, 4096} {
		n := 0
		for o.packet(wire.WriteMiddle, mtu) != nil {
			n += mtu
		}
		assert.GreaterOrEqual(t, n, 64<<10, mtu)
		o.reset()
	}
	n := 0
	for ; o.packet([]wire.Opcode{wire.Acknowledge, wire.ReadRequest}[n%2], 0) != nil; n++ {
	}
	assert.Equal(t, roomBursts, len(o.bursts))
	o.reset()
}

func TestQueuePairNumbersAreNotReused(t *testing.T) {
	p := New(Options{Seed: 3})
	p.last = maxQPN - 1
	seen := map[wire.QPN]bool{}
	for range 5 {
		n, err := p.number()
		require.NoError(t, err)
		require.False(t, seen[n])
		require.GreaterOrEqual(t, n, wire.QPN(minQPN))
		require.LessOrEqual(t, n, wire.QPN(maxQPN))
		seen[n] = true
	}
	p.free(minQPN)
	n, err := p.number()
	require.NoError(t, err)
	require.NotEqual(t, wire.QPN(minQPN), n, "the next one up")
	p.last = minQPN // taken again above
	n, err = p.number()
	require.NoError(t, err)
	require.False(t, seen[n])
}

func TestSeedMakesNumbersPredictable(t *testing.T) {
	numbers := func(seed uint64) [2]uint32 {
		p := New(Options{Seed: seed, Link: func(a netip.Addr) (link.Link, error) { return link.NewNet(1, link.NetOptions{}).Link(a), nil }})
		n, err := p.number()
		require.NoError(t, err)
		m, err := p.dev.Register(make([]byte, 8), 0)
		require.NoError(t, err)
		return [2]uint32{uint32(n), m.LKey()}
	}
	assert.Equal(t, numbers(7), numbers(7))
	assert.NotEqual(t, numbers(7), numbers(8))
	assert.NotEqual(t, numbers(0), numbers(0))
}

func TestQueuePairsThatCannotBe(t *testing.T) {
	n := link.NewNet(1, link.NetOptions{})
	p := New(Options{Addr: netip.MustParseAddr("10.0.0.1"), Link: func(a netip.Addr) (link.Link, error) { return n.Link(a), nil }})
	defer p.Close()
	ep, err := p.Resolve(t.Context(), netip.MustParseAddrPort("10.0.0.2:1"))
	require.NoError(t, err)
	defer ep.Close()
	cq, err := p.dev.NewCQ(1)
	require.NoError(t, err)
	good := rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	for name, change := range map[string]func(*rdma.QPConfig){
		"no queue":        func(c *rdma.QPConfig) { c.SendCQ = nil },
		"no depth":        func(c *rdma.QPConfig) { c.RecvDepth = 0 },
		"too deep":        func(c *rdma.QPConfig) { c.SendDepth = maxQPDepth + 1 },
		"too many pieces": func(c *rdma.QPConfig) { c.MaxSendSGE = maxSGE + 1 },
	} {
		c := good
		change(&c)
		_, err := ep.CreateQP(c)
		assert.Error(t, err, name)
	}
	require.Empty(t, p.qpns)
	q, err := ep.CreateQP(good)
	require.NoError(t, err)
	_, err = ep.CreateQP(good)
	require.ErrorContains(t, err, "has one")
	_, err = q.PostSend([]rdma.SendWR{{Op: rdma.OpSend}})
	require.ErrorIs(t, err, errNotConnected)
	_, err = q.PostRecv([]rdma.RecvWR{{SGL: make([]rdma.SGE, 2)}})
	require.Error(t, err)
	k, err := q.PostRecv(make([]rdma.RecvWR, 2))
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Equal(t, 1, k)
	require.ErrorContains(t, ep.Connect(t.Context(), rdma.ConnParam{PrivateData: make([]byte, 57)}), "limit is 56")
	require.ErrorContains(t, ep.Connect(t.Context(), rdma.ConnParam{InitiatorDepth: 255}), "device has 128")
	require.Error(t, ep.Accept(rdma.ConnParam{}))
	require.Error(t, ep.Reject(nil))
	require.NoError(t, ep.Close())
	require.Empty(t, p.qpns)
	require.NoError(t, cq.Close())
}

func TestExternalAddressIsOfTheOutside(t *testing.T) {
	x, six := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::1")
	lo, eth := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1")
	p := New(Options{External: x})
	assert.Equal(t, x, p.external(eth))
	assert.False(t, p.external(lo).IsValid())
	assert.False(t, p.external(six).IsValid())
	assert.Equal(t, x, New(Options{Addr: lo, External: x}).external(lo))
	assert.False(t, New(Options{}).external(eth).IsValid())
}
