package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// manyConnects is how many connections are made one after the other.
const manyConnects = 200

func (s *suite) connectTests() []test {
	return []test{
		{"PrivateDataAndDepthsArrive", s.privateDataArrives},
		{"AddressesMirror", s.addressesMirror},
		{"RejectSaysWhy", s.rejectSaysWhy},
		{"NobodyListens", s.nobodyListens},
		{"NobodyAccepts", s.nobodyAccepts},
		{"CloseEndsAccept", s.closeEndsAccept},
		{"ContextEndsAccept", s.contextEndsAccept},
		{"UnansweredRequestIsRefused", s.unansweredRequest},
		{"PeerThatGaveUpFlushesTheAccepted", s.peerGaveUp},
		{"ManyInARow", s.manyInARow},
	}
}

// arrived checks private data: either exactly what was sent, or, as on InfiniBand, filled with zeros.
func arrived(t *testing.T, want, got []byte, size int) {
	t.Helper()
	if len(got) != len(want) {
		assert.Len(t, got, size)
	}
	require.True(t, bytes.HasPrefix(got, want), "sent % x, got % x", want, got)
	assert.Empty(t, bytes.Trim(got[len(want):], "\x00"))
}

func (s *suite) privateDataArrives(t *testing.T) {
	for _, size := range []int{0, 4, 56} {
		req, rep := bytes.Repeat([]byte{0xc1}, size), bytes.Repeat([]byte{0x81}, size*3)
		ap := rdma.ConnParam{PrivateData: req, ResponderResources: 3, InitiatorDepth: 2}
		pp := rdma.ConnParam{PrivateData: rep, ResponderResources: 2, InitiatorDepth: 1}
		a, b := s.pair(t, Config{Active: &ap, Passive: &pp})
		got := b.EP.Peer()
		arrived(t, req, got.PrivateData, rdma.MaxRequestPrivate)
		assert.EqualValues(t, 2, got.ResponderResources, "Reads the active side may have towards the passive")
		assert.EqualValues(t, 3, got.InitiatorDepth, "Reads the active side can serve")
		got = a.EP.Peer()
		arrived(t, rep, got.PrivateData, rdma.MaxReplyPrivate)
		assert.EqualValues(t, 1, got.ResponderResources)
		assert.EqualValues(t, 2, got.InitiatorDepth)
	}
}

func (s *suite) addressesMirror(t *testing.T) {
	l := s.listen(t)
	require.NotZero(t, l.Addr().Port(), "port 0 picks a free one")
	a, b := ConnectTo(soon(t), t, s.p, l, Config{})
	assert.Equal(t, l.Addr(), a.EP.RemoteAddr())
	assert.Equal(t, l.Addr(), b.EP.LocalAddr())
	assert.Equal(t, a.EP.LocalAddr(), b.EP.RemoteAddr())
	assert.NotEmpty(t, a.EP.Device().Name())
	lim := a.EP.Device().Limits()
	assert.Positive(t, lim.MaxMessage)
	assert.Positive(t, lim.MaxSGE)
	assert.Positive(t, lim.MaxReadSGE)
	assert.Positive(t, lim.MaxQPDepth)
	assert.Positive(t, lim.MaxCQDepth)
	assert.Positive(t, lim.MaxReadDepth)
}

// accept takes the next request in another goroutine and gives it to f.
func accept(t *testing.T, l rdma.Listener, f func(rdma.Endpoint) error) <-chan error {
	ctx, done := soon(t), make(chan error, 1)
	go func() {
		ep, err := l.Accept(ctx)
		if err == nil {
			err = f(ep)
		}
		done <- err
	}()
	return done
}

