package rdmatest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

func (s *suite) windowTests() []test {
	tests := []test{
		{"WindowOpensAPieceUntilInvalidated", s.windowLife},
		{"EachBindHasAnotherKey", s.windowKeys},
		{"PeerInvalidates", s.remoteInvalidate},
		{"KeyInvalidatedByThePeerIsDead", func(t *testing.T) { s.deadWindow(t, true) }},
		{"KeyInvalidatedLocallyIsDead", func(t *testing.T) { s.deadWindow(t, false) }},
		{"WindowEndsWhereItsPieceEnds", s.windowBounds},
		{"WindowGrantsNoMoreThanAsked", s.windowRights},
		{"WindowIsOfOneQueuePair", s.windowOfAnotherQP},
		{"PeerInvalidatesTwice", func(t *testing.T) { s.badRemoteInvalidate(t, deadKey) }},
		{"PeerInvalidatesNonsense", func(t *testing.T) { s.badRemoteInvalidate(t, nonsenseKey) }},
		{"PeerInvalidatesAnOrdinaryRegion", func(t *testing.T) { s.badRemoteInvalidate(t, regionKey) }},
		{"LocalInvalidateTwice", func(t *testing.T) { s.badLocalInvalidate(t, deadKey) }},
		{"LocalInvalidateOfNonsense", func(t *testing.T) { s.badLocalInvalidate(t, nonsenseKey) }},
		{"BindOfABoundWindow", s.bindTwice},
		{"BindPastTheRegion", s.bindPastTheRegion},
	}
	for i := range tests {
		run := tests[i].run
		tests[i].run = func(t *testing.T) {
			a, _ := s.pair(t, Config{Depth: 2, Memory: 4096})
			if l := a.EP.Device().Limits(); !l.Windows || !l.SendInvalidate {
				t.Skipf("device %s has no memory windows or no Send with Invalidate", a.EP.Device().Name())
			}
			run(t)
		}
	}
	return tests
}

const (
	windowAt   = 4096
	windowSize = 8192
)

// window makes a window of e's that is closed when the test ends.
func window(t *testing.T, e *End) rdma.Window {
	w, err := e.EP.Device().NewWindow()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func bindWR(e *End, w rdma.Window, access rdma.Access) rdma.SendWR {
	return rdma.SendWR{
		ID: 0xb1d, Op: rdma.OpBindWindow, Flags: rdma.Signaled, Window: w, Region: e.MR, SGL: e.Piece(windowAt, windowSize), Access: access,
	}
}

// bind opens the window's piece of e's memory, and waits until it is open.
func bind(e *End, w rdma.Window, access rdma.Access) uint32 {
	e.Post(bindWR(e, w, access))
	e.Ended(e.Sends(1), rdma.Success, 0xb1d)
	return w.RKey()
}

const remoteRights = rdma.RemoteRead | rdma.RemoteWrite

// windowAddr is the address of byte off of a window of e's. Windows use the addresses of their region.
func windowAddr(e *End, off uint64) uint64 { return e.MR.Addr() + windowAt + off }

// invalidate has a send to b, and invalidate key there.
func invalidate(a, b *End, id uint64, key uint32) rdma.Completion {
	b.Recv(id, 0, 64)
	a.Post(rdma.SendWR{ID: id, Op: rdma.OpSendInv, Flags: rdma.Signaled, InvalidateKey: key, SGL: a.Piece(0, 8)})
	got := b.Recvs(1)
	b.Ended(got, rdma.Success, id)
	a.Ended(a.Sends(1), rdma.Success, id)
	return got[0]
}

func localInvalidate(e *End, key uint32) {
	e.Post(rdma.SendWR{ID: 0x10c, Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvalidateKey: key})
	e.Ended(e.Sends(1), rdma.Success, 0x10c)
}

// windowLife is the whole life of a task's buffer: bound, used, invalidated by the response, and again.
func (s *suite) windowLife(t *testing.T) {
	a, b := s.pair(t, Config{})
	w := window(t, b)
	for i := range uint64(20) {
		key := bind(b, w, remoteRights)
		Fill(a.Memory[:windowSize], i)
		a.Post(
			rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: a.Piece(0, windowSize), RemoteAddr: windowAddr(b, 0), RKey: key},
			rdma.SendWR{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(64<<10, 100), RemoteAddr: windowAddr(b, windowSize-100), RKey: key},
		)
		a.Ended(a.Sends(1), rdma.Success, 2)
		require.Equal(t, a.Memory[windowSize-100:windowSize], a.Memory[64<<10:64<<10+100])
		if i%2 == 0 {
			localInvalidate(b, key)
		} else {
			c := invalidate(a, b, i, key)
			require.True(t, c.Invalidated)
			require.Equal(t, key, c.InvalidatedKey)
		}
		Check(t, b.Memory[windowAt:windowAt+windowSize], i)
	}
}

