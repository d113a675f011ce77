//go:build linux && cgo && rdma

package verbs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpenSaysWhatIsMissingHere(t *testing.T) {
	p, err := Open()
	if err == nil {
		t.Skipf("this machine has RDMA devices (%s works)", p.Name())
	}
	require.ErrorIs(t, err, rdma.ErrUnavailable)
	require.Regexp(t, "modprobe|install", err.Error())
}

func TestOpenNamesTheMissingLibrary(t *testing.T) {
	_, err := open("libibverbs-not-there.so.1", soRDMACM)
	require.ErrorContains(t, err, "libibverbs-not-there.so.1")
	require.ErrorContains(t, err, "install libibverbs1")
	// A library that loads but is not what it should be: libc has no verbs.
	_, err = open("libc.so.6", "libc.so.6")
	require.ErrorContains(t, err, "lack the function")
}

// fakeLib builds testdata/fake.c.
func fakeLib(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler here to build the stand-in for libibverbs")
	}
	so := filepath.Join(t.TempDir(), "fake.so")
	out, err := exec.Command("cc", "-std=gnu11", "-Wall", "-shared", "-fPIC", "-o", so, "testdata/fake.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return so
}

// fakeProvider loads a fresh copy of the fake, whose state is its own.
func fakeProvider(t *testing.T) *Provider {
	t.Helper()
	so := fakeLib(t)
	p, err := open(so, so)
	require.NoError(t, err)
	return p
}

func TestLookNamesWhatIsMissing(t *testing.T) {
	p := fakeProvider(t)
	dev, sys := t.TempDir(), t.TempDir()
	require.ErrorContains(t, p.look(dev, sys+"/none"), "modprobe rdma_rxe")
	require.ErrorContains(t, p.look(dev, sys), "no RDMA device")
	require.NoError(t, os.Mkdir(sys+"/rxe0", 0o755))
	require.ErrorContains(t, p.look(dev, sys), "modprobe -a ib_uverbs rdma_ucm")
	require.NoError(t, os.WriteFile(dev+"/rdma_cm", nil, 0o644))
	require.NoError(t, p.look(dev, sys))
}

var testAddr = netip.MustParseAddrPort("192.0.2.1:3260")

// mapped is memory outside Go's heap, as Register wants it.
func mapped(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// A rig is a queue pair of the fake that sends to itself.
type rig struct {
	ep rdma.Endpoint
	cq rdma.CompletionQueue
	qp rdma.QueuePair
}

func newRig(t *testing.T, p *Provider, depth int) *rig {
	t.Helper()
	ep, err := p.Resolve(t.Context(), testAddr)
	require.NoError(t, err)
	cq, err := ep.Device().NewCQ(512)
	require.NoError(t, err)
	qp, err := ep.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: depth, RecvDepth: 128, MaxSendSGE: 2, MaxRecvSGE: 2})
	require.NoError(t, err)
	r := &rig{ep, cq, qp}
	t.Cleanup(func() {
		assert.NoError(t, r.ep.Close())
		assert.NoError(t, r.cq.Close())
	})
	return r
}

func TestLimitsAreTheDevices(t *testing.T) {
	r := newRig(t, fakeProvider(t), 8)
	d := r.ep.Device()
	assert.Equal(t, "fake0", d.Name())
	assert.Equal(t, rdma.Limits{
		MaxMessage: 1 << 23, MaxSGE: 4, MaxReadSGE: 3, MaxQPDepth: 512, MaxCQDepth: 1024, MaxReadDepth: 6,
		SendInvalidate: true, Windows: true,
	}, d.Limits())
	t.Setenv("FAKE_VERBS_RXE", "1")
	d = newRig(t, fakeProvider(t), 1).ep.Device()
	assert.True(t, d.Limits().Windows && d.Limits().WindowHazard)
	assert.Equal(t, testAddr, r.ep.RemoteAddr())
}

