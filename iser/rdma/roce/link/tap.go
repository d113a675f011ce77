package link

import (
	"net/netip"
	"sync/atomic"
)

// A Sight is a run of packets that a link sends or has received, as a Burst or a Received is one. Packet i has the IPv4
// identification i if it was sent; what a received one had, a UDP socket does not tell.
type Sight struct {
	Link     netip.Addr // the local address
	Src, Dst netip.AddrPort
	Data     []byte // from BTH to ICRC, valid during the call
	Size     int    // of each packet but the last, bytes
	Sent     bool
	// Lost is how many packets this link has lost so far: those the system refused to send, and those that found no
	// room to be received.
	Lost uint64
}

// A Watcher is shown all packets. It is called on the data path, by several goroutines at once, and must not wait.
type Watcher interface {
	See(Sight)
}

// A Tap is where links show their packets to a watcher, if there is one: what is sent just before the system gets it,
// so that no answer is seen before it, and what was received before anything is done about it. Without a watcher it
// costs an atomic load for each run of packets. The zero value is ready.
type Tap struct {
	watcher atomic.Pointer[Watcher]
}

// Watch shows packets to w from now on; nil: to nobody. The watcher before may still be called for a moment.
func (t *Tap) Watch(w Watcher) {
	if w == nil {
		t.watcher.Store(nil)
		return
	}
	t.watcher.Store(&w)
}
