// Package fabric is an RDMA provider inside this process: queue pairs joined by memory copies, with
// strict verbs rules and completions in any legal order by seed. It is for tests and for `make demo`.
package fabric

import (
	"context"
	"net/netip"

	"github.com/goiser/goiser/iser/rdma"
)

// Fabric is a provider; endpoints of one Fabric reach each other.
type Fabric struct{}

// Options of New.
type Options struct {
	// Seed orders what may legally come in any order: how long Send completions are held back, and how
	// completions of different queue pairs mix. 0: everything at once, in order.
	Seed uint64
}

// New makes a fabric.
func New(o Options) *Fabric { panic("not written") }

// Name is "fabric".
func (f *Fabric) Name() string { return "fabric" }

// Listen implements rdma.Provider.
func (f *Fabric) Listen(addr netip.AddrPort) (rdma.Listener, error) { panic("not written") }

// Resolve implements rdma.Provider.
func (f *Fabric) Resolve(ctx context.Context, addr netip.AddrPort) (rdma.Endpoint, error) {
	panic("not written")
}
