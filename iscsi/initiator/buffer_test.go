package initiator_test

import (
	"bytes"
	"context"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi/initiator"
)

func TestBuffers(t *testing.T) { onEach(t, checkBuffers) }

func checkBuffers(t *testing.T, n network) {
	ctx := context.Background()
	s := n.open(t, n.serve(t), options(t))
	d, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	var all []*initiator.Buffer
	for range 3 {
		b, err := d.AllocBuffer(ctx, diskSize)
		require.NoError(t, err)
		require.Len(t, b.Bytes(), diskSize)
		require.Equal(t, diskSize, cap(b.Bytes()))
		all = append(all, b)
	}
	shadow := make([]byte, diskSize)
	rng := rand.New(rand.NewSource(1))
	for i := range 200 {
		p := all[i%3].Bytes()
		n := 512 * (1 + rng.Intn(3000)) // up to three pieces
		at, off := rng.Intn(diskSize-n+1), 512*rng.Intn((diskSize-n)/512+1)
		p = p[at:][:n]
		if rng.Intn(2) == 0 {
			_, _ = rng.Read(p)
			copy(shadow[off:], p)
			require.NoError(t, d.WriteAt(ctx, p, int64(off)))
			continue
		}
		require.NoError(t, d.ReadAt(ctx, p, int64(off)))
		require.True(t, bytes.Equal(shadow[off:][:n], p), "%d bytes at %d", n, off)
	}
	got := make([]byte, diskSize)
	require.NoError(t, d.ReadAt(ctx, got, 0))
	require.True(t, bytes.Equal(shadow, got), "as a caller without a buffer reads it")
	require.NoError(t, all[0].Close())
	require.NoError(t, all[0].Close(), "again")
	require.NoError(t, d.ReadAt(ctx, all[1].Bytes()[:4096], 0))
	require.NoError(t, s.Close())
	require.NoError(t, all[1].Close(), "after the session")
	require.NoError(t, all[2].Close())
	_, err = s.AllocBuffer(ctx, 4096)
	require.Error(t, err)
	_, err = s.AllocBuffer(ctx, 0)
	require.Error(t, err)
}

// A buffer of a Connection is good for the sessions to come.
func TestBuffersOutliveSessions(t *testing.T) { onEach(t, checkBuffersOutliveSessions) }

func checkBuffersOutliveSessions(t *testing.T, n network) {
	ctx := context.Background()
	o := options(t)
	o.ReconnectTimeout = time.Minute
	c, err := initiator.Connect(ctx, n.dial, n.serve(t), diskName, o)
	require.NoError(t, err)
	d, err := c.Disk(ctx, 0)
	require.NoError(t, err)
	b, err := d.AllocBuffer(ctx, 100<<10)
	require.NoError(t, err)
	for i := range byte(3) {
		p := b.Bytes()
		for j := range p {
			p[j] = i + byte(j>>9)
		}
		want := bytes.Clone(p)
		require.NoError(t, d.WriteAt(ctx, p, 0))
		s, err := c.Session(ctx)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		clear(p)
		require.NoError(t, d.ReadAt(ctx, p, 0))
		require.Equal(t, want, p)
	}
	other, err := d.AllocBuffer(ctx, 4096)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.NoError(t, c.Close())
	assert.NoError(t, b.Close())
}
