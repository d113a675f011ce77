package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/scsi"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// initiatorName must not be seen in any metric.
const initiatorName = "iqn.2026-01.example:secret-host"

// sample is a snapshot with something of everything.
func sample() admin.Snapshot {
	st := target.Stats{
		Aborted: 2, InFlight: 3, ReadBytes: 4096, WrittenBytes: 512, Dropped: 1, Connections: 5, Working: 1, Workers: 32,
		Rejects:   map[iscsi.RejectReason]uint64{iscsi.RejectSNACK: 2},
		Logins:    map[iscsi.LoginStatus]uint64{iscsi.LoginSuccess: 7, iscsi.LoginAuthFailed: 1},
		Functions: map[target.Function]uint64{{Function: iscsi.TMAbortTask, Response: iscsi.TMComplete}: 4},
		NoLogin:   6, LoggedOut: 3, Closed: 2, Lost: 1,
	}
	st.Commands[scsi.ClassRead] = map[scsi.Status]uint64{scsi.Good: 10, scsi.TaskSetFull: 2}
	st.Commands[scsi.ClassWrite] = map[scsi.Status]uint64{scsi.Good: 5, scsi.TaskSetFull: 1}
	st.Sense[5] = 3
	for i := range target.LatencyBuckets { // one in each
		st.Latency[scsi.ClassRead].Buckets[i] = 1
	}
	st.Latency[scsi.ClassRead].Sum = 90 * time.Second
	st.Store[scsi.ClassWrite].Buckets[0] = 2
	return admin.Snapshot{
		Version: "v1", Since: time.Unix(1700000000, 0), Config: admin.Config{Unsaved: true},
		Portals:  []admin.Portal{{Address: "127.0.0.1:3260"}},
		Targets:  []admin.Target{{Name: "iqn.2026-01.example:disk1", LUNs: []admin.LUN{{Number: 3, SizeBytes: 1 << 20, Commands: 9, ReadBytes: 8, WrittenBytes: 7, Errors: 6}}}},
		Sessions: []admin.Session{{ID: 1, Initiator: initiatorName, Remote: "192.0.2.77:4000", Transport: "iser"}},
		Providers: []admin.Provider{
			{Used: "roce", Counters: map[string]uint64{"retransmits": 4, "qps": 2, "naks_sent": 1}},
			{Used: "roce", Counters: map[string]uint64{"retransmits": 5, "qps": 1}},
			{Used: "verbs"},
		},
		Buffers: admin.Buffers{TotalBytes: 100, FreeBytes: 60},
		Stats:   Stats(st),
	}
}

func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func scrape(t *testing.T) string {
	t.Helper()
	code, body := get(t, Handler(Source{Snapshot: sample}), http.MethodGet, "/metrics")
	require.Equal(t, http.StatusOK, code, body)
	return body
}

// TestMetricsAreWellFormed by the library's own parser and lint, and have the values that the snapshot has.
func TestMetricsAreWellFormed(t *testing.T) {
	body := scrape(t)
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
	for _, line := range []string{
		`iserd_info{version="v1"} 1`,
		`iserd_start_time_seconds 1.7e+09`,
		`iserd_config_unsaved 1`,
		`iserd_sessions{transport="iser"} 1`,
		`iserd_sessions{transport="tcp"} 0`,
		`iserd_connections_ended_total{how="lost"} 1`,
		`iserd_logins_total{result="success"} 7`,
		`iserd_logins_total{result="authentication failed"} 1`,
		`iserd_logins_total{result="no login"} 6`,
		`iserd_commands_total{op="read",status="good"} 10`,
		`iserd_commands_total{op="read",status="task set full"} 2`,
		`iserd_commands_aborted_total 2`,
		`iserd_bytes_total{dir="read"} 4096`,
		`iserd_bytes_total{dir="write"} 512`,
		`iserd_inflight 3`,
		`iserd_queue_full_total 3`,
		`iserd_sense_total{key="illegal request"} 3`,
		`iserd_rejects_total{reason="SNACK rejected"} 2`,
		`iserd_task_management_total{function="abort task",result="function complete"} 4`,
		`iserd_backstore_seconds_count{op="write"} 2`,
		`iserd_buffers_bytes 100`,
		`iserd_buffers_free_bytes 60`,
		`iserd_lun_errors_total{lun="3",target="iqn.2026-01.example:disk1"} 6`,
		`iserd_rdma_retransmits_total 9`,
		`iserd_rdma_naks_total{dir="sent"} 1`,
		`iserd_rdma_qps 3`,
	} {
		assert.Contains(t, body, "\n"+line+"\n")
	}
	assert.Contains(t, body, "\ngo_goroutines ")
	assert.NotContains(t, body, initiatorName)
	assert.NotContains(t, body, "192.0.2.77")
}

