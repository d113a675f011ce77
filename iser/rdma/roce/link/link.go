package link

import (
	"net/netip"
	"time"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Burst is a run of packets to one address, back to back in Data: each Size bytes long but the last, which may be
// shorter. The link seals them (ICRC), since only it knows how they will be numbered on the way.
type Burst struct {
	Path *wire.Path
	Data []byte
	Size int
}

// A Received is one datagram, or several of one sender that the kernel has joined: packets of Size bytes each but the
// last. Data is valid until the next Recv.
type Received struct {
	From netip.AddrPort // the port is part of the ICRC
	Data []byte
	Size int
}

// A Link is one local address's endpoint for UDP port 4791.
type Link interface {
	// Addr is the local address; External what peers see it as (behind NAT), the same unless configured.
	Addr() netip.Addr
	External() netip.Addr
	// MTU is the largest path MTU (256 to 4096) that fits the way to an address.
	MTU(to netip.Addr) int
	// Send transmits bursts in order. What the network or the socket does not take is lost, as on any wire: the
	// only error is that the link is closed (net.ErrClosed). It may be called from several goroutines, one at a time
	// a Path.
	Send(bs []Burst) error
	// Recv blocks until something has come, Wake was called or deadline (zero: none) has passed, and fills rs. What
	// has come goes before a Wake and a deadline. The last two, and rubbish, return 0 and no error. One goroutine at
	// a time. An error that wraps net.ErrClosed ends the link.
	Recv(rs []Received, deadline time.Time) (int, error)
	// Wake ends the present or the next Recv. Any goroutine may call it.
	Wake()
	// RecvBuffer is how many bytes of packets can wait to be received, as the system granted.
	RecvBuffer() int
	// Stats are the link's counters so far.
	Stats() Stats
	Close() error
}

// Stats count what a link has carried, in packets and in bytes from BTH to ICRC.
type Stats struct {
	SentPackets, SentBytes         uint64
	ReceivedPackets, ReceivedBytes uint64
	// SendDropped packets were refused by the system: no room, no route, too long for the way.
	SendDropped uint64
	// ReceiveDropped datagrams found no room in the receive buffer. Several packets that came joined count as one.
	ReceiveDropped uint64
	// SendOffload and ReceiveOffload: the kernel cuts up and joins packets for us (GSO, GRO).
	SendOffload, ReceiveOffload bool
}

// The path MTUs that RoCE knows (IBTA 9.6, table 44).
const (
	MinMTU = 256
	MaxMTU = 4096
)

// mtuHeaders is what Linux subtracts from an interface's MTU (40 GRH or IPv6, 8 UDP, 12 BTH, 4 XRCETH, 28 AtomicETH, 4
// ICRC) before it looks for the largest path MTU that fits. We take no more than it would, although our packets have
// less: a peer with the same interface MTU must be able to agree.
const mtuHeaders = 96

// pathMTU is the largest path MTU for an IP MTU, and MinMTU if none fits.
func pathMTU(ipMTU int) int {
	for mtu := MaxMTU; mtu > MinMTU; mtu /= 2 {
		if mtu <= ipMTU-mtuHeaders {
			return mtu
		}
	}
	return MinMTU
}

// packets is how many packets of a size n bytes are, the last perhaps short.
func packets(n, size int) uint64 { return uint64((n + size - 1) / size) }

// Options of Listen.
type Options struct {
	// External is the address that peers reach us by, if it is not the local one (NAT, published ports): the ICRC
	// covers addresses.
	External netip.Addr
	// NoOffload does without segmentation offload (GSO, GRO).
	NoOffload bool
	// Tap, if not nil, is where the link shows its packets.
	Tap *Tap
}
