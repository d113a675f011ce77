package initiator_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"net/netip"
	"os"
	"slices"
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
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	diskName = "iqn.2026-01.test:disk"
	hostName = "iqn.2026-01.test:host"
	diskSize = 2 << 20
)

// A network is a transport for a test, with a place to listen.
type network struct {
	name   string
	dial   initiator.Transport
	listen func(portal int) (iscsi.Listener, error)
	held   func() int   // what of RDMA is not closed yet; nil: there is none
	close  func() error // the network itself; nil: that needs nothing
}

// networks are loopback TCP, and iSER on the in-process fabric.
func networks() []network {
	f := fabric.New(fabric.Options{})
	return []network{
		{name: "tcp", dial: &tcp.Dialer{}, listen: func(int) (iscsi.Listener, error) { return tcp.Listen("127.0.0.1:0") }},
		{name: "iser", dial: &iser.Dialer{Provider: f}, listen: func(portal int) (iscsi.Listener, error) {
			return iser.Listen(f, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + portal)}), 3260), iser.TargetConfig{})
		}, held: func() int {
			g := f.Gauges()
			return g.Listeners + g.Endpoints + g.QueuePairs + g.CompletionQueues + g.Regions + g.Windows
		}},
	}
}

// onEach runs a test on each network.
func onEach(t *testing.T, run func(t *testing.T, n network)) {
	for _, n := range networks() {
		t.Run(n.name, func(t *testing.T) { run(t, n) })
	}
}

// serve runs a target with a RAM disk as LUN 0 and returns its address.
func (n network) serve(t testing.TB, more ...string) string {
	t.Helper()
	return n.site(t, []uint16{1}, more...).addresses[0]
}

// A site is a target with a RAM disk as LUN 0.
type site struct {
	addresses []string // of its portals
	device    *scsi.Device
	unit      *scsi.LogicalUnit
}

// site runs a target with a portal in each of the portal groups.
func (n network) site(t testing.TB, groups []uint16, more ...string) *site {
	t.Helper()
	pool, err := arena.New(64 * arena.ChunkSize)
	require.NoError(t, err)
	s := target.New(target.Config{Pool: pool})
	ram, err := backstore.Open("ram", backstore.Options{"size": fmt.Sprint(diskSize)})
	require.NoError(t, err)
	require.NoError(t, s.RegisterMemory(ram.(backstore.Mapper).Memory()))
	known := []scsi.PortGroup{}
	for _, g := range slices.Compact(slices.Clone(groups)) {
		known = append(known, scsi.PortGroup{ID: g})
	}
	p := &site{device: scsi.NewDevice(scsi.DeviceConfig{Name: diskName, PortGroups: known})}
	p.unit, err = p.device.Add(0, ram, scsi.LUConfig{ID: "e2e"})
	require.NoError(t, err)
	for _, name := range append([]string{diskName}, more...) {
		_, err = s.AddTarget(target.TargetConfig{Name: iscsi.Name(name), Device: p.device, Negotiate: iscsi.DefaultConfig()})
		require.NoError(t, err)
	}
	for i, g := range groups {
		l, err := n.listen(i)
		require.NoError(t, err)
		require.NoError(t, s.Serve(l, target.PortalConfig{Tag: g}))
		p.addresses = append(p.addresses, l.Addr().String())
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		assert.NoError(t, s.Shutdown(ctx))
		assert.Equal(t, pool.Chunks(), pool.Free(), "chunks lost")
		assert.NoError(t, pool.Close())
		assert.NoError(t, ram.Close())
	})
	return p
}

func options(t testing.TB) initiator.Options {
	log := logrus.New()
	log.SetOutput(io.Discard)
	if os.Getenv("E2E_LOG") != "" {
		log.SetOutput(os.Stderr)
	}
	return initiator.Options{InitiatorName: hostName, Log: log}
}

func (n network) open(t testing.TB, address string, o initiator.Options) *initiator.Session {
	t.Helper()
	s, err := initiator.Open(context.Background(), n.dial, address, diskName, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func TestDisk(t *testing.T) { onEach(t, checkDisk) }

func checkDisk(t *testing.T, n network) {
	ctx := context.Background()
	s := n.open(t, n.serve(t), options(t))
	luns, err := s.LUNs(ctx)
	require.NoError(t, err)
	assert.Equal(t, []iscsi.LUN{0}, luns)
	d, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, int64(diskSize), d.SizeBytes())
	assert.Equal(t, 512, d.BlockSize())
	assert.False(t, d.ReadOnly())

	rng := rand.New(rand.NewSource(1))
	want := make([]byte, diskSize)
	rng.Read(want)
	require.NoError(t, d.WriteAt(ctx, want, 0), "a write much longer than one command")
	got := make([]byte, diskSize)
	require.NoError(t, d.ReadAt(ctx, got, 0))
	require.True(t, bytes.Equal(want, got))
	for range 20 {
		off := rng.Int63n(diskSize/512) * 512
		p := make([]byte, min(rng.Int63n(2<<20)/512*512, diskSize-off))
		if rng.Intn(2) == 0 {
			rng.Read(p)
			copy(want[off:], p)
			require.NoError(t, d.WriteAt(ctx, p, off))
		} else {
			require.NoError(t, d.ReadAt(ctx, p, off))
			require.True(t, bytes.Equal(want[off:off+int64(len(p))], p), "%d bytes at %d", len(p), off)
		}
	}
	require.NoError(t, d.Flush(ctx))

	for _, c := range []struct{ size, off int64 }{{512, diskSize}, {1024, diskSize - 512}, {100, 0}, {512, 100}, {512, -512}} {
		assert.Error(t, d.ReadAt(ctx, make([]byte, c.size), c.off), "%d at %d", c.size, c.off)
	}
	_, err = s.Ping(ctx)
	assert.NoError(t, err)
	rsp, err := s.TaskManagement(ctx, iscsi.TMLogicalUnitReset, 0)
	assert.NoError(t, err)
	assert.Equal(t, iscsi.TMComplete, rsp)
	assert.NoError(t, d.ReadAt(ctx, got[:512], 0), "the unit attention after the reset is taken")

	inq, err := s.Inquiry(ctx, 0, false, 0)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(inq), 36)
	pages, err := s.Inquiry(ctx, 0, true, 0)
	require.NoError(t, err)
	assert.Contains(t, pages[4:], byte(0x83))
}

