package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/cmd/events"
	"github.com/goiser/goiser/cmd/metrics"
	"github.com/goiser/goiser/cmd/web"
	"github.com/sirupsen/logrus"
)

// Bounds of who looks at metrics and the page.
const (
	lookHeaders = 16 << 10         // bytes of a request's headers; there is no body
	lookTimeout = 10 * time.Second // to send a request, and as much again to take the answer
	lookIdle    = 2 * time.Minute
)

// lookers serve metrics (--metrics) and the page (--web): nobody who looks can change anything. They go on while the daemon
// stops, so that /readyz can say so.
type lookers struct {
	servers  []*http.Server
	wg       sync.WaitGroup
	stopping atomic.Bool
}

// openLookers serves what the flags ask for.
func (a *app) openLookers(m *manager, ring *events.Ring, log logrus.FieldLogger) (*lookers, error) {
	l := new(lookers)
	sites := []struct {
		flag, addr, what string
		handler          http.Handler
	}{
		{"--metrics", a.flags.metrics, "metrics", metrics.Handler(metrics.Source{Snapshot: m.snapshot, Ready: l.ready})},
		{"--web", a.flags.web, "page", web.Handler(web.Source{Snapshot: m.snapshot, Events: ring.Since})},
	}
	for _, s := range sites {
		if s.addr == "" {
			continue
		}
		addr, err := lookAddress(s.addr)
		if err != nil {
			return nil, errors.Join(usagef("%s %q: %w", s.flag, s.addr, err), l.close())
		}
		listener, err := net.Listen("tcp", addr.String())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", s.flag, err), l.close())
		}
		log.Infof("%s on http://%v/", s.what, listener.Addr())
		if !addr.Addr().IsLoopback() {
			log.Warnf("%s: other hosts can reach %v, and nobody has to prove who he is", s.flag, addr)
		}
		l.serve(listener, s.handler)
	}
	return l, nil
}

// lookAddress reads ADDR:PORT; without ADDR it is loopback.
func lookAddress(s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, errors.New("want ADDR:PORT, or :PORT for loopback")
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is no address; want ADDR:PORT, or :PORT for loopback", host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is no port; want 1 to 65535, or 0 for any", port)
	}
	return netip.AddrPortFrom(addr, uint16(n)), nil
}

func (l *lookers) serve(listener net.Listener, h http.Handler) {
	s := &http.Server{
		Handler: h, MaxHeaderBytes: lookHeaders,
		ReadTimeout: lookTimeout, WriteTimeout: 2 * lookTimeout, IdleTimeout: lookIdle,
	}
	l.servers = append(l.servers, s)
	l.wg.Go(func() { _ = s.Serve(listener) }) // it ends with close
}

// ready is nil while logins are taken.
func (l *lookers) ready() error {
	if l.stopping.Load() {
		return errors.New("iserd stops")
	}
	return nil
}

// stop has /readyz say that no logins are taken any more.
func (l *lookers) stop() { l.stopping.Store(true) }

// close ends them, whoever looks.
func (l *lookers) close() error {
	var errs []error
	for _, s := range l.servers {
		errs = append(errs, s.Close())
	}
	l.wg.Wait()
	return errors.Join(errs...)
}
