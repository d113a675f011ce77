package iser

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

func testDevice(t testing.TB, f *fabric.Fabric) rdma.Device {
	ep, err := f.Resolve(context.Background(), portal)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep.Device()
}

func TestGather(t *testing.T) {
	d := newDevice(testDevice(t, fabric.New(fabric.Options{})), rdma.LocalWrite)
	mem := make([]byte, 40000)
	one, two := mem[:10000], mem[10000:20000] // neighbours, but two regions
	require.NoError(t, d.register(one))
	require.NoError(t, d.register(two))
	list := *d.regions.Load()
	at := func(off int) rdma.SGE {
		r := list[off/10000]
		return rdma.SGE{Addr: r.mr.Addr() + uint64(off%10000), LKey: r.mr.LKey()}
	}
	sge := func(off, n int) rdma.SGE { s := at(off); s.Length = uint32(n); return s }
	for name, c := range map[string]struct {
		bufs  [][]byte
		start cursor
		room  int
		max   uint32
		want  []rdma.SGE
		n     uint32
		end   cursor
	}{
		"one":               {[][]byte{one[100:200]}, cursor{}, 4, 1000, []rdma.SGE{sge(100, 100)}, 100, cursor{1, 0}},
		"a run":             {[][]byte{one[:100], one[100:300]}, cursor{}, 1, 1000, []rdma.SGE{sge(0, 300)}, 300, cursor{2, 0}},
		"two pieces":        {[][]byte{one[:100], one[200:300]}, cursor{}, 4, 1000, []rdma.SGE{sge(0, 100), sge(200, 100)}, 200, cursor{2, 0}},
		"no room":           {[][]byte{one[:100], one[200:300]}, cursor{}, 1, 1000, []rdma.SGE{sge(0, 100)}, 100, cursor{1, 0}},
		"limit":             {[][]byte{one[:100], one[200:300]}, cursor{}, 4, 150, []rdma.SGE{sge(0, 100), sge(200, 50)}, 150, cursor{1, 50}},
		"from the middle":   {[][]byte{one[:100], {}, one[200:300]}, cursor{0, 60}, 4, 1000, []rdma.SGE{sge(60, 40), sge(200, 100)}, 140, cursor{3, 0}},
		"across regions":    {[][]byte{mem[9000:12000]}, cursor{}, 4, 5000, []rdma.SGE{sge(9000, 1000), sge(10000, 2000)}, 3000, cursor{1, 0}},
		"out of the region": {[][]byte{mem[19000:22000]}, cursor{}, 4, 5000, []rdma.SGE{sge(19000, 1000)}, 1000, cursor{0, 1000}},
		"unknown":           {[][]byte{mem[20000:22000]}, cursor{}, 4, 5000, nil, 0, cursor{}},
		"unknown after":     {[][]byte{one[:5], mem[20000:22000]}, cursor{}, 4, 5000, []rdma.SGE{sge(0, 5)}, 5, cursor{1, 0}},
		"nothing":           {nil, cursor{}, 4, 5000, nil, 0, cursor{}},
	} {
		cur := c.start
		sgl, n := d.gather(c.bufs, &cur, nil, c.room, c.max)
		assert.Equal(t, c.want, sgl, name)
		assert.Equal(t, c.n, n, name)
		assert.Equal(t, c.end, cur, name)
	}
	require.NoError(t, d.closeRegions())
}

func TestRegisterCountsAndRefusesOverlap(t *testing.T) {
	f := fabric.New(fabric.Options{})
	d := newDevice(testDevice(t, f), rdma.LocalWrite)
	mem := make([]byte, 3000)
	require.NoError(t, d.register(nil))
	require.NoError(t, d.register(mem[1000:2000]))
	require.NoError(t, d.register(mem[1000:2000]))
	for _, m := range [][]byte{mem[:1001], mem[1999:], mem[1200:1300], mem} {
		require.ErrorIs(t, d.register(m), ErrOverlap)
	}
	require.NoError(t, d.register(mem[:1000]))
	require.NoError(t, d.register(mem[2000:]))
	require.Equal(t, 3, f.Gauges().Regions)
	require.NoError(t, d.unregister(mem[1000:2000]))
	require.NotNil(t, d.find(address(mem[1500:])))
	require.NoError(t, d.unregister(mem[1000:2000]))
	require.Nil(t, d.find(address(mem[1500:])))
	require.NotNil(t, d.find(address(mem[999:])))
	require.NotNil(t, d.find(address(mem[2000:])))
	require.NoError(t, d.closeRegions())
	require.Zero(t, f.Gauges().Regions)
}

