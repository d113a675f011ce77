package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
)

// A replayRule says what becomes of a command that was sent on a session that was then lost: see Connection.
type replayRule uint8

const (
	replayNever     replayRule = iota
	replayExclusive            // if nobody else writes there
	replayAlways
)

// use is the session for d's next command.
func (d *Disk) use(ctx context.Context) (*Session, error) {
	if d.c == nil && d.paths == nil {
		return d.s, nil
	}
	if s := d.live.Load(); !s.over() && !d.stale.Load() {
		return s, nil
	}
	return d.renew(ctx)
}

// renew finds the unit again on the connection's next session.
func (d *Disk) renew(ctx context.Context) (*Session, error) {
	select {
	case d.renewing <- struct{}{}:
		defer func() { <-d.renewing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if d.paths != nil {
		return d.pick(ctx)
	}
	for d.stale.Store(false); ; {
		if s := d.live.Load(); !s.over() {
			return s, nil
		}
		s, err := d.c.Session(ctx)
		if err != nil {
			return nil, err
		}
		err = d.recognise(ctx, s)
		if err == nil {
			d.live.Store(s)
			return s, nil
		}
		if _, lost := errors.AsType[*lostError](err); !lost {
			return nil, err
		}
		if e := s.ending(ctx); e != nil {
			return nil, e
		}
		if _, left := d.c.patience(s); left <= 0 {
			return nil, err
		}
	}
}

// recognise makes sure that the unit is the one that d was opened for.
func (d *Disk) recognise(ctx context.Context, s *Session) error {
	now, err := s.Disk(ctx, d.lun)
	if err != nil {
		return err
	}
	id, err := s.identity(ctx, d.lun)
	if err != nil {
		return err
	}
	if len(id) == 0 || !bytes.Equal(id, d.identity) || now.blockSize != d.blockSize || now.blocks.Load() < d.blocks.Load() {
		return fmt.Errorf("lun %s: %d blocks of %d bytes, designators %x, were %d of %d, %x: %w",
			d.lun, now.blocks.Load(), now.blockSize, id, d.blocks.Load(), d.blockSize, d.identity, ErrOtherUnit)
	}
	d.blocks.Store(now.blocks.Load()) // it may have grown
	return nil
}

// judgeLoss says what becomes of a command that ended with err on s; nil: send it again.
func (d *Disk) judgeLoss(ctx context.Context, s *Session, r replayRule, err error) error {
	o, closing := d.lasting()
	if o == nil || o.ReconnectTimeout == 0 || closing.Err() != nil {
		return err
	}
	lost, ok := errors.AsType[*lostError](err)
	if !ok {
		return err
	}
	again := lost.unsent || r == replayAlways || r == replayExclusive && o.Exclusive
	if !again {
		return &UnknownOutcomeError{err}
	}
	free := lost.unsent || r == replayAlways
	e := s.ending(ctx)
	if e == nil && d.paths != nil && !free {
		e = d.awaitFence(ctx, s)
	}
	switch {
	case e == nil || free:
		return e
	}
	return &UnknownOutcomeError{errors.Join(err, e)}
}

// lasting are the options of a disk that outlives sessions, and what ends when it is closed; nil for others.
func (d *Disk) lasting() (*Options, context.Context) {
	switch {
	case d.c != nil:
		return &d.c.o, d.c.closing
	case d.paths != nil:
		return &d.paths.o, d.paths.closing
	}
	return nil, nil
}

// run does a command on d's session, and again on the next one as its rule has it. at are the blocks that it changes.
func (d *Disk) run(ctx context.Context, r replayRule, at span, do func(*Session) error) error {
	unknown := false // it was sent before
	var again retry
	for {
		s, err := d.use(ctx)
		if err != nil {
			return doubted(unknown, err)
		}
		if err = d.unless(ctx, s, at.off, at.end-at.off); err != nil {
			return doubted(unknown, err)
		}
		if err = do(s); err == nil {
			if r == replayExclusive {
				d.acknowledged(s)
			}
			return nil
		}
		if d.moved(ctx, &again, err) {
			continue
		}
		if lost, ok := errors.AsType[*lostError](err); ok && !lost.unsent && r != replayAlways {
			unknown = true
		}
		if err = d.judgeLoss(ctx, s, r, err); err != nil {
			d.leaves(s, at.off, at.end-at.off, err)
			return doubted(unknown, err)
		}
	}
}

// doubted is the error of a command whose outcome on an earlier session is unknown.
func doubted(unknown bool, err error) error {
	if _, already := errors.AsType[*UnknownOutcomeError](err); unknown && !already {
		return &UnknownOutcomeError{err}
	}
	return err
}

// order runs a command with data for the unit, or none. at are the blocks that it changes.
func (d *Disk) order(ctx context.Context, r replayRule, at span, cdb, out []byte) error {
	return d.run(ctx, r, at, func(s *Session) error { return s.order(ctx, d, cdb, out) })
}

// acknowledged notes that a write has succeeded on a session.
func (d *Disk) acknowledged(s *Session) {
	if d.c != nil || d.paths != nil {
		d.owe(s.path, s.number)
	}
}

// owe notes that a write on the numbered session of a path is to be flushed.
func (d *Disk) owe(path int, number uint64) {
	for dirty := &d.dirty[path]; ; {
		oldest := dirty.Load()
		if oldest != 0 && oldest <= number || dirty.CompareAndSwap(oldest, number) {
			return
		}
	}
}

// flush sends SYNCHRONIZE CACHE, and says whether it was for all that has been acknowledged: see Connection. One runs at
// a time: a second must not find clean what the first has not flushed yet.
func (d *Disk) flush(ctx context.Context) error {
	cdb := []byte{opSynchronizeCache10, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if d.c == nil && d.paths == nil {
		return d.s.order(ctx, d, cdb, nil)
	}
	select {
	case d.flushing <- struct{}{}:
		defer func() { <-d.flushing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var oldest [maxPaths]uint64
	for i := range oldest {
		oldest[i] = d.dirty[i].Swap(0)
	}
	var on *Session
	err := d.run(ctx, replayAlways, span{}, func(s *Session) error { on = s; return s.order(ctx, d, cdb, nil) })
	if err != nil {
		for i, n := range oldest {
			if n != 0 {
				d.owe(i, n) // still to be flushed
			}
		}
		return err
	}
	for i, n := range oldest {
		if d.volatile && n != 0 && !d.outlived(ctx, i, n, on) {
			err = ErrCacheDoubtful
		}
	}
	return err
}

// outlived reports whether the numbered session of a path has outlived a flush on another one, or is that one.
func (d *Disk) outlived(ctx context.Context, path int, number uint64, on *Session) bool {
	if on.path == path {
		return on.number == number
	}
	s := d.paths.paths[path].session()
	if s == nil || s.number != number {
		return false
	}
	_, err := s.Ping(ctx)
	return err == nil
}

// over reports whether the session has ended.
func (s *Session) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// ending waits for the end of a session that takes no commands any more: the target may let others end first.
func (s *Session) ending(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Designators of the Device Identification page (SPC-4, 7.8.6).
const (
	pageIdentification = 0x83
	associationMask    = 0x30
	associationUnit    = 0x00
)

// identity is the list of a unit's own designators; those of ports differ from session to session. A unit that has none
// cannot be told from another.
func (s *Session) identity(ctx context.Context, lun iscsi.LUN) ([]byte, error) {
	page, err := s.Inquiry(ctx, lun, true, pageIdentification)
	if isStatus(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return unitDesignators(page), nil
}

func unitDesignators(page []byte) (id []byte) {
	eachDesignator(page, func(b []byte) {
		if b[1]&associationMask == associationUnit {
			id = append(id, b...)
		}
	})
	return id
}

// volatileCache reads WCE of the Caching mode page (SBC-3, 6.4.5). A unit that does not tell may have a cache.
func (s *Session) volatileCache(ctx context.Context, lun iscsi.LUN) (bool, error) {
	const room = 4 + 2 + 18
	b, err := s.attentive(ctx, lun, nil, []byte{opModeSense6, 0x08, 0x08, 0, room, 0}, room) // DBD: no block descriptor
	if isStatus(err) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	if len(b) < 7 || b[3] != 0 || b[4]&0x3f != 0x08 {
		return true, nil
	}
	return b[6]&0x04 != 0, nil
}
