package iser

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

func TestReadIsWritesThenOneSend(t *testing.T) {
	for _, registered := range []bool{true, false} {
		b, p := newTarget(t, strict, TargetConfig{}, agreed)
		b.enable(normalParams())
		p.post(4)
		m := p.lendOnce(3*65536, rdma.RemoteWrite)
		data := pattern(make([]byte, 100000), 7)
		if registered {
			require.NoError(t, b.lis.Register(data))
		}
		tr := b.command(p, readCommand(5, m, 131072))
		b.tap.take()
		require.True(t, b.tgt.CanPut(tr))
		b.tgt.PutData(tr, split(data[:90000], 30000), 0)
		b.tgt.PutData(tr, split(data[90000:], 30000), 90000)
		require.NoError(t, b.tgt.Flush())
		require.Empty(t, b.tap.take(), "no data goes ahead of its response")
		b.tgt.Respond(tr, response(5), nil)
		require.Empty(t, b.tap.take(), "nothing leaves before Flush")
		require.NoError(t, b.tgt.Flush())
		ops := b.tap.take()
		var next uint64
		for _, o := range ops[:len(ops)-1] {
			assert.Equal(t, rdma.OpWrite, o.Op)
			assert.Equal(t, m.addr+next, o.Addr)
			assert.Equal(t, m.key, o.Key)
			next += o.Length
		}
		assert.EqualValues(t, len(data), next)
		last := ops[len(ops)-1]
		assert.Equal(t, rdma.OpSendInv, last.Op)
		assert.Equal(t, m.key, last.Key)
		a := p.recv()
		assert.Equal(t, append(append([]byte{0x10}, make([]byte, 27)...), response(5)[:]...), a.b)
		assert.True(t, a.invalidated)
		assert.Equal(t, m.key, a.key)
		assert.Equal(t, data, m.mem[:len(data)])
		assert.Equal(t, make([]byte, len(m.mem)-len(data)), m.mem[len(data):], "nothing behind the data")
		ev := b.until(iscsi.EventReleased)
		assert.Same(t, tr, ev.Transfer)
		assert.Zero(t, tr.DM)
		assert.True(t, b.tgt.Idle())
	}
}

func TestRegisteredMemoryIsUsedInPlace(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	p.post(8)
	store := pattern(make([]byte, 3<<20), 1)
	require.NoError(t, b.lis.Register(store))
	m := p.lend(len(store), rdma.RemoteWrite|rdma.LocalWrite)
	serve := func(bufs [][]byte, n uint32) []tapped {
		tr := b.command(p, readCommand(1, m, n))
		b.tap.take()
		b.tgt.PutData(tr, bufs, 0)
		b.tgt.Respond(tr, response(1), nil)
		require.NoError(t, b.tgt.Flush())
		p.recv()
		b.until(iscsi.EventReleased)
		return ofKind(b.tap.take(), rdma.OpWrite)
	}
	// Neighbours merge, and 1 MiB is the longest message.
	require.Len(t, serve(split(store, 4096), uint32(len(store))), 3)
	require.Equal(t, store, m.mem)
	// Pieces apart: 16 of them to a message.
	var apart [][]byte
	for i := range 33 {
		apart = append(apart, store[i*8192:][:4096])
	}
	require.Len(t, serve(apart, 33*4096), 3)
	require.Equal(t, store[32*8192:][:4096], m.mem[32*4096:][:4096])
	require.Nil(t, b.tgt.bounce.block)
	// Memory that is known by half goes both ways.
	mixed := [][]byte{store[:1000], pattern(make([]byte, 100), 55), store[2000:3000], {}, pattern(make([]byte, 70000), 66)}
	serve(mixed, 72100)
	var want []byte
	for _, x := range mixed {
		want = append(want, x...)
	}
	require.Equal(t, want, m.mem[:len(want)])
	require.NoError(t, b.lis.Unregister(store))
	require.Equal(t, 3, len(serve(split(store[:150000], 4096), 150000)), "in chunks of 64 KiB")
	require.Equal(t, store[:150000], m.mem[:150000])
	require.NoError(t, b.lis.Unregister(store), "unknown memory is no error")
}

