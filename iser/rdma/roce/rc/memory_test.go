package rc

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

func TestKeysAreDifferentAndNeverZero(t *testing.T) {
	m := NewMemory(3)
	seen := map[uint32]bool{0: true}
	for range 3000 {
		r, err := m.Register(make([]byte, 8), rights)
		require.NoError(t, err)
		require.False(t, seen[r.RKey()])
		seen[r.RKey()] = true
		require.Equal(t, r.LKey(), r.RKey())
		require.NotZero(t, r.RKey()>>variantBits)
		require.Zero(t, r.Addr()%pageSize)
		if len(seen)%2 == 0 {
			require.NoError(t, r.Deregister())
		}
	}
	assert.Equal(t, 1500, m.Keys())
	assert.NotEqual(t, NewMemory(1).rng.Uint32(), NewMemory(2).rng.Uint32())
}

func TestRegisterRefuses(t *testing.T) {
	m := NewMemory(1)
	_, err := m.Register(nil, rights)
	assert.Error(t, err)
	_, err = m.Register(make([]byte, 1), rdma.RemoteWrite)
	assert.Error(t, err)
	_, err = m.Register(make([]byte, 1), localRead)
	assert.Error(t, err, "a right of our own")
	r, err := m.Register(make([]byte, 1), rdma.LocalWrite)
	require.NoError(t, err)
	assert.Zero(t, r.RKey())
	require.NoError(t, r.Deregister())
	assert.ErrorIs(t, r.Deregister(), net.ErrClosed)
}

func TestTheLastKeyIsRefused(t *testing.T) {
	m := NewMemory(1)
	m.count = maxGrants
	_, err := m.Register(make([]byte, 1), 0)
	assert.Error(t, err)
	_, err = m.NewWindow()
	assert.Error(t, err)
}

// Bounds of what a key opens, at each edge.
func TestAKeyOpensItsBytesAndNoOthers(t *testing.T) {
	l := newLone(t, nil)
	r, err := l.q.cfg.Memory.Register(make([]byte, 100), rdma.LocalWrite|rdma.RemoteWrite)
	require.NoError(t, err)
	a, k := r.Addr(), r.RKey()
	for _, c := range []struct {
		key     uint32
		addr, n uint64
		need    rdma.Access
		ok      bool
	}{
		{k, a, 100, rdma.RemoteWrite, true},
		{k, a, 101, rdma.RemoteWrite, false},
		{k, a + 99, 1, rdma.RemoteWrite, true},
		{k, a + 100, 0, rdma.RemoteWrite, true},
		{k, a + 101, 0, rdma.RemoteWrite, false},
		{k, a + 100, 1, rdma.RemoteWrite, false},
		{k, a - 1, 1, rdma.RemoteWrite, false},
		{k, a + 50, 1<<64 - 1, rdma.RemoteWrite, false},
		{k, a + 50, -a - 50, rdma.RemoteWrite, false},
		{k, 0, 1, rdma.RemoteWrite, false},
		{k, a, 1, rdma.RemoteRead, false},
		{k, a, 1, rdma.LocalWrite, true},
		{k, a, 1, localRead, true},
		{k ^ 1, a, 1, rdma.RemoteWrite, false},
		{k ^ 1<<31, a, 1, rdma.RemoteWrite, false},
		{0, a, 1, rdma.RemoteWrite, false},
	} {
		var hot *grant
		assert.Equal(t, c.ok, l.q.opens(&hot, c.key, c.addr, c.n, c.need), "%+v", c)
		assert.Equal(t, c.ok, l.q.opens(&hot, c.key, c.addr, c.n, c.need), "remembered: %+v", c)
	}
}

func TestWindowOpensAPieceToOneQueuePair(t *testing.T) {
	l := newLone(t, nil)
	m := l.q.cfg.Memory
	other := New(l.q.cfg)
	wi, err := m.NewWindow()
	require.NoError(t, err)
	w, r := wi.(*window), l.mr.(*region)
	first := w.RKey()
	bind := func(off uint64, n uint32, access rdma.Access) bool {
		return w.bind(l.q, w.postKey(), r, rdma.Piece(l.mr, off, n), access)
	}
	assert.False(t, bind(8000, 193, rdma.RemoteRead), "past the region")
	assert.False(t, bind(0, 0, rdma.RemoteRead), "empty")
	assert.False(t, bind(0, 8, 0), "no rights")
	assert.False(t, bind(0, 8, rdma.LocalWrite|rdma.RemoteRead), "rights that windows do not have")
	assert.False(t, w.bind(l.q, w.postKey(), r, rdma.SGE{Addr: l.mr.Addr(), Length: 8, LKey: 1}, rdma.RemoteRead), "another region's key")
	require.True(t, bind(100, 50, rdma.RemoteRead))
	assert.False(t, bind(0, 8, rdma.RemoteRead), "bound")
	key := w.key.Load()
	assert.NotEqual(t, first, key)
	a := l.mr.Addr() + 100
	opens := func(q *QP, key uint32, addr, n uint64, need rdma.Access) bool {
		var hot *grant
		return q.opens(&hot, key, addr, n, need)
	}
	assert.True(t, opens(l.q, key, a, 50, rdma.RemoteRead))
	assert.False(t, opens(l.q, key, a, 51, rdma.RemoteRead))
	assert.False(t, opens(l.q, key, a-1, 1, rdma.RemoteRead))
	assert.False(t, opens(l.q, key, a, 1, rdma.RemoteWrite))
	assert.False(t, opens(l.q, key, a, 1, localRead), "a window is no local memory")
	assert.False(t, opens(l.q, key-1, a, 1, rdma.RemoteRead), "an earlier key")
	assert.False(t, opens(other, key, a, 1, rdma.RemoteRead))
	assert.False(t, other.invalidate(key))
	assert.False(t, l.q.invalidate(key-1))
	assert.False(t, l.q.invalidate(0))
	assert.False(t, l.q.invalidate(l.mr.RKey()))
	assert.ErrorContains(t, l.mr.Deregister(), "bound")
	require.True(t, l.q.invalidate(key))
	assert.False(t, l.q.invalidate(key), "twice")
	assert.False(t, opens(l.q, key, a, 1, rdma.RemoteRead))
	require.True(t, bind(0, 8, rdma.RemoteRead))
	require.NoError(t, w.Close())
	assert.ErrorIs(t, w.Close(), net.ErrClosed)
	assert.False(t, bind(0, 8, rdma.RemoteRead), "closed")
	require.NoError(t, l.mr.Deregister())
}

