package iser

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

func TestDetachedBuffersAreNotTouched(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1})
	params := normalParams()
	b.enable(params)
	p.post(4)
	in := make([]byte, 512)
	tr := b.command(1, in, nil)
	out := pattern(make([]byte, 9000), 4)
	want := append([]byte(nil), out...)
	waiting := b.command(2, nil, out)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	b.ini.Detach(tr)
	b.ini.Detach(tr)
	b.ini.Detach(waiting)
	clear(out) // the caller has its buffer back
	p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 512), 1))
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Zero(t, b.ini.Received(tr))
	require.Equal(t, make([]byte, 512), in)
	require.NoError(t, b.ini.Flush())
	b.until(iscsi.EventReleased)
	require.Zero(t, b.ini.sink.live, "the response has come, and the key is dead: its memory is free")
	require.NoError(t, b.ini.Flush())
	m, _ = received(t, p.recv())
	require.Equal(t, want, p.get(m.WriteSTag, m.WriteBase, 9000), "it still sends what it was given")
}

func TestDetachAmidUnsolicitedData(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1, PartialImmediate: true})
	params := normalParams()
	params.InitialR2T, params.FirstBurstLength, params.MaxSendData = false, 65536, 512
	b.enable(params)
	p.post(200)
	out := pattern(make([]byte, 70000), 4)
	want := append([]byte(nil), out...)
	tr := b.command(2, nil, out)
	require.NoError(t, b.ini.Flush())
	require.True(t, tr.DM.Ptr.(*command).queued, "the send slots do not suffice for all at once")
	for range b.ini.posted { // whatever may arrive can be answered all the same
		b.ini.Send(testText(), nil)
	}
	require.NoError(t, b.ini.Flush())
	b.ini.Detach(tr)
	clear(out)
	m, _ := received(t, p.recv())
	data := m.Data
	for len(data) < 65536 {
		if p.poll(); len(p.got) == 0 {
			require.Empty(t, b.wait(time.Millisecond))
			continue
		}
		d, _ := received(t, p.recv())
		data = append(data, d.Data...)
	}
	require.Equal(t, want[:65536], data)
	require.Equal(t, want[65536:], p.get(m.WriteSTag, m.WriteBase, 70000-65536))
}

// Where keys are permanent, what the peer may still write to is not used again.
func TestForgottenMemoryIsQuarantined(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{PoolBytes: 2 << 20, NoInvalidate: true})
	b.enable(normalParams())
	p.post(40)
	var lost []message
	for i := range uint32(4) { // all of the pool
		tr := b.command(i, make([]byte, 256<<10), nil)
		require.NoError(t, b.ini.Flush())
		m, _ := received(t, p.recv())
		lost = append(lost, m)
		b.ini.Detach(tr)
		b.ini.Forget(tr)
		b.ini.Forget(tr)
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
	}
	require.Zero(t, b.ini.sink.live)
	require.EqualValues(t, 1<<20, b.ini.sink.lost)
	in := make([]byte, 4096)
	tr := b.command(9, in, nil) // gets memory of its own
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	for _, l := range lost { // late data of the forgotten ones does no harm
		p.put(l.ReadSTag, l.ReadBase, pattern(make([]byte, 8000), 666))
	}
	require.Empty(t, p.bad)
	p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 4096), 1))
	p.answer(iscsi.SCSIResponse{ITT: 0})
	require.Nil(t, b.until(iscsi.EventPDU).Transfer, "the response of a forgotten task is of no task")
	p.answer(iscsi.SCSIResponse{ITT: 9})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Equal(t, pattern(make([]byte, 4096), 1), in)
	// When that is lost as well, nothing but a new connection helps.
	for i := range uint32(100) {
		tr := b.command(100+i, make([]byte, 256<<10), nil)
		if b.ini.Flush() != nil {
			break
		}
		p.recv()
		b.ini.Forget(tr)
	}
	_, err := b.fails()
	require.ErrorIs(t, err, errPoolLost)
}

