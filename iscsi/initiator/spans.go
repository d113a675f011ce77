package initiator

import (
	"context"
	"sync"
)

// spans are the writes of an exclusive disk that are under way. One that overlaps another waits for its end: otherwise
// the first, sent again after a loss, would undo the second. Callers are bounded by themselves.
type spans struct {
	mu     sync.Mutex
	active []span
	gone   chan struct{} // closed with the next leave, for those who wait; nil: nobody
}

// A span is a range of bytes, empty if it is not in use.
type span struct{ off, end int64 }

// enter waits until nothing that is under way overlaps [off, off+n). leave takes the index. It allocates only when more
// writes are under way than ever before, or to wait.
func (p *spans) enter(ctx context.Context, off, n int64) (int, error) {
	for {
		i, gone := p.try(off, n)
		if gone == nil {
			return i, nil
		}
		select {
		case <-gone:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// try enters, or says what to wait for.
func (p *spans) try(off, n int64) (index int, gone <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := -1
	for i, s := range p.active {
		switch {
		case s.off == s.end:
			free = i
		case off < s.end && s.off < off+n:
			if p.gone == nil {
				p.gone = make(chan struct{})
			}
			return 0, p.gone
		}
	}
	if free < 0 {
		free = len(p.active)
		p.active = append(p.active, span{})
	}
	p.active[free] = span{off, off + n}
	return free, nil
}

// leave ends what enter began.
func (p *spans) leave(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active[i] = span{}
	if p.gone != nil {
		close(p.gone)
		p.gone = nil
	}
}

// alone runs a write of n bytes at off; on an exclusive connection, with no other of d's on the same blocks.
func (d *Disk) alone(ctx context.Context, off, n int64, write func() error) error {
	if d.c == nil || !d.c.o.Exclusive || n <= 0 {
		return write()
	}
	i, err := d.spans.enter(ctx, off, n)
	if err != nil {
		return err
	}
	defer d.spans.leave(i)
	return write()
}
