package rdmatest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// orderRounds is how often the order of Write and Send is tried.
const orderRounds = 300

func (s *suite) memoryTests() []test {
	return []test{
		{"WritesOfAnySizeLand", s.writesLand},
		{"ReadsOfAnySizeFetch", s.readsFetch},
		{"WritesAreThereWhenTheSendArrives", s.writeThenSend},
		{"ReadsBeyondTheDepthWait", s.readDepth},
		{"FenceWaitsForReads", s.fence},
		{"ReadFindsWhatWasWritten", s.readAfterWrite},
		{"UnsignaledCompletesOnlyInError", s.unsignaled},
		{"RegionsOverlap", s.regionsOverlap},
	}
}

func (s *suite) writesLand(t *testing.T) {
	a, b := s.pair(t, Config{})
	for i, n := range sizes {
		id, off := uint64(i), uint64(i%7)
		Fill(a.Memory[:n], id)
		clear(b.Memory)
		b.Recv(id, uint64(len(b.Memory))-8, 8)
		a.Post(
			rdma.SendWR{ID: id, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: a.Pieces(0, n, 1+i%2), RemoteAddr: b.MR.Addr() + off, RKey: b.MR.RKey()},
			rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled},
		)
		b.Ended(b.Recvs(1), rdma.Success, id)
		a.Ended(a.Sends(2), rdma.Success, id, id)
		Check(t, b.Memory[off:off+uint64(n)], id)
		require.Empty(t, bytes.Trim(b.Memory[:off], "\x00"))
		require.Empty(t, bytes.Trim(b.Memory[off+uint64(n):], "\x00"), "bytes behind a Write of %d", n)
	}
}

func (s *suite) readsFetch(t *testing.T) {
	a, b := s.pair(t, Config{})
	most := min(DefaultSGE, a.EP.Device().Limits().MaxReadSGE)
	for i, n := range sizes {
		id, off := uint64(i), uint64(i%5)
		Fill(b.Memory[off:off+uint64(n)], id)
		clear(a.Memory)
		a.Post(rdma.SendWR{
			ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Pieces(16, n, 1+i%most),
			RemoteAddr: b.MR.Addr() + off, RKey: b.MR.RKey(),
		})
		done := a.Sends(1)
		a.Ended(done, rdma.Success, id)
		require.Equal(t, n, done[0].ByteLen)
		Check(t, a.Memory[16:16+n], id)
		require.Empty(t, bytes.Trim(a.Memory[:16], "\x00"))
		require.Empty(t, bytes.Trim(a.Memory[16+n:], "\x00"), "bytes behind a Read of %d", n)
	}
}

// writeThenSend is how a target answers: data by RDMA Writes, not waited for, then the response. The
// receiver looks at the data as soon as it has the response (IBTA, o9-20).
func (s *suite) writeThenSend(t *testing.T) {
	const slot, respAt, size = 16 << 10, 128 << 10, 8
	a, b := s.pair(t, Config{})
	var sent uint64
	for round := range uint64(orderRounds) {
		parts := 1 + round%4
		var wrs []rdma.SendWR
		for i := range parts {
			n := uint32(1 + (round*2654435761+i*40503)%slot)
			off := i * slot
			Fill(a.Memory[off:off+uint64(n)], round*4+i)
			binary.LittleEndian.PutUint32(a.Memory[respAt+i*size:], n)
			wrs = append(wrs, rdma.SendWR{ID: round, Op: rdma.OpWrite, SGL: a.Piece(off, n), RemoteAddr: b.MR.Addr() + off, RKey: b.MR.RKey()})
		}
		wrs = append(wrs, rdma.SendWR{ID: round, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(respAt, uint32(parts*size))})
		b.Recv(round, respAt, 4*size)
		a.Post(wrs...)
		sent++
		b.Ended(b.Recvs(1), rdma.Success, round)
		for i := range parts {
			n := uint64(binary.LittleEndian.Uint32(b.Memory[respAt+i*size:]))
			Check(t, b.Memory[i*slot:i*slot+n], round*4+i)
			clear(b.Memory[i*slot : i*slot+n])
		}
		a.Ended(a.Sends(1), rdma.Success, round)
	}
	require.EqualValues(t, orderRounds, sent)
}

