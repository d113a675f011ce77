package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func serve(t *testing.T, c *conf.Config) *service {
	t.Helper()
	log, _ := test.NewNullLogger()
	s, err := start(c, log, noRDMA, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.stop()) })
	return s
}

// TestPortalGroupsAndRedirect: one server knows the target in its second group only, and sends who comes through
// the first to another server.
func TestPortalGroupsAndRedirect(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	there := serve(t, config(t, anyPort, ramStore, ramTarget)).served()[0].Addr().String()
	s := serve(t, config(t, anyPort+`, {listen: "127.0.0.2:0", group: 2}`, ramStore,
		`"iqn.2026-01.example:two": {luns: {0: ram}, groups: [2]},`+
			fmt.Sprintf(`"iqn.2026-01.example:ram": {luns: {0: ram}, redirect: {to: %q, groups: [1]}}`, there)))
	var addr []string
	for _, l := range s.served() {
		if l.Transport() == "tcp" {
			addr = append(addr, l.Addr().String())
		}
	}
	o := initiator.Options{InitiatorName: "iqn.2026-01.example:test"}
	names := func(address string) string {
		list, err := initiator.Discover(ctx, &tcp.Dialer{}, address, o)
		require.NoError(t, err)
		var names []string
		for _, r := range list {
			names = append(names, fmt.Sprint(strings.TrimPrefix(r.Name, "iqn.2026-01.example:"), r.Addresses))
		}
		return strings.Join(names, " ")
	}
	ram := fmt.Sprintf("ram[%s,1 %s,2]", addr[0], addr[1])
	assert.Equal(t, ram, names(addr[0]))
	assert.Equal(t, ram+fmt.Sprintf(" two[%s,2]", addr[1]), names(addr[1]))

	_, err := initiator.Open(ctx, &tcp.Dialer{}, addr[0], "iqn.2026-01.example:two", o)
	var refused *iscsi.LoginError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, iscsi.LoginNotFound, refused.Status)

	moved, far := openDisk(t, ctx, &tcp.Dialer{}, addr[0])
	stayed, near := openDisk(t, ctx, &tcp.Dialer{}, addr[1])
	require.NoError(t, far.WriteAt(ctx, make([]byte, 512), 0))
	block := make([]byte, 512)
	block[0] = 7
	require.NoError(t, near.WriteAt(ctx, block, 0))
	require.NoError(t, far.ReadAt(ctx, block, 0))
	assert.Zero(t, block[0], "two different disks")
	require.NoError(t, moved.Close())
	require.NoError(t, stayed.Close())
}