func TestListenerRegistersWithEveryDevice(t *testing.T) {
	f := fabric.New(fabric.Options{TwoDevices: true})
	l, err := Listen(f, portal, TargetConfig{Window: 1})
	require.NoError(t, err)
	mem := make([]byte, 5000)
	require.NoError(t, l.Register(mem[:1000])) // before there is a device
	require.Zero(t, f.Gauges().Regions)
	var tgt *target
	connectPeer(t, f, refused, func() { tgt = accept(t, l) })
	require.NotNil(t, tgt.dev.find(address(mem)))
	require.NoError(t, l.Register(mem[1000:]))
	require.NotNil(t, tgt.dev.find(address(mem[4999:])))
	require.ErrorIs(t, l.Register(mem[500:1500]), ErrOverlap)
	require.NoError(t, l.Unregister(mem[:1000]))
	require.Nil(t, tgt.dev.find(address(mem)))
	require.NoError(t, l.Close())
	require.NotNil(t, tgt.dev.find(address(mem[4999:])), "connections go on")
	require.NoError(t, tgt.Close())
	require.Nil(t, tgt.dev.find(address(mem[4999:])))
}

func TestPool(t *testing.T) {
	f := fabric.New(fabric.Options{})
	p, err := newPool(testDevice(t, f), 3<<20, rdma.LocalWrite)
	require.NoError(t, err)
	require.Len(t, p.block.mem, 4<<20, "a power of two")
	rng := rand.New(rand.NewPCG(1, 2))
	type held struct {
		piece
		n    int
		seed byte
	}
	var all []held
	for i := range 5000 {
		if rng.IntN(2) == 0 || len(all) == 0 {
			n := 1 + rng.IntN(100000)
			pc, ok, err := p.get(n)
			require.NoError(t, err)
			if !ok {
				require.NotEmpty(t, all)
				continue
			}
			require.GreaterOrEqual(t, pc.size, n)
			require.False(t, pc.own)
			require.Zero(t, pc.addr()%poolPage-p.block.mr.Addr()%poolPage)
			copy(pc.mem(n), bytes.Repeat([]byte{byte(i)}, n))
			all = append(all, held{pc, n, byte(i)})
			continue
		}
		j := rng.IntN(len(all))
		h := all[j]
		require.Equal(t, bytes.Repeat([]byte{h.seed}, h.n), h.mem(h.n), "pieces overlap")
		require.NoError(t, p.put(h.piece))
		all = append(all[:j], all[j+1:]...)
	}
	for _, h := range all {
		require.NoError(t, p.put(h.piece))
	}
	require.Zero(t, p.live)
	pc, ok, err := p.get(4 << 20)
	require.NoError(t, err)
	require.True(t, ok, "all in one piece again")
	require.NoError(t, p.put(pc))
	require.Panics(t, func() { _ = p.put(pc) })
	require.NoError(t, p.close())
}

func TestPoolIsLost(t *testing.T) {
	f := fabric.New(fabric.Options{})
	dev := testDevice(t, f)
	p, err := newPool(dev, 0, rdma.LocalWrite)
	require.NoError(t, err)
	require.Len(t, p.block.mem, minPoolHalf)
	pc, ok, err := p.get(minPoolHalf)
	require.True(t, ok && err == nil)
	_, ok, err = p.get(1)
	require.False(t, ok)
	require.NoError(t, err, "it comes back: wait")
	p.lose(pc)
	var own []piece
	for {
		pc, ok, err := p.get(300000)
		if err != nil || !ok {
			require.NoError(t, err)
			require.NotEmpty(t, own)
			break
		}
		require.True(t, pc.own)
		own = append(own, pc)
	}
	require.NoError(t, p.put(own[0]))
	for _, pc := range own[1:] {
		p.lose(pc)
	}
	pc, ok, err = p.get(1)
	require.True(t, ok && err == nil)
	p.lose(pc)
	_, _, err = p.get(minPoolHalf)
	require.ErrorIs(t, err, errPoolLost)
	require.NoError(t, p.close())
	require.Zero(t, f.Gauges().Regions)
}

func TestPoolTakesCommandsLongerThanItself(t *testing.T) {
	f := fabric.New(fabric.Options{})
	p, err := newPool(testDevice(t, f), 1<<20, rdma.LocalWrite)
	require.NoError(t, err)
	pc, ok, err := p.get(8 << 20)
	require.True(t, ok && err == nil)
	require.Len(t, pc.mem(8<<20), 8<<20)
	_, ok, err = p.get(8 << 20)
	require.False(t, ok, "one at a time")
	require.NoError(t, err)
	require.NoError(t, p.put(pc))
	pc, ok, err = p.get(8 << 20)
	require.True(t, ok && err == nil)
	require.NoError(t, p.close(), "what is in use is freed too: the queue pair is gone")
	require.Zero(t, f.Gauges().Regions)
}

func TestAddressDoesNotAllocate(t *testing.T) {
	b := make([]byte, 100)
	var sum uintptr
	require.Zero(t, testing.AllocsPerRun(100, func() { sum += address(b[50:]) }))
	require.Equal(t, address(b)+50, address(b[50:]))
	_ = sum
}