// TestHistogramBoundsAreExact: what Prometheus is told lies below a bound is what lay in the finer buckets below it.
func TestHistogramBoundsAreExact(t *testing.T) {
	body := scrape(t)
	for _, line := range []string{
		`iserd_command_seconds_bucket{op="read",le="4e-06"} 4`,
		`iserd_command_seconds_bucket{op="read",le="8e-06"} 8`,
		`iserd_command_seconds_bucket{op="read",le="1.6e-05"} 12`,
		`iserd_command_seconds_bucket{op="read",le="16.777216"} 92`,
		`iserd_command_seconds_bucket{op="read",le="+Inf"} 97`,
		`iserd_command_seconds_sum{op="read"} 90`,
		`iserd_command_seconds_count{op="read"} 97`,
	} {
		assert.Contains(t, body, "\n"+line+"\n")
	}
}

func TestHealth(t *testing.T) {
	var ready error
	h := Handler(Source{Snapshot: sample, Ready: func() error { return ready }})
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			code, _ := get(t, h, method, path)
			assert.Equal(t, http.StatusOK, code, "%s %s", method, path)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			code, _ := get(t, h, method, path)
			assert.Equal(t, http.StatusMethodNotAllowed, code, "%s %s", method, path)
		}
	}
	code, _ := get(t, h, http.MethodGet, "/other")
	assert.Equal(t, http.StatusNotFound, code)
	ready = errors.New("stopping")
	code, body := get(t, h, http.MethodGet, "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Equal(t, "stopping\n", body)
}

// TestStuckDaemonIsNotAlive, and asking it again and again keeps no more than one goroutine.
func TestStuckDaemonIsNotAlive(t *testing.T) {
	stuck := make(chan struct{})
	calls := make(chan struct{}, 10)
	h := Handler(Source{Snapshot: func() admin.Snapshot {
		calls <- struct{}{}
		<-stuck
		return sample()
	}})
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		if i > 0 {
			cancel() // the first one still asks
		} else {
			go func() {
				<-calls
				cancel()
			}()
		}
		r := httptest.NewRequest(http.MethodGet, "/healthz", nil).WithContext(ctx)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Contains(t, w.Body.String(), "stuck")
	}
	assert.Empty(t, calls, "the first one asked, and no other")
	close(stuck)
	code, _ := get(t, h, http.MethodGet, "/healthz")
	assert.Equal(t, http.StatusOK, code)
}

// TestGrafanaAsksForWhatThereIs: each metric of the dashboard is one that /metrics serves, with the labels it asks for.
func TestGrafanaAsksForWhatThereIs(t *testing.T) {
	f, err := os.Open("../../packaging/grafana/iserd.json")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	board, err := io.ReadAll(f)
	require.NoError(t, err)
	body := scrape(t)
	names := regexp.MustCompile(`\b(iserd|go|process)_[a-z0-9_]+`).FindAllString(string(board), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		assert.Regexp(t, `(?m)^`+name+`[ {]`, body, "the dashboard asks for %s", name)
	}
	for _, by := range regexp.MustCompile(`by \(([a-z, ]+)\)`).FindAllStringSubmatch(string(board), -1) {
		for label := range strings.SplitSeq(by[1], ", ") {
			assert.Contains(t, body, label+`="`, "the dashboard asks for label %s", label)
		}
	}
}
