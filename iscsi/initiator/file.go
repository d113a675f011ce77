package initiator

import (
	"context"
	"fmt"
	"io"
)

// A File is a Disk for those who know files: it has a context of its own, byte offsets of any alignment, and
// implements io.ReaderAt and io.WriterAt. It may be used from many goroutines.
//
// A write that covers a block in part reads the block and writes it back. Other such writes of the same Disk wait
// meanwhile; other initiators, and WriteAt of the Disk itself, do not.
type File struct {
	d   *Disk
	ctx context.Context
}

var (
	_ io.ReaderAt = (*File)(nil)
	_ io.WriterAt = (*File)(nil)
)

// File is d for io.SectionReader, io.OffsetWriter and others who have no context. What is called on it ends with ctx.
func (d *Disk) File(ctx context.Context) *File { return &File{d, ctx} }

// Size is the capacity, bytes.
func (f *File) Size() int64 { return f.d.SizeBytes() }

// Sync is Disk.Flush.
func (f *File) Sync() error { return f.d.Flush(f.ctx) }

// ReadAt implements io.ReaderAt. Behind the end it returns io.EOF with what is before.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("lun %s: read at %d", f.d.lun, off)
	}
	size := f.Size()
	if off >= size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	var end error
	if int64(len(p)) > size-off {
		p, end = p[:size-off], io.EOF
	}
	n, err := f.each(p, off, func(part []byte, off int64) error { return f.d.ReadAt(f.ctx, part, off) }, f.readPart)
	if err != nil {
		return n, err
	}
	return n, end
}

// WriteAt implements io.WriterAt. Nothing is written behind the end: such a call gets an error that wraps
// io.ErrShortWrite, with what is before written.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("lun %s: write at %d", f.d.lun, off)
	}
	var end error
	if left := max(f.Size()-off, 0); int64(len(p)) > left {
		end = fmt.Errorf("lun %s: write %d bytes at %d, the end is at %d: %w", f.d.lun, len(p), off, f.Size(), io.ErrShortWrite)
		p = p[:left]
	}
	n, err := f.each(p, off, func(part []byte, off int64) error { return f.d.WriteAt(f.ctx, part, off) }, f.writePart)
	if err != nil {
		return n, err
	}
	return n, end
}

// each cuts p, which lies at off, into a part of the first block, whole blocks, and a part of the last. n are the bytes of
// the cuts that were done.
func (f *File) each(p []byte, off int64, whole, part func([]byte, int64) error) (n int, err error) {
	bs := f.d.blockSize
	for len(p) > 0 {
		do, cut := part, min(len(p), bs-int(off%int64(bs)))
		if cut == bs {
			do, cut = whole, len(p)/bs*bs
		}
		if err := do(p[:cut], off); err != nil {
			return n, err
		}
		p, off, n = p[cut:], off+int64(cut), n+cut
	}
	return n, nil
}

// readPart reads a part of one block.
func (f *File) readPart(p []byte, off int64) error {
	block := make([]byte, f.d.blockSize)
	at := off % int64(len(block))
	if err := f.d.ReadAt(f.ctx, block, off-at); err != nil {
		return err
	}
	copy(p, block[at:])
	return nil
}

// writePart writes a part of one block.
func (f *File) writePart(p []byte, off int64) error {
	block := make([]byte, f.d.blockSize)
	at := off % int64(len(block))
	f.d.partial.Lock()
	defer f.d.partial.Unlock()
	if err := f.d.ReadAt(f.ctx, block, off-at); err != nil {
		return err
	}
	copy(block[at:], p)
	return f.d.WriteAt(f.ctx, block, off-at)
}
