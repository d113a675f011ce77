package backstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// with is options for a new file of 5 MiB, and more.
func with(t testing.TB, more ...string) backstore.Options {
	o := backstore.Options{"path": filepath.Join(t.TempDir(), "a.img"), "size": "5MiB"}
	for i := 0; i < len(more); i += 2 {
		o[more[i]] = more[i+1]
	}
	return o
}

// directIO skips where the file system of temporary files has no direct I/O.
func directIO(t testing.TB) {
	s, err := backstore.Open("file", with(t, "direct", "yes"))
	if err != nil {
		require.ErrorContains(t, err, "set direct=no")
		t.Skipf("temporary files cannot be opened for direct I/O here: %v", err)
	}
	require.NoError(t, s.Close())
}

func TestFile(t *testing.T) {
	for _, sync := range []string{"flush", "fua", "dsync"} {
		t.Run(sync, func(t *testing.T) {
			backstoretest.Run(t, func(t *testing.T) backstore.Store { return open(t, "file", with(t, "sync", sync)) })
		})
	}
}

func TestFileDirect(t *testing.T) {
	directIO(t)
	for _, sync := range []string{"flush", "dsync"} {
		t.Run(sync, func(t *testing.T) {
			backstoretest.Run(t, func(t *testing.T) backstore.Store {
				return open(t, "file", with(t, "direct", "yes", "sync", sync))
			})
		})
	}
}

func TestFileThick(t *testing.T) {
	backstoretest.Run(t, func(t *testing.T) backstore.Store { return open(t, "file", with(t, "thin", "no")) })
}

// onTmpfs mounts a file system in memory, of size bytes.
func onTmpfs(t *testing.T, size string) string {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("another file system needs the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

// TestFileOnTmpfs: a file system that makes holes but cannot zero in place.
func TestFileOnTmpfs(t *testing.T) {
	dir, n := onTmpfs(t, "256m"), 0
	backstoretest.Run(t, func(t *testing.T) backstore.Store {
		n++
		path := fmt.Sprintf("%s/%d.img", dir, n)
		t.Cleanup(func() { require.NoError(t, os.Remove(path)) })
		return open(t, "file", backstore.Options{"path": path, "size": "5MiB"})
	})
}

// TestOnlyFilesInMemoryNeverBlock: a connection's loop may not wait for a disk, and with direct I/O the file takes locks
// for whole requests.
func TestOnlyFilesInMemoryNeverBlock(t *testing.T) {
	o := backstore.Options{"path": filepath.Join(onTmpfs(t, "16m"), "a.img"), "size": "1MiB"}
	s := open(t, "file", o)
	assert.True(t, s.Info().NeverBlocks)
	require.NoError(t, s.Close())
	o["direct"] = "yes"
	if s, err := backstore.Open("file", o); err == nil { // tmpfs has direct I/O since Linux 6.6
		assert.False(t, s.Info().NeverBlocks)
		require.NoError(t, s.Close())
	}

	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(t.TempDir(), &st))
	if int64(st.Type) != unix.TMPFS_MAGIC {
		assert.False(t, open(t, "file", with(t)).Info().NeverBlocks)
	}
}

// TestThinFileGivesSpaceBack, and a thick one has all of it from the start.
func TestThinFileGivesSpaceBack(t *testing.T) {
	used := func(path string) int64 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(path, &st))
		return st.Blocks * 512
	}
	for _, thin := range []string{"yes", "no"} {
		opts := with(t, "thin", thin)
		s := open(t, "file", opts)
		require.NoError(t, s.WriteAt([][]byte{bytes.Repeat([]byte{1}, 4<<20)}, 0, true))
		before := used(opts["path"])
		require.NoError(t, s.(backstore.Unmapper).Unmap(0, 4<<20))
		require.NoError(t, s.Flush())
		if thin == "yes" {
			assert.Less(t, used(opts["path"]), before-3<<20)
			require.NoError(t, s.(backstore.Zeroer).WriteZeroes(0, 4<<20, false, true))
			assert.GreaterOrEqual(t, used(opts["path"]), int64(4<<20), "zeros without unmap take space")
		} else {
			assert.GreaterOrEqual(t, before, int64(5<<20))
			assert.Equal(t, before, used(opts["path"]))
			require.NoError(t, s.(backstore.Resizer).Resize(6<<20))
			assert.GreaterOrEqual(t, used(opts["path"]), int64(6<<20))
		}
		require.NoError(t, s.Close())
	}
}

