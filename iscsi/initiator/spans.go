package initiator

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// spans are the writes that are under way, of a disk that is exclusive or has several paths. One that overlaps another waits for its end: otherwise
// the first, sent again after a loss, would undo the second. Callers are bounded by themselves.
type spans struct {
	mu     sync.Mutex
	active []span
	doubts []doubt       // writes that have ended for their callers
	gone   chan struct{} // closed with the next leave, for those who wait; nil: nobody
}

// A span is a range of bytes, empty if it is not in use.
type span struct{ off, end int64 }

// A doubt is a range that a session may still write to, until it is fenced: see Paths.
type doubt struct {
	span
	s *Session
}

// maxDoubts bounds what a disk remembers of sessions that live: what is more makes a range wider.
const maxDoubts = 1024

// doubt notes that s may still write to [off, off+n).
func (p *spans) doubt(off, n int64, s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubts = slices.DeleteFunc(p.doubts, func(d doubt) bool { return d.s.isFenced() })
	i := slices.IndexFunc(p.doubts, func(d doubt) bool { return d.s == s })
	if i < 0 || len(p.doubts) < maxDoubts {
		p.doubts = append(p.doubts, doubt{span{off, off + n}, s})
		return
	}
	d := &p.doubts[i]
	d.off, d.end = min(d.off, off), max(d.end, off+n)
}

// doubted is a session other than s that may still write to [off, off+n); nil: there is none.
func (p *spans) doubted(off, n int64, s *Session) *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.doubts {
		if d.s != s && off < d.end && d.off < off+n && !d.s.isFenced() {
			return d.s
		}
	}
	return nil
}

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

// apart reports whether d's writes to the same blocks keep apart.
func (d *Disk) apart() bool { return d.paths != nil || d.c != nil && d.c.o.Exclusive }

// alone runs a write of n bytes at off; where writes keep apart, with no other of d's on the same blocks.
func (d *Disk) alone(ctx context.Context, off, n int64, write func() error) error {
	if !d.apart() || n <= 0 {
		return write()
	}
	i, err := d.spans.enter(ctx, off, n)
	if err != nil {
		return err
	}
	defer d.spans.leave(i)
	return write()
}

// unless sees to it, before n bytes at off are written on s, that no other session can write to them later.
func (d *Disk) unless(ctx context.Context, s *Session, off, n int64) error {
	if d.paths == nil {
		return nil
	}
	for {
		x := d.spans.doubted(off, n, s)
		if x == nil {
			return nil
		}
		_ = x.Close() // one that lives is fenced by the login that follows
		if err := d.awaitFence(ctx, x); err != nil {
			return err
		}
	}
}

// leaves notes what a command that wrote n bytes at off, and ended with err, may have left on s.
func (d *Disk) leaves(s *Session, off, n int64, err error) {
	if d.paths == nil || n == 0 || err == nil || isStatus(err) || s.isFenced() {
		return
	}
	if lost, ok := errors.AsType[*lostError](err); ok && lost.unsent {
		return
	}
	d.spans.doubt(off, n, s)
}
