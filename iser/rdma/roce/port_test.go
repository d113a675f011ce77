package roce_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

var strangeAddr = netip.MustParseAddr("10.0.0.9")

// send puts a packet for the passive side on a link.
func send(t *testing.T, l link.Link, op wire.Opcode, payload int, fill func(wire.Packet)) {
	b := make([]byte, wire.MaxHeaders+payload+4)
	p := wire.New(b, op, payload)
	fill(p)
	require.NoError(t, l.Send([]link.Burst{{Path: wire.NewPath(l.Addr(), passiveAddr), Data: p, Size: len(p)}}))
}

// exchange checks that a connection works.
func exchange(t *testing.T, a, b *rdmatest.End, id uint64) {
	b.Recv(id, 0, 64)
	rdmatest.Fill(a.Memory[:64], id)
	a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
	b.Ended(b.Recvs(1), rdma.Success, id)
	rdmatest.Check(t, b.Memory[:64], id)
	a.Ended(a.Sends(1), rdma.Success, id)
}

func TestPacketsOfNobodyChangeNothingButCounters(t *testing.T) {
	bubble(t, 1, link.Weather{}, roce.Options{}, func(t *testing.T, s sides, n *link.Net) {
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		b.Recv(1, 0, 64)
		stranger := n.Link(strangeAddr)
		defer stranger.Close()
		target := func(p wire.Packet) { p.SetDestQP(wire.QPN(b.QP.Num())); p.SetPSN(7) }
		unready, err := s.passive.Resolve(t.Context(), netip.AddrPortFrom(activeAddr, 1))
		require.NoError(t, err)
		idle := rdmatest.NewEnd(t, unready, rdmatest.Config{})
		defer idle.Close()

		for psn := range uint32(4) {
			send(t, stranger, wire.SendOnly, 64, func(p wire.Packet) { target(p); p.SetPSN(wire.PSN(psn)) })
		}
		send(t, stranger, wire.SendOnly, 64, func(p wire.Packet) { p.SetDestQP(2) })                       // no such queue pair
		send(t, stranger, wire.SendOnly, 64, func(p wire.Packet) { p.SetDestQP(wire.QPN(idle.QP.Num())) }) // not connected
		send(t, stranger, wire.UDSendOnly, 256, func(p wire.Packet) { p.SetDestQP(1) })                    // wrong Q_Key
		send(t, stranger, wire.UDSendOnly, 100, func(p wire.Packet) { p.SetDestQP(1); p.SetDETH(cm.QKey, 1) })
		send(t, stranger, wire.UDSendOnly, 256, func(p wire.Packet) { p.SetDestQP(1); p.SetDETH(cm.QKey, 1) }) // no MAD
		require.NoError(t, stranger.Send([]link.Burst{{Path: wire.NewPath(strangeAddr, passiveAddr), Data: make([]byte, 18), Size: 18}}))
		synctest.Wait()
		time.Sleep(time.Second)

		c := s.passive.Counters()
		assert.EqualValues(t, 4, c.WrongPeer)
		assert.EqualValues(t, 1, c.UnknownQP)
		assert.EqualValues(t, 1, c.NotReady)
		assert.EqualValues(t, 2, c.BadMAD)
		assert.EqualValues(t, 1, c.CM.Malformed)
		assert.EqualValues(t, 1, c.Malformed)
		assert.Zero(t, c.QP.Received)
		a.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		b.Ended(b.Recvs(1), rdma.Success, 1)
		a.Ended(a.Sends(1), rdma.Success, 1)
	})
}

// A packet that a bit was flipped in is not seen by the queue pair, and comes again.
func TestWrongICRCIsDropped(t *testing.T) {
	bubble(t, 1, link.Weather{Corrupt: 0.1}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		for id := range uint64(50) {
			exchange(t, a, b, id)
		}
		c := s.passive.Counters()
		assert.NotZero(t, c.BadICRC)
		assert.NotZero(t, s.active.Counters().QP.Retransmits)
	})
}

func TestNobodyAnswers(t *testing.T) {
	bubble(t, 1, link.Weather{}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		ep, err := s.Resolve(t.Context(), netip.AddrPortFrom(strangeAddr, 3260))
		require.NoError(t, err)
		e := rdmatest.NewEnd(t, ep, rdmatest.Config{})
		defer e.Close()
		e.Recv(1, 0, 64)
		start := time.Now()
		err = ep.Connect(t.Context(), rdma.ConnParam{})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorContains(t, err, "roce: connect from 10.0.0.2 to 10.0.0.9:3260: no answer")
		assert.InDelta(t, 24, time.Since(start).Seconds(), 1)
		e.Flushed(1, 1)

		ep2, err := s.Resolve(t.Context(), netip.AddrPortFrom(strangeAddr, 3260))
		require.NoError(t, err)
		e2 := rdmatest.NewEnd(t, ep2, rdmatest.Config{})
		defer e2.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.ErrorIs(t, ep2.Connect(ctx, rdma.ConnParam{}), context.DeadlineExceeded)
	})
}

