package rc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

const rights = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.WindowBind

// open registers new memory of an end, filled with a pattern.
func (e *end) open(t testing.TB, size int, pattern byte, access rdma.Access) ([]byte, rdma.MemoryRegion) {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ pattern
	}
	mr, err := e.mem.Register(b, access)
	require.NoError(t, err)
	return b, mr
}

func (e *end) post(t testing.TB, wrs ...rdma.SendWR) {
	n, err := e.q.PostSend(wrs, e)
	require.NoError(t, err)
	require.Len(t, wrs, n)
}

func (e *end) recv(t testing.TB, id uint64, sgl ...rdma.SGE) {
	_, err := e.q.PostRecv([]rdma.RecvWR{{ID: id, SGL: sgl}}, e)
	require.NoError(t, err)
}

func TestSendWriteReadWithoutLoss(t *testing.T) {
	for _, size := range []uint32{0, 1, 3, 255, 256, 257, 512, 5000, 65536} {
		n := newNetwork(1, weather{}, nil)
		a, b := n.ends[0], n.ends[1]
		am, ar := a.open(t, 1<<18, 1, rights)
		bm, br := b.open(t, 1<<18, 2, rights)
		b.recv(t, 7, rdma.Piece(br, 0, 1000), rdma.Piece(br, 1000, 100000))
		a.post(t,
			rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: []rdma.SGE{rdma.Piece(ar, 0, size)}, RemoteAddr: br.Addr() + 1<<17, RKey: br.RKey()},
			rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(ar, 5, size)}},
			rdma.SendWR{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(ar, 1<<17, size)}, RemoteAddr: br.Addr() + 1<<17 - 70000, RKey: br.RKey()},
		)
		require.True(t, n.run(time.Second))
		require.Equal(t, []rdma.Completion{{ID: 2, QPNum: 0x11}, {ID: 3, QPNum: 0x11, ByteLen: size}}, a.sends)
		require.Equal(t, []rdma.Completion{{ID: 7, QPNum: 0x22, Recv: true, ByteLen: size}}, b.recvs)
		assert.Equal(t, am[:size], bm[1<<17:1<<17+size])
		assert.Equal(t, am[5:5+size], bm[:size])
		assert.Equal(t, bm[1<<17-70000:1<<17-70000+size], am[1<<17:1<<17+size])
		for _, e := range n.ends {
			c := e.q.Counters()
			assert.Zero(t, c.Retransmits+c.Timeouts+c.NaksSent+c.RNRNaksSent+c.Duplicates+c.OutOfOrder+c.Dropped, "%+v", c)
		}
	}
}
