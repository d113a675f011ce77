package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/scsi"
	"github.com/spf13/cobra"
)

const (
	demoName    = "iqn.2026-01.local.iser:demo"
	demoAddress = "127.0.0.1:3260"
	demoDisk    = 64 << 20
	demoPool    = 32 << 20
)

func (a *app) demoCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Serve a RAM disk over iSER in this process, log in, write, verify, and show the order of events",
		Long: `Starts a target with a RAM disk and an initiator in one process, joined by a software RDMA fabric: no root, no
kernel module, no device. It prints what happens on the wire for a few commands, then verifies the disk.`,
		Args: exactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context()) },
	}
}

func (a *app) demo(ctx context.Context) (err error) {
	t := &tracer{start: time.Now()}
	f := fabric.New(fabric.Options{})
	srv, stop, err := demoTarget(f, t)
	if err != nil {
		return fmt.Errorf("demo: start the target: %w", err)
	}
	defer func() {
		if serr := stop(); err == nil && serr != nil {
			err = fmt.Errorf("demo: stop the target: %w", serr)
		}
	}()
	fmt.Fprintf(a.out, "target     %s, LUN 0, %s RAM, on the in-process fabric at %s\n", demoName, humanize.IBytes(demoDisk), demoAddress)

	o := a.options()
	tr := &iser.Dialer{Provider: f, Config: iser.InitiatorConfig{Trace: t.initiator}}
	s, err := initiator.Open(ctx, tr, demoAddress, demoName, o)
	if err != nil {
		return fmt.Errorf("demo: log in: %w", err)
	}
	defer s.Close()
	p := srv.Sessions()[0].Params
	fmt.Fprintf(a.out, "logged in  over iSER: ImmediateData=%v InitialR2T=%v FirstBurstLength=%d MaxBurstLength=%d\n\n",
		p.ImmediateData, p.InitialR2T, p.FirstBurstLength, p.MaxBurstLength)
	d, err := s.Disk(ctx, 0)
	if err != nil {
		return fmt.Errorf("demo: open LUN 0: %w", err)
	}
	if err := a.demoCommands(ctx, d, t); err != nil {
		return err
	}
	plan := verifyPlan{size: demoDisk, bs: 1 << 20, mixed: true, seed: uint64(time.Now().UnixNano()), runs: 2, depth: 16}
	return a.verify(ctx, "iser://"+demoAddress+"/"+demoName+"/0", d, plan, ".")
}

// demoTarget starts a target on the fabric; stop ends it.
func demoTarget(f *fabric.Fabric, t *tracer) (*target.Server, func() error, error) {
	store, err := backstore.Open("ram", backstore.Options{"size": fmt.Sprint(demoDisk)})
	if err != nil {
		return nil, nil, err
	}
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: demoName})
	if _, err := dev.Add(0, store, scsi.LUConfig{ID: demoName + ",0"}); err != nil {
		return nil, nil, err
	}
	pool, err := arena.New(demoPool)
	if err != nil {
		return nil, nil, err
	}
	srv := target.New(target.Config{Pool: pool})
	if m, ok := store.(backstore.Mapper); ok {
		if err := srv.RegisterMemory(m.Memory()); err != nil {
			return nil, nil, err
		}
	}
	if _, err := srv.AddTarget(target.TargetConfig{Name: demoName, Device: dev, Negotiate: iscsi.DefaultConfig()}); err != nil {
		return nil, nil, err
	}
	l, err := iser.Listen(f, netip.MustParseAddrPort(demoAddress), iser.TargetConfig{Trace: t.target})
	if err != nil {
		return nil, nil, err
	}
	if err := srv.Serve(l, target.PortalConfig{}); err != nil {
		return nil, nil, err
	}
	return srv, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			return err
		}
		if err := store.Close(); err != nil {
			return err
		}
		return pool.Close()
	}, nil
}

// demoCommands runs four commands one at a time and prints what each did on the wire.
func (a *app) demoCommands(ctx context.Context, d blockDevice, t *tracer) error {
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
		t.record(true)
		err := s.run(ctx, p, 0)
		events := t.record(false)
		if err != nil {
			return fmt.Errorf("demo: %s: %w", s.what, err)
		}
		fmt.Fprintln(a.out, s.what)
		a.printEvents(events)
	}
	return nil
}

func (a *app) printEvents(events []demoEvent) {
	for _, e := range events {
		line := fmt.Sprintf("  %8.1f us  %-9s  %-20s tag %08x", float64(e.at.Nanoseconds())/1000, e.side, e.Step, e.ITT)
		if e.Key != 0 {
			line += fmt.Sprintf("  key %08x  address %012x", e.Key, e.Addr)
		}
		if e.Length > 0 {
			line += fmt.Sprintf("  %6d bytes  first word %08x", e.Length, e.Word)
		}
		fmt.Fprintln(a.out, line)
	}
	fmt.Fprintln(a.out)
}

// A demoEvent is a trace event with its side and its time since the recording began.
type demoEvent struct {
	iser.TraceEvent
	side string
	at   time.Duration
}

// A tracer keeps the events of both ends in the order in which they were reported.
type tracer struct {
	mu     sync.Mutex
	on     bool
	start  time.Time
	events []demoEvent
}

func (t *tracer) initiator(e iser.TraceEvent) { t.add("initiator", e) }
func (t *tracer) target(e iser.TraceEvent)    { t.add("target", e) }

func (t *tracer) add(side string, e iser.TraceEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.on {
		t.events = append(t.events, demoEvent{e, side, time.Since(t.start)})
	}
}

// record starts or ends a recording and returns what the last one holds.
func (t *tracer) record(on bool) []demoEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	events := t.events
	t.on, t.start, t.events = on, time.Now(), nil
	return events
}
