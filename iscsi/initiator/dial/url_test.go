package dial

import (
	"testing"

	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseURL(t *testing.T) {
	for in, want := range map[string]URL{
		"iser://10.0.0.1": {Transport: "iser", Address: "10.0.0.1:3260", LUN: -1, RDMA: provider.Auto},
		"iscsi://host:3261/iqn.2026-01.example:a/5": {
			Transport: "tcp", Address: "host:3261", Target: "iqn.2026-01.example:a", LUN: 5, RDMA: provider.Auto,
		},
		"iser://[fe80::1]:99/iqn.2026-01.example:a/": {
			Transport: "iser", Address: "[fe80::1]:99", Target: "iqn.2026-01.example:a", LUN: -1, RDMA: provider.Auto,
		},
		"iscsi://host-a@10.0.0.1": {Transport: "tcp", Address: "10.0.0.1:3260", LUN: -1, RDMA: provider.Auto, User: "host-a"},
		"iser://[::1]?rdma=verbs": {Transport: "iser", Address: "[::1]:3260", LUN: -1, RDMA: provider.Verbs},
		"iscsi://u%s%/e@c:r@[::1]:99/iqn.2026-01.example:a/0?target_user=d&target_password=p%w&rdma=roce": {
			Transport: "tcp", Address: "[::1]:99", Target: "iqn.2026-01.example:a", RDMA: provider.RoCE,
			User: "u", Secret: "s%/e@c:r", MutualUser: "d", MutualSecret: "p%w",
		},
		"iscsi://u%s@h/iqn.2026-01.example:a?target_user=d@realm&target_password=p@w": {
			Transport: "tcp", Address: "h:3260", Target: "iqn.2026-01.example:a", LUN: -1, RDMA: provider.Auto,
			User: "u", Secret: "s", MutualUser: "d@realm", MutualSecret: "p@w",
		},
	} {
		got, err := ParseURL(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, got, in)
	}
}

func TestParseURLRefusesWithoutTellingSecrets(t *testing.T) {
	for _, s := range []string{
		"", "10.0.0.1", "http://u%hidden@x", "iser://", "iser://u%hidden@x:0", "iser://u%hidden@", "iser://u@", "iser://u%hid?hidden@x:0", "iser://x:65536", "iser://fe80::1", "iser://@x",
		"iser://%hidden@x", "iser://x?target_password=hidden", "iser://x//3", "iser://x/notaname", "iser://x/iqn.2026-01.a:b/-1",
		"iser://x/iqn.2026-01.a:b/16384", "iser://x?rdma=tcp", "iser://u%hidden@x?foo=1",
		"iscsi://u@x?target_user=d&target_password=hidden&rdma=x",
		"iser://u%hidden@x?target_user=d&target_password=p@hidden&foo=1",
	} {
		_, err := ParseURL(s)
		require.Error(t, err, s)
		assert.NotContains(t, err.Error(), "hidden")
	}
}

func TestSecretsDoNotShowInURLs(t *testing.T) {
	for in, want := range map[string]string{
		"iser://10.0.0.1/iqn.2026-01.a:b/0":                          "iser://10.0.0.1/iqn.2026-01.a:b/0",
		"iser://host@10.0.0.1":                                       "iser://host@10.0.0.1",
		"iser://host%hidden@10.0.0.1/iqn.2026-01.a:b":                "iser://host%...@10.0.0.1/iqn.2026-01.a:b",
		"if=iscsi://host%hidden/@hidden?@hidden@x":                   "if=iscsi://host%...@x",
		"iscsi://u@x?target_user=d&target_password=hidden&rdma=roce": "iscsi://u@x?target_user=d&target_password=...&rdma=roce",
		"iscsi://u%hidden@x?target_password=hidden":                  "iscsi://u%...@x?target_password=...",
		"http://u%hidden@x":                                          "http://u%...@x",
		"u%hidden":                                                   "u%hidden", // no URL at all
	} {
		assert.Equal(t, want, Redact(in))
	}
	u, err := ParseURL("iscsi://u%hidden@x/iqn.2026-01.example:a/3?target_user=d&target_password=hidden")
	require.NoError(t, err)
	assert.Equal(t, "iscsi://u@x:3260/iqn.2026-01.example:a/3", u.String())
}

// FuzzParseURL: what is parsed means the same when it is written again.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"iser://10.0.0.1/iqn.2026-01.example:a/5", "iscsi://u%s@[fe80::1]:99/iqn.2026-01.example:a", "iser://x?rdma=roce",
		"iscsi://u@h?target_user=d&target_password=p", "iser://[x", "iscsi://00@[0000000]0", "iscsi://:1", "iser://a%b@c@d",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		again, err := ParseURL(u.String())
		require.NoError(t, err, "%q, written %q", s, u)
		u.Secret, u.MutualUser, u.MutualSecret, u.RDMA = "", "", "", provider.Auto
		assert.Equal(t, u, again, "%q", s)
	})
}
