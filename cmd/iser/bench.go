package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/spf13/cobra"
)

// A benchPlan is what to measure.
type benchPlan struct {
	readPercent int
	random      bool
	bs          int // bytes
	depth       int // requests in flight
	time, ramp  time.Duration
}

func (a *app) benchCmd() *cobra.Command {
	var rw, bs string
	var destructive bool
	p := benchPlan{}
	c := &cobra.Command{
		Use:   "bench URL",
		Short: "Measure throughput and latency",
		Long: `Runs reads, writes or a mix for a time and prints rates and latency percentiles. Patterns are those of fio:
read, write (sequential), randread, randwrite, and rw=N (random, N percent reads). Writing overwrites the
disk: --destructive says that this is meant.
` + urlHelp,
		Example: "  iser bench iser://10.0.0.1 --rw randread --bs 4k --depth 32 --time 10s",
		Args:    exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.parse(rw, bs); err != nil {
				return usage(err)
			}
			if p.readPercent < 100 && !destructive {
				return usage(fmt.Errorf("--rw %s overwrites the disk; say --destructive", rw))
			}
			s, d, err := a.disk(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			if d.SizeBytes() < int64(p.bs) || p.bs%d.BlockSize() != 0 {
				return usage(fmt.Errorf("--bs %d: want a multiple of %d bytes up to the disk's size", p.bs, d.BlockSize()))
			}
			return a.bench(cmd.Context(), dial.Redact(args[0]), rw, d, p)
		},
	}
	f := c.Flags()
	f.StringVar(&rw, "rw", "randread", "read, write, randread, randwrite or rw=PERCENT")
	f.StringVar(&bs, "bs", "4KiB", "request size")
	f.IntVar(&p.depth, "depth", 32, "requests in flight")
	f.DurationVar(&p.time, "time", 10*time.Second, "how long to measure")
	f.DurationVar(&p.ramp, "ramp", time.Second, "how long to run before measuring")
	f.BoolVar(&destructive, "destructive", false, "allow writes")
	return c
}

func (p *benchPlan) parse(rw, bs string) error {
	n, err := backstore.ParseSize(bs)
	if err != nil || n < 512 || n > verify.MaxRequest {
		return fmt.Errorf("--bs %q: want 512 bytes to %s", bs, humanize.IBytes(verify.MaxRequest))
	}
	p.bs = int(n)
	if p.depth < 1 || p.depth > verify.MaxDepth {
		return fmt.Errorf("--depth %d: want 1 to %d", p.depth, verify.MaxDepth)
	}
	switch rw {
	case "read", "randread":
		p.readPercent = 100
	case "write", "randwrite":
		p.readPercent = 0
	default:
		s, ok := strings.CutPrefix(rw, "rw=")
		n, err := strconv.Atoi(s)
		if !ok || err != nil || n < 0 || n > 100 {
			return fmt.Errorf("--rw %q: want read, write, randread, randwrite or rw=0 to rw=100", rw)
		}
		p.readPercent = n
	}
	p.random = rw != "read" && rw != "write"
	return nil
}

// A benchSide is the result of one direction. Latencies are in microseconds.
type benchSide struct {
	IOs       int64   `json:"ios"`
	IOPS      float64 `json:"iops"`
	BytesPerS float64 `json:"bytes_per_second"`
	Min       float64 `json:"lat_us_min"`
	P50       float64 `json:"lat_us_p50"`
	P90       float64 `json:"lat_us_p90"`
	P99       float64 `json:"lat_us_p99"`
	P999      float64 `json:"lat_us_p999"`
	Max       float64 `json:"lat_us_max"`
	Mean      float64 `json:"lat_us_mean"`
}

// Latencies are kept in microseconds from 1 to a minute, to 3 digits.
const maxLatencyMicros = 60_000_000

func newHist() *hdrhistogram.Histogram { return hdrhistogram.New(1, maxLatencyMicros, 3) }

// A bencher is a run in progress.
type bencher struct {
	disk  blockDevice
	plan  benchPlan
	next  atomic.Int64 // sequential position, in requests
	bytes atomic.Int64
	from  time.Time // start of measuring
	until time.Time

	mu          sync.Mutex
	read, write *hdrhistogram.Histogram
}

