package rdmatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// BenchmarkSignals measures what the completion of each Send costs: an operation is one Send of a command's size in a
// batch of 32, posted and reaped at once, with each one signalled, each 8th, and the last. The initiator of package iser
// signals all: only a Send's own completion says when its memory may be used again (ISER.md 4.3, rule 2).
func BenchmarkSignals(b *testing.B, x, y *End) {
	const batch, size = 32, 128
	var sends, recvs [batch]rdma.SGE
	cs := make([]rdma.Completion, 2*batch)
	for i := range uint64(batch) {
		sends[i], recvs[i] = x.Piece(i*size, size)[0], y.Piece(i*size, size)[0]
	}
	for _, every := range []int{1, 8, batch} {
		b.Run(fmt.Sprintf("every%d", every), func(b *testing.B) {
			var send [batch]rdma.SendWR
			var recv [batch]rdma.RecvWR
			for i := range batch {
				send[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGL: sends[i : i+1]}
				recv[i] = rdma.RecvWR{ID: uint64(i), SGL: recvs[i : i+1]}
				if i%every == every-1 {
					send[i].Flags = rdma.Signaled
				}
			}
			b.ReportAllocs()
			for left := b.N; left > 0; left -= batch {
				if _, err := y.QP.PostRecv(recv[:]); err != nil {
					b.Fatal(err)
				}
				if _, err := x.QP.PostSend(send[:]); err != nil {
					b.Fatal(err)
				}
				reap(b, y.RecvCQ, cs, batch)
				reap(b, x.SendCQ, cs, batch/every)
			}
		})
	}
}

// reap polls n completions, as many at a time as there are.
func reap(b *testing.B, cq rdma.CompletionQueue, cs []rdma.Completion, n int) {
	for n > 0 {
		m, err := cq.Poll(cs)
		require.NoError(b, err)
		for i := range cs[:m] {
			if cs[i].Status != rdma.Success {
				b.Fatal(cs[i].Status)
			}
		}
		if n -= m; m == 0 {
			_ = cq.Wait(time.Now().Add(time.Second))
		}
	}
}
