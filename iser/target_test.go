package iser

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// strict is a fabric on which a message without a receive buffer ends the connection.
var strict = fabric.Options{RNRFatal: true, TwoDevices: true}

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

// bad messages, as sent by an initiator.
func TestBadMessagesEndTheConnection(t *testing.T) {
	good := func() []byte { return testMessage(0, 8) }
	with := func(f func(b []byte) []byte) []byte { return f(good()) }
	cases := map[string][]byte{
		"padding of 5":          with(func(b []byte) []byte { return append(b, make([]byte, 5)...) }),
		"DSL 8 too long":        with(func(b []byte) []byte { return b[:len(b)-8] }),
		"DSL 2^24-1":            with(func(b []byte) []byte { b[33], b[34], b[35] = 255, 255, 255; return b }),
		"AHS past the end":      with(func(b []byte) []byte { b[32] = 3; return b }),
		"AHS longer than bound": testMessage(260, 0),
	}
	for _, n := range []int{0, 1, 27, 28, 75} {
		cases[fmt.Sprintf("%d bytes", n)] = good()[:n]
	}
	for op := range 16 {
		if op != opControl {
			cases[fmt.Sprintf("message type %d", op)] = with(func(b []byte) []byte { b[0] = byte(op << 4); return b })
		}
	}
	for name, raw := range cases {
		for _, login := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", login ", login), func(t *testing.T) {
				b, p := newTarget(t, strict, TargetConfig{Window: 1}, refused)
				if !login {
					b.enable(normalParams())
				}
				p.start(raw)
				evs, err := b.fails()
				require.ErrorIs(t, err, ErrProtocol)
				require.Empty(t, evs)
				p.post(1)
				p.until(func() bool { return len(p.bad) > 0 }) // it ended for the peer as well
			})
		}
	}
}

func TestTolerance(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{Window: 1}, refused)
	b.enable(normalParams())
	for pad := range maxPad + 1 {
		p.send(append(testMessage(8, 5), make([]byte, pad)...))
		ev := b.until(iscsi.EventPDU)
		require.Len(t, ev.Data, 5)
		require.Len(t, ev.AHS, 8)
		require.NoError(t, b.tgt.Flush())
	}
	raw := testMessage(0, 0)
	raw[0] |= 3
	raw[1], raw[2], raw[3] = 1, 2, 3
	p.send(raw)
	b.until(iscsi.EventPDU)
}

func TestOldHeaderIsNamed(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	raw := make([]byte, 12+iscsi.BHSSize+200)
	raw[0], raw[12] = 0x10, 0x43
	p.start(raw)
	_, err := b.fails()
	require.ErrorContains(t, err, "RFC 5046")
}

