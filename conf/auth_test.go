package conf_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func secret(t testing.TB, text string) chap.Secret {
	s, err := chap.NewSecret(text)
	require.NoError(t, err)
	return s
}

func secretFile(t testing.TB, text string, mode os.FileMode) string {
	name := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	require.NoError(t, os.Chmod(name, mode))
	return name
}

func TestAccess(t *testing.T) {
	file := secretFile(t, "from a file, long\n", 0o640)
	c, err := conf.Parse("x.yaml", fmt.Appendf(nil, `version: 1
targets:
  iqn.2026-01.example:a:
    luns: {0: vm1, 1: vm1}
    allow: [IQN.2026-01.example:Host, 192.0.2.7, 10.0.0.0/8, "2001:db8::/32", "::ffff:192.0.2.8"]
    initiators:
      iqn.2026-01.example:B: {luns: [1], readonly: yes}
      iqn.2026-01.example:c: {auth: {user: c, secret: secret of host c}}
      iqn.2026-01.example:d: {auth: none, luns: []}
  iqn.2026-01.example:b:
    luns: {0: vm1}
    auth: {user: b, secret: "secret of host b"}
    initiators: {"iqn.2026-01.example:x": {}}
  iqn.2026-01.example:c: {luns: {0: vm1}, auth: none}
backstores: {vm1: {type: ram, size: 1MiB}}
discovery: {auth: {user: find, secret: secret to find}}
auth:
  user: all
  secret_file: %s
  mutual: {user: disk, secret: secret of the disk}
  algorithms: [sha256, md5]
`, file))
	require.NoError(t, err)
	require.Len(t, c.Warnings, 1)
	assert.Equal(t, "target iqn.2026-01.example:a: one secret proves all of iqn.2026-01.example:b, those without an entry, so that each can "+
		"take another's name and see what that sees; give every entry of initiators an auth of its own", c.Warnings[0])
	all := &chap.Credentials{
		User: "all", Secret: secret(t, "from a file, long"), MutualUser: "disk", MutualSecret: secret(t, "secret of the disk"),
		Algorithms: []chap.Algorithm{chap.SHA256, chap.MD5},
	}
	b := &chap.Credentials{User: "b", Secret: secret(t, "secret of host b")}
	assert.Equal(t, conf.Discovery{Auth: &chap.Credentials{User: "find", Secret: secret(t, "secret to find")}}, c.Discovery)
	a := c.Targets[0]
	assert.Equal(t, []iscsi.Name{"iqn.2026-01.example:host"}, a.Allow)
	assert.Equal(t, []netip.Prefix{
		netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("192.0.2.8/32"),
	}, a.AllowFrom)
	assert.Equal(t, all, a.Auth)
	assert.Equal(t, []conf.Initiator{
		{Name: "iqn.2026-01.example:b", Auth: all, LUNs: []int{1}, ReadOnly: true},
		{Name: "iqn.2026-01.example:c", Auth: &chap.Credentials{User: "c", Secret: secret(t, "secret of host c")}},
		{Name: "iqn.2026-01.example:d", LUNs: []int{}},
	}, a.Initiators)
	assert.Equal(t, b, c.Targets[1].Auth)
	assert.Equal(t, b, c.Targets[1].Initiators[0].Auth, "the target's")
	assert.Nil(t, c.Targets[2].Auth)

	c, err = conf.Parse("x.yaml", []byte(small+"discovery: {enabled: no}\n"))
	require.NoError(t, err)
	assert.Equal(t, conf.Discovery{Disabled: true}, c.Discovery)
}

