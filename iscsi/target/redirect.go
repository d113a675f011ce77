package target

import (
	"fmt"
	"net"
	"slices"

	"github.com/goiser/goiser/iscsi"
)

// A Redirect makes a target answer logins with the place where to go instead (RFC 7143, 11.13.5). It does so
// before the initiator has proved who it is: what it says is no secret, and what is there asks for proof itself.
type Redirect struct {
	// To is ADDRESS:PORT or NAME:PORT, an IPv6 address in brackets.
	To string
	// Permanent: the initiator may remember the new place.
	Permanent bool
	// Groups lists the tags of the portal groups in which the target has moved; empty means all.
	Groups []uint16
}

// check finds what nobody could follow.
func (r *Redirect) check() error {
	if r == nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(r.To); err != nil {
		return fmt.Errorf("redirect to %q: %w", r.To, err)
	}
	return nil
}

// servedIn reports whether the target is served, and seen, through a portal group.
func (t *Target) servedIn(tag uint16) bool {
	return len(t.c.Groups) == 0 || slices.Contains(t.c.Groups, tag)
}

// moved is the refusal that says where the target has gone from a portal group; nil: it is here. The address
// has no portal group tag in a redirection (RFC 7143, 13.8).
func (t *Target) moved(tag uint16) error {
	r := t.c.Redirect
	if r == nil || len(r.Groups) > 0 && !slices.Contains(r.Groups, tag) {
		return nil
	}
	err := refusal(iscsi.LoginMovedTemporarily, "%s has moved to %s", t.c.Name, r.To)
	if err.Address = r.To; r.Permanent {
		err.Status = iscsi.LoginMovedPermanently
	}
	return err
}
