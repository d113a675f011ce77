package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/events"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// look asks for a page, and returns the answer's code and body.
func look(t *testing.T, method, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(body)
}

// TestLookingAtADaemon: what a session does is in the metrics, on the page and among the events.
func TestLookingAtADaemon(t *testing.T) {
	log, hook := test.NewNullLogger()
	ring := events.New(100)
	log.AddHook(ring)
	c := config(t, anyPort, ramStore, ramTarget)
	s, err := start(c, log, noRDMA, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.stop()) }()
	a := &app{flags: flags{metrics: ":0", web: "localhost:0"}}
	l, err := a.openLookers(newManager(s, c, log, nil, nil), ring, log)
	require.NoError(t, err)
	var at []string
	for _, e := range hook.AllEntries() {
		if _, url, found := strings.Cut(e.Message, "http://"); found {
			require.True(t, strings.HasPrefix(url, "127.0.0.1:"), "loopback unless told")
			at = append(at, "http://"+strings.TrimSuffix(url, "/"))
		}
	}
	require.Len(t, at, 2)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ses, d := openDisk(t, ctx, &tcp.Dialer{}, s.served()[0].Addr().String())
	require.NoError(t, d.WriteAt(ctx, make([]byte, 8192), 0))
	require.NoError(t, d.ReadAt(ctx, make([]byte, 4096), 0))

	_, text := look(t, http.MethodGet, at[0]+"/metrics")
	for _, line := range []string{
		`iserd_sessions{transport="tcp"} 1`, `iserd_bytes_total{dir="write"} 8192`, `iserd_commands_total{op="write",status="good"} 1`,
		`iserd_lun_read_bytes_total{lun="0",target="iqn.2026-01.example:ram"} 4096`, `iserd_logins_total{result="success"} 1`,
	} {
		assert.Contains(t, text, "\n"+line+"\n")
	}
	assert.NotContains(t, text, "iqn.2026-01.example:test", "the initiator's name")
	_, text = look(t, http.MethodGet, at[1]+"/api/snapshot")
	var snap admin.Snapshot
	require.NoError(t, json.Unmarshal([]byte(text), &snap))
	require.Len(t, snap.Sessions, 1)
	assert.Equal(t, "iqn.2026-01.example:test", snap.Sessions[0].Initiator)
	_, text = look(t, http.MethodGet, at[1]+"/api/events")
	var list admin.Events
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	var kinds []string
	for _, e := range list.Events {
		kinds = append(kinds, e.Kind)
	}
	assert.Contains(t, kinds, "login")
	require.NoError(t, ses.Close())

	code, _ := look(t, http.MethodPost, at[1]+"/api/snapshot")
	assert.Equal(t, http.StatusMethodNotAllowed, code)
	code, _ = look(t, http.MethodGet, at[0]+"/healthz")
	assert.Equal(t, http.StatusOK, code)
	code, _ = look(t, http.MethodGet, at[0]+"/readyz")
	assert.Equal(t, http.StatusOK, code)
	l.stop()
	code, text = look(t, http.MethodGet, at[0]+"/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Equal(t, "iserd stops\n", text)
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, l.close())
}

func TestAddressesToLookAt(t *testing.T) {
	for s, want := range map[string]string{
		":9860": "127.0.0.1:9860", "localhost:1": "127.0.0.1:1", "0.0.0.0:9860": "0.0.0.0:9860", "[::1]:0": "[::1]:0", "192.0.2.1:65535": "192.0.2.1:65535",
	} {
		got, err := lookAddress(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, got.String())
	}
	for _, s := range []string{"9860", "127.0.0.1", ":", ":http", ":-1", ":65536", "host.example:1", "::1:9860", "[::1]"} {
		_, err := lookAddress(s)
		assert.Error(t, err, s)
	}
}

// TestBusyAddressToLookAt: it is told which flag, and the exit code says that something is in use; nothing is left open.
func TestBusyAddressToLookAt(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = busy.Close() }()
	var out, errOut strings.Builder
	args := []string{"--ram", "1MiB", "--listen", "127.0.0.1:0", "--provider", "tcp", "--admin", "off"}
	code := run(append(args, "--metrics", ":0", "--web", busy.Addr().String()), &out, &errOut, make(chan os.Signal))
	assert.Equal(t, exitInUse, code, errOut.String())
	assert.Contains(t, errOut.String(), "iserd: --web: listen tcp "+busy.Addr().String()+": bind: "+syscall.EADDRINUSE.Error())
	errOut.Reset()
	assert.Equal(t, exitUsage, run(append(args, "--metrics", "9860"), &out, &errOut, make(chan os.Signal)))
	assert.Contains(t, errOut.String(), `iserd: --metrics "9860": want ADDR:PORT, or :PORT for loopback`)
}
