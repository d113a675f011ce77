package main

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/goiser/goiser/cmd/iser/bench"
	"github.com/stretchr/testify/require"
)

// BenchmarkBench is iser bench itself against iserd in a process of its own: requests a second, what one costs in
// processor time of this process, and how many objects it leaves to the garbage collector.
func BenchmarkBench(b *testing.B) {
	url := startBenchDaemon(b)
	for _, transport := range []string{"iser", "iscsi"} {
		b.Run(transport, func(b *testing.B) {
			a := &app{out: os.Stdout, errOut: os.Stderr, output: "table", quiet: true, timeout: demoPatience}
			a.tune.immediateData = "yes"
			f := &benchFlags{depth: 32, jobs: 1}
			p := bench.Plan{ReadPercent: 50, Random: true, MinBytes: 4096, MaxBytes: 4096, Depth: f.depth, Time: time.Second, Ramp: 200 * time.Millisecond}
			t, err := a.openBench(b.Context(), transport+"://"+url+"?rdma=roce", f, p)
			require.NoError(b, err)
			var before, after runtime.MemStats
			for b.Loop() {
				_, err := t.run.Turn(b.Context()) // the first one warms up
				require.NoError(b, err)
				runtime.ReadMemStats(&before)
				r, err := t.run.Turn(b.Context())
				runtime.ReadMemStats(&after)
				require.NoError(b, err)
				ios := float64(r.Sides[bench.Read].IOs + r.Sides[bench.Write].IOs)
				b.ReportMetric(ios/r.Elapsed.Seconds(), "IOPS")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/ios, "allocs/IO")
				b.ReportMetric(float64(r.CPU.Microseconds())/ios, "cpu-us/IO")
			}
			require.NoError(b, t.Close())
			if a.provider != nil {
				require.NoError(b, a.provider.Close())
			}
		})
	}
}
