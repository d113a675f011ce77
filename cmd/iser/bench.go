package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/iser/bench"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/spf13/cobra"
)

// benchFlags are the flags of iser bench as typed.
type benchFlags struct {
	rw, bs, offset, size string
	depth, jobs, rounds  int
	time, ramp           time.Duration
	destructive, verify  bool
	compare, hist, svg   string
}

const benchHelp = `Keeps --depth requests of each of --jobs sessions under way for a time, and prints rates and latency percentiles.
Patterns are those of fio: read, write (sequential), randread, randwrite, and rw=N (random, N percent reads). --bs is one
size, or a range: any multiple of its first size up to its second. A latency is from when a request is made until its end
is known; slat is the part of it in which requests are handed over, clat the rest.

Writing overwrites the disk: --destructive says that this is meant. --verify has all writes carry their address, a seed
and a checksum, checks what is read of that, and reads all of it back at the end; that costs processor time.

--compare measures a second disk in the same run, in turn (A B A B ...), --time for each in --rounds turns, and prints
the first one's figures divided by the second one's: the median of the rounds, and between what they lay.

Interrupted, it tells what it has measured so far.

-o json, --hist (an HdrHistogram percentile file) and --svg are described in docs/IOBENCH.md.
`

func (a *app) benchCmd() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench URL",
		Short: "Measure throughput and latency",
		Long:  benchHelp + urlHelp,
		Example: "  iser bench iser://10.0.0.1 --rw randread --bs 4k --depth 32 --time 10s\n" +
			"  iser bench iser://10.0.0.1 --rw rw=70 --bs 4k-64k --jobs 4 --destructive --svg run.svg --hist run.hgrm\n" +
			"  iser bench iser://10.0.0.1 --compare iscsi://10.0.0.1 --bs 4k --depth 1",
		Args: exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.bench(cmd.Context(), args[0], &f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.rw, "rw", "randread", "read, write, randread, randwrite or rw=PERCENT")
	fl.StringVar(&f.bs, "bs", "4KiB", "request size, or a range of sizes as 4k-64k")
	fl.IntVar(&f.depth, "depth", 32, "requests in flight, for each job")
	fl.IntVar(&f.jobs, "jobs", 1, "sessions that work at once")
	fl.DurationVar(&f.time, "time", 10*time.Second, "how long to measure")
	fl.DurationVar(&f.ramp, "ramp", time.Second, "how long to run before measuring")
	fl.StringVar(&f.offset, "offset", "0", "where the part of the disk begins that is used")
	fl.StringVar(&f.size, "size", "", "how much of the disk is used (default: to its end)")
	fl.BoolVar(&f.destructive, "destructive", false, "allow writes")
	fl.BoolVar(&f.verify, "verify", false, "check what is written, while measuring and at the end")
	fl.StringVar(&f.compare, "compare", "", "measure this `URL` too, in turn, and print the ratio")
	fl.IntVar(&f.rounds, "rounds", 5, "with --compare: turns of each")
	fl.StringVar(&f.hist, "hist", "", "write the latency distribution to this `FILE`")
	fl.StringVar(&f.svg, "svg", "", "draw throughput and latency over time in this `FILE`")
	return c
}

// plan reads the flags; what depends on the disk is checked later.
func (f *benchFlags) plan() (bench.Plan, error) {
	p := bench.Plan{Depth: f.depth, Time: f.time, Ramp: f.ramp, Verify: f.verify, Seed: uint64(time.Now().UnixNano())}
	var err error
	if p.ReadPercent, p.Random, err = parsePattern(f.rw); err != nil {
		return p, err
	}
	if p.ReadPercent < 100 && !f.destructive {
		return p, fmt.Errorf("--rw %s overwrites the disk; say --destructive", f.rw)
	}
	if p.Verify && p.ReadPercent == 100 {
		return p, fmt.Errorf("--verify with --rw %s: nothing is written that could be checked; `iser verify --check-only` checks what is there", f.rw)
	}
	if p.MinBytes, p.MaxBytes, err = parseSizes(f.bs); err != nil {
		return p, err
	}
	if p.OffsetBytes, err = backstore.ParseSize(f.offset); err != nil {
		return p, fmt.Errorf("--offset: %w", err)
	}
	if f.size != "" {
		if p.SizeBytes, err = backstore.ParseSize(f.size); err != nil {
			return p, fmt.Errorf("--size: %w", err)
		}
		if p.SizeBytes <= 0 {
			return p, fmt.Errorf("--size %s: want more than nothing", f.size)
		}
	}
	if f.compare != "" {
		if f.rounds < 1 || f.rounds > maxRounds {
			return p, fmt.Errorf("--rounds %d: want 1 to %d", f.rounds, maxRounds)
		}
		p.Time /= time.Duration(f.rounds)
	}
	return p, nil
}

// parsePattern reads --rw.
func parsePattern(rw string) (readPercent int, random bool, err error) {
	switch rw {
	case "read", "randread":
		return 100, rw == "randread", nil
	case "write", "randwrite":
		return 0, rw == "randwrite", nil
	}
	s, ok := strings.CutPrefix(rw, "rw=")
	n, err := strconv.Atoi(s)
	if !ok || err != nil || n < 0 || n > 100 {
		return 0, false, fmt.Errorf("--rw %q: want read, write, randread, randwrite or rw=0 to rw=100 (percent of reads)", rw)
	}
	return n, true, nil
}