func (s *suite) rejectSaysWhy(t *testing.T) {
	l := s.listen(t)
	a := s.dial(t, l.Addr())
	a.Recv(1, 0, 64)
	why := []byte("not today")
	rejected := accept(t, l, func(ep rdma.Endpoint) error { return ep.Reject(why) })
	err := a.EP.Connect(soon(t), rdma.ConnParam{ResponderResources: 1})
	require.ErrorIs(t, err, rdma.ErrRejected)
	require.NoError(t, <-rejected)
	var re *rdma.RejectedError
	require.ErrorAs(t, err, &re)
	arrived(t, why, re.Private, rdma.MaxRejectPrivate)
	if !a.EP.Device().Limits().ReadSinkNeedsRemoteWrite { // iWARP has no reasons
		assert.Equal(t, rdma.ReasonConsumer, re.Reason)
	}
	a.Flushed(1, 1)
}

func (s *suite) nobodyListens(t *testing.T) {
	l, err := s.p.Listen(s.addr())
	require.NoError(t, err)
	addr := l.Addr()
	require.NoError(t, l.Close())
	a := s.dial(t, addr)
	err = a.EP.Connect(soon(t), rdma.ConnParam{})
	require.ErrorIs(t, err, rdma.ErrRejected)
	var re *rdma.RejectedError
	if errors.As(err, &re) && !a.EP.Device().Limits().ReadSinkNeedsRemoteWrite {
		assert.Equal(t, rdma.ReasonNoListener, re.Reason)
	}
}

func (s *suite) nobodyAccepts(t *testing.T) {
	l := s.listen(t)
	a := s.dial(t, l.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, a.EP.Connect(ctx, rdma.ConnParam{}), context.DeadlineExceeded)
	require.NoError(t, a.EP.Disconnect())
}

func (s *suite) closeEndsAccept(t *testing.T) {
	l, err := s.p.Listen(s.addr())
	require.NoError(t, err)
	ended := accept(t, l, func(ep rdma.Endpoint) error { return ep.Close() })
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	_, err = l.Accept(soon(t))
	require.ErrorIs(t, err, net.ErrClosed)
}

func (s *suite) contextEndsAccept(t *testing.T) {
	l := s.listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Accept(ctx)
	require.ErrorIs(t, err, context.Canceled)
	ConnectTo(soon(t), t, s.p, l, Config{}) // the listener still works
}

func (s *suite) unansweredRequest(t *testing.T) {
	l := s.listen(t)
	a := s.dial(t, l.Addr())
	closed := accept(t, l, func(ep rdma.Endpoint) error { return ep.Close() })
	require.ErrorIs(t, a.EP.Connect(soon(t), rdma.ConnParam{}), rdma.ErrRejected)
	require.NoError(t, <-closed)
}

func (s *suite) peerGaveUp(t *testing.T) {
	l := s.listen(t)
	a := s.dial(t, l.Addr())
	ctx, giveUp := context.WithCancel(t.Context())
	connected := make(chan error, 1)
	go func() { connected <- a.EP.Connect(ctx, rdma.ConnParam{}) }()
	ep, err := l.Accept(soon(t))
	require.NoError(t, err)
	b := NewEnd(t, ep, Config{})
	defer b.Close()
	b.Recv(1, 0, 64)
	giveUp()
	require.ErrorIs(t, <-connected, context.Canceled)
	a.Close()
	// The reply may find the other side gone at once, or only when it is not answered: some devices say
	// the first from Accept. A peer that says nothing at all is the caller's own deadline to find.
	if err := ep.Accept(rdma.ConnParam{}); err == nil {
		require.NoError(t, ep.Disconnect())
	}
	require.NoError(t, ep.Disconnect())
	require.Equal(t, rdma.WRFlushErr, b.Recvs(1)[0].Status)
}

func (s *suite) manyInARow(t *testing.T) {
	l := s.listen(t)
	for i := range uint64(manyConnects) {
		a, b := ConnectTo(soon(t), t, s.p, l, Config{Depth: 2, Memory: 4096})
		b.Recv(i, 0, 64)
		Fill(a.Memory[:64], i)
		a.Post(rdma.SendWR{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		b.Ended(b.Recvs(1), rdma.Success, i)
		Check(t, b.Memory[:64], i)
		a.Ended(a.Sends(1), rdma.Success, i)
		first, second := a, b
		if i%2 == 1 {
			first, second = b, a
		}
		first.Close()
		second.Close()
	}
}
