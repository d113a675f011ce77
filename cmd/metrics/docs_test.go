package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite docs/METRICS.md")

const docs = "../../docs/METRICS.md"

const head = `# Metrics

` + "`iserd --metrics ADDR:PORT`" + ` serves these at ` + "`/metrics`" + ` for Prometheus, and beside them ` + "`/healthz`" + ` (200 as long as the daemon can
say how it is) and ` + "`/readyz`" + ` (200 as long as it takes logins; 503 and the reason before and while it stops). It is off by
default; an address without a host (` + "`:9860`" + `) is loopback. Nobody has to prove who he is: where others can reach the address, let
a proxy see to that.

No label carries the name or the address of an initiator. Those of logical units carry the name of their target. Counters are
since the daemon started, those of logical units since the unit was added. Go's own metrics (` + "`go_*`" + `) and the process's
(` + "`process_*`" + `) are there too. Memory is given in bytes, and so ` + "`iserd_buffers_*`" + ` too.

` + "`packaging/grafana/iserd.json`" + ` is a dashboard of them for Grafana.

This page is made of the table in ` + "`cmd/metrics/table.go`" + `; ` + "`go test ./cmd/metrics -update`" + ` writes it.

| metric | type | labels | what it is |
|---|---|---|---|
`

// markdown is docs/METRICS.md.
func markdown() string {
	var b strings.Builder
	b.WriteString(head)
	for _, m := range table() {
		typ := map[prometheus.ValueType]string{counter: "counter", gauge: "gauge"}[m.typ]
		if m.histograms != nil {
			typ = "histogram"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, typ, strings.Join(m.labels, ", "), m.help)
	}
	return b.String()
}

// TestDocsListEveryMetric: docs/METRICS.md has what the table has.
func TestDocsListEveryMetric(t *testing.T) {
	want := markdown()
	if *update {
		require.NoError(t, os.WriteFile(docs, []byte(want), 0o644))
	}
	got, err := os.ReadFile(docs)
	require.NoError(t, err)
	assert.Equal(t, want, string(got), "go test ./cmd/metrics -update writes it anew")
}