// TestThickFileThatDoesNotFit is refused when it is opened or grows, not when it is written.
func TestThickFileThatDoesNotFit(t *testing.T) {
	dir := onTmpfs(t, "1m")
	opts := backstore.Options{"path": dir + "/a.img", "size": "2MiB", "thin": "no"}
	_, err := backstore.Open("file", opts)
	require.ErrorIs(t, err, backstore.ErrNoSpace)
	require.ErrorContains(t, err, "reserve 2097152 bytes, as thin=no asks")
	require.NoFileExists(t, opts["path"])
	opts["size"] = "512k"
	s := open(t, "file", opts)
	require.ErrorIs(t, s.(backstore.Resizer).Resize(2<<20), backstore.ErrNoSpace)
	require.EqualValues(t, 512<<10, s.Info().SizeBytes)
	st, err := os.Stat(opts["path"])
	require.NoError(t, err)
	require.EqualValues(t, 512<<10, st.Size())
	require.NoError(t, s.WriteAt([][]byte{make([]byte, 512<<10)}, 0, true))
	require.NoError(t, s.Close())
}

// TestHugeFiles: as large as the file system takes them, sparse; no offset wraps on the way (case LU-03).
func TestHugeFiles(t *testing.T) {
	disk := t.TempDir()
	tmpfs := onTmpfs(t, "16m")
	for _, c := range []struct {
		dir    string
		size   int64
		direct string
	}{{disk, 16<<40 - 4096, "no"}, {disk, 16<<40 - 4096, "yes"}, {tmpfs, 1<<63 - 4096, "no"}, {tmpfs, 1<<63 - 4096, "yes"}} {
		t.Run(fmt.Sprintf("%d bytes, direct %s", c.size, c.direct), func(t *testing.T) {
			path := filepath.Join(c.dir, c.direct)
			s, err := backstore.Open("file", backstore.Options{"path": path, "size": fmt.Sprint(c.size), "direct": c.direct})
			if errors.Is(err, unix.EFBIG) || c.direct == "yes" && err != nil && strings.Contains(err.Error(), "set direct=no") {
				t.Skip(err)
			}
			require.NoError(t, err)
			data := bytes.Repeat([]byte("end"), 2000)
			end := c.size - 6000
			require.NoError(t, s.WriteAt([][]byte{data}, end, true))
			got := make([]byte, 6000)
			require.NoError(t, s.ReadAt([][]byte{got}, end))
			require.Equal(t, data, got)
			require.ErrorIs(t, s.WriteAt([][]byte{data}, end+1, true), backstore.ErrRange)
			there, n, err := s.(backstore.Extenter).Extent(0, c.size)
			require.NoError(t, err)
			require.False(t, there)
			require.Greater(t, n, c.size-64<<10)
			require.NoError(t, s.(backstore.Unmapper).Unmap(c.size-1<<30-1, 1<<30+1))
			require.NoError(t, s.ReadAt([][]byte{got}, end))
			require.Equal(t, make([]byte, 6000), got)
			require.NoError(t, s.Close())
			require.NoError(t, os.Remove(path))
		})
	}
}

func TestFileReadOnly(t *testing.T) {
	opts := with(t)
	s := open(t, "file", opts)
	require.NoError(t, s.WriteAt([][]byte{[]byte("data")}, 0, false))
	require.NoError(t, s.Close())
	require.NoError(t, os.Chmod(opts["path"], 0o400))
	backstoretest.RunReadOnly(t, []byte("data\x00"), func(t *testing.T) backstore.Store {
		return open(t, "file", backstore.Options{"path": opts["path"], "readonly": "yes"})
	})
}

