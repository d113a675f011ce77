package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/durable"
	"github.com/goiser/goiser/cmd/events"
	"github.com/goiser/goiser/conf"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// adminOf is the handler of a manager's API.
func adminOf(t testing.TB, m *manager) *adminServer {
	log, _ := test.NewNullLogger()
	logs, err := newLogLevels(io.Discard, "info")
	require.NoError(t, err)
	return &adminServer{
		m: m, log: log, logs: logs, ring: events.New(10), trace: &tracer{},
		slots: make(chan struct{}, adminRequests), waits: make(chan struct{}, adminRequests),
	}
}

func (a *adminServer) ask(method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.handler().ServeHTTP(w, httptest.NewRequest(method, "http://iserd"+path, strings.NewReader(body)))
	return w
}

// TestHostileRequests: whatever is asked, the answer is an error of one form, and nothing has changed.
func TestHostileRequests(t *testing.T) {
	m := managed(t, twoTargets)
	a := adminOf(t, m)
	before := string(m.running.Marshal())
	for _, r := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/", "", 404},
		{"GET", "/v1", "", 404},
		{"GET", "/v9/status", "", 422},
		{"GET", "/v99999999999999999999/status", "", 404},
		{"POST", "/v1/status", "", 404},
		{"PUT", "/v1/targets/iqn.2026-01.example:c", "{", 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:c", "{}{}", 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:c", `{"aliass": "x"}`, 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:c", `{"alias": 7}`, 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:c", `{"alias": "` + strings.Repeat("x", 256) + `"}`, 422},
		{"PUT", "/v1/targets/iqn.2026-01.example:c", `{"alias": "` + strings.Repeat("x", admin.MaxRequest) + `"}`, 400},
		{"PUT", "/v1/targets/" + strings.Repeat("x", 300), "", 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:a/luns/-1", `{"backstore": "x"}`, 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:a/luns/16384", `{"backstore": "x"}`, 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:a/luns/1", `{"backstore": "x", "block_size": 513}`, 422},
		{"PUT", "/v1/backstores/%2e%2e%2fx", `{"type": "ram", "options": {"size": "1MiB"}}`, 422},
		{"PUT", "/v1/backstores/w", `{"type": "fault", "options": {"store": "w"}}`, 422},
		{"PUT", "/v1/portals/localhost", "", 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:a/auth", `{"user": "u", "secret": "short"}`, 400},
		{"PUT", "/v1/targets/iqn.2026-01.example:a/auth", `{"user": "u", "secret": "long enough for it", "secret_file": "/x"}`, 400},
		{"PUT", "/v1/log", `{"target": "loud"}`, 400},
		{"GET", "/v1/events?since=-1", "", 400},
		{"POST", "/v1/config/apply", `{"yaml": "version: 1\n? [a]"}`, 422},
		{"POST", "/v1/config/rollback", `{"n": -1}`, 422},
		{"POST", "/v1/trace/start", `{"file": "relative"}`, 400},
		{"DELETE", "/v1/sessions/65536", "", 400},
	} {
		w := a.ask(r.method, r.path, r.body)
		assert.Equal(t, r.status, w.Code, "%s %.80s %.80s: %s", r.method, r.path, r.body, w.Body)
		assert.Equal(t, "1", w.Header().Get(admin.Header))
		if w.Code != http.StatusMethodNotAllowed {
			assert.Contains(t, w.Body.String(), `"error": "`, "%s %.80s", r.method, r.path)
		}
	}
	assert.Equal(t, before, string(m.running.Marshal()))
}

// Nobody is held up by those who wait for events, however many.
func TestWaitersHoldUpNobody(t *testing.T) {
	a := adminOf(t, managed(t, twoTargets))
	for range adminRequests {
		a.waits <- struct{}{}
	}
	assert.Equal(t, http.StatusOK, a.ask("GET", "/v1/status", "").Code)
	assert.Contains(t, a.ask("GET", "/v1/events", "").Body.String(), "64 requests at once")
}

// idleService is one that a fuzz target plans changes of, made once.
func idleService(t testing.TB) *service {
	log, _ := test.NewNullLogger()
	s, err := start(parsedOf(twoTargets), log, noRDMA, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.stop() })
	return s
}

