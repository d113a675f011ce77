package conf_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const small = `version: 1
backstores:
  vm1: {type: ram, size: 1MiB}
targets:
  iqn.2026-01.example:a: {luns: {0: vm1}}
`

func TestDefaults(t *testing.T) {
	c, err := conf.Parse("x.yaml", []byte(small))
	require.NoError(t, err)
	require.Equal(t, &conf.Config{
		Version:    1,
		Portals:    []conf.Portal{{Listen: netip.MustParseAddrPort("127.0.0.1:3260"), Provider: "auto", Group: 1}},
		Backstores: []conf.Backstore{{Name: "vm1", Type: "ram", Options: backstore.Options{"size": "1MiB"}}},
		Targets: []conf.Target{{
			Name: "iqn.2026-01.example:a", LUNs: []conf.LUN{{Store: "vm1", BlockSize: 512}}, Negotiate: conf.DefaultNegotiate(),
		}},
		Limits: conf.Limits{
			Sessions: 64, Logins: 64, LoginTimeout: 15 * time.Second,
			CommandsPerSession: 128, Buffers: 64 << 20, MaxTransfer: 4 << 20,
		},
	}, c)
	require.NoError(t, c.Check())
}

func TestEverything(t *testing.T) {
	c, err := conf.Parse("x.yaml", []byte(`
version: 1
insecure: true
state_dir: /var/lib/iserd
portals:
- {listen: "0.0.0.0:3260", provider: verbs, advertise: "192.0.2.7:3260"}
- {listen: "::1"}
- {listen: "[::1]:0", provider: tcp}
- {listen: "[::1]:0", provider: tcp}
backstores:
  vm-1: {type: file, path: /srv/a.img, size: 64GiB, sync: fua, direct: yes, readonly: true}
  zero: {type: "null", size: 4096}
targets:
  IQN.2026-01.example:Disk1:
    alias: the first
    luns: {0: vm-1, 16383: {store: zero, readonly: true, block_size: 4096}}
    allow: [iqn.2026-01.example:host-A, eui.02004567A425678D]
    initial_r2t: no
    immediate_data: false
    first_burst: 128k
    max_burst: 256KiB
  iqn.2026-01.example:disk1.luns:
    luns:
      3: zero
    max_burst: 4096
limits: {sessions: 2, sessions_per_initiator: 1, connections_per_address: 4, logins: 8, login_timeout: 2500ms, commands_per_session: 16, buffers: 512MiB, max_transfer: 1MiB}
`))
	require.NoError(t, err)
	no := false
	first, second := conf.DefaultNegotiate(), conf.DefaultNegotiate()
	first.InitialR2T, first.ImmediateData, first.FirstBurstLength, first.MaxBurstLength = &no, false, 128<<10, 256<<10
	second.FirstBurstLength, second.MaxBurstLength = 4096, 4096
	require.Equal(t, &conf.Config{
		Version: 1, Insecure: true, StateDir: "/var/lib/iserd",
		Portals: []conf.Portal{
			{Listen: netip.MustParseAddrPort("0.0.0.0:3260"), Provider: "verbs", Advertise: netip.MustParseAddrPort("192.0.2.7:3260"), Group: 1},
			{Listen: netip.MustParseAddrPort("[::1]:3260"), Provider: "auto", Group: 1},
			{Listen: netip.MustParseAddrPort("[::1]:0"), Provider: "tcp", Group: 1},
			{Listen: netip.MustParseAddrPort("[::1]:0"), Provider: "tcp", Group: 1},
		},
		Backstores: []conf.Backstore{
			{Name: "vm-1", Type: "file", Options: backstore.Options{"path": "/srv/a.img", "size": "64GiB", "sync": "fua", "direct": "yes", "readonly": "true"}},
			{Name: "zero", Type: "null", Options: backstore.Options{"size": "4096"}},
		},
		Targets: []conf.Target{
			{
				Name: "iqn.2026-01.example:disk1", Alias: "the first",
				LUNs:      []conf.LUN{{Store: "vm-1", BlockSize: 512}, {Number: 16383, Store: "zero", ReadOnly: true, BlockSize: 4096}},
				Allow:     []iscsi.Name{"iqn.2026-01.example:host-a", "eui.02004567a425678d"},
				Negotiate: first,
			},
			{Name: "iqn.2026-01.example:disk1.luns", LUNs: []conf.LUN{{Number: 3, Store: "zero", BlockSize: 512}}, Negotiate: second},
		},
		Limits: conf.Limits{
			Sessions: 2, SessionsPerInitiator: 1, ConnectionsPerAddress: 4, Logins: 8, LoginTimeout: 2500 * time.Millisecond,
			CommandsPerSession: 16, Buffers: 512 << 20, MaxTransfer: 1 << 20,
		},
	}, c)
}

