package gotgt

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"
	_ "github.com/gostor/gotgt/pkg/scsi/backingstore"        // file, null
	_ "github.com/gostor/gotgt/pkg/scsi/backingstore/remote" // RemBs
)

// ErrPlugin is what a plug-in did that it must not: a wrong length, a size that cannot be, a panic.
var ErrPlugin = errors.New("gotgt plug-in at fault")

// blockShift is what plug-ins are told of blocks: 512 bytes.
const blockShift = 9

// null is the plug-in that holds nothing: it has no size, and reads nothing, which stands for zeros.
const null = "null"

// A Device is an open plug-in. Its methods may be called from many goroutines at once; plug-ins that are not known to
// bear that are called by one at a time. A caller keeps to the size.
type Device struct {
	plugin    string
	store     api.BackingStore
	lu        *api.SCSILu
	sizeBytes int64

	mu     sync.RWMutex // held shared by calls, so that Close waits for them
	closed bool

	one    sync.Locker // around each call; of no effect for those that bear many
	failed failure
}

// failure remembers the first panic.
type failure struct {
	mu  sync.Mutex
	err error
}

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// A noLock is for plug-ins that bear calls at once: those that only use the kernel's positional reads and writes.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// Open opens a path with a plug-in. sizeBytes is for the null plug-in, which has no size of its own, and else has to be 0
// or what the plug-in says. Errors wrap the plug-in's, or ErrPlugin.
func Open(plugin, path string, sizeBytes int64) (*Device, error) {
	d := &Device{plugin: plugin, one: &sync.Mutex{}}
	if plugin == null || plugin == "file" {
		d.one = noLock{}
	}
	err := d.call(func() (err error) {
		if d.store, err = scsi.NewBackingStore(plugin); err == nil && d.store == nil {
			err = errors.New("there is no plug-in without a name")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	d.lu = &api.SCSILu{Storage: d.store, BlockShift: blockShift}
	if err := d.call(func() error { return d.store.Open(d.lu, path) }); err != nil {
		return nil, err
	}
	if err := d.measure(sizeBytes); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// measure asks the plug-in for its size, once.
func (d *Device) measure(want int64) error {
	var says uint64
	if err := d.call(func() error { says = d.store.Size(d.lu); return nil }); err != nil {
		return err
	}
	switch {
	case d.plugin == null && says == 0:
		d.sizeBytes = want
	case says == 0 || says > math.MaxInt64 || says%(1<<blockShift) != 0:
		return fmt.Errorf("%w: it says that it has %d bytes, which is no multiple of 512", ErrPlugin, says)
	case want != 0 && int64(says) != want:
		return fmt.Errorf("it has %d bytes, not %d", says, want)
	default:
		d.sizeBytes = int64(says)
	}
	return nil
}

// SizeBytes is how long it is.
func (d *Device) SizeBytes() int64 { return d.sizeBytes }

// call does something with the plug-in, whose panic is an error and its end: what it left half done nobody knows.
func (d *Device) call(do func() error) (err error) {
	if err := d.failed.get(); err != nil {
		return err
	}
	d.one.Lock()
	defer d.one.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s panicked: %v", ErrPlugin, d.plugin, p)
			d.failed.set(err)
		}
	}()
	return do()
}

// use is call for a device that is open.
func (d *Device) use(do func() error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return net.ErrClosed
	}
	return d.call(do)
}

// ReadAt fills bufs from the offset off, bytes.
func (d *Device) ReadAt(bufs [][]byte, off int64) error {
	return d.use(func() error {
		n := total(bufs)
		if n == 0 {
			return nil
		}
		got, err := d.store.Read(off, int64(n))
		switch {
		case err != nil:
			return err
		case d.plugin == null && got == nil:
			for _, b := range bufs {
				clear(b)
			}
			return nil
		case len(got) < n:
			return fmt.Errorf("%w: it read %d of %d bytes: %w", ErrPlugin, len(got), n, io.ErrUnexpectedEOF)
		case len(got) > n:
			return fmt.Errorf("%w: it read %d bytes where %d were wanted", ErrPlugin, len(got), n)
		}
		for _, b := range bufs {
			got = got[copy(b, got):]
		}
		return nil
	})
}

// WriteAt writes bufs at the offset off, and with fua makes them durable, as far as the plug-in does.
func (d *Device) WriteAt(bufs [][]byte, off int64, fua bool) error {
	return d.use(func() error {
		n := total(bufs)
		if n == 0 {
			return nil
		}
		own := make([]byte, 0, n) // the plug-in may keep it
		for _, b := range bufs {
			own = append(own, b...)
		}
		if err := d.store.Write(own, off); err != nil || !fua {
			return err
		}
		return d.store.DataSync(off, int64(n))
	})
}

// Flush makes what has been written durable, as far as the plug-in does.
func (d *Device) Flush() error {
	return d.use(func() error { return d.store.DataSync(0, d.sizeBytes) })
}

// Close flushes and closes, once calls have ended. Closing again is harmless.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	err := d.call(func() error { return d.store.DataSync(0, d.sizeBytes) })
	return errors.Join(err, d.call(func() error { return d.store.Close(d.lu) }))
}

func total(bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return n
}
