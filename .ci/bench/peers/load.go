package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"golang.org/x/sys/unix"
)

// maxMicros is the longest latency that is told from longer ones, as in load.c.
const maxMicros = 4_000_000

// A loader is our initiator doing what load.c does, with the same arguments and the same answer.
type loader struct {
	w     workload
	warm  time.Time
	end   time.Time
	next  atomic.Int64 // sequential requests
	all   atomic.Int64
	mu    sync.Mutex
	total *hdrhistogram.Histogram
}

func flags(name string, args []string) (w workload, seconds float64, rest []string) {
	fs := flag.NewFlagSet(name, flag.ExitOnError)
	fs.StringVar(&w.Mode, "m", "randread", "mode")
	fs.IntVar(&w.Bytes, "b", 4096, "bytes")
	fs.IntVar(&w.Depth, "q", 32, "depth of a session")
	fs.Float64Var(&seconds, "t", 1, "seconds")
	fs.IntVar(&w.Sessions, "s", 1, "sessions")
	fs.IntVar(&w.LUNs, "l", 1, "LUNs: one")
	_ = fs.Parse(args) // it exits
	return w, seconds, fs.Args()
}

func load(ctx context.Context, args []string) (err error) {
	w, seconds, rest := flags("load", args)
	if len(rest) != 1 || w.LUNs != 1 {
		return errors.New("load: want one URL, of one LUN")
	}
	d := &dial.Dialer{Options: initiator.Options{QueueDepth: max(w.Depth, 1)}, Source: source()}
	defer func() { err = errors.Join(err, d.Close()) }()
	disks := make([]*dial.Disk, w.Sessions)
	for i := range disks {
		if disks[i], err = d.Dial(ctx, rest[0]); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, disks[i].Close()) }()
	}
	fmt.Println("ready")
	if w.Depth == 0 {
		time.Sleep(time.Duration(seconds * float64(time.Second))) // idle is what was asked for
		return nil
	}
	return drive(ctx, w, seconds, disks)
}

// source is a loopback address that no target of ours has: they have 127.x.y.10 and on.
func source() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(os.Getpid() >> 8), byte(os.Getpid()), 200})
}

func drive(ctx context.Context, w workload, seconds float64, disks []*dial.Disk) error {
	used, begun := processorTime(), time.Now()
	l := &loader{
		w: w, total: hdrhistogram.New(1, maxMicros, 3),
		warm: begun.Add(time.Duration(seconds * 1e8)), end: begun.Add(time.Duration(seconds * 1e9)),
	}
	errs := make([]error, len(disks))
	var wg sync.WaitGroup
	for i, d := range disks {
		wg.Go(func() { errs[i] = l.session(ctx, d, uint64(i)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h := l.total
	return json.NewEncoder(os.Stdout).Encode(counted{
		Seconds: l.end.Sub(l.warm).Seconds(), IOs: float64(h.TotalCount()), All: float64(l.all.Load()),
		CPU: (processorTime() - used).Seconds(), Mean: h.Mean(), P50: float64(h.ValueAtQuantile(50)),
		P99: float64(h.ValueAtQuantile(99)), P999: float64(h.ValueAtQuantile(99.9)),
	})
}

// A slot is one request under way, in as many pieces as the target takes.
type slot struct {
	buf   []byte
	begun time.Time
	left  int
}

// session keeps Depth requests under way on one disk.
func (l *loader) session(ctx context.Context, d *dial.Disk, seed uint64) error {
	piece := min(l.w.Bytes, d.MaxTransfer())
	batch, err := d.Batch(l.w.Depth * ((l.w.Bytes + piece - 1) / piece))
	if err != nil {
		return err
	}
	defer batch.Close()
	rng, h := rand.New(rand.NewPCG(1, seed)), hdrhistogram.New(1, maxMicros, 3)
	slots := make([]slot, l.w.Depth)
	add := func(tag int, now time.Time) error {
		s, off := &slots[tag], l.offset(d, rng)
		s.begun = now
		for n := 0; n < len(s.buf); n += piece {
			p, at := s.buf[n:min(n+piece, len(s.buf))], off+int64(n)
			op := batch.ReadAt
			if l.w.writes() {
				op = batch.WriteAt
			}
			if err := op(p, at, uint64(tag)); err != nil {
				return err
			}
			s.left++
		}
		return nil
	}
	now := time.Now()
	for i := range slots {
		slots[i].buf = make([]byte, l.w.Bytes)
		for k := range slots[i].buf {
			slots[i].buf[k] = byte(rng.Uint32())
		}
		if err := add(i, now); err != nil {
			return err
		}
	}
	done := make([]initiator.Completion, l.w.Depth)
	for batch.Len() > 0 {
		n, err := batch.Wait(ctx, done, 1)
		if err != nil {
			return err
		}
		now := time.Now()
		for _, c := range done[:n] {
			if c.Err != nil {
				return c.Err
			}
			s := &slots[c.Tag]
			if s.left--; s.left > 0 {
				continue
			}
			l.all.Add(1)
			if now.After(l.warm) && now.Before(l.end) {
				if err := h.RecordValue(min(max(now.Sub(s.begun).Microseconds(), 1), maxMicros)); err != nil {
					return err
				}
			}
			if now.Before(l.end) {
				if err := add(int(c.Tag), now); err != nil {
					return err
				}
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.Merge(h)
	return nil
}

func (l *loader) offset(d *dial.Disk, rng *rand.Rand) int64 {
	n := d.SizeBytes() / int64(l.w.Bytes)
	if strings.HasPrefix(l.w.Mode, "rand") {
		return rng.Int64N(n) * int64(l.w.Bytes)
	}
	return (l.next.Add(1) - 1) % n * int64(l.w.Bytes)
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err) // the arguments are right
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
