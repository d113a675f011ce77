package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/statedir"
	"github.com/goiser/goiser/cmd/trace"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/scsi"
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

// A service is everything that runs: what a configuration has become.
type service struct {
	log       logrus.FieldLogger
	names     []string // of stores, in the order in which they were opened
	stores    map[string]backstore.Store
	state     *statedir.Dir // nil: none
	pool      *arena.Pool
	server    *target.Server
	listeners []listener       // listen, but do not accept yet
	served    []iscsi.Listener // the server's
	providers map[providerKey]rdma.Provider
	trace     func(iser.TraceEvent)
	stopISNS  func() // takes the registration back; nil: there is none
}

// start makes a configuration run. Everything is opened and checked before the first address is listened
// on, and every address is listened on before the first connection is accepted. After an error nothing
// is left open.
func start(c *conf.Config, log logrus.FieldLogger, openRDMA opener, hook func(iser.TraceEvent)) (_ *service, err error) {
	for _, w := range c.Warnings {
		log.Warn(w)
	}
	s := &service{log: log, trace: hook, stores: map[string]backstore.Store{}, providers: map[providerKey]rdma.Provider{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err := s.openState(c.StateDir); err != nil {
		return nil, err
	}
	if err := s.openStores(c.Backstores); err != nil {
		return nil, err
	}
	if s.pool, err = arena.New(c.Limits.Buffers); err != nil {
		return nil, fmt.Errorf("limits.buffers: %w", err)
	}
	perInitiator, perAddress := c.Limits.Shares()
	s.server = target.New(target.Config{
		Pool: s.pool, Log: log,
		MaxSessions: c.Limits.Sessions, MaxInitiatorSessions: perInitiator, MaxPeerConnections: perAddress,
		MaxLogins: c.Limits.Logins, LoginTimeout: c.Limits.LoginTimeout,
		Window: c.Limits.CommandsPerSession, MaxTransfer: uint32(c.Limits.MaxTransfer),
		Discovery: c.Discovery.Auth, NoDiscovery: c.Discovery.Disabled,
	})
	if err := s.addTargets(c); err != nil {
		return nil, err
	}
	if err := s.listen(c, openRDMA); err != nil {
		return nil, err
	}
	if err := s.accept(); err != nil {
		return nil, err
	}
	if err := s.register(c.ISNS); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *service) openStores(list []conf.Backstore) error {
	for _, b := range conf.OpenOrder(list) {
		st, err := s.openStore(b)
		if err != nil {
			return fmt.Errorf("backstore %s: %w", b.Name, err)
		}
		s.stores[b.Name] = st
		s.names = append(s.names, b.Name)
		i := st.Info()
		s.log.Infof("backstore %s: %s, %s (%d bytes)%s", b.Name, b.Type, humanize.IBytes(uint64(i.SizeBytes)), i.SizeBytes, storeNotes(i))
	}
	return nil
}

// openStore opens a store; what it wraps has been opened.
func (s *service) openStore(b conf.Backstore) (backstore.Store, error) {
	if below, wraps := backstore.Wraps(b.Type, b.Options); wraps {
		return backstore.OpenOver(b.Type, b.Options, s.stores[below])
	}
	return backstore.Open(b.Type, b.Options)
}

// storeNotes says what a user should know of a store before trusting it with data.
func storeNotes(i backstore.Info) string {
	notes := ""
	if i.ReadOnly {
		notes += ", read-only"
	}
	if i.Volatile {
		notes += ", lost when iserd ends"
	}
	if i.WriteCache {
		notes += ", with a write cache: durable after a flush"
	}
	return notes
}

// addTargets makes a SCSI device of each target, and tells the server of stores that lie in memory, for
// listeners to register.
func (s *service) addTargets(c *conf.Config) error {
	for _, name := range s.names {
		if m, ok := s.stores[name].(backstore.Mapper); ok {
			if err := s.server.RegisterMemory(m.Memory()); err != nil {
				return fmt.Errorf("backstore %s: %w", name, err)
			}
		}
	}
	first := map[string]string{} // a store's first logical unit
	for _, t := range c.Targets {
		dev := scsi.NewDevice(scsi.DeviceConfig{
			Name: string(t.Name), MaxTransfer: uint32(c.Limits.MaxTransfer), State: s.keeper(),
			PortGroups: c.PortGroups(&t),
		})
		for _, l := range t.LUNs {
			id := fmt.Sprintf("%s,%d,%s", t.Name, l.Number, l.Store) // the same disk after a restart
			_, err := dev.Add(l.Number, s.stores[l.Store], scsi.LUConfig{ID: id, ReadOnly: l.ReadOnly, BlockSize: l.BlockSize})
			if err != nil {
				return fmt.Errorf("target %s: LUN %d, backstore %s: %w", t.Name, l.Number, l.Store, err)
			}
			// Reservations, COMPARE AND WRITE and the order of tasks hold within one unit.
			if other := first[l.Store]; other == "" {
				first[l.Store] = fmt.Sprintf("LUN %d of %s", l.Number, t.Name)
			} else if !s.stores[l.Store].Info().ReadOnly {
				s.log.Warnf("backstore %s: LUN %d of %s and %s are two disks to initiators, on the same blocks; unless all of them only read, serve it once, through more portals",
					l.Store, l.Number, t.Name, other)
			}
		}
		if _, err := s.server.AddTarget(targetConfig(&t, dev)); err != nil {
			return fmt.Errorf("target %s: %w", t.Name, err)
		}
		s.log.WithField("target", t.Name).Infof("target with %d logical units", len(t.LUNs))
	}
	return nil
}

// targetConfig is what the server is told of a target.
func targetConfig(t *conf.Target, dev *scsi.Device) target.TargetConfig {
	c := target.TargetConfig{Name: t.Name, Alias: t.Alias, Device: dev, Negotiate: t.Negotiate, AllowFrom: t.AllowFrom, Auth: t.Auth, Groups: tags(t.Groups)}
	if r := t.Redirect; r != nil {
		c.Redirect = &target.Redirect{To: r.To, Permanent: r.Permanent, Groups: tags(r.Groups)}
	}
	for _, name := range t.Allow {
		c.Allow = append(c.Allow, string(name))
	}
	for _, i := range t.Initiators {
		c.Initiators = append(c.Initiators, target.InitiatorConfig(i))
	}
	return c
}

// tags is portal groups as the wire has them; they have been checked.
func tags(groups []int) []uint16 {
	var list []uint16
	for _, g := range groups {
		list = append(list, uint16(g))
	}
	return list
}

// accept hands the listeners to the server.
func (s *service) accept() error {
	for len(s.listeners) > 0 {
		l := s.listeners[0]
		if err := s.server.Serve(l.Listener, target.PortalConfig{Tag: uint16(l.portal.Group), Advertise: l.portal.Advertise}); err != nil {
			return err
		}
		s.listeners = s.listeners[1:]
		s.served = append(s.served, l.Listener)
		s.log.Infof("listening on %v, %s", l.Addr(), l.Transport())
	}
	return nil
}

// stop ends whatever of the service has been started, front to back.
func (s *service) stop() error {
	var errs []error
	if s.stopISNS != nil {
		s.stopISNS()
	}
	for _, l := range s.listeners { // not yet the server's
		errs = append(errs, l.Close())
	}
	if s.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
		defer cancel()
		if err := s.server.Shutdown(ctx); err != nil {
			s.log.WithField("err", err).Warnf("commands in progress were cut off after %v", drainLimit)
		}
	}
	errs = append(errs, s.closeProviders())
	for _, name := range slices.Backward(s.names) {
		s.tellFaults(name)
		if err := s.stores[name].Close(); err != nil { // flushes too
			errs = append(errs, fmt.Errorf("backstore %s: %w", name, err))
		}
	}
	if s.state != nil {
		errs = append(errs, s.state.Close())
	}
	if s.pool != nil {
		errs = append(errs, s.pool.Close())
	}
	return errors.Join(errs...)
}

// tellFaults says at the end what a store for tests has seen or done.
func (s *service) tellFaults(name string) {
	switch st := s.stores[name].(type) {
	case *backstore.FaultStore:
		if list, forgotten := st.Faults(); len(list) > 0 {
			s.log.Infof("backstore %s: %d faults were injected", name, forgotten+uint64(len(list)))
		}
	case *backstore.PatternStore:
		if n, first := st.Wrong(); n > 0 {
			s.log.Warnf("backstore %s: %d wrong sectors were written; the first: %v", name, n, first[0])
		}
	}
}

// url is where an initiator on this host can try: by iSER if that is served.
func (s *service) url() string {
	best := s.served[0]
	for _, l := range s.served {
		if l.Transport() == "iser" {
			best = l
			break
		}
	}
	scheme := "iscsi://"
	if best.Transport() == "iser" {
		scheme = "iser://"
	}
	a, err := netip.ParseAddrPort(best.Addr().String())
	if err != nil {
		panic(fmt.Sprintf("iserd: a listener's address is %q", best.Addr()))
	}
	if a.Addr().IsUnspecified() {
		return fmt.Sprintf("%slocalhost:%d", scheme, a.Port())
	}
	return scheme + a.String()
}

// notify tells systemd, if it has started us (sd_notify(3)).
func (s *service) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.WithField("err", err).Warn("systemd cannot be notified")
	}
}