func (s *suite) windowKeys(t *testing.T) {
	_, b := s.pair(t, Config{})
	w := window(t, b)
	seen := map[uint32]bool{b.MR.RKey(): true, b.MR.LKey(): true}
	for range 20 {
		next := rdma.NextKey(w.RKey())
		key := bind(b, w, remoteRights)
		require.Equal(t, next, key)
		require.False(t, seen[key], "key %#x again", key)
		seen[key] = true
		localInvalidate(b, key)
	}
}

func (s *suite) remoteInvalidate(t *testing.T) {
	a, b := s.pair(t, Config{})
	w, other := window(t, b), window(t, b)
	key, kept := bind(b, w, remoteRights), bind(b, other, remoteRights)
	// The data of the Write before is there, and the key is dead, before the receive completes.
	Fill(a.Memory[:windowSize], 3)
	a.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: a.Piece(0, windowSize), RemoteAddr: windowAddr(b, 0), RKey: key})
	c := invalidate(a, b, 2, key)
	assert.True(t, c.Invalidated)
	assert.Equal(t, key, c.InvalidatedKey)
	Check(t, b.Memory[windowAt:windowAt+windowSize], 3)
	// Only that key: the other window still works.
	a.Post(rdma.SendWR{ID: 4, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: a.Piece(0, 64), RemoteAddr: windowAddr(b, 0), RKey: kept})
	a.Ended(a.Sends(1), rdma.Success, 4)
	// A plain Send invalidates nothing.
	b.Recv(5, 0, 64)
	a.Post(rdma.SendWR{ID: 5, Op: rdma.OpSend, Flags: rdma.Signaled})
	got := b.Recvs(1)
	b.Ended(got, rdma.Success, 5)
	assert.False(t, got[0].Invalidated)
	a.Ended(a.Sends(1), rdma.Success, 5)
	localInvalidate(b, kept)
}

// broken checks that both queue pairs are in the error state. A device that found a remote fault tells
// both; so that it holds for those that tell only one, it disconnects.
func broken(t *testing.T, a, b *End) {
	t.Helper()
	a.Recv(77, 0, 64)
	b.Recv(77, 0, 64)
	require.NoError(t, a.EP.Disconnect())
	a.Flushed(77, 1)
	b.Flushed(77, 1)
}

func (s *suite) deadWindow(t *testing.T, byPeer bool) {
	a, b := s.pair(t, Config{})
	key := bind(b, window(t, b), remoteRights)
	if byPeer {
		invalidate(a, b, 1, key)
	} else {
		localInvalidate(b, key)
	}
	clear(b.Memory)
	a.Post(rdma.SendWR{ID: 9, Op: rdma.OpWrite, SGL: a.Piece(0, 64), RemoteAddr: windowAddr(b, 0), RKey: key})
	a.Ended(a.Sends(1), rdma.RemAccessErr, 9)
	broken(t, a, b)
	require.Equal(t, make([]byte, 64), b.Memory[windowAt:windowAt+64])
}

func (s *suite) windowBounds(t *testing.T) {
	for _, at := range []uint64{windowSize - 63, ^uint64(0)} {
		a, b := s.pair(t, Config{})
		key := bind(b, window(t, b), remoteRights)
		a.Post(rdma.SendWR{ID: 9, Op: rdma.OpWrite, SGL: a.Piece(0, 64), RemoteAddr: windowAddr(b, at), RKey: key})
		a.Ended(a.Sends(1), rdma.RemAccessErr, 9)
		broken(t, a, b)
	}
}

