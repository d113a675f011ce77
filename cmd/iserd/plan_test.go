package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
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

func parsed(t *testing.T, text string) *conf.Config {
	c, err := conf.Parse("test.yaml", []byte("version: 1\n"+text))
	require.NoError(t, err)
	return c
}

// TestPlans: what leads from one configuration to another, in its order, and nothing else.
func TestPlans(t *testing.T) {
	const a = `portals: [{listen: "127.0.0.1:1", provider: tcp}]
backstores: {x: {type: ram, size: 1MiB}, f: {type: file, path: /f, size: 1MiB}}
targets: {"iqn.2026-01.example:a": {luns: {0: x, 1: f}}}
`
	edit := func(from, to string) string {
		require.Contains(t, a, from)
		return strings.Replace(a, from, to, 1)
	}
	for name, row := range map[string]struct{ to, want string }{
		"nothing":                   {a, ""},
		"another spelling":          {edit("size: 1MiB}, f", "size: 1024KiB}, f"), ""},
		"a default said":            {edit("path: /f, ", "path: /f, thin: yes, "), ""},
		"one LUN less":              {edit("{0: x, 1: f}", "{0: x}"), "remove LUN 1 of iqn.2026-01.example:a"},
		"read-only":                 {edit("1: f", "1: {store: f, readonly: yes}"), "make LUN 1 of iqn.2026-01.example:a read-only"},
		"another block size":        {edit("1: f", "1: {store: f, block_size: 4096}"), "remove LUN 1 of iqn.2026-01.example:a\nadd LUN 1 of iqn.2026-01.example:a, backstore f"},
		"larger":                    {edit("size: 1MiB}, f", "size: 2MiB}, f"), "resize backstore x to 2MiB"},
		"an alias":                  {edit("{luns", "{alias: b, luns"), "change the settings of target iqn.2026-01.example:a"},
		"discovery":                 {a + "discovery: {enabled: no}\n", "change who may discover targets"},
		"a file reopened":           {edit("path: /f, ", "path: /f, sync: dsync, "), "remove LUN 1 of iqn.2026-01.example:a\nclose backstore f\nopen backstore f (file)\nadd LUN 1 of iqn.2026-01.example:a, backstore f"},
		"another file of this name": {edit("path: /f, ", "path: /g, "), "open backstore f (file)\nremove LUN 1 of iqn.2026-01.example:a\nadd LUN 1 of iqn.2026-01.example:a, backstore f\nclose backstore f"},
		"a file under another name": {strings.NewReplacer("f: {", "g: {", "1: f", "1: g").Replace(a), "remove LUN 1 of iqn.2026-01.example:a\nclose backstore f\nopen backstore g (file)\nadd LUN 1 of iqn.2026-01.example:a, backstore g"},
		"another portal":            {edit("127.0.0.1:1", "127.0.0.1:2"), "listen on 127.0.0.1:2, provider tcp, portal group 1\nstop listening on 127.0.0.1:1\naccept connections on 127.0.0.1:2"},
		"another provider":          {edit("provider: tcp", "provider: roce"), "stop listening on 127.0.0.1:1\nlisten on 127.0.0.1:1, provider roce, portal group 1\naccept connections on 127.0.0.1:1"},
		"another group":             {edit("provider: tcp", "provider: tcp, group: 2"), "change the settings of target iqn.2026-01.example:a\nstop listening on 127.0.0.1:1\nlisten on 127.0.0.1:1, provider tcp, portal group 2\naccept connections on 127.0.0.1:1"},
		"another target":            {edit("example:a", "example:b"), "remove target iqn.2026-01.example:a\nadd target iqn.2026-01.example:b with 2 logical units"},
	} {
		changes, err := plan(parsed(t, a), parsed(t, row.to))
		require.NoError(t, err, name)
		assert.Equal(t, row.want, describe(changes), name)
	}
	for _, to := range []string{a + "limits: {sessions: 3}\n", a + "state_dir: /x\n"} {
		_, err := plan(parsed(t, a), parsed(t, to))
		require.ErrorIs(t, err, errFixed)
	}
}

// A wrapper goes with what it wraps: closed before it, opened behind it.
func TestPlanOfWrappers(t *testing.T) {
	const a = `backstores: {f: {type: file, path: /f, size: 1MiB}, w: {type: fault, store: f}}
targets: {"iqn.2026-01.example:a": {luns: {0: w}}}
`
	changes, err := plan(parsed(t, a), parsed(t, strings.Replace(a, "size: 1MiB", "size: 1MiB, direct: yes", 1)))
	require.NoError(t, err)
	assert.Equal(t, "remove LUN 0 of iqn.2026-01.example:a\nclose backstore w\nclose backstore f\nopen backstore f (file)\n"+
		"open backstore w (fault)\nadd LUN 0 of iqn.2026-01.example:a, backstore w", describe(changes))
	changes, err = plan(parsed(t, a), parsed(t, strings.Replace(a, "store: f", "store: f, rules: lost write", 1)))
	require.NoError(t, err)
	assert.Equal(t, "set the rules of backstore w", describe(changes))
}

