package backstore

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVector is UIO_MAXIOV, the most buffers that one call takes (readv(2)).
const maxVector = 1024

// A vectorCall is preadv2 or pwritev2.
type vectorCall func(fd int, iov []unix.Iovec, off int64, flags int) (int, error)

func preadv(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
	return vectorSyscall(unix.SYS_PREADV2, fd, iov, off, flags)
}

func pwritev(fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
	return vectorSyscall(unix.SYS_PWRITEV2, fd, iov, off, flags)
}

// vectorSyscall stands beside x/sys's own wrappers because those make a new vector for each call, on the
// heap beyond eight buffers.
func vectorSyscall(trap uintptr, fd int, iov []unix.Iovec, off int64, flags int) (int, error) {
	const longBits = unix.SizeofLong * 8
	low, high := uintptr(off), uintptr(uint64(off)>>(longBits-1)>>1) // two shifts: of 64 in all on 64 bits
	// Sound: iov is not empty, the conversion stands in the call's argument list, which keeps iov alive,
	// and iov's typed pointers keep the buffers alive (unsafe.Pointer, rule 4).
	n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)), low, high, uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// A vector is a list of buffers in the kernel's form, kept for use again.
type vector struct {
	iov []unix.Iovec
}

// set makes v stand for bufs, at most maxVector of them; empty ones are left out.
func (v *vector) set(bufs [][]byte) {
	v.iov = v.iov[:0]
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		e := unix.Iovec{Base: &b[0]}
		e.SetLen(len(b))
		v.iov = append(v.iov, e)
	}
}

// skip drops the first n bytes of what is left and returns the rest.
func skip(iov []unix.Iovec, n int) []unix.Iovec {
	for len(iov) > 0 && uint64(n) >= uint64(iov[0].Len) {
		n -= int(iov[0].Len)
		iov = iov[1:]
	}
	if n > 0 {
		// Sound: n is less than the length of the buffer that Base points to.
		iov[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(iov[0].Base), n))
		iov[0].SetLen(int(iov[0].Len) - n)
	}
	return iov
}

// move reads or writes all of bufs at off: in calls of at most maxVector buffers, going on after short
// counts and interrupted calls. A call that moves nothing is the error nothing: the file has been cut
// short by somebody else.
func (f *fileStore) move(call vectorCall, bufs [][]byte, off int64, flags int, nothing error) error {
	v := f.vectors.get()
	defer func() {
		clear(v.iov[:cap(v.iov)]) // keeps no buffer alive
		f.vectors.put(v)
	}()
	for len(bufs) > 0 {
		count := min(len(bufs), maxVector)
		v.set(bufs[:count])
		bufs = bufs[count:]
		for iov := v.iov; len(iov) > 0; {
			n, err := call(f.fd, iov, off, flags)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return cause(err)
			}
			if n == 0 {
				return nothing
			}
			off += int64(n)
			iov = skip(iov, n)
		}
	}
	return nil
}