func (s *suite) windowRights(t *testing.T) {
	for _, c := range []struct {
		access rdma.Access
		op     rdma.OpCode
	}{{rdma.RemoteRead, rdma.OpWrite}, {rdma.RemoteWrite, rdma.OpRead}} {
		a, b := s.pair(t, Config{})
		key := bind(b, window(t, b), c.access)
		a.Post(rdma.SendWR{ID: 9, Op: c.op, SGL: a.Piece(0, 64), RemoteAddr: windowAddr(b, 0), RKey: key})
		a.Ended(a.Sends(1), rdma.RemAccessErr, 9)
		broken(t, a, b)
	}
}

func (s *suite) windowOfAnotherQP(t *testing.T) {
	l := s.listen(t)
	_, b1 := ConnectTo(soon(t), t, s.p, l, Config{})
	a2, b2 := ConnectTo(soon(t), t, s.p, l, Config{})
	key := bind(b1, window(t, b1), remoteRights)
	a2.Post(rdma.SendWR{ID: 9, Op: rdma.OpWrite, SGL: a2.Piece(0, 64), RemoteAddr: windowAddr(b1, 0), RKey: key})
	a2.Ended(a2.Sends(1), rdma.RemAccessErr, 9)
	broken(t, a2, b2)
	localInvalidate(b1, key)
}

// Keys that cannot be invalidated.
func deadKey(t *testing.T, b *End) uint32 {
	key := bind(b, window(t, b), remoteRights)
	localInvalidate(b, key)
	return key
}

func nonsenseKey(_ *testing.T, b *End) uint32 { return ^b.MR.RKey() }
func regionKey(_ *testing.T, b *End) uint32   { return b.MR.RKey() }

func (s *suite) badRemoteInvalidate(t *testing.T, badKey func(*testing.T, *End) uint32) {
	a, b := s.pair(t, Config{})
	key := badKey(t, b)
	b.Recv(1, 0, 64)
	a.Post(
		rdma.SendWR{ID: 5, Op: rdma.OpSendInv, Flags: rdma.Signaled, InvalidateKey: key},
		rdma.SendWR{ID: 6, Op: rdma.OpSend, Flags: rdma.Signaled},
	)
	// The receiver's queue pair fails: that is certain, and its receive ends with an error or is flushed.
	got := b.Recvs(1)[0]
	require.EqualValues(t, 1, got.ID)
	assert.NotEqual(t, rdma.Success, got.Status)
	assert.False(t, got.Invalidated)
	b.Flushed(0, 0)
	// The sender hears "access error" (IBTA) or another NAK. A responder that fails without a NAK leaves
	// it to its retries, or to the disconnect: then it is flushed.
	require.NoError(t, b.EP.Disconnect())
	sent := a.Sends(2)
	assert.Contains(t, []rdma.Status{rdma.RemAccessErr, rdma.RemInvReqErr, rdma.RemOpErr, rdma.RetryExcErr, rdma.WRFlushErr}, sent[0].Status)
	a.Ended(sent[1:], rdma.WRFlushErr, 6)
}

func (s *suite) badLocalInvalidate(t *testing.T, badKey func(*testing.T, *End) uint32) {
	a, b := s.pair(t, Config{})
	key := badKey(t, b)
	b.Post(rdma.SendWR{ID: 5, Op: rdma.OpLocalInv, InvalidateKey: key})
	// Devices name it a bind, an operation or an access error.
	got := b.Sends(1)[0]
	assert.EqualValues(t, 5, got.ID)
	assert.Contains(t, []rdma.Status{rdma.LocQPOpErr, rdma.MWBindErr, rdma.LocProtErr, rdma.LocAccessErr}, got.Status)
	broken(t, b, a)
}

func (s *suite) bindTwice(t *testing.T) {
	a, b := s.pair(t, Config{})
	w := window(t, b)
	bind(b, w, remoteRights)
	b.Post(bindWR(b, w, remoteRights))
	assert.Contains(t, []rdma.Status{rdma.MWBindErr, rdma.LocQPOpErr}, b.Sends(1)[0].Status)
	broken(t, b, a)
}

func (s *suite) bindPastTheRegion(t *testing.T) {
	a, b := s.pair(t, Config{})
	wr := bindWR(b, window(t, b), remoteRights)
	wr.SGL = b.Piece(uint64(len(b.Memory))-10, 11)
	b.Post(wr)
	assert.Contains(t, []rdma.Status{rdma.MWBindErr, rdma.LocQPOpErr, rdma.LocProtErr}, b.Sends(1)[0].Status)
	broken(t, b, a)
}
