package link

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// stuck makes a sender that writes into a Unix socket instead, whose send buffer stays full until somebody reads: UDP's
// on loopback never fills.
func stuck(t *testing.T) (s *sender, fd, peer int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[0]); _ = unix.Close(fds[1]) })
	s = newSender(open(t, Options{NoOffload: true}))
	for i := range s.msgs {
		s.msgs[i].hdr.Name, s.msgs[i].hdr.Namelen = nil, 0
	}
	return s, fds[0], fds[1]
}

func TestSendWaitsForRoomButNotForLong(t *testing.T) {
	s, fd, peer := stuck(t)
	path := wire.NewPath(s.u.local, s.u.local)
	s.bursts = []Burst{burst(rand.New(rand.NewPCG(1, 1)), path, 400*4096, 4096, 0)}

	s.patience = sendPatience
	start := time.Now()
	s.transmit(uintptr(fd))
	took := time.Since(start)
	st := s.u.Stats()
	assert.GreaterOrEqual(t, took, sendPatience)
	assert.Positive(t, st.SentPackets)
	assert.Positive(t, st.SendDropped)
	assert.EqualValues(t, 400, st.SentPackets+st.SendDropped)

	// A peer that reads makes room in time. On a machine that is busy a wait may still be too short, so it is longer here.
	s.patience = 10 * time.Second
	var sent atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait() // nobody may read from a descriptor that is closed, and then another's
	defer sent.Store(true)
	wg.Go(func() {
		for b := make([]byte, 5000); !sent.Load(); {
			if _, err := unix.Read(peer, b); err != nil {
				runtime.Gosched()
			}
		}
	})
	s.transmit(uintptr(fd))
	assert.Equal(t, st.SentPackets+400, s.u.Stats().SentPackets)
	assert.Equal(t, st.SendDropped, s.u.Stats().SendDropped)
}

// tunnel moves this goroutine's thread to a new network namespace with a point-to-point device that has no offload at all
// and whose packets we read, headers and all. The thread ends with the test.
func tunnel(t *testing.T, mtu uint32) (tun *os.File, here, there netip.Addr) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("a network namespace needs CAP_SYS_ADMIN")
	} else {
		require.NoError(t, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("no tunnel device: ", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(s)

	here, there = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	set := func(on int, request uint, fill func(r *unix.Ifreq)) {
		r, err := unix.NewIfreq("roce0")
		require.NoError(t, err)
		fill(r)
		require.NoError(t, unix.IoctlIfreq(on, request, r))
	}
	address := func(a netip.Addr) func(r *unix.Ifreq) {
		return func(r *unix.Ifreq) { require.NoError(t, r.SetInet4Addr(a.AsSlice())) }
	}
	set(fd, unix.TUNSETIFF, func(r *unix.Ifreq) { r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI) })
	tun = os.NewFile(uintptr(fd), "tun") // only now can it be polled
	t.Cleanup(func() { _ = tun.Close() })
	set(s, unix.SIOCSIFADDR, address(here))
	set(s, unix.SIOCSIFDSTADDR, address(there))
	set(s, unix.SIOCSIFMTU, func(r *unix.Ifreq) { r.SetUint32(mtu) })
	set(s, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) { r.SetUint16(unix.IFF_UP | unix.IFF_POINTOPOINT) })
	return tun, here, there
}

// What the ICRC rests on: the kernel numbers single datagrams 0 and the segments of a burst from 0, and sets don't
// fragment (ROCE.md 1.8.1).
func TestTheKernelNumbersPacketsAsWeSealedThem(t *testing.T) {
	tun, here, there := tunnel(t, 1500)
	for _, off := range []bool{false, true} {
		l, err := Listen(here, Options{NoOffload: off})
		require.NoError(t, err)
		require.Equal(t, 1024, l.MTU(there))
		require.Equal(t, 4096, l.MTU(here), "to oneself the way is loopback's")

		path := wire.NewPath(here, there)
		x := burst(rand.New(rand.NewPCG(1, 1)), path, 20*1024+100, 1024, 0)
		one := burst(rand.New(rand.NewPCG(1, 1)), path, 100, 1024, 50)
		long := burst(rand.New(rand.NewPCG(1, 1)), path, 2*4096, 4096, 70)
		require.NoError(t, l.Send([]Burst{x, one, long, one}))
		offloaded := l.Stats().SendOffload // before Linux 6.11, EIO: it wants checksum offload
		ps := ipPackets(t, tun, 23)
		for i, p := range ps {
			want := 0
			if offloaded && i < 21 {
				want = i
			}
			assert.Equal(t, want, int(binary.BigEndian.Uint16(p[4:])), "identification of packet %d", i)
			assert.Equal(t, byte(0x40), p[6], "don't fragment")
			got := [4]byte(p[len(p)-4:])
			path.Seal(wire.Packet(p[28:]), wire.Port, uint16(want))
			assert.Equal(t, [4]byte(p[len(p)-4:]), got, "ICRC of packet %d", i)
		}
		assert.EqualValues(t, 23, l.Stats().SentPackets)
		assert.EqualValues(t, 2, l.Stats().SendDropped, "too long for the way")
		require.NoError(t, l.Close())
	}
}

// ipPackets reads n RoCE packets from a tunnel; the kernel may send of its own.
func ipPackets(t *testing.T, tun *os.File, n int) (ps [][]byte) {
	require.NoError(t, tun.SetReadDeadline(time.Now().Add(5*time.Second)))
	for len(ps) < n {
		b := make([]byte, 65536)
		k, err := tun.Read(b)
		require.NoError(t, err, "%d of %d packets", len(ps), n)
		if b = b[:k]; k > 28 && b[0] == 0x45 && binary.BigEndian.Uint16(b[22:]) == wire.Port {
			ps = append(ps, b)
		}
	}
	return ps
}

func TestControlMessagesThatAreCutOff(t *testing.T) {
	var c control
	n := c.putSegment(0x1234)
	level, kind, data, rest, ok := nextControl(c.bytes(n))
	require.True(t, ok)
	assert.EqualValues(t, unix.SOL_UDP, level)
	assert.EqualValues(t, unix.UDP_SEGMENT, kind)
	assert.EqualValues(t, 0x1234, binary.NativeEndian.Uint16(data))
	assert.Empty(t, rest)
	for k := range unix.CmsgLen(2) {
		_, _, _, _, ok := nextControl(c.bytes(k))
		assert.False(t, ok, "%d bytes", k)
	}
	(*unix.Cmsghdr)(unsafe.Pointer(&c)).SetLen(3)
	_, _, _, _, ok = nextControl(c.bytes(n))
	assert.False(t, ok, "a length less than the header's")
}
