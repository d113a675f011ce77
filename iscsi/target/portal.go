package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// acceptPause is how long a portal waits after a failed accept, for example when descriptors run out.
const acceptPause = 100 * time.Millisecond

// PortalConfig describes a network portal.
type PortalConfig struct {
	// Tag is the portal group tag; 0 means 1.
	Tag uint16
	// Advertise is what discovery answers in place of the listener's address; zero: that one, or the address
	// that the discovering initiator has connected to if the listener takes connections on any address, and
	// nothing if the initiator could not use it (loopback and link-local addresses).
	Advertise netip.AddrPort
}

// A portal is a listener in use.
type portal struct {
	s        *Server
	listener iscsi.Listener
	config   PortalConfig
	cancel   context.CancelFunc
	done     chan struct{} // closed when nothing is accepted any more
}

// Serve accepts connections of a listener until Shutdown or until the listener is closed; it returns at
// once and owns l from then on, unless it fails. The pool, and what RegisterMemory has told, is registered
// with it.
func (s *Server) Serve(l iscsi.Listener, c PortalConfig) error {
	if c.Tag == 0 {
		c.Tag = 1
	}
	s.setup.Lock()
	defer s.setup.Unlock()
	for i, mem := range s.memory {
		if err := l.Register(mem); err != nil {
			unregister(l, s.memory[:i])
			return fmt.Errorf("portal %v: register %d bytes of memory: %w", l.Addr(), len(mem), err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &portal{s: s, listener: l, config: c, cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		cancel()
		unregister(l, s.memory)
		return fmt.Errorf("portal %v: %w", l.Addr(), errServerClosed)
	}
	s.portals = append(s.portals, p)
	go p.accept(ctx)
	return nil
}

func unregister(l iscsi.Listener, list [][]byte) {
	for _, mem := range list {
		_ = l.Unregister(mem)
	}
}

func (s *Server) portalList() []*portal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.portals)
}

// accept starts a loop for each connection.
func (p *portal) accept(ctx context.Context) {
	defer close(p.done)
	for {
		dm, err := p.listener.Accept(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		case errors.Is(err, net.ErrClosed):
			p.gone()
			return
		default:
			if p.s.quiet.allow(time.Now()) {
				p.s.log.WithField("err", err).Warnf("portal %v: connection not accepted", p.listener.Addr())
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		c := newConn(p.s, p, dm)
		if !p.s.admit(c) {
			_ = dm.Close()
			continue
		}
		go c.run()
	}
}

// gone forgets a portal whose listener has been closed from outside.
func (p *portal) gone() {
	p.cancel()
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.portals, p); i >= 0 {
		s.portals = slices.Delete(s.portals, i, i+1)
	}
}

// RegisterMemory makes memory known to every listener, present and future (a store in RAM). If one
// refuses, none keeps it.
func (s *Server) RegisterMemory(mem []byte) error {
	s.setup.Lock()
	defer s.setup.Unlock()
	portals := s.portalList()
	for i, p := range portals {
		if err := p.listener.Register(mem); err != nil {
			for _, done := range portals[:i] {
				_ = done.listener.Unregister(mem)
			}
			return fmt.Errorf("portal %v: register %d bytes of memory: %w", p.listener.Addr(), len(mem), err)
		}
	}
	s.memory = append(s.memory, mem)
	return nil
}

// UnregisterMemory takes back what RegisterMemory was given. No command may use it any more.
func (s *Server) UnregisterMemory(mem []byte) error {
	s.setup.Lock()
	defer s.setup.Unlock()
	i := slices.IndexFunc(s.memory, func(m []byte) bool { return len(m) == len(mem) && len(m) > 0 && &m[0] == &mem[0] })
	if i < 0 {
		return errors.New("unregister memory that was not registered")
	}
	s.memory = slices.Delete(s.memory, i, i+1)
	var errs []error
	for _, p := range s.portalList() {
		if err := p.listener.Unregister(mem); err != nil {
			errs = append(errs, fmt.Errorf("portal %v: %w", p.listener.Addr(), err))
		}
	}
	return errors.Join(errs...)
}
