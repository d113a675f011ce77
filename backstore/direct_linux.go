package backstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A directIO knows what O_DIRECT asks of requests to a file.
//
// Requests that are not aligned go through a bounce buffer as a whole. A write that covers blocks in
// part reads them first; whole keeps every other write away meanwhile, which might change the bytes that
// are written back.
type directIO struct {
	block   int // unit of offsets and lengths, bytes, a power of two
	memory  int // alignment of addresses, a power of two
	whole   sync.RWMutex
	bounces freeList[bounce]
}

// bounceSize is how much of an unaligned request is moved at a time, in bytes; maxDirectBlock is the
// largest block for which it still holds several.
const (
	bounceSize     = 256 << 10
	maxDirectBlock = 64 << 10
)

// newDirect turns O_DIRECT on. The rules are those of statx(2), STATX_DIOALIGN; where the kernel does
// not tell, a page satisfies every file system.
func newDirect(fd int) (*directIO, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("read the file's flags: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT); err != nil {
		return nil, fmt.Errorf("the file system refuses direct I/O; set direct=no: %w", err)
	}
	d := &directIO{block: 4096, memory: 4096, bounces: newFreeList[bounce]()}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err == nil && st.Mask&unix.STATX_DIOALIGN != 0 {
		if st.Dio_offset_align == 0 {
			return nil, errors.New("the file system has no direct I/O for this file; set direct=no")
		}
		d.block, d.memory = max(MinBlock, int(st.Dio_offset_align)), max(1, int(st.Dio_mem_align))
	}
	if d.block > maxDirectBlock || d.block&(d.block-1) != 0 || d.memory > maxDirectBlock || d.memory&(d.memory-1) != 0 {
		return nil, fmt.Errorf("direct I/O in blocks of %d bytes at addresses of %d is not supported; set direct=no", d.block, d.memory)
	}
	return d, nil
}

// aligned tells whether a request can go to the device as it is.
func (d *directIO) aligned(bufs [][]byte, off int64) bool {
	if off&int64(d.block-1) != 0 {
		return false
	}
	for _, b := range bufs {
		if len(b)&(d.block-1) != 0 || addressOf(b)&uintptr(d.memory-1) != 0 {
			return false
		}
	}
	return true
}

// addressOf is where b lies. Sound: the address is only looked at.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// A bounce is an aligned buffer.
type bounce struct {
	mem []byte
	one [1][]byte // a list of one part of mem
}

func (d *directIO) bounce() *bounce {
	b := d.bounces.get()
	if b.mem == nil {
		b.mem = alignedBytes(bounceSize)
	}
	return b
}

// alignedBytes makes n bytes, 64 KiB or more, that every device takes. Sound: Go does not move what is on
// the heap, and a buffer of this size is there.
func alignedBytes(n int) []byte {
	raw := make([]byte, n+maxDirectBlock)
	skip := -addressOf(raw) & (maxDirectBlock - 1)
	return raw[skip:][:n:n]
}

// list is mem[from:to] as a list of buffers.
func (b *bounce) list(from, to int64) [][]byte {
	b.one[0] = b.mem[from:to]
	return b.one[:]
}

// span is the part of the blocks [first, first+len) that lies in the request [off, end).
type span struct{ first, last, from, to int64 }

// next gives the piece of blocks of [off, end) that begins at pos, of at most bounceSize bytes.
func (d *directIO) next(pos, off, end int64) span {
	block := int64(d.block)
	s := span{first: pos &^ (block - 1)}
	s.last = s.first + min(bounceSize, (end-s.first+block-1)&^(block-1)) // no sum that could pass 2^63
	s.from, s.to = max(off, s.first), min(end, s.last)
	return s
}

func (f *fileStore) readBounced(bufs [][]byte, off int64) error {
	b := f.direct.bounce()
	defer f.direct.bounces.put(b)
	c, end := cursor{bufs: bufs}, off+total(bufs)
	for pos := off; pos < end; {
		s := f.direct.next(pos, off, end)
		if err := f.move(f.sys.preadv, b.list(0, s.last-s.first), s.first, 0, io.ErrUnexpectedEOF); err != nil {
			return err
		}
		c.scatter(b.mem[s.from-s.first : s.to-s.first])
		pos = s.to
	}
	return nil
}

func (f *fileStore) writeBounced(bufs [][]byte, off int64, flags int) error {
	b := f.direct.bounce()
	defer f.direct.bounces.put(b)
	c, end := cursor{bufs: bufs}, off+total(bufs)
	if block := int64(f.direct.block); (off|end)&(block-1) != 0 {
		f.direct.whole.Lock()
		defer f.direct.whole.Unlock()
	} else {
		f.direct.whole.RLock()
		defer f.direct.whole.RUnlock()
	}
	for pos := off; pos < end; {
		s := f.direct.next(pos, off, end)
		if err := f.readEdges(b, s); err != nil {
			return err
		}
		c.gather(b.mem[s.from-s.first : s.to-s.first])
		if err := f.move(f.sys.pwritev, b.list(0, s.last-s.first), s.first, flags, io.ErrShortWrite); err != nil {
			return err
		}
		pos = s.to
	}
	return nil
}

// readEdges reads the first and the last block of a piece where the request covers them in part.
func (f *fileStore) readEdges(b *bounce, s span) error {
	block, size := int64(f.direct.block), s.last-s.first
	if s.from > s.first {
		if err := f.move(f.sys.preadv, b.list(0, block), s.first, 0, io.ErrUnexpectedEOF); err != nil {
			return err
		}
	}
	if s.to < s.last && (size > block || s.from == s.first) {
		return f.move(f.sys.preadv, b.list(size-block, size), s.last-block, 0, io.ErrUnexpectedEOF)
	}
	return nil
}

// A cursor walks along a list of buffers.
type cursor struct {
	bufs [][]byte
	at   int // in the first of bufs
}

// gather fills dst from the list.
func (c *cursor) gather(dst []byte) {
	for len(dst) > 0 {
		n := copy(dst, c.bufs[0][c.at:])
		dst = dst[n:]
		c.advance(n)
	}
}

// scatter fills the list from src.
func (c *cursor) scatter(src []byte) {
	for len(src) > 0 {
		n := copy(c.bufs[0][c.at:], src)
		src = src[n:]
		c.advance(n)
	}
}

func (c *cursor) advance(n int) {
	if c.at += n; c.at == len(c.bufs[0]) {
		c.bufs, c.at = c.bufs[1:], 0
	}
}
