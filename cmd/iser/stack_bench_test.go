package main

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkStack is a whole READ or WRITE: our initiator here, iserd in a process of its own, over loopback; iSER on
// our RoCE beside TCP, same disk, same run. BenchmarkRoundTrip of iser/rdma/roce/link is the raw UDP round trip between
// goroutines, BenchmarkRawRoundTripBetweenProcesses of iser/rdma/roce that between processes.
//
// iSER at depth 1 with 4 KiB takes 24 us for a READ and 28 to 31 us for a WRITE on 2 quiet cores, 2.0 and 2.3 to 2.5 raw
// round trips between processes in the same run (12 us); TCP takes 23 and 23 to 25 us. Both ends look for packets before
// they sleep; where others take the processors that is of no use, and it takes 55 to 80 us, about twice the time of TCP.
func BenchmarkStack(b *testing.B) {
	url := startBenchDaemon(b)
	for _, transport := range []string{"iser", "iscsi"} {
		a := &app{out: os.Stdout, errOut: os.Stderr, output: "table", quiet: true, timeout: demoPatience}
		a.tune.immediateData = "yes"
		s, d, err := a.disk(b.Context(), transport+"://"+url+"?rdma=roce")
		require.NoError(b, err)
		for _, op := range []struct {
			name  string
			n     int
			depth int
			run   func(context.Context, []byte, int64) error
		}{
			{"read4k/depth1", 4 << 10, 1, d.ReadAt},
			{"write4k/depth1", 4 << 10, 1, d.WriteAt},
			{"read4k/depth32", 4 << 10, 32, d.ReadAt},
			{"write4k/depth32", 4 << 10, 32, d.WriteAt},
			{"read64k/depth16", 64 << 10, 16, d.ReadAt},
			{"write64k/depth16", 64 << 10, 16, d.WriteAt},
			{"read1m/depth4", 1 << 20, 4, d.ReadAt},
			{"write1m/depth4", 1 << 20, 4, d.WriteAt},
		} {
			b.Run(transport+"/"+op.name, func(b *testing.B) { benchIO(b, op.run, op.n, op.depth, d.SizeBytes()) })
		}
		require.NoError(b, s.Close())
		if a.provider != nil {
			require.NoError(b, a.provider.Close())
		}
	}
}

// benchIO runs b.N requests of n bytes at random places, depth at a time.
func benchIO(b *testing.B, run func(context.Context, []byte, int64) error, n, depth int, size int64) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.SetBytes(int64(n))
	b.ReportAllocs()
	b.ResetTimer()
	for w := range depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			buf := make([]byte, n)
			for next.Add(1) <= int64(b.N) {
				if err := run(b.Context(), buf, rng.Int64N(size/int64(n))*int64(n)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// startBenchDaemon builds and starts iserd and returns host:port.
func startBenchDaemon(b testing.TB) string {
	program := filepath.Join(b.TempDir(), "iserd")
	out, err := exec.Command("go", "build", "-o", program, "../iserd").CombinedOutput()
	require.NoError(b, err, string(out))
	d, err := startDaemon(context.WithoutCancel(b.Context()), program, nil) // stopped by Cleanup, not by the context
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, d.stop()) })
	_, address, _ := strings.Cut(d.url, "://")
	return address
}
