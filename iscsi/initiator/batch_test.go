package initiator_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBatchKeepsManyUnderWay(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		o := options(t)
		o.QueueDepth = 8 // less than the batch: the others wait in line
		d := n.disk(t, n.serve(t), o)
		const depth, size = 32, 4096
		b, err := d.Batch(depth)
		require.NoError(t, err)
		defer b.Close()
		bufs := make([][]byte, diskSize/size)
		done := make([]initiator.Completion, 5) // fewer than come
		seen := make([]int, len(bufs))
		collect := func(least int) {
			k, err := b.Wait(t.Context(), done, least)
			require.NoError(t, err)
			for _, c := range done[:k] {
				require.NoError(t, c.Err)
				seen[c.Tag]++
			}
		}
		for round, add := range []func([]byte, int64, uint64) error{b.WriteAt, b.ReadAt} {
			for i := range bufs {
				if round == 0 {
					bufs[i] = bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2)
				} else {
					clear(bufs[i])
				}
				for b.Len() == depth {
					collect(1)
				}
				require.NoError(t, add(bufs[i], int64(i)*size, uint64(i)))
			}
			for b.Len() > 0 {
				collect(1)
			}
			for i := range bufs {
				require.Equal(t, round+1, seen[i], "tag %d", i)
				require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2), bufs[i]))
			}
		}
		k, err := b.Wait(t.Context(), done, 1)
		require.NoError(t, err)
		assert.Zero(t, k, "nothing is under way")
	})
}

func TestBatchHasBounds(t *testing.T) {
	n := networks()[0]
	d := n.disk(t, n.serve(t), options(t))
	for _, depth := range []int{-1, 0, 1025} {
		_, err := d.Batch(depth)
		assert.Error(t, err)
	}
	b, err := d.Batch(2)
	require.NoError(t, err)
	defer b.Close()
	p := make([]byte, d.MaxTransfer()+512)
	assert.Error(t, b.ReadAt(p, 0, 0))
	assert.Error(t, b.ReadAt(p[:0], 0, 0))
	assert.Error(t, b.ReadAt(p[:100], 0, 0))
	assert.Error(t, b.WriteAt(p[:512], diskSize, 0))
	require.NoError(t, b.ReadAt(p[:d.MaxTransfer()], 0, 1))
	require.NoError(t, b.ReadAt(p[:512], 0, 2))
	assert.ErrorIs(t, b.ReadAt(p[:512], 0, 3), initiator.ErrBatchFull)

	done := make([]initiator.Completion, 2)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err = b.Wait(ctx, done, 1)
	assert.ErrorIs(t, err, context.Canceled)
	k, err := b.Wait(t.Context(), done, 2)
	require.NoError(t, err)
	assert.Equal(t, 2, k, "what a context has cut short goes on")
}

func TestABatchOfALostSessionEnds(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		s, err := initiator.Open(t.Context(), n.dial, n.serve(t), diskName, options(t))
		require.NoError(t, err)
		d, err := s.Disk(t.Context(), 0)
		require.NoError(t, err)
		b, err := d.Batch(4)
		require.NoError(t, err)
		defer b.Close()
		require.NoError(t, b.ReadAt(make([]byte, 4096), 0, 1))
		require.NoError(t, b.Submit(t.Context()))
		require.NoError(t, s.Close())
		require.NoError(t, b.ReadAt(make([]byte, 4096), 0, 2))
		done := make([]initiator.Completion, 4)
		k, err := b.Wait(t.Context(), done, 4)
		require.NoError(t, err)
		require.Equal(t, 2, k)
		for _, c := range done[:k] {
			if c.Tag == 2 {
				assert.ErrorIs(t, c.Err, net.ErrClosed)
			}
		}
	})
}

// TestClosedBatchTouchesNoBuffer: whatever was under way, the buffers are the caller's when Close returns.
func TestClosedBatchTouchesNoBuffer(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		s := n.open(t, n.serve(t), options(t))
		d, err := s.Disk(t.Context(), 0)
		require.NoError(t, err)
		p := make([]byte, 32<<10)
		for range 10 {
			b, err := d.Batch(8)
			require.NoError(t, err)
			for i := range 8 {
				require.NoError(t, b.ReadAt(p[i<<12:(i+1)<<12], 0, uint64(i)))
				if i == 4 {
					require.NoError(t, b.Submit(t.Context()))
				}
			}
			b.Close()
			for i := range p {
				p[i] = 0x5a
			}
			_, err = s.Ping(t.Context())
			require.NoError(t, err)
			assert.Equal(t, len(p), bytes.Count(p, []byte{0x5a}))
		}
		require.NoError(t, d.ReadAt(t.Context(), p, 0), "the queue's tokens are there again")
	})
}

func TestABatchOnAnExclusiveDiskDoesNotWaitForItself(t *testing.T) {
	n := networks()[0]
	o := options(t)
	o.Exclusive, o.ReconnectTimeout = true, time.Minute
	c, err := initiator.Connect(t.Context(), n.dial, n.serve(t), diskName, o)
	require.NoError(t, err)
	defer c.Close()
	d, err := c.Disk(t.Context(), 0)
	require.NoError(t, err)
	b, err := d.Batch(4)
	require.NoError(t, err)
	p := make([]byte, 1024)
	require.NoError(t, b.WriteAt(p, 0, 0))
	assert.ErrorIs(t, b.WriteAt(p, 512, 1), initiator.ErrOverlap)
	require.NoError(t, b.ReadAt(make([]byte, 1024), 512, 2), "reads may")
	done := make([]initiator.Completion, 4)
	_, err = b.Wait(t.Context(), done, 4)
	require.NoError(t, err)
	require.NoError(t, b.WriteAt(p, 512, 1))
	b.Close()
	require.NoError(t, d.WriteAt(t.Context(), p, 512), "Close leaves its ranges")
}

func TestErrorsOfABatchAreThoseOfTheDisk(t *testing.T) {
	n := networks()[0]
	c, err := initiator.Connect(t.Context(), n.dial, n.serve(t), diskName, options(t))
	require.NoError(t, err)
	defer c.Close()
	d, err := c.Disk(t.Context(), 0)
	require.NoError(t, err)
	b, err := d.Batch(1)
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, c.Close()) // there is no session to send it on
	want := d.WriteAt(t.Context(), make([]byte, 512), 1024)
	require.ErrorContains(t, want, "write 512 bytes at 1024")
	require.NoError(t, b.WriteAt(make([]byte, 512), 1024, 1))
	done := make([]initiator.Completion, 1)
	k, err := b.Wait(t.Context(), done, 1)
	require.NoError(t, err)
	require.Equal(t, 1, k)
	require.EqualError(t, done[0].Err, want.Error())
}
