package initiator

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func good(_, in, out []byte) (uint8, []byte, int) { return statusGood, nil, len(in) + len(out) }

func TestSessionFromOpenToClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(good)
		s := openFake(t, ft, Options{})
		assert.Equal(t, [2]int{1, 1}, [2]int{ft.prepared, ft.enabled})
		assert.True(t, s.Params().ImmediateData)
		res, err := s.Do(t.Context(), Command{CDB: make([]byte, 6), In: make([]byte, 7)})
		require.NoError(t, err)
		assert.Equal(t, Result{Received: 7}, res)
		_, err = s.Ping(t.Context())
		require.NoError(t, err)
		rsp, err := s.TaskManagement(t.Context(), iscsi.TMLogicalUnitReset, 3)
		require.NoError(t, err)
		assert.Equal(t, iscsi.TMComplete, rsp)
		require.NoError(t, s.Err())

		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "again")
		<-s.Done()
		assert.ErrorIs(t, s.Err(), net.ErrClosed)
		assert.Equal(t, iscsi.OpLogoutReq, iscsi.OpcodeOf(&ft.sent[len(ft.sent)-1].bhs))
		assert.Equal(t, 1, ft.closed)
		_, err = s.Do(t.Context(), Command{CDB: make([]byte, 6)})
		assert.ErrorIs(t, err, net.ErrClosed)
		_, err = s.Ping(t.Context())
		assert.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestCommandsThatAreRefusedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFake(t, newFakeTarget(good), Options{})
		for _, c := range []Command{
			{},
			{CDB: make([]byte, iscsi.MaxCDB+1)},
			{CDB: make([]byte, 6), In: make([]byte, 1), Out: make([]byte, 1)},
		} {
			_, err := s.Do(t.Context(), c)
			assert.Error(t, err)
		}
		for _, f := range []iscsi.TMFunction{iscsi.TMAbortTask, iscsi.TMTaskReassign} {
			_, err := s.TaskManagement(t.Context(), f, 0)
			assert.ErrorContains(t, err, f.String())
		}
		why := errors.New("over")
		ctx, stop := context.WithCancelCause(t.Context())
		stop(why)
		_, err := s.Do(ctx, Command{CDB: make([]byte, 6)})
		assert.ErrorIs(t, err, why)
		require.NoError(t, s.Close())
	})
}

func TestCloseOfADeafTargetIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(nil) // commands are not answered either
		ft.deaf.Store(true)
		s := openFake(t, ft, Options{})
		done := make(chan error)
		go func() {
			_, err := s.Do(t.Context(), Command{CDB: make([]byte, 6)})
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, s.Close())
		assert.Equal(t, logoutTimeout, time.Since(start))
		assert.ErrorIs(t, <-done, net.ErrClosed)
	})
}

func TestSessionDeathEndsEverythingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(nil)
		ft.mute.Store(true)
		s := openFake(t, ft, Options{QueueDepth: 8})
		var wg sync.WaitGroup
		var lost atomic.Int32
		for range 20 { // more than the queue is deep: some wait for a token
			wg.Go(func() {
				_, err := s.Do(context.Background(), Command{CDB: make([]byte, 6)})
				assert.ErrorIs(t, err, io.EOF)
				lost.Add(1)
			})
		}
		for range 6 {
			wg.Go(func() {
				_, err := s.Ping(context.Background())
				assert.ErrorIs(t, err, io.EOF)
				lost.Add(1)
			})
		}
		synctest.Wait()
		assert.Len(t, ft.commands, 8)
		ft.die(io.EOF)
		wg.Wait()
		assert.Equal(t, int32(26), lost.Load())
		assert.ErrorIs(t, s.Err(), io.EOF)
		assert.ErrorContains(t, s.Err(), "iqn.2026-01.test:disk")
		assert.ErrorIs(t, s.Close(), io.EOF)
		assert.Equal(t, 1, ft.closed)
	})
}

func TestContextEndReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(nil)
		s := openFake(t, ft, Options{})
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		start := time.Now()
		_, err := s.Do(ctx, Command{CDB: make([]byte, 6), In: make([]byte, 4)})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		synctest.Wait()
		assert.Equal(t, ft.commands, ft.detached)
		assert.Equal(t, ft.commands, ft.forgotten, "the target has promised to be quiet")
		ft.push(iscsi.Event{Kind: iscsi.EventReleased, Transfer: ft.commands[0]})
		synctest.Wait()
		require.NoError(t, s.Err())
		assert.Empty(t, s.tasks, "the token is back")
		require.NoError(t, s.Close())
	})
}

func TestCommandTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFake(t, newFakeTarget(nil), Options{CommandTimeout: 7 * time.Second})
		start := time.Now()
		_, err := s.Do(t.Context(), Command{CDB: []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}})
		assert.ErrorIs(t, err, ErrTimeout)
		assert.ErrorContains(t, err, "command 0x28")
		assert.Equal(t, 7*time.Second, time.Since(start))
		require.NoError(t, s.Close())
	})
}

func TestDeadPeerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(nil)
		s := openFake(t, ft, Options{PingInterval: 5 * time.Second})
		time.Sleep(time.Minute) // in the bubble's time: idle and answered
		require.NoError(t, s.Err())
		ft.mute.Store(true)
		start := time.Now()
		<-s.Done()
		assert.LessOrEqual(t, time.Since(start), 5*time.Second+managementTimeout)
		assert.ErrorContains(t, s.Err(), "NOP-Out was not answered within 10s")
	})
}

func TestNoPingsIfNotWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ft := newFakeTarget(nil)
		s := openFake(t, ft, Options{PingInterval: -1})
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Len(t, ft.sent, 1, "the login only")
		require.NoError(t, s.Close())
	})
}

func TestWaitingForATokenEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFake(t, newFakeTarget(nil), Options{QueueDepth: 1})
		go func() { _, _ = s.Do(context.Background(), Command{CDB: make([]byte, 6)}) }()
		synctest.Wait()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err := s.Do(ctx, Command{CDB: make([]byte, 6)})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, stop = context.WithTimeoutCause(t.Context(), time.Second, errDead)
		defer stop()
		_, err = s.Do(ctx, Command{CDB: make([]byte, 6)})
		assert.ErrorIs(t, err, errDead, "and says why")
		require.NoError(t, s.Close())
	})
}

func TestEnableThatFailsClosesTheConnection(t *testing.T) {
	ft := newFakeTarget(good)
	tr := &failingTransport{ft.fakeDM}
	_, err := Open(t.Context(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
	assert.ErrorIs(t, err, errDead)
	assert.Equal(t, 1, ft.closed)
	_, err = Discover(t.Context(), &failingTransport{newFakeTarget(good).fakeDM}, "h:1", Options{})
	assert.ErrorIs(t, err, errDead)
}

// A failingTransport's connections do not get to full-feature phase.
type failingTransport struct{ *fakeDM }

func (f *failingTransport) Name() string { return "failing" }
func (f *failingTransport) Dial(context.Context, string) (iscsi.InitiatorDatamover, error) {
	return f, nil
}
func (f *failingTransport) Enable(*iscsi.Params, *iscsi.Sequence) error { return errDead }

// TestWarmIODoesNotAllocate covers the engine: the fake allocates nothing once it is warm.
func TestWarmIODoesNotAllocate(t *testing.T) {
	ft := newFakeTarget(good)
	s := openFake(t, ft, Options{PingInterval: -1})
	ft.keep = true
	d := &Disk{s: s, blockSize: 512, piece: maxPiece}
	d.blocks.Store(1 << 20)
	p := make([]byte, 3*maxPiece)
	ctx := context.Background()
	for name, io := range map[string]func() error{
		"read":       func() error { return d.ReadAt(ctx, p[:4096], 0) },
		"write":      func() error { return d.WriteAt(ctx, p[:4096], 0) },
		"split read": func() error { return d.ReadAt(ctx, p, 0) },
	} {
		var err error
		n := testing.AllocsPerRun(500, func() { err = errors.Join(err, io()) })
		require.NoError(t, err)
		if !raceEnabled { // with it sync.Pool drops objects at random
			assert.Zero(t, n, name)
		}
	}
	require.NoError(t, s.Close())
}

func BenchmarkSession(b *testing.B) {
	ft := newFakeTarget(good)
	s, err := Open(context.Background(), ft.transport(), "h:1", "iqn.2026-01.test:disk", Options{PingInterval: -1})
	require.NoError(b, err)
	defer s.Close()
	ft.keep = true
	d := &Disk{s: s, blockSize: 512, piece: maxPiece}
	d.blocks.Store(1 << 20)
	b.Run("one caller", func(b *testing.B) {
		p := make([]byte, 4096)
		b.ReportAllocs()
		b.SetBytes(4096)
		for b.Loop() {
			if err := d.ReadAt(context.Background(), p, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("32 callers", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(4096)
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			p := make([]byte, 4096)
			for pb.Next() {
				if err := d.ReadAt(context.Background(), p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
