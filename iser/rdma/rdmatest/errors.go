package rdmatest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// regionSize is the region that error tests aim at; it lies inside an end's memory, so that what it
// does not cover is memory that exists, and is looked at.
const (
	regionAt   = 16 << 10
	regionSize = 8 << 10
)

// A faulty work request of a, and what the provider must say.
type faulty struct {
	name   string
	access rdma.Access // of b's region; 0: all rights
	// make builds the request; mr is b's region, with regionSize bytes.
	make func(t *testing.T, a, b *End, mr rdma.MemoryRegion) rdma.SendWR
	want rdma.Status
	// remote: the peer has noticed, so its queue pair is in the error state as well.
	remote bool
}

const allRights = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead

func write(a *End, n uint32, addr uint64, key uint32) rdma.SendWR {
	return rdma.SendWR{Op: rdma.OpWrite, SGL: a.Piece(0, n), RemoteAddr: addr, RKey: key}
}

func read(a *End, n uint32, addr uint64, key uint32) rdma.SendWR {
	return rdma.SendWR{Op: rdma.OpRead, SGL: a.Piece(0, n), RemoteAddr: addr, RKey: key}
}

func remoteFaults() []faulty {
	type mr = rdma.MemoryRegion
	return []faulty{
		{"WriteWithForeignKey", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return write(a, 64, m.Addr(), ^m.RKey()) }, rdma.RemAccessErr, true},
		{"WriteWithKeyZero", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return write(a, 64, m.Addr(), 0) }, rdma.RemAccessErr, true},
		{"WriteWithOldChangingPart", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return write(a, 64, m.Addr(), m.RKey()^1) }, rdma.RemAccessErr, true},
		{"WritePastTheEnd", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR {
			return write(a, 64, m.Addr()+regionSize-63, m.RKey())
		}, rdma.RemAccessErr, true},
		{"WriteBeforeTheStart", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return write(a, 64, m.Addr()-1, m.RKey()) }, rdma.RemAccessErr, true},
		{"WriteThatWraps", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return write(a, 64, math.MaxUint64-31, m.RKey()) }, rdma.RemAccessErr, true},
		{"WriteToReadable", rdma.LocalWrite | rdma.RemoteRead, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return write(a, 64, m.Addr(), m.RKey()) }, rdma.RemAccessErr, true},
		{"WriteToDeregistered", 0, func(t *testing.T, a, b *End, m mr) rdma.SendWR {
			require.NoError(t, m.Deregister())
			return write(a, 64, m.Addr(), m.RKey())
		}, rdma.RemAccessErr, true},
		{"ReadWithForeignKey", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return read(a, 64, m.Addr(), ^m.RKey()) }, rdma.RemAccessErr, true},
		{"ReadPastTheEnd", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR {
			return read(a, regionSize+1, m.Addr(), m.RKey())
		}, rdma.RemAccessErr, true},
		{"ReadFromWritable", rdma.LocalWrite | rdma.RemoteWrite, func(_ *testing.T, a, b *End, m mr) rdma.SendWR { return read(a, 64, m.Addr(), m.RKey()) }, rdma.RemAccessErr, true},
		{"ReadFromDeregistered", 0, func(t *testing.T, a, b *End, m mr) rdma.SendWR {
			require.NoError(t, m.Deregister())
			return read(a, 64, m.Addr(), m.RKey())
		}, rdma.RemAccessErr, true},
	}
}

func localFaults() []faulty {
	type mr = rdma.MemoryRegion
	return []faulty{
		{"SendWithForeignKey", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR {
			return rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{{Addr: a.MR.Addr(), Length: 64, LKey: ^a.MR.LKey()}}}
		}, rdma.LocProtErr, false},
		{"SendFromPastTheEnd", 0, func(_ *testing.T, a, b *End, m mr) rdma.SendWR {
			return rdma.SendWR{Op: rdma.OpSend, SGL: a.Piece(uint64(len(a.Memory))-32, 64)}
		}, rdma.LocProtErr, false},
		{"WriteFromDeregistered", 0, func(t *testing.T, a, b *End, m mr) rdma.SendWR {
			own, err := a.EP.Device().Register(a.Memory[:4096], rdma.LocalWrite)
			require.NoError(t, err)
			require.NoError(t, own.Deregister())
			wr := write(a, 64, m.Addr(), m.RKey())
			wr.SGL = []rdma.SGE{rdma.Piece(own, 0, 64)}
			return wr
		}, rdma.LocProtErr, false},
	}
}

func (s *suite) errorTests() []test {
	var tests []test
	for _, f := range append(remoteFaults(), localFaults()...) {
		tests = append(tests, test{f.name, func(t *testing.T) { s.fault(t, f) }})
	}
	return append(tests,
		test{"ReadIntoUnwritable", s.readIntoUnwritable},
		test{"MessageLongerThanTheReceive", s.tooLong},
		test{"ReceiveIntoUnwritable", s.receiveIntoUnwritable},
		test{"ReadNobodyServes", s.readNobodyServes},
	)
}

