package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// open opens a loopback link for a test.
func open(t testing.TB, o Options) *udp {
	l, err := ListenLoopback(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.(*udp)
}

// open6 opens the only IPv6 loopback link there is. Other test processes want it too.
func open6(t testing.TB, o Options) *udp {
	var l Link
	var err error
	require.Eventually(t, func() bool {
		l, err = Listen(netip.IPv6Loopback(), o)
		return !errors.Is(err, syscall.EADDRINUSE)
	}, 5*time.Second, 10*time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.(*udp)
}

// collect receives n packets and checks each packet's ICRC and sender.
func collect(t testing.TB, l Link, from netip.Addr, n int) (ps [][]byte) {
	path := wire.NewPath(from, l.Addr())
	rs := make([]Received, 16)
	deadline := time.Now().Add(5 * time.Second)
	for len(ps) < n {
		k, err := l.Recv(rs, deadline)
		require.NoError(t, err)
		require.True(t, time.Now().Before(deadline), "%d of %d packets came", len(ps), n)
		for _, r := range rs[:k] {
			require.Equal(t, netip.AddrPortFrom(from, wire.Port), r.From)
			for _, b := range split(r.Data, r.Size) {
				p, err := wire.Parse(b)
				require.NoError(t, err)
				require.True(t, path.Verify(p, r.From.Port(), 0), "ICRC of packet %d", len(ps))
				ps = append(ps, b)
			}
		}
	}
	return ps
}

// sealed is what a burst's packets must look like on arrival.
func sealed(b Burst, id func(i int) uint16) [][]byte {
	ps := split(b.Data, b.Size)
	for i, p := range ps {
		b.Path.Seal(p, wire.Port, id(i))
	}
	return ps
}

func zero(int) uint16 { return 0 }

func TestBurstsOfEveryShapeArriveAsSent(t *testing.T) {
	for _, o := range []struct{ send, recv bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		t.Run(fmt.Sprintf("GSO=%v/GRO=%v", o.send, o.recv), func(t *testing.T) {
			a, b := open(t, Options{NoOffload: !o.send}), open(t, Options{NoOffload: !o.recv})
			rng := rand.New(rand.NewPCG(1, 2))
			path := wire.NewPath(a.Addr(), b.Addr())
			for _, size := range []int{4, 16, 256, 1024, 4096} {
				for _, n := range []int{0, 1, size - 3, size, size + 1, 2 * size, 15*size - 1, 15 * size, 16 * size, 63*size + 8, 64 * size, 65 * size, 150*size - 2} {
					x := burst(rng, path, n, size, wire.PSN(n))
					per := max(1, min(maxSegments, maxDatagram/x.Size))
					require.NoError(t, a.Send([]Burst{x}))
					want := sealed(x, func(i int) uint16 {
						if !o.send {
							return 0
						}
						return uint16(i % per)
					})
					require.Equal(t, want, collect(t, b, a.Addr(), len(want)), "%d bytes in packets of %d", n, size)
				}
			}
			assert.Equal(t, o.send, a.Stats().SendOffload)
			assert.Equal(t, o.recv, b.Stats().ReceiveOffload)
			assert.Equal(t, a.Stats().SentPackets, b.Stats().ReceivedPackets)
			assert.Equal(t, a.Stats().SentBytes, b.Stats().ReceivedBytes)
			assert.Zero(t, a.Stats().SendDropped+b.Stats().ReceiveDropped)
		})
	}
}

func TestManyBurstsToSeveralPeersKeepTheirOrder(t *testing.T) {
	a, b, c := open(t, Options{}), open(t, Options{}), open(t, Options{})
	rng := rand.New(rand.NewPCG(3, 4))
	paths := []*wire.Path{wire.NewPath(a.Addr(), b.Addr()), wire.NewPath(a.Addr(), c.Addr())}
	var bursts []Burst
	want := make([][][]byte, 2)
	for i := range 100 {
		x := burst(rng, paths[i%2], rng.IntN(9000), 1<<(5+rng.IntN(8)), wire.PSN(i<<8))
		bursts = append(bursts, x)
	}
	require.NoError(t, a.Send(bursts))
	for i, x := range bursts {
		want[i%2] = append(want[i%2], split(x.Data, x.Size)...)
	}
	require.Equal(t, want[0], collect(t, b, a.Addr(), len(want[0])))
	require.Equal(t, want[1], collect(t, c, a.Addr(), len(want[1])))
}

func TestIPv6(t *testing.T) {
	for _, off := range []bool{false, true} {
		l := open6(t, Options{NoOffload: off})
		path := wire.NewPath(l.Addr(), l.Addr())
		x := burst(rand.New(rand.NewPCG(5, 6)), path, 200_001, 1024, 9)
		require.NoError(t, l.Send([]Burst{x}))
		want := sealed(x, zero) // IPv6 has no identification
		require.Equal(t, want, collect(t, l, l.Addr(), len(want)))
		assert.Equal(t, 4096, l.MTU(l.Addr()))

		_, err := Listen(l.Addr(), Options{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, "IPv6 has only one loopback address")
		require.NoError(t, l.Close())
	}
}

func TestIPv6TakesPacketsWithoutChecksum(t *testing.T) {
	l := open6(t, Options{})
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, 1))
	require.NoError(t, unix.Sendto(fd, []byte("as rxe sends"), 0, &unix.SockaddrInet6{Port: wire.Port, Addr: l.Addr().As16()}))
	rs := make([]Received, 1)
	n, err := l.Recv(rs, time.Now().Add(5*time.Second))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "as rxe sends", string(rs[0].Data))
}

