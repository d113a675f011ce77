package gotgt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"
	"github.com/gostor/gotgt/pkg/scsi/backingstore/remote"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A liar is a plug-in that does what it is told to do wrong.
type liar struct {
	size         uint64
	data         []byte
	extra        int // bytes that a read has too many, or too few
	panics       string
	fails        error
	kept         []byte // of the last write
	synced       int
	closed       bool
	inside, most atomic.Int32
}

func (l *liar) at(what string) error {
	l.most.Store(max(l.most.Load(), l.inside.Add(1)))
	defer l.inside.Add(-1)
	if l.panics == what {
		panic("in " + what)
	}
	return l.fails
}

func (l *liar) Open(*api.SCSILu, string) error { return l.at("open") }
func (l *liar) Close(*api.SCSILu) error        { l.closed = true; return l.at("close") }
func (l *liar) Init(*api.SCSILu, string) error { return nil }
func (l *liar) Exit(*api.SCSILu) error         { return nil }
func (l *liar) Size(*api.SCSILu) uint64        { _ = l.at("size"); return l.size }

func (l *liar) Read(off, n int64) ([]byte, error) {
	if err := l.at("read"); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	copy(b, l.data[off:])
	if l.extra < 0 {
		return b[:int(n)+l.extra], nil
	}
	return append(b, make([]byte, l.extra)...), nil
}

func (l *liar) Write(b []byte, off int64) error {
	if err := l.at("write"); err != nil {
		return err
	}
	l.kept = b
	copy(l.data[off:], b)
	return nil
}

func (l *liar) DataSync(int64, int64) error            { l.synced++; return l.at("sync") }
func (l *liar) DataAdvise(int64, int64, uint32) error  { return nil }
func (l *liar) Unmap([]api.UnmapBlockDescriptor) error { return nil }
func newLiar() *liar                                   { return &liar{size: 8192, data: make([]byte, 8192)} }

func (l *liar) open(t *testing.T, want int64) (*Device, error) {
	t.Helper()
	name := fmt.Sprintf("liar of %s %p", t.Name(), l) // gotgt's list of plug-ins is the process's
	scsi.RegisterBackingStore(name, func() (api.BackingStore, error) { return l, nil })
	return Open(name, "anywhere", want)
}

func (l *liar) mustOpen(t *testing.T) *Device {
	t.Helper()
	d, err := l.open(t, 0)
	require.NoError(t, err)
	return d
}

func TestSizesThatCannotBeAreRefused(t *testing.T) {
	for _, size := range []uint64{0, 1, 511, 513, math.MaxUint64, math.MaxInt64 + 1} {
		l := newLiar()
		l.size = size
		_, err := l.open(t, 0)
		assert.ErrorIs(t, err, ErrPlugin, "%d", size)
		assert.True(t, l.closed, "what is refused is closed")
	}
	l := newLiar()
	_, err := l.open(t, 4096)
	assert.ErrorContains(t, err, "it has 8192 bytes, not 4096")
	d, err := l.open(t, 8192)
	require.NoError(t, err)
	l.size = 512
	assert.Equal(t, int64(8192), d.SizeBytes(), "it is asked once")
}

func TestReadsOfAnotherLengthAreErrors(t *testing.T) {
	l := newLiar()
	d := l.mustOpen(t)
	bufs := [][]byte{make([]byte, 100), make([]byte, 412)}
	l.extra = -1
	err := d.ReadAt(bufs, 0)
	assert.ErrorIs(t, err, ErrPlugin)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	l.extra = 1
	assert.ErrorIs(t, d.ReadAt(bufs, 0), ErrPlugin)
	l.extra = -512
	assert.ErrorIs(t, d.ReadAt(bufs, 0), ErrPlugin, "nothing is not zeros")
	l.extra = 0
	l.data[511] = 7
	require.NoError(t, d.ReadAt(bufs, 0))
	assert.Equal(t, byte(7), bufs[1][411])
}

func TestErrorsComeThrough(t *testing.T) {
	l := newLiar()
	d := l.mustOpen(t)
	l.fails = errors.New("burnt")
	buf := [][]byte{make([]byte, 512)}
	assert.ErrorIs(t, d.ReadAt(buf, 0), l.fails)
	assert.ErrorIs(t, d.WriteAt(buf, 0, false), l.fails)
	assert.ErrorIs(t, d.Flush(), l.fails)
	assert.ErrorIs(t, d.Close(), l.fails)
	_, err := l.open(t, 0)
	assert.ErrorIs(t, err, l.fails)
}

// A plug-in that has panicked is asked nothing more: what it left half done nobody knows.
func TestAPanicIsAnErrorAndTheEnd(t *testing.T) {
	buf := [][]byte{make([]byte, 512)}
	for what, do := range map[string]func(*Device) error{
		"read":  func(d *Device) error { return d.ReadAt(buf, 0) },
		"write": func(d *Device) error { return d.WriteAt(buf, 0, false) },
		"sync":  func(d *Device) error { return d.WriteAt(buf, 0, true) },
	} {
		l := newLiar()
		d := l.mustOpen(t)
		l.panics = what
		err := do(d)
		assert.ErrorIs(t, err, ErrPlugin)
		assert.ErrorContains(t, err, "panicked: in "+what)
		l.panics = ""
		assert.ErrorIs(t, d.ReadAt(buf, 0), ErrPlugin, "afterwards too")
		assert.ErrorIs(t, d.Flush(), ErrPlugin)
		assert.ErrorIs(t, d.Close(), ErrPlugin)
		assert.False(t, l.closed)
	}
	for _, what := range []string{"open", "size"} {
		l := newLiar()
		l.panics = what
		_, err := l.open(t, 0)
		assert.ErrorContains(t, err, "panicked: in "+what)
	}
}

func TestAPluginNeverHoldsACallersBuffer(t *testing.T) {
	l := newLiar()
	d := l.mustOpen(t)
	buf := bytes.Repeat([]byte{1}, 512)
	require.NoError(t, d.WriteAt([][]byte{buf}, 512, true))
	assert.Equal(t, 1, l.synced, "a forced write")
	clear(l.kept)
	assert.Equal(t, bytes.Repeat([]byte{1}, 512), buf)
	synced := l.synced
	require.NoError(t, d.Close())
	assert.Greater(t, l.synced, synced, "it is flushed before")
}

// Plug-ins of which nothing is known see one call at a time.
func TestCallsAreOneAtATime(t *testing.T) {
	l := newLiar()
	d := l.mustOpen(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			buf := [][]byte{make([]byte, 512)}
			for range 200 {
				assert.NoError(t, d.WriteAt(buf, 0, true))
				assert.NoError(t, d.ReadAt(buf, 0))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, int32(1), l.most.Load())
}

func TestPluginsThereAre(t *testing.T) {
	for _, name := range []string{"", "floppy"} {
		_, err := Open(name, "x", 0)
		assert.Error(t, err)
	}
	_, err := Open("file", filepath.Join(t.TempDir(), "missing"), 0)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open("RemBs", "nobody has registered this", 0)
	assert.ErrorContains(t, err, "Size is not initialized")
	assert.Zero(t, remote.Size)
}

func TestNullReadsZeros(t *testing.T) {
	d, err := Open("null", "", 4096)
	require.NoError(t, err)
	buf := []byte{1, 2, 3}
	require.NoError(t, d.ReadAt([][]byte{buf}, 0))
	assert.Equal(t, make([]byte, 3), buf)
	require.NoError(t, d.WriteAt([][]byte{buf}, 0, true))
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	assert.ErrorIs(t, d.Flush(), net.ErrClosed)
}
