package target

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goiser/goiser/iscsi"
)

// An address is where a portal can be reached, as SendTargets tells it (RFC 7143, 13.8).
type address struct {
	at  netip.AddrPort
	tag uint16 // of the portal group
}

func (a address) String() string { return fmt.Sprintf("%v,%d", a.at, a.tag) }

// addresses lists the portals that the peer of c can use: those of its transport.
func (s *Server) addresses(c *conn) []address {
	here, _ := addrPort(c.dm.LocalAddr().String())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addressesLocked(c.traits.Name, here.Addr())
}

// addressesLocked lists the portals of a transport ("": of all) for peers that have connected to the address here.
// What Advertise says is shown as it stands. Else
//
//   - a portal that listens on any address is shown with the one that the peer has connected to, if it takes
//     connections there;
//   - a loopback address is for peers on this host only;
//   - a link-local address means something on one link only, and its zone something on one host only (RFC
//     4007): it is shown to who has connected to it.
func (s *Server) addressesLocked(transport string, here netip.Addr) []address {
	var list []address
	for _, p := range s.portals {
		if transport != "" && p.listener.Transport() != transport {
			continue
		}
		a := address{p.config.Advertise, p.config.Tag}
		if !a.at.IsValid() {
			listens, ok := addrPort(p.listener.Addr().String())
			if !ok {
				continue
			}
			if a.at, ok = reachable(listens, here); !ok {
				continue
			}
		}
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// A Publication is a target as a name service tells of it.
type Publication struct {
	Name    iscsi.Name
	Alias   string
	Portals []PublishedPortal
}

// A PublishedPortal is an address of a portal group.
type PublishedPortal struct {
	Addr netip.AddrPort
	Tag  uint16
}

// Publications lists the targets that can be reached, by name, with the addresses that discovery would tell who has
// connected to the address here, over all transports.
func (s *Server) Publications(here netip.Addr) []Publication {
	targets := s.Targets()
	s.mu.Lock()
	addresses := s.addressesLocked("", here)
	s.mu.Unlock()
	var list []Publication
	for _, t := range targets {
		p := Publication{Name: t.c.Name, Alias: t.c.Alias}
		for _, a := range addresses {
			if t.servedIn(a.tag) {
				p.Portals = append(p.Portals, PublishedPortal{a.at, a.tag})
			}
		}
		if len(p.Portals) > 0 {
			list = append(list, p)
		}
	}
	return list
}

// reachable is where a peer that has connected to the address here finds a portal that listens at a; ok is
// false if it does not.
func reachable(a netip.AddrPort, here netip.Addr) (_ netip.AddrPort, ok bool) {
	switch ip := a.Addr(); {
	case ip.IsUnspecified():
		// The IPv6 one takes IPv4 too, as Linux has it.
		return netip.AddrPortFrom(here, a.Port()), here.IsValid() && (ip.Is6() || here.Is4())
	case ip.IsLoopback():
		return a, here.IsLoopback()
	case ip.IsLinkLocalUnicast():
		return a, ip == here
	}
	return a, true
}

// addrPort reads an address without what only this host understands: an IPv6 zone, or IPv4 in IPv6's clothes.
func addrPort(s string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(strings.TrimSpace(s))
	if err != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()), true
}