// parseSizes reads --bs: SIZE or SIZE-SIZE.
func parseSizes(bs string) (low, high int, err error) {
	from, to, ranged := strings.Cut(bs, "-")
	if !ranged {
		to = from
	}
	a, err := backstore.ParseSize(from)
	if err == nil {
		var b int64
		if b, err = backstore.ParseSize(to); err == nil && a >= backstore.MinBlock && a <= b && b <= bench.MaxRequest && b%a == 0 {
			return int(a), int(b), nil
		}
	}
	return 0, 0, fmt.Errorf("--bs %q: want 512 bytes to %s, or a range of which the second size is a multiple of the first",
		bs, humanize.IBytes(bench.MaxRequest))
}

// A benched is one target of a run.
type benched struct {
	url      string // that can be shown
	sessions []*initiator.Session
	run      *bench.Run
}

func (b *benched) Close() error {
	if b.run != nil {
		b.run.Close()
	}
	var errs []error
	for _, s := range b.sessions {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// openBench logs in once for each job.
func (a *app) openBench(ctx context.Context, url string, f *benchFlags, p bench.Plan) (*benched, error) {
	if f.jobs < 1 || f.jobs > bench.MaxJobs {
		return nil, usage(fmt.Errorf("--jobs %d: want 1 to %d", f.jobs, bench.MaxJobs))
	}
	if f.depth < 1 || f.depth > bench.MaxDepth {
		return nil, usage(fmt.Errorf("--depth %d: want 1 to %d", f.depth, bench.MaxDepth))
	}
	a.depth = f.depth
	b := &benched{url: dial.Redact(url)}
	var disks []bench.Disk
	for range f.jobs {
		s, d, err := a.disk(ctx, url)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		b.sessions = append(b.sessions, s)
		disks = append(disks, benchDisk(d))
	}
	err := p.Check(f.jobs, &disks[0])
	if err == nil {
		b.run, err = bench.New(disks, p, cpuTime)
	}
	if err != nil {
		return nil, errors.Join(usage(fmt.Errorf("bench %s: %w", b.url, err)), b.Close())
	}
	return b, nil
}

func benchDisk(d *initiator.Disk) bench.Disk {
	open := func(depth int) (bench.Queue, error) {
		q, err := d.Batch(depth)
		if err != nil {
			return nil, fmt.Errorf("requests of more than %s are sent in parts: %w; give a smaller --bs or --depth", humanize.IBytes(uint64(d.MaxTransfer())), err)
		}
		return q, nil
	}
	return bench.Disk{SizeBytes: d.SizeBytes(), BlockSize: d.BlockSize(), MaxTransfer: d.MaxTransfer(), Open: open}
}

func (a *app) bench(ctx context.Context, url string, f *benchFlags) error {
	p, err := f.plan()
	if err != nil {
		return usage(err)
	}
	if f.compare != "" {
		return a.compare(ctx, url, f, p)
	}
	b, err := a.openBench(ctx, url, f, p)
	if err != nil {
		return err
	}
	return errors.Join(a.runBench(ctx, b, f, p), b.Close())
}

func (a *app) runBench(ctx context.Context, b *benched, f *benchFlags, p bench.Plan) error {
	if _, err := a.benchTurn(ctx, b, f, p); err != nil {
		return err
	}
	if err := a.finishBench(context.WithoutCancel(ctx), []*benched{b}, f); err != nil {
		return err
	}
	return errors.Join(a.printBench(b, f, p), interrupted(ctx))
}

// interrupted is the error of a run whose results are of less time than was asked for; nil if it was not interrupted.
func interrupted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return errors.New("bench: interrupted: these are the results so far")
}

// benchTurn runs one turn with a live line. When ctx ends the turn does, with a result: a second signal ends the program.
func (a *app) benchTurn(ctx context.Context, b *benched, f *benchFlags, p bench.Plan) (*bench.Result, error) {
	defer context.AfterFunc(ctx, func() {
		signal.Reset()
		b.run.Stop()
	})()
	stop := a.liveBench(b, f, p)
	r, err := b.run.Turn(context.WithoutCancel(ctx))
	stop()
	return r, benchError(b.url, err)
}

// benchError says what was measured, and gives what was read wrong its exit code.
func benchError(url string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("bench %s: %w", url, err)
	if _, wrong := errors.AsType[*bench.MismatchError](err); wrong {
		return coded(exitMismatch, err)
	}
	return err
}

// finishBench reads back what was written, and writes the files that were asked for.
func (a *app) finishBench(ctx context.Context, all []*benched, f *benchFlags) error {
	if f.verify {
		for _, b := range all {
			n, err := b.run.Check(ctx)
			if err != nil {
				return benchError(b.url, err)
			}
			a.note("%s: read back %s, all as it was written", b.url, humanize.IBytes(uint64(n)))
		}
	}
	if f.hist != "" {
		if err := saveHists(f.hist, all); err != nil {
			return fmt.Errorf("--hist: %w", err)
		}
	}
	if f.svg != "" {
		if err := saveBenchSVG(f.svg, f.title(), all); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	return nil
}

// title is a run in a few words.
func (f *benchFlags) title() string {
	s := fmt.Sprintf("%s %s depth %d", f.rw, f.bs, f.depth)
	if f.jobs > 1 {
		s += fmt.Sprintf(" jobs %d", f.jobs)
	}
	return s
}
