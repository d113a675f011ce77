package backstore

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// recorded makes a store tell what it asks of the kernel, in order.
func recorded(s *fileStore, refuse error) *[]string {
	var calls []string
	s.sys.fallocate = func(fd int, mode uint32, off, n int64) error {
		calls = append(calls, map[uint32]string{punchHole: "punch", zeroRange: "zero", 0: "reserve"}[mode])
		if refuse != nil {
			return refuse
		}
		return unix.Fallocate(fd, mode, off, n)
	}
	s.sys.pwritev = func(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
		calls = append(calls, "write")
		return pwritev(fd, iov, off, flags)
	}
	s.sys.fdatasync = func(fd int) error {
		calls = append(calls, "sync")
		return unix.Fdatasync(fd)
	}
	return &calls
}

// TestZerosAreForcedInOrder: what is to be durable is flushed once, after everything has been done.
func TestZerosAreForcedInOrder(t *testing.T) {
	for _, c := range []struct {
		opts       []string
		unmap, fua bool
		off, n     int64
		want       []string
	}{
		{nil, true, false, 0, 8192, []string{"punch"}},
		{nil, true, true, 0, 8192, []string{"punch", "sync"}},
		{nil, false, true, 0, 8192, []string{"zero", "sync"}},
		{nil, true, true, 1, 8192, []string{"write", "punch", "write", "sync"}},
		{nil, true, true, 1, 100, []string{"write", "sync"}},
		{nil, true, true, 4000, 200, []string{"write", "write", "sync"}},
		{[]string{"sync", "dsync"}, true, false, 0, 8192, []string{"punch", "sync"}},
		{[]string{"sync", "fua"}, true, true, 0, 8192, []string{"punch", "sync"}},
		{[]string{"thin", "no"}, true, true, 0, 8192, []string{"zero", "sync"}},
	} {
		s := faulty(t, c.opts...)
		calls := recorded(s, nil)
		require.NoError(t, s.WriteZeroes(c.off, c.n, c.unmap, c.fua))
		require.Equal(t, c.want, *calls, "%+v", c)
		require.NoError(t, s.Close())
	}
	s := faulty(t, "sync", "dsync")
	calls := recorded(s, nil)
	require.NoError(t, s.Unmap(0, 8192))
	require.Equal(t, []string{"punch", "sync"}, *calls, "without a write cache nobody will ask for a flush")
	require.NoError(t, s.Close())
}

// TestZerosWithoutHelp: a file system that refuses is asked once, and zeros are written instead.
func TestZerosWithoutHelp(t *testing.T) {
	const n = 2*zeroChunk + 4096
	for _, errno := range []unix.Errno{unix.EOPNOTSUPP, unix.ENOSYS, unix.EINVAL} {
		s := faulty(t, "size", "4MiB")
		full := bytes.Repeat([]byte{1}, n)
		calls := recorded(s, errno)
		for _, first := range []string{"punch", ""} {
			require.NoError(t, s.WriteAt([][]byte{full}, 0, false))
			*calls = nil
			require.NoError(t, s.Unmap(0, n))
			want := []string{"write", "write", "write"}
			if first != "" {
				want = append([]string{first}, want...)
			}
			require.Equal(t, want, *calls)
			got := make([]byte, n)
			require.NoError(t, s.ReadAt([][]byte{got}, 0))
			require.Equal(t, make([]byte, n), got)
		}
		require.NoError(t, s.Close())
	}
}

func TestZeroErrors(t *testing.T) {
	s := faulty(t)
	recorded(s, unix.ENOSPC)
	require.ErrorIs(t, s.Unmap(0, 4096), ErrNoSpace)
	require.ErrorIs(t, s.WriteZeroes(0, 4096, false, false), ErrNoSpace)
	require.ErrorContains(t, s.WriteZeroes(0, 4096, false, true), s.name+": write zeros 4096 bytes at 0: no space left in the store")
	require.NoError(t, s.Flush(), "that is no lost write")
	recorded(s, nil)
	s.sys.fdatasync = func(int) error { return unix.EIO }
	require.ErrorIs(t, s.WriteZeroes(0, 4096, false, true), unix.EIO)
	calls := recorded(s, nil)
	require.ErrorContains(t, s.WriteZeroes(0, 4096, false, true), "an earlier flush failed")
	require.Empty(t, *calls)
	require.ErrorIs(t, s.Close(), unix.EIO)
}

// TestHolesWaitForPartialBlocks: a direct write of part of a block writes the rest of it back, and no hole
// may come to be there meanwhile.
func TestHolesWaitForPartialBlocks(t *testing.T) {
	needDirect(t)
	s := faulty(t, "direct", "yes")
	asked := 0
	s.sys.fallocate = func(fd int, mode uint32, off, n int64) error {
		asked++
		assert.False(t, s.direct.whole.TryLock(), "a partial write could begin")
		return unix.Fallocate(fd, mode, off, n)
	}
	require.NoError(t, s.Unmap(0, 8192))
	require.NoError(t, s.WriteZeroes(0, 8192, false, true))
	require.Equal(t, 2, asked)
	require.NoError(t, s.Close())
}

// TestFailedResizeChangesNothing, whatever fails.
func TestFailedResizeChangesNothing(t *testing.T) {
	for _, opts := range [][]string{nil, {"thin", "no"}} {
		s := faulty(t, opts...)
		size := func() int64 {
			var st unix.Stat_t
			require.NoError(t, unix.Fstat(s.fd, &st))
			require.Equal(t, st.Size, s.Info().SizeBytes)
			return st.Size
		}
		s.sys.setSize = func(int, int64) error { return unix.EFBIG }
		require.ErrorIs(t, s.Resize(2<<20), unix.EFBIG)
		s.sys.setSize = unix.Ftruncate
		require.EqualValues(t, 1<<20, size())
		if !s.thin {
			s.sys.fallocate = func(int, uint32, int64, int64) error { return unix.ENOSPC }
			require.ErrorIs(t, s.Resize(2<<20), ErrNoSpace)
			require.EqualValues(t, 1<<20, size())
			s.sys.fallocate = unix.Fallocate
		}
		s.sys.fdatasync = func(int) error { return unix.EIO }
		for _, n := range []int64{2 << 20, 1 << 19} {
			require.ErrorIs(t, s.Resize(n), unix.EIO)
			require.EqualValues(t, 1<<20, size())
		}
		require.ErrorIs(t, s.Close(), unix.EIO)
	}
}

// TestSizesThatDirectIOCannotHave are refused by Resize as by Open.
func TestSizesThatDirectIOCannotHave(t *testing.T) {
	needDirect(t)
	s := faulty(t, "direct", "yes")
	s.direct.block = 4096
	require.ErrorContains(t, s.Resize(1<<20+512), "direct I/O needs a multiple of 4096 bytes")
	require.NoError(t, s.Resize(1<<20+4096))
	require.NoError(t, s.Close())
}

func TestWhole(t *testing.T) {
	for _, c := range []struct{ off, n, unit, from, to int64 }{
		{0, 0, 8, 0, 0},
		{0, 8, 8, 0, 8},
		{0, 7, 8, 0, 0},
		{1, 7, 8, 8, 8},
		{1, 6, 8, 7, 7},
		{1, 8, 8, 8, 8},
		{1, 15, 8, 8, 16},
		{7, 10, 8, 8, 16},
		{9, 3, 8, 12, 12},
		{1<<63 - 10, 9, 8, 1<<63 - 8, 1<<63 - 8},
	} {
		from, to := whole(c.off, c.n, c.unit)
		require.Equal(t, []int64{c.from, c.to}, []int64{from, to}, "%+v", c)
	}
}
