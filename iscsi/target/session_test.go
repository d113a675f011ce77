package target_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const unitBytes = 8 << 20

// A lab is a server with portals over TCP and over iSER, a unit in memory and one whose store may block.
type lab struct {
	s    *target.Server
	pool *arena.Pool
	// dial says how to reach the server, by transport.
	dial map[string]initiator.Transport
	addr map[string]string
	slow *blocking
}

// blocking hides that a store never blocks, and stops at a gate if there is one.
type blocking struct {
	backstore.Store
	gate atomic.Pointer[chan struct{}]
	// before sees each write just before it happens.
	before atomic.Pointer[func(bufs [][]byte)]
}

func (b *blocking) WriteAt(bufs [][]byte, off int64, fua bool) error {
	if before := b.before.Load(); before != nil {
		(*before)(bufs)
	}
	return b.Store.WriteAt(bufs, off, fua)
}

func (b *blocking) ReadAt(bufs [][]byte, off int64) error {
	if gate := b.gate.Load(); gate != nil {
		<-*gate
	}
	return b.Store.ReadAt(bufs, off)
}

func (b *blocking) Info() backstore.Info {
	i := b.Store.Info()
	i.NeverBlocks = false
	return i
}

func newLab(t testing.TB, chunks int, c target.Config) *lab {
	t.Helper()
	pool, err := arena.New(int64(chunks) * arena.ChunkSize)
	require.NoError(t, err)
	c.Pool = pool
	l := &lab{s: target.New(c), pool: pool}
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: diskName})
	var stores []backstore.Store
	for i := range 2 {
		ram, err := backstore.Open("ram", backstore.Options{"size": fmt.Sprint(unitBytes)})
		require.NoError(t, err)
		stores = append(stores, ram)
		if i == 1 {
			l.slow = &blocking{Store: ram}
			_, err = dev.Add(1, l.slow, scsi.LUConfig{ID: "blocking"})
		} else {
			require.NoError(t, l.s.RegisterMemory(ram.(backstore.Mapper).Memory()))
			_, err = dev.Add(0, ram, scsi.LUConfig{ID: "memory"})
		}
		require.NoError(t, err)
	}
	_, err = l.s.AddTarget(target.TargetConfig{Name: diskName, Device: dev, Negotiate: iscsi.DefaultConfig()})
	require.NoError(t, err)

	f := fabric.New(fabric.Options{TwoDevices: true})
	tl, err := tcp.Listen("127.0.0.1:0")
	require.NoError(t, err)
	il, err := iser.Listen(f, netip.MustParseAddrPort("192.0.2.1:3260"), iser.TargetConfig{})
	require.NoError(t, err)
	require.NoError(t, l.s.Serve(tl, target.PortalConfig{}))
	require.NoError(t, l.s.Serve(il, target.PortalConfig{}))
	l.addr = map[string]string{"tcp": tl.Addr().String(), "iser": "192.0.2.1:3260"}
	l.dial = map[string]initiator.Transport{"tcp": &tcp.Dialer{}, "iser": &iser.Dialer{Provider: f}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		assert.NoError(t, l.s.Shutdown(ctx))
		assert.Equal(t, pool.Chunks(), pool.Free())
		assert.NoError(t, pool.Close())
		assert.Zero(t, f.Gauges(), "something was left open on the fabric")
		for _, s := range stores {
			assert.NoError(t, s.Close())
		}
	})
	return l
}

func (l *lab) open(t testing.TB, transport string, o initiator.Options) *initiator.Session {
	t.Helper()
	o.InitiatorName = hostName
	s, err := initiator.Open(context.Background(), l.dial[transport], l.addr[transport], diskName, o)
	require.NoError(t, err)
	return s
}

func overBoth(t *testing.T, f func(t *testing.T, transport string)) {
	for _, name := range []string{"tcp", "iser"} {
		t.Run(name, func(t *testing.T) { f(t, name) })
	}
}

func TestDiscoveryByTransport(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		l := newLab(t, 64, target.Config{})
		list, err := initiator.Discover(context.Background(), l.dial[transport], l.addr[transport], initiator.Options{InitiatorName: hostName})
		require.NoError(t, err)
		assert.Equal(t, []initiator.TargetRecord{{Name: diskName, Addresses: []string{l.addr[transport] + ",1"}}}, list)
	})
}

