package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
)

// options are how a change is made.
type options struct {
	force  bool // sessions may lose what they use
	shrink bool // stores may become smaller
	dryRun bool // only say what would be done
	save   bool // write the file afterwards
}

// An undo takes one change back. It is nil for what cannot be taken back, or has left nothing.
type undo func(context.Context) error

// A brokenError is a change that has failed and could not be taken back whole.
type brokenError struct{ cause, left error }

func (e *brokenError) Error() string {
	return fmt.Sprintf("%v; and not all that had been changed before could be changed back: %v", e.cause, e.left)
}
func (e *brokenError) Unwrap() []error { return []error{e.cause, e.left} }

// apply makes changes, in their order. If one fails those before it are taken back, the last one first, and the error
// is that one's; if even that fails it is a brokenError. A store that cannot be closed at the end is only told of: it
// has gone, and nothing would come back by taking back the rest.
func (s *service) apply(ctx context.Context, changes []change, o options) error {
	if err := s.check(changes, o); err != nil {
		return err
	}
	var done []undo
	for _, c := range changes {
		u, err := s.perform(ctx, c)
		if c.op == opDropStore {
			if err != nil {
				s.log.WithField("err", err).Warnf("%v", c)
			}
			continue
		}
		if u != nil {
			done = append(done, u)
		}
		if err != nil {
			return s.takeBack(err, done)
		}
	}
	return nil
}

// takeBack undoes changes because of an error. It has its own time: that of the changes may be used up.
func (s *service) takeBack(cause error, done []undo) error {
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	var errs []error
	for i := len(done) - 1; i >= 0; i-- {
		if err := done[i](ctx); err != nil {
			errs = append(errs, err)
		}
	}
	if left := errors.Join(errs...); left != nil {
		return &brokenError{cause, left}
	}
	return cause
}

// check finds what is bound to fail, or may not be, before anything is changed.
func (s *service) check(changes []change, o options) error {
	for _, c := range changes {
		if c.op != opResize {
			continue
		}
		st := s.stores[c.store.Name]
		size, err := backstore.ParseSize(c.store.Options["size"])
		if err != nil {
			return fmt.Errorf("backstore %s: %w", c.store.Name, err)
		}
		if _, ok := st.Store.(backstore.Resizer); !ok {
			return fmt.Errorf("backstore %s: a %s store cannot change its size while it is open: %w", c.store.Name, c.store.Type, errFixed)
		}
		if now := st.Info().SizeBytes; size < now && !o.shrink {
			return fmt.Errorf("backstore %s: %w", c.store.Name, &shrinkError{now, size})
		}
	}
	return nil
}

// A shrinkError is a size that would drop blocks. Both are bytes.
type shrinkError struct{ is, wanted int64 }

func (e *shrinkError) Error() string {
	return fmt.Sprintf("it has %d bytes; %d would drop what lies behind", e.is, e.wanted)
}

// A loss is what sessions lose by a change.
type loss struct {
	sessions []uint16 // TSIHs
	closes   bool     // they are closed; else a disk of theirs goes away or becomes smaller
}

// losses says whom a change concerns.
func (s *service) losses(c change) loss {
	switch c.op {
	case opRemoveTarget:
		return loss{s.sessionsOf(c.target.Name), true}
	case opChangeTarget:
		if c.target.Disabled {
			return loss{s.sessionsOf(c.target.Name), true}
		}
		t := s.targets[c.target.Name]
		if t == nil || t.conf.Disabled {
			return loss{}
		}
		list, _ := s.server.Excluded(targetConfig(&c.target, t.dev))
		return loss{list, true}
	case opRemovePortal:
		var list []uint16
		if p := s.portal(c.portal); p != nil {
			for _, l := range p.listeners[:p.accepting] {
				list = append(list, s.server.OnPortal(l)...)
			}
		}
		return loss{list, true}
	case opRemoveLUN:
		if t := s.targets[c.target.Name]; t != nil {
			return loss{s.server.UsingLUN(t.dev, c.lun.Number), false}
		}
	case opResize:
		return s.shrinkLoss(c)
	}
	return loss{}
}

// shrinkLoss is who uses a store that becomes smaller.
func (s *service) shrinkLoss(c change) loss {
	st := s.stores[c.store.Name]
	size, err := backstore.ParseSize(c.store.Options["size"])
	if err != nil || st == nil || size >= st.Info().SizeBytes {
		return loss{}
	}
	var list []uint16
	for _, u := range s.unitsOn(c.store.Name) {
		list = append(list, s.server.UsingLUN(u.dev, u.number)...)
	}
	return loss{list, false}
}

func (s *service) sessionsOf(name iscsi.Name) (list []uint16) {
	for _, ses := range s.server.Sessions() {
		if ses.Target == string(name) {
			list = append(list, ses.TSIH)
		}
	}
	return list
}