func TestExampleFile(t *testing.T) {
	c, err := conf.Load("../docs/iserd.yaml")
	require.NoError(t, err)
	d := conf.Default()
	assert.Equal(t, d.Limits, c.Limits, "what the example calls defaults")
	assert.Equal(t, d.Portals, c.Portals)
	assert.Equal(t, conf.DefaultNegotiate(), c.Targets[0].Negotiate)
	b, err := os.ReadFile("../docs/iserd.yaml")
	require.NoError(t, err)
	for _, typ := range backstore.Types() {
		assert.Contains(t, string(b), "type: "+strings.Replace(typ.Name, "null", `"null"`, 1))
		for _, o := range typ.Options {
			assert.Contains(t, string(b), o.Name)
		}
	}
}

// TestErrorsShowTheirPlace compares whole messages: position, setting, what was expected, excerpt.
func TestErrorsShowTheirPlace(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"unknown key", "version: 1\nportals:\n- {lisen: \"127.0.0.1:1\"}\n", `
x.yaml:3:4: portals/0/lisen: unknown key; there are listen, provider, advertise, group, external
     1 | version: 1
     2 | portals:
>    3 | - {lisen: "127.0.0.1:1"}
            ^`},
		{"syntax", "version: 1\ntargets: [a\n", `
x.yaml:2:10: sequence end token ']' not found
     1 | version: 1
>    2 | targets: [a
                  ^`},
		{"unknown store", strings.Replace(small, "{0: vm1}", "{0: vm2}", 1), `
x.yaml:5:37: targets/iqn.2026-01.example:a/luns/0/store: there is no store "vm2"; backstores has vm1
     3 |   vm1: {type: ram, size: 1MiB}
     4 | targets:
>    5 |   iqn.2026-01.example:a: {luns: {0: vm2}}
                                             ^`},
		{"option of a store", strings.Replace(small, "1MiB", "1GB", 1), `
x.yaml:3:26: backstores/vm1/size: ram store: option size: "1GB" is not a size: want bytes, or a number with k, m, g or t ("4096", "4k", "1.5GiB": powers of 1024)
     1 | version: 1
     2 | backstores:
>    3 |   vm1: {type: ram, size: 1GB}
                                  ^`},
		{"not loopback", small + "portals:\n- listen: 0.0.0.0:3260\n", `
x.yaml:7:11: portals/0/listen: other hosts can reach 0.0.0.0:3260, and nobody who does has to prove who they are: iqn.2026-01.example:a, discovery; give auth: {user: NAME, secret_file: PATH} (on the command line --user and --secret-file), listen on 127.0.0.1, or set insecure: true if the network is trusted
     5 |   iqn.2026-01.example:a: {luns: {0: vm1}}
     6 | portals:
>    7 | - listen: 0.0.0.0:3260
                   ^`},
		{"two mistakes", strings.Replace(small, "type: ram,", "type: rma,", 1) + "limits: {sessions: 0}\n", `
x.yaml:3:15: backstores/vm1/type: store type "rma": not known; there are block, fault, file, gotgt, null, pattern, ram
     1 | version: 1
     2 | backstores:
>    3 |   vm1: {type: rma, size: 1MiB}
                       ^
x.yaml:6:20: limits/sessions: 0 is not between 1 and 4096
     4 | targets:
     5 |   iqn.2026-01.example:a: {luns: {0: vm1}}
>    6 | limits: {sessions: 0}
                            ^`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := conf.Parse("x.yaml", []byte(c.yaml))
			require.EqualError(t, err, strings.TrimPrefix(c.want, "\n"))
		})
	}
}

