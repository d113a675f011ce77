package dial

import (
	"net"
	"net/netip"
	"testing"

	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDialSaysWhatIsMissing(t *testing.T) {
	for url, want := range map[string]string{
		"nbd://x":                               "want iser://HOST",
		"iscsi://127.0.0.1:1":                   "names no target",
		"iscsi://u@127.0.0.1:1/iqn.2026-01.a:b": "secret",
		"iscsi://127.0.0.1:1/iqn.2026-01.a:b?target_user=d":     "write USER@",
		"iscsi://u%123456789012345@127.0.0.1:1/iqn.2026-01.a:b": "connection refused",
	} {
		_, err := Dial(t.Context(), url)
		require.Error(t, err, url)
		assert.ErrorContains(t, err, want, url)
		assert.NotContains(t, err.Error(), "123456789012345")
	}
}

func TestCredentialsOfTheOptionsServeAUserWithoutSecret(t *testing.T) {
	known := &chap.Credentials{User: "u"}
	c, err := credentials(&URL{User: "u"}, known)
	require.NoError(t, err)
	assert.Same(t, known, c)
	c, err = credentials(&URL{}, known)
	require.NoError(t, err)
	assert.Same(t, known, c)
	_, err = credentials(&URL{User: "other"}, known)
	assert.Error(t, err)
	c, err = credentials(&URL{User: "u", Secret: "long enough to be one"}, known)
	require.NoError(t, err)
	assert.NotSame(t, known, c)
}

func TestDialPathsSaysWhatIsMissing(t *testing.T) {
	d := &Dialer{}
	const good = "iscsi://127.0.0.1:1/iqn.2026-01.a:b"
	for want, urls := range map[string][]string{
		"0 paths":              nil,
		"names no target":      {good, "iscsi://127.0.0.1:1"},
		"want iser://HOST":     {good, "nbd://x"},
		"other paths have LUN": {good + "/1", good},
		"connection refused":   {good, good},
	} {
		_, err := d.DialPaths(t.Context(), urls...)
		assert.ErrorContains(t, err, want)
	}
}

func TestAClosedDialerOpensNothing(t *testing.T) {
	d := &Dialer{Options: initiator.Options{}, Source: netip.MustParseAddr("127.0.0.1")}
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	for _, url := range []string{"iscsi://127.0.0.1:1/iqn.2026-01.a:b", "iser://127.0.0.1:1/iqn.2026-01.a:b?rdma=roce"} {
		_, err := d.Dial(t.Context(), url)
		assert.ErrorIs(t, err, net.ErrClosed)
		_, err = d.Discover(t.Context(), url)
		assert.ErrorIs(t, err, net.ErrClosed)
	}
}

func TestDisksOfADialerShareTheProvider(t *testing.T) {
	d := &Dialer{}
	u := &URL{Transport: "iser", RDMA: provider.RoCE}
	_, _, err := d.prepare(u)
	require.NoError(t, err)
	first := d.providers[provider.RoCE]
	_, _, err = d.prepare(u)
	require.NoError(t, err)
	assert.Same(t, first, d.providers[provider.RoCE])
	assert.Len(t, d.providers, 1)
	require.NoError(t, d.Close())
}
