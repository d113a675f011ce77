package rdmatest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

func (s *suite) endTests() []test {
	return []test{
		{"ActiveDisconnectFlushesBoth", func(t *testing.T) { s.disconnect(t, true) }},
		{"PassiveDisconnectFlushesBoth", func(t *testing.T) { s.disconnect(t, false) }},
		{"BothDisconnectAtOnce", s.bothDisconnect},
		{"WhatWasSentArrivesBeforeTheEnd", s.sentBeforeTheEnd},
		{"CloseWithWorkOutstanding", s.closeWithWork},
		{"PeerClosesUnderLoad", s.peerCloses},
		{"CloseTwice", s.closeTwice},
		{"CloseWithoutConnection", s.closeWithoutConnection},
	}
}

func (s *suite) disconnect(t *testing.T, active bool) {
	a, b := s.pair(t, Config{})
	for id := range uint64(5) {
		a.Recv(id, 0, 64)
		b.Recv(id, 0, 64)
	}
	first := b
	if active {
		first = a
	}
	require.NoError(t, first.EP.Disconnect())
	a.Flushed(0, 5)
	b.Flushed(0, 5)
	require.NoError(t, a.EP.Disconnect())
	require.NoError(t, b.EP.Disconnect())
	a.Recv(9, 0, 64) // a receive posted now is flushed too
	a.Flushed(9, 1)
}

func (s *suite) bothDisconnect(t *testing.T) {
	for range 10 {
		a, b := s.pair(t, Config{})
		a.Recv(1, 0, 64)
		b.Recv(1, 0, 64)
		var wg sync.WaitGroup
		for _, e := range []*End{a, b, a, b} {
			wg.Go(func() { assert.NoError(t, e.EP.Disconnect()) })
		}
		wg.Wait()
		a.Flushed(1, 1)
		b.Flushed(1, 1)
		a.Close()
		b.Close()
	}
}

// sentBeforeTheEnd: a Send whose completion has been reaped has arrived, whatever comes after.
func (s *suite) sentBeforeTheEnd(t *testing.T) {
	for id := range uint64(20) {
		a, b := s.pair(t, Config{})
		b.Recv(id, 0, 64)
		b.Recv(id+1, 64, 64)
		Fill(a.Memory[:64], id)
		a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		a.Ended(a.Sends(1), rdma.Success, id)
		a.Close()
		b.Ended(b.Recvs(1), rdma.Success, id)
		Check(t, b.Memory[:64], id)
		b.Flushed(id+1, 1)
		b.Close()
	}
}

// closeWithWork closes with Sends that wait for receives and Reads under way; then the memory is the
// caller's again, and the completion queue has nothing to say.
func (s *suite) closeWithWork(t *testing.T) {
	a, b := s.pair(t, Config{})
	for id := range uint64(8) {
		a.Recv(id, 0, 64)
	}
	for range 4 {
		a.Post(
			rdma.SendWR{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(0, 16384), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
			rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 4096)},
		)
	}
	b.Recv(1, 0, 64)
	require.NoError(t, a.EP.Close())
	Fill(a.Memory, 77)
	_, err := a.QP.PostSend([]rdma.SendWR{{Op: rdma.OpSend}})
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = a.QP.PostRecv([]rdma.RecvWR{{}})
	require.ErrorIs(t, err, net.ErrClosed)
	_ = b.Recvs(1) // the peer learns of it
	Check(t, a.Memory, 77)
}

func (s *suite) peerCloses(t *testing.T) {
	const chunk, writes = 16 << 10, 100
	a, b := s.pair(t, Config{})
	a.Recv(1, 0, 64)
	gone := make(chan struct{})
	posted, reaped, failed := 0, 0, 0
	var cs [8]rdma.Completion
	deadline := time.Now().Add(Patience)
	for posted < writes || reaped < posted {
		require.True(t, time.Now().Before(deadline), "%d of %d completed", reaped, posted)
		if posted < writes && posted-reaped < DefaultDepth {
			a.Post(rdma.SendWR{
				ID: uint64(posted), Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: a.Piece(0, chunk), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
			})
			if posted++; posted == writes/2 {
				go func() { defer close(gone); assert.NoError(t, b.EP.Close()) }()
			}
			continue
		}
		require.NoError(t, a.SendCQ.Wait(deadline))
		n, err := a.SendCQ.Poll(cs[:])
		require.NoError(t, err)
		for _, c := range cs[:n] {
			require.EqualValues(t, reaped, c.ID, "in order")
			reaped++
			if c.Status != rdma.Success {
				failed++
				continue
			}
			require.Zero(t, failed, "success after an error")
		}
	}
	<-gone
	require.NoError(t, a.EP.Disconnect())
	require.Equal(t, rdma.WRFlushErr, a.Recvs(1)[0].Status)
}

func (s *suite) closeTwice(t *testing.T) {
	a, b := s.pair(t, Config{})
	for _, e := range []*End{a, b} {
		require.NoError(t, e.EP.Close())
		require.NoError(t, e.EP.Close())
		require.NoError(t, e.EP.Disconnect())
	}
}

func (s *suite) closeWithoutConnection(t *testing.T) {
	l := s.listen(t)
	ep, err := s.p.Resolve(soon(t), l.Addr())
	require.NoError(t, err)
	require.NoError(t, ep.Close()) // without a queue pair
	a := s.dial(t, l.Addr())
	a.Recv(1, 0, 64)
	a.Close() // with one, and with receives
}
