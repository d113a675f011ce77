package target

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// InitiatorConfig is what holds for one initiator on a target, in place of what holds for all.
type InitiatorConfig struct {
	Name iscsi.Name
	// Auth is what it has to prove; nil: nothing.
	Auth *chap.Credentials
	// LUNs are the numbers of the units that it sees; nil: all.
	LUNs []int
	// ReadOnly: it cannot write.
	ReadOnly bool
}

// rights are who may use a target and how, by name and address. They do not change.
type rights struct {
	names    map[iscsi.Name]bool // that may log in; nil: any
	networks []netip.Prefix      // from which; empty: any
	auth     *chap.Credentials   // of initiators without an entry
	entries  map[iscsi.Name]InitiatorConfig
}

func newRights(c *TargetConfig) (rights, error) {
	r := rights{networks: c.AllowFrom, auth: c.Auth, entries: make(map[iscsi.Name]InitiatorConfig)}
	admit := func(s string) (iscsi.Name, error) {
		name, err := iscsi.ParseName(s)
		if err != nil {
			return "", fmt.Errorf("allowed initiator: %w", err)
		}
		if r.names == nil {
			r.names = make(map[iscsi.Name]bool)
		}
		r.names[name] = true
		return name, nil
	}
	for _, s := range c.Allow {
		if _, err := admit(s); err != nil {
			return r, err
		}
	}
	if err := checkAuth(c.Auth); err != nil {
		return r, err
	}
	for _, e := range c.Initiators {
		name, err := admit(string(e.Name))
		if err != nil {
			return r, err
		}
		if err := checkAuth(e.Auth); err != nil {
			return r, fmt.Errorf("initiator %s: %w", name, err)
		}
		r.entries[name] = e
	}
	return r, nil
}

func checkAuth(c *chap.Credentials) error {
	if c == nil {
		return nil
	}
	return c.Check()
}

// allow reports whether an initiator may log in from an address, and see the target.
func (r *rights) allow(initiator iscsi.Name, from netip.Addr) bool {
	if r.names != nil && !r.names[initiator] {
		return false
	}
	for _, n := range r.networks {
		if n.Contains(from) {
			return true
		}
	}
	return len(r.networks) == 0
}

// of is what holds for an initiator that may log in.
func (r *rights) of(initiator iscsi.Name) InitiatorConfig {
	if e, ok := r.entries[initiator]; ok {
		return e
	}
	return InitiatorConfig{Name: initiator, Auth: r.auth}
}

// addrOf is a peer's address without port and zone, and with IPv4 out of IPv6's clothes; zero if it has none, which
// is in no network.
func addrOf(a net.Addr) netip.Addr {
	ap, _ := addrPort(a.String())
	return ap.Addr()
}

// peerBits is how much of an IPv6 address tells peers apart: who has one address of a /64 has all.
const peerBits = 64

// peerNet is whom limits count an address for.
func peerNet(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() && !a.IsLinkLocalUnicast() { // all link-local addresses share one /64
		bits = peerBits
	}
	p, _ := a.Prefix(bits) // the zero one of what is no address
	return p
}
