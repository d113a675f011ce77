package iser

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// What a command does not offer is not used.
func TestMemoryThatWasNotOffered(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, agreed)
	b.enable(normalParams())
	m := p.lendOnce(4096, rdma.RemoteWrite|rdma.RemoteRead)
	read, write := readCommand(1, m, 4096), writeCommand(1, m, 4096, nil)
	for name, c := range map[string]struct {
		w              func() wireCommand
		canPut, canGet bool
	}{
		"read":            {func() wireCommand { return read }, true, false},
		"write":           {func() wireCommand { return write }, false, true},
		"read, RSV off":   {func() wireCommand { w := read; w.Flags = 0; return w }, false, false},
		"write, WSV off":  {func() wireCommand { w := write; w.Flags = 0; return w }, false, false},
		"read, STag 0":    {func() wireCommand { w := read; w.ReadSTag = 0; return w }, false, false},
		"write, STag 0":   {func() wireCommand { w := write; w.WriteSTag = 0; return w }, false, false},
		"read, wraps":     {func() wireCommand { w := read; w.ReadBase = math.MaxUint64 - 4095; return w }, false, false},
		"read, just fits": {func() wireCommand { w := read; w.ReadBase = math.MaxUint64 - 4096; return w }, true, false},
		"write, wraps":    {func() wireCommand { w := write; w.WriteBase = math.MaxUint64 - 4095; return w }, false, false},
		"all inline": {func() wireCommand {
			w := writeCommand(1, lent{}, 4096, make([]byte, 4096))
			return w
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p.post(1)
			tr := b.command(p, c.w())
			assert.Equal(t, c.canPut, b.tgt.CanPut(tr))
			assert.Equal(t, c.canGet, b.tgt.CanGet(tr))
			b.tap.take()
			b.tgt.Respond(tr, response(1), nil)
			require.NoError(t, b.tgt.Flush())
			a := p.recv()
			b.until(iscsi.EventReleased)
			ops := b.tap.take()
			require.Len(t, ops, 1)
			if a.invalidated {
				require.Contains(t, []string{"read", "write", "read, wraps", "write, wraps", "read, just fits"}, name)
				m = p.lendOnce(4096, rdma.RemoteWrite|rdma.RemoteRead)
				read, write = readCommand(1, m, 4096), writeCommand(1, m, 4096, nil)
			}
		})
	}
	// An engine that does not ask loses the connection, not somebody's memory.
	w := read
	w.Flags = 0
	tr := b.command(p, w)
	b.tap.take()
	b.tgt.PutData(tr, [][]byte{make([]byte, 4096)}, 0)
	b.tgt.Respond(tr, response(1), nil)
	require.ErrorIs(t, b.tgt.Flush(), ErrProtocol)
	require.Empty(t, b.tap.take())
	evs, err := b.fails()
	require.ErrorIs(t, err, ErrProtocol)
	require.Len(t, evs, 1)
	require.Equal(t, iscsi.EventReleased, evs[0].Kind)
}

func TestInvalidationIsOnlyOfTheTasksOwnKey(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, agreed)
	b.enable(normalParams())
	check := func(name string, w wireCommand, bhs *[iscsi.BHSSize]byte, want uint32) {
		t.Helper()
		p.post(1)
		tr := b.command(p, w)
		if bhs == nil {
			bhs = response(w.ITT)
		}
		if !w.Final {
			tr.Unsolicited = w.EDTL
		}
		b.tgt.Respond(tr, bhs, nil)
		require.NoError(t, b.tgt.Flush())
		a := p.recv()
		b.until(iscsi.EventReleased)
		assert.Equal(t, want != 0, a.invalidated, name)
		assert.Equal(t, want, a.key, name)
	}
	m, m2 := p.lendOnce(8192, rdma.RemoteWrite), p.lendOnce(8192, rdma.RemoteRead)
	check("a read, though nothing was written", readCommand(1, m, 8192), nil, m.key)
	check("a write without inline data", writeCommand(2, m2, 8192, nil), nil, m2.key)
	m, m2 = p.lendOnce(8192, rdma.RemoteWrite), p.lendOnce(8192, rdma.RemoteRead)
	check("a write with partial inline data", writeCommand(3, m2, 8192, make([]byte, 512)), nil, 0)
	out := writeCommand(13, m2, 8192, nil)
	out.Final = false // all of it in Data-Outs
	check("a write with unsolicited data", out, nil, 0)
	check("a write all inline that still has a key", writeCommand(4, m2, 512, make([]byte, 512)), nil, 0)
	both := readCommand(5, m, 8192)
	both.Flags, both.WriteSTag, both.WriteBase = both.Flags|WriteValid, m2.key, m2.addr
	check("a read with both keys", both, nil, m.key)
	m = p.lendOnce(8192, rdma.RemoteWrite)
	both = writeCommand(6, m2, 8192, make([]byte, 512))
	both.Flags, both.ReadSTag, both.ReadBase = both.Flags|ReadValid, m.key, m.addr
	check("a write with both keys and inline data", both, nil, 0)
	plain := writeCommand(7, m2, 8192, nil)
	plain.Write = false
	check("a command without data", plain, nil, 0)
	none := readCommand(8, m, 0)
	check("a read of nothing", none, nil, 0)
	zero := readCommand(9, m, 8192)
	zero.ReadSTag = 0
	check("key 0", zero, nil, 0)
	for _, op := range []iscsi.Opcode{iscsi.OpTMFResponse, iscsi.OpNOPIn, iscsi.OpLogoutResp, iscsi.OpTextResponse, iscsi.OpReject} {
		bhs := response(10)
		bhs[0] = byte(op)
		check(op.String(), readCommand(10, m, 8192), bhs, 0)
	}
	check("a response of another task", readCommand(11, m, 8192), response(12), 0)
	require.Empty(t, p.bad)
}