// A peer that vanishes is noticed by who has something to send, and its queue pair tells it so.
func TestDeadPeer(t *testing.T) {
	bubble(t, 1, link.Weather{Delay: time.Millisecond}, roce.Options{}, func(t *testing.T, s sides, n *link.Net) {
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		exchange(t, a, b, 1)
		n.Partition(activeAddr, passiveAddr, true)
		a.Recv(2, 0, 64)
		start := time.Now()
		a.Post(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		a.Ended(a.Sends(1), rdma.RetryExcErr, 3)
		assert.Less(t, time.Since(start), 6*time.Second)
		a.Flushed(2, 1)
		n.Partition(activeAddr, passiveAddr, false)
		b.Recv(4, 0, 64)
		b.Flushed(4, 1) // the DREQ is repeated until it gets through
	})
}

// Both sides of a connection that is cut for a while go on as if nothing had been.
func TestShortInterruptionIsSurvived(t *testing.T) {
	bubble(t, 1, link.Weather{Delay: time.Millisecond}, roce.Options{}, func(t *testing.T, s sides, n *link.Net) {
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		n.Partition(activeAddr, passiveAddr, true)
		b.Recv(1, 0, 64)
		a.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		time.Sleep(time.Second)
		n.Partition(activeAddr, passiveAddr, false)
		b.Ended(b.Recvs(1), rdma.Success, 1)
		a.Ended(a.Sends(1), rdma.Success, 1)
	})
}

func TestCMUnderLoss(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, seed, link.Weather{Loss: 0.2, Duplicate: 0.1, Reorder: 0.1, Delay: time.Millisecond}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
			l, err := s.Listen(anyPort())
			require.NoError(t, err)
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for id := range uint64(5) {
				a, b := rdmatest.ConnectTo(ctx, t, s, l, rdmatest.Config{Depth: 4, Memory: 4096})
				exchange(t, a, b, id)
				b.Recv(9, 0, 64)
				a.Close()
				b.Flushed(9, 1)
				b.Close()
			}
			time.Sleep(time.Minute)
			require.Empty(t, s.active.QueuePairs())
			require.Empty(t, s.passive.QueuePairs())
		})
	}
}

// Data is right after any weather, in every direction and with every operation.
func TestDataUnderWeather(t *testing.T) {
	w := link.Weather{Loss: 0.02, Corrupt: 0.01, Duplicate: 0.02, Reorder: 0.05, Delay: 100 * time.Microsecond, Jitter: 100 * time.Microsecond, MTU: 1024}
	for seed := range uint64(8) {
		bubble(t, seed, w, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
			const size = 64 << 10
			a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
			for i := range uint64(10) {
				rdmatest.Fill(a.Memory[:size], i)
				b.Recv(i, 2*size, size)
				a.Post(
					rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: a.Pieces(0, size, 3), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
					rdma.SendWR{ID: 2, Op: rdma.OpRead, SGL: a.Pieces(size, size, 3), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
					rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Fence, SGL: a.Piece(size, size)},
				)
				b.Ended(b.Recvs(1), rdma.Success, i)
				rdmatest.Check(t, b.Memory[:size], i)
				rdmatest.Check(t, b.Memory[2*size:3*size], i)
				a.Ended(a.Sends(1), rdma.Success, 3)
				rdmatest.Check(t, a.Memory[size:2*size], i)
			}
			c := s.active.Counters()
			require.NotZero(t, c.QP.Retransmits)
		})
	}
}

// After Close nothing writes to the memory of the queue pair, or reads it, whatever is still on its way.
func TestClosedQueuePairsMemoryIsLeftAlone(t *testing.T) {
	bubble(t, 1, link.Weather{Delay: time.Millisecond}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		const size = 64 << 10
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		rdmatest.Fill(b.Memory[:size], 5)
		a.Post(
			rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: a.Piece(0, size), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()},
			rdma.SendWR{ID: 2, Op: rdma.OpWrite, SGL: a.Piece(0, size), RemoteAddr: b.MR.Addr() + size, RKey: b.MR.RKey()},
		)
		time.Sleep(1500 * time.Microsecond) // responses and data are on the way
		require.NoError(t, b.EP.Close())
		rdmatest.Fill(b.Memory[size:2*size], 6)
		require.NoError(t, a.EP.Close())
		rdmatest.Fill(a.Memory[:size], 7)
		time.Sleep(time.Second)
		rdmatest.Check(t, a.Memory[:size], 7)
		rdmatest.Check(t, b.Memory[size:2*size], 6)
	})
}

