package iser

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

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
