package target

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goiser/goiser/iscsi"
)

// claim enters ses in the table of sessions and gives it a TSIH. If an older session has its key, that
// one is told to end, and wait is true: c gets itemRetry when it has.
func (s *Server) claim(ses *session, c *conn) (wait bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := ses.target
	switch {
	case s.closing:
		return false, refusal(iscsi.LoginServiceUnavail, "the server shuts down")
	case t != nil && t.same(s.targets[t.c.Name]) && s.targets[t.c.Name] != t:
		return false, refusal(iscsi.LoginServiceUnavail, "target %s has changed meanwhile", t.c.Name)
	case t != nil && s.targets[t.c.Name] != t:
		return false, refusal(iscsi.LoginNotFound, "target %s was removed", t.c.Name)
	}
	if t != nil {
		if old := s.byKey[ses.key]; old != nil {
			if !slices.Contains(old.waiters, c) {
				old.waiters = append(old.waiters, c)
			}
			old.failed = true
			old.tell(item{kind: itemClose, err: errReinstated})
			return true, nil
		}
	}
	if err := s.roomLocked(ses.initiator, c); err != nil {
		return false, err
	}
	for {
		s.lastTSIH++ // 0 means "no session yet" (RFC 7143, 11.12.6)
		if _, used := s.sessions[s.lastTSIH]; s.lastTSIH != 0 && !used {
			break
		}
	}
	ses.tsih = s.lastTSIH
	ses.members = []member{{c: c, entered: true}}
	s.sessions[ses.tsih] = ses
	if t != nil {
		s.byKey[ses.key] = ses
	}
	return false, nil
}

// release takes a session of which nothing is left out of the table.
func (s *Server) release(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[ses.tsih] == ses {
		var st Stats
		ses.stats.addTo(&st)
		s.ended.add(&st)
	}
	delete(s.sessions, ses.tsih)
	if s.byKey[ses.key] == ses {
		delete(s.byKey, ses.key)
	}
	for _, c := range ses.waiters {
		c.post(item{kind: itemRetry})
	}
	s.changed.Broadcast()
}

// live is the session of a TSIH, nil if there is none.
func (s *Server) live(tsih uint16) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[tsih]
}

// sessionsOfLocked lists the live sessions of a target.
func (s *Server) sessionsOfLocked(t *Target) []*session {
	var list []*session
	for _, ses := range s.sessions {
		if ses.target.same(t) {
			list = append(list, ses)
		}
	}
	return list
}

// admit takes up a connection that has not logged in. When there are MaxLogins of them one has to go: honest
// logins take milliseconds, and silent peers must not keep them out (LG-05 of the field reports). It is the oldest of
// the peer that has the most, so that one that floods us crowds out itself (SE-13). It returns false if the
// server shuts down, or if so many are still being closed that this one has to go at once.
func (s *Server) admit(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || len(s.conns) >= s.c.MaxSessions*maxConnections+2*s.c.MaxLogins {
		return false
	}
	for len(s.logins) >= s.c.MaxLogins {
		i := s.crowdingLocked(c.peerNet)
		s.logins[i].post(item{kind: itemClose, err: errCrowdedOut})
		s.logins = slices.Delete(s.logins, i, i+1)
	}
	s.logins = append(s.logins, c)
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	return true
}

// crowdingLocked is the index of the login that has to go for one from a peer.
func (s *Server) crowdingLocked(newcomer netip.Prefix) int {
	counts := map[netip.Prefix]int{newcomer: 1}
	most := 0
	for _, c := range s.logins {
		counts[c.peerNet]++
		most = max(most, counts[c.peerNet])
	}
	return slices.IndexFunc(s.logins, func(c *conn) bool { return counts[c.peerNet] == most })
}

// roomLocked refuses a session for which there is no room.
func (s *Server) roomLocked(initiator iscsi.Name, c *conn) error {
	if len(s.sessions) >= s.c.MaxSessions {
		return refusal(iscsi.LoginOutOfResources, "%d sessions already", len(s.sessions))
	}
	n := 0
	for _, ses := range s.sessions {
		if ses.initiator == initiator {
			n++
		}
	}
	if limit := s.c.MaxInitiatorSessions; limit > 0 && n >= limit {
		return refusal(iscsi.LoginOutOfResources, "%d sessions of %s already", n, initiator)
	}
	return s.peerRoomLocked(c)
}

// peerRoomLocked refuses a connection from an address that has enough.
func (s *Server) peerRoomLocked(c *conn) error {
	limit := s.c.MaxPeerConnections
	if limit <= 0 {
		return nil
	}
	n := 0
	for _, ses := range s.sessions {
		for _, m := range ses.members {
			if m.c != c && m.c.peerNet == c.peerNet {
				n++
			}
		}
	}
	if n >= limit {
		return refusal(iscsi.LoginOutOfResources, "%d connections from %v already", n, c.peerNet)
	}
	return nil
}

// entered notes that c is no pre-login connection any more.
func (s *Server) entered(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLoginLocked(c)
}

func (s *Server) forgetLoginLocked(c *conn) {
	if i := slices.Index(s.logins, c); i >= 0 {
		s.logins = slices.Delete(s.logins, i, i+1)
	}
}

// forget drops a connection that has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLoginLocked(c)
	delete(s.conns, c)
	for _, ses := range s.sessions {
		ses.waiters = slices.DeleteFunc(ses.waiters, func(w *conn) bool { return w == c })
	}
	s.changed.Broadcast()
}

// A limiter lets a few events through and then one a second: for log lines that any peer can cause.
type limiter struct {
	mu    sync.Mutex
	left  int
	since time.Time
}

const (
	limiterBurst    = 20
	limiterInterval = time.Second
)

func (l *limiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := int(now.Sub(l.since) / limiterInterval); n > 0 {
		l.left = min(limiterBurst, l.left+n)
		l.since = now
	}
	if l.left == 0 {
		return false
	}
	l.left--
	return true
}
