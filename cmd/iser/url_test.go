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
		{"iser://10.0.0.1", location{"iser", "10.0.0.1:3260", "", -1, "auto"}},
		{"iscsi://host:3261/iqn.2026-01.example:a/5", location{"tcp", "host:3261", "iqn.2026-01.example:a", 5, "auto"}},
		{"iser://[fe80::1]:99/iqn.2026-01.example:a/", location{"iser", "[fe80::1]:99", "iqn.2026-01.example:a", -1, "auto"}},
		{"iser://[::1]?rdma=verbs", location{"iser", "[::1]:3260", "", -1, "verbs"}},
		{"iser://[::1]?rdma=roce", location{"iser", "[::1]:3260", "", -1, "roce"}},
	}
	for _, r := range rows {
		got, err := parseURL(r.in)
		require.NoError(t, err, r.in)
		assert.Equal(t, r.want, got, r.in)
	}
}

func TestParseURLRefuses(t *testing.T) {
	for _, s := range []string{
		"", "10.0.0.1", "http://x", "iser://", "iser://x:0", "iser://x:65536", "iser://fe80::1", "iser://u@x",
		"iser://x//3", "iser://x/notaname", "iser://x/iqn.2026-01.a:b/-1", "iser://x/iqn.2026-01.a:b/16384",
		"iser://x?rdma=tcp", "iser://x?foo=1",
	} {
		_, err := parseURL(s)
		require.Error(t, err, s)
		assert.Equal(t, exitUsage, exitCode(err), s)
	}
}
