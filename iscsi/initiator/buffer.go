package initiator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
)

// ErrBufferInUse: a Buffer cannot be freed while a command uses it.
var ErrBufferInUse = errors.New("the buffer is used by a command")

// A Buffer is page-aligned memory outside Go's heap, which an RDMA device reads and writes by itself: commands whose
// data lies wholly in one of their session's buffers move it without a copy. Any slice of Bytes will do. Over TCP, and
// on devices without memory windows, it is memory like any other.
//
// A command that uses a buffer and is given up returns only when nothing can land in the buffer any more: the target
// has answered the abort and the memory's key has ended, or the session is over.
type Buffer struct {
	mem  *arena.Pool
	size int
	free func(*Buffer) error // ends the registration

	mu     sync.Mutex
	closed bool
}

// Bytes is the memory, as long as was asked for.
func (b *Buffer) Bytes() []byte { return b.mem.Memory()[:b.size:b.size] }

// Close frees the memory: nobody may look at it any more. While a command uses it, it does nothing and returns
// ErrBufferInUse. Closing again does nothing.
func (b *Buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if err := b.free(b); err != nil {
		return err
	}
	b.closed = true
	return b.mem.Close()
}

func newBuffer(size int, free func(*Buffer) error) (*Buffer, error) {
	mem, err := arena.New(int64(size))
	if err != nil {
		return nil, err
	}
	return &Buffer{mem: mem, size: size, free: free}, nil
}

// AllocBuffer makes a buffer of size bytes for commands of s and of its disks. Registering memory may take a device
// milliseconds, during which the session does nothing else: keep buffers.
func (s *Session) AllocBuffer(ctx context.Context, size int) (*Buffer, error) {
	b, err := newBuffer(size, s.unregister)
	if err != nil {
		return nil, err
	}
	if err := s.register(ctx, b); err != nil {
		return nil, errors.Join(fmt.Errorf("register %d bytes: %w", size, err), b.mem.Close())
	}
	return b, nil
}

// AllocBuffer makes a buffer of size bytes for commands of d. On a Connection it is good for all its disks, and for the
// sessions to come; while one of these is being opened the call, and the buffer's Close, may wait. On Paths it is registered
// with the first of them that has had a session, and memory like any other for the rest.
func (d *Disk) AllocBuffer(ctx context.Context, size int) (*Buffer, error) {
	switch {
	case d.paths != nil:
		return d.paths.allocBuffer(ctx, size)
	case d.c != nil:
		return d.c.allocBuffer(ctx, size)
	}
	return d.s.AllocBuffer(ctx, size)
}

func (c *Connection) allocBuffer(ctx context.Context, size int) (*Buffer, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	b, err := newBuffer(size, c.freeBuffer)
	if err != nil {
		return nil, err
	}
	// A session that is lost meanwhile is no error: its successor registers what it finds in the list.
	if s := c.current.Load(); !s.over() {
		if err := s.register(ctx, b); err != nil && !s.over() {
			return nil, errors.Join(fmt.Errorf("register %d bytes: %w", size, err), b.mem.Close())
		}
	}
	c.buffers = append(c.buffers, b)
	return b, nil
}

func (m *Paths) allocBuffer(ctx context.Context, size int) (*Buffer, error) {
	for _, p := range m.paths {
		if c := p.c.Load(); c != nil {
			return c.allocBuffer(ctx, size)
		}
	}
	panic("initiator: paths without a session") // ConnectPaths sees to that
}

func (c *Connection) freeBuffer(b *Buffer) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if err := c.current.Load().unregister(b); err != nil {
		return err
	}
	c.buffers = slices.DeleteFunc(c.buffers, func(x *Buffer) bool { return x == b })
	return nil
}

// adopt registers the connection's buffers with a new session; it needs c.turn.
func (c *Connection) adopt(ctx context.Context, s *Session) error {
	for _, b := range c.buffers {
		if err := s.register(ctx, b); err != nil {
			return fmt.Errorf("register %d bytes again: %w", b.size, err)
		}
	}
	return nil
}

// register has the loop make b usable in place.
func (s *Session) register(ctx context.Context, b *Buffer) error {
	r := s.requests.get(requestRegister)
	r.buffer = b
	_, err := s.ask(ctx, r)
	return err
}

// unregister undoes it. The loop of a session that is over has freed everything.
func (s *Session) unregister(b *Buffer) error {
	r := s.requests.get(requestUnregister)
	r.buffer = b
	_, err := s.ask(context.Background(), r)
	if _, lost := errors.AsType[*lostError](err); lost {
		return s.ending(context.Background())
	}
	return err
}

// A buffer is a Buffer as the loop knows it.
type buffer struct {
	owner     *Buffer
	base, end uintptr
	inPlace   bool // the datamover has registered it
	users     int  // commands that use it
}

// buffers are those of a session, by address. Only the loop touches them.
type buffers []*buffer

func (l buffers) search(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(l, at, func(b *buffer, at uintptr) int { return cmp.Compare(b.base, at) })
}

// find is the buffer that holds all of p, nil if none does.
func (l buffers) find(p []byte) *buffer {
	at := address(p)
	i, exact := l.search(at)
	if !exact {
		i--
	}
	if i < 0 || at >= l[i].end || uintptr(len(p)) > l[i].end-at {
		return nil
	}
	return l[i]
}

// address is where p, which is not empty, starts. What matters of it is whether it is in a buffer, and buffers do not
// move.
func address(p []byte) uintptr { return reflect.ValueOf(p).Pointer() }

// registerBuffer serves requestRegister. A datamover that has no use for the memory leaves it what it is.
func (c *core) registerBuffer(owner *Buffer) error {
	mem := owner.mem.Memory()
	b := &buffer{owner: owner, base: address(mem), end: address(mem) + uintptr(len(mem))}
	if r, ok := c.dm.(iscsi.Registrar); ok {
		err := r.Register(mem)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		b.inPlace = err == nil
	}
	i, _ := c.buffers.search(b.base)
	c.buffers = slices.Insert(c.buffers, i, b)
	return nil
}

// unregisterBuffer serves requestUnregister. A buffer that the session does not know has been freed before.
func (c *core) unregisterBuffer(owner *Buffer) error {
	i := slices.IndexFunc(c.buffers, func(b *buffer) bool { return b.owner == owner })
	if i < 0 {
		return nil
	}
	b := c.buffers[i]
	if b.users > 0 {
		return ErrBufferInUse
	}
	c.buffers = slices.Delete(c.buffers, i, i+1)
	if r, ok := c.dm.(iscsi.Registrar); ok && b.inPlace {
		return r.Unregister(owner.mem.Memory())
	}
	return nil
}

// occupy notes the buffer in which a command's data lies, if it lies in one.
func (c *core) occupy(t *task, p []byte) {
	if len(c.buffers) == 0 || len(p) == 0 {
		return
	}
	if t.buffer = c.buffers.find(p); t.buffer != nil {
		t.buffer.users++
		t.transfer.InPlace = t.buffer.inPlace
	}
}

// vacate: the command's data memory is not used any more.
func (t *task) vacate() {
	if t.buffer != nil {
		t.buffer.users--
		t.buffer = nil
	}
}

// part parts a sent command from its caller's memory and tells the caller err. A command in place cannot be parted from
// it: its caller is told when it is released.
func (c *core) part(t *task, r *request, err error) {
	if t.transfer.InPlace && !t.released {
		t.owed, t.owedErr = r, err
		return
	}
	if !t.released {
		c.dm.Detach(&t.transfer)
		t.vacate()
	}
	c.finish(r, err)
}