func (a *app) bench(ctx context.Context, url, rw string, d blockDevice, p benchPlan) error {
	now := time.Now()
	b := &bencher{disk: d, plan: p, from: now.Add(p.ramp), until: now.Add(p.ramp + p.time), read: newHist(), write: newHist()}
	bar := a.progress(fmt.Sprintf("%s %s depth %d", rw, humanize.IBytes(uint64(p.bs)), p.depth), 0)
	stop := make(chan struct{})
	var live sync.WaitGroup
	live.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				bar.update(b.bytes.Load())
			case <-stop:
				return
			}
		}
	})
	err := b.run(ctx)
	close(stop)
	live.Wait()
	bar.finish()
	if err != nil {
		return fmt.Errorf("bench %s: %w", url, err)
	}
	return a.printBench(url, rw, p, b)
}

func (b *bencher) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range b.plan.depth {
		wg.Go(func() {
			if err := b.worker(ctx, uint64(i)); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (b *bencher) worker(ctx context.Context, id uint64) error {
	rng := rand.New(rand.NewPCG(1, id))
	buf := make([]byte, b.plan.bs)
	for i := range buf {
		buf[i] = byte(rng.Uint32())
	}
	read, write := newHist(), newHist()
	for ctx.Err() == nil {
		start := time.Now()
		if start.After(b.until) {
			break
		}
		isRead := b.plan.readPercent == 100 || rng.IntN(100) < b.plan.readPercent
		var err error
		if off := b.offset(rng); isRead {
			err = b.disk.ReadAt(ctx, buf, off)
		} else {
			err = b.disk.WriteAt(ctx, buf, off)
		}
		if err != nil {
			return err
		}
		b.bytes.Add(int64(b.plan.bs))
		if start.Before(b.from) {
			continue
		}
		h := write
		if isRead {
			h = read
		}
		us := min(max(time.Since(start).Microseconds(), 1), maxLatencyMicros)
		if err := h.RecordValue(us); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read.Merge(read)
	b.write.Merge(write)
	return nil
}

func (b *bencher) offset(rng *rand.Rand) int64 {
	n := b.disk.SizeBytes() / int64(b.plan.bs)
	if b.plan.random {
		return rng.Int64N(n) * int64(b.plan.bs)
	}
	return (b.next.Add(1) - 1) % n * int64(b.plan.bs)
}

func (b *bencher) side(h *hdrhistogram.Histogram) *benchSide {
	n, secs := h.TotalCount(), b.plan.time.Seconds()
	if n == 0 {
		return nil
	}
	q := func(p float64) float64 { return float64(h.ValueAtQuantile(p)) }
	return &benchSide{
		IOs: n, IOPS: float64(n) / secs, BytesPerS: float64(n) * float64(b.plan.bs) / secs,
		Min: float64(h.Min()), P50: q(50), P90: q(90), P99: q(99), P999: q(99.9), Max: float64(h.Max()), Mean: h.Mean(),
	}
}

func (a *app) printBench(url, rw string, p benchPlan, b *bencher) error {
	sides := map[string]*benchSide{"read": b.side(b.read), "write": b.side(b.write)}
	if a.json() {
		return a.printJSON(map[string]any{
			"url": url, "rw": rw, "bs": p.bs, "depth": p.depth, "seconds": p.time.Seconds(),
			"read": sides["read"], "write": sides["write"],
		})
	}
	for _, name := range []string{"read", "write"} {
		s := sides[name]
		if s == nil {
			continue
		}
		fmt.Fprintf(a.out, "%-5s  ios %d  %s/s  %.0f IOPS\n", name, s.IOs, humanize.IBytes(uint64(s.BytesPerS)), s.IOPS)
		fmt.Fprintf(a.out, "lat us min %.0f  p50 %.0f  p90 %.0f  p99 %.0f  p99.9 %.0f  max %.0f  mean %.0f\n",
			s.Min, s.P50, s.P90, s.P99, s.P999, s.Max, s.Mean)
	}
	return nil
}
