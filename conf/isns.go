package conf

import (
	"net"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

const (
	defaultISNSPort = 3205 // RFC 4171, 3.2
	maxEntityBytes  = 255  // with its NUL, an Entity Identifier has 256 (RFC 4171, 6.2.1)
)

// ISNS is a name server with which targets are registered.
type ISNS struct {
	Server string // NAME:PORT or ADDRESS:PORT; empty: none
	Entity string // what this host is called there; empty: the host's name
}

// isns reads `{server: "isns.example:3205", entity: NAME}`.
func (r *reader) isns(to *ISNS) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		r.fields(n, path, field{"server", r.text(&to.Server)}, field{"entity", r.text(&to.Entity)})
		if to.Server == "" && len(r.errs) == 0 {
			r.failf(n.GetToken(), path, "no server; give server: \"isns.example:%d\"", defaultISNSPort)
		}
		if _, _, err := net.SplitHostPort(to.Server); err != nil && to.Server != "" {
			to.Server = net.JoinHostPort(strings.Trim(to.Server, "[]"), strconv.Itoa(defaultISNSPort))
		}
	}
}

func (k *checker) isns(i *ISNS) {
	if i.Server == "" {
		return
	}
	if !isHostPort(i.Server) {
		k.failf("isns/server", "%.100q is no server; want NAME:PORT or ADDRESS:PORT, as \"isns.example:%d\"", i.Server, defaultISNSPort)
	}
	if len(i.Entity) > maxEntityBytes || !utf8.ValidString(i.Entity) || strings.ContainsFunc(i.Entity, func(r rune) bool { return r <= ' ' }) {
		k.failf("isns/entity", "%.60q is no name of an entity; at most %d bytes without spaces, as the host's name", i.Entity, maxEntityBytes)
	}
}
