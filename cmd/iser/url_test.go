package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseURL(t *testing.T) {
	rows := []struct {
		in   string
		want location
	}{
		{"iser://10.0.0.1", location{transport: "iser", address: "10.0.0.1:3260", target: "", lun: -1, provider: "auto"}},
		{"iscsi://host:3261/iqn.2026-01.example:a/5", location{transport: "tcp", address: "host:3261", target: "iqn.2026-01.example:a", lun: 5, provider: "auto"}},
		{"iser://[fe80::1]:99/iqn.2026-01.example:a/", location{transport: "iser", address: "[fe80::1]:99", target: "iqn.2026-01.example:a", lun: -1, provider: "auto"}},
		{"iser://[::1]?rdma=verbs", location{transport: "iser", address: "[::1]:3260", target: "", lun: -1, provider: "verbs"}},
		{"iser://[::1]?rdma=roce", location{transport: "iser", address: "[::1]:3260", target: "", lun: -1, provider: "roce"}},
		{"iscsi://host-a@10.0.0.1", location{transport: "tcp", address: "10.0.0.1:3260", lun: -1, provider: "auto", user: "host-a"}},
		{
			"iscsi://u%s%/e@c:r@[::1]:99/iqn.2026-01.example:a/0?target_user=d&target_password=p%w&rdma=roce",
			location{
				transport: "tcp", address: "[::1]:99", target: "iqn.2026-01.example:a", provider: "roce",
				user: "u", secret: "s%/e@c:r", mutualUser: "d", mutualSecret: "p%w",
			},
		},
	}
	for _, r := range rows {
		got, err := parseURL(r.in)
		require.NoError(t, err, r.in)
		assert.Equal(t, r.want, got, r.in)
	}
}

func TestParseURLRefuses(t *testing.T) {
	for _, s := range []string{
		"", "10.0.0.1", "http://x", "iser://", "iser://x:0", "iser://x:65536", "iser://fe80::1", "iser://@x", "iser://%secret@x", "iser://u@", "iser://x?target_password=y",
		"iser://x//3", "iser://x/notaname", "iser://x/iqn.2026-01.a:b/-1", "iser://x/iqn.2026-01.a:b/16384",
		"iser://x?rdma=tcp", "iser://x?foo=1",
	} {
		_, err := parseURL(s)
		require.Error(t, err, s)
		assert.Equal(t, exitUsage, exitCode(err), s)
	}
}