// What goes in comes out on the other side of the C boundary: every field of every kind of request.
func TestPostsCarryEveryField(t *testing.T) {
	p := fakeProvider(t)
	r := newRig(t, p, 128)
	mr, err := r.ep.Device().Register(mapped(t, 4096), rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead|rdma.WindowBind)
	require.NoError(t, err)
	win, err := r.ep.Device().NewWindow()
	require.NoError(t, err)
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("FAKE_VERBS_LOG", log)

	n, err := r.qp.PostRecv([]rdma.RecvWR{
		{ID: 0xfedcba9876543210, SGL: []rdma.SGE{{Addr: 0x1111222233334444, Length: 0x55556666, LKey: 0x77778888}, {Addr: 1, Length: 2, LKey: 3}}},
		{ID: 2},
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	piece := []rdma.SGE{{Addr: 0xa000000000000001, Length: 0xb0000002, LKey: 0xc0000003}}
	bind := rdma.SendWR{ID: 7, Op: rdma.OpBindWindow, Window: win, Region: mr, SGL: []rdma.SGE{{Addr: 0x4000, Length: 0x100, LKey: mr.LKey()}}, Access: rdma.RemoteRead}
	n, err = r.qp.PostSend([]rdma.SendWR{
		{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{piece[0], {Addr: 9, Length: 8, LKey: 7}}},
		{ID: 2, Op: rdma.OpSendInv, Flags: rdma.Signaled | rdma.Solicited, SGL: piece, InvalidateKey: 0xdead0001},
		{ID: 3, Op: rdma.OpWrite, SGL: piece, RemoteAddr: 0x8877665544332211, RKey: 0x99aabbcc},
		{ID: 4, Op: rdma.OpRead, Flags: rdma.Signaled | rdma.Fence, SGL: piece, RemoteAddr: 0x1234, RKey: 0x5678},
		{ID: 5, Op: rdma.OpLocalInv, InvalidateKey: 0xdead0002},
		bind,
		bind, // the same window again needs the key that the bind before it makes, so a chain of its own
	})
	require.NoError(t, err)
	require.Equal(t, 7, n)
	assert.Equal(t, uint32(0x5502), win.RKey())

	got, err := os.ReadFile(log)
	require.NoError(t, err)
	assert.Equal(t, strings.TrimLeft(`
recv id=0xfedcba9876543210 [0x1111222233334444 1431660134 0x77778888] [0x1 2 0x3]
recv id=0x2
doorbell
send id=0x1 op=2 flags=0x2 inv=0 remote=0 rkey=0 [0xa000000000000001 2952790018 0xc0000003] [0x9 8 0x7]
send id=0x2 op=9 flags=0x6 inv=0xdead0001 remote=0 rkey=0 [0xa000000000000001 2952790018 0xc0000003]
send id=0x3 op=0 flags=0 inv=0 remote=0x8877665544332211 rkey=0x99aabbcc [0xa000000000000001 2952790018 0xc0000003]
send id=0x4 op=4 flags=0x3 inv=0 remote=0x1234 rkey=0x5678 [0xa000000000000001 2952790018 0xc0000003]
send id=0x5 op=7 flags=0 inv=0xdead0002 remote=0 rkey=0
send id=0x7 op=8 flags=0 inv=0 remote=0 rkey=0 bind=0x5500->0x5501 mr=0x117 addr=0x4000 len=256 access=0x4
doorbell
send id=0x7 op=8 flags=0 inv=0 remote=0 rkey=0 bind=0x5501->0x5502 mr=0x117 addr=0x4000 len=256 access=0x4
`, "\n"), string(got))
	require.NoError(t, win.Close())
	require.NoError(t, mr.Deregister())
}

func TestCompletionsCarryEveryField(t *testing.T) {
	completionsCarryEveryField(t)
	t.Setenv("FAKE_VERBS_RXE", "1")
	completionsCarryEveryField(t)
}

func completionsCarryEveryField(t *testing.T) {
	r := newRig(t, fakeProvider(t), 128)
	_, err := r.qp.PostRecv([]rdma.RecvWR{{ID: 0xfedcba9876543210}, {ID: 11}})
	require.NoError(t, err)
	_, err = r.qp.PostSend([]rdma.SendWR{
		{ID: 1, Op: rdma.OpSendInv, SGL: []rdma.SGE{{Length: 5}}, InvalidateKey: 0xdead0001},
		{ID: 0xbad, Op: rdma.OpWrite},
	})
	require.NoError(t, err)
	cs := make([]rdma.Completion, 10)
	n, err := r.cq.Poll(cs)
	require.NoError(t, err)
	assert.Equal(t, []rdma.Completion{
		{ID: 1, QPNum: 0x1234, ByteLen: 5, VendorErr: 7},
		{ID: 0xfedcba9876543210, QPNum: 0x1234, Recv: true, ByteLen: 5, Invalidated: true, InvalidatedKey: 0xdead0001},
		{ID: 0xbad, QPNum: 0x1234, Status: rdma.RemAccessErr, VendorErr: 7},
	}, cs[:n])
}

// More than one batch, more than the queue takes, and a request that cannot be posted at all.
func TestPostSaysHowManyWereTaken(t *testing.T) {
	r := newRig(t, fakeProvider(t), 150)
	wrs := make([]rdma.SendWR, 200)
	for i := range wrs {
		wrs[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpWrite}
	}
	n, err := r.qp.PostSend(wrs)
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Equal(t, 150, n)
	cs := make([]rdma.Completion, 200)
	n, err = r.cq.Poll(cs)
	require.NoError(t, err)
	require.Equal(t, 150, n, "a Poll takes all that is there, across batches")
	for i, c := range cs[:n] {
		require.Equal(t, uint64(i), c.ID)
	}
	wrs[70].SGL = make([]rdma.SGE, 3)
	n, err = r.qp.PostSend(wrs)
	require.Equal(t, 70, n)
	require.ErrorContains(t, err, "3 pieces of memory, the queue pair takes 2")
	n, err = r.qp.PostSend([]rdma.SendWR{{Op: 99}})
	require.Zero(t, n)
	require.ErrorIs(t, err, unix.EINVAL)
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	r := newRig(t, fakeProvider(t), 128)
	sgl := []rdma.SGE{{Addr: 1, Length: 2, LKey: 3}}
	recv, send, cs := make([]rdma.RecvWR, 16), make([]rdma.SendWR, 16), make([]rdma.Completion, 64)
	for i := range send {
		recv[i] = rdma.RecvWR{SGL: sgl}
		send[i] = rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: sgl}
	}
	allocs := testing.AllocsPerRun(100, func() {
		_, err := r.qp.PostRecv(recv)
		_, err2 := r.qp.PostSend(send)
		err3 := r.cq.Wait(time.Time{})
		n, err4 := r.cq.Poll(cs)
		if err != nil || err2 != nil || err3 != nil || err4 != nil || n != 32 {
			t.Fatal(n, err, err2, err3, err4)
		}
		r.cq.Wake()
		if err := r.cq.Wait(time.Time{}); err != nil {
			t.Fatal(err)
		}
	})
	assert.Zero(t, allocs)
}

func TestWaitSeesWhatCameBeforeItAndAfter(t *testing.T) {
	r := newRig(t, fakeProvider(t), 128)
	cs := make([]rdma.Completion, 4)
	one := []rdma.SendWR{{ID: 1, Op: rdma.OpWrite}}
	for range 100 {
		_, err := r.qp.PostSend(one)
		require.NoError(t, err)
		require.NoError(t, r.cq.Wait(time.Time{}))
		n, err := r.cq.Poll(cs)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.qp.PostSend(one) })
		for n = 0; n == 0; {
			require.NoError(t, r.cq.Wait(time.Time{})) // no deadline: a lost event hangs here
			n, err = r.cq.Poll(cs)
			require.NoError(t, err)
		}
		wg.Wait()
	}
}