func TestWriteIsReadFromTheBaseUnchanged(t *testing.T) {
	for _, immediate := range []int{0, 8192} {
		for _, registered := range []bool{true, false} {
			t.Run(fmt.Sprint(immediate, registered), func(t *testing.T) {
				b, p := newTarget(t, strict, TargetConfig{}, refused)
				b.enable(normalParams())
				p.post(4)
				data := pattern(make([]byte, 65536), 3)
				m := p.lend(len(data)-immediate, rdma.RemoteRead)
				copy(m.mem, data[immediate:])
				buf := make([]byte, 65536)
				if registered {
					require.NoError(t, b.lis.Register(buf))
				}
				w := writeCommand(9, m, 65536, data[:immediate])
				p.send(w.bytes())
				ev := b.until(iscsi.EventPDU)
				copy(buf, ev.Data)
				tr := &iscsi.Transfer{ITT: 9, EDTL: 65536, Remote: ev.Remote, Unsolicited: uint32(immediate)}
				b.tap.take()
				require.True(t, b.tgt.CanGet(tr))
				b.tgt.GetData(tr, split(buf[immediate:], 10000), uint32(immediate))
				require.NoError(t, b.tgt.Flush())
				ev = b.until(iscsi.EventGot)
				require.Same(t, tr, ev.Transfer)
				var covered uint64
				for _, o := range b.tap.take() {
					require.Equal(t, rdma.OpRead, o.Op)
					require.Equal(t, m.key, o.Key)
					require.Equal(t, m.addr+covered, o.Addr)
					covered += o.Length
				}
				require.EqualValues(t, 65536-immediate, covered)
				require.Equal(t, data, buf)
				b.tgt.Respond(tr, response(9), nil)
				require.NoError(t, b.tgt.Flush())
				require.False(t, p.recv().invalidated)
				b.until(iscsi.EventReleased)
				require.Zero(t, tr.DM)
			})
		}
	}
}

func TestPartOfAWriteCanBeFetched(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	p.post(4)
	m := p.lend(10000, rdma.RemoteRead)
	pattern(m.mem, 5)
	tr := b.command(p, writeCommand(1, m, 12000, make([]byte, 2000)))
	b.tap.take()
	buf := make([]byte, 5000)
	b.tgt.GetData(tr, [][]byte{buf}, 4000)
	require.NoError(t, b.tgt.Flush())
	b.until(iscsi.EventGot)
	assert.Equal(t, m.mem[2000:7000], buf)
	b.tgt.GetData(tr, [][]byte{buf}, 7000) // and another part, to the last byte
	require.NoError(t, b.tgt.Flush())
	b.until(iscsi.EventGot)
	assert.Equal(t, m.mem[5000:10000], buf)
	b.tgt.GetData(tr, nil, 12000)
	b.until(iscsi.EventGot)
	assert.Panics(t, func() { b.tgt.GetData(tr, [][]byte{buf}, 1999) }, "unsolicited data is not fetched again")
	assert.Panics(t, func() { b.tgt.GetData(tr, [][]byte{buf}, 7001) }, "nothing beyond EDTL")
	assert.Panics(t, func() { b.tgt.PutData(tr, [][]byte{buf}, math.MaxUint32-1) })
}

func TestReadsStayWithinTheDepth(t *testing.T) {
	out, most := 0, 0
	o := strict
	o.Seed = 3
	o.Limits = new(rdma.Limits)
	*o.Limits = fabric.DefaultLimits()
	o.Limits.MaxMessage = 65536
	c := TargetConfig{Trace: func(e TraceEvent) {
		switch e.Step {
		case TraceReadPosted:
			out++
			most = max(most, out)
			require.LessOrEqual(t, e.Length, uint32(65536))
		case TraceReadDone:
			out--
		}
	}}
	b, p := newTarget(t, o, c, rdma.ConnParam{ResponderResources: 3})
	b.enable(normalParams())
	p.post(4)
	const n = 4 << 20
	m := p.lend(n, rdma.RemoteRead)
	pattern(m.mem, 6)
	buf := make([]byte, n)
	require.NoError(t, b.lis.Register(buf))
	tr := b.command(p, writeCommand(1, m, n, nil))
	b.tgt.GetData(tr, [][]byte{buf}, 0)
	b.tgt.Send(response(77), nil) // passes between the Reads
	require.NoError(t, b.tgt.Flush())
	b.until(iscsi.EventGot)
	assert.Equal(t, 3, most)
	assert.Zero(t, out)
	assert.Equal(t, m.mem, buf)
	assert.Len(t, p.recv().b, fixedSize)
}

