package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/provider"
)

// portal is the portal with these settings; nil if there is none.
func (s *service) portal(c conf.Portal) *servedPortal {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.portals {
		if p.conf == c {
			return p
		}
	}
	return nil
}

// bind listens on a portal: by TCP and, where it can or must be, by iSER at the same address. Nothing is accepted yet.
func (s *service) bind(c conf.Portal) (undo, error) {
	l, err := tcp.Listen(c.Listen.String())
	if err != nil {
		return nil, fmt.Errorf("portal %v: %w", c.Listen, err)
	}
	p := &servedPortal{conf: c, listeners: []iscsi.Listener{l}}
	if c.Provider != conf.ProviderTCP {
		err = s.bindISER(p, port(l))
		switch {
		case err == nil:
		case c.Provider != conf.ProviderAuto:
			return nil, errors.Join(fmt.Errorf("portal %v: iSER: %w", c.Listen, err), l.Close())
		default:
			s.log.WithField("err", err).Warnf("portal %v: TCP only, no iSER here", c.Listen)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.portals = append(s.portals, p)
	return func(ctx context.Context) error { return s.drop(ctx, p) }, nil
}

// bindISER takes the port that TCP has got, for a portal may ask for any (0).
func (s *service) bindISER(p *servedPortal, port uint16) error {
	rp, err := s.provider(s.openRDMA, p.conf)
	if err != nil {
		return err
	}
	config := iser.TargetConfig{Window: s.limits.CommandsPerSession, Trace: s.trace}
	l, err := iser.Listen(rp, netip.AddrPortFrom(p.conf.Listen.Addr(), port), config)
	if err != nil {
		return err
	}
	used := rp.Name()
	if c, ok := rp.(*provider.Provider); ok {
		used = c.Used()
	}
	if used == provider.Verbs {
		if err := checkLockable(s.registered()); err != nil {
			return errors.Join(err, l.Close())
		}
		s.pinStores()
	}
	p.listeners, p.rdma = append(p.listeners, l), used
	s.log.Infof("portal %v: iSER by %s", p.conf.Listen, used)
	return nil
}

// accept hands a portal's listeners to the server.
func (s *service) accept(c conf.Portal) (undo, error) {
	p := s.bound(c)
	for _, l := range p.listeners {
		if err := s.server.Serve(l, target.PortalConfig{Tag: uint16(c.Group), Advertise: c.Advertise}); err != nil {
			return nil, err // what bind has done is undone, and this with it
		}
		s.mu.Lock()
		p.accepting++
		s.mu.Unlock()
		s.log.Infof("listening on %v, %s", l.Addr(), l.Transport())
	}
	return nil, nil
}

// bound is a portal with these settings of which nothing is accepted yet.
func (s *service) bound(c conf.Portal) *servedPortal {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.portals, func(p *servedPortal) bool { return p.conf == c && p.accepting == 0 })
	return s.portals[i]
}

// unbind ends a portal with its sessions.
func (s *service) unbind(ctx context.Context, c conf.Portal) (undo, error) {
	back := func(context.Context) error {
		if _, err := s.bind(c); err != nil {
			return err
		}
		_, err := s.accept(c)
		return err
	}
	if err := s.drop(ctx, s.portal(c)); err != nil {
		return back, fmt.Errorf("portal %v: %w", c.Listen, err)
	}
	s.log.Infof("portal %v: not listening any more", c.Listen)
	return back, nil
}

func (s *service) drop(ctx context.Context, p *servedPortal) error {
	s.mu.Lock()
	s.portals = slices.DeleteFunc(s.portals, func(q *servedPortal) bool { return p == q })
	s.mu.Unlock()
	var errs []error
	for i, l := range p.listeners {
		if i < p.accepting {
			errs = append(errs, s.server.RemovePortal(ctx, l))
		} else {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}