func TestFileInfo(t *testing.T) {
	s := open(t, "file", with(t))
	assert.Equal(t, backstore.Info{SizeBytes: 5 << 20, BlockSize: 4096, WriteCache: true, Thin: true, UnmapGranularity: 4096}, s.Info())
	require.NoError(t, s.Close())
	s = open(t, "file", with(t, "thin", "no"))
	assert.Equal(t, backstore.Info{SizeBytes: 5 << 20, BlockSize: 4096, WriteCache: true}, s.Info())
	require.NoError(t, s.Close())
	s = open(t, "file", with(t, "sync", "dsync"))
	assert.False(t, s.Info().WriteCache)
	require.NoError(t, s.Close())
}

func TestFileSurvivesAndKeepsItsSize(t *testing.T) {
	opts := with(t)
	s := open(t, "file", opts)
	require.NoError(t, s.WriteAt([][]byte{[]byte("kept")}, 5<<20-4, false))
	require.NoError(t, s.Close())

	var st unix.Stat_t
	require.NoError(t, unix.Stat(opts["path"], &st))
	assert.Less(t, st.Blocks*512, int64(1<<20), "sparse")
	assert.Equal(t, uint32(0o600), st.Mode&0o777, "nobody else may read it")

	for _, c := range []struct {
		size string
		want int64
	}{{"", 5 << 20}, {"1MiB", 5 << 20}, {"5MiB", 5 << 20}, {"6MiB", 6 << 20}} {
		again := backstore.Options{"path": opts["path"]}
		if c.size != "" {
			again["size"] = c.size
		}
		s = open(t, "file", again)
		require.Equal(t, c.want, s.Info().SizeBytes, "size=%s", c.size)
		b := make([]byte, 4)
		require.NoError(t, s.ReadAt([][]byte{b}, 5<<20-4))
		require.Equal(t, "kept", string(b))
		require.NoError(t, s.Close())
	}
}

func TestFileIsLocked(t *testing.T) {
	opts := with(t)
	reader := backstore.Options{"path": opts["path"], "readonly": "yes"}
	s := open(t, "file", opts)
	for _, o := range []backstore.Options{opts, reader} {
		_, err := backstore.Open("file", o)
		require.ErrorIs(t, err, backstore.ErrInUse)
		require.ErrorContains(t, err, "file store "+opts["path"]+": in use by another store or process; end that one")
	}
	require.NoError(t, s.Close())
	a, b := open(t, "file", reader), open(t, "file", reader)
	_, err := backstore.Open("file", opts)
	require.ErrorIs(t, err, backstore.ErrInUse, "readers keep a writer out")
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.NoError(t, open(t, "file", opts).Close())
}

// TestFileMistakes: each message names the store's type and path, and what to do (case LU-12).
func TestFileMistakes(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	odd := filepath.Join(dir, "odd")
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.NoError(t, os.WriteFile(odd, make([]byte, 1000), 0o600))
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	missing := filepath.Join(dir, "missing")
	for _, c := range []struct {
		opts backstore.Options
		is   error
		want string
	}{
		{backstore.Options{"path": missing}, fs.ErrNotExist, "give size= to create it, or correct path="},
		{backstore.Options{"path": missing, "readonly": "yes"}, fs.ErrNotExist, "there is no such file"},
		{backstore.Options{"path": missing, "readonly": "yes", "size": "1MiB"}, fs.ErrNotExist, "readonly=yes creates none"},
		{backstore.Options{"path": dir + "/no/such", "size": "1MiB"}, fs.ErrNotExist, "there is no directory " + dir + "/no; create it"},
		{backstore.Options{"path": empty + "/a", "size": "1MiB"}, unix.ENOTDIR, "open: "},
		{backstore.Options{"path": dir}, nil, "is a directory; path= must name a regular file"},
		{backstore.Options{"path": fifo}, nil, "is no regular file"},
		{backstore.Options{"path": empty}, nil, "it has 0 bytes, which is no multiple of 512; give a larger size="},
		{backstore.Options{"path": odd}, nil, "it has 1000 bytes"},
		{backstore.Options{"path": odd, "readonly": "yes", "size": "1MiB"}, backstore.ErrReadOnly, "cannot grow to size=1048576"},
		{backstore.Options{"path": missing, "size": "8000000TiB"}, unix.EFBIG, "grow from 0"},
	} {
		_, err := backstore.Open("file", c.opts)
		require.ErrorContains(t, err, "file store "+c.opts["path"]+": ")
		require.ErrorContains(t, err, c.want)
		if c.is != nil {
			require.ErrorIs(t, err, c.is)
		}
	}
	require.NoFileExists(t, missing, "what could not be made is not left behind")
}

