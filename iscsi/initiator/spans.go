package initiator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
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

// A doubt is a range that a session may write to after it was lost, until it is fenced: see Paths.
type doubt struct {
	span
	s *Session
}

// maxDoubts bounds what a disk remembers of sessions that live: what is more makes the last range wider.
const maxDoubts = 1024

// doubt turns what enter began into doubts of sessions.
func (p *spans) doubt(i int, of []*Session) {
	p.mu.Lock()
	r := p.active[i]
	for _, s := range of {
		j := slices.IndexFunc(p.doubts, func(d doubt) bool { return d.s == s })
		if j < 0 || len(p.doubts) < maxDoubts {
			p.doubts = append(p.doubts, doubt{r, s})
			continue
		}
		d := &p.doubts[j]
		d.off, d.end = min(d.off, r.off), max(d.end, r.end)
	}
	p.mu.Unlock()
	p.leave(i)
}

// doubtedLocked is the lost session that may still write to [off, end), nil if there is none.
func (p *spans) doubtedLocked(off, end int64) *Session {
	p.doubts = slices.DeleteFunc(p.doubts, func(d doubt) bool { return d.s.isFenced() })
	for _, d := range p.doubts {
		if off < d.end && d.off < end && d.s.over() {
			return d.s
		}
	}
	return nil
}

// enter waits until nothing that is under way overlaps [off, off+n). leave takes the index. It allocates only when more
// writes are under way than ever before, or to wait.
// For a fence it waits no longer than patience.
func (p *spans) enter(ctx context.Context, off, n int64, patience time.Duration) (int, error) {
	for {
		i, gone, unfenced := p.try(off, n)
		if gone == nil {
			return i, nil
		}
		var enough <-chan time.Time
		if unfenced {
			enough = time.After(patience)
		}
		select {
		case <-gone:
		case <-enough:
			return 0, ErrUnfenced
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// try enters, or says what to wait for.
func (p *spans) try(off, n int64) (index int, gone <-chan struct{}, unfenced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.doubts) > 0 {
		if s := p.doubtedLocked(off, off+n); s != nil {
			return 0, s.fenced, true
		}
	}
	free := -1
	for i, s := range p.active {
		switch {
		case s.off == s.end:
			free = i
		case off < s.end && s.off < off+n:
			if p.gone == nil {
				p.gone = make(chan struct{})
			}
			return 0, p.gone, false
		}
	}
	if free < 0 {
		free = len(p.active)
		p.active = append(p.active, span{})
	}
	p.active[free] = span{off, off + n}
	return free, nil, false
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
func (d *Disk) alone(ctx context.Context, off, n int64, write func() error) (err error) {
	if !d.apart() || n <= 0 {
		return write()
	}
	o, _ := d.lasting()
	i, err := d.spans.enter(ctx, off, n, o.ReconnectTimeout)
	if err != nil {
		return fmt.Errorf("lun %s: %d bytes at %d: %w", d.lun, n, off, err)
	}
	defer func() { d.leave(i, err) }()
	return write()
}

// leave ends a write that ended with err. What the unit has not answered may be carried out later.
func (d *Disk) leave(i int, err error) {
	if d.paths != nil && err != nil && !isStatus(err) {
		if of := d.paths.unfenced(); len(of) > 0 {
			d.spans.doubt(i, of)
			return
		}
	}
	d.spans.leave(i)
}
