package roce

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
)

// portCounters are of packets that no queue pair has seen.
type portCounters struct {
	malformed, badICRC, badMAD     atomic.Uint64
	unknownQP, wrongPeer, notReady atomic.Uint64
}

// Counters are those of a provider, of all that it has ever had. They only grow.
type Counters struct {
	QP   rc.Counters // of all queue pairs
	CM   cm.Counters
	Link link.Stats // the last two fields are true if they are so of any link
	// Packets dropped before any queue pair saw them.
	Malformed uint64 // too short, of no known opcode, of a wrong length
	BadICRC   uint64
	BadMAD    uint64 // to the connection manager, but not as its messages come
	UnknownQP uint64
	WrongPeer uint64 // from an address that the queue pair is not connected to
	NotReady  uint64 // to a queue pair that is not connected yet, or not any more
}

// QPCounters are those of one queue pair that is in use.
type QPCounters struct {
	Num           uint32
	Local, Remote netip.AddrPort
	rc.Counters
}

// Counters are those so far.
func (p *Provider) Counters() Counters {
	var c Counters
	for _, o := range p.allPorts() {
		o.addTo(&c)
	}
	return c
}

// QueuePairs are the counters of the queue pairs in use, by number.
func (p *Provider) QueuePairs() []QPCounters {
	var all []QPCounters
	for _, o := range p.allPorts() {
		o.mu.Lock()
		for _, q := range o.qps {
			all = append(all, QPCounters{q.Num(), q.ep.local, q.ep.remote, q.counters()})
		}
		o.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b QPCounters) int { return cmp.Compare(a.Num, b.Num) })
	return all
}

// Keys is how many keys to memory are in use, of regions and windows.
func (p *Provider) Keys() int { return p.dev.memory.Keys() }

func (p *Provider) allPorts() []*port {
	p.mu.Lock()
	defer p.mu.Unlock()
	var os []*port
	for _, o := range p.ports {
		os = append(os, o)
	}
	return os
}

func (q *queuePair) counters() rc.Counters {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.core == nil {
		return rc.Counters{}
	}
	return q.core.Counters()
}

func (o *port) addTo(c *Counters) {
	o.mu.Lock()
	defer o.mu.Unlock()
	add(&c.QP, o.retired)
	for _, q := range o.qps {
		add(&c.QP, q.counters())
	}
	addCM(&c.CM, o.cm.Counters())
	addLink(&c.Link, o.link.Stats())
	n := &o.counters
	c.Malformed += n.malformed.Load()
	c.BadICRC += n.badICRC.Load()
	c.BadMAD += n.badMAD.Load()
	c.UnknownQP += n.unknownQP.Load()
	c.WrongPeer += n.wrongPeer.Load()
	c.NotReady += n.notReady.Load()
}

func add(a *rc.Counters, b rc.Counters) {
	a.Sent += b.Sent
	a.Received += b.Received
	a.Retransmits += b.Retransmits
	a.Timeouts += b.Timeouts
	a.Duplicates += b.Duplicates
	a.OutOfOrder += b.OutOfOrder
	a.NaksSent += b.NaksSent
	a.NaksReceived += b.NaksReceived
	a.RNRNaksSent += b.RNRNaksSent
	a.RNRNaksReceived += b.RNRNaksReceived
	a.Dropped += b.Dropped
	a.Immediates += b.Immediates
}

func addCM(a *cm.Counters, b cm.Counters) {
	a.Received += b.Received
	a.Sent += b.Sent
	a.Malformed += b.Malformed
	a.Dropped += b.Dropped
	a.Flooded += b.Flooded
	a.Refused += b.Refused
	a.Duplicates += b.Duplicates
	a.Repeated += b.Repeated
	a.Stale += b.Stale
}

func addLink(a *link.Stats, b link.Stats) {
	a.SentPackets += b.SentPackets
	a.SentBytes += b.SentBytes
	a.ReceivedPackets += b.ReceivedPackets
	a.ReceivedBytes += b.ReceivedBytes
	a.SendDropped += b.SendDropped
	a.ReceiveDropped += b.ReceiveDropped
	a.SendOffload = a.SendOffload || b.SendOffload
	a.ReceiveOffload = a.ReceiveOffload || b.ReceiveOffload
}