func TestSendGoesOnWithoutSegmentationWhereTheKernelRefusesIt(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	require.True(t, a.Stats().SendOffload, "this kernel has UDP_SEGMENT")
	// Without a checksum, the kernel answers EINVAL to UDP_SEGMENT.
	require.NoError(t, a.raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
	}))
	path := wire.NewPath(a.Addr(), b.Addr())
	rng := rand.New(rand.NewPCG(7, 8))
	x, y, z := burst(rng, path, 100, 256, 0), burst(rng, path, 300_000, 4096, 1), burst(rng, path, 30_000, 1024, 100)
	require.NoError(t, a.Send([]Burst{x, y, z}))
	want := append(append(sealed(x, zero), sealed(y, zero)...), sealed(z, zero)...)
	require.Equal(t, want, collect(t, b, a.Addr(), len(want)))
	assert.False(t, a.Stats().SendOffload)
	assert.Zero(t, a.Stats().SendDropped)
	assert.EqualValues(t, len(want), a.Stats().SentPackets)
}

func TestWhatTheKernelRefusesIsLostAndNoMore(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	path := wire.NewPath(a.Addr(), b.Addr())
	six := wire.NewPath(netip.IPv6Loopback(), netip.IPv6Loopback())
	rng := rand.New(rand.NewPCG(9, 10))
	long := Burst{Path: path, Data: make([]byte, 70_000), Size: 70_000} // EMSGSIZE
	family := burst(rng, six, 10_000, 1024, 0)                          // EAFNOSUPPORT or EINVAL
	good := burst(rng, path, 10_000, 1024, 5)
	require.NoError(t, a.Send([]Burst{long, family, good}))
	want := split(good.Data, good.Size)
	require.Equal(t, want, collect(t, b, a.Addr(), len(want)))
	assert.EqualValues(t, 11, a.Stats().SendDropped)
	assert.True(t, a.Stats().SendOffload, "a packet that cannot go singly either says nothing of segmentation")
}

func TestNobodyListeningIsNoError(t *testing.T) {
	a := open(t, Options{})
	path := wire.NewPath(a.Addr(), netip.MustParseAddr("127.99.99.99"))
	rng := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		require.NoError(t, a.Send([]Burst{burst(rng, path, 100, 256, 0)}))
		n, err := a.Recv(make([]Received, 1), time.Now().Add(time.Millisecond))
		require.NoError(t, err)
		require.Zero(t, n)
	}
	assert.EqualValues(t, 3, a.Stats().SentPackets)
}

func TestRubbishIsSkipped(t *testing.T) {
	a := open(t, Options{})
	c, err := net.Dial("udp", netip.AddrPortFrom(a.Addr(), wire.Port).String())
	require.NoError(t, err)
	defer c.Close()
	for _, s := range []string{"", "x", ""} {
		_, err = c.Write([]byte(s))
		require.NoError(t, err)
	}
	rs := make([]Received, 8)
	n, err := a.Recv(rs, time.Time{})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, "x", string(rs[0].Data))
	assert.Equal(t, 1, rs[0].Size)
	assert.Equal(t, c.LocalAddr().String(), rs[0].From.String())
}

func TestDropsForWantOfBufferAreCounted(t *testing.T) {
	a, b := open(t, Options{NoOffload: true}), open(t, Options{NoOffload: true})
	require.NoError(t, b.raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 100_000))
	}))
	path := wire.NewPath(a.Addr(), b.Addr())
	rng := rand.New(rand.NewPCG(1, 1))
	require.NoError(t, a.Send([]Burst{burst(rng, path, 100*4096, 4096, 0)}))
	rs := make([]Received, maxReceived)
	n, err := b.Recv(rs, time.Time{})
	require.NoError(t, err)
	require.Less(t, n, 100)
	require.NoError(t, a.Send([]Burst{burst(rng, path, 4096, 4096, 0)}))
	_, err = b.Recv(rs, time.Time{})
	require.NoError(t, err)
	assert.EqualValues(t, 100-n, b.Stats().ReceiveDropped)
}

