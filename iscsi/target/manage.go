package target

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/scsi"
)

// What an administrator changes while sessions are at work. A Target does not change: another version of it
// takes its place, so that a login sees either all of the old or all of the new one. A login that has begun
// with the old one is refused at its end, in a way that makes initiators try again; sessions stay, but for those that
// the new one would not have let in, or would have given other rights.

// Why sessions are closed by an administrator.
var (
	errByAdministrator = errors.New("closed by the administrator")
	errRightsChanged   = errors.New("the initiator's rights on the target have changed")
	errPortalRemoved   = errors.New("portal removed")
)

// A node is what all versions of a target have in common.
type node struct{ _ byte }

// same reports whether t and o are versions of one target.
func (t *Target) same(o *Target) bool { return t == o || t != nil && o != nil && t.node == o.node }

// UpdateTarget puts other settings in force for the target with c's name; c.Device must be the one that it has.
// Sessions that it would not let in any more, or would give other rights (Excluded), are closed; it returns when they
// have ended, or with ctx's error: then they have been told, and will end when their stores answer.
func (s *Server) UpdateTarget(ctx context.Context, c TargetConfig) error {
	t, err := newTarget(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.targets[t.c.Name]
	switch {
	case old == nil:
		return fmt.Errorf("target %s: %w", t.c.Name, ErrNoTarget)
	case old.c.Device != c.Device:
		return fmt.Errorf("target %s: another device", t.c.Name)
	}
	t.node = old.node
	s.targets[t.c.Name] = t
	return s.endLocked(ctx, s.excludedLocked(t), errRightsChanged)
}

// Excluded lists the sessions, by TSIH, that UpdateTarget with the same c would close.
func (s *Server) Excluded(c TargetConfig) ([]uint16, error) {
	t, err := newTarget(c)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.targets[t.c.Name]
	if old == nil {
		return nil, fmt.Errorf("target %s: %w", t.c.Name, ErrNoTarget)
	}
	t.node = old.node
	var list []uint16
	for _, ses := range s.excludedLocked(t) {
		list = append(list, ses.tsih)
	}
	slices.Sort(list)
	return list, nil
}

func (s *Server) excludedLocked(t *Target) []*session {
	return slices.DeleteFunc(s.sessionsOfLocked(t), t.keeps)
}

// keeps reports whether a session of an older version of t would be the same if it logged in now. What it had to
// prove is no part of that, nor what it has negotiated. The server's lock is held.
func (t *Target) keeps(ses *session) bool {
	if len(ses.members) == 0 {
		return false // it ends
	}
	for _, m := range ses.members {
		if !t.rights.allow(ses.initiator, addrOf(m.c.dm.RemoteAddr())) {
			return false
		}
	}
	was, is := ses.target.rights.of(ses.initiator), t.rights.of(ses.initiator)
	return t.servedIn(ses.key.tag) && t.moved(ses.key.tag) == nil && was.ReadOnly == is.ReadOnly &&
		(was.LUNs == nil) == (is.LUNs == nil) && slices.Equal(was.LUNs, is.LUNs)
}

// CloseSessions closes the sessions with the TSIHs, those of them that there are, and returns when they have ended, or with
// ctx's error. Initiators may log in again at once.
func (s *Server) CloseSessions(ctx context.Context, ids ...uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*session
	for _, id := range ids {
		if ses := s.sessions[id]; ses != nil {
			list = append(list, ses)
		}
	}
	return s.endLocked(ctx, list, errByAdministrator)
}

// SetDiscovery says what initiators have to prove for a discovery session from now on, and whether there are any (see
// Config).
func (s *Server) SetDiscovery(c *chap.Credentials, none bool) error {
	if err := checkAuth(c); err != nil {
		return fmt.Errorf("discovery: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discovery, s.noDiscovery = c, none
	return nil
}

// discoveryRules are what SetDiscovery has said last.
func (s *Server) discoveryRules() (c *chap.Credentials, none bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discovery, s.noDiscovery
}

// RemovePortal stops to accept on a listener that Serve was given, closes its connections, and with them their
// sessions, and then it. When ctx ends it does not wait for them to end any more, and gives ctx's error; the listener
// is closed all the same.
func (s *Server) RemovePortal(ctx context.Context, l iscsi.Listener) error {
	p := s.unlistPortal(l)
	if p == nil {
		return fmt.Errorf("portal %v: not served", l.Addr())
	}
	p.cancel()
	<-p.done
	return errors.Join(s.emptyPortal(ctx, p), l.Close())
}

func (s *Server) unlistPortal(l iscsi.Listener) *portal {
	s.setup.Lock() // nobody registers memory with it meanwhile
	defer s.setup.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.portals, func(p *portal) bool { return p.listener == l })
	if i < 0 {
		return nil
	}
	p := s.portals[i]
	s.portals = slices.Delete(s.portals, i, i+1)
	return p
}

// emptyPortal closes the connections of a portal that takes no more.
func (s *Server) emptyPortal(ctx context.Context, p *portal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := func() (n int) {
		for c := range s.conns {
			if c.portal == p {
				c.post(item{kind: itemClose, err: errPortalRemoved})
				n++
			}
		}
		return n
	}
	return s.awaitLocked(ctx, func() bool { return left() == 0 })
}

// OnPortal lists the sessions, by TSIH, with a connection that has come to a listener.
func (s *Server) OnPortal(l iscsi.Listener) []uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []uint16
	for id, ses := range s.sessions {
		if slices.ContainsFunc(ses.members, func(m member) bool { return m.c.portal.listener == l }) {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// UsingLUN lists the sessions, by TSIH, of the target on a device for which a unit would be there.
func (s *Server) UsingLUN(d *scsi.Device, number int) []uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []uint16
	for id, ses := range s.sessions {
		if ses.target == nil || ses.target.c.Device != d {
			continue
		}
		if luns := ses.target.rights.of(ses.initiator).LUNs; luns == nil || slices.Contains(luns, number) {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// endLocked closes sessions because of err, and waits for their end.
func (s *Server) endLocked(ctx context.Context, list []*session, err error) error {
	return s.awaitLocked(ctx, func() bool {
		list = slices.DeleteFunc(list, func(ses *session) bool { return s.sessions[ses.tsih] != ses })
		for _, ses := range list {
			ses.tell(item{kind: itemClose, err: err})
		}
		return len(list) == 0
	})
}

// awaitLocked waits until done says so, which is asked whenever a connection or session has gone, or until ctx ends.
func (s *Server) awaitLocked(ctx context.Context, done func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	for !done() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for sessions to end: %w", err)
		}
		s.changed.Wait()
	}
	return nil
}

// portalOf is the address that a session's oldest connection has come to. The server's lock is held.
func portalOf(ses *session) string {
	if len(ses.members) == 0 {
		return ""
	}
	return ses.members[0].c.portal.listener.Addr().String()
}
