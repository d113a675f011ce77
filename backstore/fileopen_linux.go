package backstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// newFileMode: the blocks of a disk are nobody else's to read.
const newFileMode = 0o600

// linux is the kernel itself.
func linux() system {
	return system{
		preadv: preadv, pwritev: pwritev, fdatasync: unix.Fdatasync,
		fallocate: unix.Fallocate, seek: unix.Seek, setSize: unix.Ftruncate, size: fileSize,
	}
}

func newFileStore(name string, s settings) *fileStore {
	f := &fileStore{
		name:    name,
		durable: s["sync"] == "dsync",
		ownSync: s["sync"] == "fua",
		sys:     linux(),
		zeros:   sync.OnceValue(newZeros),
		vectors: newFreeList[vector](),
		fd:      -1,
	}
	f.syncer.init()
	return f
}

func openFile(s settings) (Store, error) {
	f := newFileStore("file store "+s["path"], s)
	f.thin = s.yes("thin")
	created, err := f.open(s)
	if err != nil {
		if f.fd >= 0 {
			err = errors.Join(err, unix.Close(f.fd))
		}
		if created {
			err = errors.Join(err, os.Remove(s["path"])) // half a disk is none
		}
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return f, nil
}

// open opens, or creates, locks and sizes the file.
func (f *fileStore) open(s settings) (created bool, err error) {
	path, size, readOnly := s["path"], s.size("size"), s.yes("readonly")
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && size > 0 && !readOnly:
		created = true
	case err != nil:
		return false, openError(path, readOnly, err)
	case st.IsDir():
		return false, errors.New("is a directory; path= must name a regular file")
	case !st.Mode().IsRegular():
		return false, fmt.Errorf("is no regular file (%s); path= must name one", st.Mode().Type())
	}
	flags := unix.O_CLOEXEC | unix.O_RDWR
	if readOnly {
		flags = unix.O_CLOEXEC | unix.O_RDONLY
	}
	if created {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	if f.fd, err = unix.Open(path, flags, newFileMode); err != nil {
		f.fd = -1
		return false, openError(path, readOnly, err)
	}
	if err := f.lock(readOnly); err != nil {
		return created, err
	}
	if err := f.setSize(size, readOnly); err != nil {
		return created, err
	}
	if !f.thin && !readOnly {
		if err := f.allocate(f.info.SizeBytes); err != nil {
			return created, err
		}
	}
	if created {
		if err := syncDirectory(filepath.Dir(path)); err != nil {
			return created, err
		}
	}
	return created, f.describe(s)
}

// openError says what to do about the usual mistakes.
func openError(path string, readOnly bool, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err // the caller names the path
	}
	err = cause(err)
	dir := filepath.Dir(path)
	_, dirErr := os.Stat(dir)
	switch {
	case errors.Is(err, ErrReadOnly):
		return fmt.Errorf("the file system is read-only; set readonly=yes: %w", err)
	case errors.Is(err, fs.ErrPermission) && readOnly:
		return fmt.Errorf("user %d may not read it; change its owner or mode: %w", os.Geteuid(), err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("user %d may not read and write it; change its owner or mode, or set readonly=yes: %w", os.Geteuid(), err)
	case errors.Is(err, fs.ErrNotExist) && errors.Is(dirErr, fs.ErrNotExist):
		return fmt.Errorf("there is no directory %s; create it, or correct path=: %w", dir, err)
	case errors.Is(err, fs.ErrNotExist) && readOnly:
		return fmt.Errorf("there is no such file; correct path= (readonly=yes creates none): %w", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no such file; give size= to create it, or correct path=: %w", err)
	}
	return fmt.Errorf("open: %w", err)
}

// lock keeps a second daemon, or a second store of this one, from writing the same file (flock(2)):
// readers share it.
func (f *fileStore) lock(readOnly bool) error {
	how := unix.LOCK_EX
	if readOnly {
		how = unix.LOCK_SH
	}
	err := retryInterrupted(func(fd int) error { return unix.Flock(fd, how|unix.LOCK_NB) }, f.fd)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w; end that one, or open it readonly=yes everywhere", ErrInUse)
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// setSize grows the file, without writing to it, to size, if it is shorter.
func (f *fileStore) setSize(size int64, readOnly bool) error {
	old, err := fileSize(f.fd)
	if err != nil {
		return err
	}
	f.info.SizeBytes = old
	if old < size {
		if readOnly {
			return fmt.Errorf("%w: it has %d bytes and cannot grow to size=%d; leave size= out", ErrReadOnly, old, size)
		}
		if err := unix.Ftruncate(f.fd, size); err != nil {
			return fmt.Errorf("grow from %d to %d bytes: %w", old, size, cause(err))
		}
		if err := retryInterrupted(unix.Fsync, f.fd); err != nil {
			return fmt.Errorf("flush the new size: %w", cause(err))
		}
		f.info.SizeBytes = size
	}
	if n := f.info.SizeBytes; n == 0 || n%MinBlock != 0 {
		return fmt.Errorf("it has %d bytes, which is no multiple of %d; give a larger size=, or mend it with truncate(1)", n, MinBlock)
	}
	return nil
}

func fileSize(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat: %w", err)
	}
	return st.Size, nil
}

// describe fills in what the store says of itself, and turns on direct I/O.
func (f *fileStore) describe(s settings) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	f.info.BlockSize = fileBlock(int64(st.Blksize))
	f.info.ReadOnly = s.yes("readonly")
	f.info.WriteCache = !f.durable && !f.info.ReadOnly
	f.info.NeverBlocks = f.inMemory() && !s.yes("direct")
	if s.yes("direct") {
		if err := f.useDirect(0); err != nil {
			return err
		}
	}
	switch {
	case f.info.ReadOnly:
		f.info.Thin = f.thin
	case f.thin && f.canPunch():
		f.info.Thin, f.info.UnmapGranularity = true, max(f.info.BlockSize, fileBlock(int64(st.Blksize)))
	}
	return nil
}

// inMemory tells whether the file is on tmpfs: it has no medium, a flush does nothing, and requests only copy. (Where
// its pages are swapped out they wait, as those of a ram store do.)
func (f *fileStore) inMemory() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(f.fd, &st) == nil && int64(st.Type) == unix.TMPFS_MAGIC
}

// useDirect turns direct I/O on, in blocks of the given size in bytes if that is known.
func (f *fileStore) useDirect(block int) error {
	d, err := newDirect(f.fd)
	if err != nil {
		return err
	}
	if block > 0 {
		d.block = block
	}
	if f.info.SizeBytes%int64(d.block) != 0 {
		return fmt.Errorf("it has %d bytes, and direct I/O needs a multiple of %d; give such a size=, or set direct=no", f.info.SizeBytes, d.block)
	}
	f.direct, f.info.BlockSize = d, d.block
	return nil
}

// canPunch asks the file system for a hole behind the end of the file, where there is nothing.
func (f *fileStore) canPunch() bool {
	return !unsupported(f.sys.fallocate(f.fd, punchHole, f.info.SizeBytes, MinBlock))
}

// fileBlock is the file system's block, below which the page cache reads before it writes.
func fileBlock(size int64) int {
	const largest = 1 << 20
	if size < MinBlock || size > largest || size&(size-1) != 0 {
		return 4096
	}
	return int(size)
}

// syncDirectory makes a new file's name durable (fsync(2): the file's own fsync does not).
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	err = errors.Join(d.Sync(), d.Close())
	if err != nil {
		return fmt.Errorf("flush directory %s: %w", dir, err)
	}
	return nil
}
