package conf

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// An Initiator is what holds for one initiator on a target, in place of what holds for all.
type Initiator struct {
	Name iscsi.Name
	// Auth is what it has to prove; nil: nothing.
	Auth *chap.Credentials
	// LUNs are the numbers that it sees; nil: all.
	LUNs     []int
	ReadOnly bool
}

// Discovery says who may ask for the list of targets.
type Discovery struct {
	Disabled bool
	// Auth is what initiators have to prove; nil: nothing.
	Auth *chap.Credentials
}

// readsNetwork tells networks from names in a list of both.
func readsNetwork(s string) bool {
	for _, prefix := range []string{"iqn.", "eui.", "naa."} {
		if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
			return false
		}
	}
	return strings.ContainsAny(s, ".:") && strings.Trim(s, "0123456789abcdefABCDEF.:/%") == ""
}

// allow reads one of the names and networks that may use a target.
func (r *reader) allow(n ast.Node, path string, t *Target) {
	var s string
	r.text(&s)(n, path)
	if !readsNetwork(s) {
		t.Allow = append(t.Allow, iscsi.Name(s))
		return
	}
	p, err := parseNetwork(s)
	if err != nil {
		r.failf(n.GetToken(), path, "%w", err)
		return
	}
	t.AllowFrom = append(t.AllowFrom, p)
}

// parseNetwork reads an address or a network.
func parseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, fmt.Errorf("%.60q is no network; want ADDRESS or ADDRESS/BITS, as 192.0.2.7 or 192.0.2.0/24", s)
	case p != p.Masked():
		return p, fmt.Errorf("%v has bits beyond its first %d; want %v", p, p.Bits(), p.Masked())
	}
	return p, nil
}

// initiator reads an entry of initiators.
func (r *reader) initiator(p pair, t *Target) {
	i := Initiator{Name: iscsi.Name(p.key)}
	r.fields(p.value, p.path,
		field{"auth", r.auth(&i.Auth)},
		field{"luns", func(n ast.Node, path string) {
			i.LUNs = []int{}
			r.items(n, path, func(n ast.Node, path string) {
				var v int
				r.number(&v)(n, path)
				i.LUNs = append(i.LUNs, v)
			})
		}},
		field{"readonly", r.flag(func(v bool) { i.ReadOnly = v })},
	)
	t.Initiators = append(t.Initiators, i)
}

// inherit gives what has no auth of its own the one around it.
func (r *reader) inherit(c *Config, all *chap.Credentials) {
	if r.at["discovery/auth"] == nil {
		c.Discovery.Auth = all
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		path := join("targets", string(t.Name))
		if r.at[join(path, "auth")] == nil {
			t.Auth = all
		}
		for j := range t.Initiators {
			if r.at[join(path, "initiators/"+string(t.Initiators[j].Name)+"/auth")] == nil {
				t.Initiators[j].Auth = t.Auth
			}
		}
	}
}

// access checks who may use a target.
func (k *checker) access(path string, t *Target) {
	for i, a := range t.Allow {
		if _, err := iscsi.ParseName(string(a)); err != nil {
			k.failf(fmt.Sprintf("%s/allow/%d", path, i), "%w; or a network, as 192.0.2.0/24", err)
		}
	}
	k.auth(path+"/auth", t.Auth)
	names := map[iscsi.Name]bool{}
	for _, in := range t.Initiators {
		at := path + "/initiators/" + string(in.Name)
		name, err := iscsi.ParseName(string(in.Name))
		if err != nil {
			k.failf(at, "%w", err)
		} else if names[name] {
			k.failf(at, "a second entry for this initiator (upper and lower case are the same)")
		}
		names[name] = true
		if in.Auth != t.Auth {
			k.auth(at+"/auth", in.Auth)
		}
		for i, lun := range in.LUNs {
			if !slices.ContainsFunc(t.LUNs, func(l LUN) bool { return l.Number == lun }) {
				k.failf(at+"/luns/"+strconv.Itoa(i), "the target has no LUN %d", lun)
			}
		}
	}
}

func (k *checker) auth(path string, c *chap.Credentials) {
	if c == nil {
		return
	}
	if err := c.Check(); err != nil {
		k.failf(path, "%w", err)
	}
}

// secrets holds that no secret proves an initiator in one place and a target in another (RFC 7143, 9.2.1): a
// target asked by the one could ask the other.
func (k *checker) secrets(c *Config) {
	type use struct {
		path string
		c    *chap.Credentials
	}
	uses := []use{{"discovery/auth", c.Discovery.Auth}}
	for _, t := range c.Targets {
		path := "targets/" + string(t.Name)
		uses = append(uses, use{path + "/auth", t.Auth})
		for _, in := range t.Initiators {
			uses = append(uses, use{path + "/initiators/" + string(in.Name) + "/auth", in.Auth})
		}
	}
	initiators, told := map[chap.Secret]string{}, map[*chap.Credentials]bool{}
	for _, u := range uses {
		if u.c != nil {
			initiators[u.c.Secret] = u.path
		}
	}
	for _, u := range uses {
		if u.c == nil || !u.c.Mutual() || told[u.c] || u.c.MutualSecret.Equal(u.c.Secret) { // which Check has found
			continue
		}
		told[u.c] = true
		if other, same := initiators[u.c.MutualSecret]; same {
			k.failf(u.path+"/mutual", "the secret is also what initiators prove themselves by (%s); every direction needs its own", other)
		}
	}
}

// impersonation is a warning about initiators of a target that prove themselves by one secret although they do not
// see the same: each of them can say the other's name.
func (t *Target) impersonation() string {
	type user struct {
		names  []string
		differ bool // one of them has less than the others
	}
	users := map[chap.Secret]*user{}
	add := func(c *chap.Credentials, name string, less bool) {
		if c == nil {
			return
		}
		if users[c.Secret] == nil {
			users[c.Secret] = &user{}
		}
		u := users[c.Secret]
		u.names, u.differ = append(u.names, name), u.differ || less
	}
	for _, in := range t.Initiators {
		add(in.Auth, string(in.Name), in.LUNs != nil || in.ReadOnly)
	}
	if t.others() {
		add(t.Auth, "those without an entry", false)
	}
	for _, in := range t.Initiators { // in the order of the file
		if in.Auth == nil {
			continue
		}
		if u := users[in.Auth.Secret]; u.differ && len(u.names) > 1 {
			return fmt.Sprintf("target %s: one secret proves all of %s, so that each can take another's name and see what that sees; "+
				"give every entry of initiators an auth of its own", t.Name, some(u.names))
		}
	}
	return ""
}

// others reports whether initiators without an entry may log in.
func (t *Target) others() bool { return len(t.Allow) > 0 || len(t.Initiators) == 0 }

// unproved lists what can be used through a portal group by who proves nothing: targets and "discovery". A name or an address
// is no proof: anybody can say the one, and the other is the network's word.
func (c *Config) unproved(group int) []string {
	var list []string
	for i := range c.Targets {
		t := &c.Targets[i]
		if !t.served(group) {
			continue
		}
		open := t.others() && t.Auth == nil
		for _, in := range t.Initiators {
			open = open || in.Auth == nil
		}
		if open {
			list = append(list, string(t.Name))
		}
	}
	if !c.Discovery.Disabled && c.Discovery.Auth == nil {
		list = append(list, "discovery")
	}
	return list
}
