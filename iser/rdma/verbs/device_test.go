package verbs_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/verbs"
)

// onDevice opens the provider for tests on a real device: VERBS_TEST_ADDR is an address on it. `make
// interop` runs these on the kernel's rxe in a virtual machine.
func onDevice(t *testing.T) (rdma.Provider, func() netip.AddrPort) {
	addr := os.Getenv("VERBS_TEST_ADDR")
	if addr == "" {
		t.Skip("VERBS_TEST_ADDR names no address on an RDMA device")
	}
	p, err := verbs.Open()
	require.NoError(t, err)
	ip := netip.MustParseAddr(addr)
	return p, func() netip.AddrPort { return netip.AddrPortFrom(ip, 0) }
}

func TestDeviceKeepsTheRules(t *testing.T) {
	p, addr := onDevice(t)
	rdmatest.Run(t, p, addr)
}

func TestDeviceDataPathDoesNotAllocate(t *testing.T) {
	p, addr := onDevice(t)
	a, b := rdmatest.Connect(t, p, addr(), rdmatest.Config{})
	cs := make([]rdma.Completion, 4)
	one := func(cq rdma.CompletionQueue) {
		for {
			n, err := cq.Poll(cs)
			if err != nil || n > 0 && cs[0].Status != rdma.Success {
				t.Fatal(err, cs[0])
			}
			if n > 0 {
				return
			}
			if err := cq.Wait(time.Now().Add(rdmatest.Patience)); err != nil {
				t.Fatal(err)
			}
		}
	}
	recv := []rdma.RecvWR{{SGL: b.Piece(0, 64)}}
	send := []rdma.SendWR{{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)}}
	allocs := testing.AllocsPerRun(50, func() {
		if _, err := b.QP.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		if _, err := a.QP.PostSend(send); err != nil {
			t.Fatal(err)
		}
		one(b.RecvCQ)
		one(a.SendCQ)
	})
	require.Zero(t, allocs)
}

func TestDeviceErrorsNameThePeer(t *testing.T) {
	p, addr := onDevice(t)
	_, err := p.Resolve(t.Context(), netip.MustParseAddrPort("127.0.0.2:3260"))
	require.ErrorContains(t, err, "no RDMA path to 127.0.0.2:3260")
	require.ErrorIs(t, err, rdma.ErrUnavailable)
	_, err = p.Listen(netip.MustParseAddrPort("192.0.2.1:3260"))
	require.ErrorContains(t, err, "listen on 192.0.2.1:3260: the address is on no RDMA device")
	require.ErrorIs(t, err, rdma.ErrUnavailable)
	for _, any := range []string{"0.0.0.0:0", "[::]:0"} {
		l, err := p.Listen(netip.MustParseAddrPort(any))
		require.NoError(t, err)
		require.NotZero(t, l.Addr().Port())
		to := netip.AddrPortFrom(addr().Addr(), l.Addr().Port())
		e, err := p.Resolve(t.Context(), to)
		require.NoError(t, err)
		require.Equal(t, to, e.RemoteAddr())
		require.NoError(t, e.Close())
		require.NoError(t, l.Close())
	}
}