func TestMistakes(t *testing.T) {
	target := func(more string) string {
		return strings.Replace(small, "{luns: {0: vm1}}", "{luns: {0: vm1}, "+more+"}", 1)
	}
	for yaml, want := range map[string]string{
		"":                          "x.yaml: empty; a configuration begins with `version: 1`",
		"# nothing\n":               "x.yaml: empty; a configuration begins with `version: 1`",
		"---\n":                     "x.yaml: empty; a configuration begins with `version: 1`",
		small + "---\n" + small:     "x.yaml:7:8: a second document; a configuration is one",
		"[1, 2]":                    "want keys and values, and not a list",
		"hello":                     `want keys and values, and not "hello"`,
		"a: 1":                      "x.yaml:1:1: a: unknown key; there are version, insecure, state_dir, auth, discovery, isns, portals, backstores, targets, limits",
		"version: 2":                "x.yaml:1:10: version: 2 is not known; this iserd reads version: 1",
		"version: one":              `x.yaml:1:10: version: want a whole number, and not "one"`,
		"version: -1":               "version: want a whole number, and not -1",
		"version: 99999999999":      "version: want a whole number",
		"insecure: false":           "version: missing; a configuration begins with `version: 1`",
		"version: 1\nversion: 1":    `x.yaml:2:1: mapping key "version" already defined at [1:1]`,
		small + "insecure: maybe\n": `x.yaml:6:11: insecure: want true or false, and not "maybe"`,
		small + "portals: []\n":     "x.yaml:6:1: portals: empty: name at least one",
		small + "portals:\n":        "portals: want a list, as [a, b], and not nothing",
		small + "portals: [{}]\n":   "portals/0: no listen address",
		small + "portals: [{listen: localhost}]\n":                                  `portals/0/listen: "localhost" is no address; want ADDRESS:PORT`,
		small + "portals: [{listen: \":3260\"}]\n":                                  `":3260" is no address`,
		small + "portals: [{listen: [1]}]\n":                                        "want an address in quotes",
		small + "portals: [{listen: 127.0.0.1, provider: rxe}]\n":                   `x.yaml:6:41: portals/0/provider: "rxe" is not one of auto, verbs, roce, tcp`,
		small + "portals: [{listen: 127.0.0.1}, {listen: \"127.0.0.1:3260\"}]\n":    "portals/1/listen: 127.0.0.1:3260 is listened on twice",
		small + "portals: [{listen: 127.0.0.1, advertise: 0.0.0.0}]\n":              "portals/0/advertise: nobody can connect to 0.0.0.0:3260",
		small + "portals: [{listen: \"::ffff:192.0.2.1\"}]\n":                       "other hosts can reach",
		strings.Replace(small, "type: ram, ", "", 1):                                "backstores/vm1: no type; give type: and one of block, ",
		strings.Replace(small, "ram, size: 1MiB", "null", 1):                        "backstores/vm1/type: want a text or number, and not nothing",
		strings.Replace(small, "size: 1MiB", "sizes: 1MiB", 1):                      "backstores/vm1/size: ram store: option size: missing",
		strings.Replace(small, "size: 1MiB", "size: 1MiB, path: /x", 1):             "x.yaml:3:38: backstores/vm1/path: ram store: option path: not known; there are size",
		strings.Replace(small, "size: 1MiB", "size: {a: 1}", 1):                     "backstores/vm1/size: want a text or number, and not keys and values",
		strings.Replace(small, "  vm1: {type", "  v/1: {type", 1):                   `backstores/v/1: "v/1" is no name for a store`,
		strings.Replace(small, "iqn.2026", "iqn.26", 1):                             `targets/iqn.26-01.example:a: iSCSI name "iqn.26-01.example:a": no date "yyyy-mm." after "iqn."; as iqn.2026-01.example:disk1`,
		small + "  IQN.2026-01.example:A: {luns: {0: vm1}}\n":                       "x.yaml:6:3: targets/IQN.2026-01.example:A: a second target of this name",
		strings.Replace(small, "{0: vm1}", "{0: vm1, \"0\": vm1}", 1):               "x.yaml:5:42: mapping key \"0\" already defined at [5:34]",
		strings.Replace(small, "{0: vm1}", "{00: vm1}", 1):                          `luns/00: "00" is no LUN`,
		strings.Replace(small, "{0: vm1}", "{x: vm1}", 1):                           `luns/x: "x" is no LUN; they go from 0 to 16383`,
		strings.Replace(small, "{0: vm1}", "{16384: vm1}", 1):                       "16384 is no LUN",
		strings.Replace(small, "{0: vm1}", "{0: {readonly: yes}}", 1):               "luns/0: no store",
		strings.Replace(small, "{0: vm1}", "{0: {store: vm1, block_size: 520}}", 1): "block_size: 520 is not 512 or 4096",
		target("allow: [bob]"):                                                      `allow/0: iSCSI name "bob"`,
		target("allow: bob"):                                                        `allow: want a list, as [a, b], and not "bob"`,
		target("first_burst: 2MiB"):                                                 "first_burst: 2097152 is more than max_burst, which is 1048576",
		target("max_burst: 100"):                                                    "max_burst: 100 is not between 512 and 16777215",
		target("max_burst: 9000000GiB"):                                             "max_burst: 4294967295 is not between 512 and 16777215",
		target("initial_r2t: 1"):                                                    "initial_r2t: want true or false, and not 1",
		target("alias: " + strings.Repeat("x", 256)):                                "alias: 256 bytes; at most 255",
		target("auth: {user: x}"):                                                   `x.yaml:5:49: targets/iqn.2026-01.example:a/auth: CHAP user "x" has no secret`,
		target("auht: {user: x}"):                                                   "auht: unknown key; there are enabled, alias, luns, allow",
		small + "limits: {buffers: 64 MB}\n":                                        `limits/buffers: "64 MB" is not a size`,
		small + "limits: {buffers: 6MiB}\n":                                         "limits/max_transfer: 4194304 bytes do not fit in half of limits.buffers, which is 6291456",
		small + "limits: {login_timeout: 15}\n":                                     `limits/login_timeout: want a time, as 15s or 500ms, and not 15`,
		small + "limits: {login_timeout: 1h}\n":                                     "limits/login_timeout: 1h0m0s is not between 1s and 5m0s",
		small + "limits: {logins: 0}\n":                                             "limits/logins: 0 is not between 1 and 1024",
		small + "limits: {sessions_per_initiator: 5000}\n":                          "limits/sessions_per_initiator: 5000 is not between 0 and 4096",
		small + "limits: {commands_per_session: 129}":                               "commands_per_session: 129 is not between 1 and 128",
		small + "limits: &x {sessions: 3}\n":                                        "limits: want keys and values, and not an anchor, alias or tag",
		"version: !!int 1":                                                          "anchor, alias or tag",
		"\t- : : [":                                                                 "x.yaml:1",
	} {
		_, err := conf.Parse("x.yaml", []byte(yaml))
		if assert.Error(t, err, yaml) {
			assert.Contains(t, err.Error(), want, yaml)
			var errs conf.Errors
			assert.ErrorAs(t, err, &errs)
		}
	}
}

