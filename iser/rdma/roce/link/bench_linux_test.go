package link

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// BenchmarkOneWay moves packets one way between two goroutines on loopback, sealed and, with verify, checked; 1024 may be
// on the way. MB/s are payload. On 2 cores that others loaded as well (Xeon, Linux 6.18): GB/s as median (and range) of 4
// to 9 runs, and the CPU time of both ends together for a packet, which varies less. (At 4096 with offload it is 5.6 on
// the quiet machine, and 6.0 since the ICRC of headers is remembered.)
//
//	                4096             CPU     1024             CPU
//	offload         3.5 (0.7-4.7)    0.9 us  2.6 (1.3-3.9)    0.3 us
//	  and verify    3.2 (2.5-4.0)    1.1 us  2.0 (1.2-2.7)    0.4 us
//	none            1.1 (0.8-1.3)    3.3 us  0.35 (0.14-0.46) 2.3 us
//	  and verify    1.0 (0.5-1.2)    3.4 us  0.31 (0.14-0.40) 2.6 us
//
// Bare system calls without ICRC, on a quiet day: GSO and GRO 3.8-4.1 and 4.3, sendmmsg and recvmmsg 0.93 and 0.23.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{4096, 1024} {
		for _, offload := range []bool{true, false} {
			for _, verify := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/offload=%v/verify=%v", size, offload, verify), func(b *testing.B) {
					oneWay(b, size, offload, verify)
				})
			}
		}
	}
}

func oneWay(b *testing.B, size int, offload, verify bool) {
	const window, perBurst = 1024, 60
	o := Options{NoOffload: !offload}
	from, to := open(b, o), open(b, o)
	x := burst(rand.New(rand.NewPCG(1, 1)), wire.NewPath(from.Addr(), to.Addr()), perBurst*size, size, 0)
	total := (b.N + perBurst - 1) / perBurst * perBurst
	var received atomic.Int64
	room, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		path, rs := wire.NewPath(from.Addr(), to.Addr()), make([]Received, 16)
		for got := 0; got < total; {
			n, err := to.Recv(rs, time.Now().Add(5*time.Second))
			if err != nil || n == 0 {
				b.Errorf("%d of %d came: %v", got, total, err)
				return
			}
			for _, r := range rs[:n] {
				for p := r.Data; verify && len(p) > 0; p = p[min(len(p), r.Size):] {
					if !path.Verify(p[:min(len(p), r.Size)], r.From.Port(), 0) {
						b.Error("wrong ICRC")
					}
				}
				got += int(packets(len(r.Data), r.Size))
			}
			received.Store(int64(got))
			select {
			case room <- struct{}{}:
			default:
			}
		}
	}()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	cpu, bs := cpuTime(b), []Burst{x}
	for sent := 0; sent < total; sent += perBurst {
		for sent-int(received.Load()) > window-perBurst && !b.Failed() {
			<-room
		}
		_ = from.Send(bs)
	}
	<-done
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(total), "cpu-ns/op")
	require.Zero(b, to.Stats().ReceiveDropped)
}

// cpuTime is what this process has used of all cores: other than the clock's, its time does not depend on who else runs.
func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkRoundTrip is one small packet there and back: the latency of Recv, twice, parked or spinning.
func BenchmarkRoundTrip(b *testing.B) {
	x, y := open(b, Options{}), open(b, Options{})
	rng := rand.New(rand.NewPCG(1, 1))
	there := []Burst{burst(rng, wire.NewPath(x.Addr(), y.Addr()), 64, 256, 0)}
	back := []Burst{burst(rng, wire.NewPath(y.Addr(), x.Addr()), 64, 256, 0)}
	go func() {
		rs := make([]Received, 16)
		for {
			if n, err := y.Recv(rs, time.Time{}); err != nil || n > 0 && y.Send(back) != nil {
				return
			}
		}
	}()
	rs := make([]Received, 16)
	b.ReportAllocs()
	for b.Loop() {
		_ = x.Send(there)
		if n, err := x.Recv(rs, time.Now().Add(time.Second)); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}
