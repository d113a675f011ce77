package main

import (
	"context"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// PR-08: two portals of a target are two paths to one disk. Both tell the same of all port groups, before
// anybody has come through the other; the standby one gives no access until it is asked to.
func TestPathsOfATarget(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := serve(t, config(t, anyPort+`, {listen: "127.0.0.2:0", group: 2}`, ramStore,
		`"iqn.2026-01.example:ram": {luns: {0: ram}, alua: {2: standby}}`))
	in := make([]byte, 512)
	open := func(i int) func(cdb []byte, out []byte) initiator.Result {
		ses, err := initiator.Open(ctx, &tcp.Dialer{}, s.served()[i].Addr().String(), "iqn.2026-01.example:ram",
			initiator.Options{InitiatorName: "iqn.2026-01.example:test"})
		require.NoError(t, err)
		t.Cleanup(func() { _ = ses.Close() })
		do := func(cdb []byte, out []byte) initiator.Result {
			c := initiator.Command{CDB: cdb, Out: out}
			if out == nil {
				c.In = in
			}
			r, err := ses.Do(ctx, c)
			require.NoError(t, err)
			r.Sense = append(r.Sense, make([]byte, 18)...)
			return r
		}
		require.EqualValues(t, 2, do(make([]byte, 6), nil).Status, "power on")
		return do
	}
	var paths []func(cdb []byte, out []byte) initiator.Result
	for i, l := range s.served() {
		if l.Transport() == "tcp" {
			paths = append(paths, open(i))
		}
	}
	require.Len(t, paths, 2)
	rtpg := []byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}
	for _, path := range paths {
		assert.Zero(t, path(rtpg, nil).Status)
		assert.Equal(t, []byte{0, 0, 0, 24, 0, 0x8f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 0x8f, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2}, in[:28])
	}
	read := []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}
	assert.Zero(t, paths[0](read, nil).Status)
	r := paths[1](read, nil)
	assert.Equal(t, []byte{2, 0x04, 0x0b}, []byte{r.Sense[2], r.Sense[12], r.Sense[13]})

	stpg := []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}
	assert.Zero(t, paths[1](stpg, []byte{0, 0, 0, 0, 0, 0, 0, 2}).Status)
	assert.Zero(t, paths[1](read, nil).Status)
	r = paths[0](read, nil)
	assert.Equal(t, []byte{6, 0x2a, 0x06}, []byte{r.Sense[2], r.Sense[12], r.Sense[13]})
	assert.Zero(t, paths[0](read, nil).Status)
}
