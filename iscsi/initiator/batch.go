package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Errors of a batch.
var (
	// ErrBatchFull: as many requests as the batch has room for are under way.
	ErrBatchFull = errors.New("the batch is full")
	// ErrOverlap: on an exclusive Connection, and on Paths, a write overlaps one that is under way. See there.
	ErrOverlap = errors.New("overlaps a write that has not ended")
)

// A Batch keeps many reads and writes of a Disk under way from one goroutine, to which it belongs: add some, hand them
// over in one step with Submit, collect what has ended with Wait. It allocates nothing once it is warm. What is sent
// again after a unit attention, BUSY or a lost session is as with ReadAt and WriteAt; that happens in Wait.
type Batch struct {
	d       *Disk
	ops     []batchOp
	free    []int        // unused ops
	queued  []int        // to be handed over, in order
	told    []Completion // to be returned by Wait
	ended   []int        // taken from the loop, not yet told
	letters []letter     // for the session on
	on      *Session

	mu     sync.Mutex
	ready  []int         // ended, by the loop
	signal chan struct{} // capacity 1: something is ready
}

// A batchOp is one read or write of a batch.
type batchOp struct {
	piece
	tag  uint64
	span int // of an exclusive write; -1: none
}

// A Completion is the end of one request of a Batch.
type Completion struct {
	Tag uint64 // as given to ReadAt or WriteAt
	Err error  // as ReadAt and WriteAt of the Disk have it
}

// Batch makes a batch for up to depth requests at a time. More than Options.QueueDepth wait in line.
func (d *Disk) Batch(depth int) (*Batch, error) {
	if depth < 1 || depth > maxQueueDepth {
		return nil, fmt.Errorf("batch of %d requests: want 1 to %d", depth, maxQueueDepth)
	}
	b := &Batch{
		d: d, ops: make([]batchOp, depth), free: make([]int, 0, depth), queued: make([]int, 0, depth), told: make([]Completion, 0, depth),
		ended: make([]int, 0, depth), letters: make([]letter, 0, depth), ready: make([]int, 0, depth), signal: make(chan struct{}, 1),
	}
	for i := range depth {
		b.free = append(b.free, depth-1-i)
	}
	return b, nil
}

// MaxTransfer is the longest request of a Batch, bytes.
func (d *Disk) MaxTransfer() int { return d.piece }

// ReadAt adds a read of whole blocks, at most MaxTransfer bytes. Until its Completion p is the batch's. tag comes back in
// the Completion.
func (b *Batch) ReadAt(p []byte, off int64, tag uint64) error { return b.add(p, off, tag, false) }

// WriteAt adds a write, as ReadAt adds a read.
func (b *Batch) WriteAt(p []byte, off int64, tag uint64) error { return b.add(p, off, tag, true) }

func (b *Batch) add(p []byte, off int64, tag uint64, write bool) error {
	d := b.d
	if err := d.checkRange(int64(len(p)), off); err != nil {
		return fmt.Errorf("lun %s: %w", d.lun, err)
	}
	switch {
	case len(p) == 0 || len(p) > d.piece:
		return fmt.Errorf("lun %s: a request of %d bytes: want 1 to %d", d.lun, len(p), d.piece)
	case b.Len() == len(b.ops): // those that wait to be collected count
		return ErrBatchFull
	}
	span := -1
	if write && d.apart() {
		i, gone := d.spans.try(off, int64(len(p)))
		if gone != nil {
			return ErrOverlap // to wait here would be to wait for ourselves
		}
		span = i
	}
	i := b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	b.ops[i] = batchOp{piece: piece{p: p, off: off, write: write}, tag: tag, span: span}
	b.queued = append(b.queued, i)
	return nil
}

// Len is how many requests have been added and not yet come back as Completions.
func (b *Batch) Len() int { return len(b.ops) - len(b.free) + len(b.told) }

// Submit hands over what has been added. Requests that fail by that come back as Completions; the error is ctx's, and
// what was not handed over stays for the next Submit or Wait.
func (b *Batch) Submit(ctx context.Context) error {
	for len(b.queued) > 0 {
		i := b.queued[0]
		s, err := b.d.use(ctx)
		if op := &b.ops[i]; err == nil && op.write {
			err = b.d.unless(ctx, s, op.off, int64(len(op.p)))
		}
		if err == nil {
			err = b.stage(ctx, s, i)
		}
		switch {
		case err == nil:
			b.queued = append(b.queued[:0], b.queued[1:]...)
		case ctx.Err() != nil:
			b.post(ctx)
			return context.Cause(ctx)
		default:
			b.queued = append(b.queued[:0], b.queued[1:]...)
			b.end(i, doubted(b.ops[i].unknown, err))
		}
		if len(b.queued) == 0 {
			b.post(ctx) // may queue again
		}
	}
	return nil
}

