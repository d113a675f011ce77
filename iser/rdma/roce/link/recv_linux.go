package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

const (
	// maxReceived is how many datagrams, joined or not, one Recv takes. Each has maxJoined bytes of buffer, of which
	// only what was ever received takes memory.
	maxReceived = 64
	maxJoined   = 64 << 10
)

// A receiver has the arrays for Recv.
type receiver struct {
	u        *udp
	rs       []Received
	deadline time.Time
	n        int
	ran      bool   // the poller let us try
	overflow uint32 // the kernel's count of drops when last seen
	spinner  spinner
	many     bool // the last receive was part of a stream
	zone     string
	msgs     [maxReceived]message
	iovs     [maxReceived]unix.Iovec
	addrs    [maxReceived]socketAddr
	controls [maxReceived]control
	buf      []byte
	call     func(fd uintptr) bool // attempt, made a func once
}

// init points the messages, as the kernel will see them, to r's own arrays: they live and stay where they are as long as
// it does.
func (r *receiver) init(u *udp) {
	r.u, r.zone = u, u.local.Zone()
	r.spinner = newSpinner()
	r.call = r.attempt
	r.buf = make([]byte, maxReceived*maxJoined)
	for i := range r.msgs {
		b := r.buf[i*maxJoined:]
		r.iovs[i].Base = unsafe.SliceData(b)
		r.iovs[i].SetLen(maxJoined)
		h := &r.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.addrs[i]))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&r.controls[i]))
	}
}

// Recv implements Link.
func (u *udp) Recv(rs []Received, deadline time.Time) (int, error) {
	r := &u.in
	r.rs, r.deadline, r.n, r.ran = rs, deadline, 0, false
	defer func() { r.rs = nil }()
	for {
		err := u.raw.Read(r.call)
		u.unpark()
		switch {
		case err == nil:
			return r.n, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, fmt.Errorf("roce: receive on %v: %w", u.local, net.ErrClosed)
		case r.ran:
			return 0, nil
		}
		u.arm(time.Time{}) // an earlier Recv's deadline has passed, so the poller did not even let us try
	}
}

// Wake implements Link.
func (u *udp) Wake() {
	u.wakeMu.Lock()
	defer u.wakeMu.Unlock()
	u.woken.Store(true)
	if u.parked {
		u.armLocked(time.Unix(1, 0)) // long past
	}
}

// park readies the poller to wait until deadline, unless a Wake has come. Both hold wakeMu, so a Wake either is seen
// here or sees parked.
func (u *udp) park(deadline time.Time) bool {
	u.wakeMu.Lock()
	defer u.wakeMu.Unlock()
	if u.woken.Load() {
		return false
	}
	u.parked = true
	if !u.armed.Equal(deadline) {
		u.armLocked(deadline)
	}
	return true
}

// unpark ends a Recv that parked or was woken. One that did neither leaves a Wake to the next.
func (u *udp) unpark() {
	u.wakeMu.Lock()
	defer u.wakeMu.Unlock()
	if u.parked || u.in.n == 0 && u.in.ran {
		u.woken.Store(false)
		u.parked = false
	}
}

func (u *udp) arm(t time.Time) {
	u.wakeMu.Lock()
	defer u.wakeMu.Unlock()
	u.armLocked(t)
}

// armLocked sets the poller's deadline. It fails only once the link is closed, which Recv finds out by itself.
func (u *udp) armLocked(t time.Time) {
	u.armed = t
	_ = u.file.SetReadDeadline(t)
}

// attempt receives what there is. It reports whether Recv is over; if not, the poller waits and calls it again.
func (r *receiver) attempt(fd uintptr) bool {
	r.ran = true
	return r.receive(fd) || r.spin(fd) || !r.u.park(r.deadline)
}

// receive takes datagrams from the socket, and reports false if there were none. An error other than that is an
// ICMP message's, about something sent: it says nothing of the socket.
func (r *receiver) receive(fd uintptr) bool {
	want := min(len(r.rs), maxReceived)
	for i := range r.msgs[:want] {
		h := &r.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(controlSize)
	}
	for {
		n, errno := mmsg(unix.SYS_RECVMMSG, fd, r.msgs[:want], unix.MSG_DONTWAIT)
		switch errno {
		case 0:
			r.take(n)
			return true
		case unix.EINTR:
		default:
			return errno != unix.EAGAIN
		}
	}
}

// take makes Received of the first n messages, without those that are empty or were cut off.
func (r *receiver) take(n int) {
	var ps, size uint64
	for i := range r.msgs[:n] {
		m := &r.msgs[i]
		joined := r.control(r.controls[i].bytes(int(m.hdr.Controllen)))
		if m.len == 0 || m.hdr.Flags&unix.MSG_TRUNC != 0 {
			continue
		}
		got := Received{From: r.from(i), Data: r.buf[i*maxJoined:][:m.len:m.len], Size: int(m.len)}
		if joined > 0 && joined < got.Size {
			got.Size = joined
		}
		if w := r.u.tap.watcher.Load(); w != nil {
			r.u.show(*w, got.From, netip.AddrPortFrom(r.u.external, wire.Port), got.Data, got.Size, false)
		}
		r.rs[r.n] = got
		r.n++
		ps += packets(len(got.Data), got.Size)
		size += uint64(m.len)
	}
	r.many = ps >= manyPackets
	r.u.recvPackets.Add(ps)
	r.u.recvBytes.Add(size)
}

// control reads a datagram's control messages: the size of the packets joined in it, 0 if it is a single one, and how
// many datagrams the socket has dropped so far.
func (r *receiver) control(b []byte) (joined int) {
	for {
		level, kind, data, rest, ok := nextControl(b)
		if !ok {
			return joined
		}
		if len(data) >= 4 {
			v := binary.NativeEndian.Uint32(data)
			switch {
			case level == unix.SOL_UDP && kind == unix.UDP_GRO:
				joined = int(v)
			case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL:
				r.u.recvDropped.Add(uint64(v - r.overflow)) // it wraps
				r.overflow = v
			}
		}
		b = rest
	}
}

// from is message i's sender.
func (r *receiver) from(i int) netip.AddrPort {
	a := &r.addrs[i]
	addr := netip.AddrFrom16(a.Addr)
	if a.Family == unix.AF_INET {
		addr = netip.AddrFrom4(a.inet4().Addr)
	} else if r.zone != "" && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(r.zone) // as who dials it writes it
	}
	var port [2]byte
	binary.NativeEndian.PutUint16(port[:], a.Port) // back to the order of the wire, at the same place for both families
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port[:]))
}
