package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/goiser/goiser/cmd/events"
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

// keptEvents is how many events are kept for iser events.
const keptEvents = 4096

// serveCommand serves until a signal.
func (a *app) serveCommand() error {
	logs, err := newLogLevels(a.errOut, a.flags.log)
	if err != nil {
		return err
	}
	ring := events.New(keptEvents)
	logs.addHook(ring)
	log := logs.of("target")
	adoptGlobalLog(log)
	c, err := a.flags.configuration()
	if err != nil {
		return err
	}
	var file *configFile
	if a.flags.config != "" {
		if file, err = newConfigFile(a.flags.config); err != nil {
			return err
		}
	}
	hook, closeTrace, err := a.openTrace()
	if err != nil {
		return err
	}
	defer closeTrace()
	open, closePackets, err := a.openPackets(log, a.openRDMA(logs.of("rdma")))
	if err != nil {
		return err
	}
	defer closePackets()
	s, err := start(c, log, open, hook)
	if err != nil {
		return err
	}
	m := newManager(s, c, logs.of("config"), file, a.flags.configuration)
	t := &tracer{busy: a.flags.pcap != ""}
	server, err := a.openAdmin(m, logs, ring, t)
	if err != nil {
		return errors.Join(err, a.stop(m, nil, t))
	}
	looking, err := a.openLookers(m, ring, log)
	if err != nil {
		return errors.Join(err, a.stop(m, server, t))
	}
	defer func() { _ = looking.close() }()
	if a.flags.config == "" {
		fmt.Fprintf(a.out, "try: iser bench %s\n", s.url())
	}
	s.notify(daemon.SdNotifyReady)
	defer s.watch()()
	log.Infof("%v: stopping; a second signal ends at once", a.wait(m))
	looking.stop()
	s.notify(daemon.SdNotifyStopping)
	return a.stop(m, server, t)
}

// wait returns the first signal to stop. SIGHUP has the file read again.
func (a *app) wait(m *manager) os.Signal {
	for sig := range a.signals {
		if sig != syscall.SIGHUP {
			return sig
		}
		r, err := m.reload(context.Background(), options{force: true})
		switch {
		case err != nil:
			m.log.WithFields(logrus.Fields{"event": "config", "err": toError(err)}).Error("reload: the file is not in force")
		default:
			m.log.WithField("event", "config").Infof("reloaded: %d changes", len(r.Steps))
		}
	}
	return os.Interrupt // nobody can send any
}

// openAdmin serves the admin API where --admin says. Without it that is the usual place, if it can be had: several
// daemons may run, and not all of them may write there.
func (a *app) openAdmin(m *manager, logs *logLevels, ring *events.Ring, t *tracer) (*adminServer, error) {
	path, asked := a.flags.adminPath()
	if path == "" {
		return nil, nil
	}
	s, err := serveAdmin(path, a.flags.adminGroup, m, logs.of("config"), logs, ring, t)
	if err == nil || asked {
		return s, err
	}
	m.log.WithField("err", err).Infof("no admin socket: iser cannot manage this iserd; --admin unix:PATH takes another place")
	return nil, nil
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

// stop stops in order, unless a second signal comes or it takes too long. A change in progress is waited for.
func (a *app) stop(m *manager, server *adminServer, t *tracer) error {
	stopped := make(chan error, 1)
	go func() {
		var errs []error
		if server != nil {
			ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
			errs = append(errs, server.close(ctx))
			cancel()
		}
		m.busy.Lock()
		if t.state().Running {
			_, err := t.stop()
			errs = append(errs, err)
		}
		stopped <- errors.Join(append(errs, m.s.stop())...)
	}()
	late := time.After(stopLimit)
	for {
		select {
		case err := <-stopped:
			return err
		case sig := <-a.signals:
			if sig != syscall.SIGHUP {
				return fmt.Errorf("%v again: ended at once", sig)
			}
		case <-late:
			return fmt.Errorf("not stopped after %v: a store does not answer; ended", stopLimit)
		}
	}
}
