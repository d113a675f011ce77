package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/verbs"
)

// A resolver is the part of an rdma.Provider that connects: the first of several that reaches an address does it.
type resolver struct {
	list    []rdma.Provider
	missing error // why verbs is not in the list
}

// open makes the resolver that URL.RDMA asks for. For Verbs an error wraps rdma.ErrUnavailable and says what is missing.
func open(name string, source netip.Addr) (*resolver, error) {
	r := &resolver{}
	if name != RoCE {
		v, err := verbs.Open()
		if err != nil && name == Verbs {
			return nil, err
		}
		if r.missing = err; err == nil {
			r.list = append(r.list, v)
		}
	}
	if name != Verbs {
		r.list = append(r.list, roce.New(roce.Options{Addr: source}))
	}
	return r, nil
}

// Name implements rdma.Provider.
func (r *resolver) Name() string { return r.list[0].Name() }

// Listen implements rdma.Provider; who dials does not listen.
func (r *resolver) Listen(netip.AddrPort) (rdma.Listener, error) {
	return nil, fmt.Errorf("listen: %w", errors.ErrUnsupported)
}

// Resolve implements rdma.Provider. Where none reaches the address, the error says why of each.
func (r *resolver) Resolve(ctx context.Context, addr netip.AddrPort) (rdma.Endpoint, error) {
	errs := []error{r.missing}
	for _, p := range r.list {
		ep, err := p.Resolve(ctx, addr)
		if err == nil {
			return ep, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (r *resolver) close() error {
	var errs []error
	for _, p := range r.list {
		if c, ok := p.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