// TestFileWithoutPermission opens as another user; only root can become one.
func TestFileWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		opts := with(t)
		require.NoError(t, open(t, "file", opts).Close())
		require.NoError(t, os.Chmod(opts["path"], 0))
		requireDenied(t, opts["path"])
		return
	}
	dir, err := os.MkdirTemp("", "denied") // not t.TempDir, whose parents others may not enter
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "a.img")
	require.NoError(t, os.WriteFile(path, make([]byte, 512), 0o600))
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The file system's user is the thread's own, and the thread ends with the goroutine since it is
		// never unlocked.
		runtime.LockOSThread()
		if !assert.NoError(t, unix.Setfsuid(65534)) {
			return
		}
		requireDenied(t, path)
	}()
	<-done
}

func requireDenied(t *testing.T, path string) {
	_, err := backstore.Open("file", backstore.Options{"path": path})
	assert.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, "may not read and write it; change its owner or mode, or set readonly=yes")
	_, err = backstore.Open("file", backstore.Options{"path": path, "readonly": "yes"})
	assert.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, "may not read it")
}

// TestFileOnFullDisk writes to a file system of 64 KiB.
func TestFileOnFullDisk(t *testing.T) {
	dir := onTmpfs(t, "64k")
	s := open(t, "file", backstore.Options{"path": dir + "/a.img", "size": "1MiB"})
	full := make([]byte, 256<<10)
	err := s.WriteAt([][]byte{full}, 0, false)
	require.ErrorIs(t, err, backstore.ErrNoSpace)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, s.WriteAt([][]byte{full}, 0, true), backstore.ErrNoSpace)
	require.NoError(t, s.Flush(), "a full disk is no lost write")
	require.NoError(t, s.ReadAt([][]byte{full}, 0))
	require.NoError(t, s.Close())

	require.NoError(t, unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err = backstore.Open("file", backstore.Options{"path": dir + "/a.img"})
	require.ErrorIs(t, err, backstore.ErrReadOnly)
	require.ErrorContains(t, err, "the file system is read-only; set readonly=yes")
	require.NoError(t, open(t, "file", backstore.Options{"path": dir + "/a.img", "readonly": "yes"}).Close())
}

// TestFileCutShort: somebody else truncates the file under the store.
func TestFileCutShort(t *testing.T) {
	opts := with(t)
	s := open(t, "file", opts)
	require.NoError(t, os.Truncate(opts["path"], 4096))
	require.ErrorContains(t, s.ReadAt([][]byte{make([]byte, 512)}, 1<<20), "unexpected EOF")
	require.ErrorContains(t, s.ReadAt([][]byte{make([]byte, 8192)}, 0), "unexpected EOF")
	require.NoError(t, s.Close())
}

func BenchmarkFile4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { return open(b, "file", with(b)) })
}

func BenchmarkFileDirect4K(b *testing.B) {
	directIO(b)
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { return open(b, "file", with(b, "direct", "yes")) })
}
