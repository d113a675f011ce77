package conf_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// everything has every setting there is, none of them with its default.
func everything(t testing.TB) string {
	dir := t.TempDir()
	file := filepath.Join(dir, "host-a.secret")
	require.NoError(t, os.WriteFile(file, []byte("secret of host a\n"), 0o600))
	return strings.ReplaceAll(`version: 1
insecure: true
state_dir: /var/lib/iserd
auth: {user: host-a, secret_file: FILE, mutual: {user: disk, secret: "secret of the disk"}, algorithms: [sha256, md5]}
discovery: {enabled: no, auth: none}
isns: {server: "isns.example:3205", entity: disks.example}
portals:
  - {listen: "0.0.0.0:3260", provider: tcp, group: 2, advertise: "192.0.2.7:3260"}
  - {listen: "[::1]:3261", provider: roce, external: "2001:db8::7"}
backstores:
  vm1: {type: file, path: "/srv/a: b #1.img", size: 64GiB, sync: fua, thin: no}
  nothing: {type: "null", size: 1TiB}
  bad: {type: fault, store: vm1, rules: "bitflip read 0-1MiB rate=1/1000; latency write delay=5ms"}
targets:
  iqn.2026-01.example:a:
    enabled: no
    alias: "a disk: 'of' \"all\" {kinds}, 12"
    luns: {0: bad, 7: {store: nothing, readonly: yes, block_size: 4096}}
    allow: ["iqn.2026-01.example:h", 192.0.2.0/24, "2001:db8::/32"]
    initiators:
      iqn.2026-01.example:b: {auth: {user: b, secret: "secret of host b"}, luns: [0, 7], readonly: yes}
      iqn.2026-01.example:c: {luns: []}
      iqn.2026-01.example:d: {auth: none}
    groups: [1, 2]
    redirect: {to: "192.0.2.5:3260", permanent: yes, groups: [2]}
    alua: {1: standby}
    initial_r2t: yes
    immediate_data: no
    first_burst: 8KiB
    max_burst: 128KiB
    max_connections: 2
  iqn.2026-01.example:empty: {}
limits: {sessions: 100, sessions_per_initiator: 7, connections_per_address: 9, logins: 11, login_timeout: 7s,
  commands_per_session: 32, buffers: 128MiB, max_transfer: 1MiB}
`, "FILE", file)
}

// again is what a configuration becomes when it is written and read.
func again(t require.TestingT, c *conf.Config) *conf.Config {
	text := c.Marshal()
	d, err := conf.Parse("written.yaml", text)
	require.NoError(t, err, "%s", text)
	return d
}

// plain is a configuration without what is compared by pointer.
func plain(c *conf.Config) conf.Config {
	d := *c
	d.SecretFiles = nil
	return d
}

func TestWrittenIsRead(t *testing.T) {
	docs, err := os.ReadFile("../docs/iserd.yaml")
	require.NoError(t, err)
	for name, text := range map[string]string{"everything": everything(t), "small": small, "docs": string(docs), "nothing": "version: 1"} {
		c, err := conf.Parse(name, []byte(text))
		require.NoError(t, err, name)
		d := again(t, c)
		assert.Equal(t, plain(c), plain(d), name)
		assert.Equal(t, string(c.Marshal()), string(d.Marshal()), "%s: files of secrets too", name)
		clone := c.Clone()
		assert.Equal(t, c, clone, name)
	}
}

// What is shown has no secrets, and nobody can load it by mistake.
func TestShownHasNoSecrets(t *testing.T) {
	c, err := conf.Parse("everything", []byte(everything(t)))
	require.NoError(t, err)
	shown := string(c.Show())
	assert.Contains(t, string(c.Marshal()), "secret of the disk")
	assert.NotContains(t, shown, "secret of")
	assert.Contains(t, shown, "host-a.secret", "the name of a file is no secret")
	_, err = conf.Parse("shown.yaml", []byte(shown))
	assert.ErrorContains(t, err, "secret of 8 bytes; at least 12")
}

// TestCloneIsApart: nothing that is written to in a clone is the original's.
func TestCloneIsApart(t *testing.T) {
	c, err := conf.Parse("everything", []byte(everything(t)))
	require.NoError(t, err)
	before := string(c.Marshal())
	d := c.Clone()
	d.Portals[0].Group = 9
	d.Backstores[0].Options["path"] = "/elsewhere"
	x := &d.Targets[0]
	x.LUNs[0].Store, x.Allow[0], x.Groups[0], x.Redirect.Groups[0] = "nothing", "iqn.2026-01.example:z", 9, 9
	x.Initiators[0].LUNs[0], x.AllowFrom[0], x.ALUA[0].ID = 5, x.AllowFrom[1], 2
	delete(d.SecretFiles, c.Auth)
	assert.Equal(t, before, string(c.Marshal()))
}

// Any text survives.
func TestAnyTextIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := conf.Default()
		path := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"~", "null", "1e3", "0x10", "yes", "- a", "a: b", "a #b", "12:30:45", "*a", "&a", "!a", "a\n b\n", "\u2028", "%a", "@", "`", "? a", "<<", ".inf", "2026-01-01"})).
			Filter(func(s string) bool { return s != "" }).Draw(t, "path")
		c.Backstores = []conf.Backstore{{Name: rapid.SampledFrom([]string{"a", "null", "12", "1e3", "yes", "-", ".", "0x1f", "~"[:0] + "x"}).Draw(t, "name"), Type: "file", Options: map[string]string{"path": path}}}
		assert.Equal(t, c.Backstores, again(t, c).Backstores)
	})
}
