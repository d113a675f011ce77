package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/initiator/dial"
)

// A ddSource gives bytes at offsets. read fills p as far as there is data: io.EOF, perhaps with n > 0, at
// the end. size is 0 if it is not known.
type ddSource interface {
	read(ctx context.Context, p []byte, off int64) (n int, err error)
	size() int64
	close() error
}

// A ddSink takes bytes at offsets. close makes them durable.
type ddSink interface {
	write(ctx context.Context, p []byte, off int64) error
	close() error
}

func (a *app) openSource(ctx context.Context, o ddOperands) (ddSource, error) {
	seed, isPattern := strings.CutPrefix(o.in, "pattern:")
	switch {
	case dial.IsURL(o.in):
		return a.openUnit(ctx, o.in)
	case isPattern:
		n, err := strconv.ParseUint(seed, 10, 64)
		if err != nil {
			return nil, usage(fmt.Errorf("if=%s: want pattern:SEED with a number", o.in))
		}
		return endless{fill: func(p []byte, off int64) {
			stamp.Fill(p, stamp.ID{Seed: n, Sector: uint64(off / stamp.SectorSize), Generation: 1})
		}}, checkCount(o)
	case o.in == "internal":
		return endless{fill: func(p []byte, _ int64) { clear(p) }}, checkCount(o)
	case o.in == "-":
		return &stream{in: os.Stdin}, nil
	}
	f, err := os.Open(o.in)
	if err != nil {
		return nil, err
	}
	return &fileEnd{f}, nil
}

func (a *app) openSink(ctx context.Context, o ddOperands) (ddSink, error) {
	switch {
	case dial.IsURL(o.out):
		return a.openUnit(ctx, o.out)
	case o.out == "internal":
		return nowhere{}, nil
	case o.out == "-":
		return &stream{out: os.Stdout}, nil
	case strings.HasPrefix(o.out, "pattern:"):
		return nil, usage(errors.New("of=pattern: is no place to write to; check stamps with iser verify --check-only"))
	}
	return openFile(o.out, o.seek*int64(o.bs))
}

// openFile opens a file to be written from a byte on; as with dd, what a regular file has from there on goes.
func openFile(name string, from int64) (*fileEnd, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Size() > from {
		if err := f.Truncate(from); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return &fileEnd{f}, nil
}

// checkCount wants an end for sources that have none.
func checkCount(o ddOperands) error {
	if o.count < 0 {
		return usage(fmt.Errorf("if=%s never ends: want count=", o.in))
	}
	return nil
}

// A unitEnd is a logical unit with the session it is on.
type unitEnd struct {
	s     *initiator.Session
	d     blockDevice
	wrote bool
}

func (a *app) openUnit(ctx context.Context, url string) (*unitEnd, error) {
	s, d, err := a.disk(ctx, url)
	if err != nil {
		return nil, err
	}
	return &unitEnd{s: s, d: d}, nil
}

func (u *unitEnd) size() int64 { return u.d.SizeBytes() }

func (u *unitEnd) read(ctx context.Context, p []byte, off int64) (int, error) {
	n := min(int64(len(p)), u.d.SizeBytes()-off)
	if n <= 0 {
		return 0, io.EOF
	}
	return int(n), u.d.ReadAt(ctx, p[:n], off)
}

func (u *unitEnd) write(ctx context.Context, p []byte, off int64) error {
	if bs := u.d.BlockSize(); len(p)%bs != 0 {
		return fmt.Errorf("the last %d bytes are not whole blocks of %d; conv=sync fills them with zeros", len(p)%bs, bs)
	}
	if off+int64(len(p)) > u.d.SizeBytes() {
		return fmt.Errorf("byte %d is beyond the end of the disk (%d bytes)", off+int64(len(p)), u.d.SizeBytes())
	}
	u.wrote = true
	return u.d.WriteAt(ctx, p, off)
}

func (u *unitEnd) close() error {
	var err error
	if u.wrote {
		err = u.d.Flush(context.Background())
	}
	return errors.Join(err, u.s.Close())
}

// A fileEnd is a file or block device.
type fileEnd struct{ f *os.File }

func (e *fileEnd) size() int64 {
	n, err := e.f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0
	}
	return n
}

func (e *fileEnd) read(_ context.Context, p []byte, off int64) (int, error) {
	return e.f.ReadAt(p, off)
}

func (e *fileEnd) write(_ context.Context, p []byte, off int64) error {
	_, err := e.f.WriteAt(p, off)
	return err
}

func (e *fileEnd) close() error { return e.f.Close() }

// A stream is standard input or output: offsets are where it happens to be.
type stream struct {
	in  io.Reader
	out io.Writer
}

func (s *stream) size() int64 { return 0 }

func (s *stream) read(_ context.Context, p []byte, _ int64) (int, error) {
	n, err := io.ReadFull(s.in, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

func (s *stream) write(_ context.Context, p []byte, _ int64) error {
	_, err := s.out.Write(p)
	return err
}

func (s *stream) close() error { return nil }

// An endless source makes its bytes from their offsets.
type endless struct{ fill func(p []byte, off int64) }

func (e endless) size() int64  { return 0 }
func (e endless) close() error { return nil }

func (e endless) read(_ context.Context, p []byte, off int64) (int, error) {
	e.fill(p, off)
	return len(p), nil
}

// nowhere takes everything and keeps nothing.
type nowhere struct{}

func (nowhere) write(context.Context, []byte, int64) error { return nil }
func (nowhere) close() error                               { return nil }
