package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/cmd/iser/bench"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBenchReadsFiosPatternsAndSizes(t *testing.T) {
	for rw, want := range map[string]bench.Plan{
		"read": {ReadPercent: 100}, "write": {}, "randread": {ReadPercent: 100, Random: true},
		"randwrite": {Random: true}, "rw=70": {ReadPercent: 70, Random: true},
	} {
		percent, random, err := parsePattern(rw)
		require.NoError(t, err)
		assert.Equal(t, want, bench.Plan{ReadPercent: percent, Random: random}, rw)
	}
	for _, rw := range []string{"", "rw", "rw=101", "rw=-1", "randrw"} {
		_, _, err := parsePattern(rw)
		assert.ErrorContains(t, err, "want read, write, randread", rw)
	}
	for bs, want := range map[string][2]int{"4k": {4096, 4096}, "512-64KiB": {512, 65536}, "16MiB": {16 << 20, 16 << 20}} {
		low, high, err := parseSizes(bs)
		require.NoError(t, err)
		assert.Equal(t, want, [2]int{low, high}, bs)
	}
	for _, bs := range []string{"", "0", "256", "17MiB", "8k-4k", "4k-6k", "4k-", "-4k", "4k-8k-16k"} {
		_, _, err := parseSizes(bs)
		assert.ErrorContains(t, err, "want 512 bytes to 16 MiB", bs)
	}
}

func TestBenchLineSaysHowFarAndHowFast(t *testing.T) {
	f := &benchFlags{rw: "randread", bs: "4k", depth: 32}
	p := bench.Plan{Ramp: time.Second, Time: 9 * time.Second}
	before := bench.Live{IOs: 1000, Bytes: 4096 * 1000}
	assert.Contains(t, benchLine(f, p, before, before, 500*time.Millisecond), "[------------] 5%  ramp  eta 10s")
	now := bench.Live{IOs: 21000, Bytes: 4096 * 21000, P99: 311 * time.Microsecond}
	assert.Equal(t, "randread 4k depth 32  [######------] 50%  20 MiB/s  5000 IOPS  p99 311us  eta 5s",
		benchLine(f, p, before, now, 5*time.Second))
}

func TestRatiosAreOfRoundsInTurn(t *testing.T) {
	turn := func(ios int64) *bench.Result {
		r := &bench.Result{Elapsed: time.Second}
		for d := range r.Sides {
			r.Sides[d].Latency = hdrhistogram.New(1, 1_000_000, 3)
			require.NoError(t, r.Sides[d].Latency.RecordValue(5000))
		}
		r.Sides[bench.Read].IOs = ios
		return r
	}
	turns := [2][]*bench.Result{{turn(200), turn(90), turn(40)}, {turn(100), turn(100), turn(10)}}
	got := ratios(turns)
	assert.Equal(t, ratio{Median: 2, Min: 0.9, Max: 4}, got["read"]["iops"])
	assert.Equal(t, ratio{Median: 1, Min: 1, Max: 1}, got["read"]["lat_us_p50"])
	assert.NotContains(t, got, "write", "there was none")
	assert.InDelta(t, 2.5, median([]float64{4, 1, 2, 3}), 1e-9)
}

// An interrupt ends the run and not its results, be it ever so early.
func TestInterruptedBenchTellsWhatItMeasured(t *testing.T) {
	url := "iscsi://" + startBenchDaemon(t)
	f := &benchFlags{rw: "randread", bs: "4k", depth: 4, jobs: 1, rounds: 3}
	p := bench.Plan{ReadPercent: 100, Random: true, MinBytes: 4096, MaxBytes: 4096, Depth: f.depth, Time: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, run := range map[string]func(*app, []*benched) error{
		"one": func(a *app, all []*benched) error { return a.runBench(ctx, all[0], f, p) },
		"two": func(a *app, all []*benched) error { return a.runComparison(ctx, all, f, p) },
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		require.NoError(t, err)
		a := &app{out: out, errOut: out, quiet: true, output: "table", timeout: demoPatience}
		a.tune.immediateData = "yes"
		var all []*benched
		for range 2 {
			b, err := a.openBench(t.Context(), url, f, p)
			require.NoError(t, err)
			all = append(all, b)
		}
		err = run(a, all)
		assert.ErrorContains(t, err, "interrupted: these are the results so far", name)
		assert.Equal(t, exitOther, exitCode(err))
		b, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		assert.Contains(t, string(b), "IOPS", name)
		require.NoError(t, errors.Join(all[0].Close(), all[1].Close(), out.Close()))
	}
}

func TestWrongDataHasItsExitCode(t *testing.T) {
	wrong := fmt.Errorf("read: %w", &bench.MismatchError{Mismatch: &stamp.Mismatch{Kind: stamp.Zeros}})
	assert.Equal(t, exitMismatch, exitCode(benchError("iscsi://h", wrong)))
	assert.Equal(t, exitTimeout, exitCode(benchError("iscsi://h", context.DeadlineExceeded)))
	assert.NoError(t, benchError("iscsi://h", nil))
}

func TestCountsAreShort(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 9999: "9999", 20_140: "20.1k", 2_084_000: "2.08M"} {
		assert.Equal(t, want, count(n))
	}
}

// Every field of the JSON stands in its documentation.
func TestBenchJSONIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/IOBENCH.md")
	require.NoError(t, err)
	for _, v := range []any{benchReport{}, benchSide{}, bench.Point{}, comparison{}, ratio{}} {
		for f := range reflect.TypeOf(v).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			require.NotEmpty(t, name, f.Name)
			assert.Contains(t, string(doc), "`"+name+"`")
		}
	}
	for _, f := range comparedFigures {
		assert.Contains(t, string(doc), "`"+f.name+"`")
	}
	assert.Contains(t, string(doc), fmt.Sprintf("## JSON, version %d\n", benchVersion))
}