func TestProviderCloseEndsEverything(t *testing.T) {
	bubble(t, 1, link.Weather{}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		l, err := s.Listen(anyPort())
		require.NoError(t, err)
		a, b := rdmatest.ConnectTo(t.Context(), t, s, l, rdmatest.Config{})
		b.Recv(1, 0, 64)
		accepted := make(chan error, 1)
		go func() { _, err := l.Accept(context.Background()); accepted <- err }()
		synctest.Wait()
		require.NoError(t, s.active.Close())
		b.Flushed(1, 1) // the peer is told
		require.NoError(t, s.passive.Close())
		require.ErrorIs(t, <-accepted, net.ErrClosed)
		require.NotZero(t, s.passive.Counters().CM.Received, "they can still be read")
		_, err = a.QP.PostSend([]rdma.SendWR{{Op: rdma.OpSend}})
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = s.Resolve(t.Context(), l.Addr())
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = s.Listen(anyPort())
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestBacklogIsBounded(t *testing.T) {
	bubble(t, 1, link.Weather{}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		l, err := s.Listen(anyPort())
		require.NoError(t, err)
		defer l.Close()
		const extra = 5
		errs := make(chan error, cm.MaxHalfOpenPeer+extra)
		for range cm.MaxHalfOpenPeer + extra {
			ep, err := s.Resolve(t.Context(), l.Addr())
			require.NoError(t, err)
			e := rdmatest.NewEnd(t, ep, rdmatest.Config{Depth: 2, Memory: 4096})
			t.Cleanup(e.Close)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				errs <- ep.Connect(ctx, rdma.ConnParam{})
			}()
		}
		synctest.Wait()
		require.EqualValues(t, extra, s.passive.Counters().CM.Flooded)
		require.NoError(t, l.Close()) // refuses those that wait
		refused := 0
		for range cap(errs) {
			if err := <-errs; assert.ErrorIs(t, err, rdma.ErrRejected) {
				refused++
			}
		}
		require.Equal(t, cap(errs), refused)
	})
}

func TestTakenPortSaysSo(t *testing.T) {
	p, q := open(t, roce.Options{}), open(t, roce.Options{})
	l, err := p.Listen(loopback())
	require.NoError(t, err)
	defer l.Close()
	_, err = q.Listen(loopback())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "UDP port 4791 is taken")
	require.Equal(t, 1, strings.Count(err.Error(), "listen on"), err)
	_, err = p.Listen(l.Addr())
	require.ErrorContains(t, err, "in use")
}

func TestAddressesThatCannotBe(t *testing.T) {
	p := open(t, roce.Options{Addr: loopback().Addr()})
	for _, a := range []string{"127.0.0.1:1", "224.0.0.1:1", "[::1]:1"} {
		_, err := p.Listen(netip.MustParseAddrPort(a))
		assert.Error(t, err, a)
	}
	for _, a := range []string{"127.0.0.1:0", "0.0.0.0:1", "224.0.0.1:1", "[::1]:1"} {
		_, err := p.Resolve(t.Context(), netip.MustParseAddrPort(a))
		assert.Error(t, err, a)
	}
	_, err := p.Listen(netip.AddrPort{})
	assert.Error(t, err)
	_, err = p.Resolve(t.Context(), netip.AddrPort{})
	assert.Error(t, err)
}

// One provider on one address talks to itself.
func TestOneAddressForBothEnds(t *testing.T) {
	p := open(t, roce.Options{Addr: loopback().Addr()})
	a, b := rdmatest.Connect(t, p, loopback(), rdmatest.Config{})
	for id := range uint64(3) {
		exchange(t, a, b, id)
		exchange(t, b, a, id)
	}
	require.Len(t, p.QueuePairs(), 2)
}

func TestWarmDataPathDoesNotAllocate(t *testing.T) {
	a, b, _ := twoPeers(t, rdmatest.Config{})
	for _, op := range []rdma.OpCode{rdma.OpWrite, rdma.OpRead} {
		p := newPump(a, b, op, 64<<10, 4)
		for range 50 {
			p.post()
		}
		p.reap(0)
		assert.Less(t, testing.AllocsPerRun(200, func() { p.post(); p.reap(0) }), 1.0, "%v", op)
		require.Zero(t, p.bad)
	}
}