func TestAccessMistakes(t *testing.T) {
	target := func(more string) string {
		return strings.Replace(small, "{luns: {0: vm1}}", "{luns: {0: vm1}, "+more+"}", 1)
	}
	const good = "auth: {user: u, secret: secret of user u"
	for yaml, want := range map[string]string{
		"auth: yes":                                                         "x.yaml:5:49: targets/iqn.2026-01.example:a/auth: want none, or {user: NAME",
		"auth: {}":                                                          "CHAP user name of 0 bytes",
		"auth: {user: u, secret: short}":                                    "x.yaml:5:67: targets/iqn.2026-01.example:a/auth/secret: secret of 5 bytes; at least 12",
		"auth: {user: u, secret: [a, b]}":                                   "auth/secret: want a text; what stands there is not shown",
		"auth: {user: u, secret_file: /nowhere/s}":                          "auth/secret_file: secret file: open /nowhere/s: no such file",
		"auth: {user: u, secret_file: /}":                                   "not a regular file",
		good + ", secret_file: SHORT}":                                      "auth/secret_file: secret of 3 bytes",
		good + ", secret_file: LONG}":                                       "both secret and secret_file",
		"auth: {user: u, secret_file: LINES}":                               "more than one line",
		"auth: {user: u, secret_file: HUGE}":                                "secret of 258 bytes; at most 255",
		good + ", password: x}":                                             "unknown key; there are user, secret, secret_file, mutual, algorithms",
		good + ", mutual: {user: v}}":                                       `mutual CHAP user "v" has no secret`,
		good + ", mutual: {user: v, secret: secret of user u}}":             "the same secret for both directions",
		good + ", mutual: {user: v, secret: secret of user v, mutual: {}}}": "unknown key; there are user, secret, secret_file",
		good + ", algorithms: [sha512]}":                                    `algorithms/0: CHAP algorithm "sha512" is not one of`,
		good + ", mutual: {user: v, secret: secret of user w}}, initiators: {\"iqn.2026-01.example:x\": {auth: {user: w, secret: secret of user w}}}": "auth/mutual: the secret is also what initiators prove themselves by (targets/iqn.2026-01.example:a/initiators/iqn.2026-01.example:x/auth)",
		"allow: [10.0.0.0.0]":                                  `allow/0: "10.0.0.0.0" is no network`,
		"allow: [10.0.0.1/8]":                                  "allow/0: 10.0.0.1/8 has bits beyond its first 8; want 10.0.0.0/8",
		"allow: [10.0.0.0/33]":                                 "is no network",
		"allow: [\"::ffff:10.0.0.0/104\"]":                     "is no network",
		"allow: [\"fe80::1%eth0\"]":                            "or a network, as 192.0.2.0/24",
		"initiators: {bob: {}}":                                `initiators/bob: iSCSI name "bob"`,
		"initiators: [bob]":                                    "initiators: want keys and values",
		"initiators: {\"iqn.2026-01.example:x\": {luns: [1]}}": "x/luns/0: the target has no LUN 1",
		"initiators: {\"iqn.2026-01.example:x\": {luns: 1}}":   "luns: want a list",
		"initiators: {\"iqn.2026-01.example:x\": {}, \"IQN.2026-01.example:X\": {}}": "a second entry for this initiator",
		"initiators: {\"iqn.2026-01.example:x\": {lun: 1}}":                          "unknown key; there are auth, luns, readonly",
	} {
		for name, text := range map[string]string{"SHORT": "abc", "LONG": "a secret of 19 bytes", "LINES": "a secret of 19 bytes\nand more\n", "HUGE": strings.Repeat("x", 300)} {
			yaml = strings.Replace(yaml, name, secretFile(t, text, 0o600), 1)
		}
		_, err := conf.Parse("x.yaml", []byte(target(yaml)))
		if assert.Error(t, err, yaml) {
			assert.Contains(t, err.Error(), want, yaml)
			assert.NotContains(t, err.Error(), "secret of user", "secrets are not shown")
		}
	}
}

func TestSecretsDoNotShowInExcerpts(t *testing.T) {
	for name, text := range map[string]string{
		"block":     "auth:\n  user: u\n  secret: hunter2hunter2\n  wrong: x\n",
		"flow":      "auth: {user: u, secret: hunter2hunter2, wrong: x}\n",
		"quoted":    "auth: {\"secret\": \"hunter2hunter2\", wrong: x}\n",
		"literal":   "auth:\n  secret: |\n    hunter2hunter2\n  wrong: x\n",
		"next line": "auth:\n  secret:\n\n    hunter2hunter2\n  wrong: x\n",
		"no YAML":   "auth:\n  secret: hunter2hunter2\n  wrong: [\n",
		"too short": "auth:\n  secret: hunter2\n",
	} {
		_, err := conf.Parse("x.yaml", []byte("version: 1\n"+text))
		require.Error(t, err, name)
		assert.Contains(t, err.Error(), "|", "%s: there is an excerpt", name)
		assert.NotContains(t, err.Error(), "hunter2", name)
	}
}

// TestOpenPortals: a portal that other hosts can reach needs a proof for everything behind it.
func TestOpenPortals(t *testing.T) {
	const (
		portal = "portals: [{listen: \"192.0.2.1:3260\"}]\n"
		proof  = "auth: {user: u, secret: secret of user u}\n"
		open   = "nobody who does has to prove who they are: "
	)
	target := func(more string) string {
		return strings.Replace(small, "{luns: {0: vm1}}", "{luns: {0: vm1}, "+more+"}", 1)
	}
	for _, r := range []struct{ name, yaml, want string }{
		{"nothing", small, open + "iqn.2026-01.example:a, discovery;"},
		{"all", small + proof, ""},
		{"insecure", small + "insecure: true\n", ""},
		{"a name is no proof", target("allow: [\"iqn.2026-01.example:x\"]") + "discovery: {enabled: no}\n", open + "iqn.2026-01.example:a;"},
		{"an address is no proof", target("allow: [10.0.0.0/8]") + "discovery: {enabled: no}\n", open + "iqn.2026-01.example:a;"},
		{"the target only", target(strings.TrimSpace(proof)), open + "discovery;"},
		{"discovery only", small + "discovery: {" + strings.TrimSpace(proof) + "}\n", open + "iqn.2026-01.example:a;"},
		{"without discovery", target(strings.TrimSpace(proof)) + "discovery: {enabled: no}\n", ""},
		{"target excepted", target("auth: none") + proof, open + "iqn.2026-01.example:a;"},
		{"discovery excepted", small + proof + "discovery: {auth: none}\n", open + "discovery;"},
		{"initiator excepted", target("initiators: {\"iqn.2026-01.example:x\": {auth: none}}") + proof, open + "iqn.2026-01.example:a;"},
		{
			"every entry has its own", target("auth: none, initiators: {\"iqn.2026-01.example:x\": {"+strings.TrimSpace(proof)+"}}") +
				"discovery: {enabled: no}\n", "",
		},
		{
			"others than those with entries", target("auth: none, allow: [\"iqn.2026-01.example:y\"], initiators: {\"iqn.2026-01.example:x\": {"+strings.TrimSpace(proof)+"}}") +
				"discovery: {enabled: no}\n", open + "iqn.2026-01.example:a;",
		},
	} {
		_, err := conf.Parse("x.yaml", []byte(r.yaml+portal))
		if r.want == "" {
			assert.NoError(t, err, r.name)
		} else {
			assert.ErrorContains(t, err, r.want, r.name)
		}
	}
	var many strings.Builder
	many.WriteString(small)
	for i := range 6 {
		fmt.Fprintf(&many, "  iqn.2026-01.example:t%d: {luns: {0: vm1}}\n", i)
	}
	_, err := conf.Parse("x.yaml", []byte(many.String()+portal))
	assert.ErrorContains(t, err, "iqn.2026-01.example:t2 and 4 more;")
}

