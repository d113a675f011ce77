package cm

import (
	"net/netip"
	"time"
)

// connect sends a REQ.
func (m *Manager) connect(c *Conn) {
	if c.state != idle {
		return
	}
	c.active = true
	c.Peer = c.Peer.Unmap()
	m.add(c)
	r := &c.REQ
	r.LocalID, r.GUID = c.id, m.cfg.GUID
	r.RemoteTimeout, r.LocalTimeout, r.MaxRetries = responseCode, responseCode, maxCMRetries
	r.RetryCount, r.RNRRetry, r.PKey, r.HopLimit = 7, infinite, 0xffff, hopLimit
	r.LocalGID, r.RemoteGID, r.SrcAddr, r.DstAddr = m.cfg.Addr, c.Peer, m.cfg.Addr, c.Peer
	c.transaction = m.transaction()
	r.Put(&c.mad, c.transaction)
	m.begin(c, reqSent, requestTries)
}

// onREP is a request granted.
func (m *Manager) onREP(from netip.Addr, tid uint64, body []byte) {
	var r REP
	if r.Parse(body) != nil {
		m.c.Malformed++
		return
	}
	c := m.find(from, r.RemoteID)
	switch {
	case c == nil || !c.active || r.QPN <= 1: // we have given up, say so
		m.c.Dropped++
		if m.conns[r.RemoteID] == nil {
			m.sendREJ(from, tid, &REJ{RemoteID: r.LocalID, About: AboutREP, Reason: ReasonInvalidCommID})
		}
	case c.state == reqSent:
		c.REP = r
		m.meet(c, r.GUID, r.LocalID, r.QPN)
		m.set(c, established)
		m.do(Action{Kind: Connected, Conn: c})
		m.sendRTU(c)
	case c.peerID != r.LocalID:
		m.c.Dropped++
	case c.state == established: // the RTU was lost
		m.c.Duplicates++
		m.c.Repeated++
		m.sendRTU(c)
	default:
		m.c.Duplicates++
	}
}

func (m *Manager) sendRTU(c *Conn) {
	var mad [MADSize]byte
	(&RTU{LocalID: c.id, RemoteID: c.peerID}).Put(&mad, c.transaction)
	m.sendMAD(c.Peer, mad)
}

// onREJ is a refusal: of our request, of our answer to one, or of what has long been established.
func (m *Manager) onREJ(from netip.Addr, body []byte) {
	var r REJ
	if r.Parse(body) != nil {
		m.c.Malformed++
		return
	}
	c := m.find(from, r.RemoteID)
	if c == nil && r.Reason == ReasonTimeout { // from one that had not heard our id
		c = m.byPeer[peerID{from, r.GUID, r.LocalID}]
	}
	if c == nil || c.state != reqSent && r.LocalID != 0 && r.LocalID != c.peerID {
		m.c.Dropped++
		return
	}
	switch c.state {
	case reqSent:
		m.do(Action{Kind: Refused, Conn: c, Reason: r.Reason, Private: r.Private[:]})
		m.remove(c)
	case requested, repSent, established:
		m.do(Action{Kind: Disconnected, Conn: c})
		c.hasAnswer = false
		m.wait(c)
	default:
		m.c.Dropped++
	}
}

// onMRA asks us for patience.
func (m *Manager) onMRA(from netip.Addr, body []byte) {
	var r MRA
	if r.Parse(body) != nil {
		m.c.Malformed++
		return
	}
	c := m.find(from, r.RemoteID)
	if c == nil || !(c.state == reqSent && r.About == AboutREQ || c.state == repSent && r.About == AboutREP && r.LocalID == c.peerID) {
		m.c.Dropped++
		return
	}
	m.arm(c, min(Interval(r.ServiceTimeout), maxService)+firstInterval)
}

// Interval is the time that a 5-bit code means: 4.096 us * 2^code (IBTA 9.7.6.1.3).
func Interval(code uint8) time.Duration { return 4096 * time.Nanosecond << (code & 31) }

// giveUp forgets a request that nobody has answered, and tells the peer in case it still thinks about it.
func (m *Manager) giveUp(c *Conn) {
	m.sendREJ(c.Peer, c.transaction, &REJ{LocalID: c.id, About: AboutREQ, Reason: ReasonTimeout, GUID: m.cfg.GUID})
	m.remove(c)
}

// disconnect ends a connection in any state.
func (m *Manager) disconnect(c *Conn) {
	switch c.state {
	case reqSent:
		m.giveUp(c)
	case requested:
		m.reject(c, ReasonConsumer, nil)
	case repSent, established:
		c.transaction = m.transaction()
		(&DREQ{LocalID: c.id, RemoteID: c.peerID, RemoteQPN: c.peerQPN}).Put(&c.mad, c.transaction)
		c.hasAnswer = false
		m.begin(c, dreqSent, leaveTries)
	}
}

// onDREQ is always answered, as a peer without an answer asks for a long time; but it ends only what it names rightly.
func (m *Manager) onDREQ(from netip.Addr, tid uint64, body []byte) {
	var r DREQ
	if r.Parse(body) != nil {
		m.c.Malformed++
		return
	}
	c := m.conns[r.RemoteID]
	if c != nil && (c.Peer != from || c.peerID != r.LocalID || c.qpn() != r.RemoteQPN) {
		m.c.Dropped++
		return
	}
	if c != nil {
		switch c.state {
		case repSent, established, dreqSent: // the last: both ask at once, and each answers
			m.do(Action{Kind: Disconnected, Conn: c})
			c.hasAnswer = false
			m.wait(c)
		case waiting:
			m.c.Duplicates++
		default:
			m.c.Dropped++
			return
		}
	}
	var mad [MADSize]byte
	(&DREP{LocalID: r.RemoteID, RemoteID: r.LocalID}).Put(&mad, tid)
	m.sendMAD(from, mad)
}

// qpn is our queue pair's number.
func (c *Conn) qpn() uint32 {
	if c.active {
		return c.REQ.QPN
	}
	return c.REP.QPN
}

// onDREP is the answer to our DREQ.
func (m *Manager) onDREP(from netip.Addr, body []byte) {
	var r DREP
	if r.Parse(body) != nil {
		m.c.Malformed++
		return
	}
	c := m.find(from, r.RemoteID)
	if c == nil || c.state != dreqSent || c.peerID != r.LocalID {
		m.c.Dropped++
		return
	}
	m.wait(c)
}

// Code is the smallest 5-bit code that means at least d.
func Code(d time.Duration) uint8 {
	code := uint8(1) // 0 means no limit
	for code < 31 && Interval(code) < d {
		code++
	}
	return code
}
