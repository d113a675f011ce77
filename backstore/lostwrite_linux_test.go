package backstore

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// thinDisk mounts a file system on a disk of 32 MiB that has room for few of them, as a thin volume whose
// pool runs full: the page cache takes a write, and writing back fails. grow gives it room.
func thinDisk(t *testing.T) (dir string, grow func()) {
	base := t.TempDir()
	if err := unix.Mount("none", base, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(base, 0)) })
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "mnt")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 32<<20))
	require.NoError(t, os.Mkdir(dir, 0o700))
	if out, err := exec.Command("mkfs.ext2", "-q", "-N", "16", "-m", "0", image).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext2: %v: %s", err, out)
	}
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	if err != nil {
		t.Skipf("needs a loop device: %v", err)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() { require.NoError(t, exec.Command("losetup", "--detach", loop).Run()) })
	require.NoError(t, unix.Mount(loop, dir, "ext2", 0, "errors=continue"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	return dir, func() { require.NoError(t, unix.Mount("none", base, "tmpfs", unix.MS_REMOUNT, "size=64m")) }
}

// TestLostWrite makes the kernel lose a write, and shows that it says so once: when the disk has room
// again, the kernel's flush succeeds although the data is gone. The store's does not.
func TestLostWrite(t *testing.T) {
	dir, grow := thinDisk(t)
	opened, err := Open("file", Options{"path": filepath.Join(dir, "a.img"), "size": "16MiB"})
	require.NoError(t, err)
	s := opened.(*fileStore)
	want := bytes.Repeat([]byte("durable?"), 1<<20)
	require.NoError(t, s.WriteAt([][]byte{want}, 0, false), "the page cache takes it")
	require.ErrorIs(t, s.Flush(), ErrNoSpace)

	grow()
	for range 3 { // the inode may have a failure of its own to tell
		if err = unix.Fdatasync(s.fd); err == nil {
			break
		}
	}
	require.NoError(t, err, "the kernel has told it, and now all is well for it")
	require.ErrorContains(t, s.Flush(), "an earlier flush failed and completed writes may be lost")
	require.Error(t, s.WriteAt([][]byte{want[:512]}, 0, true))
	require.Error(t, s.Close())

	// What is on the disk, not in the cache: much of it never arrived.
	again, err := Open("file", Options{"path": filepath.Join(dir, "a.img")})
	require.NoError(t, err)
	require.NoError(t, unix.Fadvise(again.(*fileStore).fd, 0, 0, unix.FADV_DONTNEED))
	got := make([]byte, len(want))
	require.NoError(t, again.ReadAt([][]byte{got}, 0))
	require.False(t, bytes.Equal(want, got), "the store was right to go on complaining")
	require.NoError(t, again.Close())
}

// TestFileSystemThatCannotReserve: a thick store is refused there, with what to do.
func TestFileSystemThatCannotReserve(t *testing.T) {
	dir, _ := thinDisk(t)
	path := filepath.Join(dir, "a.img")
	_, err := Open("file", Options{"path": path, "size": "1MiB", "thin": "no"})
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	require.ErrorContains(t, err, "the file system cannot reserve space; set thin=yes")
	require.NoFileExists(t, path)
}
