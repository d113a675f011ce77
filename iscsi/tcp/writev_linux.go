package tcp

import (
	"net"
	"syscall"
	"unsafe"
)

// maxIovecs is what one writev takes (IOV_MAX).
const maxIovecs = 1024

// A vector is the socket's view of a batch, and what writev said.
type vector struct {
	iov  [maxIovecs]syscall.Iovec
	n    int
	took int
	err  error
	call func(fd uintptr) bool // try, made once: a closure a call would be an allocation
}

// rawConn is the file descriptor of a TCP socket, which the runtime keeps non-blocking; nil for anything else.
func rawConn(nc net.Conn) syscall.RawConn {
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// writeNow writes what the socket takes without waiting. It reports whether that was all.
func (c *conn) writeNow(b *batch) (bool, error) {
	if c.raw == nil {
		return false, nil
	}
	v := &c.vec
	if v.call == nil {
		v.call = v.try
	}
	for len(b.rest) > 0 {
		v.load(b.rest)
		err := c.raw.Write(v.call)
		clear(v.iov[:v.n])
		if err == nil {
			err = v.err
		}
		if err != nil {
			return false, err
		}
		if v.took == 0 {
			return false, nil
		}
		b.wrote(v.took)
	}
	return true, nil
}

// load points iov at the front of bufs.
func (v *vector) load(bufs [][]byte) {
	v.n = min(len(bufs), maxIovecs)
	for i, p := range bufs[:v.n] {
		v.iov[i].Base = unsafe.SliceData(p)
		v.iov[i].SetLen(len(p))
	}
}

// try is one writev. It always ends the call of RawConn.Write: true means "do not wait for the socket".
//
// The unsafe pointer is sound: iov holds typed pointers, so that the memory stays where it is while the system
// reads it, and it outlives the call.
func (v *vector) try(fd uintptr) bool {
	v.took, v.err = 0, nil
	for {
		n, _, e := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&v.iov)), uintptr(v.n))
		switch e {
		case 0:
			v.took = int(n)
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			v.err = e
		}
		return true
	}
}
