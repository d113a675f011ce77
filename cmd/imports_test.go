// Package cmd_test checks the architecture: imports only point down the picture of the README.
package cmd_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/goiser/goiser/"

// allowed says for each package which others of the module it may import. A package that is not listed
// fails the test: a new part needs its place in the picture.
var allowed = map[string][]string{
	"iscsi":                   {},
	"iscsi/arena":             {},
	"iscsi/chap":              {},
	"iscsi/isns":              {},
	"backstore":               {"backstore/stamp", "backstore/gotgt"},
	"backstore/gotgt":         {},
	"scsi":                    {"backstore"},
	"iscsi/tcp":               {"iscsi"},
	"iser/rdma":               {},
	"iser/rdma/fabric":        {"iser/rdma"},
	"iser/rdma/verbs":         {"iser/rdma"},
	"iser/rdma/provider":      {"iser/rdma", "iser/rdma/roce", "iser/rdma/roce/link", "iser/rdma/verbs"},
	"iser":                    {"iscsi", "iscsi/arena", "iser/rdma"},
	"iscsi/target":            {"iscsi", "iscsi/arena", "iscsi/chap", "scsi", "backstore"},
	"iscsi/initiator":         {"iscsi", "iscsi/arena", "iscsi/chap"},
	"iscsi/initiator/dial":    {"iscsi", "iscsi/chap", "iscsi/initiator", "iscsi/tcp", "iser", "iser/rdma/provider", "iser/rdma/roce"},
	"conf":                    {"iscsi", "iscsi/chap", "scsi", "backstore"},
	"cmd/trace":               {"*"},
	"cmd/statedir":            {"cmd/durable"},
	"cmd/durable":             {},
	"cmd/durable/durabletest": {"cmd/durable"},
	"cmd/admin":               {},
	"cmd/events":              {"cmd/admin"},
	"cmd/metrics":             {"*"},
	"cmd/web":                 {"cmd/admin"},
	"cmd/packets":             {"*"},
	"cmd/importer":            {"*"},
	"packaging":               {},
	"cmd/manual":              {},
	"cmd/dissect":             {"*"},
	"iser/rdma/roce":          {"iser/rdma", "iser/rdma/roce/wire", "iser/rdma/roce/cm", "iser/rdma/roce/rc", "iser/rdma/roce/link"},
	"iser/rdma/roce/wire":     {},
	"iser/rdma/roce/cm":       {},
	"iser/rdma/roce/rc":       {"iser/rdma", "iser/rdma/roce/wire"},
	"iser/rdma/roce/link":     {"iser/rdma/roce/wire"},
	"iser/rdma/roce/capture":  {"iser/rdma/roce/link"},
	"backstore/stamp":         {},
	"cmd/iser":                {"*"},
	"cmd/iser/lab":            {"*"},
	"cmd/iser/verify":         {"backstore/stamp"},
	"cmd/iser/bench":          {"backstore/stamp", "iscsi/initiator"},
	"cmd/iserd":               {"*"},
	"cmd":                     {},
	"iser/rdma/rdmatest":      {"iser/rdma"},
	"iser/isertest":           {"iscsi", "iser", "iser/rdma", "iser/rdma/roce/link", "iser/rdma/roce/wire", "backstore/stamp"},
	"iser/rdma/roce/wiretest": {"iser/rdma/roce/wire", "iser/rdma/roce/capture"},
	"backstore/backstoretest": {"backstore"},
}

// banned are outside packages that parts below cmd must not use.
var banned = map[string][]string{
	"github.com/spf13/cobra":                  {"cmd/iser", "cmd/iserd", "cmd/manual"},
	"github.com/coreos/go-systemd/v22/daemon": {"cmd/iserd"},
	"github.com/jedib0t/go-pretty/v6/table":   {"cmd/iser"},
	"net/http":                                {"cmd/admin", "cmd/iser", "cmd/iserd", "cmd/metrics", "cmd/web"},
	"flag":                                    {},
	"os/signal":                               {"cmd/iser", "cmd/iserd"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports"}, append(args, module+"...")...)...)
	out, err := cmd.Output()
	require.NoError(t, err, "go list: %s", cmd.Stderr)
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := d.Decode(&p)
		if err == io.EOF {
			return pkgs
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
}

func TestImportsOnlyPointDown(t *testing.T) {
	for _, tags := range [][]string{nil, {"-tags", "rdma"}} {
		pkgs := listPackages(t, tags...)
		require.NotEmpty(t, pkgs)
		for _, p := range pkgs {
			name := strings.TrimPrefix(p.ImportPath, module)
			may, known := allowed[name]
			if !assert.True(t, known, "package %s has no place in the picture: add it to allowed", name) {
				continue
			}
			for _, imp := range p.Imports {
				checkImport(t, name, imp, may)
			}
		}
	}
}

func checkImport(t *testing.T, from, imp string, may []string) {
	t.Helper()
	if users, ok := banned[imp]; ok {
		assert.Contains(t, users, from, "%s imports %s", from, imp)
	}
	if to, ours := strings.CutPrefix(imp, module); ours {
		assert.True(t, contains(may, to), "%s imports %s, which does not lie below it", from, to)
	}
}

func contains(may []string, to string) bool {
	for _, m := range may {
		if m == "*" || m == to {
			return true
		}
	}
	return false
}

// The picture itself has no cycle and nothing but cmd uses cmd or conf.
func TestThePictureHasNoCycle(t *testing.T) {
	var visit func(p string, path []string)
	visit = func(p string, path []string) {
		require.NotContains(t, path, p, "cycle")
		for _, q := range allowed[p] {
			if q == "*" {
				continue
			}
			require.Contains(t, allowed, q)
			require.False(t, !strings.HasPrefix(p, "cmd") && (strings.HasPrefix(q, "cmd") || q == "conf"), "%s may not import %s", p, q)
			visit(q, append(path, p))
		}
	}
	for p := range allowed {
		visit(p, nil)
	}
}
