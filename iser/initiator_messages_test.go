package iser

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

func TestLoginReceivesAreThereFromTheStart(t *testing.T) {
	const depth = 12
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: depth})
	for i := range 3 { // login answers as long as they get, unasked even
		p.send(testMessage(0, 8192))
		require.Len(t, b.until(iscsi.EventPDU).Data, 8192, i)
		require.NoError(t, b.ini.Flush())
	}
	b.enable(normalParams())
	require.NoError(t, b.ini.Flush())
	for range depth + recvReserve {
		p.send(testMessage(0, 100))
	}
	require.Empty(t, p.bad)
	require.Len(t, b.wait(time.Second), depth+recvReserve)
	require.NoError(t, b.ini.Flush())
	p.send(testMessage(0, 100)) // and they are posted again
	require.Empty(t, p.bad)
}

func TestDiscoveryOfManyAnswers(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 4})
	params := normalParams()
	params.Discovery = true
	b.enable(params)
	for range 100 {
		p.post(1)
		b.ini.Send(response(1), make([]byte, 4000))
		require.NoError(t, b.ini.Flush())
		require.Len(t, p.recv().b, fixedSize+4000)
		p.send(testMessage(0, 8192))
		b.until(iscsi.EventPDU)
		require.NoError(t, b.ini.Flush())
	}
}

func TestBadMessagesOfATarget(t *testing.T) {
	invalid := func(p *peer) {
		p.startOp(rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: 0}, responseBytes(iscsi.SCSIResponse{ITT: 1}))
	}
	plain := func(b []byte) func(*peer) { return func(p *peer) { p.start(b) } }
	opcode := func(op iscsi.Opcode) func(*peer) {
		b := testMessage(0, 0)
		b[HeaderSize] = byte(op)
		return plain(b)
	}
	for name, send := range map[string]func(*peer){
		"Data-In":             opcode(iscsi.OpDataIn),
		"R2T":                 opcode(iscsi.OpR2T),
		"invalidation of 0":   invalid,
		"too short":           plain(testMessage(0, 0)[:75]),
		"too long":            plain(append(testMessage(0, 8), make([]byte, 5)...)),
		"DSL too long":        plain(testMessage(0, 8)[:fixedSize+7]),
		"HelloReply":          plain(append([]byte{0x30}, make([]byte, 100)...)),
		"AHS of 260":          plain(testMessage(260, 0)),
		"nothing":             plain(nil),
		"response, truncated": plain(responseBytes(iscsi.SCSIResponse{ITT: 1})[:60]),
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 2})
			b.enable(normalParams())
			p.post(4)
			in := make([]byte, 100)
			tr := b.command(1, in, nil)
			require.NoError(t, b.ini.Flush())
			p.recv()
			send(p)
			evs, err := b.fails()
			if name == "invalidation of 0" { // the device itself refuses it
				require.Error(t, err)
			} else {
				require.ErrorIs(t, err, ErrProtocol)
			}
			require.Len(t, evs, 1, "the command ends once")
			require.Equal(t, iscsi.EventReleased, evs[0].Kind)
			require.Same(t, tr, evs[0].Transfer)
			require.Zero(t, b.ini.Received(tr))
			require.Empty(t, b.wait(time.Second))
		})
	}
}

// A device that lets an ordinary region be invalidated tells us so; the connection has to end.
func TestInvalidationThatWasRefused(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{NoInvalidate: true})
	b.enable(normalParams())
	p.post(1)
	in := make([]byte, 100)
	b.command(1, in, nil)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	// The fabric, like rxe, would refuse it; siw does not. Hand in what siw would say.
	raw := responseBytes(iscsi.SCSIResponse{ITT: 1})
	var msg message
	require.NoError(t, msg.parse(raw))
	_, ok := b.ini.receive(&msg, &rdma.Completion{Invalidated: true, InvalidatedKey: m.ReadSTag})
	require.False(t, ok)
	evs, err := b.fails()
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, fmt.Sprintf("%08x", m.ReadSTag))
	require.Len(t, evs, 1)
}

func TestPaddingIsTolerated(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	for pad := range maxPad + 1 {
		p.send(append(testMessage(0, 5), make([]byte, pad)...))
		require.Len(t, b.until(iscsi.EventPDU).Data, 5)
		require.NoError(t, b.ini.Flush())
	}
}

func TestUnknownTaskTagsReachTheEngine(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(4)
	tr := b.command(1, make([]byte, 512), nil)
	require.NoError(t, b.ini.Flush())
	p.recv()
	for _, itt := range []uint32{2, iscsi.ReservedTag} {
		p.answer(iscsi.SCSIResponse{ITT: itt})
		require.Nil(t, b.until(iscsi.EventPDU).Transfer)
	}
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	b.until(iscsi.EventReleased)
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Nil(t, b.until(iscsi.EventPDU).Transfer, "a second response is of no task")
}

