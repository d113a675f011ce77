package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

const (
	// maxMessages is how many messages go in one sendmmsg.
	maxMessages = 64
	// maxRound is how many bytes go in one sendmmsg: more, and what was sealed would have left the cache before the
	// kernel copies it.
	maxRound = 256 << 10
	// maxSegments is the kernel's limit of segments in a message (UDP_MAX_SEGMENTS, 128 since Linux 5.19).
	maxSegments = 64
	// maxDatagram is the longest that IP and UDP headers leave of 64 KiB - 1, for IPv6 as well.
	maxDatagram = 65535 - 40 - 8
	// sendPatience is how long a Send waits in all for room in the send buffer. Room comes when the device has
	// transmitted: 416 KiB, what an unprivileged socket gets, take 3.4 ms at 1 Gbit/s. To drop at once would turn a
	// device slower than we are into a retransmission time-out, 100 times as long; after 10 ms it stands still,
	// and what is queued for it is best lost.
	sendPatience = 10 * time.Millisecond
)

// A sender has the arrays for one Send at a time.
type sender struct {
	u        *udp
	bursts   []Burst
	patience time.Duration
	n        int // messages laid out
	size     int // their bytes
	work     [maxMessages]Burst
	msgs     [maxMessages]message
	iovs     [maxMessages]unix.Iovec
	addrs    [maxMessages]socketAddr
	controls [maxMessages]control
	poll     [1]unix.PollFd
	call     func(fd uintptr) // transmit, made a func once
}

// newSender makes a sender whose messages point, as the kernel will see them, to its own arrays: they live and stay
// where they are as long as it does.
func newSender(u *udp) *sender {
	s := &sender{u: u}
	s.call = s.transmit
	for i := range s.msgs {
		h := &s.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&s.addrs[i]))
		h.Namelen = unix.SizeofSockaddrInet6
		if u.local.Is4() {
			h.Namelen = unix.SizeofSockaddrInet4
		}
		h.Iov = &s.iovs[i]
		h.SetIovlen(1)
	}
	return s
}

// Send implements Link.
func (u *udp) Send(bs []Burst) error {
	s := <-u.senders
	defer s.free()
	s.bursts, s.patience = bs, sendPatience
	if err := u.raw.Control(s.call); err != nil {
		return fmt.Errorf("roce: send from %v: %w", u.local, net.ErrClosed)
	}
	return nil
}

// free makes s ready for the next Send, after a panic too.
func (s *sender) free() {
	s.bursts, s.n, s.size = nil, 0, 0
	s.u.senders <- s
}

// transmit cuts the bursts into messages and sends them in rounds.
func (s *sender) transmit(fd uintptr) {
	for _, b := range s.bursts {
		if b.Size <= 0 {
			panic(fmt.Sprintf("roce: burst of %d bytes in packets of %d", len(b.Data), b.Size))
		}
		for len(b.Data) > 0 {
			segments := 1
			if s.u.gso.Load() {
				segments = max(1, min(maxSegments, maxDatagram/b.Size))
			}
			n := min(len(b.Data), segments*b.Size)
			if s.n == maxMessages || s.n > 0 && s.size+n > maxRound {
				s.flush(fd)
			}
			s.add(Burst{Path: b.Path, Data: b.Data[:n], Size: b.Size})
			b.Data = b.Data[n:]
		}
	}
	s.flush(fd)
}

// add seals a message's packets and lays it out. The kernel numbers the segments of one from 0 (ROCE.md 1.8.1).
func (s *sender) add(b Burst) {
	for i, p := 0, b.Data; len(p) > 0; i++ {
		n := min(len(p), b.Size)
		b.Path.Seal(p[:n], wire.Port, uint16(i))
		p = p[n:]
	}
	s.show(b)
	i := s.n
	s.work[i] = b
	s.address(i, b)
	s.iovs[i].Base = unsafe.SliceData(b.Data)
	s.iovs[i].SetLen(len(b.Data))
	h := &s.msgs[i].hdr
	h.Control = nil
	h.SetControllen(0)
	if len(b.Data) > b.Size {
		n := s.controls[i].putSegment(uint16(b.Size))
		h.Control = (*byte)(unsafe.Pointer(&s.controls[i]))
		h.SetControllen(n)
	}
	s.n++
	s.size += len(b.Data)
}

