package iser

import (
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
