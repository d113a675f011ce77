package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/statedir"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// A service is everything that runs: what a configuration has become. One change at a time is made to it (apply);
// mu is for those who look meanwhile.
type service struct {
	log      logrus.FieldLogger
	since    time.Time
	limits   conf.Limits
	stateDir string
	openRDMA opener
	state    *statedir.Dir // nil: none
	pool     *arena.Pool
	server   *target.Server
	trace    func(iser.TraceEvent)
	stopISNS func() // takes the registration back; nil: there is none

	mu        sync.Mutex
	order     []*openedStore // in the order in which they were opened
	stores    map[string]*openedStore
	retired   map[string]*openedStore // replaced by another of the name, and not closed yet
	targets   map[iscsi.Name]*servedTarget
	portals   []*servedPortal
	providers map[providerKey]rdma.Provider
	discovery conf.Discovery
	isns      conf.ISNS
	pinned    bool // a device knows memory by its pages
}

// An openedStore is a store with what it was opened by.
type openedStore struct {
	backstore.Store
	conf   conf.Backstore
	memory []byte // that the server was told of
}

// A servedTarget is a target with its device. A disabled one is not the server's.
type servedTarget struct {
	conf conf.Target
	dev  *scsi.Device
}

// A servedPortal is an address that is listened on, by one listener a transport.
type servedPortal struct {
	conf      conf.Portal
	listeners []iscsi.Listener
	accepting int    // how many of them are the server's
	rdma      string // provider of iSER; empty: none
}

// start makes a configuration run: the change from nothing to it. Everything is opened and checked before the first
// address is listened on, and every address is listened on before the first connection is accepted. After an error
// nothing is left open.
func start(c *conf.Config, log logrus.FieldLogger, openRDMA opener, hook func(iser.TraceEvent)) (_ *service, err error) {
	for _, w := range c.Warnings {
		log.Warn(w)
	}
	s := &service{
		log: log, since: time.Now(), limits: c.Limits, stateDir: c.StateDir, openRDMA: openRDMA, trace: hook,
		stores: map[string]*openedStore{}, retired: map[string]*openedStore{}, targets: map[iscsi.Name]*servedTarget{},
		providers: map[providerKey]rdma.Provider{}, discovery: c.Discovery,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err := s.openState(c.StateDir); err != nil {
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
	nothing := &conf.Config{Version: c.Version, Limits: c.Limits, StateDir: c.StateDir, Discovery: c.Discovery}
	changes, err := plan(nothing, c)
	if err != nil {
		return nil, err
	}
	if err := s.apply(context.Background(), changes, options{}); err != nil {
		return nil, err
	}
	s.warnShared()
	return s, nil
}

// warnShared tells of stores that are two disks to initiators: reservations, COMPARE AND WRITE and the order of tasks
// hold within one unit.
func (s *service) warnShared() {
	first := map[string]string{} // a store's first logical unit
	for _, t := range s.targetList() {
		for _, l := range t.conf.LUNs {
			other := first[l.Store]
			if other == "" {
				first[l.Store] = fmt.Sprintf("LUN %d of %s", l.Number, t.conf.Name)
			} else if !s.stores[l.Store].Info().ReadOnly {
				s.log.Warnf("backstore %s: LUN %d of %s and %s are two disks to initiators, on the same blocks; unless all of them only read, serve it once, through more portals",
					l.Store, l.Number, t.conf.Name, other)
			}
		}
	}
}

// targetList lists the targets by name.
func (s *service) targetList() []*servedTarget {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*servedTarget
	for _, t := range s.targets {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *servedTarget) int { return slices.Compare([]byte(a.conf.Name), []byte(b.conf.Name)) })
	return list
}

// stop ends whatever of the service has been started, front to back.
func (s *service) stop() error {
	var errs []error
	if s.stopISNS != nil {
		s.stopISNS()
	}
	for _, p := range s.portals {
		for _, l := range p.listeners[p.accepting:] { // not the server's
			errs = append(errs, l.Close())
		}
	}
	if s.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
		defer cancel()
		if err := s.server.Shutdown(ctx); err != nil {
			s.log.WithField("err", err).Warnf("commands in progress were cut off after %v", drainLimit)
		}
	}
	errs = append(errs, s.closeProviders())
	for _, st := range slices.Backward(s.order) {
		s.tellFaults(st)
		if err := st.Close(); err != nil { // flushes too
			errs = append(errs, fmt.Errorf("backstore %s: %w", st.conf.Name, err))
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
func (s *service) tellFaults(st *openedStore) {
	switch store := st.Store.(type) {
	case *backstore.FaultStore:
		if list, forgotten := store.Faults(); len(list) > 0 {
			s.log.Infof("backstore %s: %d faults were injected", st.conf.Name, forgotten+uint64(len(list)))
		}
	case *backstore.PatternStore:
		if n, first := store.Wrong(); n > 0 {
			s.log.Warnf("backstore %s: %d wrong sectors were written; the first: %v", st.conf.Name, n, first[0])
		}
	}
}

// served lists the listeners.
func (s *service) served() []iscsi.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []iscsi.Listener
	for _, p := range s.portals {
		list = append(list, p.listeners...)
	}
	return list
}

// url is where an initiator on this host can try: by iSER if that is served.
func (s *service) url() string {
	list := s.served()
	best := list[0]
	for _, l := range list {
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