func TestWakeEndsThePresentOrTheNextRecv(t *testing.T) {
	l := open(t, Options{})
	rs := make([]Received, 4)
	l.Wake()
	l.Wake() // they do not add up
	n, err := l.Recv(rs, time.Time{})
	require.NoError(t, err)
	require.Zero(t, n)

	start := time.Now()
	n, err = l.Recv(rs, start.Add(20*time.Millisecond))
	require.NoError(t, err)
	require.Zero(t, n)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond, "nothing else may end it")

	// Each turn posts work and wakes; work that Recv slept over would hang the test.
	var mu sync.Mutex
	posted, seen := 0, 0
	const turns = 2000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for seen < turns {
			n, err := l.Recv(rs, time.Time{})
			if !assert.NoError(t, err) || !assert.Zero(t, n) {
				return
			}
			mu.Lock()
			seen = posted
			mu.Unlock()
		}
	}()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range turns / 4 {
				mu.Lock()
				posted++
				mu.Unlock()
				l.Wake()
			}
		})
	}
	wg.Wait()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("a wake-up was lost")
	}
}

func TestADeadlineThatPassedDoesNotHideData(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	path := wire.NewPath(a.Addr(), b.Addr())
	rng := rand.New(rand.NewPCG(1, 1))
	rs := make([]Received, 4)
	for range 3 {
		n, err := b.Recv(rs, time.Now().Add(time.Millisecond))
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Send([]Burst{burst(rng, path, 10, 256, 0)}))
		n, err = b.Recv(rs, time.Now().Add(-time.Second))
		require.NoError(t, err)
		require.Equal(t, 1, n, "what has come goes before the deadline")
		b.Wake()
		require.NoError(t, a.Send([]Burst{burst(rng, path, 10, 256, 0)}))
		n, err = b.Recv(rs, time.Time{})
		require.NoError(t, err)
		require.Equal(t, 1, n, "and before a Wake")
		n, err = b.Recv(rs, time.Time{})
		require.NoError(t, err)
		require.Zero(t, n, "which then ends the next")
	}
}

func TestEachRecvHasItsOwnDeadline(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	bs := []Burst{burst(rand.New(rand.NewPCG(1, 1)), wire.NewPath(a.Addr(), b.Addr()), 10, 256, 0)}
	rs := make([]Received, 4)
	for _, d := range []time.Duration{time.Hour, 5 * time.Millisecond} {
		// Data ends a Recv that has parked with a deadline d ...
		start := time.Now()
		timer := time.AfterFunc(time.Millisecond, func() { _ = a.Send(bs) })
		n, err := b.Recv(rs, start.Add(d))
		require.NoError(t, err)
		if n == 0 { // on a busy machine the packet may come too late
			_, err = b.Recv(rs, time.Now().Add(5*time.Second))
			require.NoError(t, err)
		}
		timer.Stop()
		// ... which is not the next one's.
		start = time.Now()
		n, err = b.Recv(rs, start.Add(30*time.Millisecond))
		require.NoError(t, err)
		require.Zero(t, n)
		require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
		require.Less(t, time.Since(start), 5*time.Second)
	}
}

func TestDataWakesAParkedRecv(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	path := wire.NewPath(a.Addr(), b.Addr())
	rng := rand.New(rand.NewPCG(1, 1))
	back := make(chan int)
	go func() {
		defer close(back)
		rs := make([]Received, 4)
		for range 200 {
			n, err := b.Recv(rs, time.Now().Add(10*time.Second))
			if !assert.NoError(t, err) {
				return
			}
			back <- n
		}
	}()
	for range 200 {
		require.NoError(t, a.Send([]Burst{burst(rng, path, 10, 256, 0)}))
		require.Equal(t, 1, <-back)
	}
}

func TestCloseEndsRecvAndSend(t *testing.T) {
	l := open(t, Options{})
	ended := make(chan error)
	for range 2 { // one that waits, or is about to; one that comes too late
		go func() {
			_, err := l.Recv(make([]Received, 1), time.Time{})
			ended <- err
		}()
		err := l.Close()
		require.ErrorIs(t, <-ended, net.ErrClosed)
		if err != nil {
			require.ErrorIs(t, err, net.ErrClosed)
		}
	}
	path := wire.NewPath(l.Addr(), l.Addr())
	err := l.Send([]Burst{burst(rand.New(rand.NewPCG(1, 1)), path, 10, 256, 0)})
	require.ErrorIs(t, err, net.ErrClosed)
	l.Wake()
	_, err = l.Recv(make([]Received, 1), time.Now())
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestSendsAndCloseFromManyGoroutines(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			path := wire.NewPath(a.Addr(), b.Addr())
			x := burst(rand.New(rand.NewPCG(uint64(i), 1)), path, 20_000, 1024, 0)
			for {
				if err := a.Send([]Burst{x}); err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					return
				}
			}
		})
	}
	collect(t, b, a.Addr(), 200)
	require.NoError(t, a.Close())
	wg.Wait()
}

