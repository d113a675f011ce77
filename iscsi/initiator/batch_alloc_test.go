package initiator

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWarmBatchDoesNotAllocate(t *testing.T) {
	ft := newFakeTarget(good)
	s := openFake(t, ft, Options{PingInterval: -1})
	ft.keep = true
	d := &Disk{s: s, blockSize: 512, piece: maxPiece}
	d.blocks.Store(1 << 20)
	b, err := d.Batch(16)
	require.NoError(t, err)
	p, done := make([]byte, 4096), make([]Completion, 16)
	var failed error
	n := testing.AllocsPerRun(200, func() {
		for i := range 16 {
			add := b.ReadAt
			if i%2 == 0 {
				add = b.WriteAt
			}
			if err := add(p, 0, uint64(i)); err != nil {
				failed = err
			}
		}
		k, err := b.Wait(t.Context(), done, 16)
		if err != nil || k != 16 {
			failed = err
		}
		for _, c := range done[:k] {
			if c.Err != nil {
				failed = c.Err
			}
		}
	})
	require.NoError(t, failed)
	if !raceEnabled {
		assert.Zero(t, n)
	}
	b.Close()
	require.NoError(t, s.Close())
}