func TestNoPeerGetsAllSessions(t *testing.T) {
	for _, r := range []struct{ sessions, initiator, address, wantInitiator, wantAddress int }{
		{64, 0, 0, 32, 32}, {1, 0, 0, 1, 1}, {10, 0, 0, 8, 8}, {4096, 0, 0, 2048, 2048}, {64, 64, 1, 64, 1},
	} {
		l := conf.Limits{Sessions: r.sessions, SessionsPerInitiator: r.initiator, ConnectionsPerAddress: r.address}
		i, a := l.Shares()
		assert.Equal(t, []int{r.wantInitiator, r.wantAddress}, []int{i, a}, "%+v", r)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	_, err := conf.Parse("x.yaml", []byte("version: 1\n"+strings.Repeat("x", 5000)+": 1\n"))
	require.Error(t, err)
	for _, line := range strings.Split(err.Error(), "\n")[1:] {
		require.LessOrEqual(t, len(line), 140)
	}
}

// TestCheckFindsWhatFlagsCanBreak: Check works without a file.
func TestCheckFindsWhatFlagsCanBreak(t *testing.T) {
	c, err := conf.Parse("x.yaml", []byte(small))
	require.NoError(t, err)
	c.Portals[0].Listen = netip.MustParseAddrPort("192.0.2.1:3260")
	c.Backstores[0].Options["size"] = "no"
	err = c.Check()
	require.ErrorContains(t, err, "portals/0/listen: other hosts can reach 192.0.2.1:3260")
	require.ErrorContains(t, err, "\nbackstores/vm1/size: ")
	var oe *backstore.OptionError
	require.ErrorAs(t, err, &oe)
	require.NotContains(t, err.Error(), "x.yaml")
}

func TestLoad(t *testing.T) {
	_, err := conf.Load(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = conf.Load(t.TempDir())
	require.Error(t, err)
	big := filepath.Join(t.TempDir(), "big.yaml")
	require.NoError(t, os.WriteFile(big, make([]byte, 1<<20+1), 0o600))
	_, err = conf.Load(big)
	require.ErrorContains(t, err, "at most 1048576 bytes are read")
	var errs conf.Errors
	require.False(t, errors.As(err, &errs))
}

func TestParseAddress(t *testing.T) {
	for s, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:3260", "10.0.0.1:860": "10.0.0.1:860", "::1": "[::1]:3260", "[::]:1": "[::]:1", "fe80::1%eth0": "[fe80::1%eth0]:3260",
	} {
		a, err := conf.ParseAddress(s)
		require.NoError(t, err)
		assert.Equal(t, want, a.String())
	}
	for _, s := range []string{"", "x", "localhost:3260", ":3260", "1.2.3.4:", "1.2.3.4:99999", "[::1]"} {
		_, err := conf.ParseAddress(s)
		assert.Error(t, err, s)
	}
}

// FuzzParse: nothing that stands in a file makes the reader panic, and what it accepts passes Check.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../docs/iserd.yaml")
	require.NoError(f, err)
	f.Add(example)
	f.Add([]byte(small))
	f.Add([]byte("version: 1\ntargets: {a: &x {luns: *x}}\n<<: {a: 1}\n? [a]\n: b"))
	f.Add([]byte("version: |\n  1\n--- \n...\n%YAML 1.2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := conf.Parse("x", b)
		if err == nil {
			require.NoError(t, c.Check())
		} else {
			require.NotEmpty(t, err.Error())
		}
	})
}

// What is not there yet may come while the daemon runs: it is told of, and no mistake.
func TestGapsAreWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"version: 1": "no targets; add one, as `targets: ",
		strings.Replace(small, "{luns: {0: vm1}}", "{alias: x}", 1):                           "target iqn.2026-01.example:a: no logical units; add one, as `luns: {0: STORE}`",
		strings.Replace(small, "{luns: {0: vm1}}", "", 1):                                     "target iqn.2026-01.example:a: no logical units",
		strings.Replace(small, "{luns: {0: vm1}}", `{redirect: {to: "h:1", groups: [1]}}`, 1): "no logical units",
	} {
		c, err := conf.Parse("x.yaml", []byte(text))
		require.NoError(t, err, text)
		require.Len(t, c.Warnings, 1, text)
		assert.Contains(t, c.Warnings[0], want)
	}
	c, err := conf.Parse("x.yaml", []byte(strings.Replace(small, "{luns: {0: vm1}}", `{redirect: {to: "h:1"}}`, 1)))
	require.NoError(t, err)
	assert.Empty(t, c.Warnings, "it is elsewhere")
}
