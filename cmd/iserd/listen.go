package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
)

// A listener has its portal's settings with it.
type listener struct {
	iscsi.Listener
	portal conf.Portal
}

// listen listens on every portal: by TCP and, where it can or must be, by iSER at the same address.
func (s *service) listen(c *conf.Config, openRDMA func() (rdma.Provider, error)) error {
	provider, missing := s.rdma(c, openRDMA)
	for _, p := range c.Portals {
		l, err := tcp.Listen(p.Listen.String())
		if err != nil {
			return fmt.Errorf("portal %v: %w", p.Listen, err)
		}
		s.listeners = append(s.listeners, listener{l, p})
		if p.Provider == conf.ProviderTCP {
			continue
		}
		err = missing
		if err == nil {
			err = s.listenISER(provider, p, port(l), c.Limits.CommandsPerSession)
		}
		switch {
		case err == nil:
		case p.Provider == conf.ProviderVerbs:
			return fmt.Errorf("portal %v: iSER: %w", p.Listen, err)
		case errors.Is(err, rdma.ErrUnavailable):
			s.log.WithField("err", err).Infof("portal %v: TCP only, no iSER here", p.Listen)
		default: // there is a device, but something is wrong
			s.log.WithField("err", err).Warnf("portal %v: TCP only, no iSER here", p.Listen)
		}
	}
	return nil
}

// listenISER takes the port that TCP has got, for a portal may ask for any (0).
func (s *service) listenISER(provider rdma.Provider, p conf.Portal, port uint16, window int) error {
	l, err := iser.Listen(provider, netip.AddrPortFrom(p.Listen.Addr(), port), iser.TargetConfig{Window: window})
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, listener{l, p})
	return nil
}

func port(l iscsi.Listener) uint16 {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		panic(fmt.Sprintf("iserd: a TCP listener's address is a %T", l.Addr()))
	}
	return a.AddrPort().Port()
}

// rdma opens the RDMA provider if a portal may use it. The error says why there is none.
func (s *service) rdma(c *conf.Config, open func() (rdma.Provider, error)) (rdma.Provider, error) {
	wanted := false
	for _, p := range c.Portals {
		wanted = wanted || p.Provider != conf.ProviderTCP
	}
	if !wanted {
		return nil, errors.New("no portal wants RDMA")
	}
	p, err := open()
	if err != nil {
		return nil, err
	}
	if err := checkLockable(s.registered()); err != nil {
		return nil, err
	}
	return p, nil
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
