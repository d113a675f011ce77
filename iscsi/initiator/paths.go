package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// Bounds of paths.
const (
	maxPaths              = 8
	defaultPathsReconnect = 30 * time.Second
	surveyTimeout         = 5 * time.Second        // of looking at a unit through one path
	transitionDelay       = 250 * time.Millisecond // before looking again at paths of which none can be used
)

// ErrUnfenced is wrapped by errors of writes to blocks that an earlier write may still change: it was sent on a path that
// was lost, and nothing has ended it. See Paths.
var ErrUnfenced = errors.New("an earlier write may still be carried out through a path that was lost")

// A Path is one way to a target.
type Path struct {
	Transport Transport
	Address   string // host:port of a portal
	Target    string // iSCSI name
}

// Paths are sessions through several portals, to units that can be reached through each of them. A Disk of Paths has the
// methods of any other. It uses one path at a time: an optimized one where there is, by the unit's own word (ALUA; SPC-4,
// 5.16), else a non-optimized one, and the preferred or the earlier one of the list among equals. It takes another when
// the session is lost, or when the unit says that access states have changed (06/2A/06) or that the path gives no access
// (02/04/0A to 0C). A path that was lost is tried again until Close, and used again when it is the better one.
//
// A unit is the same through two paths if its designators are (SPC-4, 7.8.6); a path that leads to another one is never
// used. All paths have the same LUN for it.
//
// # What is sent again
//
// It is the rule of Connection: a command is sent again only if nobody can tell that from its having been sent once. What
// was refused for the access state was not executed, and is sent on the next path, whatever it is. Reads and Flush are
// sent on the next path at once. For writes the lost session has to be fenced first, so that what it left at the target
// cannot land on top of what is written since; and through another path we do not see what it left:
//
//   - The lost session is fenced by a login with its ISID at its portal group, which ends all of its tasks (session
//     reinstatement; RFC 7143, 6.3.5): at its own portal when that is back, or at the portal of another path that is of
//     the same target and portal group. Both are tried as soon as it is lost, and on.
//   - ABORT TASK SET, LOGICAL UNIT RESET and TARGET WARM RESET through another path fence nothing: they end the tasks that
//     the unit has, not a command that still waits in a socket, on the network or at a portal that we cannot reach, and
//     which is carried out when it arrives (SAM-5, 6.3.3). PERSISTENT RESERVE OUT with PREEMPT AND ABORT would, but the
//     reservation is the caller's.
//
// With Options.Exclusive a write that was under way waits for the fence, up to Options.ReconnectTimeout, and is sent
// again. Without Exclusive, or without fence, it ends with an *UnknownOutcomeError. Until the fence is there, other writes
// to the same blocks wait as long, and then fail with ErrUnfenced; all other blocks can be written at once. The same holds
// for writes that were given up (by a context), when the next one to their blocks would go through another path: if the
// session that they were sent on still lives it is closed, and the login that follows fences it.
//
// Flush answers for what was acknowledged through any path: after the SYNCHRONIZE CACHE, each session that has
// acknowledged a write since the last one must prove that it is still there. If it is not, and the unit has a volatile
// cache, the path's controller may have lost it: ErrCacheDoubtful, once.
//
// Reservations are of I_T nexuses: Register and its kin act for the path in use. Who keeps a reservation over a failover
// registers each path, by sessions of their own.
type Paths struct {
	o       Options
	paths   []*path
	closing context.Context
	close   context.CancelCauseFunc
	tending sync.WaitGroup

	mu    sync.Mutex
	disks map[iscsi.LUN]*Disk
	news  chan struct{} // closed, and replaced, when a path comes or goes
}

// A path is a Path with its session. Only its own goroutine logs in.
type path struct {
	Path
	o     Options
	index int
	c     atomic.Pointer[Connection] // nil until the first login
}

// session is the path's session that lives, or nil.
func (p *path) session() *Session {
	if c := p.c.Load(); c != nil {
		if s := c.current.Load(); !s.over() {
			return s
		}
	}
	return nil
}