func TestNothingIsInvalidatedUnlessAgreed(t *testing.T) {
	for _, c := range []struct { // field report DC-08: the peer refuses, it says nothing, we refuse
		peer rdma.ConnParam
		ours TargetConfig
	}{{refused, TargetConfig{}}, {rdma.ConnParam{ResponderResources: 1}, TargetConfig{}}, {agreed, TargetConfig{NoInvalidate: true}}} {
		b, p := newTarget(t, strict, c.ours, c.peer)
		b.enable(normalParams())
		m := p.lendOnce(8192, rdma.RemoteWrite)
		for i := range uint32(50) {
			p.post(1)
			tr := b.command(p, readCommand(i, m, 8192))
			b.tgt.Respond(tr, response(i), nil)
			require.NoError(t, b.tgt.Flush())
			require.False(t, p.recv().invalidated)
		}
	}
}

func TestWrongKeysEndTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		write  bool
		lend   rdma.Access
		spoil  func(w *wireCommand)
		work   string
		status rdma.Status
	}{
		"read, wrong key":     {false, rdma.LocalWrite | rdma.RemoteWrite, func(w *wireCommand) { w.ReadSTag ^= 0x5500 }, "RDMA Write", rdma.RemAccessErr},
		"read, no right":      {false, rdma.LocalWrite | rdma.RemoteRead, func(*wireCommand) {}, "RDMA Write", rdma.RemAccessErr},
		"read, region short":  {false, rdma.LocalWrite | rdma.RemoteWrite, func(w *wireCommand) { w.EDTL++ }, "RDMA Write", rdma.RemAccessErr},
		"write, wrong key":    {true, rdma.RemoteRead, func(w *wireCommand) { w.WriteSTag ^= 0x5500 }, "RDMA Read", rdma.RemAccessErr},
		"write, no right":     {true, rdma.LocalWrite | rdma.RemoteWrite, func(*wireCommand) {}, "RDMA Read", rdma.RemAccessErr},
		"write, region short": {true, rdma.RemoteRead, func(w *wireCommand) { w.EDTL++ }, "RDMA Read", rdma.RemAccessErr},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newTarget(t, strict, TargetConfig{}, refused)
			b.enable(normalParams())
			p.post(2)
			m := p.lend(8192, c.lend)
			w := readCommand(0xabc, m, 8192)
			if c.write {
				w = writeCommand(0xabc, m, 8192, nil)
			}
			c.spoil(&w)
			tr := b.command(p, w)
			bufs := [][]byte{pattern(make([]byte, w.EDTL), 1)}
			if c.write {
				b.tgt.GetData(tr, bufs, 0)
			} else {
				b.tgt.PutData(tr, bufs, 0)
				b.tgt.Respond(tr, response(0xabc), nil)
			}
			_ = b.tgt.Flush()
			evs, err := b.fails()
			var ce *CompletionError
			require.ErrorAs(t, err, &ce)
			assert.Equal(t, c.work, ce.Work)
			assert.Equal(t, c.status, ce.Status)
			assert.EqualValues(t, 0xabc, ce.ITT)
			assert.Contains(t, err.Error(), "for task 00000abc")
			if c.write {
				require.Empty(t, evs, "no EventGot of data that did not come")
				b.tgt.Abort(tr)
			}
			if len(evs) == 0 {
				evs = b.wait(time.Second)
			}
			require.Len(t, evs, 1)
			require.Equal(t, iscsi.EventReleased, evs[0].Kind)
			require.Zero(t, tr.DM)
			require.Empty(t, b.wait(time.Second))
			require.ErrorAs(t, b.err, &ce)
		})
	}
}

func TestSendWithInvalidateThatTheDeviceCannot(t *testing.T) {
	o := strict
	o.Fault = func(_ uint32, wr *rdma.SendWR) (f fabric.Fault) {
		if wr.Op == rdma.OpSendInv {
			f.Status = rdma.LocQPOpErr
		}
		return f
	}
	b, p := newTarget(t, o, TargetConfig{}, agreed)
	b.enable(normalParams())
	m := p.lendOnce(512, rdma.RemoteWrite)
	p.post(1)
	tr := b.command(p, readCommand(0x77, m, 512))
	b.tgt.Respond(tr, response(0x77), nil)
	_ = b.tgt.Flush()
	_, err := b.fails()
	require.ErrorContains(t, err, "Send with Invalidate for task 00000077")
	require.ErrorContains(t, err, "switch it off")
	var ce *CompletionError
	require.True(t, errors.As(err, &ce))
}