// A thousand aborted commands of 512 KiB in a pool for two of them: their keys end, and the memory is used again.
func TestForgottenMemoryComesBackWithItsKey(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{PoolBytes: 2 << 20})
	b.enable(normalParams())
	for i := range uint32(1000) {
		p.post(1)
		var tr *iscsi.Transfer
		if i%2 == 0 {
			tr = b.command(i, make([]byte, 512<<10), nil)
		} else {
			tr = b.command(i, nil, make([]byte, 512<<10))
		}
		require.NoError(t, b.ini.Flush())
		p.recv()
		b.ini.Detach(tr)
		b.ini.Forget(tr)
		require.NoError(t, b.ini.Flush())
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
	}
	require.Zero(t, b.ini.sink.live+b.ini.source.live+b.ini.sink.lost+b.ini.source.lost)
	require.Equal(t, len(b.ini.keys.all), b.ini.keys.free.len())
	p.post(1)
	tr := b.command(2000, make([]byte, 512), nil)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	b.ini.Forget(tr)
	require.NoError(t, b.ini.Flush())
	b.until(iscsi.EventReleased)
	p.put(m.ReadSTag, m.ReadBase, []byte("late")) // and a late Write finds no memory
	require.NotEmpty(t, p.bad)
	require.Equal(t, rdma.RemAccessErr, p.bad[0].Status)
}

func TestForgetBeforeItWasSent(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1})
	b.enable(normalParams())
	p.post(4)
	b.command(1, nil, nil)
	tr := b.command(2, nil, make([]byte, 8192))
	b.command(3, nil, nil)
	require.NoError(t, b.ini.Flush())
	b.ini.Forget(tr)
	require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
	p.answer(iscsi.SCSIResponse{ITT: 1})
	b.until(iscsi.EventPDU)
	require.NoError(t, b.ini.Flush())
	p.recv()
	_, c := received(t, p.recv())
	require.EqualValues(t, 3, c.ITT)
}

// firstOp is the op of the only Send outstanding.
func (i *initiator) firstOp() int {
	for n := range i.ops.all {
		if i.ops.all[n].kind == kindSend {
			return n
		}
	}
	panic("no Send is outstanding")
}

func TestEveryCommandEndsOnceWhenTheConnectionDies(t *testing.T) {
	for seed := range uint64(30) {
		o := strict
		o.Seed = seed
		b, p := newInitiator(t, o, InitiatorConfig{QueueDepth: 6})
		params := normalParams()
		params.InitialR2T = false
		b.enable(params)
		p.post(60)
		live := map[*iscsi.Transfer]bool{}
		for i := range uint32(10) {
			live[b.command(i, nil, make([]byte, 20000*(i%3)+1))] = true
		}
		require.NoError(t, b.ini.Flush())
		var evs []iscsi.Event
		for range seed % 4 {
			p.poll()
			p.start(responseBytes(iscsi.SCSIResponse{ITT: uint32(seed) % 3}))
			p.until(func() bool { return p.sent > 0 || len(p.bad) > 0 })
			p.sent = 0
			evs = append(evs, b.wait(0)...)
			if b.ini.Flush() != nil {
				break
			}
		}
		require.NoError(t, p.ep.Disconnect())
		late := b.command(99, make([]byte, 100), nil)
		live[late] = true
		more, err := b.fails()
		require.ErrorIs(t, err, io.EOF)
		for _, ev := range append(evs, more...) {
			if ev.Kind == iscsi.EventPDU {
				continue
			}
			require.Equal(t, iscsi.EventReleased, ev.Kind)
			require.True(t, live[ev.Transfer], "released twice")
			delete(live, ev.Transfer)
		}
		require.Empty(t, live, "seed %d", seed)
		after := b.command(100, nil, nil)
		evs = b.wait(time.Second)
		require.Len(t, evs, 1)
		require.Same(t, after, evs[0].Transfer)
		require.NoError(t, b.ini.Close())
		p.close()
		require.Zero(t, b.f.Gauges().Regions, "all memory is deregistered")
	}
}
