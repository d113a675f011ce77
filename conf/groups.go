package conf

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Bounds of portal groups and connections.
const (
	maxGroup              = 65535 // portal group tags have 16 bits (RFC 7143, 13.9)
	maxConnections        = 4     // what the target engine agrees to
	DefaultMaxConnections = 4     // of a session
	DefaultGroup          = 1
)

// A Redirect is where a target has moved.
type Redirect struct {
	To        string // ADDRESS:PORT or NAME:PORT
	Permanent bool
	// Groups are the portal groups from which it has; empty: all.
	Groups []int
}

// redirect reads `{to: "192.0.2.5:3260", permanent: yes, groups: [1]}`.
func (r *reader) redirect(to **Redirect) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		var v Redirect
		r.fields(n, path,
			field{"to", r.text(&v.To)},
			field{"permanent", r.flag(func(b bool) { v.Permanent = b })},
			field{"groups", r.numbers(&v.Groups)},
		)
		*to = &v
	}
}

// numbers reads a list of whole numbers.
func (r *reader) numbers(to *[]int) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		*to = nil
		r.some(n, path)
		r.items(n, path, func(n ast.Node, path string) {
			var v int
			r.number(&v)(n, path)
			*to = append(*to, v)
		})
	}
}

// served reports whether a target is served, not only moved, through a portal group.
func (t *Target) served(group int) bool {
	return in(t.Groups, group) && (t.Redirect == nil || !in(t.Redirect.Groups, group))
}

// in reports whether a list of groups, of which an empty one means all, has one.
func in(groups []int, group int) bool { return len(groups) == 0 || slices.Contains(groups, group) }

// groups finds portal groups that no portal is in.
func (k *checker) groups(path string, groups []int) {
	for i, g := range groups {
		if !k.known[g] {
			k.failf(fmt.Sprintf("%s/%d", path, i), "no portal is in group %d; give one group: %d", g, g)
		}
		if slices.Contains(groups[:i], g) {
			k.failf(fmt.Sprintf("%s/%d", path, i), "group %d stands here twice", g)
		}
	}
}

func (k *checker) redirect(path string, r *Redirect) {
	if r == nil {
		return
	}
	k.groups(path+"/groups", r.Groups)
	if !isHostPort(r.To) {
		k.failf(path+"/to", "%.100q is no place to go; want ADDRESS:PORT, as \"192.0.2.5:3260\" or \"[2001:db8::5]:3260\"", r.To)
	}
}

// isHostPort reports whether s is NAME:PORT or ADDRESS:PORT, in which nothing stands that ends either where it is sent.
func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && n > 0 && host != "" &&
		!strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || strings.ContainsRune("/@,", r) })
}