func TestSCSIErrorsComeInWords(t *testing.T) { onEach(t, checkSCSIErrorsComeInWords) }

func checkSCSIErrorsComeInWords(t *testing.T, n network) {
	ctx := context.Background()
	s := n.open(t, n.serve(t), options(t))
	res, err := s.Do(ctx, initiator.Command{LUN: iscsi.LUNFromNumber(7), CDB: make([]byte, 6)})
	require.NoError(t, err)
	assert.ErrorContains(t, res.Err(), "logical unit not supported (5/25/00)")
	_, err = s.Disk(ctx, iscsi.LUNFromNumber(7))
	var st *initiator.StatusError
	assert.ErrorAs(t, err, &st)
}

func TestManyCallersShareASession(t *testing.T) { onEach(t, checkManyCallersShareASession) }

func checkManyCallersShareASession(t *testing.T, n network) {
	ctx := context.Background()
	s := n.open(t, n.serve(t), options(t))
	d, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 100 { // more than the queue is deep
		wg.Go(func() {
			p, q := bytes.Repeat([]byte{byte(i + 1)}, 8192), make([]byte, 8192)
			off := int64(i) * 8192
			for range 20 {
				if !assert.NoError(t, d.WriteAt(ctx, p, off)) || !assert.NoError(t, d.ReadAt(ctx, q, off)) {
					return
				}
				assert.True(t, bytes.Equal(p, q))
			}
		})
	}
	wg.Wait()
}

func TestDiscoveryFindsTargets(t *testing.T) { onEach(t, checkDiscoveryFindsTargets) }

func checkDiscoveryFindsTargets(t *testing.T, n network) {
	var more []string
	for i := range 70 {
		more = append(more, fmt.Sprintf("iqn.2026-01.test:%0180d", i))
	}
	address := n.serve(t, more...)
	list, err := initiator.Discover(context.Background(), n.dial, address, options(t))
	require.NoError(t, err)
	require.Len(t, list, 71)
	for _, r := range list {
		assert.Equal(t, []string{address + ",1"}, r.Addresses)
	}
}

func TestOpenRefused(t *testing.T) { onEach(t, checkOpenRefused) }

func checkOpenRefused(t *testing.T, n network) {
	address := n.serve(t)
	_, err := initiator.Open(context.Background(), n.dial, address, "iqn.2026-01.test:other", options(t))
	var refused *iscsi.LoginError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, iscsi.LoginNotFound, refused.Status)
	assert.ErrorContains(t, err, "target not found")
	_, err = initiator.Open(context.Background(), n.dial, address, "other", options(t))
	assert.ErrorContains(t, err, "iSCSI name")
}

func TestCommandsRaceWithTheirContexts(t *testing.T) { onEach(t, checkCommandsRaceWithTheirContexts) }

func checkCommandsRaceWithTheirContexts(t *testing.T, n network) {
	s := n.open(t, n.serve(t), options(t))
	d, err := s.Disk(context.Background(), 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(int64(i)))
			p := make([]byte, 256<<10)
			if i%2 == 0 { // in place
				b, err := s.AllocBuffer(context.Background(), len(p))
				if !assert.NoError(t, err) {
					return
				}
				defer func() { assert.NoError(t, b.Close()) }()
				p = b.Bytes()
			}
			for range 15 {
				ctx, stop := context.WithTimeout(context.Background(), time.Duration(rng.Intn(2000))*time.Microsecond)
				if rng.Intn(2) == 0 {
					_ = d.WriteAt(ctx, p, 0)
				} else {
					_ = d.ReadAt(ctx, p, 0)
				}
				stop()
				// The buffer is ours again, whatever is still on its way.
				for i := range p {
					p[i] = 0x5a
				}
				_, _ = s.Ping(context.Background())
				if !assert.Equal(t, len(p), bytes.Count(p, []byte{0x5a}), "data landed behind the return") {
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Err(), "aborts do not harm the session")
	require.NoError(t, d.ReadAt(context.Background(), make([]byte, 4096), 0))
}

func BenchmarkDisk(b *testing.B) {
	for _, n := range networks() {
		s := n.open(b, n.serve(b), options(b))
		d, err := s.Disk(context.Background(), 0)
		require.NoError(b, err)
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			for _, callers := range []int{1, 32} {
				b.Run(fmt.Sprintf("%s/read/%dKiB/%d", n.name, size>>10, callers), func(b *testing.B) { benchmarkIO(b, d.ReadAt, size, callers) })
				b.Run(fmt.Sprintf("%s/write/%dKiB/%d", n.name, size>>10, callers), func(b *testing.B) { benchmarkIO(b, d.WriteAt, size, callers) })
			}
		}
	}
}

func benchmarkIO(b *testing.B, io func(context.Context, []byte, int64) error, size, callers int) {
	b.ReportAllocs()
	b.SetBytes(int64(size))
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			p := make([]byte, size)
			for left.Add(-1) >= 0 {
				if err := io(context.Background(), p, 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
