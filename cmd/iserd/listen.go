package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/sirupsen/logrus"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// A listener has its portal's settings with it.
type listener struct {
	iscsi.Listener
	portal conf.Portal
}

// An opener opens the RDMA provider of a portal.
type opener func(conf.Portal) (rdma.Provider, error)

// openRDMA opens providers that log what they warn of.
func openRDMA(log logrus.FieldLogger) opener {
	return func(p conf.Portal) (rdma.Provider, error) {
		return provider.Open(p.Provider, roce.Options{External: p.External, Warn: func(w string) { log.Warn(w) }})
	}
}

// listen listens on every portal: by TCP and, where it can or must be, by iSER at the same address.
func (s *service) listen(c *conf.Config, open opener) error {
	for _, p := range c.Portals {
		l, err := tcp.Listen(p.Listen.String())
		if err != nil {
			return fmt.Errorf("portal %v: %w", p.Listen, err)
		}
		s.listeners = append(s.listeners, listener{l, p})
		if p.Provider == conf.ProviderTCP {
			continue
		}
		err = s.listenISER(open, p, port(l), c.Limits.CommandsPerSession)
		switch {
		case err == nil:
		case p.Provider != conf.ProviderAuto:
			return fmt.Errorf("portal %v: iSER: %w", p.Listen, err)
		default:
			s.log.WithField("err", err).Warnf("portal %v: TCP only, no iSER here", p.Listen)
		}
	}
	return nil
}

// listenISER takes the port that TCP has got, for a portal may ask for any (0).
func (s *service) listenISER(open opener, p conf.Portal, port uint16, window int) error {
	rp, err := s.provider(open, p)
	if err != nil {
		return err
	}
	l, err := iser.Listen(rp, netip.AddrPortFrom(p.Listen.Addr(), port), iser.TargetConfig{Window: window, Trace: s.trace})
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
	s.listeners = append(s.listeners, listener{l, p})
	s.log.Infof("portal %v: iSER by %s", p.Listen, used)
	return nil
}

// provider opens one provider for all portals that want the same of it: RoCE has one port an address.
func (s *service) provider(open opener, p conf.Portal) (rdma.Provider, error) {
	key := providerKey{p.Provider, p.External}
	if rp := s.providers[key]; rp != nil {
		return rp, nil
	}
	rp, err := open(p)
	if err != nil {
		return nil, err
	}
	s.providers[key] = rp
	return rp, nil
}

type providerKey struct {
	name     string
	external netip.Addr
}

func (s *service) closeProviders() error {
	var errs []error
	for _, p := range s.providers {
		if c, ok := p.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

func port(l iscsi.Listener) uint16 {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		panic(fmt.Sprintf("iserd: a TCP listener's address is a %T", l.Addr()))
	}
	return a.AddrPort().Port()
}

// pinStores tells stores in memory, before it is registered, that a device will know their pages.
func (s *service) pinStores() {
	for _, st := range s.stores {
		if p, ok := st.(backstore.Pinner); ok {
			p.Pin()
		}
	}
}

// registered is how many bytes of memory a device will be told of.
func (s *service) registered() int64 {
	n := int64(len(s.pool.Memory()))
	for _, st := range s.stores {
		if m, ok := st.(backstore.Mapper); ok {
			n += int64(len(m.Memory()))
		}
	}
	return n
}
