package conf

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/goiser/goiser/iscsi"
)

// Parse reads and checks a configuration; name is what errors call the file. An error is Errors. Files of
// secrets are read, others not.
//
// The tree of the YAML document is walked by hand (reader) and not decoded into structs: so an unknown key
// is answered with those that exist, a wrong value with what was expected in the words of the
// file, and every setting keeps its position for the checks that come after.
func Parse(name string, b []byte) (*Config, error) {
	c, _, err := parse(name, b)
	return c, err
}

// parse also tells whether secrets stand in the file itself.
func parse(name string, b []byte) (_ *Config, inline bool, _ error) {
	r := reader{name: name, lines: hideSecrets(strings.Split(string(b), "\n")), at: map[string]*token.Token{}}
	c := r.document(b)
	if c != nil && len(r.errs) == 0 {
		var k checker
		k.config(c)
		for _, e := range k.errs {
			r.place(e)
		}
	}
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if err := r.errs.orNil(); err != nil {
		return nil, false, err
	}
	c.normalise()
	c.Warnings = append(c.Warnings, c.Review()...)
	return c, r.inline, nil
}

// document finds the one document and reads it.
func (r *reader) document(b []byte) *Config {
	file, err := parser.ParseBytes(b, 0)
	var ye yaml.Error
	if errors.As(err, &ye) {
		r.failf(ye.GetToken(), "", "%s", ye.GetMessage())
		return nil
	}
	if err != nil {
		r.failf(nil, "", "%w", err)
		return nil
	}
	var bodies []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil && d.Body.Type() != ast.CommentType {
			bodies = append(bodies, d.Body)
		}
	}
	switch {
	case len(bodies) == 0:
		r.failf(nil, "", "empty; a configuration begins with `version: %d`", Version)
		return nil
	case len(bodies) > 1:
		r.failf(bodies[1].GetToken(), "", "a second document; a configuration is one, without `---` between its parts")
		return nil
	}
	return r.config(bodies[0])
}

// place gives an error of Check the position of its setting, or of the nearest one around it.
func (r *reader) place(e *Error) {
	path := e.Path
	for path != "" && r.at[path] == nil {
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
	r.failf(r.at[path], e.Path, "%w", e.Err)
}

// normalise brings names, which have been checked, to their one spelling.
func (c *Config) normalise() {
	for i := range c.Targets {
		t := &c.Targets[i]
		t.Name, _ = iscsi.ParseName(string(t.Name))
		for j := range t.Allow {
			t.Allow[j], _ = iscsi.ParseName(string(t.Allow[j]))
		}
		for j := range t.Initiators {
			t.Initiators[j].Name, _ = iscsi.ParseName(string(t.Initiators[j].Name))
		}
	}
}