func TestWindowNeedsARegionThatAllowsIt(t *testing.T) {
	l := newLone(t, nil)
	m := l.q.cfg.Memory
	wi, _ := m.NewWindow()
	w := wi.(*window)
	for access, ok := range map[rdma.Access]bool{rdma.LocalWrite: false, rdma.WindowBind: false, rdma.WindowBind | rdma.LocalWrite: true} {
		mr, err := m.Register(make([]byte, 8), access)
		require.NoError(t, err)
		assert.Equal(t, ok, w.bind(l.q, w.postKey(), mr.(*region), rdma.Piece(mr, 0, 8), rdma.RemoteWrite), "%x", access)
	}
}

func TestDeregisterWaitsForACopyUnderWay(t *testing.T) {
	l := newLone(t, nil)
	g := &l.mr.(*region).grant
	g.mu.RLock() // as a copy does
	gone := make(chan error, 1)
	go func() { gone <- l.mr.Deregister() }()
	for g.mu.TryRLock() { // until it waits: then no further reader is let in
		g.mu.RUnlock()
		select {
		case <-gone:
			t.Fatal("it did not wait")
		default:
		}
	}
	select {
	case <-gone:
		t.Fatal("it did not wait")
	default:
	}
	g.mu.RUnlock()
	require.NoError(t, <-gone)
}

// Queue pairs write to a region while it is deregistered, again and again. Whatever Deregister leaves does not
// change any more; the race detector sees what this test's own comparison does not.
func TestNothingIsCopiedAfterDeregister(t *testing.T) {
	m := NewMemory(1)
	c := config()
	c.Memory = m
	var mu sync.Mutex
	var current rdma.MemoryRegion
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 2 {
		q := New(c)
		wg.Go(func() {
			var hot *grant
			src := make([]byte, 4096)
			for j := range src {
				src[j] = byte(i + 1)
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				r := current
				mu.Unlock()
				if r != nil {
					q.store(&hot, r.RKey(), r.Addr()+uint64(i)*4096, src, rdma.RemoteWrite)
				}
			}
		})
	}
	mem := make([]byte, 8192)
	for range 300 {
		r, err := m.Register(mem, rights)
		require.NoError(t, err)
		mu.Lock()
		current = r
		mu.Unlock()
		require.NoError(t, r.Deregister())
		clear(mem) // ours again
		require.Equal(t, len(mem), bytes.Count(mem, []byte{0}))
	}
	close(stop)
	wg.Wait()
}

// A region that ends in the middle of a message is not touched by the rest of it.
func TestDeregisterInTheMiddleOfAWrite(t *testing.T) {
	l := newLone(t, nil)
	data := make([]byte, 256)
	for i := range data {
		data[i] = 1
	}
	l.receive(reth(l.packet(wire.WriteFirst, 0, data), l.mr.Addr(), l.mr.RKey(), 512))
	require.NoError(t, l.mr.Deregister())
	l.receive(l.packet(wire.WriteLast, 1, data))
	s, psn, _ := l.answer()
	assert.Equal(t, []any{wire.NakRemoteAccess, 1}, []any{s, psn})
	assert.Equal(t, make([]byte, 256), l.mem[256:512])
	assert.Equal(t, data, l.mem[:256])
}

func TestDeregisterInTheMiddleOfARead(t *testing.T) {
	n := newNetwork(1, weather{room: 2}, nil)
	a, b := n.ends[0], n.ends[1]
	_, ar := a.open(t, 4096, 0, rights)
	_, br := b.open(t, 4096, 1, rights)
	a.post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{rdma.Piece(ar, 0, 2048)}, RemoteAddr: br.Addr(), RKey: br.RKey()})
	n.round(a)
	f := n.flying[0]
	b.q.Receive(n.now, f.p, b)
	b.q.Transmit(n.now, b) // two of eight
	require.True(t, b.q.More())
	require.NoError(t, br.Deregister())
	n.round(b)
	require.True(t, b.q.Failed())
	n.flying = n.flying[1:]
	n.run(time.Second)
	require.Equal(t, []rdma.Completion{{ID: 1, Status: rdma.RemAccessErr, QPNum: 0x11}}, a.sends)
}

func TestReadIntoMemoryThatIsGone(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.reading(1, 600))
	l.round()
	l.receive(l.respond(0, 600))
	require.NoError(t, l.mr.Deregister())
	before := append([]byte(nil), l.mem...)
	l.receive(l.respond(1, 600))
	assert.Equal(t, []int{4001}, l.ids())
	assert.Equal(t, before, l.mem)
}

func BenchmarkRegister(b *testing.B) {
	m := NewMemory(1)
	for range 10000 { // as many grants as a busy initiator has
		_, err := m.NewWindow()
		require.NoError(b, err)
	}
	mem := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		r, err := m.Register(mem, rights)
		if err != nil || r.Deregister() != nil {
			b.Fatal(err)
		}
	}
}
