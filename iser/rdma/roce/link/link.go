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
	// Send transmits bursts in order. It does not wait: what the network or the socket does not take is lost, as on
	// any wire. It may be called from several goroutines, one at a time a Path.
	Send(bs []Burst) error
	// Recv blocks until something has come, Wake was called or deadline (zero: none) has passed, and fills rs. One
	// goroutine at a time. An error that wraps net.ErrClosed ends the link.
	Recv(rs []Received, deadline time.Time) (int, error)
	// Wake ends the present or the next Recv. Any goroutine may call it.
	Wake()
	// RecvBuffer is how many bytes of packets can wait to be received, as the system granted.
	RecvBuffer() int
	Close() error
}

// Options of Listen.
type Options struct {
	// External is the address that peers reach us by, if it is not the local one (NAT, published ports): the ICRC
	// covers addresses.
	External netip.Addr
	// NoOffload does without segmentation offload (GSO, GRO).
	NoOffload bool
}

// Listen opens the UDP link on addr. A port that is taken (by another process, or by rdma_rxe in this network
// namespace) is an error that says so and what to do.
func Listen(addr netip.Addr, o Options) (Link, error) { panic("not written") }

// ListenLoopback opens a link on a free loopback address, 127.0.0.2 and on.
func ListenLoopback(o Options) (Link, error) { panic("not written") }
