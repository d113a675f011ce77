package backstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A blockStore is a fileStore on a block device. It has no extents to tell of, and its size is changed by
// whoever manages the device. The kernel makes a hole in a device only where reads then give zeros, and
// keeps the page cache in step (fallocate(2) on block devices, Linux 4.9), which BLKDISCARD does not promise.
type blockStore struct {
	Store
	Unmapper
	Zeroer
	Measurer
}

func openBlock(s settings) (Store, error) {
	f := newFileStore("block store "+s["path"], s)
	f.thin = true
	f.sys.size = deviceSize
	if err := f.openDevice(s); err != nil {
		if f.fd >= 0 {
			err = errors.Join(err, unix.Close(f.fd))
		}
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return blockStore{f, f, f, f}, nil
}

// openDevice opens a device for this store alone: with O_EXCL the kernel refuses one that is mounted,
// part of another device, or opened in this way before (open(2)).
func (f *fileStore) openDevice(s settings) error {
	path, readOnly := s["path"], s.yes("readonly")
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return openError(path, true, err)
	case st.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice:
		return errors.New("is no block device; a regular file is for type file")
	}
	flags := unix.O_CLOEXEC | unix.O_EXCL | unix.O_RDWR
	if readOnly {
		flags = unix.O_CLOEXEC | unix.O_EXCL | unix.O_RDONLY
	}
	if f.fd, err = unix.Open(path, flags, 0); err != nil {
		f.fd = -1
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w, or mounted, or part of another device: %w", ErrInUse, err)
		}
		return openError(path, readOnly, err)
	}
	d, err := readDevice(f.fd)
	if err != nil {
		return err
	}
	if d.readOnly && !readOnly {
		return fmt.Errorf("%w; set readonly=yes", ErrReadOnly)
	}
	return f.describeDevice(s, d)
}

func (f *fileStore) describeDevice(s settings, d device) error {
	f.info = Info{SizeBytes: d.sizeBytes, ReadOnly: s.yes("readonly"), Rotational: d.rotational}
	if err := checkSize(d.sizeBytes); err != nil {
		return fmt.Errorf("its size of %d bytes %w", d.sizeBytes, err)
	}
	direct := s.yes("direct")
	if direct {
		if err := f.useDirect(d.logical); err != nil {
			return err
		}
	}
	f.info.BlockSize = max(d.logical, d.physical)
	if !direct {
		f.info.BlockSize = max(f.info.BlockSize, unix.Getpagesize()) // the page cache's
	}
	f.info.WriteCache = !f.durable && !f.info.ReadOnly && !(direct && d.writeThrough)
	if d.unmapGranularity > 0 && !f.info.ReadOnly {
		f.info.Thin, f.info.UnmapGranularity = true, max(d.unmapGranularity, f.info.BlockSize)
	}
	return nil
}

// A device is what the kernel says of a block device.
type device struct {
	sizeBytes         int64
	logical, physical int // blocks, bytes
	readOnly          bool
	rotational        bool
	writeThrough      bool // nothing stays in a cache of its own
	unmapGranularity  int  // bytes; 0 where it frees nothing
}

// ioctl asks a device for a number, which the kernel writes in as many bytes as T has.
func ioctl[T int32 | uint32 | uint64](fd int, request uint, what string) (T, error) {
	var v T
	// Sound: the conversion stands in the call's argument list, and the request is one that writes a T.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&v)))
	if errno != 0 {
		return 0, fmt.Errorf("ask for its %s: %w", what, errno)
	}
	return v, nil
}

func readDevice(fd int) (device, error) {
	size, err1 := deviceSize(fd)
	logical, err2 := ioctl[int32](fd, unix.BLKSSZGET, "block size")
	physical, err3 := ioctl[uint32](fd, unix.BLKPBSZGET, "physical block size")
	readOnly, err4 := ioctl[int32](fd, unix.BLKROGET, "write protection")
	var st unix.Stat_t
	if err := errors.Join(err1, err2, err3, err4, unix.Fstat(fd, &st)); err != nil {
		return device{}, err
	}
	d := device{sizeBytes: size, logical: int(logical), physical: int(physical), readOnly: readOnly != 0}
	if d.logical < MinBlock || d.logical > maxDirectBlock || d.logical&(d.logical-1) != 0 {
		return device{}, fmt.Errorf("its blocks have %d bytes, which is not supported", d.logical)
	}
	if d.physical&(d.physical-1) != 0 || d.physical > maxPhysicalBlock {
		d.physical = d.logical
	}
	d.readQueue(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	return d, nil
}

// maxPhysicalBlock bounds what is believed, in bytes: 2^15 logical blocks of 512 (SBC-3, 5.16.2).
const maxPhysicalBlock = 16 << 20

func deviceSize(fd int) (int64, error) {
	n, err := ioctl[uint64](fd, unix.BLKGETSIZE64, "size")
	if err == nil && n > 1<<63-1 {
		err = fmt.Errorf("its size of %d bytes is not supported", n)
	}
	return int64(n), err
}

// readQueue reads what sysfs tells of the device in dir (Documentation/ABI/stable/sysfs-block). A
// partition's queue is its disk's, one directory above where the link dir leads. What is not told is taken
// to be the worse.
func (d *device) readQueue(dir string) {
	read := func(name string) string {
		for _, queue := range []string{"/queue/", "/../queue/"} {
			if b, err := os.ReadFile(dir + queue + name); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
		return ""
	}
	number := func(name string) int {
		n, err := strconv.ParseInt(read(name), 10, 64)
		if err != nil || n < 0 {
			return 0
		}
		return int(min(n, maxUnmapGranularity+1))
	}
	d.rotational = read("rotational") == "1"
	d.writeThrough = read("write_cache") == "write through"
	if g := number("discard_granularity"); number("discard_max_bytes") > 0 && number("write_zeroes_max_bytes") > 0 && g <= maxUnmapGranularity {
		d.unmapGranularity = max(g, d.logical)
	}
}

// maxUnmapGranularity is the largest unit, in bytes, in which giving space back makes sense.
const maxUnmapGranularity = 1 << 30