func TestMessageLongerThanTheBuffer(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	raw := append(testMessage(256, 8192), make([]byte, recvSize)...)[:recvSize]
	p.send(append([]byte(nil), raw[:fixedSize+256+8192]...))
	b.until(iscsi.EventPDU) // the longest legal one
	require.NoError(t, b.tgt.Flush())
	long := make([]byte, recvSize+1)
	mr, err := p.dev.Register(long, 0)
	require.NoError(t, err)
	_, err = p.qp.PostSend([]rdma.SendWR{{Op: rdma.OpSend, SGL: []rdma.SGE{rdma.Piece(mr, 0, uint32(len(long)))}}})
	require.NoError(t, err)
	_, err = b.fails()
	var ce *CompletionError
	require.ErrorAs(t, err, &ce)
	assert.Equal(t, rdma.LocLenErr, ce.Status)
	assert.Contains(t, err.Error(), "longer than our receive buffer")
	p.close()
	require.NoError(t, mr.Deregister())
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

func TestAllReceivesAreThereAtTheFinalLoginResponse(t *testing.T) {
	for _, r2t := range []bool{true, false} {
		b, p := newTarget(t, strict, TargetConfig{Window: 32}, refused)
		p.post(2)
		p.send(testMessage(0, 8192)) // login
		require.Len(t, b.until(iscsi.EventPDU).Data, 8192)
		b.tgt.Send(response(1), make([]byte, 8192)) // not final
		require.NoError(t, b.tgt.Flush())
		p.recv()
		p.send(testMessage(0, 10)) // finds a receive again
		b.until(iscsi.EventPDU)
		params := normalParams()
		params.InitialR2T = r2t
		b.enable(params)
		final := response(1)
		final[0] = byte(iscsi.OpLoginResponse)
		b.tgt.Send(final, make([]byte, 4000))
		require.NoError(t, b.tgt.Flush())
		require.Len(t, p.recv().b, fixedSize+4000)
		burst := 32 + reserve + 1 // the login receive stays
		if !r2t {
			burst += 32 * 7 // (65536 - 8192) / 8192
		}
		for range burst {
			p.send(testMessage(0, 0))
		}
		require.Empty(t, p.bad)
		p.start(testMessage(0, 0))
		p.until(func() bool { return len(p.bad) > 0 })
		require.Equal(t, rdma.RNRRetryExcErr, p.bad[0].Status, "the test can see a receive that is missing")
	}
}

func TestDiscoveryHasReceivesAndLongAnswers(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	params := normalParams()
	params.Discovery = true
	b.enable(params)
	for range 20 {
		p.post(1)
		p.send(testMessage(0, 16))
		b.until(iscsi.EventPDU)
		b.tgt.Send(response(1), make([]byte, 8192))
		require.NoError(t, b.tgt.Flush())
		require.Len(t, p.recv().b, fixedSize+8192)
	}
	require.Equal(t, discoveryReceives+1, b.tgt.posted)
}

func TestFullFeaturePDUsAreShort(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	p.post(1)
	b.tgt.Send(response(1), make([]byte, 128))
	require.NoError(t, b.tgt.Flush())
	require.Len(t, p.recv().b, fixedSize+128)
	assert.Panics(t, func() { b.tgt.Send(response(1), make([]byte, 129)) })
}

// A spyQP records the order of posts.
type spyQP struct {
	rdma.QueuePair
	log []string
}

func (q *spyQP) PostSend(wrs []rdma.SendWR) (int, error) {
	q.log = append(q.log, "send")
	for _, w := range wrs {
		if w.Op == rdma.OpSend || w.Op == rdma.OpSendInv {
			if w.Flags != rdma.Signaled|rdma.Solicited {
				q.log = append(q.log, "a Send that is not signalled and solicited")
			}
		} else if w.Op == rdma.OpWrite && w.Flags != 0 {
			q.log = append(q.log, "a signalled Write")
		}
	}
	return q.QueuePair.PostSend(wrs)
}

func (q *spyQP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.log = append(q.log, "receive")
	return q.QueuePair.PostRecv(wrs)
}

func TestARoundIsOnePostAfterTheReceives(t *testing.T) {
	b, p := newTarget(t, strict, TargetConfig{}, refused)
	b.enable(normalParams())
	m := p.lend(4096, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
	p.post(4)
	for i := range uint32(3) {
		p.send(readCommand(i, m, 4096).bytes())
	}
	p.send(writeCommand(3, m, 4096, nil).bytes())
	spy := &spyQP{QueuePair: b.tgt.qp}
	b.tgt.qp = spy
	buf := make([]byte, 4096)
	for _, ev := range b.wait(time.Second) {
		tr := &iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: 4096, Remote: ev.Remote}
		if tr.ITT == 3 {
			b.tgt.GetData(tr, [][]byte{make([]byte, 4096)}, 0)
			continue
		}
		b.tgt.PutData(tr, [][]byte{buf}, 0)
		b.tgt.Respond(tr, response(tr.ITT), nil)
	}
	require.NoError(t, b.tgt.Flush())
	require.Equal(t, []string{"receive", "send"}, spy.log)
	b.until(iscsi.EventGot)
}

// A window that is always full, with an initiator that has not one receive or send to spare.
func TestReceiveIsPostedBeforeTheResponse(t *testing.T) {
	const window = 4
	b, p := newTarget(t, strict, TargetConfig{Window: window}, refused)
	b.enable(normalParams())
	m := p.lend(512, rdma.LocalWrite|rdma.RemoteWrite)
	data := make([]byte, 512)
	require.NoError(t, b.lis.Register(data))
	var trs []*iscsi.Transfer
	for i := range uint32(window + reserve + 1) { // every receive is taken
		p.post(1)
		p.send(readCommand(i, m, 512).bytes())
	}
	for len(trs) < window+reserve+1 {
		for _, ev := range b.wait(time.Second) {
			trs = append(trs, &iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: 512, Remote: ev.Remote})
		}
	}
	for i := range 2000 {
		tr := trs[i%len(trs)]
		b.tgt.PutData(tr, [][]byte{data}, 0)
		b.tgt.Respond(tr, response(tr.ITT), nil)
		require.NoError(t, b.tgt.Flush())
		p.recv()
		p.post(1)
		// The ITT is used again at once, before the target has seen its Send complete.
		w := readCommand(tr.ITT, m, 512).bytes()
		p.send(w)
		*tr = iscsi.Transfer{ITT: tr.ITT, EDTL: 512}
		for got := 0; got < 2; {
			for _, ev := range b.wait(time.Second) {
				got++
				if ev.Kind == iscsi.EventPDU {
					tr.Remote = ev.Remote
				}
			}
		}
	}
}

