package conf_test

import (
	"strings"
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/require"
)

func names(list []conf.Backstore) string {
	var all []string
	for _, b := range list {
		all = append(all, b.Name)
	}
	return strings.Join(all, " ")
}

func TestWrappedStoresAreOpenedFirst(t *testing.T) {
	c, err := conf.Parse("x.yaml", []byte(`version: 1
backstores:
  outer: {type: fault, store: inner}
  other: {type: ram, size: 1MiB}
  inner: {type: fault, store: disk, rules: "lost write rate=1/3", seed: 7, cache: 1MiB}
  disk: {type: ram, size: 1MiB}
targets:
  iqn.2026-01.example:a: {luns: {0: outer, 1: other}}
`))
	require.NoError(t, err)
	require.Equal(t, "outer other inner disk", names(c.Backstores))
	require.Equal(t, "other disk inner outer", names(conf.OpenOrder(c.Backstores)))
}

func TestStoresThatCannotBeWrapped(t *testing.T) {
	for _, c := range []struct{ stores, lun, path, want string }{
		{"a: {type: fault, store: b}", "a", "backstores/a/store", `there is no store "b"; backstores has a`},
		{"a: {type: fault}", "a", "backstores/a/store", "fault store: option store: missing: the name of the store that it wraps, and that nothing else may use"},
		{"a: {type: fault, store: a}", "a", "backstores/a/store", "a wraps itself: a wraps a"},
		{"a: {type: fault, store: b}, b: {type: fault, store: c}, c: {type: fault, store: a}", "a", "backstores/a/store", "a wraps itself: a wraps b wraps c wraps a"},
		{"a: {type: fault, store: b}, b: {type: fault, store: c}, c: {type: fault, store: b}", "a", "backstores/b/store", "b wraps itself: b wraps c wraps b"},
		{"a: {type: fault, store: c}, b: {type: fault, store: c}, c: {type: ram, size: 1MiB}", "a", "backstores/b/store", "c is wrapped by a already"},
		{"a: {type: fault, store: c}, c: {type: ram, size: 1MiB}", "c", "targets/iqn.2026-01.example:a/luns/0/store", "c is wrapped by a, which is what can be served"},
		{`a: {type: fault, store: c, rules: "torn read"}, c: {type: ram, size: 1MiB}`, "a", "backstores/a/rules", `fault store: option rules: rule "torn read": there is no torn of a read`},
	} {
		_, err := conf.Parse("x.yaml", []byte("version: 1\nbackstores: {"+c.stores+"}\ntargets:\n  iqn.2026-01.example:a: {luns: {0: "+c.lun+"}}\n"))
		var errs conf.Errors
		require.ErrorAs(t, err, &errs, c.stores)
		found := false
		for _, e := range errs {
			found = found || e.Path == c.path && e.Err.Error() == c.want
		}
		require.True(t, found, "%s: %v", c.stores, err)
	}
}
