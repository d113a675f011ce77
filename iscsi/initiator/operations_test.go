package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (n network) disk(t testing.TB, address string, o initiator.Options) *initiator.Disk {
	t.Helper()
	d, err := n.open(t, address, o).Disk(context.Background(), 0)
	require.NoError(t, err)
	return d
}

func TestUnmappedAndZeroedBlocksReadAsZeros(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		ctx := t.Context()
		d := n.disk(t, n.serve(t), options(t))
		zeroes, err := d.UnmapZeroes(ctx)
		require.NoError(t, err)
		assert.True(t, d.CanUnmap() && zeroes)
		for name, zero := range map[string]func(context.Context, int64, int64) error{
			"unmap": d.Unmap, "write zeroes": d.WriteZeroes, "write zeroes stable": d.WriteZeroesStable,
		} {
			want := bytes.Repeat([]byte{0xa5}, 64<<10)
			require.NoError(t, d.WriteAt(ctx, want, 0), name)
			require.NoError(t, zero(ctx, 8<<10, 32<<10), name)
			clear(want[8<<10 : 40<<10])
			got := make([]byte, len(want))
			require.NoError(t, d.ReadAt(ctx, got, 0), name)
			assert.True(t, bytes.Equal(want, got), name)
			assert.NoError(t, zero(ctx, 0, 0), name)
			for _, r := range [][2]int64{{1, 512}, {0, 100}, {diskSize, 512}, {-512, 512}, {512, -512}} {
				assert.Error(t, zero(ctx, r[0], r[1]), "%s %v", name, r)
			}
		}
	})
}

func TestCompareAndWriteIsOneStep(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		ctx := t.Context()
		address := n.serve(t)
		d := n.disk(t, address, options(t))
		// A counter in a block: each caller adds one, and none is lost.
		const callers, rounds = 4, 10
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				old, now := make([]byte, 512), make([]byte, 512)
				for done := 0; done < rounds; {
					if !assert.NoError(t, d.ReadAt(ctx, old, 4096)) {
						return
					}
					copy(now, old)
					now[0]++
					err := d.CompareAndWrite(ctx, old, now, 4096)
					if _, other := errors.AsType[*initiator.MiscompareError](err); other {
						continue
					}
					if !assert.NoError(t, err) {
						return
					}
					done++
				}
			})
		}
		wg.Wait()
		got := make([]byte, 512)
		require.NoError(t, d.ReadAt(ctx, got, 4096))
		assert.Equal(t, byte(callers*rounds), got[0])

		wrong := bytes.Clone(got)
		wrong[300]++
		err := d.CompareAndWrite(ctx, wrong, make([]byte, 512), 4096)
		var other *initiator.MiscompareError
		require.ErrorAs(t, err, &other)
		assert.Equal(t, int64(300), other.Offset)
		assert.ErrorIs(t, d.CompareAndWrite(ctx, make([]byte, 256*512), make([]byte, 256*512), 0), errors.ErrUnsupported)
		assert.Error(t, d.CompareAndWrite(ctx, got, got[:0], 4096))
		assert.Error(t, d.CompareAndWrite(ctx, got, got, diskSize))
	})
}

func TestFileReadsAndWritesAnyBytes(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		d := n.disk(t, n.serve(t), options(t))
		f := d.File(t.Context())
		want := make([]byte, 8192)
		require.NoError(t, d.WriteAt(t.Context(), want, 0))
		// Neighbours in the same blocks, side by side: none loses the other's bytes.
		var wg sync.WaitGroup
		for i := 100; i < 4000; i += 130 {
			wg.Go(func() {
				k, err := f.WriteAt(bytes.Repeat([]byte{byte(i)}, 130), int64(i))
				assert.NoError(t, err)
				assert.Equal(t, 130, k)
			})
			copy(want[i:], bytes.Repeat([]byte{byte(i)}, 130))
		}
		wg.Wait()
		got, err := io.ReadAll(io.NewSectionReader(f, 7, 8000))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want[7:8007], got))

		long := bytes.Repeat([]byte{7}, 3000) // a part, whole blocks, a part
		_, err = f.WriteAt(long, 1000)
		require.NoError(t, err)
		copy(want[1000:], long)
		k, err := f.ReadAt(got, 0)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want[:k], got))
		require.NoError(t, f.Sync())
	})
}

func TestFileEnds(t *testing.T) {
	n := networks()[0]
	f := n.disk(t, n.serve(t), options(t)).File(t.Context())
	p := make([]byte, 100)
	k, err := f.ReadAt(p, diskSize-40)
	assert.Equal(t, 40, k)
	assert.Equal(t, io.EOF, err)
	k, err = f.ReadAt(p, diskSize)
	assert.Zero(t, k)
	assert.Equal(t, io.EOF, err)
	k, err = f.WriteAt(p, diskSize-40)
	assert.Equal(t, 40, k)
	assert.ErrorIs(t, err, io.ErrShortWrite)
	k, err = f.WriteAt(p, diskSize+1)
	assert.Zero(t, k)
	assert.ErrorIs(t, err, io.ErrShortWrite)
	for _, io := range []func([]byte, int64) (int, error){f.ReadAt, f.WriteAt} {
		_, err = io(p, -1)
		assert.Error(t, err)
	}
}

