package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

const (
	// socketBuffer is what we ask for in each direction. Without CAP_NET_ADMIN the system grants no more than
	// net.core.rmem_max and wmem_max, about 208 KiB on many. A peer may have 128 packets in flight on each queue pair.
	socketBuffer = 16 << 20
	// maxSenders is how many goroutines can be in the kernel with Send at once; more wait for one of them.
	maxSenders = 4
	// loopbackTries bounds the search for a free loopback address: 127.0.0.2 to 127.0.0.255.
	loopbackTries = 254
	// defaultIPMTU is assumed where the kernel knows no way: Ethernet's.
	defaultIPMTU = 1500
)

// udp is a link over one unconnected UDP socket. Unconnected, and told not to fragment, it sends IPv4 identification 0 on
// every datagram: that is what makes the ICRC predictable (ROCE.md 1.8.1).
type udp struct {
	local    netip.Addr
	external netip.Addr
	zone     uint32   // scope of a link-local address, 0 for others
	file     *os.File // puts the socket into Go's poller, whose deadline errors do not allocate (those of net do)
	raw      syscall.RawConn
	buffer   int // receive buffer as granted, in the kernel's accounting

	tap     *Tap        // never nil
	gso     atomic.Bool // cleared when an interface turns out not to do it
	gro     bool
	senders chan *sender // those that are free
	in      receiver

	sentSince atomic.Bool // something was sent since Recv last found nothing

	sentPackets, sentBytes, sendDropped atomic.Uint64
	recvPackets, recvBytes, recvDropped atomic.Uint64

	wakeMu sync.Mutex
	woken  atomic.Bool // Wake was called and no Recv has ended for it yet; written with wakeMu held
	parked bool        // Recv waits in the poller, or is about to
	armed  time.Time   // the poller's read deadline
}

// Listen opens the UDP link on addr. A port that is taken (by another process, or by rdma_rxe in this network
// namespace) is an error that says so and what to do. It wraps syscall.EADDRINUSE.
func Listen(addr netip.Addr, o Options) (Link, error) {
	u, err := listen(addr.Unmap(), o)
	if err == nil {
		return u, nil
	}
	if errors.Is(err, unix.EADDRINUSE) {
		_, e := os.Stat("/sys/module/rdma_rxe")
		return nil, portTaken(addr, e == nil, err)
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		err = fmt.Errorf("no interface of this machine has the address (`ip address` lists those that are): %w", err)
	}
	return nil, fmt.Errorf("roce: listen on %v: %w", addr, err)
}

// ListenLoopback opens a link on a free loopback address, 127.0.0.2 and on: 127.0.0.1 is left to a target.
func ListenLoopback(o Options) (Link, error) {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 2})
	for range loopbackTries {
		u, err := listen(addr, o)
		if err == nil {
			return u, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("roce: listen on %v: %w", addr, err)
		}
		addr = addr.Next()
	}
	return nil, fmt.Errorf("roce: UDP port %d is taken on 127.0.0.2 and %d loopback addresses after it: a program or rdma_rxe holds it on all addresses; stop it (modprobe -r rdma_rxe), or run in another network namespace: %w",
		wire.Port, loopbackTries-1, unix.EADDRINUSE)
}

// portTaken says who has probably taken the port and what to do about it.
func portTaken(addr netip.Addr, rxe bool, err error) error {
	who := "another process uses RoCE on this address"
	do := "stop it or use another address"
	switch {
	case addr.Is4() && addr.IsLoopback():
		do = "stop it or use another loopback address (127.0.0.2, 127.0.0.3, ...)"
	case addr.IsLoopback():
		do = "stop it or use 127.0.0.0/8: IPv6 has only one loopback address"
	}
	if rxe {
		who = "the kernel's rdma_rxe holds it in this network namespace, or " + who
		do = "remove rdma_rxe (modprobe -r rdma_rxe), use another network namespace, or " + do
	}
	return fmt.Errorf("roce: listen on %v: UDP port %d is taken: %s: %s: %w", addr, wire.Port, who, do, err)
}

