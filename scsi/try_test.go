package scsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cached is a store that may block, and has some of it at hand.
type cached struct {
	*memory
	hot   bool
	tries int
}

func (c *cached) TryReadAt(bufs [][]byte, off int64) bool {
	c.tries++
	return c.hot && c.ReadAt(bufs, off) == nil
}

// TestReadsAreTriedBeforeAWorkerIsAsked: what cannot be had at once is left as if nothing had been tried, and what must
// wait for something else than the store's bytes is not tried at all.
func TestReadsAreTriedBeforeAWorkerIsAsked(t *testing.T) {
	s := &cached{memory: newMemory(1 << 20), hot: true}
	s.info.NeverBlocks, s.info.WriteCache = false, true
	copy(s.b[8*512:], bytes.Repeat([]byte{7}, 512))
	b := newBench(t, s)
	prepare := func(cdb []byte, n int, write bool) *Task {
		r := &Task{Nexus: b.nexus, LUN: 0, CDB: cdb, EDTL: uint32(n), Read: !write, Write: write}
		b.d.Prepare(r)
		require.False(t, r.Done)
		require.True(t, r.MayBlock)
		if buf := [][]byte{make([]byte, n)}; write {
			r.Out = buf
		} else {
			r.In = buf
		}
		return r
	}
	done := func(r *Task) {
		assert.Equal(t, Good, r.Status)
		b.d.Release(r)
		assert.Zero(t, b.lu.held())
	}

	r := prepare(cdb10(0x28, 0, 8, 1), 512, false)
	require.True(t, b.d.TryExecute(r))
	assert.EqualValues(t, 512, r.InData)
	assert.Equal(t, bytes.Repeat([]byte{7}, 512), r.In[0])
	done(r)

	s.hot = false
	r = prepare(cdb10(0x28, 0, 8, 1), 512, false)
	require.False(t, b.d.TryExecute(r))
	b.d.Execute(r)
	done(r)
	require.Equal(t, 2, s.tries)

	s.hot = true
	for name, r := range map[string]*Task{
		"forced to be on the medium": prepare(cdb10(0x28, cdbFUA, 8, 1), 512, false),
		"a write":                    prepare(cdb10(0x2a, 0, 8, 1), 512, true),
	} {
		assert.False(t, b.d.TryExecute(r), name)
		b.d.Execute(r)
		b.d.Release(r)
	}
	b.lu.state.Or(stateClosed) // somebody is alone inside, and may wait for the store
	r = prepare(cdb10(0x28, 0, 8, 1), 512, false)
	assert.False(t, b.d.TryExecute(r))
	b.lu.state.And(^uint32(stateClosed))
	b.d.Execute(r)
	done(r)
	assert.Equal(t, 2, s.tries)
}