// managed starts a service of a configuration, with its manager.
func managed(t *testing.T, text string) *manager {
	log, _ := test.NewNullLogger()
	c := parsed(t, text)
	s, err := start(c, log, noRDMA, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.stop()) })
	return newManager(s, c, log, nil, nil)
}

// logIn opens a session of an initiator.
func logIn(t *testing.T, m *manager, host, target string) *initiator.Session {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := initiator.Open(ctx, &tcp.Dialer{}, m.s.served()[0].Addr().String(), "iqn.2026-01.example:"+target, initiator.Options{InitiatorName: "iqn.2026-01.example:" + host})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// alive reads from a disk of a session.
func alive(t *testing.T, s *initiator.Session) error {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d, err := s.Disk(ctx, 0)
	if err != nil {
		return err
	}
	return d.ReadAt(ctx, make([]byte, 512), 0)
}

const twoTargets = `portals: [{listen: "127.0.0.1:0", provider: tcp}]
backstores: {x: {type: ram, size: 1MiB}, y: {type: ram, size: 1MiB}, z: {type: ram, size: 1MiB}}
targets:
  iqn.2026-01.example:a: {luns: {0: x}}
  iqn.2026-01.example:b: {luns: {0: y, 1: z}}
`

// TestReloadTouchesOnlyWhoUsesWhatChanges: all sessions but those of what goes away go on, with their counters.
func TestReloadTouchesOnlyWhoUsesWhatChanges(t *testing.T) {
	m := managed(t, twoTargets)
	a, b := logIn(t, m, "h", "a"), logIn(t, m, "h", "b")
	before := m.s.server.Sessions()
	r, err := m.applyText(t.Context(), "new.yaml", []byte("version: 1\n"+strings.Replace(twoTargets, ", 1: z", ", 1: {store: z, readonly: yes}", 1)), options{})
	require.NoError(t, err)
	require.Len(t, r.Steps, 1)
	require.True(t, r.Unsaved)
	require.NoError(t, alive(t, a))
	require.NoError(t, alive(t, b))
	after := m.s.server.Sessions()
	require.Len(t, after, 2)
	for i := range after {
		assert.Equal(t, before[i].Since, after[i].Since, "the same session")
	}
	r, err = m.applyText(t.Context(), "new.yaml", []byte("version: 1\n"+strings.Replace(twoTargets, "  iqn.2026-01.example:a: {luns: {0: x}}\n", "", 1)), options{})
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(r.Steps), "iqn.2026-01.example:h")
	require.Error(t, alive(t, a))
	require.NoError(t, alive(t, b))
}

// TestUseIsRespected: what sessions use is not taken from them unasked, and they are named; dry-run changes nothing.
func TestUseIsRespected(t *testing.T) {
	m := managed(t, twoTargets)
	b := logIn(t, m, "h", "b")
	before := string(m.running.Marshal())
	for _, e := range []edit{removeTargetEdit("iqn.2026-01.example:b"), removeLUNEdit("iqn.2026-01.example:b", 1)} {
		_, err := m.change(t.Context(), options{}, true, e)
		var used *inUseError
		require.ErrorAs(t, err, &used)
		assert.Contains(t, err.Error(), "0x0001 iqn.2026-01.example:h (127.0.0.1:")
		assert.Equal(t, 5, toError(err).Code)
		r, err := m.change(t.Context(), options{dryRun: true}, true, e)
		require.NoError(t, err)
		assert.NotEmpty(t, r.Steps)
		assert.False(t, r.Applied)
	}
	assert.Equal(t, before, string(m.running.Marshal()))
	require.NoError(t, alive(t, b))
	r, err := m.change(t.Context(), options{force: true}, true, removeLUNEdit("iqn.2026-01.example:b", 1))
	require.NoError(t, err)
	assert.True(t, r.Applied)
	require.NoError(t, alive(t, b), "its other disk is there")
}

