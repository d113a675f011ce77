package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/goiser/goiser/cmd/trace"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/spf13/cobra"
)

const (
	demoDisk = 64 << 20 // bytes
	// demoAddresses is how many loopback addresses are tried: UDP port 4791 of the first may be taken.
	demoAddresses = 8
	demoPatience  = 10 * time.Second
)

func (a *app) demoCmd() *cobra.Command {
	var iserd string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Start iserd with a RAM disk, log in over iSER, write, verify, and show the order of events",
		Long: `Starts iserd as a process of its own with a RAM disk on loopback, and logs in over iSER on our own RoCEv2: no root, no
kernel module, no RDMA device. It prints what happens on both sides for a few commands, then verifies the disk and
stops iserd.`,
		Args: exactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), iserd) },
	}
	c.Flags().StringVar(&iserd, "iserd", "", "the daemon's program (default: beside this one, or in PATH)")
	return c
}

func (a *app) demo(ctx context.Context, program string) (err error) {
	program, err = findDaemon(program)
	if err != nil {
		return err
	}
	log := &eventLog{added: make(chan struct{}, 1)}
	d, err := startDaemon(ctx, program, log)
	if err != nil {
		return fmt.Errorf("demo: start %s: %w", program, err)
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	u, err := parseURL(d.url)
	if err != nil {
		return err
	}
	u.RDMA, u.LUN = provider.RoCE, 0
	fmt.Fprintf(a.out, "target     %s: iserd, process %d, 64 MiB RAM\n", d.url, d.cmd.Process.Pid)
	s, err := a.demoSession(ctx, &u, log)
	if err != nil {
		return fmt.Errorf("demo: log in to %s: %w", u, err)
	}
	defer s.Close()
	disk, err := s.Disk(ctx, 0)
	if err != nil {
		return fmt.Errorf("demo: %s: %w", u, err)
	}
	if err := a.demoCommands(ctx, disk, log); err != nil {
		return err
	}
	plan := verify.Plan{Ranges: []verify.Range{{Start: 0, End: demoDisk}}, Mixed: true, Seed: uint64(time.Now().UnixNano()), Runs: 2, Depth: 16}
	if err := plan.Check(disk.SizeBytes(), disk.BlockSize()); err != nil {
		return fmt.Errorf("demo: %s: %w", u, err)
	}
	return a.verify(ctx, u.String(), []verify.Disk{disk}, plan, verifyFiles{dump: os.TempDir()}, nil)
}

// demoSession logs in over iSER, with the steps of our side going to log.
func (a *app) demoSession(ctx context.Context, u *dial.URL, log *eventLog) (*initiator.Session, error) {
	p, err := a.rdma(*u)
	if err != nil {
		return nil, err
	}
	tr := &iser.Dialer{Provider: p, Config: iser.InitiatorConfig{Trace: func(e iser.TraceEvent) { log.add(trace.New("initiator", e)) }}}
	o, err := a.options(u)
	if err != nil {
		return nil, err
	}
	recs, err := initiator.Discover(ctx, tr, u.Address, o)
	if err != nil {
		return nil, err
	}
	if len(recs) != 1 {
		return nil, fmt.Errorf("%d targets, want one", len(recs))
	}
	u.Target = recs[0].Name
	s, err := initiator.Open(ctx, tr, u.Address, u.Target, o)
	if err != nil {
		return nil, err
	}
	n := s.Params()
	fmt.Fprintf(a.out, "logged in  %s over iSER, RDMA provider %s, process %d\n", u.Target, p.Used(), os.Getpid())
	fmt.Fprintf(a.out, "           ImmediateData=%v InitialR2T=%v FirstBurstLength=%d MaxBurstLength=%d\n\n",
		n.ImmediateData, n.InitialR2T, n.FirstBurstLength, n.MaxBurstLength)
	return s, nil
}

// demoCommands runs four commands one at a time and prints what each did on the wire.
func (a *app) demoCommands(ctx context.Context, d blockDevice, log *eventLog) error {
	steps := []struct {
		what string
		n    int
		run  func(context.Context, []byte, int64) error
	}{
		{"WRITE 4 KiB: all of it inline, no key goes out", 4 << 10, d.WriteAt},
		{"WRITE 64 KiB: the target fetches it by RDMA Read before it executes", 64 << 10, d.WriteAt},
		{"READ 4 KiB: RDMA Write and response are posted together, in that order", 4 << 10, d.ReadAt},
		{"READ 64 KiB", 64 << 10, d.ReadAt},
	}
	for _, s := range steps {
		p := make([]byte, s.n)
		for i := 0; i+4 <= len(p); i += 4 {
			binary.BigEndian.PutUint32(p[i:], 0xc0de0000+uint32(i/4))
		}
		log.clear()
		if err := s.run(ctx, p, 0); err != nil {
			return fmt.Errorf("demo: %s: %w", s.what, err)
		}
		events, err := log.command(ctx)
		if err != nil {
			return fmt.Errorf("demo: %s: %w", s.what, err)
		}
		fmt.Fprintln(a.out, s.what)
		a.printEvents(events)
	}
	return nil
}

func (a *app) printEvents(events []trace.Event) {
	for _, e := range events {
		line := fmt.Sprintf("  %8.1f us  %-9s  %-20s tag %08x", float64(e.At-events[0].At)/1000, e.Side, e.Step, e.Tag)
		if e.Key != 0 {
			line += fmt.Sprintf("  key %08x  address %016x", e.Key, e.Addr)
		}
		if e.Length > 0 {
			line += fmt.Sprintf("  %6d bytes  first word %08x", e.Length, e.Word)
		}
		fmt.Fprintln(a.out, line)
	}
	fmt.Fprintln(a.out)
}

// An eventLog keeps the events of both sides.
type eventLog struct {
	added  chan struct{} // has room for one: something was added
	mu     sync.Mutex
	events []trace.Event
}

func (l *eventLog) add(e trace.Event) {
	l.mu.Lock()
	l.events = append(l.events, e)
	l.mu.Unlock()
	select {
	case l.added <- struct{}{}:
	default:
	}
}

// clear forgets the events so far.
func (l *eventLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = nil
}

// command waits until both sides have told that their Sends of the one command sent since clear have completed, and
// returns its events in the order of their times. Events of earlier commands may still come in from the other process.
func (l *eventLog) command(ctx context.Context) ([]trace.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	for {
		if events := l.whole(); events != nil {
			return events, nil
		}
		select {
		case <-l.added:
		case <-ctx.Done():
			return nil, fmt.Errorf("the target has not told its steps: %w", ctx.Err())
		}
	}
}

// whole returns the command's events if all are there.
func (l *eventLog) whole() []trace.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent := slices.IndexFunc(l.events, func(e trace.Event) bool { return e.Step == iser.TraceCommandSent })
	if sent < 0 {
		return nil
	}
	var events []trace.Event
	done := map[string]bool{}
	for _, e := range l.events {
		if e.Tag == l.events[sent].Tag {
			events = append(events, e)
			done[e.Side] = done[e.Side] || e.Step == iser.TraceSendDone
		}
	}
	if !done["initiator"] || !done["target"] {
		return nil
	}
	slices.SortStableFunc(events, func(a, b trace.Event) int { return int(a.At - b.At) })
	return events
}