// show shows sealed packets to who watches.
func (s *sender) show(b Burst) {
	if w := s.u.tap.watcher.Load(); w != nil {
		from, to := netip.AddrPortFrom(b.Path.Src(), wire.Port), netip.AddrPortFrom(b.Path.Dst(), wire.Port)
		s.u.show(*w, from, to, b.Data, b.Size, true)
	}
}

// address fills in where message i goes, the port in the order of the wire. One of the wrong family goes nowhere: the
// kernel refuses it.
func (s *sender) address(i int, b Burst) {
	port := binary.NativeEndian.Uint16([]byte{wire.Port >> 8, wire.Port & 0xff})
	if to := b.Path.Dst(); to.Is4() {
		a := s.addrs[i].inet4()
		a.Family, a.Addr = unix.AF_INET, to.As4()
		a.Port = port
	} else {
		a := &s.addrs[i]
		a.Family, a.Addr, a.Scope_id = unix.AF_INET6, to.As16(), 0
		a.Port = port
		if to.IsLinkLocalUnicast() {
			a.Scope_id = s.u.zone
		}
	}
}

// flush sends the messages laid out. An error concerns the first of those not yet sent.
func (s *sender) flush(fd uintptr) {
	for i := 0; i < s.n; {
		n, errno := mmsg(unix.SYS_SENDMMSG, fd, s.msgs[i:s.n], 0)
		switch {
		case errno == 0:
			s.count(i, n)
			i += n
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && s.wait(fd):
		case (errno == unix.EIO || errno == unix.EINVAL) && len(s.work[i].Data) > s.work[i].Size:
			s.resend(fd, i)
			i++
		default: // no room, no route, too long, forbidden: lost, as it would be further on
			s.u.sendDropped.Add(packets(len(s.work[i].Data), s.work[i].Size))
			i++
		}
	}
	clear(s.work[:s.n]) // what was sent is the caller's again, who may unmap it
	clear(s.iovs[:s.n])
	s.n, s.size = 0, 0
}

func (s *sender) count(i, n int) {
	var ps, size uint64
	for _, b := range s.work[i : i+n] {
		ps += packets(len(b.Data), b.Size)
		size += uint64(len(b.Data))
	}
	s.u.sentSince.Store(true)
	s.u.sentPackets.Add(ps)
	s.u.sentBytes.Add(size)
}

// resend sends a message that the kernel would not cut up packet by packet, sealed anew with identification 0. If that
// works, cutting up is what it cannot do on this way (no checksum offload, IPsec, an old kernel), and we stop asking.
func (s *sender) resend(fd uintptr, i int) {
	b, h := s.work[i], &s.msgs[i].hdr
	h.Control = nil
	h.SetControllen(0)
	for len(b.Data) > 0 {
		p := b.Data[:min(len(b.Data), b.Size)]
		b.Data = b.Data[len(p):]
		b.Path.Seal(p, wire.Port, 0)
		s.show(Burst{Path: b.Path, Data: p, Size: len(p)})
		s.iovs[i].Base = unsafe.SliceData(p)
		s.iovs[i].SetLen(len(p))
		s.work[i].Data = p
		if s.one(fd, i) {
			s.u.gso.Store(false)
			s.count(i, 1)
		} else {
			s.u.sendDropped.Add(1)
		}
	}
}

// one sends message i and reports whether the kernel took it.
func (s *sender) one(fd uintptr, i int) bool {
	for {
		_, errno := mmsg(unix.SYS_SENDMMSG, fd, s.msgs[i:i+1], 0)
		switch {
		case errno == 0:
			return true
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && s.wait(fd):
		default:
			return false
		}
	}
}

// wait waits for room in the send buffer while this Send's patience lasts. It holds a thread, which is rare and short.
func (s *sender) wait(fd uintptr) bool {
	if s.patience <= 0 {
		return false
	}
	start := time.Now()
	s.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	_, _ = unix.Poll(s.poll[:], int(max(1, s.patience/time.Millisecond)))
	s.patience -= max(time.Since(start), time.Microsecond)
	return true
}