func TestDeviceWithOneElementLists(t *testing.T) {
	o := strict
	o.Limits = new(rdma.Limits)
	*o.Limits = fabric.DefaultLimits()
	o.Limits.MaxSGE, o.Limits.MaxReadSGE, o.Limits.ReadSinkNeedsRemoteWrite = 1, 1, true // iWARP
	for _, registered := range []bool{true, false} {
		b, p := newTarget(t, o, TargetConfig{}, refused)
		b.enable(normalParams())
		p.post(4)
		store := make([]byte, 200000)
		if registered {
			require.NoError(t, b.lis.Register(store))
		}
		m := p.lend(50000, rdma.RemoteRead|rdma.RemoteWrite|rdma.LocalWrite)
		pattern(m.mem, 8)
		var bufs [][]byte
		for i := range 5 {
			bufs = append(bufs, store[i*30000:][:10000])
		}
		tr := b.command(p, writeCommand(1, m, 50000, nil))
		b.tgt.GetData(tr, bufs, 0)
		require.NoError(t, b.tgt.Flush())
		b.until(iscsi.EventGot)
		for i, x := range bufs {
			require.Equal(t, m.mem[i*10000:][:10000], x)
		}
		b.tgt.Respond(tr, response(1), nil)
		require.NoError(t, b.tgt.Flush())
		b.until(iscsi.EventReleased)
		clear(m.mem)
		tr = b.command(p, readCommand(2, m, 50000))
		b.tgt.PutData(tr, bufs, 0)
		b.tgt.Respond(tr, response(2), nil)
		require.NoError(t, b.tgt.Flush())
		b.until(iscsi.EventReleased)
		require.Equal(t, bufs[4], m.mem[40000:])
	}
}

func TestTargetTrace(t *testing.T) {
	var steps []TraceEvent
	b, p := newTarget(t, strict, TargetConfig{Trace: func(e TraceEvent) { steps = append(steps, e) }}, refused)
	b.enable(normalParams())
	p.post(2)
	m := p.lend(8, rdma.RemoteRead|rdma.RemoteWrite|rdma.LocalWrite)
	copy(m.mem, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	buf := make([]byte, 8)
	tr := b.command(p, writeCommand(6, m, 8, nil))
	b.tgt.GetData(tr, [][]byte{buf}, 0)
	require.NoError(t, b.tgt.Flush())
	b.until(iscsi.EventGot)
	b.tgt.Respond(tr, response(6), nil)
	require.NoError(t, b.tgt.Flush())
	b.until(iscsi.EventReleased)
	tr = b.command(p, readCommand(7, m, 8))
	b.tgt.PutData(tr, [][]byte{buf}, 0)
	b.tgt.Respond(tr, response(7), nil)
	require.NoError(t, b.tgt.Flush())
	b.until(iscsi.EventReleased)
	require.Equal(t, []TraceEvent{
		{Step: TraceCommandReceived, ITT: 6, Key: m.key, Addr: m.addr},
		{Step: TraceReadPosted, ITT: 6, Key: m.key, Addr: m.addr, Length: 8},
		{Step: TraceReadDone, ITT: 6, Key: m.key, Addr: m.addr, Length: 8, Word: 0x01020304},
		{Step: TraceResponsePosted, ITT: 6, Length: fixedSize},
		{Step: TraceSendDone, ITT: 6},
		{Step: TraceCommandReceived, ITT: 7, Key: m.key, Addr: m.addr},
		{Step: TraceWritePosted, ITT: 7, Key: m.key, Addr: m.addr, Length: 8, Word: 0x01020304},
		{Step: TraceResponsePosted, ITT: 7, Length: fixedSize},
		{Step: TraceSendDone, ITT: 7},
	}, steps)
}
