package roce_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// twoPeers connects two providers over UDP loopback.
func twoPeers(t testing.TB, c rdmatest.Config) (a, b *rdmatest.End, s sides) {
	s = sides{open(t, roce.Options{}), open(t, roce.Options{})}
	a, b = rdmatest.Connect(t, s, loopback(), c)
	return a, b, s
}

// A pump keeps a number of work requests under way, and allocates nothing.
type pump struct {
	e     *rdmatest.End
	chain [1]rdma.SendWR
	sgl   [1]rdma.SGE
	cs    [64]rdma.Completion
	depth int
	wait  int // under way
	bad   int
}

func (p *pump) reap(max int) {
	for p.wait > max {
		n, err := p.e.SendCQ.Poll(p.cs[:])
		if err != nil {
			panic(err)
		}
		if n == 0 {
			_ = p.e.SendCQ.Wait(time.Time{})
		}
		for i := range p.cs[:n] {
			if p.cs[i].Status != rdma.Success {
				p.bad++
			}
		}
		p.wait -= n
	}
}

func (p *pump) post() {
	if n, err := p.e.QP.PostSend(p.chain[:]); n != 1 || err != nil {
		panic(err)
	}
	p.wait++
	p.reap(p.depth - 1)
}

func newPump(a, b *rdmatest.End, op rdma.OpCode, size uint32, depth int) *pump {
	p := &pump{e: a, depth: depth}
	p.sgl[0] = rdma.Piece(a.MR, 0, size)
	p.chain[0] = rdma.SendWR{ID: 1, Op: op, Flags: rdma.Signaled, SGL: p.sgl[:], RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
	return p
}

// BenchmarkTransfer moves data between two providers in this process over UDP loopback, a few requests at a time: see
// BenchmarkTransferBetweenProcesses for what to expect. A retransmission is a peer that did not run for long.
func BenchmarkTransfer(b *testing.B) {
	for _, op := range []struct {
		name string
		op   rdma.OpCode
	}{{"Write", rdma.OpWrite}, {"Read", rdma.OpRead}} {
		for _, size := range []uint32{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", op.name, size>>10), func(b *testing.B) {
				x, y, s := twoPeers(b, rdmatest.Config{Memory: int(size)})
				p := newPump(x, y, op.op, size, max(2, 8*(64<<10)/int(size)))
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					p.post()
				}
				p.reap(0)
				require.Zero(b, p.bad)
				again := s.active.Counters().QP.Retransmits + s.passive.Counters().QP.Retransmits
				b.ReportMetric(float64(again)/float64(b.N), "retransmits/op")
			})
		}
	}
}

// BenchmarkSendLatency is a Send of 4 KiB, there and back: 18 us, where it was 44 with a goroutine that reads and an
// acknowledgement for each (2 cores at real-time priority beside others, Linux 6.18).
func BenchmarkSendLatency(b *testing.B) {
	x, y, _ := twoPeers(b, rdmatest.Config{})
	stop := make(chan struct{})
	go echo(y, stop)
	p := newPump(x, y, rdma.OpSend, 4096, 64)
	recv := []rdma.RecvWR{{SGL: x.Piece(8192, 4096)}}
	var cs [8]rdma.Completion
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.QP.PostRecv(recv); err != nil {
			b.Fatal(err)
		}
		p.post()
		for {
			n, err := x.RecvCQ.Poll(cs[:])
			if err != nil {
				b.Fatal(err)
			}
			if n > 0 {
				break
			}
			_ = x.RecvCQ.Wait(time.Time{})
		}
		p.reap(0)
	}
	require.NoError(b, x.EP.Disconnect())
	<-stop
}

// echo answers each message until the connection ends.
func echo(e *rdmatest.End, done chan<- struct{}) {
	defer close(done)
	recv := []rdma.RecvWR{{SGL: e.Piece(0, 4096)}}
	send := []rdma.SendWR{{Op: rdma.OpSend, SGL: e.Piece(4096, 4096), Flags: rdma.Signaled}}
	for range 4 {
		_, _ = e.QP.PostRecv(recv)
	}
	var cs [8]rdma.Completion
	for {
		n, err := e.RecvCQ.Poll(cs[:])
		if err != nil {
			return
		}
		if n == 0 {
			_ = e.RecvCQ.Wait(time.Time{})
			continue
		}
		for _, c := range cs[:n] {
			if c.Status != rdma.Success {
				return
			}
			_, _ = e.QP.PostRecv(recv)
			_, _ = e.QP.PostSend(send)
		}
		for n := 1; n > 0; {
			n, _ = e.SendCQ.Poll(cs[:])
		}
	}
}

func BenchmarkSignals(b *testing.B) {
	x, y, _ := twoPeers(b, rdmatest.Config{Depth: 64})
	rdmatest.BenchmarkSignals(b, x, y)
}