func TestShortSendQueueKeepsTheOrder(t *testing.T) {
	for _, depth := range []int{4, 5, 8, 33} {
		for _, registered := range []bool{true, false} {
			t.Run(fmt.Sprint(depth, registered), func(t *testing.T) {
				b, p := newTarget(t, strict, TargetConfig{Window: 16, sendDepth: depth}, refused)
				b.enable(normalParams())
				const n = 10 * 65536
				store := pattern(make([]byte, 2*n), 9)
				if registered {
					require.NoError(t, b.lis.Register(store))
				}
				// Pieces apart, each a message of its own: 10 Writes a task.
				bufs := make([][]byte, 0, 200)
				for i := range 10 * 16 {
					bufs = append(bufs, store[i*8192:][:4096])
				}
				m := p.lend(n, rdma.LocalWrite|rdma.RemoteWrite)
				var trs []*iscsi.Transfer
				for i := range uint32(16) {
					p.post(1)
					trs = append(trs, b.command(p, readCommand(i, m, n)))
					require.NoError(t, b.tgt.Flush())
				}
				b.tap.take()
				for _, tr := range trs {
					b.tgt.PutData(tr, bufs, 0)
					b.tgt.Respond(tr, response(tr.ITT), nil)
				}
				require.NoError(t, b.tgt.Flush())
				assert.False(t, b.tgt.Idle())
				for i := range trs {
					ev := b.until(iscsi.EventReleased)
					require.Same(t, trs[i], ev.Transfer)
					require.NoError(t, b.tgt.Flush())
				}
				assert.True(t, b.tgt.Idle())
				next := uint32(0)
				var written uint64
				for _, o := range b.tap.take() {
					if o.Op == rdma.OpWrite {
						require.Equal(t, m.addr+written, o.Addr)
						written += o.Length
						continue
					}
					require.EqualValues(t, n, written, "a response before its data")
					written = 0
					a := p.recv()
					require.Equal(t, next, iscsi.ITTOf((*[48]byte)(a.b[HeaderSize:])))
					next++
				}
				require.EqualValues(t, 16, next)
				require.Equal(t, store[159*8192:][:4096], m.mem[159*4096:][:4096])
			})
		}
	}
}