func parsedOf(text string) *conf.Config {
	c, err := conf.Parse("test.yaml", []byte("version: 1\n"+text))
	if err != nil {
		panic(err)
	}
	return c
}

func FuzzAdminRequests(f *testing.F) {
	f.Add("PUT", "/v1/targets/iqn.2026-01.example:c", []byte(`{"alias": "x"}`))
	f.Add("PATCH", "/v1/targets/iqn.2026-01.example:a/luns/0", []byte(`{"readonly": true}`))
	f.Add("DELETE", "/v1/targets/iqn.2026-01.example:a/acl/192.0.2.0%2F24?dry_run=1", []byte(nil))
	f.Add("PUT", "/v1/portals/%5B::1%5D:3260?dry_run=1", []byte(`{"group": 2}`))
	f.Add("PUT", "/v1/discovery/auth", []byte(`{"user": "u", "secret": "long enough for it"}`))
	log, _ := test.NewNullLogger()
	s := idleService(f)
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		// What would open files or addresses is only planned.
		if !strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/v1/trace") || strings.HasPrefix(path, eventsPath) {
			t.Skip()
		}
		if method != http.MethodGet && !strings.Contains(path, "?") {
			path += "?dry_run=1"
		}
		r, err := http.NewRequest(method, "http://iserd"+path, bytes.NewReader(body))
		if err != nil || !strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Query().Get("dry_run") != "1" && method != http.MethodGet {
			t.Skip()
		}
		c := parsedOf(twoTargets)
		m := &manager{log: log, running: c, saved: c.Marshal(), s: s}
		before := string(m.running.Marshal())
		w := httptest.NewRecorder()
		adminOf(t, m).handler().ServeHTTP(w, r)
		if got := string(m.running.Marshal()); got != before {
			t.Fatalf("%s %s has changed what runs: %s", method, path, got)
		}
	})
}

// TestSocket: it has its permissions, a dead daemon's is taken away, a living one's is not, and what is no socket is left.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, lock, err := listenAdmin(path, adminGroup)
	require.NoError(t, err)
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.ModeSocket|socketMode, info.Mode())
	_, _, err = listenAdmin(path, adminGroup)
	require.ErrorIs(t, err, durable.ErrInUse)
	require.NoError(t, l.Close())
	require.NoError(t, lock.Close()) // as a process that is killed does
	_, err = net.Dial("unix", path)
	require.Error(t, err)
	err = admin.NewClient(path).Do(context.Background(), "GET", "/v1/version", nil, nil)
	require.ErrorContains(t, err, "nobody listens; it has ended")
	l, lock, err = listenAdmin(path, adminGroup)
	require.NoError(t, err)
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	require.NoError(t, lock.Close())

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, _, err = listenAdmin(path, adminGroup)
	require.ErrorContains(t, err, "is there, and no socket")
	_, _, err = listenAdmin(filepath.Join(t.TempDir(), "t"), "no-such-group-at-all")
	require.ErrorContains(t, err, "no-such-group-at-all")
}

// TestOldAndForeignDaemons: an iser of another version, or one that reaches something else, is told so.
func TestOldAndForeignDaemons(t *testing.T) {
	for header, want := range map[string]string{
		"":  "what answers there is no iserd",
		"7": "it speaks version 7 of the admin API, this iser version 1; use the iser that came with that iserd",
	} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set(admin.Header, header)
			}
			fmt.Fprint(w, "{}")
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		err = admin.NewClient(path).Do(context.Background(), "GET", "/v1/version", nil, nil)
		require.ErrorContains(t, err, want)
		require.NoError(t, s.Close())
		<-done
	}
}
