package fabric_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
)

// A round is what a target and an initiator do for one command: request, data, response.
type round struct {
	a, b  *rdmatest.End
	wrs   [2]rdma.SendWR
	recvs [1]rdma.RecvWR
	cs    [4]rdma.Completion
}

func newRound(tb testing.TB, op rdma.OpCode, size uint32) *round {
	a, b := connect(tb, fabric.New(fabric.Options{}), rdmatest.Config{Memory: 1 << 20})
	r := &round{a: a, b: b}
	r.wrs = [2]rdma.SendWR{
		{Op: op, SGL: a.Piece(0, size), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
		{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 76)},
	}
	r.recvs[0] = rdma.RecvWR{SGL: b.Piece(0, 128)}
	return r
}

// run moves the data, tells the peer, and polls both ends.
func (r *round) run() error {
	if _, err := r.b.QP.PostRecv(r.recvs[:]); err != nil {
		return err
	}
	if _, err := r.a.QP.PostSend(r.wrs[:]); err != nil {
		return err
	}
	for _, cq := range []rdma.CompletionQueue{r.a.SendCQ, r.b.RecvCQ} {
		if n, err := cq.Poll(r.cs[:]); err != nil || n != 1 || r.cs[0].Status != rdma.Success {
			return fmt.Errorf("%d completions: %v, %w", n, r.cs[0].Status, err)
		}
	}
	return nil
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	for _, op := range []rdma.OpCode{rdma.OpWrite, rdma.OpRead} {
		r := newRound(t, op, 4096)
		require.NoError(t, r.run())
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if err := r.run(); err != nil {
				t.Error(err)
			}
		}), "%v and Send", op)
	}
}

func BenchmarkRound(b *testing.B) {
	for _, op := range []rdma.OpCode{rdma.OpWrite, rdma.OpRead} {
		for _, size := range []uint32{512, 4096, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%v/%d", op, size), func(b *testing.B) {
				r := newRound(b, op, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := r.run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkSignals(b *testing.B) {
	x, y := connect(b, fabric.New(fabric.Options{}), rdmatest.Config{Depth: 64})
	rdmatest.BenchmarkSignals(b, x, y)
}