// TestEveryReadReturnsTheLastWrite: several sessions, both units, many commands at once, sizes and
// places at random, each session in a part of its own.
func TestEveryReadReturnsTheLastWrite(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		l := newLab(t, 128, target.Config{})
		const sessions, streams = 2, 4
		var wg sync.WaitGroup
		for i := range sessions {
			s := l.open(t, transport, initiator.Options{})
			for j := range streams {
				wg.Go(func() {
					seed := uint64(i*streams + j)
					part := int64(unitBytes / (sessions * streams))
					if err := checkStream(s, j%2, part, part*int64(seed), seed); err != nil {
						t.Errorf("session %d stream %d: %v", i, j, err)
					}
				})
			}
			t.Cleanup(func() { assert.NoError(t, s.Close()) })
		}
		wg.Wait()
		for _, i := range l.s.Sessions() {
			assert.Equal(t, transport, i.Transport)
			assert.NotZero(t, i.ReadBytes)
			assert.NotZero(t, i.WrittenBytes)
		}
	})
}

// checkStream writes and reads at random in [off, off+size) of a unit and compares.
func checkStream(s *initiator.Session, unit int, size, off int64, seed uint64) error {
	ctx := context.Background()
	d, err := s.Disk(ctx, iscsi.LUNFromNumber(unit))
	if err != nil {
		return err
	}
	fill := rand.NewChaCha8([32]byte{byte(seed)})
	rng := rand.New(rand.NewPCG(seed, 1))
	want := make([]byte, size)
	if err := d.WriteAt(ctx, want, off); err != nil {
		return err
	}
	for range 60 {
		at := rng.Int64N(size/512) * 512
		n := min((rng.Int64N(size/512)+1)*512>>rng.IntN(8)&^511, size-at)
		p := make([]byte, n)
		if rng.IntN(2) == 0 {
			_, _ = fill.Read(p)
			copy(want[at:], p)
			if err := d.WriteAt(ctx, p, off+at); err != nil {
				return err
			}
			continue
		}
		if err := d.ReadAt(ctx, p, off+at); err != nil {
			return err
		}
		if !bytes.Equal(p, want[at:at+n]) {
			return fmt.Errorf("wrong data in %d bytes at %d", n, off+at)
		}
	}
	return nil
}

// TestCommandsThatAreGivenUp: readers that lose patience while the store hangs, and a reset; everything
// is aborted and nothing arrives late.
func TestCommandsThatAreGivenUp(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		l := newLab(t, 128, target.Config{})
		s := l.open(t, transport, initiator.Options{})
		defer func() { assert.NoError(t, s.Close()) }()
		ctx := context.Background()
		d, err := s.Disk(ctx, iscsi.LUNFromNumber(1))
		require.NoError(t, err)
		for range 3 {
			gate := make(chan struct{})
			l.slow.gate.Store(&gate)
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					p := make([]byte, 64<<10)
					if err := d.ReadAt(short, p, int64(i)<<16); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("read %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			cancel()
			l.slow.gate.Store(nil)
			close(gate)
			r, err := s.TaskManagement(ctx, iscsi.TMLogicalUnitReset, iscsi.LUNFromNumber(1))
			require.NoError(t, err)
			require.Equal(t, iscsi.TMComplete, r)
			require.NoError(t, d.ReadAt(ctx, make([]byte, 4096), 0))
		}
	})
}

func TestServerGoesDownUnderLoad(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		l := newLab(t, 64, target.Config{})
		s := l.open(t, transport, initiator.Options{})
		d, err := s.Disk(context.Background(), 0)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				p := make([]byte, 64<<10)
				for d.ReadAt(context.Background(), p, int64(i)<<16) == nil {
				}
			})
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, l.s.Shutdown(ctx))
		wg.Wait()
		_ = s.Close()
	})
}

func benchmarkDisk(b *testing.B, transport string, unit int, write bool) {
	l := newLab(b, 1024, target.Config{})
	s := l.open(b, transport, initiator.Options{})
	defer s.Close()
	d, err := s.Disk(context.Background(), iscsi.LUNFromNumber(unit))
	require.NoError(b, err)
	p := make([]byte, 4096)
	io := d.ReadAt
	if write {
		io = d.WriteAt
	}
	ctx := context.Background()
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		if err := io(ctx, p, 4096); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSessionRead4K(b *testing.B) {
	b.Run("tcp", func(b *testing.B) { benchmarkDisk(b, "tcp", 0, false) })
	b.Run("iser", func(b *testing.B) { benchmarkDisk(b, "iser", 0, false) })
}

func BenchmarkSessionWrite4K(b *testing.B) {
	b.Run("tcp", func(b *testing.B) { benchmarkDisk(b, "tcp", 0, true) })
	b.Run("iser", func(b *testing.B) { benchmarkDisk(b, "iser", 0, true) })
}

// BenchmarkSessionBlocking4K is a unit whose store may block: through the workers.
func BenchmarkSessionBlocking4K(b *testing.B) {
	b.Run("read", func(b *testing.B) { benchmarkDisk(b, "tcp", 1, false) })
	b.Run("write", func(b *testing.B) { benchmarkDisk(b, "tcp", 1, true) })
}
