package initiator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// A route is a path as a disk knows it. Who holds Disk.renewing looks at it.
type route struct {
	of        *Session // whom the rest was learned of
	identity  []byte
	group     uint16
	tpgs      uint8 // 0: access states are not told
	state     AccessState
	preferred bool
	err       error // why it cannot be used
}

// A PathState is what a Disk knows of one of its paths, since it last had to choose.
type PathState struct {
	Address string
	State   AccessState // if Err is nil
	InUse   bool
	Err     error // why nothing is known of it, or that it leads to another unit
}

// PathStates tells of the paths of a disk of Paths, in their order; nil for other disks.
func (d *Disk) PathStates() []PathState {
	if list := d.seen.Load(); list != nil {
		return slices.Clone(*list)
	}
	return nil
}

// pick chooses the path for d's commands. Who calls it holds d.renewing.
func (d *Disk) pick(ctx context.Context) (*Session, error) {
	m := d.paths
	for {
		if s := d.live.Load(); s != nil && !s.over() && !d.stale.Load() {
			return s, nil // somebody was faster
		}
		d.stale.Store(false) // before looking: what changes from now on is seen the next time
		news := m.next()
		s, err := d.best(ctx)
		if err == nil {
			d.without = time.Time{}
			d.live.Store(s)
			d.report(s)
			return s, nil
		}
		d.report(nil)
		if d.without.IsZero() {
			d.without = time.Now()
		}
		left := m.o.ReconnectTimeout - time.Since(d.without)
		d.stale.Store(true)
		switch {
		case m.closing.Err() != nil:
			return nil, errClosed
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case left <= 0: // then each call looks once
			return nil, fmt.Errorf("no path can be used within %v: %w", m.o.ReconnectTimeout, err)
		}
		t := time.NewTimer(min(left, transitionDelay))
		select {
		case <-news:
		case <-t.C:
		case <-ctx.Done():
		case <-m.closing.Done():
		}
		t.Stop()
	}
}

// report keeps what PathStates tells.
func (d *Disk) report(used *Session) {
	list := make([]PathState, len(d.routes))
	for i := range d.routes {
		r := &d.routes[i]
		list[i] = PathState{Address: d.paths.paths[i].Address, State: r.state, InUse: used != nil && r.of == used, Err: r.err}
	}
	d.seen.Store(&list)
}

// best looks at all paths and opens the unit through the best one.
func (d *Disk) best(ctx context.Context) (*Session, error) {
	d.survey(ctx)
	now := d.live.Load()
	var order []*route
	for i := range d.routes {
		if r := &d.routes[i]; r.err == nil && r.state.usable() {
			order = append(order, r)
		}
	}
	slices.SortStableFunc(order, func(a, b *route) int { return cmp.Compare(a.rank(now), b.rank(now)) })
	for _, r := range order {
		if r.err = d.enter(ctx, r.of); r.err == nil {
			if r.of != now {
				r.of.log.WithFields(logrus.Fields{"lun": d.lun}).Infof("path %d is used, %s", r.of.path, r.state)
			}
			return r.of, nil
		}
	}
	return nil, d.refusals(ctx)
}

// rank orders routes, the best one lowest: by state, then the preferred one, then the one in use.
func (r *route) rank(now *Session) int {
	n := int(r.state) * 4
	if !r.preferred {
		n += 2
	}
	if r.of != now {
		n++
	}
	return n
}

// refusals says why no path can be used. Where the caller has asked for that, one that gives no access is made to.
func (d *Disk) refusals(ctx context.Context) error {
	var errs []error
	asked := !d.paths.o.SetAccess
	for i := range d.routes {
		r := &d.routes[i]
		err := r.err
		if err == nil {
			err = errors.New(r.state.String())
			if !asked && r.tpgs&aluaExplicit != 0 {
				if e := r.of.setAccess(ctx, d, r.group); e != nil {
					err = fmt.Errorf("%w: %w", err, e)
				} else {
					asked = true // the next look shows what came of it
				}
			}
		}
		errs = append(errs, fmt.Errorf("path %s: %w", d.paths.paths[i].Address, err))
	}
	return errors.Join(errs...)
}

