package backstore

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A fileStore keeps its bytes in a regular file or on a block device.
type fileStore struct {
	name    string // "file store /srv/a.img", for errors
	durable bool   // sync=dsync: every write is durable on return
	ownSync bool   // sync=fua: a forced write flushes its own blocks
	direct  *directIO
	sys     system
	vectors freeList[vector]
	syncer  syncer
	// thin: holes may be made and are told of; otherwise all space has been taken beforehand.
	thin bool
	// noTry: the file system cannot tell whether a read would wait.
	noTry atomic.Bool
	// noPunch and noZero: the file system has refused that once, and zeros are written instead.
	noPunch, noZero atomic.Bool
	zeros           func() []byte // made when first needed

	// mu guards fd and info: a request holds it shared, so that no descriptor is closed, and perhaps given
	// to another file, while a request is about to write to it.
	mu   sync.RWMutex
	fd   int // -1 when closed
	info Info
}

// system is what a file store asks of the kernel; tests put faults there.
type system struct {
	preadv, pwritev vectorCall
	fdatasync       func(fd int) error
	fallocate       func(fd int, mode uint32, off, n int64) error
	seek            func(fd int, off int64, whence int) (int64, error)
	setSize         func(fd int, size int64) error // ftruncate(2)
	size            func(fd int) (int64, error)
}

func (f *fileStore) ReadAt(bufs [][]byte, off int64) error {
	if err := f.read(bufs, off); err != nil {
		return requestError(f.name, "read", bufs, off, err)
	}
	return nil
}

func (f *fileStore) read(bufs [][]byte, off int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.checkLocked(bufs, off, false); err != nil {
		return err
	}
	if f.direct != nil && !f.direct.aligned(bufs, off) {
		return f.readBounced(bufs, off)
	}
	return f.move(f.sys.preadv, bufs, off, 0, io.ErrUnexpectedEOF)
}

// TryReadAt implements Trier by RWF_NOWAIT (preadv2(2)), which takes from the page cache only. With direct I/O that is
// never where the bytes are.
func (f *fileStore) TryReadAt(bufs [][]byte, off int64) bool {
	if f.direct != nil || f.noTry.Load() || !f.mu.TryRLock() { // Resize and Close may wait with it held
		return false
	}
	defer f.mu.RUnlock()
	if f.checkLocked(bufs, off, false) != nil {
		return false
	}
	err := f.move(f.sys.preadv, bufs, off, unix.RWF_NOWAIT, io.ErrUnexpectedEOF)
	if unsupported(err) {
		f.noTry.Store(true)
	}
	return err == nil
}

func (f *fileStore) WriteAt(bufs [][]byte, off int64, fua bool) error {
	if err := f.write(bufs, off, fua || f.durable); err != nil {
		return requestError(f.name, "write", bufs, off, err)
	}
	return nil
}

// write picks one of the ways to make a write durable.
//
// With direct I/O, and with sync=fua, the write itself carries RWF_DSYNC (pwritev2(2): O_DSYNC for one
// call): the kernel flushes these blocks only, by a device FUA write where it can. Otherwise the page
// cache is written and the whole file flushed; concurrent forced writes then share one fdatasync.
func (f *fileStore) write(bufs [][]byte, off int64, durable bool) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.checkLocked(bufs, off, true); err != nil {
		return err
	}
	switch {
	case !durable:
		return f.put(bufs, off, 0)
	case f.direct == nil && !f.ownSync:
		if err := f.put(bufs, off, 0); err != nil {
			return err
		}
		return f.syncer.sync(f.sys.fdatasync, f.fd)
	case f.direct != nil: // each write is told its own errors: they may run side by side
		if err := f.syncer.failure(); err != nil {
			return err
		}
		err := f.put(bufs, off, unix.RWF_DSYNC)
		f.syncer.note(err)
		return err
	default: // through the page cache: one flush at a time, see syncer
		if err := f.syncer.begin(); err != nil {
			return err
		}
		err := f.put(bufs, off, unix.RWF_DSYNC)
		f.syncer.end(err)
		return err
	}
}

// put writes, through a bounce buffer where it must.
func (f *fileStore) put(bufs [][]byte, off int64, flags int) error {
	if f.direct == nil {
		return f.move(f.sys.pwritev, bufs, off, flags, io.ErrShortWrite)
	}
	if !f.direct.aligned(bufs, off) {
		return f.writeBounced(bufs, off, flags)
	}
	f.direct.whole.RLock()
	defer f.direct.whole.RUnlock()
	return f.move(f.sys.pwritev, bufs, off, flags, io.ErrShortWrite)
}

func (f *fileStore) checkLocked(bufs [][]byte, off int64, write bool) error {
	if err := f.usableLocked(write); err != nil {
		return err
	}
	if !inRange(bufs, off, f.info.SizeBytes) {
		return ErrRange
	}
	return nil
}

func (f *fileStore) checkRangeLocked(off, n int64, write bool) error {
	if err := f.usableLocked(write); err != nil {
		return err
	}
	if !within(off, n, f.info.SizeBytes) {
		return ErrRange
	}
	return nil
}

func (f *fileStore) usableLocked(write bool) error {
	switch {
	case f.fd < 0:
		return net.ErrClosed
	case write && f.info.ReadOnly:
		return ErrReadOnly
	}
	return nil
}

func (f *fileStore) Flush() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.fd < 0 {
		return fmt.Errorf("%s: flush: %w", f.name, net.ErrClosed)
	}
	if f.info.ReadOnly {
		return nil
	}
	if err := f.syncer.sync(f.sys.fdatasync, f.fd); err != nil {
		return fmt.Errorf("%s: flush: %w", f.name, err)
	}
	return nil
}

func (f *fileStore) Info() Info {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.info
}

func (f *fileStore) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 {
		return nil
	}
	var err error
	if !f.info.ReadOnly {
		err = f.syncer.sync(f.sys.fdatasync, f.fd)
	}
	err = errors.Join(err, unix.Close(f.fd)) // gives the lock back too
	f.fd = -1
	if err != nil {
		return fmt.Errorf("%s: close: %w", f.name, err)
	}
	return nil
}

// cause adds the package's own word to a system error.
func cause(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return err
}