func TestResponseToACommandThatWasNotSent(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1})
	b.enable(normalParams())
	p.post(4)
	b.command(1, make([]byte, 512), nil)
	b.command(2, make([]byte, 512), nil) // waits
	require.NoError(t, b.ini.Flush())
	p.answer(iscsi.SCSIResponse{ITT: 2})
	evs, err := b.fails()
	require.ErrorIs(t, err, ErrProtocol)
	require.Len(t, evs, 2)
}

// TestKeysThatAreNotTheTargetsToInvalidate is conformance 146: the connection fails, and the data of other commands is
// safe. The device has done it before we hear of it; where the fabric would refuse, what comes is handed in.
func TestKeysThatAreNotTheTargetsToInvalidate(t *testing.T) {
	const first, second, none = 1, 2, 3
	for name, c := range map[string]struct {
		op  iscsi.Opcode
		itt uint32
		key func(one, two uint32) uint32
	}{
		"another command's":       {iscsi.OpSCSIResponse, first, func(_, two uint32) uint32 { return two }},
		"an earlier one":          {iscsi.OpSCSIResponse, first, func(one, _ uint32) uint32 { return one - 1 }},
		"zero":                    {iscsi.OpSCSIResponse, first, func(_, _ uint32) uint32 { return 0 }},
		"of a command without":    {iscsi.OpSCSIResponse, none, func(one, _ uint32) uint32 { return one }},
		"of an unknown command":   {iscsi.OpSCSIResponse, 99, func(one, _ uint32) uint32 { return one }},
		"with a NOP-In":           {iscsi.OpNOPIn, iscsi.ReservedTag, func(one, _ uint32) uint32 { return one }},
		"with a TMF Response":     {iscsi.OpTMFResponse, first, func(one, _ uint32) uint32 { return one }},
		"with a Reject":           {iscsi.OpReject, iscsi.ReservedTag, func(one, _ uint32) uint32 { return one }},
		"with a Login Response":   {iscsi.OpLoginResponse, first, func(one, _ uint32) uint32 { return one }},
		"with an unknown PDU":     {0x3e, first, func(one, _ uint32) uint32 { return one }},
		"with an Async Message":   {iscsi.OpAsync, iscsi.ReservedTag, func(one, _ uint32) uint32 { return one }},
		"with a Logout Response":  {iscsi.OpLogoutResp, first, func(one, _ uint32) uint32 { return one }},
		"with a Text Response":    {iscsi.OpTextResponse, first, func(one, _ uint32) uint32 { return one }},
		"with an R2T, of all":     {iscsi.OpR2T, first, func(one, _ uint32) uint32 { return one }},
		"with Data-In and status": {iscsi.OpDataIn, first, func(one, _ uint32) uint32 { return one }},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, InitiatorConfig{})
			b.enable(normalParams())
			p.post(3)
			in := make([]byte, 600)
			b.command(first, in, nil)
			b.command(second, nil, make([]byte, 8192))
			b.command(none, nil, make([]byte, 100)) // all inline
			require.NoError(t, b.ini.Flush())
			one, _ := received(t, p.recv())
			two, _ := received(t, p.recv())
			var bhs [iscsi.BHSSize]byte
			bhs[0], bhs[1] = byte(c.op), 0x80
			binary.BigEndian.PutUint32(bhs[16:], c.itt)
			var m message
			require.NoError(t, m.parse(append((&Header{}).Append(nil), bhs[:]...)))
			_, ok := b.ini.receive(&m, &rdma.Completion{Invalidated: true, InvalidatedKey: c.key(one.ReadSTag, two.WriteSTag)})
			require.False(t, ok)
			evs, err := b.fails()
			require.ErrorIs(t, err, ErrProtocol)
			for _, ev := range evs {
				require.Equal(t, iscsi.EventReleased, ev.Kind)
			}
			require.Len(t, evs, 3)
			require.Equal(t, make([]byte, 600), in)
		})
	}
}

// TestEachKeyIsInvalidatedOnce is conformance 147: by the response, or else by us; and the command is over then only.
func TestEachKeyIsInvalidatedOnce(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 2})
	b.enable(normalParams())
	for i := range uint32(600) { // more often than a window has keys
		p.post(1)
		in := make([]byte, 600)
		tr := b.command(i, in, nil)
		require.NoError(t, b.ini.Flush())
		m, _ := received(t, p.recv())
		p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 600), i))
		byPeer := i%3 == 0
		wr := rdma.SendWR{Op: rdma.OpSend}
		if byPeer {
			wr = rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: m.ReadSTag}
		}
		p.startOp(wr, responseBytes(iscsi.SCSIResponse{ITT: i}))
		require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
		require.Equal(t, pattern(make([]byte, 600), i), in)
		require.NoError(t, b.ini.Flush())
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
		ops := b.tap.take()
		local := ofKind(ops, rdma.OpLocalInv)
		if byPeer {
			require.Empty(t, local)
		} else {
			require.Len(t, local, 1)
			require.Equal(t, m.ReadSTag, local[0].Key)
		}
		require.Len(t, ofKind(ops, rdma.OpBindWindow), 1)
		p.poll()
		require.Empty(t, p.bad)
	}
}
