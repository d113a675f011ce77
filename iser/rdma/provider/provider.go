// Package provider chooses the RDMA provider of an address: the one that is asked for or, if that is left open, verbs
// where the address lies on an RDMA device and roce elsewhere.
package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/verbs"
)

// The choices. TCP is none of them: it is no RDMA.
const (
	Auto  = "auto"
	Verbs = "verbs"
	RoCE  = "roce"
)

// A Provider is the first of several that serves an address. It is an rdma.Provider.
type Provider struct {
	name    string
	list    []rdma.Provider
	missing error // why verbs is not in the list

	mu   sync.Mutex
	used string
}

var _ rdma.Provider = (*Provider)(nil)

// Open opens the provider called name. For Verbs an error wraps rdma.ErrUnavailable and says what is missing.
func Open(name string, o roce.Options) (*Provider, error) {
	p := &Provider{name: name}
	if name != RoCE {
		v, err := verbs.Open()
		if err != nil && name == Verbs {
			return nil, err
		}
		if p.missing = err; err == nil {
			p.list = append(p.list, v)
		}
	}
	if name != Verbs {
		p.list = append(p.list, roce.New(o))
	}
	return p, nil
}

// Name is what was asked for; Used is the provider that the last successful Listen or Resolve took.
func (p *Provider) Name() string { return p.name }

// Used is "verbs" or "roce", or empty before the first success.
func (p *Provider) Used() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Listen implements rdma.Provider. Where none serves the address, the error says why of each.
func (p *Provider) Listen(addr netip.AddrPort) (rdma.Listener, error) {
	return first(p, func(q rdma.Provider) (rdma.Listener, error) { return q.Listen(addr) })
}

// Resolve implements rdma.Provider.
func (p *Provider) Resolve(ctx context.Context, addr netip.AddrPort) (rdma.Endpoint, error) {
	return first(p, func(q rdma.Provider) (rdma.Endpoint, error) { return q.Resolve(ctx, addr) })
}

func first[T any](p *Provider, try func(rdma.Provider) (T, error)) (got T, err error) {
	errs := []error{p.missing}
	for _, q := range p.list {
		got, err := try(q)
		if err == nil {
			p.mu.Lock()
			p.used = q.Name()
			p.mu.Unlock()
			return got, nil
		}
		errs = append(errs, err)
	}
	return got, errors.Join(errs...)
}

// ErrNoPackets: a device, or the kernel, makes the packets of verbs. They cannot be captured here.
var ErrNoPackets = errors.New("only the packets of our own RoCE (provider roce) can be captured; for TCP use tcpdump, for an RDMA device its vendor's sniffer or tcpdump on the interface, for rxe tcpdump port 4791")

// Watch shows the packets of our own RoCE to w from now on; nil ends it. Without it the error wraps ErrNoPackets.
func (p *Provider) Watch(w link.Watcher) error {
	if r := p.RoCE(); r != nil {
		r.Watch(w)
		return nil
	}
	return fmt.Errorf("provider %s: %w", p.name, ErrNoPackets)
}

// RoCE is our own RoCE among the providers, whose counters can be read; nil if it is not there.
func (p *Provider) RoCE() *roce.Provider {
	for _, q := range p.list {
		if r, ok := q.(*roce.Provider); ok {
			return r
		}
	}
	return nil
}

// Close closes what was opened, connections included.
func (p *Provider) Close() error {
	var errs []error
	for _, q := range p.list {
		if c, ok := q.(io.Closer); ok {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", q.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}
