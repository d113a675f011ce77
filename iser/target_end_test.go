package iser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

func TestAbort(t *testing.T) {
	o := strict
	o.Seed = 11
	b, p := newTarget(t, o, TargetConfig{ReadDepth: 2}, refused)
	b.enable(normalParams())
	p.post(4)
	m := p.lend(8<<20, rdma.RemoteRead|rdma.RemoteWrite|rdma.LocalWrite)
	t.Run("while data is fetched", func(t *testing.T) {
		tr := b.command(p, writeCommand(1, m, 8<<20, nil))
		buf := make([]byte, 8<<20)
		b.tgt.GetData(tr, [][]byte{buf}, 0)
		require.NoError(t, b.tgt.Flush())
		require.Equal(t, 2, b.tgt.readsOut)
		b.tgt.Abort(tr)
		ev := b.until(iscsi.EventReleased)
		require.Same(t, tr, ev.Transfer)
		require.Zero(t, b.tgt.readsOut, "no Read is in flight after that")
		b.idle()
	})
	t.Run("with data that was put", func(t *testing.T) {
		tr := b.command(p, readCommand(2, m, 4096))
		b.tap.take()
		b.tgt.PutData(tr, [][]byte{make([]byte, 4096)}, 0)
		b.tgt.Abort(tr)
		require.NoError(t, b.tgt.Flush())
		b.until(iscsi.EventReleased)
		require.Empty(t, b.tap.take())
		b.idle()
	})
	t.Run("of a task that has done nothing", func(t *testing.T) {
		tr := &iscsi.Transfer{ITT: 3}
		b.tgt.Abort(tr)
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
		require.Zero(t, tr.DM)
	})
	t.Run("of a task that waits behind another", func(t *testing.T) {
		tr, behind := b.command(p, writeCommand(4, m, 4<<20, nil)), b.command(p, writeCommand(5, m, 4096, nil))
		b.tgt.GetData(tr, [][]byte{make([]byte, 4<<20)}, 0)
		b.tgt.GetData(behind, [][]byte{make([]byte, 4096)}, 0)
		require.NoError(t, b.tgt.Flush())
		b.tgt.Abort(behind)
		require.Same(t, behind, b.until(iscsi.EventReleased).Transfer)
		require.Same(t, tr, b.until(iscsi.EventGot).Transfer)
		b.idle()
	})
}

