package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/goiser/goiser/cmd/trace"
	"github.com/goiser/goiser/iser"
	"github.com/sirupsen/logrus"
)

const (
	// drainLimit is how long commands in progress may take after a signal to stop.
	drainLimit = 10 * time.Second
	// stopLimit is how long the whole stop may take: a store that never answers must not hold up a
	// reboot. systemd's own limit is 90 s.
	stopLimit = 30 * time.Second
)

// An app is one invocation of the command.
type app struct {
	flags       flags
	out, errOut io.Writer
	signals     <-chan os.Signal
	openRDMA    func(logrus.FieldLogger) opener
}

// serveCommand serves until a signal.
func (a *app) serveCommand() error {
	log, err := newLog(a.errOut, a.flags.log)
	if err != nil {
		return err
	}
	adoptGlobalLog(log)
	c, err := a.flags.configuration()
	if err != nil {
		return err
	}
	hook, closeTrace, err := a.openTrace()
	if err != nil {
		return err
	}
	defer closeTrace()
	open, closePackets, err := a.openPackets(log, a.openRDMA(log))
	if err != nil {
		return err
	}
	defer closePackets()
	s, err := start(c, log, open, hook)
	if err != nil {
		return err
	}
	if a.flags.config == "" {
		fmt.Fprintf(a.out, "try: iser bench %s\n", s.url())
	}
	s.notify(daemon.SdNotifyReady)
	defer s.watch()()
	log.Infof("%v: stopping; a second signal ends at once", <-a.signals)
	s.notify(daemon.SdNotifyStopping)
	return a.stop(s)
}

// openTrace makes the hook of --trace, nil without it.
func (a *app) openTrace() (hook func(iser.TraceEvent), closeFile func(), err error) {
	if a.flags.trace == "" {
		return nil, func() {}, nil
	}
	f, err := os.OpenFile(a.flags.trace, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("--trace: %w", err)
	}
	return trace.Writer(f, "target"), func() { _ = f.Close() }, nil
}

// stop stops in order, unless a second signal comes or it takes too long.
func (a *app) stop(s *service) error {
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		return err
	case sig := <-a.signals:
		return fmt.Errorf("%v again: ended at once", sig)
	case <-time.After(stopLimit):
		return fmt.Errorf("not stopped after %v: a store does not answer; ended", stopLimit)
	}
}
