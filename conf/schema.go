package conf

import (
	"math"
	"net/netip"
	"strconv"

	"github.com/goccy/go-yaml/ast"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
)

// config reads the whole document: the schema.
func (r *reader) config(n ast.Node) *Config {
	c := Default()
	c.Version = 0
	r.fields(n, "",
		field{"version", r.number(&c.Version)},
		field{"insecure", r.flag(func(v bool) { c.Insecure = v })},
		field{"state_dir", r.text(&c.StateDir)},
		field{"auth", r.auth(&c.Auth)},
		field{"discovery", func(n ast.Node, path string) {
			r.fields(n, path,
				field{"enabled", r.flag(func(v bool) { c.Discovery.Disabled = !v })},
				field{"auth", r.auth(&c.Discovery.Auth)},
			)
		}},
		field{"isns", r.isns(&c.ISNS)},
		field{"portals", func(n ast.Node, path string) {
			c.Portals = nil
			r.items(n, path, func(n ast.Node, path string) { c.Portals = append(c.Portals, r.portal(n, path)) })
		}},
		field{"backstores", func(n ast.Node, path string) {
			for _, p := range r.pairs(n, path) {
				c.Backstores = append(c.Backstores, r.backstore(p))
			}
		}},
		field{"targets", func(n ast.Node, path string) {
			for _, p := range r.pairs(n, path) {
				c.Targets = append(c.Targets, r.target(p))
			}
		}},
		field{"limits", func(n ast.Node, path string) { r.limits(n, path, &c.Limits) }},
	)
	r.inherit(c, c.Auth)
	c.SecretFiles = r.files
	c.Warnings = r.warnings
	if r.at["version"] == nil {
		r.failf(n.GetToken(), "version", "missing; a configuration begins with `version: %d`", Version)
	}
	return c
}

func (r *reader) portal(n ast.Node, path string) Portal {
	p := Portal{Provider: ProviderAuto, Group: DefaultGroup}
	r.fields(n, path,
		field{"listen", r.address(&p.Listen)},
		field{"provider", r.text(&p.Provider)},
		field{"advertise", r.address(&p.Advertise)},
		field{"group", r.number(&p.Group)},
		field{"external", r.ip(&p.External)},
	)
	return p
}

func (r *reader) ip(to *netip.Addr) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, _ := r.scalar(n)
		a, err := netip.ParseAddr(s)
		if err != nil {
			r.wrong(n, path, "an address without port, in quotes, as \"192.0.2.7\"")
			return
		}
		*to = a.Unmap()
	}
}

func (r *reader) address(to *netip.AddrPort) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := r.scalar(n)
		if !ok {
			r.wrong(n, path, "an address in quotes, as \"127.0.0.1:3260\"")
			return
		}
		a, err := ParseAddress(s)
		if err != nil {
			r.failf(n.GetToken(), path, "%w", err)
			return
		}
		*to = a
	}
}

// backstore reads a store; which options there are is backstore.Check's business.
func (r *reader) backstore(p pair) Backstore {
	b := Backstore{Name: p.key, Options: backstore.Options{}}
	for _, o := range r.pairs(p.value, p.path) {
		var v string
		r.text(&v)(o.value, o.path)
		if o.key == "type" {
			b.Type = v
		} else {
			b.Options[o.key] = v
		}
	}
	return b
}

func (r *reader) target(p pair) Target {
	t := Target{Name: iscsi.Name(p.key), Negotiate: DefaultNegotiate()}
	connections := DefaultMaxConnections
	burst := func(to *uint32) func(int64) {
		return func(v int64) { *to = uint32(min(v, math.MaxUint32)) } // too much either way
	}
	r.fields(p.value, p.path,
		field{"enabled", r.flag(func(v bool) { t.Disabled = !v })},
		field{"alias", r.text(&t.Alias)},
		field{"luns", func(n ast.Node, path string) {
			for _, l := range r.pairs(n, path) {
				r.lun(l, &t)
			}
		}},
		field{"allow", func(n ast.Node, path string) {
			r.some(n, path)
			r.items(n, path, func(n ast.Node, path string) { r.allow(n, path, &t) })
		}},
		field{"auth", r.auth(&t.Auth)},
		field{"initiators", func(n ast.Node, path string) {
			r.some(n, path)
			for _, i := range r.pairs(n, path) {
				r.initiator(i, &t)
			}
		}},
		field{"groups", r.numbers(&t.Groups)},
		field{"redirect", r.redirect(&t.Redirect)},
		field{"alua", r.alua(&t.ALUA)},
		field{"initial_r2t", r.flag(func(v bool) { t.Negotiate.InitialR2T = &v })},
		field{"immediate_data", r.flag(func(v bool) { t.Negotiate.ImmediateData = v })},
		field{"first_burst", r.size(burst(&t.Negotiate.FirstBurstLength))},
		field{"max_burst", r.size(burst(&t.Negotiate.MaxBurstLength))},
		field{"max_connections", r.number(&connections)},
	)
	t.Negotiate.MaxConnections = uint32(connections)
	if r.at[join(p.path, "first_burst")] == nil { // the default follows a small max_burst
		t.Negotiate.FirstBurstLength = min(t.Negotiate.FirstBurstLength, t.Negotiate.MaxBurstLength)
	}
	return t
}

// lun reads `0: vm1` or `0: {store: vm1, readonly: true}`.
func (r *reader) lun(p pair, t *Target) {
	number, err := strconv.ParseUint(p.key, 10, 30)
	if err != nil || strconv.FormatUint(number, 10) != p.key {
		r.failf(p.tok, p.path, "%q is no LUN; they go from 0 to %d", p.key, maxLUN)
		return
	}
	l := LUN{Number: int(number), BlockSize: DefaultBlockSize}
	if s, ok := r.scalar(p.value); ok {
		l.Store = s
	} else {
		r.fields(p.value, p.path,
			field{"store", r.text(&l.Store)},
			field{"readonly", r.flag(func(v bool) { l.ReadOnly = v })},
			field{"block_size", r.number(&l.BlockSize)},
		)
	}
	t.LUNs = append(t.LUNs, l)
}

func (r *reader) limits(n ast.Node, path string, l *Limits) {
	r.fields(n, path,
		field{"sessions", r.number(&l.Sessions)},
		field{"sessions_per_initiator", r.number(&l.SessionsPerInitiator)},
		field{"connections_per_address", r.number(&l.ConnectionsPerAddress)},
		field{"logins", r.number(&l.Logins)},
		field{"login_timeout", r.duration(&l.LoginTimeout)},
		field{"commands_per_session", r.number(&l.CommandsPerSession)},
		field{"buffers", r.size(func(v int64) { l.Buffers = v })},
		field{"max_transfer", r.size(func(v int64) { l.MaxTransfer = v })},
	)
}