func TestExposedSecretsAreWarnedOf(t *testing.T) {
	file := secretFile(t, "from a file, long", 0o644)
	c, err := conf.Parse("x.yaml", []byte(small+"auth: {user: u, secret_file: "+file+"}\n"))
	require.NoError(t, err)
	require.Len(t, c.Warnings, 1)
	assert.Contains(t, c.Warnings[0], "secret file "+file+": everybody")

	inline := secretFile(t, small+"auth: {user: u, secret: secret of user u}\n", 0o604)
	c, err = conf.Load(inline)
	require.NoError(t, err)
	require.Len(t, c.Warnings, 1)
	assert.Contains(t, c.Warnings[0], "configuration "+inline)
	require.NoError(t, os.Chmod(inline, 0o640))
	c, err = conf.Load(inline)
	require.NoError(t, err)
	assert.Empty(t, c.Warnings)

	without := secretFile(t, small, 0o644)
	c, err = conf.Load(without)
	require.NoError(t, err)
	assert.Empty(t, c.Warnings)
}

// TestOneSecretForDifferentViews: it is not refused, since who shares a secret may be trusted.
func TestOneSecretForDifferentViews(t *testing.T) {
	const x, y = `"iqn.2026-01.example:x": `, `"iqn.2026-01.example:y": `
	for _, r := range []struct {
		name, target string
		want         string
	}{
		{"the same view", "initiators: {" + x + "{}, " + y + "{}}", ""},
		{"only one", "initiators: {" + x + "{luns: [0]}}", ""},
		{"one reads only", "initiators: {" + x + "{readonly: yes}, " + y + "{}}", "all of iqn.2026-01.example:x, iqn.2026-01.example:y,"},
		{"one sees nothing", "initiators: {" + x + "{luns: []}}, allow: [" + y[:len(y)-2] + "]", "all of iqn.2026-01.example:x, those without an entry,"},
		{"an auth of its own", "initiators: {" + x + "{readonly: yes, auth: {user: x, secret: secret of user x}}, " + y + "{}}", ""},
		{"two names for one secret", "initiators: {" + x + "{readonly: yes, auth: {user: x, secret: secret of user u}}, " + y + "{}}", "all of"},
		{"nothing to prove", "auth: none, initiators: {" + x + "{readonly: yes}, " + y + "{}}", ""},
	} {
		yaml := strings.Replace(small, "{luns: {0: vm1}}", "{luns: {0: vm1}, "+r.target+"}", 1)
		c, err := conf.Parse("x.yaml", []byte(yaml+"auth: {user: u, secret: secret of user u}\n"))
		require.NoError(t, err, r.name)
		if r.want == "" {
			assert.Empty(t, c.Warnings, r.name)
		} else if assert.Len(t, c.Warnings, 1, r.name) {
			assert.Contains(t, c.Warnings[0], r.want, r.name)
			assert.NotContains(t, c.Warnings[0], "secret of")
		}
	}
}

func TestReadSecret(t *testing.T) {
	for _, end := range []string{"", "\n", "\r\n"} {
		s, warning, err := conf.ReadSecret(secretFile(t, " a secret with spaces "+end, 0o600))
		require.NoError(t, err)
		assert.Empty(t, warning)
		assert.True(t, s.Equal(secret(t, " a secret with spaces ")))
	}
	_, _, err := conf.ReadSecret(secretFile(t, "hunter2", 0o600))
	assert.ErrorContains(t, err, "secret of 7 bytes")
	assert.NotContains(t, err.Error(), "hunter2")
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, _, err = conf.ReadSecret(pipe) // and does not wait for a writer
	assert.ErrorContains(t, err, "not a regular file")
}
