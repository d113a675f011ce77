package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// Pauses between attempts to open a lost session again.
const (
	firstReopenDelay = 50 * time.Millisecond
	maxReopenDelay   = 2 * time.Second
)

// A Connection is a session that is opened again, with the same options and ISID, when it is needed after it was lost.
// Its methods may be called from many goroutines.
//
// # What is sent again
//
// When a session is lost, what becomes of the commands of a Disk follows one rule: a command is sent again only if
// nobody can tell that from its having been sent once.
//
//   - A command that had not been sent yet is sent on the new session, whatever it is.
//   - Reads of blocks, of reservations and keys, and Flush: again. They change nothing.
//   - Writes, unmapping and zeroing, with Options.Exclusive: again. The old session may have carried them out or not,
//     once. It does so no more: the login with the same ISID has reinstated the session, which ends all of the old
//     one's tasks first (RFC 7143, 6.3.5). That holds for logins at the same portal group, so that an exclusive
//     connection takes no other. Between the first time and the second nobody else has changed those blocks: other
//     writes of the Disk that overlap wait, and for the rest of the world the caller has vouched with Exclusive.
//     Without it, another host's write in between would be lost.
//   - COMPARE AND WRITE and PERSISTENT RESERVE OUT: never, since the second time would answer differently. Nor
//     commands of Session.Do.
//
// What is not sent again ends with an *UnknownOutcomeError. The first successful command on the new session fences it.
//
// The unit must be the same: a Disk compares its designators (SPC-4, 7.8.6) and block size first, and everything fails
// with ErrOtherUnit where they differ.
//
// Flush answers for all writes that have been acknowledged. If one of them was on an older session, and the unit has a
// volatile cache, it may have lost that cache together with the session (by a restart): Flush then returns
// ErrCacheDoubtful, once.
type Connection struct {
	tr              Transport
	address, target string
	o               Options

	path    int // its index in Paths
	current atomic.Pointer[Session]
	turn    chan struct{} // holds a token while somebody opens a session
	buffers []*Buffer     // turn guards them
	closing context.Context
	close   context.CancelCauseFunc

	mu      sync.Mutex
	disks   map[iscsi.LUN]*Disk
	mourned uint64        // number of the session whose loss lost and delay are about
	lost    time.Time     // when there was last a session that had answered
	delay   time.Duration // before the next attempt
}

// Errors of a connection.
var (
	// ErrOtherUnit: where a Disk's logical unit was there is another one now.
	ErrOtherUnit = errors.New("another logical unit is there now")
	// ErrCacheDoubtful: writes were acknowledged on a session that was lost before they were flushed. They are on stable
	// storage unless the target has lost its cache; who is not sure writes again.
	ErrCacheDoubtful = errors.New("the session was lost between writes and their flush: they may not be on stable storage")
)

// An UnknownOutcomeError ends a command whose session was lost before the answer came: it was carried out as a whole, in
// part, or not at all.
type UnknownOutcomeError struct{ Err error }

func (e *UnknownOutcomeError) Error() string { return "outcome unknown: " + e.Err.Error() }

