package link

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A message is the kernel's struct mmsghdr: a msghdr and how many bytes were moved.
type message struct {
	hdr unix.Msghdr
	len uint32
}

// A socketAddr has room for an address of either family.
type socketAddr unix.RawSockaddrInet6

// inet4 views the memory as an IPv4 address, which is shorter and has no greater alignment.
func (a *socketAddr) inet4() *unix.RawSockaddrInet4 {
	return (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
}

// A control is a control message buffer, aligned as the kernel wants it: room for two messages of an int.
type control [8]uint64

const controlSize = int(unsafe.Sizeof(control{}))

// mmsg makes the system call, sendmmsg or recvmmsg, on a socket that does not block. The messages, and all that they
// point to, are Go memory that the caller keeps reachable, and does not lie on a stack: it does not move meanwhile.
//
// It is a raw call, which Go's scheduler does not learn of: it takes microseconds, for maxRound bytes some tens, and to
// have our processor given to others meanwhile takes longer. The usual call also wakes the scheduler's watchdog thread
// each time the process was idle before, which is once a request at depth 1.
func mmsg(call, fd uintptr, ms []message, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(ms))), uintptr(len(ms)), uintptr(flags), 0, 0)
	return int(n), errno
}

// nextControl reads the front control message of b, which is aligned as the kernel left it, and returns its data and what
// follows.
func nextControl(b []byte) (level, kind int32, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil, false
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(b)))
	n := int(h.Len)
	if n < unix.CmsgLen(0) || n > len(b) {
		return 0, 0, nil, nil, false
	}
	return h.Level, h.Type, b[unix.CmsgLen(0):n], b[min(len(b), unix.CmsgSpace(n-unix.CmsgLen(0))):], true
}

// bytes views the control buffer's first n bytes.
func (c *control) bytes(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(c)), min(n, controlSize))
}

// putSegment, whose header fits the front of c and its alignment, makes c the message that tells the kernel to cut a datagram up (UDP_SEGMENT).
func (c *control) putSegment(size uint16) (n int) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(c.bytes(controlSize)[unix.CmsgLen(0):], size)
	return unix.CmsgSpace(2)
}
