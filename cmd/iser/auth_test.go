package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSecretsDoNotShowInErrors(t *testing.T) {
	_, err := parseURL("iscsi://u%hunter2@x:0")
	require.ErrorContains(t, err, "iscsi://u%...@x:0")
	assert.Equal(t, exitUsage, exitCode(err))
	_, err = parseDD([]string{"iser://u%hunter2@x"})
	require.ErrorContains(t, err, "iser://u%...@x")
	_, err = parseDD([]string{"bs=iser://u%hunter2@x"})
	require.ErrorContains(t, err, "iser://u%...@x")
}

// authApp is an app with what it has said.
func authApp(t *testing.T) (*app, func() string) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return &app{errOut: f}, func() string {
		_, err := f.Seek(0, io.SeekStart)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		return string(b)
	}
}

func TestCredentials(t *testing.T) {
	file := func(text string, mode os.FileMode) string {
		name := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(name, []byte(text), mode))
		return name
	}
	secret := func(text string) chap.Secret {
		s, err := chap.NewSecret(text)
		require.NoError(t, err)
		return s
	}
	for _, r := range []struct {
		name, url string
		flags     authFlags
		env       map[string]string
		want      *chap.Credentials
		err, said string
	}{
		{name: "no user", url: "iscsi://x", env: map[string]string{secretEnv: "secret of the host"}},
		{
			name: "environment", url: "iscsi://host@x", env: map[string]string{secretEnv: "secret of the host"},
			want: &chap.Credentials{User: "host", Secret: secret("secret of the host")},
		},
		{
			name: "the file before the environment", url: "iscsi://host@x", env: map[string]string{secretEnv: "secret of the host"},
			flags: authFlags{secretFile: file("secret in a file\n", 0o600)},
			want:  &chap.Credentials{User: "host", Secret: secret("secret in a file")},
		},
		{
			name: "exposed file", url: "iscsi://host@x", flags: authFlags{secretFile: file("secret in a file\n", 0o644)},
			want: &chap.Credentials{User: "host", Secret: secret("secret in a file")}, said: "chmod o=",
		},
		{
			name: "the URL before all", url: "iscsi://host%secret in a URL@x", env: map[string]string{secretEnv: "secret of the host"},
			want: &chap.Credentials{User: "host", Secret: secret("secret in a URL")}, said: "seen by everybody",
		},
		{
			name: "mutual", url: "iscsi://host@x", env: map[string]string{secretEnv: "secret of the host"},
			flags: authFlags{mutualUser: "disk", mutualSecretFile: file("secret of the disk", 0o600), algorithms: []string{"sha256", "md5"}},
			want: &chap.Credentials{
				User: "host", Secret: secret("secret of the host"), MutualUser: "disk", MutualSecret: secret("secret of the disk"),
				Algorithms: []chap.Algorithm{chap.SHA256, chap.MD5},
			},
		},
		{
			name: "mutual as libiscsi", url: "iscsi://host@x?target_user=disk",
			env: map[string]string{secretEnv: "secret of the host", mutualSecretEnv: "secret of the disk"},
			want: &chap.Credentials{
				User: "host", Secret: secret("secret of the host"), MutualUser: "disk", MutualSecret: secret("secret of the disk"),
			},
		},
		{name: "no secret", url: "iscsi://host@x", err: `iscsi://host@x:3260: CHAP user "host": no secret; give its file, or set ISER_CHAP_SECRET`},
		{name: "short", url: "iscsi://host@x", env: map[string]string{secretEnv: "hunter2"}, err: "secret of 7 bytes; at least 12"},
		{
			name: "no mutual secret", url: "iscsi://host@x?target_user=disk", env: map[string]string{secretEnv: "secret of the host"},
			err: `mutual CHAP user "disk": no secret; give its file, or set ISER_CHAP_MUTUAL_SECRET`,
		},
		{name: "mutual without a user", url: "iscsi://x", flags: authFlags{mutualUser: "disk"}, err: "write USER@ before the host"},
		{
			name: "one secret for both", url: "iscsi://host@x?target_user=disk",
			env: map[string]string{secretEnv: "secret of the host", mutualSecretEnv: "secret of the host"}, err: "the same secret for both",
		},
		{name: "algorithm", url: "iscsi://host@x", env: map[string]string{secretEnv: "secret of the host"}, flags: authFlags{algorithms: []string{"md4"}}, err: "--chap"},
	} {
		t.Run(r.name, func(t *testing.T) {
			for k, v := range r.env {
				t.Setenv(k, v)
			}
			a, said := authApp(t)
			a.auth = r.flags
			u, err := parseURL(r.url)
			require.NoError(t, err)
			c, err := a.credentials(&u)
			if r.err != "" {
				require.ErrorContains(t, err, r.err)
				assert.Equal(t, exitUsage, exitCode(err))
				assert.NotContains(t, err.Error(), "hunter2")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, r.want, c)
			_, err = a.credentials(&u)
			require.NoError(t, err)
			if r.said == "" {
				assert.Empty(t, said())
			} else {
				assert.Contains(t, said(), r.said)
				assert.Equal(t, 1, len(a.warned), "told once")
			}
		})
	}
	assert.Equal(t, exitRefused, exitCode(fmt.Errorf("log in: %w", initiator.ErrAuth)))
}
