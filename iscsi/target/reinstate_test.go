package target_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAReplacedSessionWritesNoMore is the rule of fencing: when a login that replaces a session has been answered, no
// write of the old one touches the store any more, whatever state it was in: waiting for data, for buffers, for a
// worker, or in the store (RFC 7143, 6.3.5). Each write carries the generation of its session, and a store that takes
// its time holds every write against the youngest session that has been answered.
func TestAReplacedSessionWritesNoMore(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		l := newLab(t, 64, target.Config{Workers: 4})
		var answered, late, seen atomic.Uint64
		before := func(bufs [][]byte) {
			seen.Add(1)
			// A device's latency; it is long enough for a login.
			time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
			if binary.BigEndian.Uint64(bufs[0]) < answered.Load() {
				late.Add(1)
			}
		}
		l.slow.before.Store(&before)
		isid := iscsi.ISID{0x80, 0, 0, 1, 2, 3}
		rounds := uint64(12)
		if testing.Short() {
			rounds = 4
		}
		var wg sync.WaitGroup
		var old []*initiator.Session
		for gen := uint64(1); gen <= rounds; gen++ {
			s := l.open(t, transport, initiator.Options{ISID: isid, CommandTimeout: 5 * time.Second})
			answered.Store(gen)
			old = append(old, s)
			d, err := s.Disk(context.Background(), iscsi.LUNFromNumber(1))
			require.NoError(t, err)
			start := seen.Load()
			for i := range 8 {
				wg.Go(func() {
					p := make([]byte, 512<<(i+2)) // up to 256 KiB: immediate, unsolicited and fetched data
					binary.BigEndian.PutUint64(p, gen)
					for d.WriteAt(context.Background(), p, int64(i)<<19) == nil {
					}
				})
			}
			require.Eventually(t, func() bool { return seen.Load() > start+gen%16 }, 5*time.Second, time.Millisecond)
		}
		for _, s := range old {
			_ = s.Close() // all but the last are gone
		}
		wg.Wait()
		assert.Zero(t, late.Load(), "writes of a session that had been replaced")
		assert.Greater(t, seen.Load(), rounds)
	})
}

// TestTargetsComeAndGo is field report DI-11: discovery and logins while targets are made and removed get a list that is
// whole, a session, or a refusal that says so.
func TestTargetsComeAndGo(t *testing.T) {
	overBoth(t, func(t *testing.T, transport string) {
		l := newLab(t, 64, target.Config{})
		const name = "iqn.2026-01.test:coming-and-going"
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				dev := scsi.NewDevice(scsi.DeviceConfig{Name: name})
				_, err := dev.Add(0, l.slow, scsi.LUConfig{ID: "going"})
				assert.NoError(t, err)
				_, err = l.s.AddTarget(target.TargetConfig{Name: name, Device: dev, Negotiate: iscsi.DefaultConfig()})
				assert.NoError(t, err)
				assert.NoError(t, l.s.RemoveTarget(name))
			}
		})
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() {
				o := initiator.Options{InitiatorName: hostName, ISID: iscsi.ISID{0x80, 5: byte(i)}, LoginTimeout: 5 * time.Second}
				for range 10 {
					list, err := initiator.Discover(context.Background(), l.dial[transport], l.addr[transport], o)
					if assert.NoError(t, err) {
						assert.Contains(t, list, initiator.TargetRecord{Name: diskName, Addresses: []string{l.addr[transport] + ",1"}})
					}
					s, err := initiator.Open(context.Background(), l.dial[transport], l.addr[transport], name, o)
					var refused *iscsi.LoginError
					if errors.As(err, &refused) {
						assert.Equal(t, iscsi.LoginNotFound, refused.Status)
					}
					if err == nil {
						_ = s.Close()
					}
				}
			})
		}
		clients.Wait()
		close(stop)
		wg.Wait()
		assert.ErrorIs(t, l.s.RemoveTarget(name), target.ErrNoTarget)
	})
}
