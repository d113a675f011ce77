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
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// An opener opens the RDMA provider of a portal.
type opener func(conf.Portal) (rdma.Provider, error)

// openRDMA opens providers that log what they warn of.
func openRDMA(log logrus.FieldLogger) opener {
	return func(p conf.Portal) (rdma.Provider, error) {
		return provider.Open(p.Provider, roce.Options{External: p.External, Warn: func(w string) { log.Warn(w) }})
	}
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
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.pinned = true
	for _, st := range s.stores {
		if p, ok := st.Store.(backstore.Pinner); ok {
			p.Pin()
		}
	}
}

// registered is how many bytes of memory a device will be told of.
func (s *service) registered() int64 {
	n := int64(len(s.pool.Memory()))
	for _, st := range s.stores {
		if m, ok := st.Store.(backstore.Mapper); ok {
			n += int64(len(m.Memory()))
		}
	}
	return n
}