func listen(addr netip.Addr, o Options) (*udp, error) {
	if !addr.IsValid() || addr.IsUnspecified() {
		return nil, errors.New("a wildcard address will not do, since the ICRC covers the address: name one of this machine's")
	}
	u := &udp{local: addr, external: addr, tap: o.Tap, senders: make(chan *sender, maxSenders)}
	if u.tap == nil {
		u.tap = new(Tap)
	}
	if o.External.IsValid() {
		if u.external = o.External.Unmap(); u.external.Is4() != addr.Is4() {
			return nil, fmt.Errorf("external address %v is not of the same family", u.external)
		}
	}
	if err := u.scope(); err != nil {
		return nil, err
	}
	fd, err := u.socket(wire.Port)
	if err != nil {
		return nil, err
	}
	u.file = os.NewFile(uintptr(fd), "roce "+addr.String()) // owns fd; non-blocking, hence polled
	if err := u.options(fd, o); err != nil {
		_ = u.file.Close()
		return nil, err
	}
	if u.raw, err = u.file.SyscallConn(); err != nil {
		_ = u.file.Close()
		return nil, err
	}
	for range min(maxSenders, runtime.GOMAXPROCS(0)) {
		u.senders <- newSender(u)
	}
	u.in.init(u)
	return u, nil
}

// scope finds the interface that a link-local address belongs to.
func (u *udp) scope() error {
	zone := u.local.Zone()
	if zone == "" {
		return nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		u.zone = uint32(n)
		return nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return err
	}
	u.zone = uint32(i.Index)
	return nil
}

// socket makes a socket that is bound to our address and a port, and never fragments.
func (u *udp) socket(port int) (fd int, err error) {
	family := unix.AF_INET6
	if u.local.Is4() {
		family = unix.AF_INET
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if family == unix.AF_INET {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt MTU_DISCOVER", err)
	}
	if err := unix.Bind(fd, u.sockaddr(u.local, port)); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// options sets what may differ between systems: only rxe's and NICs' IPv6 packets, which have no checksum, are worth an error.
func (u *udp) options(fd int, o Options) (err error) {
	if !u.local.Is4() {
		if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return os.NewSyscallError("setsockopt UDP_NO_CHECK6_RX", err)
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	}
	if u.buffer, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return os.NewSyscallError("getsockopt SO_RCVBUF", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1) // without it, drops are not counted
	if !o.NoOffload {
		_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT) // since Linux 4.18
		u.gso.Store(err == nil)
		u.gro = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil // since 5.0
	}
	return nil
}

func (u *udp) sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	sa := &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	if a.IsLinkLocalUnicast() {
		sa.ZoneId = u.zone
	}
	return sa
}

// Addr implements Link.
func (u *udp) Addr() netip.Addr { return u.local }

// External implements Link.
func (u *udp) External() netip.Addr { return u.external }

// MTU implements Link. It asks the kernel which way it would send: to an address of this machine that is the
// loopback interface, whatever interface has the address.
func (u *udp) MTU(to netip.Addr) int {
	ip, err := u.wayMTU(to.Unmap())
	if err != nil {
		ip = defaultIPMTU
	}
	return pathMTU(ip)
}

// wayMTU connects a socket of its own, which sends nothing, and reads the way's IP MTU from it.
func (u *udp) wayMTU(to netip.Addr) (int, error) {
	fd, err := u.socket(0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, u.sockaddr(to, wire.Port)); err != nil {
		return 0, os.NewSyscallError("connect", err)
	}
	if u.local.Is4() {
		return unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
	}
	return unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
}

// RecvBuffer implements Link. The kernel charges a datagram for the memory that it takes: of the buffer it grants, 49 %
// hold packets at path MTU 4096, 45 % at 1024, 21 % at 256, and 98 % hold joined ones (measured on loopback, Linux 6.18; the
// first two the same over veth). Not every peer's packets are joined, so we count on 7/16, 44 %.
func (u *udp) RecvBuffer() int { return u.buffer / 16 * 7 }

// Stats implements Link.
func (u *udp) Stats() Stats {
	return Stats{
		SentPackets: u.sentPackets.Load(), SentBytes: u.sentBytes.Load(), SendDropped: u.sendDropped.Load(),
		ReceivedPackets: u.recvPackets.Load(), ReceivedBytes: u.recvBytes.Load(), ReceiveDropped: u.recvDropped.Load(),
		SendOffload: u.gso.Load(), ReceiveOffload: u.gro,
	}
}

// Close ends a waiting Recv and waits for Sends that are in the kernel.
func (u *udp) Close() error {
	if err := u.file.Close(); err != nil {
		return fmt.Errorf("roce: close %v: %w: %w", u.local, net.ErrClosed, err)
	}
	return nil
}

// show shows a run of packets that left, or reached, the local address of a link.
func (u *udp) show(w Watcher, from, to netip.AddrPort, data []byte, size int, sent bool) {
	w.See(Sight{
		Link: u.local, Src: from, Dst: to, Data: data, Size: size, Sent: sent,
		Lost: u.sendDropped.Load() + u.recvDropped.Load(),
	})
}