func TestWaitEndsAtTheDeadline(t *testing.T) {
	r := newRig(t, fakeProvider(t), 8)
	start := time.Now()
	require.NoError(t, r.cq.Wait(start.Add(20*time.Millisecond)))
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	require.NoError(t, r.cq.Wait(start)) // has passed
}

// What was done before a Wake is seen after a Wait, whenever the Wake comes: a lost one hangs this test.
func TestWakeIsNeverLost(t *testing.T) {
	r := newRig(t, fakeProvider(t), 8)
	const rounds = 2000
	var done atomic.Int32
	turn := make(chan struct{})
	go func() {
		for range rounds {
			done.Add(1)
			r.cq.Wake()
			<-turn
		}
	}()
	for i := range int32(rounds) {
		for done.Load() == i {
			require.NoError(t, r.cq.Wait(time.Time{}))
		}
		turn <- struct{}{}
	}
}

func TestConnectCarriesParametersBothWays(t *testing.T) {
	p := fakeProvider(t)
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("FAKE_VERBS_LOG", log)
	l, err := p.Listen(netip.MustParseAddrPort("192.0.2.1:0"))
	require.NoError(t, err)
	assert.NotZero(t, l.Addr().Port())
	r := newRig(t, p, 8)
	var passive rdma.Endpoint
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		passive, err = l.Accept(t.Context())
		assert.NoError(t, err)
		assert.Equal(t, rdma.ConnParam{PrivateData: []byte{0xc0, 0, 0, 0}, ResponderResources: 1, InitiatorDepth: 8}, passive.Peer())
		assert.NoError(t, passive.Accept(rdma.ConnParam{PrivateData: []byte{0x80}, InitiatorDepth: 5}))
	})
	// 200 is more than the device has (8).
	require.NoError(t, r.ep.Connect(t.Context(), rdma.ConnParam{PrivateData: []byte{0xc0, 0, 0, 0}, ResponderResources: 200, InitiatorDepth: 1}))
	wg.Wait()
	assert.Equal(t, rdma.ConnParam{PrivateData: []byte{0x80}, ResponderResources: 5}, r.ep.Peer())
	got, err := os.ReadFile(log)
	require.NoError(t, err)
	assert.Equal(t, "connect resources=8 depth=1 retry=7 rnr=7 private=c0000000\naccept resources=0 depth=5 retry=7 rnr=7 private=80\n", string(got))

	// The peer's disconnect flushes what is posted here.
	_, err = r.qp.PostRecv([]rdma.RecvWR{{ID: 42}})
	require.NoError(t, err)
	require.NoError(t, passive.Close())
	require.NoError(t, passive.Close())
	cs := make([]rdma.Completion, 1)
	for n := 0; n == 0; {
		require.NoError(t, r.cq.Wait(time.Time{}))
		n, err = r.cq.Poll(cs)
		require.NoError(t, err)
	}
	assert.Equal(t, rdma.Completion{ID: 42, QPNum: 0x1234, Status: rdma.WRFlushErr}, cs[0])
	require.NoError(t, l.Close())
	_, err = l.Accept(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestConnectExplainsRefusals(t *testing.T) {
	p := fakeProvider(t)
	r := newRig(t, p, 8)
	err := r.ep.Connect(t.Context(), rdma.ConnParam{})
	require.ErrorIs(t, err, rdma.ErrRejected)
	rej, ok := errors.AsType[*rdma.RejectedError](err)
	require.True(t, ok)
	assert.Equal(t, rdma.ReasonNoListener, rej.Reason)

	l, err := p.Listen(testAddr)
	require.NoError(t, err)
	r2 := newRig(t, p, 8)
	var wg sync.WaitGroup
	wg.Go(func() {
		e, err := l.Accept(t.Context())
		assert.NoError(t, err)
		assert.NoError(t, e.Reject([]byte{1, 2}))
	})
	err = r2.ep.Connect(t.Context(), rdma.ConnParam{})
	wg.Wait()
	rej, ok = errors.AsType[*rdma.RejectedError](err)
	require.True(t, ok)
	assert.Equal(t, rdma.RejectedError{Reason: rdma.ReasonConsumer, Private: []byte{1, 2}}, *rej)

	// A request that nobody accepts is refused when the listener closes.
	r3 := newRig(t, p, 8)
	wg.Go(func() { err = r3.ep.Connect(t.Context(), rdma.ConnParam{}) })
	for len(l.(*listener).queue) == 0 {
		runtime.Gosched() // nobody tells of it
	}
	require.NoError(t, l.Close())
	wg.Wait()
	require.ErrorIs(t, err, rdma.ErrRejected)
}

func TestGivingUpEndsTheWaits(t *testing.T) {
	p := fakeProvider(t)
	l, err := p.Listen(testAddr)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r := newRig(t, p, 8)
	require.ErrorIs(t, r.ep.Connect(ctx, rdma.ConnParam{}), context.DeadlineExceeded)
	e, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, e.Close())
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, l.Close())
}

