package conf

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi/chap"
)

// A reader walks the tree of a document and collects what has the wrong shape.
type reader struct {
	name     string
	lines    []string                // without secrets
	at       map[string]*token.Token // where each setting stands, by its path
	inline   bool                    // a secret stands in the document
	files    map[*chap.Credentials]SecretFiles
	warnings []string
	errs     Errors
}

func (r *reader) failf(tok *token.Token, path, format string, args ...any) {
	e := &Error{Path: path, File: r.name, Err: fmt.Errorf(format, args...)}
	if tok != nil && tok.Position != nil {
		e.Line, e.Column = tok.Position.Line, tok.Position.Column
		e.Excerpt = excerpt(r.lines, e.Line, e.Column)
	}
	r.errs = append(r.errs, e)
}

// A pair is a key with its value.
type pair struct {
	key   string
	tok   *token.Token // the key's
	path  string
	value ast.Node
}

// pairs lists a mapping's pairs, in order. A value that is left out is an empty mapping. The parser has
// refused a key that stands twice.
func (r *reader) pairs(n ast.Node, path string) []pair {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	case *ast.NullNode:
	default:
		r.wrong(n, path, "keys and values")
	}
	var out []pair
	for _, v := range values {
		key, ok := r.scalar(v.Key)
		if !ok {
			r.wrong(v.Key, path, "a plain key")
			continue
		}
		p := pair{key: key, tok: v.Key.GetToken(), path: join(path, key), value: v.Value}
		r.at[p.path] = p.tok
		if value := v.Value.GetToken(); value != nil && value.Position.Line == p.tok.Position.Line && scalarNode(v.Value) {
			r.at[p.path] = value // the value is what is wrong, where it is short
		}
		out = append(out, p)
	}
	return out
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "/" + key
}

// A field is a key that a mapping may have, and what reads its value.
type field struct {
	key  string
	read func(n ast.Node, path string)
}

// fields reads a mapping whose keys are known.
func (r *reader) fields(n ast.Node, path string, fields ...field) {
next:
	for _, p := range r.pairs(n, path) {
		for _, f := range fields {
			if f.key == p.key {
				f.read(p.value, p.path)
				continue next
			}
		}
		var names []string
		for _, f := range fields {
			names = append(names, f.key)
		}
		r.failf(p.tok, p.path, "unknown key; there are %s", strings.Join(names, ", "))
	}
}

// items lists a sequence, with the path of each.
func (r *reader) items(n ast.Node, path string, read func(n ast.Node, path string)) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		r.wrong(n, path, "a list, as [a, b]")
		return
	}
	for i, v := range s.Values {
		p := join(path, strconv.Itoa(i))
		r.at[p] = v.GetToken()
		read(v, p)
	}
}

// some refuses a list in which nothing stands. Without its key there is no limit, and that is not what an empty
// list of who may log in, or of where, looks like.
func (r *reader) some(n ast.Node, path string) {
	empty := false
	switch l := n.(type) {
	case *ast.SequenceNode:
		empty = len(l.Values) == 0
	case *ast.MappingNode:
		empty = len(l.Values) == 0
	case *ast.NullNode:
		empty = true
	}
	if empty {
		r.failf(n.GetToken(), path, "nothing stands in it; leave it out if there is to be no limit")
	}
}

// wrong says what was expected and what is there.
func (r *reader) wrong(n ast.Node, path, want string) {
	r.failf(n.GetToken(), path, "want %s, and not %s", want, describe(n))
}

// describe names what a node is, in the words of people who write YAML.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys and values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		return "an anchor, alias or tag, which are not used here"
	case *ast.StringNode:
		return fmt.Sprintf("%.60q", n.Value)
	}
	return fmt.Sprintf("%.60s", n.String())
}

func scalarNode(n ast.Node) bool {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return true
	}
	return false
}

// scalar is a scalar as it was written.
func (r *reader) scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// text reads any scalar into to.
func (r *reader) text(to *string) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := r.scalar(n)
		if !ok {
			r.wrong(n, path, "a text or number")
			return
		}
		*to = s
	}
}

// flag reads a switch: YAML's true and false, or yes and no as on the command line.
func (r *reader) flag(set func(bool)) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, _ := r.scalar(n)
		on, err := backstore.ParseSwitch(s)
		if err != nil {
			r.wrong(n, path, "true or false")
			return
		}
		set(on)
	}
}

// number reads a whole decimal number of at most nine digits; what it may be is checked later.
func (r *reader) number(to *int) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, _ := r.scalar(n)
		v, err := strconv.ParseUint(s, 10, 30)
		if err != nil {
			r.wrong(n, path, "a whole number")
			return
		}
		*to = int(v)
	}
}

// duration reads a time; what it may be is checked later.
func (r *reader) duration(to *time.Duration) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, _ := r.scalar(n)
		d, err := time.ParseDuration(s)
		if err != nil {
			r.wrong(n, path, "a time, as 15s or 500ms")
			return
		}
		*to = d
	}
}

// size reads a size.
func (r *reader) size(set func(int64)) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := r.scalar(n)
		if !ok {
			r.wrong(n, path, "a size, as 64MiB")
			return
		}
		v, err := backstore.ParseSize(s)
		if err != nil {
			r.failf(n.GetToken(), path, "%w", err)
			return
		}
		set(v)
	}
}