func TestPersistentReservations(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		ctx := t.Context()
		address := n.serve(t)
		other := options(t)
		other.InitiatorName += "2"
		a, b := n.disk(t, address, options(t)), n.disk(t, address, other)
		require.NoError(t, a.Register(ctx, 0, 0xa, false))
		require.NoError(t, b.RegisterAndIgnore(ctx, 0xb, false))
		keys, generation, err := a.ReadKeys(ctx)
		require.NoError(t, err)
		assert.ElementsMatch(t, []uint64{0xa, 0xb}, keys)
		assert.Equal(t, uint32(2), generation)
		r, err := a.ReadReservation(ctx)
		require.NoError(t, err)
		assert.Equal(t, initiator.Reservation{Generation: 2}, r)

		require.NoError(t, a.Reserve(ctx, 0xa, initiator.WriteExclusive))
		r, err = b.ReadReservation(ctx)
		require.NoError(t, err)
		assert.Equal(t, initiator.Reservation{Generation: 2, Held: true, Key: 0xa, Type: initiator.WriteExclusive}, r)
		p := make([]byte, 512)
		assert.ErrorIs(t, b.WriteAt(ctx, p, 0), initiator.ErrReservationConflict)
		assert.ErrorIs(t, b.Register(ctx, 0xc, 0xd, false), initiator.ErrReservationConflict, "a key that is not registered")
		require.NoError(t, b.ReadAt(ctx, p, 0))

		require.NoError(t, b.Preempt(ctx, 0xb, 0xa, initiator.ExclusiveAccess, true))
		assert.ErrorIs(t, a.ReadAt(ctx, p, 0), initiator.ErrReservationConflict)
		require.NoError(t, b.Release(ctx, 0xb, initiator.ExclusiveAccess))
		require.NoError(t, a.WriteAt(ctx, p, 0))
		require.NoError(t, b.ClearReservations(ctx, 0xb))
		keys, _, err = b.ReadKeys(ctx)
		require.NoError(t, err)
		assert.Empty(t, keys)
	})
}

// TestADiskGrowsAndShrinks is against our target, which says so with the next command.
func TestADiskGrowsAndShrinks(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		ctx := t.Context()
		site := n.site(t, []uint16{1})
		var told []int64
		var d *initiator.Disk
		o := options(t)
		o.Attention = func(_ iscsi.LUN, what *initiator.StatusError) {
			if errors.Is(what, initiator.ErrCapacityChanged) {
				told = append(told, d.SizeBytes())
			}
		}
		d = n.disk(t, site.addresses[0], o)
		p, q := bytes.Repeat([]byte{7}, 4096), make([]byte, 4096)
		for _, size := range []int64{2 * diskSize, diskSize, diskSize + 8192} {
			require.NoError(t, site.unit.Resize(ctx, size, true))
			require.NoError(t, d.Flush(ctx))
			require.Equal(t, size, d.SizeBytes())
			require.NoError(t, d.WriteStable(ctx, p, size-4096))
			require.NoError(t, d.ReadAt(ctx, q, size-4096))
			assert.True(t, bytes.Equal(p, q))
			assert.Error(t, d.ReadAt(ctx, q, size))
		}
		assert.Equal(t, []int64{2 * diskSize, diskSize, diskSize + 8192}, told)
		require.NoError(t, site.unit.Resize(ctx, diskSize, true))
		require.NoError(t, d.Refresh(ctx), "takes the unit attention on its way")
		assert.Equal(t, int64(diskSize), d.SizeBytes())
	})
}

// TestTaskManagementFunctions: each is answered, and the session and the disk go on.
func TestTaskManagementFunctions(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		ctx := t.Context()
		d := n.disk(t, n.serve(t), options(t))
		for f, want := range map[iscsi.TMFunction]iscsi.TMResponse{
			iscsi.TMAbortTaskSet: iscsi.TMComplete, iscsi.TMClearTaskSet: iscsi.TMComplete,
			iscsi.TMLogicalUnitReset: iscsi.TMComplete, iscsi.TMTargetWarmReset: iscsi.TMComplete,
			iscsi.TMQueryTaskSet: iscsi.TMNotSupported, // which needs iSCSIProtocolLevel 2 (RFC 7144)
		} {
			got, err := d.TaskManagement(ctx, f)
			require.NoError(t, err, f)
			assert.Equal(t, want, got, f)
			require.NoError(t, d.WriteAt(ctx, make([]byte, 512), 0), f)
		}
		_, err := d.TaskManagement(ctx, iscsi.TMAbortTask)
		assert.ErrorContains(t, err, "not for callers")
	})
}
