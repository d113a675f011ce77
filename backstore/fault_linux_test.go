package backstore

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func faulty(t *testing.T, more ...string) *fileStore {
	o := Options{"path": filepath.Join(t.TempDir(), "a.img"), "size": "1MiB"}
	for i := 0; i < len(more); i += 2 {
		o[more[i]] = more[i+1]
	}
	s, err := Open("file", o)
	require.NoError(t, err)
	return s.(*fileStore)
}

// moveAtMost makes a call that moves few bytes at a time and is interrupted every other time.
func moveAtMost(call vectorCall, most int) vectorCall {
	interrupted := false
	return func(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
		if interrupted = !interrupted; interrupted {
			return 0, unix.EINTR
		}
		one := []unix.Iovec{iov[0]}
		one[0].SetLen(min(int(iov[0].Len), most))
		return call(fd, one, off, flags)
	}
}

func TestShortCountsGoOn(t *testing.T) {
	s := faulty(t)
	s.sys.preadv, s.sys.pwritev = moveAtMost(preadv, 7), moveAtMost(pwritev, 100)
	want := bytes.Repeat([]byte("abcdefghijk"), 91)
	require.NoError(t, s.WriteAt([][]byte{want[:1], want[1:300], want[300:]}, 3, false))
	got := make([]byte, len(want))
	require.NoError(t, s.ReadAt([][]byte{got[:700], got[700:]}, 3))
	require.Equal(t, want, got)
	s.sys.pwritev = func(int, []unix.Iovec, int64, int) (int, error) { return 0, nil }
	require.ErrorIs(t, s.WriteAt([][]byte{want}, 0, false), io.ErrShortWrite)
	require.NoError(t, s.Close())
}

func TestErrorsOfTheSystem(t *testing.T) {
	for _, c := range []struct{ errno, want error }{
		{unix.EIO, unix.EIO},
		{unix.ENOSPC, ErrNoSpace},
		{unix.EDQUOT, ErrNoSpace},
		{unix.EROFS, ErrReadOnly},
		{unix.ETIMEDOUT, unix.ETIMEDOUT},
	} {
		s := faulty(t)
		fail := func(int, []unix.Iovec, int64, int) (int, error) { return 0, c.errno }
		s.sys.preadv, s.sys.pwritev = fail, fail
		for _, err := range []error{s.ReadAt([][]byte{{1, 2}}, 8), s.WriteAt([][]byte{{1, 2}}, 8, false)} {
			require.ErrorIs(t, err, c.want)
			require.ErrorIs(t, err, c.errno)
			require.ErrorContains(t, err, s.name+": ")
			require.ErrorContains(t, err, " 2 bytes at 8: ")
		}
		require.NoError(t, s.Close())
	}
}

// TestFailedFlushIsRemembered: the kernel reports a lost page once; we go on saying so.
func TestFailedFlushIsRemembered(t *testing.T) {
	s := faulty(t)
	calls := 0
	s.sys.fdatasync = func(int) error {
		if calls++; calls == 1 {
			return unix.EIO
		}
		return nil // as Linux does, although the data is gone
	}
	require.NoError(t, s.WriteAt([][]byte{{1}}, 0, false))
	err := s.Flush()
	require.ErrorIs(t, err, unix.EIO)
	require.NotContains(t, err.Error(), "earlier")
	for range 2 {
		err = s.Flush()
		require.ErrorIs(t, err, unix.EIO)
		require.ErrorContains(t, err, "an earlier flush failed and completed writes may be lost; check the disk, then reopen the store")
	}
	require.ErrorIs(t, s.WriteAt([][]byte{{1}}, 0, true), unix.EIO, "no forced write is durable any more")
	require.NoError(t, s.WriteAt([][]byte{{1}}, 0, false), "a cached write promises nothing")
	require.NoError(t, s.ReadAt([][]byte{{0}}, 0))
	require.ErrorIs(t, s.Close(), unix.EIO)
	require.Equal(t, 1, calls)
}

// TestFailedForcedWriteIsRemembered, whichever way a forced write is made durable.
func TestFailedForcedWriteIsRemembered(t *testing.T) {
	for _, opts := range [][]string{{"sync", "flush"}, {"sync", "fua"}, {"sync", "dsync"}, {"direct", "yes"}} {
		t.Run(opts[1], func(t *testing.T) {
			if opts[0] == "direct" {
				needDirect(t)
			}
			s := faulty(t, opts...)
			s.sys.fdatasync = func(int) error { return unix.EIO }
			s.sys.pwritev = func(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
				if flags&unix.RWF_DSYNC != 0 {
					return 0, unix.EIO
				}
				return pwritev(fd, iov, off, flags)
			}
			require.ErrorIs(t, s.WriteAt([][]byte{make([]byte, 512)}, 0, true), unix.EIO)
			s.sys.fdatasync, s.sys.pwritev = unix.Fdatasync, pwritev
			require.ErrorContains(t, s.Flush(), "an earlier flush failed")
			require.ErrorContains(t, s.WriteAt([][]byte{make([]byte, 512)}, 0, true), "an earlier flush failed")
			require.ErrorIs(t, s.Close(), unix.EIO)
		})
	}
}

