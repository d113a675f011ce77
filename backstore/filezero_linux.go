package backstore

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Modes of fallocate(2). All leave the file's length alone.
const (
	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
)

// zeroChunk is how much is written at a time, and punchChunk how much the file system is asked to do, in
// bytes: it may hold the file's lock meanwhile.
const (
	zeroChunk  = 1 << 20
	punchChunk = 1 << 30
)

// newZeros makes what is written where the file system cannot make zeros by itself. Nobody changes it.
func newZeros() []byte { return alignedBytes(zeroChunk) }

// Unmap makes a hole. A thick store (thin=no) keeps its space.
func (f *fileStore) Unmap(off, n int64) error {
	if err := f.zero(off, n, true, f.durable); err != nil {
		return rangeError(f.name, "unmap", off, n, err)
	}
	return nil
}

// WriteZeroes makes a hole with unmap, and without it takes space that was never written, if the file
// system can, and writes zeros if it cannot.
func (f *fileStore) WriteZeroes(off, n int64, unmap, fua bool) error {
	if err := f.zero(off, n, unmap, fua || f.durable); err != nil {
		return rangeError(f.name, "write zeros", off, n, err)
	}
	return nil
}

func (f *fileStore) zero(off, n int64, unmap, durable bool) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.checkRangeLocked(off, n, true); err != nil {
		return err
	}
	if durable { // what has failed before is told before anything is changed, as in write
		if err := f.syncer.failure(); err != nil {
			return err
		}
	}
	mode, refused := uint32(zeroRange), &f.noZero
	if unmap && f.info.UnmapGranularity > 0 {
		mode, refused = punchHole, &f.noPunch
	}
	unit := int64(max(f.info.BlockSize, f.info.UnmapGranularity))
	from, to := whole(off, n, unit)
	if err := f.putZeros(off, from-off); err != nil {
		return err
	}
	for from < to {
		count := min(to-from, max(unit, punchChunk-punchChunk%unit))
		if err := f.ask(mode, refused, from, count); err != nil {
			return err
		}
		from += count
	}
	if err := f.putZeros(to, off+n-to); err != nil || !durable {
		return err
	}
	return f.syncer.sync(f.sys.fdatasync, f.fd)
}

// ask has the file system do it, or writes zeros if it cannot.
func (f *fileStore) ask(mode uint32, refused *atomic.Bool, off, n int64) error {
	if !refused.Load() {
		err := f.fallocate(mode, off, n)
		if !unsupported(err) {
			return cause(err)
		}
		refused.Store(true)
	}
	return f.putZeros(off, n)
}

// fallocate lets nobody write blocks back meanwhile that he has read before (directIO.whole).
func (f *fileStore) fallocate(mode uint32, off, n int64) error {
	if f.direct != nil {
		f.direct.whole.RLock()
		defer f.direct.whole.RUnlock()
	}
	return retryInterrupted(func(fd int) error { return f.sys.fallocate(fd, mode, off, n) }, f.fd)
}

// unsupported tells whether an error of fallocate(2) means that it will never work here: the file system
// or the device has no such thing.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL)
}

// putZeros writes zeros.
func (f *fileStore) putZeros(off, n int64) error {
	for n > 0 {
		count := min(n, zeroChunk)
		if err := f.put([][]byte{f.zeros()[:count]}, off, 0); err != nil {
			return err
		}
		off, n = off+count, n-count
	}
	return nil
}

// Extent asks for holes (lseek(2), SEEK_DATA). Space that was taken and never written is one, though it
// is not free; a thick store has none.
func (f *fileStore) Extent(off, n int64) (allocated bool, length int64, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.checkRangeLocked(off, n, false); err != nil {
		return false, 0, rangeError(f.name, "extent", off, n, err)
	}
	if !f.info.Thin {
		return true, n, nil
	}
	data, err := f.sys.seek(f.fd, off, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO: // nothing but a hole up to the end
		return false, n, nil
	case err != nil: // it cannot tell
		return true, n, nil
	case data > off:
		return false, min(n, data-off), nil
	}
	hole, err := f.sys.seek(f.fd, off, unix.SEEK_HOLE)
	if err != nil || hole <= off { // somebody else cut the file, or made a hole, in between
		return true, min(n, MinBlock), nil
	}
	return true, min(n, hole-off), nil
}

// Resize changes the file's length, durably. It waits for all requests in progress.
func (f *fileStore) Resize(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.usableLocked(true)
	if err == nil {
		err = f.checkSize(size)
	}
	if err == nil {
		err = f.resizeLocked(size)
	}
	if err != nil {
		return resizeError(f.name, size, err)
	}
	return nil
}

func (f *fileStore) resizeLocked(size int64) error {
	if err := f.sys.setSize(f.fd, size); err != nil {
		return cause(err)
	}
	var err error
	if !f.thin {
		err = f.allocate(size)
	}
	if err == nil {
		err = f.syncer.sync(f.sys.fdatasync, f.fd) // writes the length too (fdatasync(2))
	}
	if err != nil {
		return errors.Join(err, f.sys.setSize(f.fd, f.info.SizeBytes)) // all goes on as it was
	}
	f.info.SizeBytes = size
	return nil
}

// Measure takes the length that the file or device has now.
func (f *fileStore) Measure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 {
		return fmt.Errorf("%s: measure: %w", f.name, net.ErrClosed)
	}
	size, err := f.sys.size(f.fd)
	if err == nil {
		err = f.checkSize(size)
	}
	if err != nil {
		return fmt.Errorf("%s: measure: %w", f.name, err)
	}
	f.info.SizeBytes = size
	return nil
}

func (f *fileStore) checkSize(size int64) error {
	if err := checkSize(size); err != nil {
		return fmt.Errorf("%d bytes %w", size, err)
	}
	if f.direct != nil && size%int64(f.direct.block) != 0 {
		return fmt.Errorf("direct I/O needs a multiple of %d bytes", f.direct.block)
	}
	return nil
}

// allocate takes the space of the first size bytes, so that writing them cannot fail for lack of it, where
// the file system writes blocks in place.
func (f *fileStore) allocate(size int64) error {
	err := retryInterrupted(func(fd int) error { return f.sys.fallocate(fd, 0, 0, size) }, f.fd)
	if unsupported(err) {
		return fmt.Errorf("the file system cannot reserve space; set thin=yes: %w", err)
	}
	if err != nil {
		return fmt.Errorf("reserve %d bytes, as thin=no asks: %w", size, cause(err))
	}
	return nil
}