func TestQueueFullIsTriedAgain(t *testing.T) {
	refuse := 0
	o := strict
	count := 0
	o.Fault = func(qp uint32, wr *rdma.SendWR) (f fabric.Fault) {
		if wr.Op == rdma.OpWrite || wr.Op == rdma.OpRead || wr.Op == rdma.OpSend && wr.ID != sendID {
			if count++; refuse > 0 && count%2 == 0 {
				refuse--
				f.Post = rdma.ErrQueueFull
			}
		}
		return f
	}
	b, p := newTarget(t, o, TargetConfig{}, refused)
	b.enable(normalParams())
	m := p.lend(65536, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
	pattern(m.mem, 3)
	p.post(40)
	var trs []*iscsi.Transfer
	for i := range uint32(20) {
		trs = append(trs, b.command(p, readCommand(i, m, 4096)))
		require.NoError(t, b.tgt.Flush())
	}
	data := pattern(make([]byte, 4096), 4)
	require.NoError(t, b.lis.Register(data))
	refuse = 25
	for _, tr := range trs {
		b.tgt.PutData(tr, split(data, 2048), 0)
		b.tgt.Respond(tr, response(tr.ITT), nil)
	}
	wr := b.command(p, writeCommand(99, m, 65536, nil))
	buf := make([]byte, 65536)
	b.tgt.GetData(wr, [][]byte{buf}, 0)
	require.NoError(t, b.tgt.Flush())
	released, got := 0, false
	end := time.Now().Add(patience)
	for released < len(trs) || !got {
		require.True(t, time.Now().Before(end))
		for _, ev := range b.wait(time.Second) {
			if ev.Kind == iscsi.EventGot {
				got = true
				continue
			}
			require.Same(t, trs[released], ev.Transfer)
			released++
		}
		require.NoError(t, b.err)
	}
	require.Zero(t, refuse)
	for i := range uint32(20) {
		require.Equal(t, i, iscsi.ITTOf((*[48]byte)(p.recv().b[HeaderSize:])))
	}
	require.Equal(t, m.mem, buf)
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

func TestChainsArePostedWholeOrNotAtAll(t *testing.T) {
	for _, registered := range []bool{true, false} {
		b, p := newTarget(t, strict, TargetConfig{Window: 4, sendDepth: 8}, refused)
		b.enable(normalParams())
		const n = 3 << 20 // in the registered case 3 Writes
		store := make([]byte, n)
		size, want := uint32(n), []int{4, 4, 4}
		if registered {
			require.NoError(t, b.lis.Register(store))
		} else {
			size, want = 4*bounceSize, []int{5, 5, 5} // 4 chunks and the Send
		}
		m := p.lend(n, rdma.LocalWrite|rdma.RemoteWrite)
		p.post(3)
		var trs []*iscsi.Transfer
		for i := range uint32(3) {
			trs = append(trs, b.command(p, readCommand(i, m, size)))
		}
		b.tap.take()
		for _, tr := range trs {
			b.tgt.PutData(tr, [][]byte{store[:size]}, 0)
			b.tgt.Respond(tr, response(tr.ITT), nil)
		}
		require.NoError(t, b.tgt.Flush())
		// What fits of 8 is one chain of 5, or two of 4.
		ops := b.tap.take()
		require.Len(t, ops, 8/want[0]*want[0])
		require.Equal(t, rdma.OpSend, ops[len(ops)-1].Op)
		require.Equal(t, 8-len(ops), b.tgt.credits)
		for range trs {
			b.until(iscsi.EventReleased)
			require.NoError(t, b.tgt.Flush())
		}
		require.Equal(t, 8, b.tgt.credits)
		if !registered {
			require.Equal(t, bounceWrites, b.tgt.bounce.writes)
		}
	}
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

// An initiator that asks and asks but takes no answer is held up before our queue is.
func TestPeerThatTakesNoAnswers(t *testing.T) {
	o := strict
	o.RNRFatal = false
	b, p := newTarget(t, o, TargetConfig{Window: 4}, refused)
	b.enable(normalParams())
	asked := 0
	for quiet := 0; quiet < 3; {
		sent := p.sent
		p.start(testMessage(0, 0))
		for range 10 {
			p.poll()
		}
		evs := b.wait(time.Millisecond)
		require.NoError(t, b.err)
		for range evs {
			b.tgt.Send(response(1), nil)
			asked++
		}
		require.NoError(t, b.tgt.Flush())
		if p.sent == sent && len(evs) == 0 {
			quiet++
		}
		require.Less(t, asked, 1000)
	}
	p.post(asked) // it wakes up: all answers come, and it goes on
	for range asked {
		p.recv()
		for range b.wait(time.Millisecond) {
			b.tgt.Send(response(1), nil)
			p.post(1)
		}
		require.NoError(t, b.tgt.Flush())
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
