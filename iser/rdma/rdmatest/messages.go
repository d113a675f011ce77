package rdmatest

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

func (s *suite) messageTests() []test {
	return []test{
		{"AnySizeArrives", s.anySize},
		{"PiecesAreOneMessage", s.pieces},
		{"BatchesKeepOrder", s.batches},
		{"BothWaysAtOnce", s.bothWays},
		{"OneCompletionQueueForAll", s.oneCQ},
		{"TwoConnectionsAtOnce", s.twoConnections},
	}
}

// sizes around everything that is a limit somewhere: padding, iSER headers, MTUs, pages.
var sizes = []uint32{0, 1, 2, 3, 4, 5, 7, 28, 76, 204, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 8268, 65535, 65536, 100001}

func (s *suite) anySize(t *testing.T) {
	a, b := s.pair(t, Config{})
	for i, n := range sizes {
		id := uint64(i)
		clear(b.Memory)
		Fill(a.Memory[:n], id)
		b.Recv(id, 64, n+uint32(i%2)*8) // just enough, or more
		a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited, SGL: a.Piece(0, n)})
		got := b.Recvs(1)
		b.Ended(got, rdma.Success, id)
		require.Equal(t, n, got[0].ByteLen)
		require.True(t, got[0].Recv)
		require.False(t, got[0].Invalidated)
		Check(t, b.Memory[64:64+n], id)
		require.Empty(t, bytes.Trim(b.Memory[:64], "\x00"), "bytes before a message of %d", n)
		require.Empty(t, bytes.Trim(b.Memory[64+n:], "\x00"), "bytes behind a message of %d", n)
		sent := a.Sends(1)
		a.Ended(sent, rdma.Success, id)
		require.False(t, sent[0].Recv)
	}
	// No list at all is a message of no bytes.
	_, err := b.QP.PostRecv([]rdma.RecvWR{{ID: 99}})
	require.NoError(t, err)
	a.Post(rdma.SendWR{ID: 99, Op: rdma.OpSend, Flags: rdma.Signaled})
	b.Ended(b.Recvs(1), rdma.Success, 99)
	a.Ended(a.Sends(1), rdma.Success, 99)
}

func (s *suite) pieces(t *testing.T) {
	a, b := s.pair(t, Config{})
	most := min(DefaultSGE, a.EP.Device().Limits().MaxSGE, b.EP.Device().Limits().MaxSGE)
	for out := 1; out <= most; out++ {
		for in := 1; in <= most; in++ {
			for _, n := range []uint32{5, 76, 4097, 20000} {
				id := uint64(out)<<32 | uint64(in)<<24 | uint64(n)
				Fill(a.Memory[1:1+n], id)
				_, err := b.QP.PostRecv([]rdma.RecvWR{{ID: id, SGL: b.Pieces(3, n, in)}})
				require.NoError(t, err)
				a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Pieces(1, n, out)})
				b.Ended(b.Recvs(1), rdma.Success, id)
				Check(t, b.Memory[3:3+n], id)
				a.Ended(a.Sends(1), rdma.Success, id)
			}
		}
	}
}

func (s *suite) batches(t *testing.T) {
	const batch, size = DefaultDepth, 512
	a, b := s.pair(t, Config{})
	for round := range uint64(10) {
		recvs, sends := make([]rdma.RecvWR, batch), make([]rdma.SendWR, batch)
		var ids []uint64
		for i := range recvs {
			id, off := round*batch+uint64(i), uint64(i*size)
			ids = append(ids, id)
			Fill(a.Memory[off:off+size], id)
			recvs[i] = rdma.RecvWR{ID: id, SGL: b.Piece(off, size)}
			sends[i] = rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(off, size)}
		}
		n, err := b.QP.PostRecv(recvs)
		require.NoError(t, err)
		require.Equal(t, batch, n)
		a.Post(sends...)
		b.Ended(b.Recvs(batch), rdma.Success, ids...)
		a.Ended(a.Sends(batch), rdma.Success, ids...)
		for i, id := range ids {
			Check(t, b.Memory[i*size:(i+1)*size], id)
		}
	}
}

// exchange sends one message each way and checks both.
func exchange(t *testing.T, a, b *End, id uint64) {
	const size, recvAt = 1000, 8192
	for _, e := range []*End{a, b} {
		Fill(e.Memory[:size], id+uint64(e.QP.Num()))
		e.Recv(id, recvAt, size)
	}
	a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, size)})
	b.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: b.Piece(0, size)})
	for _, e := range []*End{a, b} {
		e.Ended(e.Recvs(1), rdma.Success, id)
		e.Ended(e.Sends(1), rdma.Success, id)
	}
	Check(t, a.Memory[recvAt:recvAt+size], id+uint64(b.QP.Num()))
	Check(t, b.Memory[recvAt:recvAt+size], id+uint64(a.QP.Num()))
}

func (s *suite) bothWays(t *testing.T) {
	a, b := s.pair(t, Config{})
	for id := range uint64(50) {
		exchange(t, a, b, id)
	}
}

func (s *suite) oneCQ(t *testing.T) {
	a, b := s.pair(t, Config{OneCQ: true})
	b.Recv(1, 0, 64)
	a.Recv(2, 0, 64)
	a.Post(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled})
	b.Post(rdma.SendWR{ID: 4, Op: rdma.OpSend, Flags: rdma.Signaled})
	for e, ids := range map[*End][2]uint64{a: {2, 3}, b: {1, 4}} {
		for _, c := range Collect(t, e.SendCQ, 2) {
			require.Equal(t, rdma.Success, c.Status)
			require.Equal(t, ids[map[bool]int{true: 0, false: 1}[c.Recv]], c.ID, "%v", c)
		}
	}
}

func (s *suite) twoConnections(t *testing.T) {
	l := s.listen(t)
	a1, b1 := ConnectTo(soon(t), t, s.p, l, Config{})
	a2, b2 := ConnectTo(soon(t), t, s.p, l, Config{})
	require.NotEqual(t, b1.QP.Num(), b2.QP.Num(), "two queue pairs of one device")
	var wg sync.WaitGroup
	for _, p := range [][2]*End{{a1, b1}, {a2, b2}} {
		wg.Go(func() { // a failure in it ends this goroutine, and fails the test
			for id := range uint64(50) {
				exchange(t, p[0], p[1], id)
			}
		})
	}
	wg.Wait()
	// One ending does not touch the other.
	a1.Close()
	exchange(t, a2, b2, 51)
}