// Unwrap says why the session was lost.
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// A lostError ends a command because its session is over.
type lostError struct {
	err    error
	unsent bool // the target has never seen the command
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// Connect logs in as Open does. With Options.ReconnectTimeout the session is opened again when it was lost.
func Connect(ctx context.Context, tr Transport, address, target string, o Options) (*Connection, error) {
	o, err := o.withDefaults() // the ISID too: the new session is to replace the old one
	if err != nil {
		return nil, err
	}
	s, err := Open(ctx, tr, address, target, o)
	if err != nil {
		return nil, err
	}
	if o.Exclusive && s.group == "" {
		return nil, errors.Join(violation("no TargetPortalGroupTag: whether a new session ends the old one's tasks is not known"), s.Close())
	}
	c := &Connection{tr: tr, address: address, target: target, o: o, turn: make(chan struct{}, 1), disks: map[iscsi.LUN]*Disk{}}
	c.closing, c.close = context.WithCancelCause(context.Background())
	s.number = 1
	c.current.Store(s)
	return c, nil
}

// Session returns the session, opened again if need be, for commands of one's own. They are never sent again.
func (c *Connection) Session(ctx context.Context) (*Session, error) {
	if s := c.current.Load(); !s.over() {
		return s, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s := c.current.Load()
	if !s.over() {
		return s, nil // somebody was faster
	}
	switch {
	case c.closing.Err() != nil:
		return nil, errClosed
	case c.o.ReconnectTimeout == 0:
		return nil, s.err
	}
	return c.reopen(ctx, s)
}

// again is Session with one attempt, whatever ReconnectTimeout is.
func (c *Connection) again(ctx context.Context) (*Session, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	s := c.current.Load()
	if !s.over() {
		return s, nil
	}
	now, err := c.attempt(ctx, s)
	if err != nil {
		return nil, err
	}
	c.current.Store(now)
	return now, nil
}

// reopen logs in again, until the time for it is up. At least one attempt is made.
func (c *Connection) reopen(ctx context.Context, old *Session) (*Session, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(c.closing, func() { stop(errClosed) })()
	for first := true; ; first = false {
		delay, left := c.patience(old)
		s, err := (*Session)(nil), error(nil)
		if first && (delay == 0 || left <= 0) || pause(ctx, min(delay, left)) {
			s, err = c.attempt(ctx, old)
		} else {
			err = context.Cause(ctx)
		}
		switch {
		case err == nil:
			c.current.Store(s)
			return s, nil
		case c.closing.Err() != nil:
			return nil, errClosed
		}
		if _, left = c.patience(old); final(err) || left <= 0 || ctx.Err() != nil {
			return nil, fmt.Errorf("%w; not open again within %v: %w", old.err, c.o.ReconnectTimeout-left, err)
		}
		c.wait()
	}
}

// patience is how long to wait before the next attempt, and how much time is left for all of them. A session that has
// answered no command is no success: the pauses go on growing and the time running, or else a target that takes logins
// and then closes would be asked for ever, as fast as it can (field report RC-06).
func (c *Connection) patience(old *Session) (delay, left time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mourned != old.number {
		c.mourned = old.number
		if old.core.proved || c.lost.IsZero() {
			c.lost, c.delay = time.Now(), 0
		} else {
			c.delay = longer(c.delay)
		}
	}
	return c.delay, c.o.ReconnectTimeout - time.Since(c.lost)
}

// wait makes the next pause longer.
func (c *Connection) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = longer(c.delay)
}

func longer(d time.Duration) time.Duration { return min(max(2*d, firstReopenDelay), maxReopenDelay) }

// final reports whether a target that refuses a login will do so again.
func final(err error) bool {
	refused, ok := errors.AsType[*iscsi.LoginError](err)
	return ok && !refused.Status.Temporary()
}

// attempt is one login.
func (c *Connection) attempt(ctx context.Context, old *Session) (*Session, error) {
	s, err := Open(ctx, c.tr, c.address, c.target, c.o)
	if err != nil {
		return nil, err
	}
	if c.o.Exclusive && s.group != old.group {
		_ = s.Close() // the error says it all
		return nil, fmt.Errorf("the target's portal group is %s, it was %s: the old session's tasks may go on", s.group, old.group)
	}
	if err := c.adopt(ctx, s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.number, s.path = old.number+1, c.path
	if s.group != "" && s.group == old.group {
		old.fence()
	}
	return s, nil
}

// Close logs out. It returns when all goroutines have ended; an attempt to log in again is given up. The error is that
// of a session that was lost on the way out.
func (c *Connection) Close() error {
	c.close(errClosed)
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	s := c.current.Load()
	if s.over() {
		return nil
	}
	return s.Close()
}

// Disk is as Session.Disk, for a unit that outlives sessions. All calls for one LUN get the same Disk.
func (c *Connection) Disk(ctx context.Context, lun iscsi.LUN) (*Disk, error) {
	s, err := c.Session(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.Disk(ctx, lun)
	if err != nil {
		return nil, err
	}
	if d.identity, err = s.identity(ctx, lun); err == nil {
		d.volatile, err = s.volatileCache(ctx, lun)
	}
	if err != nil {
		return nil, fmt.Errorf("lun %s: identify: %w", lun, err)
	}
	d.s, d.c, d.renewing, d.flushing = nil, c, make(chan struct{}, 1), make(chan struct{}, 1)
	d.live.Store(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.disks[lun]; known != nil {
		return known, nil
	}
	c.disks[lun] = d
	return d, nil
}
