package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The size of a large installation, and how long it may take on a machine that does nothing else. The test's bounds are
// wide: it runs on machines that do.
const (
	manyTargets  = 500
	lunsOfTarget = 4
	manySessions = 500
	startBound   = 60 * time.Second // wanted: 3 s
	statusBound  = 20 * time.Second // wanted: 0.2 s
)

// large is a configuration of manyTargets with lunsOfTarget disks each.
func large() string {
	var b strings.Builder
	b.WriteString("version: 1\nportals: [{listen: \"127.0.0.1:0\", provider: tcp}]\nlimits: {sessions: 1024, sessions_per_initiator: 1024, connections_per_address: 1024, buffers: 256MiB}\nbackstores:\n")
	for i := range manyTargets * lunsOfTarget {
		fmt.Fprintf(&b, "  s%d: {type: \"null\", size: 1GiB}\n", i)
	}
	b.WriteString("targets:\n")
	for i := range manyTargets {
		fmt.Fprintf(&b, "  iqn.2026-01.example:t%d: {luns: {", i)
		for j := range lunsOfTarget {
			fmt.Fprintf(&b, "%d: s%d, ", j, i*lunsOfTarget+j)
		}
		b.WriteString("}}\n")
	}
	return b.String()
}

// TestManyTargets: 500 targets, 2,000 disks, 500 sessions. It starts, tells its status, and a change of one disk touches
// one disk's sessions. The figures are in the log (-v).
func TestManyTargets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.yaml")
	require.NoError(t, os.WriteFile(path, []byte(large()), 0o600))
	log, _ := test.NewNullLogger()
	begin := time.Now()
	c, err := conf.Load(path)
	require.NoError(t, err)
	s, err := start(c, log, noRDMA, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.stop()) }()
	m := newManager(s, c, log, nil, nil)
	started := time.Since(begin)
	require.Less(t, started, startBound)
	sessions := logInMany(t, s)

	begin = time.Now()
	snap := m.snapshot()
	text, err := json.Marshal(snap)
	require.NoError(t, err)
	status := time.Since(begin)
	require.Less(t, status, statusBound)
	require.Len(t, snap.Targets, manyTargets)
	require.Len(t, snap.Sessions, manySessions)
	require.Less(t, len(text), admin.MaxResponse)

	before := s.server.Sessions()
	begin = time.Now()
	to := strings.Replace(large(), "1: s1, ", "1: {store: s1, readonly: yes}, ", 1)
	r, err := m.applyText(t.Context(), "large.yaml", []byte(to), options{})
	require.NoError(t, err)
	changed := time.Since(begin)
	require.Len(t, r.Steps, 1)
	assert.Equal(t, before, s.server.Sessions(), "nobody was closed, or had to do anything")

	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	t.Logf("%d targets, %d disks: read and started in %v; with %d sessions status in %v (%d KiB of JSON), one disk changed in %v; %d MiB of heap",
		manyTargets, manyTargets*lunsOfTarget, started.Round(time.Millisecond), manySessions, status.Round(time.Millisecond), len(text)>>10, changed.Round(time.Millisecond), mem.HeapAlloc>>20)
	for _, ses := range sessions {
		_ = ses.Close()
	}
}

// logInMany opens a session on each of the first manySessions targets, a few at a time.
func logInMany(t *testing.T, s *service) []*initiator.Session {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := s.served()[0].Addr().String()
	sessions := make([]*initiator.Session, manySessions)
	errs := make([]error, manySessions)
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range sessions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			name := fmt.Sprintf("iqn.2026-01.example:t%d", i%manyTargets)
			sessions[i], errs[i] = initiator.Open(ctx, &tcp.Dialer{}, addr, name, initiator.Options{InitiatorName: fmt.Sprintf("iqn.2026-01.example:h%d", i)})
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return sessions
}