// A poster that does not poll is held back, and loses nothing.
func TestUnpolledCompletionsHoldThePosterBack(t *testing.T) {
	bubble(t, 1, link.Weather{}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		const depth = 8
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{Depth: depth})
		taken := 0
		for range 10 {
			for {
				n, err := a.QP.PostSend([]rdma.SendWR{{ID: uint64(taken), Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: a.Piece(0, 8), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}})
				taken += n
				if err != nil {
					require.ErrorIs(t, err, rdma.ErrQueueFull)
					break
				}
			}
			time.Sleep(time.Second) // they complete
		}
		require.LessOrEqual(t, taken, 2*depth)
		for i, c := range a.Sends(taken) {
			require.EqualValues(t, i, c.ID)
			require.Equal(t, rdma.Success, c.Status)
		}
		require.NoError(t, a.EP.Disconnect())
		n, err := a.QP.PostSend(make([]rdma.SendWR, 3)[:0])
		require.NoError(t, err)
		require.Zero(t, n)
		chain := make([]rdma.SendWR, 2*depth)
		for i := range chain {
			chain[i].Op = rdma.OpSend
		}
		n, err = a.QP.PostSend(chain)
		require.ErrorIs(t, err, rdma.ErrQueueFull)
		require.Equal(t, depth, n)
		for _, c := range a.Sends(n) {
			require.Equal(t, rdma.WRFlushErr, c.Status)
		}
	})
}

func TestIPv6(t *testing.T) {
	p := open(t, roce.Options{})
	l, err := p.Listen(netip.MustParseAddrPort("[::1]:0"))
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Skipf("IPv6 has one loopback address, and it cannot be had: %v", err)
	}
	require.NoError(t, err)
	defer l.Close()
	a, b := rdmatest.ConnectTo(t.Context(), t, p, l, rdmatest.Config{})
	for id := range uint64(3) {
		exchange(t, a, b, id)
		exchange(t, b, a, id)
	}
}

// Requests whose callers have given up are passed over by Accept; while nobody accepts, they fill the backlog.
func TestRequestsGivenUpInTheBacklog(t *testing.T) {
	bubble(t, 1, link.Weather{}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
		l, err := s.Listen(anyPort())
		require.NoError(t, err)
		defer l.Close()
		call := func(ctx context.Context) (rdma.Endpoint, <-chan error) {
			ep, err := s.Resolve(ctx, l.Addr())
			require.NoError(t, err)
			e := rdmatest.NewEnd(t, ep, rdmatest.Config{Depth: 2, Memory: 4096})
			t.Cleanup(e.Close)
			done := make(chan error, 1)
			go func() { done <- ep.Connect(ctx, rdma.ConnParam{}) }()
			synctest.Wait()
			return ep, done
		}
		giveUp := func() {
			ctx, cancel := context.WithCancel(t.Context())
			_, done := call(ctx)
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
			synctest.Wait()
		}
		giveUp()
		ep, done := call(t.Context())
		got, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.Equal(t, ep.LocalAddr(), got.RemoteAddr(), "the second caller's")
		require.NoError(t, got.Reject(nil))
		require.ErrorIs(t, <-done, rdma.ErrRejected)

		for range cm.MaxHalfOpen {
			giveUp()
		}
		_, done = call(t.Context())
		var re *rdma.RejectedError
		require.ErrorAs(t, <-done, &re)
		require.EqualValues(t, cm.ReasonNoResources, re.Reason)
	})
}

func TestSmallReceiveBufferIsToldOnce(t *testing.T) {
	for _, row := range []struct {
		buffer int
		told   int
	}{{256 << 10, 1}, {8 << 20, 0}} {
		n := link.NewNet(1, link.NetOptions{RecvBuffer: row.buffer})
		var told []string
		p := open(t, roce.Options{
			Link: func(a netip.Addr) (link.Link, error) { return n.Link(a), nil },
			Warn: func(s string) { told = append(told, s) },
		})
		for _, a := range []netip.Addr{passiveAddr, activeAddr} {
			l, err := p.Listen(netip.AddrPortFrom(a, 0))
			require.NoError(t, err)
			defer l.Close()
		}
		require.Len(t, told, row.told)
		for _, s := range told {
			require.Contains(t, s, "RoCE on 10.0.0.1: the system lets a socket hold 256 KiB of packets")
			require.Contains(t, s, "sysctl -w net.core.rmem_max=")
		}
	}
}