// A daemon is an iserd process of ours.
type daemon struct {
	cmd  *exec.Cmd
	url  string
	read sync.WaitGroup // readers of its output
}

// findDaemon looks for iserd beside this program, then in PATH.
func findDaemon(program string) (string, error) {
	if program != "" {
		return program, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "iserd")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("iserd")
	if err != nil {
		return "", coded(exitNotFound, errors.New("demo: no iserd beside this program or in PATH; build it, or name it with --iserd"))
	}
	return path, nil
}

// startDaemon starts iserd on the first loopback address that is free. Its steps go to log, if that is not nil.
func startDaemon(ctx context.Context, program string, log *eventLog) (d *daemon, err error) {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for range demoAddresses {
		if d, err = startDaemonAt(ctx, program, addr, log); err == nil {
			return d, nil
		}
		addr = addr.Next()
	}
	return nil, err
}

func startDaemonAt(ctx context.Context, program string, addr netip.Addr, log *eventLog) (*daemon, error) {
	cmd := exec.CommandContext(ctx, program, "--ram", fmt.Sprint(demoDisk), "--listen", netip.AddrPortFrom(addr, 0).String(),
		"--provider", provider.RoCE, "--log", "error")
	d := &daemon{cmd: cmd}
	started, err := d.trace(log)
	if err != nil {
		return nil, err
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	started()
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for d.url == "" && lines.Scan() {
		_, d.url, _ = strings.Cut(lines.Text(), "try: iser bench ")
	}
	if d.url == "" {
		err := d.cmd.Wait()
		d.read.Wait()
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return d, nil
}

// trace makes the process send its steps to log. Call started when it has been started, or has not.
func (d *daemon) trace(log *eventLog) (started func(), err error) {
	if log == nil {
		return func() {}, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	d.cmd.Args = append(d.cmd.Args, "--trace", "/dev/fd/3")
	d.cmd.ExtraFiles = []*os.File{w}
	d.read.Go(func() {
		_ = trace.Read(r, log.add) // until nobody has the other end open
		_ = r.Close()
	})
	return func() { _ = w.Close() }, nil
}

// stop ends the process in order.
func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have been interrupted together with us
	err := d.cmd.Wait()
	d.read.Wait()
	if err != nil {
		return fmt.Errorf("demo: iserd: %w", err)
	}
	return nil
}