func (s *suite) readDepth(t *testing.T) {
	const reads, size = 16, 3000
	p := rdma.ConnParam{ResponderResources: 1, InitiatorDepth: 1}
	a, b := s.pair(t, Config{Active: &p, Passive: &p})
	for range 5 {
		clear(a.Memory)
		var wrs []rdma.SendWR
		var ids []uint64
		for i := range uint64(reads) {
			off := i * 4096
			Fill(b.Memory[off:off+size], i)
			wrs = append(wrs, rdma.SendWR{ID: i, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(off, size), RemoteAddr: b.MR.Addr() + off, RKey: b.MR.RKey()})
			ids = append(ids, i)
		}
		b.Recv(reads, 100<<10, 8)
		wrs = append(wrs, rdma.SendWR{ID: reads, Op: rdma.OpSend, Flags: rdma.Signaled})
		a.Post(wrs...)
		a.Ended(a.Sends(reads+1), rdma.Success, append(ids, reads)...)
		b.Ended(b.Recvs(1), rdma.Success, reads)
		for i := range uint64(reads) {
			Check(t, a.Memory[i*4096:i*4096+size], i)
		}
	}
}

// fence: the Send sends what the Read before it has fetched.
func (s *suite) fence(t *testing.T) {
	const size = 5000
	a, b := s.pair(t, Config{})
	for i := range uint64(50) {
		Fill(b.Memory[:size], i)
		clear(a.Memory[:size])
		b.Recv(i, 100<<10, size)
		a.Post(
			rdma.SendWR{ID: i, Op: rdma.OpRead, SGL: a.Piece(0, size), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
			rdma.SendWR{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Fence, SGL: a.Piece(0, size)},
		)
		b.Ended(b.Recvs(1), rdma.Success, i)
		Check(t, b.Memory[100<<10:100<<10+size], i)
		a.Ended(a.Sends(1), rdma.Success, i)
	}
}

func (s *suite) readAfterWrite(t *testing.T) {
	const size = 5000
	a, b := s.pair(t, Config{})
	for i := range uint64(50) {
		Fill(a.Memory[:size], i)
		a.Post(
			rdma.SendWR{ID: i, Op: rdma.OpWrite, SGL: a.Piece(0, size), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
			rdma.SendWR{ID: i, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(64<<10, size), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
		)
		a.Ended(a.Sends(1), rdma.Success, i)
		Check(t, a.Memory[64<<10:64<<10+size], i)
	}
}

func (s *suite) unsignaled(t *testing.T) {
	a, b := s.pair(t, Config{})
	write := rdma.SendWR{Op: rdma.OpWrite, SGL: a.Piece(0, 100), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
	for id := range uint64(4 * DefaultDepth) { // the queue goes round: the last of each row frees all of it
		write.ID, write.Flags = id, 0
		if id%8 == 7 {
			write.Flags = rdma.Signaled
		}
		a.Post(write)
		if id%8 == 7 {
			a.Ended(a.Sends(1), rdma.Success, id)
		}
	}
	Quiet(t, a.SendCQ, quiet)
	write.ID, write.Flags, write.RKey = 1000, 0, ^b.MR.RKey()
	a.Post(write)
	a.Ended(a.Sends(1), rdma.RemAccessErr, 1000)
}

// regionsOverlap: one memory registered twice, with different rights; the keys live and die apart.
func (s *suite) regionsOverlap(t *testing.T) {
	a, b := s.pair(t, Config{})
	d := b.EP.Device()
	read, err := d.Register(b.Memory[:8192], rdma.LocalWrite|rdma.RemoteRead)
	require.NoError(t, err)
	write, err := d.Register(b.Memory[:8192], rdma.LocalWrite|rdma.RemoteWrite)
	require.NoError(t, err)
	require.NotEqual(t, read.RKey(), write.RKey())
	Fill(a.Memory[:8192], 5)
	a.Post(
		rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: a.Piece(0, 8192), RemoteAddr: write.Addr(), RKey: write.RKey()},
		rdma.SendWR{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(16384, 8192), RemoteAddr: read.Addr(), RKey: read.RKey()},
	)
	a.Ended(a.Sends(1), rdma.Success, 2)
	Check(t, a.Memory[16384:16384+8192], 5)
	require.NoError(t, write.Deregister())
	a.Post(rdma.SendWR{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.Piece(0, 64), RemoteAddr: read.Addr(), RKey: read.RKey()})
	a.Ended(a.Sends(1), rdma.Success, 3)
	require.NoError(t, read.Deregister())
}
