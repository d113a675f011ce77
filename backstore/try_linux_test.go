package backstore

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReadsFromThePageCacheAreTried: a try asks the kernel not to wait, whatever it has left undone is no error, and a file
// system that does not know the question is not asked again.
func TestReadsFromThePageCacheAreTried(t *testing.T) {
	s, err := Open("file", Options{"path": filepath.Join(t.TempDir(), "a.img"), "size": "1MiB"})
	require.NoError(t, err)
	f := s.(*fileStore)
	want := bytes.Repeat([]byte("try"), 4096)
	require.NoError(t, f.WriteAt([][]byte{want}, 512, false))

	calls, left, pieces := 0, 0, moveAtMost(preadv, 5000)
	var fails error
	f.sys.preadv = func(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
		calls++
		assert.Equal(t, unix.RWF_NOWAIT, flags)
		if left--; left < 0 {
			return 0, fails
		}
		return pieces(fd, iov, off, 0)
	}
	got := make([]byte, len(want))
	try := func(off int64) bool { return f.TryReadAt([][]byte{got[:100], got[100:]}, off) }
	left = 20
	assert.True(t, try(512), "in pieces")
	assert.True(t, bytes.Equal(want, got))

	left, fails = 2, unix.EAGAIN
	assert.False(t, try(512), "the second piece would wait")
	assert.False(t, try(1<<20-512), "beyond the end")
	calls, left, fails = 0, 0, unix.EOPNOTSUPP
	assert.False(t, try(512))
	assert.False(t, try(512))
	assert.Equal(t, 1, calls)

	f.noTry.Store(false)
	f.mu.Lock() // a Resize is at work
	assert.False(t, try(512))
	f.mu.Unlock()
	require.NoError(t, f.Close())
	left = 20
	assert.False(t, try(512), "closed")
}