// fault posts good work, the faulty request and more good work in one chain, and checks how each ends.
func (s *suite) fault(t *testing.T, f faulty) {
	a, b := s.pair(t, Config{})
	access := f.access
	if access == 0 {
		access = allRights
	}
	mr, err := b.EP.Device().Register(b.Memory[regionAt:regionAt+regionSize], access)
	require.NoError(t, err)
	for id := range uint64(4) {
		b.Recv(id, uint64(128<<10)+id*64, 64)
		a.Recv(id, uint64(128<<10)+id*64, 64)
	}
	Fill(a.Memory[:64], 9)
	Fill(b.Memory[:64<<10], 11)
	bad := f.make(t, a, b, mr)
	bad.ID = 101
	// Good work first, and reaped: what a device says of work that is still unacknowledged when its queue
	// pair fails is its own choice.
	a.Post(rdma.SendWR{ID: 100, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
	a.Ended(a.Sends(1), rdma.Success, 100)
	a.Post(
		bad, // errors complete, signaled or not
		rdma.SendWR{ID: 102, Op: rdma.OpSend, Flags: rdma.Signaled},
		rdma.SendWR{ID: 103, Op: rdma.OpWrite, SGL: a.Piece(0, 64), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
		rdma.SendWR{ID: 104, Op: rdma.OpSend},
	)
	done := a.Sends(4)
	a.Ended(done[:1], f.want, 101)
	a.Ended(done[1:], rdma.WRFlushErr, 102, 103, 104)
	b.Ended(b.Recvs(1), rdma.Success, 0)
	a.Flushed(0, 4)
	if !f.remote { // a device that stops talking does not tell its peer; Disconnect does
		require.NoError(t, a.EP.Disconnect())
	}
	b.Flushed(1, 3)
	Check(t, b.Memory[:64<<10], 11)
	_ = mr.Deregister()
}

func (s *suite) readIntoUnwritable(t *testing.T) {
	a, b := s.pair(t, Config{})
	sink, err := a.EP.Device().Register(a.Memory[:4096], rdma.RemoteRead)
	require.NoError(t, err)
	a.Recv(1, 8192, 64)
	wr := read(a, 64, b.MR.Addr(), b.MR.RKey())
	wr.SGL = []rdma.SGE{rdma.Piece(sink, 0, 64)}
	a.Post(wr)
	// A device may look at the sink before it asks (a protection error) or when the data comes (some call
	// that an access error).
	status := a.Sends(1)[0].Status
	assert.Contains(t, []rdma.Status{rdma.LocProtErr, rdma.LocAccessErr}, status)
	a.Flushed(1, 1)
	require.NoError(t, sink.Deregister())
}

func (s *suite) tooLong(t *testing.T) {
	a, b := s.pair(t, Config{})
	clear(b.Memory)
	b.Recv(1, 0, 64)
	b.Recv(2, 64, 64)
	a.Recv(1, 0, 64)
	a.Post(rdma.SendWR{ID: 5, Op: rdma.OpSend, SGL: a.Piece(0, 65)})
	// The responder may answer with "invalid request" or, if it notices while it copies, "operation
	// error" (IBTA, 9.9.3.1, classes C and A). Its own receive ends with a length error; rxe calls it
	// an invalid request, and a device that fails first and looks for the receive later flushes it.
	sent := a.Sends(1)[0]
	assert.EqualValues(t, 5, sent.ID)
	assert.Contains(t, []rdma.Status{rdma.RemInvReqErr, rdma.RemOpErr}, sent.Status)
	got := b.Recvs(1)[0]
	assert.EqualValues(t, 1, got.ID)
	assert.Contains(t, []rdma.Status{rdma.LocLenErr, rdma.RemInvReqErr, rdma.LocQPOpErr, rdma.WRFlushErr}, got.Status)
	a.Flushed(1, 1)
	b.Flushed(2, 1)
	for i, c := range b.Memory[64:128] {
		require.Zero(t, c, "byte %d behind the receive", i)
	}
}

func (s *suite) receiveIntoUnwritable(t *testing.T) {
	a, b := s.pair(t, Config{})
	dead, err := b.EP.Device().Register(b.Memory[:4096], rdma.RemoteRead)
	require.NoError(t, err)
	_, err = b.QP.PostRecv([]rdma.RecvWR{{ID: 1, SGL: []rdma.SGE{rdma.Piece(dead, 0, 64)}}})
	require.NoError(t, err)
	b.Recv(2, 8192, 64)
	a.Recv(1, 8192, 64)
	a.Post(rdma.SendWR{ID: 5, Op: rdma.OpSend, SGL: a.Piece(0, 64)})
	// The requester hears "operation error" (class A). The receiver's status is its driver's choice.
	assert.Contains(t, []rdma.Status{rdma.RemOpErr, rdma.RemInvReqErr}, a.Sends(1)[0].Status)
	got := b.Recvs(1)[0]
	assert.EqualValues(t, 1, got.ID)
	assert.NotEqual(t, rdma.Success, got.Status)
	a.Flushed(1, 1)
	b.Flushed(2, 1)
	require.NoError(t, dead.Deregister())
}

// readNobodyServes: the peer has promised to serve no Reads.
func (s *suite) readNobodyServes(t *testing.T) {
	active := rdma.ConnParam{}
	a, b := s.pair(t, Config{Active: &active, Passive: &rdma.ConnParam{}})
	require.Zero(t, b.EP.Peer().InitiatorDepth, "what the passive side must look at before it Reads")
	a.Recv(1, 0, 64)
	b.Recv(1, 0, 64)
	n, err := b.QP.PostSend([]rdma.SendWR{{ID: 7, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: b.Piece(0, 64), RemoteAddr: a.MR.Addr(), RKey: a.MR.RKey()}})
	if err != nil { // some drivers refuse it
		require.Zero(t, n)
		return
	}
	// The peer refuses it, or has no right to offer; devices differ in which of the two they say. rxe
	// waits for ever for a Read to be allowed, until the queue pair is flushed.
	require.NoError(t, b.SendCQ.Wait(time.Now().Add(time.Second)))
	require.NoError(t, b.EP.Disconnect())
	got := b.Sends(1)[0]
	assert.EqualValues(t, 7, got.ID)
	assert.Contains(t, []rdma.Status{rdma.RemInvReqErr, rdma.RemAccessErr, rdma.RemOpErr, rdma.LocQPOpErr, rdma.WRFlushErr}, got.Status)
	b.Flushed(1, 1)
}