// ConnectPaths logs in through up to eight paths. It returns when each has been tried; one must have succeeded, and the
// others are tried on. Options.ISID and its successors are those of the paths, since a session needs one of its own
// (RFC 7143, 4.4.3). A ReconnectTimeout of 0 means 30 s.
func ConnectPaths(ctx context.Context, o Options, paths ...Path) (*Paths, error) {
	if len(paths) < 1 || len(paths) > maxPaths {
		return nil, fmt.Errorf("%d paths: want 1 to %d", len(paths), maxPaths)
	}
	o.ReconnectTimeout = orElse(o.ReconnectTimeout, defaultPathsReconnect)
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Paths{o: o, disks: map[iscsi.LUN]*Disk{}, news: make(chan struct{})}
	m.closing, m.close = context.WithCancelCause(context.Background())
	errs := make([]error, len(paths))
	var first sync.WaitGroup
	for i, at := range paths {
		p := &path{Path: at, o: o, index: i}
		p.o.ReconnectTimeout = 0 // it is tend that logs in again
		p.o.ISID[5] += byte(i)
		m.paths = append(m.paths, p)
		first.Go(func() { _, errs[i] = p.open(ctx) })
	}
	first.Wait()
	if m.anyUp() {
		for _, p := range m.paths {
			m.tending.Go(func() { m.tend(p) })
		}
		return m, nil
	}
	return nil, errors.Join(append(errs, m.Close())...)
}

func (m *Paths) anyUp() bool {
	for _, p := range m.paths {
		if p.c.Load() != nil {
			return true
		}
	}
	return false
}

// open makes one attempt to have a session.
func (p *path) open(ctx context.Context) (*Session, error) {
	if c := p.c.Load(); c != nil {
		return c.again(ctx)
	}
	c, err := Connect(ctx, p.Transport, p.Address, p.Target, p.o)
	if err != nil {
		return nil, err
	}
	c.path = p.index
	s := c.current.Load()
	s.path = p.index
	p.c.Store(c)
	return s, nil
}

// tend keeps a path's session up until the paths are closed.
func (m *Paths) tend(p *path) {
	delay := time.Duration(0)
	for m.closing.Err() == nil {
		s, err := p.open(m.closing)
		if err != nil {
			m.fenceElsewhere(p)
			if delay = longer(delay); m.closing.Err() == nil {
				p.o.Log.WithFields(logrus.Fields{"target": p.Target, "err": err}).Infof("path %s is down", p.Address)
			}
			pause(m.closing, delay)
			continue
		}
		m.tell(true)
		select {
		case <-s.done:
		case <-m.closing.Done():
			return
		}
		m.tell(false)
		if s.core.proved {
			delay = 0
		} else if delay = longer(delay); !pause(m.closing, delay) { // a login alone is no success (field report RC-06)
			return
		}
	}
}

// fenceElsewhere ends what a lost session of p has left at the target, by a login at the portal of another path to the
// same portal group.
func (m *Paths) fenceElsewhere(p *path) {
	c := p.c.Load()
	if c == nil {
		return
	}
	old := c.current.Load()
	for _, q := range m.paths {
		s := q.session()
		if old.isFenced() || q == p || s == nil || q.Target != p.Target || s.group == "" || s.group != old.group {
			continue
		}
		now, err := Open(m.closing, q.Transport, q.Address, p.Target, p.o)
		if err != nil {
			continue
		}
		if now.group == old.group {
			old.fence()
		}
		_ = now.Close() // what it was for is done
	}
}

// tell wakes those who wait for a path; come says that there is one more to look at.
func (m *Paths) tell(come bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.news)
	m.news = make(chan struct{})
	if come {
		for _, d := range m.disks {
			d.stale.Store(true)
		}
	}
}

func (m *Paths) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.news
}

// Close logs out everywhere. It returns when all goroutines have ended. The error is that of sessions that were lost on
// the way out.
func (m *Paths) Close() error {
	m.close(errClosed)
	m.tending.Wait()
	var errs []error
	for _, p := range m.paths {
		if c := p.c.Load(); c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Disk is as Session.Disk, for a unit that outlives sessions. All calls for one LUN get the same Disk.
func (m *Paths) Disk(ctx context.Context, lun iscsi.LUN) (*Disk, error) {
	d := &Disk{
		paths: m, lun: lun, routes: make([]route, len(m.paths)),
		renewing: make(chan struct{}, 1), flushing: make(chan struct{}, 1),
	}
	if _, err := d.renew(ctx); err != nil {
		return nil, fmt.Errorf("lun %s: %w", lun, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.disks[lun]; known != nil {
		return known, nil
	}
	d.stale.Store(true) // a path may have come that did not know of d
	m.disks[lun] = d
	return d, nil
}