// needDirect skips where the file system of temporary files has no direct I/O.
func needDirect(t *testing.T) {
	s, err := Open("file", Options{"path": filepath.Join(t.TempDir(), "d.img"), "size": "1MiB", "direct": "yes"})
	if err != nil {
		require.ErrorContains(t, err, "set direct=no")
		t.Skipf("temporary files cannot be opened for direct I/O here: %v", err)
	}
	require.NoError(t, s.Close())
}

func TestFullDiskIsNotRemembered(t *testing.T) {
	s := faulty(t, "sync", "fua")
	s.sys.pwritev = func(int, []unix.Iovec, int64, int) (int, error) { return 0, unix.ENOSPC }
	require.ErrorIs(t, s.WriteAt([][]byte{{1}}, 0, true), ErrNoSpace)
	s.sys.pwritev = pwritev
	require.NoError(t, s.WriteAt([][]byte{{1}}, 0, true))
	require.NoError(t, s.Close())
}

// TestFlushesShare: those that come while a flush runs are served together by the next one, and none by
// a flush that was begun before it came.
func TestFlushesShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncer
		s.init()
		var running, calls atomic.Int32
		release := make(chan error)
		fdatasync := func(int) error {
			assert.Equal(t, int32(1), running.Add(1), "one at a time")
			defer running.Add(-1)
			calls.Add(1)
			return <-release
		}
		var wg sync.WaitGroup
		var done atomic.Int32
		flush := func() {
			wg.Go(func() {
				assert.NoError(t, s.sync(fdatasync, 0))
				done.Add(1)
			})
		}
		flush()
		synctest.Wait()
		for range 5 {
			flush()
		}
		synctest.Wait()
		require.Zero(t, done.Load())
		release <- nil
		synctest.Wait()
		require.Equal(t, int32(1), done.Load(), "the first flush serves none that came after it began")
		require.Equal(t, int32(2), calls.Load())
		release <- nil
		wg.Wait()
		require.Equal(t, int32(6), done.Load())
		require.Equal(t, int32(2), calls.Load(), "the five share one")
	})
}

// TestSharedFlushFailsForAll: all who waited for it are told.
func TestSharedFlushFailsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncer
		s.init()
		release := make(chan error)
		var failed atomic.Int32
		var wg sync.WaitGroup
		start := func() {
			wg.Go(func() {
				if errors.Is(s.sync(func(int) error { return <-release }, 0), unix.EIO) {
					failed.Add(1)
				}
			})
		}
		start()
		synctest.Wait()
		start()
		start()
		synctest.Wait()
		release <- nil
		synctest.Wait()
		release <- unix.EIO
		wg.Wait()
		require.Equal(t, int32(2), failed.Load())
	})
}

// TestTurnIsExclusive: a forced write of its own blocks and a flush do not run together.
func TestTurnIsExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncer
		s.init()
		require.NoError(t, s.begin())
		var flushed, second atomic.Bool
		go func() {
			assert.NoError(t, s.sync(func(int) error { return nil }, 0))
			flushed.Store(true)
		}()
		go func() {
			assert.NoError(t, s.begin())
			second.Store(true)
			s.end(nil)
		}()
		synctest.Wait()
		require.False(t, flushed.Load() || second.Load())
		s.end(nil)
		synctest.Wait()
		require.True(t, flushed.Load() && second.Load())
	})
}

// TestManyBuffers takes more than one call's worth of buffers and counts the calls.
func TestManyBuffers(t *testing.T) {
	s := faulty(t)
	calls := 0
	s.sys.pwritev = func(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
		calls++
		return pwritev(fd, iov, off, flags)
	}
	bufs := make([][]byte, maxVector+1)
	for i := range bufs {
		bufs[i] = []byte{byte(i)}
	}
	require.NoError(t, s.WriteAt(bufs, 0, false))
	require.Equal(t, 2, calls)
	require.NoError(t, s.Close())
}

// TestPartialBlocksAreKept writes a few bytes with direct I/O: their neighbours in the block stay.
func TestPartialBlocksAreKept(t *testing.T) {
	needDirect(t)
	s := faulty(t, "direct", "yes")
	s.direct.block = 4096 // whatever the disk has
	want := bytes.Repeat([]byte{7}, 3*bounceSize)
	require.NoError(t, s.WriteAt([][]byte{want}, 0, false))
	for _, c := range []struct{ off, n int }{
		{1, 1},
		{4095, 2},
		{4096, 512},
		{8191, 1},
		{8192 - 512, 512},
		{100, 10000},
		{4095, bounceSize},
		{4097, bounceSize + 5000},
		{bounceSize - 1, 2},
		{1, 2*bounceSize + 1},
		{0, 4096 + 1},
	} {
		part := bytes.Repeat([]byte{byte(c.n)}, c.n)
		copy(want[c.off:], part)
		require.NoError(t, s.WriteAt([][]byte{part}, int64(c.off), false))
		got := make([]byte, len(want))
		require.NoError(t, s.ReadAt([][]byte{got}, 0))
		require.True(t, bytes.Equal(want, got), "%d bytes at %d", c.n, c.off)
	}
	require.NoError(t, s.Close())
}
