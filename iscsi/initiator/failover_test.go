package initiator_test

import (
	"context"
	"errors"
	"math/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var errDown = errors.New("the portal is down")

// A gate is a transport to one portal that can be taken down, with all that goes through it.
type gate struct {
	initiator.Transport
	mu   sync.Mutex
	down bool
	live []*gateEnd
}

type gateEnd struct {
	iscsi.InitiatorDatamover
	down atomic.Bool
}

func (e *gateEnd) Flush() error {
	if e.down.Load() {
		return errDown
	}
	return e.InitiatorDatamover.Flush()
}

func (p *gate) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	p.mu.Lock()
	down := p.down
	p.mu.Unlock()
	if down {
		return nil, errDown
	}
	dm, err := p.Transport.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	e := &gateEnd{InitiatorDatamover: dm}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.down.Store(p.down)
	p.live = append(p.live, e)
	return e, nil
}

func (p *gate) set(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	if down {
		for _, e := range p.live {
			e.down.Store(true)
			e.Wake()
		}
		p.live = nil
	}
}

// through connects to a site by paths that can be taken down.
func (n network) through(t *testing.T, p *site, o initiator.Options) ([]*gate, *initiator.Disk) {
	t.Helper()
	var portals []*gate
	var paths []initiator.Path
	for _, a := range p.addresses {
		q := &gate{Transport: n.dial}
		portals = append(portals, q)
		paths = append(paths, initiator.Path{Transport: q, Address: a, Target: diskName})
	}
	m, err := initiator.ConnectPaths(t.Context(), o, paths...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := m.Close(); !errors.Is(err, errDown) { // a session that is just being lost tells why
			assert.NoError(t, err)
		}
	})
	d, err := m.Disk(t.Context(), 0)
	require.NoError(t, err)
	return portals, d
}

// load writes, zeroes, flushes and reads back from several callers until the end, and then reads back everything. It
// returns how many operations that were.
func load(t *testing.T, d *initiator.Disk, seed int64, end time.Time) int64 {
	var ios atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(seed<<8 + int64(i)))
			v := verifier{d: d, rng: rng, off: int64(i) * (diskSize / 8), shadow: make([]byte, diskSize/8)}
			for time.Now().Before(end) && !t.Failed() {
				v.step(t, uint64(ios.Add(1)))
			}
			v.all(t)
		})
	}
	wg.Go(func() { batchUntil(t, d, end) })
	wg.Wait()
	return ios.Load()
}

// TestNothingIsLostWhenPortalsGo: one portal after the other goes and comes back under load, those of two port groups
// and those of one, and access states change meanwhile.
func TestNothingIsLostWhenPortalsGo(t *testing.T) {
	for name, groups := range map[string][]uint16{"two groups": {1, 2}, "one group": {7, 7}} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, n network) {
				goroutines, files := goleak.IgnoreCurrent(), openFiles(t)
				t.Run("down", func(t *testing.T) { checkPortalsGo(t, n, groups) })
				goleak.VerifyNone(t, goroutines)
				assert.Equal(t, files, openFiles(t), "open files")
				if n.held != nil {
					assert.Eventually(t, func() bool { return n.held() == 0 }, time.Minute, 10*time.Millisecond)
				}
			})
		})
	}
}

func checkPortalsGo(t *testing.T, n network, groups []uint16) {
	site := n.site(t, groups)
	o := options(t)
	o.ReconnectTimeout, o.Exclusive, o.PingInterval = time.Minute, true, -1
	portals, d := n.through(t, site, o)
	rng := rand.New(rand.NewSource(*killsSeed))
	end := time.Now().Add(*killsFor)
	over := make(chan struct{})
	var faults sync.WaitGroup
	downs := 0
	faults.Go(func() {
		pause := func() bool { // a schedule of faults: nothing is waited for
			select {
			case <-time.After(time.Duration(5+rng.Intn(60)) * time.Millisecond):
				return true
			case <-over:
				return false
			}
		}
		for pause() {
			p := portals[rng.Intn(len(portals))]
			p.set(true)
			downs++
			pause()
			p.set(false)
			if slices.Contains(groups, 2) {
				g := uint16(1 + rng.Intn(2))
				assert.NoError(t, site.device.SetPortGroupState(g, scsi.AccessState(rng.Intn(4))))
				pause()
				assert.NoError(t, site.device.SetPortGroupState(g, scsi.Optimized))
			}
		}
	})
	t.Logf("%d operations", load(t, d, *killsSeed, end))
	close(over)
	faults.Wait()
	assert.Positive(t, downs)
}

// TestTheOtherPortalServesAlone: the first one never comes back. Where both are of one port group the second fences it.
func TestTheOtherPortalServesAlone(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		o := options(t)
		o.ReconnectTimeout, o.Exclusive, o.PingInterval = time.Minute, true, -1
		portals, d := n.through(t, n.site(t, []uint16{3, 3}), o)
		var once sync.WaitGroup
		once.Go(func() { load(t, d, *killsSeed, time.Now().Add(400*time.Millisecond)) })
		once.Go(func() {
			<-time.After(100 * time.Millisecond)
			portals[0].set(true)
		})
		once.Wait()
		require.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0))
		states := d.PathStates()
		require.Len(t, states, 2)
		assert.True(t, states[1].InUse)
		assert.Error(t, states[0].Err)
	})
}

// TestPathsFollowOurTarget: implicit and explicit changes of access states.
func TestPathsFollowOurTarget(t *testing.T) {
	onEach(t, func(t *testing.T, n network) {
		ctx := t.Context()
		site := n.site(t, []uint16{1, 2})
		o := options(t)
		o.SetAccess = true
		_, d := n.through(t, site, o)
		p := make([]byte, 4096)
		for _, c := range []struct {
			one, two scsi.AccessState
			want     int
		}{
			{scsi.Standby, scsi.Optimized, 1},
			{scsi.NonOptimized, scsi.Unavailable, 0},
			{scsi.NonOptimized, scsi.Optimized, 1},
			{scsi.Optimized, scsi.Standby, 0},
			{scsi.Standby, scsi.Standby, 0}, // by SET TARGET PORT GROUPS
		} {
			require.NoError(t, site.device.SetPortGroupState(1, c.one))
			require.NoError(t, site.device.SetPortGroupState(2, c.two))
			require.NoError(t, d.WriteAt(ctx, p, 0))
			require.NoError(t, d.Flush(ctx))
			require.NoError(t, d.ReadAt(ctx, p, 0))
			assert.True(t, d.PathStates()[c.want].InUse, "%v", c)
		}
	})
}