// TestFailedChangeIsTakenBack: whichever step fails, what runs afterwards is what ran before, and serves.
func TestFailedChangeIsTakenBack(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	dir := t.TempDir()
	text := fmt.Sprintf(`portals: [{listen: "127.0.0.1:0", provider: tcp}]
backstores: {x: {type: ram, size: 1MiB}, y: {type: ram, size: 1MiB}, f: {type: file, path: %s/f, size: 1MiB}}
targets:
  iqn.2026-01.example:a: {luns: {0: x}}
  iqn.2026-01.example:b: {luns: {0: y, 1: f}}
`, dir)
	for name, to := range map[string]string{
		"an address that is taken": strings.Replace(text, `provider: tcp}]`, fmt.Sprintf(`provider: tcp}, {listen: %q, provider: tcp}]`, busy.Addr()), 1),
		// The file is closed and cannot be opened again in the new way: it has 1 MiB, in no blocks that fit the unit.
		"a unit that does not fit":                       strings.NewReplacer("1: f", "1: {store: t, block_size: 4096}, 2: {store: f, readonly: yes}", "backstores: {", "backstores: {t: {type: ram, size: 512}, ").Replace(text),
		"a file reopened, then a unit that does not fit": strings.NewReplacer("size: 1MiB}}", "size: 1MiB, sync: dsync}, t: {type: ram, size: 512}}", "{0: x}", "{0: x, 5: {store: t, block_size: 4096}}").Replace(text),
		"a file that is not there":                       strings.Replace(text, "size: 1MiB}}", fmt.Sprintf("size: 1MiB}, g: {type: file, path: %s/no/g}}", dir), 1),
		"a target gone, then a unit that does not fit":   strings.NewReplacer("  iqn.2026-01.example:a: {luns: {0: x}}\n", "", "1: f}", "1: f, 2: {store: t, block_size: 4096}}", "backstores: {", "backstores: {t: {type: ram, size: 512}, ").Replace(text),
	} {
		t.Run(name, func(t *testing.T) {
			m := managed(t, text)
			before := string(m.running.Marshal())
			_, err := m.applyText(t.Context(), "new.yaml", []byte("version: 1\n"+to), options{})
			require.Error(t, err)
			var broken *brokenError
			require.NotErrorAs(t, err, &broken)
			assert.Equal(t, before, string(m.running.Marshal()))
			want, got := parsed(t, text), m.s.actual(m.running)
			assert.ElementsMatch(t, want.Backstores, got.Backstores)
			assert.Equal(t, want.Targets, got.Targets)
			assert.Len(t, got.Portals, 1)
			for _, target := range []string{"a", "b"} {
				require.NoError(t, alive(t, logIn(t, m, "h", target)))
			}
			assert.Empty(t, m.s.retired)
			require.NoError(t, func() error { // and it goes on changing
				_, err := m.change(t.Context(), options{}, true, addTargetEdit("iqn.2026-01.example:c", admin.TargetRequest{}))
				return err
			}())
		})
	}
}

// TestDataSurvivesAFailedChange: a RAM store that is to be replaced has its data when that fails.
func TestDataSurvivesAFailedChange(t *testing.T) {
	m := managed(t, twoTargets)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := logIn(t, m, "h", "a")
	d, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	want := bytes.Repeat([]byte("kept"), 1024)
	require.NoError(t, d.WriteAt(ctx, want, 0))
	to := strings.NewReplacer("x: {type: ram, size: 1MiB}", fmt.Sprintf("x: {type: file, path: %s, size: 1MiB}, t: {type: ram, size: 512}", filepath.Join(t.TempDir(), "x")),
		"1: z", "1: z, 2: {store: t, block_size: 4096}").Replace(twoTargets)
	_, err = m.applyText(ctx, "new.yaml", []byte("version: 1\n"+to), options{})
	require.ErrorContains(t, err, "holds no block of 4096")
	d, err = logIn(t, m, "h2", "a").Disk(ctx, 0)
	require.NoError(t, err)
	got := make([]byte, len(want))
	require.NoError(t, d.ReadAt(ctx, got, 0))
	require.True(t, bytes.Equal(want, got))
}

// TestLookingWhileChanging: who looks at what runs, and sessions at work, do not disturb changes, nor these them. It is
// the race detector's.
func TestLookingWhileChanging(t *testing.T) {
	m := managed(t, twoTargets)
	a := adminOf(t, m)
	ses := logIn(t, m, "h", "a")
	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				looked <- nil
				return
			default:
				a.ask("GET", "/v1/status", "")
				a.ask("GET", "/v1/config", "")
				err = alive(t, ses)
			}
		}
		looked <- err
	}()
	for i := range 10 {
		for _, e := range []edit{
			addStoreEdit("n", admin.BackstoreRequest{Type: "ram", Options: map[string]string{"size": "1MiB"}}),
			addTargetEdit("iqn.2026-01.example:n", admin.TargetRequest{Alias: fmt.Sprint(i)}),
			addLUNEdit("iqn.2026-01.example:n", 0, admin.LUNRequest{Backstore: "n"}),
			addPortalEdit("127.0.0.1:0", admin.PortalRequest{Provider: "tcp", Group: 2}),
			allowEdit("iqn.2026-01.example:n", "192.0.2.0/24"),
			setStoreEdit("n", admin.BackstoreSetRequest{Options: map[string]string{"size": "2MiB"}}),
			removeTargetEdit("iqn.2026-01.example:n"),
			removeStoreEdit("n"),
			func(c *conf.Config) error { c.Portals = c.Portals[:1]; return nil },
		} {
			r, err := m.change(t.Context(), options{}, true, e)
			require.NoError(t, err)
			require.True(t, r.Applied)
		}
	}
	close(stop)
	require.NoError(t, <-looked)
	assert.Equal(t, string(parsed(t, twoTargets).Marshal()), string(m.running.Marshal()))
}