func TestResolveSaysThatThereIsNoPath(t *testing.T) {
	_, err := fakeProvider(t).Resolve(t.Context(), netip.MustParseAddrPort("192.0.2.1:0"))
	require.ErrorContains(t, err, "no RDMA path to 192.0.2.1:0")
	require.ErrorIs(t, err, rdma.ErrUnavailable)
}

func TestClosedThingsSaySo(t *testing.T) {
	p := fakeProvider(t)
	r := newRig(t, p, 8)
	require.NoError(t, r.ep.Close())
	require.NoError(t, r.ep.Disconnect())
	_, err := r.qp.PostSend(make([]rdma.SendWR, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = r.qp.PostRecv(make([]rdma.RecvWR, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, r.ep.Connect(t.Context(), rdma.ConnParam{}), net.ErrClosed)
	require.NoError(t, r.cq.Close())
	_, err = r.cq.Poll(make([]rdma.Completion, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, r.cq.Wait(time.Time{}), net.ErrClosed)
	r.cq.Wake() // harmless
}

func TestRegisterExplainsTheLockLimit(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: old.Max}))
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old) }()
	r := newRig(t, fakeProvider(t), 8)
	mem, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { _ = unix.Munmap(mem) }()
	_, err = r.ep.Device().Register(mem, rdma.LocalWrite)
	require.ErrorContains(t, err, "cannot lock 1.0 GiB for RDMA buffers: limit is 64 KiB")
	require.ErrorContains(t, err, "ulimit -l unlimited")
	require.ErrorIs(t, err, unix.ENOMEM)
	_, err = r.ep.Device().Register(mem[:4096], rdma.RemoteWrite)
	require.ErrorContains(t, err, "remote write without local write")
	_, err = r.ep.Device().Register(nil, rdma.LocalWrite)
	require.ErrorIs(t, err, unix.EINVAL)
}

func TestAddressesSurviveC(t *testing.T) {
	for _, s := range []string{"0.0.0.0:0", "10.9.0.1:3260", "[::]:3260", "[fd00::1]:65535", "[fe80::1%lo]:1"} {
		a := netip.MustParseAddrPort(s)
		c := toC(a)
		assert.Equal(t, a, fromC(&c))
	}
}
