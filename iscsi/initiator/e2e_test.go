package initiator_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	diskName = "iqn.2026-01.test:disk"
	hostName = "iqn.2026-01.test:host"
	diskSize = 4 << 20
)

// serve runs a target with a RAM disk as LUN 0 on a loopback port and returns its address.
func serve(t testing.TB, more ...string) string {
	t.Helper()
	pool, err := arena.New(64 * arena.ChunkSize)
	require.NoError(t, err)
	s := target.New(target.Config{Pool: pool})
	ram, err := backstore.Open("ram", backstore.Options{"size": fmt.Sprint(diskSize)})
	require.NoError(t, err)
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: diskName})
	_, err = dev.Add(0, ram, scsi.LUConfig{ID: "e2e"})
	require.NoError(t, err)
	for _, name := range append([]string{diskName}, more...) {
		_, err = s.AddTarget(target.TargetConfig{Name: iscsi.Name(name), Device: dev, Negotiate: iscsi.DefaultConfig()})
		require.NoError(t, err)
	}
	l, err := tcp.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, s.Serve(l, target.PortalConfig{}))
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		assert.NoError(t, s.Shutdown(ctx))
		assert.Equal(t, pool.Chunks(), pool.Free(), "chunks lost")
		assert.NoError(t, pool.Close())
		assert.NoError(t, ram.Close())
	})
	return l.Addr().String()
}

func options(t testing.TB) initiator.Options {
	log := logrus.New()
	log.SetOutput(io.Discard)
	if os.Getenv("E2E_LOG") != "" {
		log.SetOutput(os.Stderr)
	}
	return initiator.Options{InitiatorName: hostName, Log: log}
}

func open(t testing.TB, address string, o initiator.Options) *initiator.Session {
	t.Helper()
	s, err := initiator.Open(context.Background(), &tcp.Dialer{}, address, diskName, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func TestDiskOverTCP(t *testing.T) {
	ctx := context.Background()
	s := open(t, serve(t), options(t))
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
	for range 50 {
		off := rng.Int63n(diskSize/512) * 512
		n := min(rng.Int63n(3<<20)/512*512, diskSize-off)
		p := make([]byte, n)
		if rng.Intn(2) == 0 {
			rng.Read(p)
			copy(want[off:], p)
			require.NoError(t, d.WriteAt(ctx, p, off))
		} else {
			require.NoError(t, d.ReadAt(ctx, p, off))
			require.True(t, bytes.Equal(want[off:off+n], p), "%d bytes at %d", n, off)
		}
	}
	require.NoError(t, d.Flush(ctx))

	for _, c := range []struct{ n, off int64 }{{512, diskSize}, {1024, diskSize - 512}, {100, 0}, {512, 100}, {512, -512}} {
		assert.Error(t, d.ReadAt(ctx, make([]byte, c.n), c.off), "%d at %d", c.n, c.off)
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

func TestSCSIErrorsComeInWords(t *testing.T) {
	ctx := context.Background()
	s := open(t, serve(t), options(t))
	res, err := s.Do(ctx, initiator.Command{LUN: iscsi.LUNFromNumber(7), CDB: make([]byte, 6)})
	require.NoError(t, err)
	assert.ErrorContains(t, res.Err(), "logical unit not supported (5/25/00)")
	_, err = s.Disk(ctx, iscsi.LUNFromNumber(7))
	var st *initiator.StatusError
	assert.ErrorAs(t, err, &st)
}

func TestManyCallersShareASession(t *testing.T) {
	ctx := context.Background()
	s := open(t, serve(t), options(t))
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

func TestDiscoveryFindsTargets(t *testing.T) {
	var more []string
	for i := range 70 {
		more = append(more, fmt.Sprintf("iqn.2026-01.test:%0180d", i))
	}
	address := serve(t, more...)
	list, err := initiator.Discover(context.Background(), &tcp.Dialer{}, address, options(t))
	require.NoError(t, err)
	require.Len(t, list, 71)
	for _, r := range list {
		assert.Equal(t, []string{address + ",1"}, r.Addresses)
	}
}

func TestOpenRefused(t *testing.T) {
	address := serve(t)
	_, err := initiator.Open(context.Background(), &tcp.Dialer{}, address, "iqn.2026-01.test:other", options(t))
	var refused *iscsi.LoginError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, iscsi.LoginNotFound, refused.Status)
	assert.ErrorContains(t, err, "target not found")
	_, err = initiator.Open(context.Background(), &tcp.Dialer{}, address, "other", options(t))
	assert.ErrorContains(t, err, "iSCSI name")
}

func TestCommandsRaceWithTheirContexts(t *testing.T) {
	s := open(t, serve(t), options(t))
	d, err := s.Disk(context.Background(), 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(int64(i)))
			p := make([]byte, 1<<20)
			for range 60 {
				ctx, stop := context.WithTimeout(context.Background(), time.Duration(rng.Intn(2000))*time.Microsecond)
				if rng.Intn(2) == 0 {
					_ = d.WriteAt(ctx, p, 0)
				} else {
					_ = d.ReadAt(ctx, p, 0)
				}
				stop()
				clear(p) // ours again: the race detector would tell
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Err(), "aborts do not harm the session")
	require.NoError(t, d.ReadAt(context.Background(), make([]byte, 4096), 0))
}

func BenchmarkDiskOverTCP(b *testing.B) {
	s := open(b, serve(b), options(b))
	ctx := context.Background()
	d, err := s.Disk(ctx, 0)
	require.NoError(b, err)
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, callers := range []int{1, 32} {
			for name, io := range map[string]func(context.Context, []byte, int64) error{"read": d.ReadAt, "write": d.WriteAt} {
				b.Run(fmt.Sprintf("%s/%dKiB/%d", name, size>>10, callers), func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(size))
					b.SetParallelism(max(callers/2, 1))
					if callers == 1 {
						p := make([]byte, size)
						for b.Loop() {
							if err := io(ctx, p, 0); err != nil {
								b.Fatal(err)
							}
						}
						return
					}
					b.RunParallel(func(pb *testing.PB) {
						p := make([]byte, size)
						for pb.Next() {
							if err := io(ctx, p, 0); err != nil {
								b.Error(err)
								return
							}
						}
					})
				})
			}
		}
	}
}
