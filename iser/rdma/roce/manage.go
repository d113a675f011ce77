package roce

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// management takes a packet for queue pair 1 (ROCE.md 4.1).
func (o *port) management(from netip.AddrPort, p wire.Packet) {
	if p.Opcode() != wire.UDSendOnly || len(p.Payload()) != cm.MADSize {
		o.counters.badMAD.Add(1)
		return
	}
	if key, src := p.DETH(); key != cm.QKey || src != wire.GSI {
		o.counters.badMAD.Add(1)
		return
	}
	addr := from.Addr()
	if addr.Is4() != o.ext.Is4() {
		o.counters.badMAD.Add(1)
		return
	}
	if o.gsiPath == nil || o.gsiPath.Src() != addr {
		o.gsiPath = wire.NewPath(addr, o.ext)
	}
	if !o.gsiPath.Verify(p, from.Port(), 0) {
		o.counters.badICRC.Add(1)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stepLocked(cm.Packet{From: addr, MAD: p.Payload()})
}

// stepLocked gives the connection manager an event and does what it says.
func (o *port) stepLocked(ev cm.Event) {
	as := o.cm.Step(time.Now(), ev)
	for i := range as {
		o.performLocked(&as[i])
	}
	o.arm(o.cm.Deadline(), true)
}

func (o *port) performLocked(a *cm.Action) {
	if a.Kind == cm.SendMAD {
		o.sendMADLocked(a.To, a.MAD)
		return
	}
	if a.Kind == cm.NewRequest {
		o.requestLocked(a.Conn)
		return
	}
	e := a.Conn.User.(*endpoint)
	switch a.Kind {
	case cm.Connected:
		e.connectedLocked()
	case cm.Refused:
		e.refuseLocked(&rdma.RejectedError{Reason: int(a.Reason), Private: a.Private})
	case cm.Unreachable:
		e.refuseLocked(fmt.Errorf("no answer: is the peer up, and UDP port %d let through? %w", wire.Port, os.ErrDeadlineExceeded))
	case cm.Disconnected:
		e.endLocked()
	case cm.Freed:
		e.freedLocked()
	}
}

// requestLocked hands a request to its listener. Its backlog is as long as the connection manager's bound, but may
// hold requests that have ended meanwhile.
func (o *port) requestLocked(c *cm.Conn) {
	e := o.newPassiveLocked(c)
	if l := o.listeners[uint16(c.REQ.ServiceID)]; l == nil || !l.offer(e) {
		o.stepLocked(cm.Reject{Conn: c, Reason: cm.ReasonNoResources})
		e.closeLocked()
	}
}

// sendMADLocked sends a management datagram to queue pair 1 of an address. It is sent again if nobody answers, so
// errors do not matter.
func (o *port) sendMADLocked(to netip.Addr, mad *[cm.MADSize]byte) {
	var buf [wire.BTHSize + wire.DETHSize + cm.MADSize + wire.ICRCSize]byte
	p := wire.New(buf[:], wire.UDSendOnly, cm.MADSize)
	p.SetDestQP(wire.GSI)
	p.SetMigrated()
	p.SetPSN(o.madPSN)
	o.madPSN = o.madPSN.Add(1)
	p.SetDETH(cm.QKey, wire.GSI)
	copy(p.Payload(), mad[:])
	_ = o.link.Send([]link.Burst{{Path: wire.NewPath(o.ext, to), Data: p, Size: len(p)}})
}

// activeConfig is the queue pair of a connection that the peer has granted.
func (o *port) activeConfig(c *cm.Conn) rc.Config {
	r := o.config(c)
	r.PeerQPN, r.SendPSN, r.RecvPSN = wire.QPN(c.REP.QPN), wire.PSN(c.REP.PSN), wire.PSN(c.REQ.PSN)
	r.ReadsIn, r.ReadsOut = int(c.REQ.ResponderResources), int(min(c.REQ.InitiatorDepth, c.REP.ResponderResources))
	r.RetryCount, r.RNRRetry = retryCount, int(c.REP.RNRRetry)
	return r
}

// passiveConfig is the queue pair of a connection that we grant with rep.
func (o *port) passiveConfig(c *cm.Conn, rep *cm.REP) rc.Config {
	r := o.config(c)
	r.PeerQPN, r.SendPSN, r.RecvPSN = wire.QPN(c.REQ.QPN), wire.PSN(c.REQ.PSN), wire.PSN(rep.PSN)
	r.ReadsIn, r.ReadsOut = int(rep.ResponderResources), int(rep.InitiatorDepth)
	r.RetryCount, r.RNRRetry = int(c.REQ.RetryCount), int(c.REQ.RNRRetry)
	return r
}

// retryCount is how often we send again what is not acknowledged, the most that fits the field.
const retryCount = 7

// config is what both sides have in common. The path MTU and the acknowledgement timeout are the REQ's.
func (o *port) config(c *cm.Conn) rc.Config {
	r := rc.Config{MTU: cm.MTUSize(c.REQ.MTU), Window: o.p.o.Window, ReadWindow: o.p.o.ReadWindow}
	if c.REQ.AckTimeout > 0 {
		r.AckTimeout = cm.Interval(c.REQ.AckTimeout)
	}
	if r.ReadWindow <= 0 {
		r.ReadWindow = min(maxReadWindow, o.link.RecvBuffer()/4)
	}
	return r
}