// survey learns the state of each path, all at a time: one that does not answer keeps nobody waiting for long.
func (d *Disk) survey(ctx context.Context) {
	ctx, stop := context.WithTimeoutCause(ctx, surveyTimeout, late(surveyTimeout))
	defer stop()
	var all sync.WaitGroup
	for i, p := range d.paths.paths {
		r := &d.routes[i]
		s := p.session()
		if s == nil {
			r.err = errors.New("no session")
			continue
		}
		all.Go(func() { r.err = d.look(ctx, r, s) })
	}
	all.Wait()
	for i := range d.routes {
		r := &d.routes[i]
		if r.err != nil {
			continue
		}
		if d.identity == nil {
			d.identity = r.identity
		}
		if len(r.identity) == 0 || !bytes.Equal(r.identity, d.identity) {
			r.err = fmt.Errorf("designators %x, want %x: %w", r.identity, d.identity, ErrOtherUnit)
		}
	}
}

// look asks through one path who the unit is and what access it gives.
func (d *Disk) look(ctx context.Context, r *route, s *Session) error {
	if r.of != s {
		page, err := s.Inquiry(ctx, d.lun, true, pageIdentification)
		if err != nil {
			return err
		}
		now := route{of: s, identity: unitDesignators(page)}
		told := false
		if now.tpgs, err = s.tpgs(ctx, d.lun); err != nil {
			return err
		}
		if now.group, told = portGroup(page); !told {
			now.tpgs = 0
		}
		*r = now
	}
	if r.tpgs == 0 {
		return nil
	}
	var err error
	r.state, r.preferred, err = s.access(ctx, d, r.group)
	return err
}

// enter opens the unit on s: the first time for what there is to know of it, then to see that this is still so.
func (d *Disk) enter(ctx context.Context, s *Session) error {
	switch {
	case s == d.live.Load():
		return nil
	case d.blockSize != 0:
		return d.recognise(ctx, s)
	}
	now, err := s.Disk(ctx, d.lun)
	if err != nil {
		return err
	}
	if d.volatile, err = s.volatileCache(ctx, d.lun); err != nil {
		return err
	}
	d.blocks.Store(now.blocks.Load())
	d.blockSize, d.piece, d.readOnly, d.fua, d.limits = now.blockSize, now.piece, now.readOnly, now.fua, now.limits
	return nil
}

// moved reports whether a command that ended with err is to be sent again, since the path gave no access and it was not
// executed (SPC-4, 5.16.2). A disk with one path waits for the end of a transition.
func (d *Disk) moved(ctx context.Context, r *retry, err error) bool {
	st, ok := errors.AsType[*StatusError](err)
	if !ok || st.Status != statusCheckCondition || st.Key != keyNotReady || st.ASC != 0x04 {
		return false
	}
	switch st.ASCQ {
	case 0x0a, 0x0b, 0x0c, 0x12: // in transition, standby, unavailable, offline
	default:
		return false
	}
	if d.paths == nil && st.ASCQ != 0x0a || r.moves == maxMoves {
		return false
	}
	r.moves++
	d.stale.Store(true)
	return d.paths != nil || pause(ctx, notReadyDelay)
}

// awaitFence waits until nothing of a session that was lost can change the medium any more: see Paths.
func (d *Disk) awaitFence(ctx context.Context, s *Session) error {
	t := time.NewTimer(d.paths.o.ReconnectTimeout)
	defer t.Stop()
	select {
	case <-s.fenced:
		return nil
	case <-t.C:
		return ErrUnfenced
	case <-d.paths.closing.Done():
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fence notes that nothing of the session, which is over, is carried out any more.
func (s *Session) fence() { s.fencing.Do(func() { close(s.fenced) }) }

func (s *Session) isFenced() bool {
	select {
	case <-s.fenced:
		return true
	default:
		return false
	}
}
