package cm

import (
	"errors"
	"net/netip"
)

// servicePort is the TCP port that a REQ is for.
func servicePort(r *REQ) uint16 { return uint16(r.ServiceID) }

// ServiceID names a TCP port (IBTA A11.2).
func ServiceID(port uint16) uint64 { return tcpPortSpace + uint64(port) }

// onREQ is a request for a connection.
func (m *Manager) onREQ(from netip.Addr, tid uint64, body []byte) {
	var r REQ
	err := r.Parse(body)
	if errors.Is(err, ErrShort) {
		m.c.Malformed++
		return
	}
	if c := m.byPeer[peerID{from, r.GUID, r.LocalID}]; c != nil {
		m.duplicate(c, tid)
		return
	}
	if reason := m.judge(from, &r, err); reason != 0 {
		m.c.Refused++
		m.sendREJ(from, tid, &REJ{RemoteID: r.LocalID, About: AboutREQ, Reason: reason})
		return
	}
	if m.flooded(from, servicePort(&r)) {
		m.c.Flooded++
		return
	}
	c := &Conn{Peer: from, REQ: r, transaction: tid}
	m.add(c)
	m.meet(c, r.GUID, r.LocalID, r.QPN)
	m.set(c, requested)
	m.do(Action{Kind: NewRequest, Conn: c})
}

// judge finds the reason to refuse a request without asking anybody, 0 for none (IBTA 12.6.7.2). bad is what was
// wrong with its RDMA CM header.
func (m *Manager) judge(from netip.Addr, r *REQ, bad error) Reason {
	switch {
	case r.ServiceID&^0xffff != tcpPortSpace || m.listening[servicePort(r)] == nil:
		return ReasonInvalidService
	case r.Transport != 0:
		return ReasonTransport
	case bad != nil:
		return ReasonUnsupported
	case r.SrcAddr.Unmap() != from.WithZone(""): // whoever says it is somebody else
		return ReasonInvalidGID
	case MTUSize(r.MTU) == 0 || MTUSize(r.MTU) > m.cfg.MTU(from): // both ends must use the one the REQ names
		return ReasonInvalidMTU
	case r.QPN <= 1: // those are not a connection's (IBTA 3.9)
		return ReasonNoQP
	case len(m.conns)-len(m.waiting) >= MaxConns:
		return ReasonNoResources
	}
	return 0
}

// flooded reports whether a port or an address has as many half-open requests as it may.
func (m *Manager) flooded(from netip.Addr, port uint16) bool {
	return *m.listening[port] >= MaxHalfOpen || m.halfOpen[from] >= MaxHalfOpenPeer
}

// duplicate is a REQ that has come before: its answer is given again, or it is asked to wait for one.
func (m *Manager) duplicate(c *Conn, tid uint64) {
	m.c.Duplicates++
	switch {
	case c.hasAnswer:
		m.c.Repeated++
		m.send(c)
	case c.state == requested:
		var mad [MADSize]byte
		(&MRA{LocalID: c.id, RemoteID: c.peerID, About: AboutREQ, ServiceTimeout: serviceCode}).Put(&mad, tid)
		m.sendMAD(c.Peer, mad)
	}
}

func (m *Manager) accept(c *Conn, r REP) {
	if c.state != requested {
		return
	}
	c.REP = r
	c.REP.LocalID, c.REP.RemoteID, c.REP.GUID, c.REP.RNRRetry = c.id, c.peerID, m.cfg.GUID, infinite
	c.REP.Put(&c.mad, c.transaction)
	c.hasAnswer = true
	m.begin(c, repSent, min(max(1, int(c.REQ.MaxRetries)), replyTries))
}

func (m *Manager) reject(c *Conn, reason Reason, private []byte) {
	if c.state != requested {
		return
	}
	r := REJ{LocalID: c.id, RemoteID: c.peerID, About: AboutREQ, Reason: reason}
	copy(r.Private[:], private)
	r.Put(&c.mad, c.transaction)
	c.hasAnswer = true
	m.send(c)
	m.wait(c)
}

// onRTU is the end of the handshake.
func (m *Manager) onRTU(from netip.Addr, body []byte) {
	var r RTU
	if r.Parse(body) != nil {
		m.c.Malformed++
		return
	}
	c := m.find(from, r.RemoteID)
	if c == nil || c.active || c.peerID != r.LocalID {
		m.c.Dropped++
		return
	}
	m.confirm(c)
}

// confirm establishes a connection that was granted.
func (m *Manager) confirm(c *Conn) {
	if c.state != repSent {
		return
	}
	m.set(c, established)
	m.do(Action{Kind: Confirmed, Conn: c})
}

// MTUSize is the path MTU of a code in bytes, 0 for a code that is none (IBTA 9.6).
func MTUSize(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// MTUCode is the code of the largest path MTU not above n bytes, at least the smallest.
func MTUCode(n int) uint8 {
	code := uint8(5)
	for code > 1 && MTUSize(code) > n {
		code--
	}
	return code
}
