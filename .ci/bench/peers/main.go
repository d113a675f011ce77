// Peers measures iserd beside other targets, in turn and with the same client, and says how they compare: `make
// bench-peers`. It needs root, a C compiler, libiscsi-dev and tgt; out/bench/BENCH.md is what comes of it.
//
//	peers [-quick] [-out DIRECTORY]
//
// It starts itself again for what must be a process of its own: `peers load` is our initiator as a client, `peers
// limit` the bare sockets that nothing can be faster than.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "load":
		err = load(ctx, os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "limit":
		err = limit(os.Args[2:])
	default:
		err = run(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	begun := time.Now()
	fs := flag.NewFlagSet("peers", flag.ExitOnError)
	quick := fs.Bool("quick", false, "fewer workloads, 2 minutes")
	out := fs.String("out", "out/bench", "`DIRECTORY` for BENCH.md, bench.json and bench.svg")
	_ = fs.Parse(args) // it exits
	p := full
	if *quick {
		p = short
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	b, err := newBed(ctx, p)
	if b != nil {
		defer func() { err = errors.Join(err, b.close()) }()
	}
	if err != nil {
		return err
	}
	r := &result{Date: begun.UTC(), Machine: machine(), Versions: b.versions, Plan: p}
	r.Load[0] = loadAverage()
	if err := measure(ctx, b, p, begun, r); err != nil {
		return err
	}
	r.Load[1] = loadAverage()
	r.Memory = b.memory(ctx)
	for _, f := range []struct {
		name  string
		write func(*os.File) error
	}{{"bench.json", r.json}, {"bench.svg", r.svg}, {"BENCH.md", r.markdown}} {
		if err := writeFile(filepath.Join(*out, f.name), f.write); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "%d rounds in %v; see %s\n", r.Rounds, time.Since(begun).Round(time.Second), filepath.Join(*out, "BENCH.md"))
	return r.aimsTo(os.Stdout)
}

func writeFile(name string, write func(*os.File) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// measure runs every workload on everything that it is for, in turn, round after round, as long as there is time.
func measure(ctx context.Context, b *bed, p plan, begun time.Time, r *result) error {
	runs := p.runs(b.subjects)
	r.Series = make([]series, len(runs))
	for i, x := range runs {
		r.Series[i] = series{Subject: x.subject.name, Workload: x.workload.String()}
	}
	for round := range p.Rounds {
		start := time.Now()
		for i, x := range runs {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s, err := b.sample(ctx, x)
			if err != nil { // a peer's failure is a result, too
				r.Series[i].Error = err.Error()
				fmt.Fprintf(os.Stderr, "%s, %s: %v\n", x.subject.name, x.workload, err)
				continue
			}
			s.Round = round
			r.Series[i].Samples = append(r.Series[i].Samples, s)
		}
		r.Rounds = round + 1
		took := time.Since(start)
		fmt.Fprintf(os.Stderr, "round %d of %d: %d runs in %v\n", round+1, p.Rounds, len(runs), took.Round(time.Second))
		if time.Since(begun)+took > p.Limit {
			break
		}
	}
	return nil
}
