package iser_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/scsi"
)

const (
	diskName   = "iqn.2026-01.test:disk"
	diskSize   = 8 << 20
	diskPortal = "10.0.0.1:3260"
)

// serve serves a RAM disk through p and returns what is to be called before the fabric is looked at.
func serve(t *testing.T, p rdma.Provider, tc iser.TargetConfig, c target.Config, negotiate iscsi.Config) (stop func()) {
	t.Helper()
	pool, err := arena.New(256 * arena.ChunkSize)
	require.NoError(t, err)
	ram, err := backstore.Open("ram", backstore.Options{"size": fmt.Sprint(diskSize)})
	require.NoError(t, err)
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: diskName})
	_, err = dev.Add(0, ram, scsi.LUConfig{ID: "disk"})
	require.NoError(t, err)
	c.Pool = pool
	s := target.New(c)
	_, err = s.AddTarget(target.TargetConfig{Name: diskName, Device: dev, Negotiate: negotiate})
	require.NoError(t, err)
	l, err := iser.Listen(p, netip.MustParseAddrPort(diskPortal), tc)
	require.NoError(t, err)
	require.NoError(t, s.Serve(l, target.PortalConfig{}))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		assert.Equal(t, pool.Chunks(), pool.Free(), "chunks lost")
		require.NoError(t, pool.Close())
		require.NoError(t, ram.Close())
	}
}

// The engines over this datamover, on a fabric that holds back and mixes what it may and on which a
// receive that is missing is fatal.
func TestEnginesOverISER(t *testing.T) {
	for seed := range uint64(2) {
		for _, inline := range []bool{true, false} {
			t.Run(fmt.Sprintf("seed %d, unsolicited and partial data %v", seed, inline), func(t *testing.T) {
				f := fabric.New(fabric.Options{Seed: seed, RNRFatal: true, TwoDevices: true})
				c := iscsi.DefaultConfig()
				if inline {
					no := false
					c.InitialR2T = &no
				}
				stop := serve(t, f, iser.TargetConfig{}, target.Config{}, c)
				d := &iser.Dialer{Provider: f, Config: iser.InitiatorConfig{PartialImmediate: inline, PoolBytes: 4 << 20}}

				found, err := initiator.Discover(context.Background(), d, diskPortal, initiator.Options{})
				require.NoError(t, err)
				require.Len(t, found, 1)
				exercise(t, d, c, inline, seed)

				stop()
				assert.Zero(t, f.Gauges())
			})
		}
	}
}

func exercise(t *testing.T, d *iser.Dialer, c iscsi.Config, inline bool, seed uint64) {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	s, err := initiator.Open(ctx, d, diskPortal, diskName, initiator.Options{Negotiate: &c})
	require.NoError(t, err)
	require.Equal(t, !inline, s.Params().InitialR2T)
	disk, err := s.Disk(ctx, 0)
	require.NoError(t, err)
	const users, area = 4, diskSize / 4
	var wg sync.WaitGroup
	for u := range int64(users) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(u)))
			shadow := make([]byte, area)
			for range 10 {
				n := 512 * (1 + rng.Int64N(300))
				off := 512 * rng.Int64N((area-n)/512)
				p := make([]byte, n)
				if rng.IntN(2) == 0 {
					for i := range p {
						p[i] = byte(rng.Uint32())
					}
					copy(shadow[off:], p)
					assert.NoError(t, disk.WriteAt(ctx, p, u*area+off))
					continue
				}
				assert.NoError(t, disk.ReadAt(ctx, p, u*area+off))
				assert.True(t, bytes.Equal(shadow[off:off+n], p), "user %d: %d bytes at %d", u, n, off)
			}
		})
	}
	wg.Wait()
	_, err = s.Ping(ctx)
	require.NoError(t, err)
	r, err := s.TaskManagement(ctx, iscsi.TMLogicalUnitReset, 0)
	require.NoError(t, err)
	require.Equal(t, iscsi.TMComplete, r)
	require.NoError(t, s.Close())
}