// stage makes op i's request for s and takes a token of its queue.
func (b *Batch) stage(ctx context.Context, s *Session, i int) error {
	if b.on != s {
		b.post(ctx)
		b.on = s
	}
	select {
	case s.tasks <- struct{}{}:
	default:
		b.post(ctx) // those staged have tokens, too
		b.on = s
		select {
		case s.tasks <- struct{}{}:
		case <-s.done: // post finds out what that means
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	op := &b.ops[i]
	r := s.requests.get(requestCommand)
	c, cdb := b.d.command(&op.piece, &r.cdb)
	c.CDB = cdb
	r.cmd = c
	r.batch, r.op = b, i
	op.s, op.req = s, r
	b.letters = append(b.letters, letter{r: r})
	return nil
}

// post hands the staged requests to the loop, all at once.
func (b *Batch) post(ctx context.Context) {
	s := b.on
	if len(b.letters) > 0 {
		wake, err := s.mail.put(b.letters...)
		if wake {
			s.dm.Wake()
		}
		if err != nil {
			for _, l := range b.letters {
				l.r.err = &lostError{err, true}
				b.settle(ctx, l.r.op)
			}
		}
	}
	clear(b.letters)
	b.letters, b.on = b.letters[:0], nil
}

// complete is the loop's word that op i has ended.
func (b *Batch) complete(i int) {
	b.mu.Lock()
	b.ready = append(b.ready, i)
	b.mu.Unlock()
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// Wait hands over what has been added and waits until at least least requests have ended, or all there are; 0 does not
// wait. It returns how many Completions it has put into done. The error is ctx's: what is under way goes on.
func (b *Batch) Wait(ctx context.Context, done []Completion, least int) (int, error) {
	n := 0
	for {
		if err := b.Submit(ctx); err != nil {
			return n, err
		}
		b.collect(ctx)
		k := copy(done[n:], b.told)
		b.told = append(b.told[:0], b.told[k:]...)
		if n += k; n >= min(least, len(done)) && len(b.queued) == 0 || b.Len() == 0 {
			return n, nil
		}
		if len(b.queued) > 0 {
			continue // some are sent again
		}
		select {
		case <-b.signal:
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
	}
}

// collect takes what the loop has ended.
func (b *Batch) collect(ctx context.Context) {
	for _, i := range b.take() {
		b.settle(ctx, i)
	}
}

// take returns the ops that have ended since the last take. The slice is valid until the next one.
func (b *Batch) take() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.ready = b.ready, b.ended[:0]
	return b.ended
}

// settle makes a Completion of op i, whose request has ended, or queues it to be sent again.
func (b *Batch) settle(ctx context.Context, i int) {
	op := &b.ops[i]
	res, err := op.req.result, op.req.err
	op.s.requests.put(op.req)
	op.req = nil
	if resend, err := b.d.outcome(ctx, &op.piece, &res, err); resend {
		b.queued = append(b.queued, i)
	} else {
		b.end(i, err)
	}
}

// end makes a Completion of op i.
func (b *Batch) end(i int, err error) {
	op := &b.ops[i]
	if err != nil {
		err = b.d.failed(&op.piece, err)
	}
	if op.span >= 0 {
		b.d.spans.leave(op.span)
	}
	b.told = append(b.told, Completion{op.tag, err})
	*op = batchOp{}
	b.free = append(b.free, i)
}

// Close ends what is under way, as a context that ends does, and waits for that: all buffers are the caller's again.
// Completions that were not collected are lost.
func (b *Batch) Close() {
	for _, i := range b.queued {
		b.end(i, errClosed)
	}
	b.queued = b.queued[:0]
	open := 0
	for i := range b.ops {
		if r := b.ops[i].req; r != nil {
			_ = b.ops[i].s.post(letter{r, errClosed}) // if the loop is gone it has ended r
			open++
		}
	}
	for open > 0 {
		for _, i := range b.take() {
			b.ops[i].req = nil // its cancellation may still stand in the mailbox: not recycled
			if op := &b.ops[i]; op.write {
				b.d.leaves(op.s, op.off, int64(len(op.p)), errClosed)
			}
			b.end(i, errClosed)
			open--
		}
		if open > 0 {
			<-b.signal
		}
	}
	b.told = b.told[:0]
}
