package rc

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// The net dies at some packet: whoever has work under way notices, and everything posted ends once and in order,
// first what went well, then one request with what went wrong, then the rest flushed.
func TestBlackoutEndsEverything(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n := newNetwork(seed, weather{lose: 10, delay: 100 * time.Microsecond}, nil)
		alive := rng.IntN(60)
		n.drop = func(int, wire.Packet) bool {
			alive--
			return alive < 0
		}
		a, b := n.ends[0], n.ends[1]
		_, ar := a.open(t, 1<<16, 1, rights)
		_, br := b.open(t, 1<<16, 2, rights)
		for id := range uint64(20) {
			b.recv(t, id, rdma.Piece(br, 0, 4096))
			op := []rdma.OpCode{rdma.OpSend, rdma.OpWrite, rdma.OpRead}[rng.IntN(3)]
			a.post(t, rdma.SendWR{
				ID: id, Op: op, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(ar, 0, uint32(rng.IntN(3000)))}, RemoteAddr: br.Addr(), RKey: br.RKey(),
			})
		}
		require.True(t, n.run(time.Minute), "seed %d", seed)
		require.True(t, a.q.Failed(), "seed %d", seed)
		require.False(t, b.q.Failed(), "it has nothing to wait for")
		b.q.Fail(rdma.WRFlushErr, b)
		require.Len(t, a.sends, 20)
		require.Len(t, b.recvs, 20)
		failed := false
		for i, c := range a.sends {
			require.EqualValues(t, i, c.ID)
			switch {
			case failed:
				require.Equal(t, rdma.WRFlushErr, c.Status, "seed %d: %d", seed, i)
			case c.Status != rdma.Success:
				require.Equal(t, rdma.RetryExcErr, c.Status, "seed %d: %d", seed, i)
				failed = true
			}
		}
		for i, c := range b.recvs {
			require.EqualValues(t, i, c.ID)
		}
	}
}
