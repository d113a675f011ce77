package iser

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// mapped is memory that can be registered.
func mapped(t testing.TB, size int) []byte {
	pool, err := arena.New(int64(size))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return pool.Memory()[:size]
}

// inPlace has a duo use registered memory.
func (d *duo) inPlace(size int) *duo {
	d.buf = mapped(d.t, size)
	d.check(d.p.ini.Register(d.buf))
	d.tr.InPlace = true
	return d
}

func TestDataInPlaceIsNotCopied(t *testing.T) {
	for _, size := range []int{512, 4096, 128 << 10, 1 << 20} {
		d := newDuo(t, size)
		d.run(true)
		d.run(false)
		require.EqualValues(t, 2*size, d.p.ini.copied, "what is counted is copied")
		d = newDuo(t, size).inPlace(size)
		for i := range uint32(300) {
			pattern(d.buf, i)
			d.run(true)
			require.Equal(t, d.buf, d.ram.store)
			pattern(d.ram.store, i+1e6)
			d.run(false)
			require.Equal(t, d.ram.store, d.buf)
		}
		require.Zero(t, d.p.ini.copied, "%d bytes", size)
		require.Zero(t, testing.AllocsPerRun(100, func() { d.run(false) }), "read of %d bytes", size)
		require.Zero(t, testing.AllocsPerRun(100, func() { d.run(true) }), "write of %d bytes", size)
		require.NoError(t, d.p.ini.Unregister(d.buf))
	}
}

func BenchmarkRead128KInPlace(b *testing.B) { benchDuo(b, newDuo(b, 128<<10).inPlace(128<<10), false) }

func BenchmarkWrite128KInPlace(b *testing.B) { benchDuo(b, newDuo(b, 128<<10).inPlace(128<<10), true) }

// place queues a command whose data is in registered memory.
func (b *iniBench) place(itt uint32, mem []byte, write bool) *iscsi.Transfer {
	tr := &iscsi.Transfer{ITT: itt, EDTL: uint32(len(mem)), InPlace: true}
	if write {
		tr.Out = [][]byte{mem}
	} else {
		tr.In = [][]byte{mem}
	}
	b.start(tr, !write, write)
	return tr
}

// How a write from the caller's memory travels: what goes inline is sent from there too.
func TestWritePlansInPlace(t *testing.T) {
	for name, c := range map[string]struct {
		r2t, partial bool
		size         int
		inline       uint32
	}{
		"inline":             {true, false, 4096, 4096},
		"fetched":            {true, false, 9000, 0},
		"partial":            {true, true, 70000, 8192},
		"unsolicited":        {false, false, 70000, 65536},
		"unsolicited, short": {false, true, 20000, 20000},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, InitiatorConfig{PartialImmediate: c.partial})
			params := normalParams()
			params.InitialR2T = c.r2t
			b.enable(params)
			p.post(20)
			mem := pattern(mapped(t, 80000), 5)
			require.NoError(t, b.ini.Register(mem))
			out := mem[777:][:c.size] // anywhere
			tr := b.place(1, out, true)
			require.NoError(t, b.ini.Flush())
			m, _ := received(t, p.recv())
			data := m.Data
			for uint32(len(data)) < c.inline {
				d, _ := received(t, p.recv())
				data = append(data, d.Data...)
			}
			require.EqualValues(t, c.inline, len(data))
			if rest := c.size - len(data); rest > 0 {
				require.Equal(t, WriteValid, m.Flags)
				data = append(data, p.get(m.WriteSTag, m.WriteBase, rest)...)
				p.get(m.WriteSTag, m.WriteBase+uint64(rest), 1) // and not a byte more
				require.NotEmpty(t, p.bad)
			} else {
				require.Zero(t, m.Flags)
				p.answer(iscsi.SCSIResponse{ITT: 1})
				require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
				require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
			}
			require.Equal(t, out, data)
			require.Zero(t, b.ini.copied)
		})
	}
}

func TestWhatCannotBeUsedInPlace(t *testing.T) {
	one := fabric.DefaultLimits()
	one.MaxSGE = 1
	for name, c := range map[string]struct {
		o fabric.Options
		c InitiatorConfig
	}{
		"permanent keys":     {strict, InitiatorConfig{NoInvalidate: true}},
		"Sends of one piece": {fabric.Options{Limits: &one}, InitiatorConfig{}},
	} {
		b, _ := newInitiator(t, c.o, c.c)
		require.ErrorIs(t, b.ini.Register(mapped(t, 4096)), errors.ErrUnsupported, name)
	}
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(4)
	mem := mapped(t, 8192)
	require.NoError(t, b.ini.Register(mem))
	require.ErrorIs(t, b.ini.Register(mem[4096:]), ErrOverlap)
	require.Panics(t, func() { b.place(1, make([]byte, 100), false) })
	tr := b.place(2, mem, false)
	require.NoError(t, b.ini.Flush())
	require.Panics(t, func() { b.ini.Detach(tr) })
	require.Error(t, b.ini.Unregister(mem), "a window is bound to it")
}

// A command in place that ends with its connection is released when the queue pair is gone, not before: a Write may
// still land. The engine takes Close for it.
func TestDyingCommandInPlaceKeepsItsMemory(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(4)
	mem := mapped(t, 8192)
	require.NoError(t, b.ini.Register(mem))
	b.place(1, mem[:4096], false)
	b.command(2, make([]byte, 512), nil)
	b.place(3, mem[4096:], true) // all inline: nothing but its Send uses it
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	p.put(m.ReadSTag, m.ReadBase, []byte("lands"))
	p.start([]byte("nonsense")) // breaks the protocol
	evs, err := b.fails()
	require.ErrorIs(t, err, ErrProtocol)
	var released []uint32
	for _, ev := range evs {
		require.Equal(t, iscsi.EventReleased, ev.Kind)
		released = append(released, ev.Transfer.ITT)
	}
	require.NotContains(t, released, uint32(1))
	require.Contains(t, released, uint32(2))
	require.NoError(t, b.ini.Close())
	require.NoError(t, b.ini.Unregister(mem), "nothing is left of it")
}