func TestReleasesAreDueAfterTheEnd(t *testing.T) {
	for seed := range uint64(20) {
		o := strict
		o.Seed = seed
		b, p := newTarget(t, o, TargetConfig{Window: 8, sendDepth: 6}, refused)
		b.enable(normalParams())
		p.post(8)
		m := p.lend(65536, rdma.RemoteRead|rdma.RemoteWrite|rdma.LocalWrite)
		store := make([]byte, 200000)
		require.NoError(t, b.lis.Register(store))
		var apart [][]byte // 10 messages: more than the send queue holds
		for i := range 160 {
			apart = append(apart, store[i*1000:][:400])
		}
		live := map[*iscsi.Transfer]bool{}
		for i := range uint32(8) {
			w := readCommand(i, m, 65536)
			if i%4 == 3 {
				w = writeCommand(i, m, 65536, nil)
			}
			tr := b.command(p, w)
			require.NoError(t, b.tgt.Flush())
			live[tr] = true
			if i%4 == 3 {
				b.tgt.GetData(tr, split(make([]byte, 65536), 1000), 0)
				b.tgt.Abort(tr)
				continue
			}
			if i%2 == 0 {
				b.tgt.PutData(tr, apart, 0)
			} else {
				b.tgt.PutData(tr, split(make([]byte, 65536), 1000), 0)
			}
			b.tgt.Respond(tr, response(i), nil)
		}
		_ = b.tgt.Flush()
		require.NoError(t, p.ep.Disconnect())
		for b.err == nil {
			// One at a time, so that the completions behind an event are still to come.
			evs := b.kept
			if b.kept = nil; len(evs) == 0 {
				var n int
				n, b.err = b.tgt.Wait(b.evs[:1], time.Now().Add(time.Second))
				evs = b.evs[:n]
			}
			for _, ev := range evs {
				require.Equal(t, iscsi.EventReleased, ev.Kind)
				require.True(t, live[ev.Transfer], "released twice")
				delete(live, ev.Transfer)
				for i := range b.tgt.ops.all {
					if k := b.tgt.ops.all[i].task; k != nil {
						require.NotNil(t, k.t, "released while the device uses its memory")
						require.NotSame(t, ev.Transfer, k.t, "released while the device uses its memory")
					}
				}
			}
			_ = b.tgt.Flush()
		}
		require.ErrorIs(t, b.err, io.EOF)
		require.Empty(t, live)
		require.Empty(t, b.wait(time.Second))
		require.ErrorIs(t, b.err, io.EOF)
		require.ErrorIs(t, b.tgt.Flush(), io.EOF)
		require.NoError(t, b.tgt.Close())
		_, err := b.tgt.Wait(b.evs[:], time.Time{})
		require.Error(t, err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	m := p.lend(65536, rdma.RemoteRead)
	tr := b.command(p, writeCommand(1, m, 65536, nil))
	b.tgt.GetData(tr, [][]byte{make([]byte, 65536)}, 0)
	done := make(chan struct{})
	go func() { // others may wake it at any time
		for range 1000 {
			b.tgt.Wake()
		}
		close(done)
	}()
	require.NoError(t, b.tgt.Close())
	require.NoError(t, b.tgt.Close())
	<-done
	b.tgt.Wake()
	for range 2 {
		n, err := b.tgt.Wait(make([]iscsi.Event, 4), time.Time{})
		require.Zero(t, n)
		require.ErrorIs(t, err, net.ErrClosed)
	}
	require.ErrorIs(t, b.tgt.Flush(), net.ErrClosed)
	b.tgt.Send(response(1), nil)
	b.tgt.Respond(&iscsi.Transfer{}, response(1), nil)
	b.tgt.Abort(&iscsi.Transfer{})
	p.close()
	require.NoError(t, b.lis.Close())
	for range 5 { // what test cleanups close again
		_ = b.lis.Close()
	}
	g := b.f.Gauges()
	require.Zero(t, g.QueuePairs+g.CompletionQueues+g.Endpoints+g.Listeners)
}

func TestWakeEndsWait(t *testing.T) {
	b, _ := newTarget(t, strict, TargetConfig{}, refused)
	for range 100 {
		go b.tgt.Wake()
		n, err := b.tgt.Wait(make([]iscsi.Event, 1), time.Time{})
		require.NoError(t, err)
		require.Zero(t, n)
	}
	start := time.Now()
	n, err := b.tgt.Wait(make([]iscsi.Event, 1), start.Add(time.Millisecond))
	require.NoError(t, err)
	require.Zero(t, n)
	require.GreaterOrEqual(t, time.Since(start), time.Millisecond)
}

// The device has taken a chain's Writes but not its Send when the connection dies. No completion tells
// when it is done with their memory.
func TestMemoryOfHalfAChainIsHeld(t *testing.T) {
	o := strict
	o.Seed = 1
	full := false
	o.Fault = func(_ uint32, wr *rdma.SendWR) (f fabric.Fault) {
		if full && wr.Op == rdma.OpSend && wr.ID != sendID {
			f.Post = rdma.ErrQueueFull
		}
		return f
	}
	b, p := newTarget(t, o, TargetConfig{}, refused)
	b.enable(normalParams())
	p.post(2)
	m := p.lend(4096, rdma.LocalWrite|rdma.RemoteWrite)
	tr := b.command(p, readCommand(1, m, 4096))
	other := b.command(p, readCommand(2, m, 4096))
	full = true
	for _, x := range []*iscsi.Transfer{tr, other} {
		b.tgt.PutData(x, [][]byte{make([]byte, 4096)}, 0)
		b.tgt.Respond(x, response(x.ITT), nil)
	}
	require.NoError(t, b.tgt.Flush())
	require.NoError(t, p.ep.Disconnect())
	evs, err := b.fails()
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, evs, 1)
	require.Same(t, other, evs[0].Transfer, "of the other chain nothing was taken")
	require.NotZero(t, tr.DM)
}

// The connection dies of the first RDMA Write of a step, while the step's last one is outstanding.
func TestMemoryOfAStepIsHeldUntilItsCompletion(t *testing.T) {
	o := strict
	o.Fault = func(_ uint32, wr *rdma.SendWR) (f fabric.Fault) {
		if wr.Op == rdma.OpWrite {
			f.Status = rdma.RemAccessErr
		}
		return f
	}
	b, p := newTarget(t, o, TargetConfig{Window: 2, sendDepth: 4}, refused)
	b.enable(normalParams())
	m := p.lend(65536, rdma.LocalWrite|rdma.RemoteWrite)
	tr := b.command(p, readCommand(1, m, 65536))
	store := make([]byte, 200000)
	require.NoError(t, b.lis.Register(store))
	var apart [][]byte // 10 messages
	for i := range 160 {
		apart = append(apart, store[i*1000:][:400])
	}
	b.tgt.PutData(tr, apart, 0)
	b.tgt.Respond(tr, response(1), nil)
	require.NoError(t, b.tgt.Flush())
	require.Equal(t, 1, b.tgt.onWire)
	n, err := b.tgt.Wait(b.evs[:1], time.Now().Add(patience)) // completion by completion
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Same(t, tr, b.evs[0].Transfer)
	require.Zero(t, b.tgt.onWire, "released while the device uses its memory")
	_, err = b.tgt.Wait(b.evs[:1], time.Now().Add(patience))
	var ce *CompletionError
	require.ErrorAs(t, err, &ce)
	require.EqualValues(t, 1, ce.ITT)
}

func TestRealErrorsReplaceFlushes(t *testing.T) {
	b, _ := newTarget(t, strict, TargetConfig{}, refused)
	real := &CompletionError{Work: "Send", Status: rdma.RetryExcErr}
	b.tgt.fail(fmt.Errorf("flushed: %w", io.EOF))
	b.tgt.fail(real)
	b.tgt.fail(errors.New("later"))
	require.Equal(t, error(real), b.tgt.err)
	require.NoError(t, b.tgt.Close())
	require.Equal(t, error(real), b.tgt.err)
}