func TestTakenPort(t *testing.T) {
	l := open(t, Options{})
	_, err := Listen(l.Addr(), Options{})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "another process uses RoCE on this address")
	require.ErrorContains(t, err, "127.0.0.3")

	err = portTaken(netip.MustParseAddr("192.0.2.1"), true, syscall.EADDRINUSE)
	require.EqualError(t, err, "roce: listen on 192.0.2.1: UDP port 4791 is taken: the kernel's rdma_rxe holds it in this network namespace, or another process uses RoCE on this address: "+
		"remove rdma_rxe (modprobe -r rdma_rxe), use another network namespace, or stop it or use another address: address already in use")
	err = portTaken(netip.MustParseAddr("192.0.2.1"), false, syscall.EADDRINUSE)
	require.NotContains(t, err.Error(), "rxe")
}

func TestAddressesThatWillNotDo(t *testing.T) {
	for _, c := range []struct{ addr, external, says string }{
		{"0.0.0.0", "", "wildcard"},
		{"::", "", "wildcard"},
		{"192.0.2.1", "", "cannot assign requested address"},
		{"127.0.0.9", "::1", "not of the same family"},
		{"fe80::1%nosuch0", "", "no such network interface"},
	} {
		var o Options
		if c.external != "" {
			o.External = netip.MustParseAddr(c.external)
		}
		_, err := Listen(netip.MustParseAddr(c.addr), o)
		require.ErrorContains(t, err, c.says, c.addr)
	}
	_, err := Listen(netip.Addr{}, Options{})
	require.Error(t, err)
}

func TestExternalAddress(t *testing.T) {
	x := netip.MustParseAddr("198.51.100.1")
	l := open(t, Options{External: x})
	assert.Equal(t, x, l.External())
	assert.NotEqual(t, x, l.Addr())
	assert.Equal(t, open(t, Options{}).Addr().IsLoopback(), true)
}

func TestMTU(t *testing.T) {
	for ip, want := range map[int]int{0: 256, 300: 256, 607: 256, 608: 512, 1280: 1024, 1500: 1024, 4160: 2048, 4191: 2048, 4192: 4096, 9000: 4096, 65536: 4096} {
		assert.Equal(t, want, pathMTU(ip), ip)
	}
	l := open(t, Options{})
	assert.Equal(t, 4096, l.MTU(netip.MustParseAddr("127.0.0.1")))
	assert.Equal(t, 1024, l.MTU(netip.MustParseAddr("::1")), "no way there")
}

// The receive buffer's size in payload must hold what it says, unjoined and at every path MTU from 1024.
func TestRecvBufferHoldsWhatItSays(t *testing.T) {
	for _, size := range []int{1024, 4096} {
		a, b := open(t, Options{NoOffload: true}), open(t, Options{NoOffload: true})
		path := wire.NewPath(a.Addr(), b.Addr())
		x := burst(rand.New(rand.NewPCG(1, 1)), path, 100*size, size, 0)
		n := b.RecvBuffer() / x.Size
		for range n / 100 {
			require.NoError(t, a.Send([]Burst{x}))
		}
		collect(t, b, a.Addr(), n/100*100)
		assert.Zero(t, b.Stats().ReceiveDropped)
	}
}

func TestNothingIsAllocatedPerPacket(t *testing.T) {
	for _, off := range []bool{false, true} {
		a, b := open(t, Options{NoOffload: off}), open(t, Options{NoOffload: off})
		path := wire.NewPath(a.Addr(), b.Addr())
		bs := []Burst{burst(rand.New(rand.NewPCG(1, 1)), path, 40*1024, 1024, 0)}
		rs := make([]Received, maxReceived)
		assert.Zero(t, testing.AllocsPerRun(200, func() {
			_ = a.Send(bs)
			for got := 0; got < 40; {
				n, _ := b.Recv(rs, time.Now().Add(time.Second))
				for _, r := range rs[:n] {
					got += int(packets(len(r.Data), r.Size))
				}
			}
			_, _ = b.Recv(rs, time.Now().Add(10*time.Microsecond)) // a deadline that passes
			b.Wake()
			_, _ = b.Recv(rs, time.Time{}) // a wake-up
		}), "NoOffload %v", off)
	}
}
