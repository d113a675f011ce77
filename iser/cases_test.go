package iser_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// Field reports of docs/cases.md over iSER, with both engines, on the in-process fabric.

func openCase(ctx context.Context, p rdma.Provider, o initiator.Options) (*initiator.Session, *initiator.Disk, error) {
	d := &iser.Dialer{Provider: p, Config: iser.InitiatorConfig{PoolBytes: 1 << 20}}
	s, err := initiator.Open(ctx, d, diskPortal, diskName, o)
	if err != nil {
		return nil, nil, err
	}
	disk, err := s.Disk(ctx, 0)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, disk, nil
}

// A fullDevice refuses queue pairs beyond a number, as a device does that has no more of them.
type fullDevice struct {
	rdma.Provider
	left atomic.Int64
}

type (
	fullListener struct {
		rdma.Listener
		d *fullDevice
	}
	fullEndpoint struct {
		rdma.Endpoint
		d *fullDevice
	}
)

func (d *fullDevice) Listen(a netip.AddrPort) (rdma.Listener, error) {
	l, err := d.Provider.Listen(a)
	return &fullListener{l, d}, err
}

func (l *fullListener) Accept(ctx context.Context) (rdma.Endpoint, error) {
	ep, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &fullEndpoint{Endpoint: ep, d: l.d}, nil
}

func (e *fullEndpoint) CreateQP(c rdma.QPConfig) (rdma.QueuePair, error) {
	if e.d.left.Add(-1) < 0 {
		e.d.left.Add(1)
		return nil, errors.New("cannot allocate memory")
	}
	return e.Endpoint.CreateQP(c)
}

// TestCaseRD02: thousands of connections one after another and many at once leave nothing behind, and a device that
// is full refuses for as long as it is.
func TestCaseRD02(t *testing.T) {
	sequential, atOnce := 3000, 200
	if testing.Short() || iser.RaceEnabled {
		sequential = 300
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f := fabric.New(fabric.Options{TwoDevices: true})
	stop := serve(t, f, iser.TargetConfig{Window: 8}, target.Config{MaxSessions: 2 * atOnce, MaxLogins: 2 * atOnce}, iscsi.DefaultConfig())
	once := func(i int) error {
		s, d, err := openCase(ctx, f, initiator.Options{QueueDepth: 4})
		if err != nil {
			return err
		}
		return errors.Join(d.WriteAt(ctx, make([]byte, 512), int64(i%1024)*512), s.Close())
	}
	require.NoError(t, once(0)) // the first brings memory that stays: one region
	idle := fabric.Gauges{Listeners: 1, Regions: 1}
	require.Eventually(t, func() bool { return f.Gauges() == idle }, time.Minute, time.Millisecond)
	for i := range sequential {
		require.NoError(t, once(i), "connection %d", i)
	}
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() { assert.NoError(t, once(i)) })
	}
	wg.Wait()
	require.Eventually(t, func() bool { return f.Gauges() == idle }, time.Minute, time.Millisecond, "%+v, before %+v", f.Gauges(), idle)
	stop()
	assert.Zero(t, f.Gauges())
}

// TestCaseRD02FullDevice is its second half.
func TestCaseRD02FullDevice(t *testing.T) {
	const room = 3
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f := fabric.New(fabric.Options{TwoDevices: true})
	full := &fullDevice{Provider: f}
	full.left.Store(room)
	stop := serve(t, full, iser.TargetConfig{Window: 8}, target.Config{}, iscsi.DefaultConfig())
	var open []*initiator.Session
	for range room {
		s, d, err := openCase(ctx, f, initiator.Options{})
		require.NoError(t, err)
		require.NoError(t, d.WriteAt(ctx, make([]byte, 512), 0))
		open = append(open, s)
	}
	_, _, err := openCase(ctx, f, initiator.Options{LoginTimeout: 5 * time.Second})
	require.Error(t, err, "it is full")
	for _, s := range open {
		_, err := s.Ping(ctx)
		require.NoError(t, err, "it goes on serving")
	}
	require.NoError(t, open[0].Close())
	full.left.Add(1)
	s, d, err := openCase(ctx, f, initiator.Options{})
	require.NoError(t, err, "there is room again")
	require.NoError(t, d.WriteAt(ctx, make([]byte, 512), 0))
	for _, s := range append(open[1:], s) {
		require.NoError(t, s.Close())
	}
	stop()
	assert.Zero(t, f.Gauges())
}

// TestCasePF01 is the deep queue of long reads, over iSER.
func TestCasePF01(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f := fabric.New(fabric.Options{TwoDevices: true})
	stop := serve(t, f, iser.TargetConfig{}, target.Config{}, iscsi.DefaultConfig())
	d := &iser.Dialer{Provider: f, Config: iser.InitiatorConfig{PoolBytes: 4 << 20}} // fewer than there are reads
	s, err := initiator.Open(ctx, d, diskPortal, diskName, initiator.Options{QueueDepth: 256})
	require.NoError(t, err)
	disk, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	want := make([]byte, diskSize)
	for i := range want {
		want[i] = byte(i >> 9)
	}
	require.NoError(t, disk.WriteAt(ctx, want, 0))
	var wg sync.WaitGroup
	for i := range 256 {
		wg.Go(func() {
			size := 1 << 20
			if i%64 == 0 {
				size = diskSize // in several commands
			}
			got := make([]byte, size)
			assert.NoError(t, disk.ReadAt(ctx, got, 0))
			assert.True(t, bytes.Equal(want[:size], got))
		})
	}
	wg.Wait()
	require.NoError(t, s.Close())
	stop()
	assert.Zero(t, f.Gauges())
}
