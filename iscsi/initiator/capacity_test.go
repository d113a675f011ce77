package initiator

import (
	"errors"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCapacityIsReadBeforeTheUserIsTold: whatever command meets the unit attention.
func TestCapacityIsReadBeforeTheUserIsTold(t *testing.T) {
	var d *Disk
	var met []error
	u := &fakeUnit{blocks: 100, blockSize: 512}
	s := openFake(t, newFakeTarget(u.execute), Options{PingInterval: -1, Attention: func(_ iscsi.LUN, what *StatusError) {
		for _, e := range []error{ErrCapacityChanged, ErrLUNsChanged, ErrAccessChanged, ErrReservationConflict} {
			if errors.Is(what, e) {
				met = append(met, e)
			}
		}
		if errors.Is(what, ErrCapacityChanged) {
			assert.Equal(t, int64(u.blocks)*512, d.SizeBytes())
		}
	}})
	defer s.Close()
	d, err := s.Disk(t.Context(), 0)
	require.NoError(t, err)
	p := make([]byte, 512)
	for name, do := range map[string]func() error{
		"read":  func() error { return d.ReadAt(t.Context(), p, 0) },
		"write": func() error { return d.WriteAt(t.Context(), p, 0) },
		"flush": func() error { return d.Flush(t.Context()) },
		"zero":  func() error { return d.WriteZeroes(t.Context(), 0, 512) },
		"keys":  func() error { _, _, err := d.ReadKeys(t.Context()); return err },
	} {
		met = nil
		u.blocks += 50
		u.script = []unitAnswer{attention(0x2a, 9)}
		require.NoError(t, do(), name)
		assert.Equal(t, []error{ErrCapacityChanged}, met, name)
		require.NoError(t, d.ReadAt(t.Context(), p, int64(u.blocks-1)*512), name)
		assert.Error(t, d.ReadAt(t.Context(), p, int64(u.blocks)*512), name)
	}
	met = nil
	u.blocks = 10
	u.script = []unitAnswer{attention(0x2a, 9), attention(0x2a, 6), attention(0x3f, 0x0e)}
	require.NoError(t, d.Flush(t.Context()))
	assert.Equal(t, []error{ErrAccessChanged, ErrLUNsChanged, ErrCapacityChanged}, met, "READ CAPACITY meets the others")
	assert.Error(t, d.ReadAt(t.Context(), p, 10*512))
	u.script = []unitAnswer{attention(0x2a, 7), attention(0x3f, 0x0e)}
	met = nil
	require.NoError(t, d.Flush(t.Context()))
	assert.Equal(t, []error{ErrAccessChanged, ErrLUNsChanged}, met)

	u.blocks = 77
	require.NoError(t, d.Refresh(t.Context()))
	assert.Equal(t, int64(77*512), d.SizeBytes())
}

// TestBlocksOfAnotherSizeAreNotAddressed: the same offset means other blocks after a FORMAT UNIT.
func TestBlocksOfAnotherSizeAreNotAddressed(t *testing.T) {
	u := &fakeUnit{blocks: 100, blockSize: 512}
	_, d, err := openUnit(t, u)
	require.NoError(t, err)
	u.blockSize = 4096
	u.script = []unitAnswer{attention(0x2a, 9)}
	require.NoError(t, d.Flush(t.Context()), "has no blocks")
	u.cdbs = nil
	p := make([]byte, 4096)
	assert.ErrorIs(t, d.ReadAt(t.Context(), p, 0), ErrOtherUnit)
	assert.ErrorIs(t, d.WriteAt(t.Context(), p, 0), ErrOtherUnit)
	assert.ErrorIs(t, d.CompareAndWrite(t.Context(), p, p, 0), ErrOtherUnit)
	b, err := d.Batch(1)
	require.NoError(t, err)
	assert.ErrorIs(t, b.WriteAt(p, 0, 0), ErrOtherUnit)
	assert.Empty(t, u.cdbs)
}

func TestWriteStable(t *testing.T) {
	for _, fua := range []bool{true, false} {
		u := &fakeUnit{blocks: 1 << 34, blockSize: 512, dpofua: fua}
		_, d, err := openUnit(t, u)
		require.NoError(t, err)
		u.cdbs = nil
		require.NoError(t, d.WriteStable(t.Context(), make([]byte, 512), 512))
		require.NoError(t, d.WriteAt(t.Context(), make([]byte, 512), 0))
		if fua {
			require.Len(t, u.cdbs, 2)
			assert.Equal(t, []byte{opWrite10, 8, 0, 0, 0, 1, 0, 0, 1, 0}, u.cdbs[0][:10])
		} else {
			require.Len(t, u.cdbs, 3)
			assert.Equal(t, []byte{opWrite10, 0, 0, 0, 0, 1, 0, 0, 1, 0}, u.cdbs[0][:10])
			assert.Equal(t, []byte{opSynchronizeCache10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, u.cdbs[1][:10])
		}
		assert.Zero(t, u.cdbs[len(u.cdbs)-1][1], "the next write is as before")
		u.cdbs = nil
		require.NoError(t, d.WriteStable(t.Context(), make([]byte, 512), 1<<42))
		assert.Equal(t, []byte{opWrite16, u.cdbs[0][1], 0, 0, 0, 2}, u.cdbs[0][:6])
		assert.Equal(t, fua, u.cdbs[0][1] == 8)
	}
}

// TestAStableWriteNeedsNoFlush: a session that is lost later takes nothing with it.
func TestAStableWriteNeedsNoFlush(t *testing.T) {
	w := newWorld()
	w.wce, w.unit.dpofua = true, true
	_, d := w.connect(t, Options{ReconnectTimeout: 1 << 40})
	p := make([]byte, 512)
	require.NoError(t, d.WriteStable(t.Context(), p, 0))
	w.loseOnce(opRead10, lostBefore)
	require.NoError(t, d.ReadAt(t.Context(), p, 0))
	assert.NoError(t, d.Flush(t.Context()))
}
