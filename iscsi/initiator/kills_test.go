package initiator_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var (
	killsFor  = flag.Duration("kills.for", 700*time.Millisecond, "how long TestNothingAcknowledgedIsLostWhenConnectionsAreCut runs on each network")
	killsSeed = flag.Int64("kills.seed", 1, "its seed")
	killsRate = flag.Int("kills.rate", 0, "at most so many cuts a minute; 0: as many as there are")
)

var errCut = errors.New("cut")

// A knife cuts connections after a number of rounds, drawn from its seed, of either end's loop: before or behind what
// the round would send.
type knife struct {
	mu       sync.Mutex
	rng      *rand.Rand
	most     int           // rounds
	pause    time.Duration // between two cuts, at least
	last     time.Time     // when the last one was
	cuts     atomic.Int64
	sheathed atomic.Bool // no more cuts
}

// next draws when the next connection ends.
func (k *knife) next() (rounds int, behind bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return 1 + k.rng.Intn(k.most), k.rng.Intn(2) == 0
}

// cut reports whether a connection whose rounds are over is cut now; else it lives for as many again.
func (k *knife) cut(b *blade) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sheathed.Load() || time.Since(k.last) < k.pause {
		b.left = 1 + k.rng.Intn(k.most)
		return false
	}
	k.last = time.Now()
	k.cuts.Add(1)
	return true
}

// A blade is the part of a knife for one end of one connection.
type blade struct {
	k      *knife
	left   int
	behind bool
	dead   bool
}

func (k *knife) blade() blade {
	n, behind := k.next()
	return blade{k: k, left: n, behind: behind}
}

// flush does a round's Flush, or cuts.
func (b *blade) flush(do func() error) error {
	if b.dead {
		return errCut
	}
	if b.left--; b.left > 0 || !b.k.cut(b) {
		return do()
	}
	if b.behind {
		_ = do()
	}
	b.dead = true
	return errCut
}

type cutInitiator struct {
	iscsi.InitiatorDatamover
	blade
}

func (c *cutInitiator) Flush() error { return c.flush(c.InitiatorDatamover.Flush) }

type cutTarget struct {
	iscsi.TargetDatamover
	blade
}

func (c *cutTarget) Flush() error { return c.flush(c.TargetDatamover.Flush) }

type cutTransport struct {
	initiator.Transport
	k *knife
}

func (c cutTransport) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	dm, err := c.Transport.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return &cutInitiator{dm, c.k.blade()}, nil
}

type cutListener struct {
	iscsi.Listener
	k *knife
}

func (c cutListener) Accept(ctx context.Context) (iscsi.TargetDatamover, error) {
	dm, err := c.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &cutTarget{dm, c.k.blade()}, nil
}

// TestNothingAcknowledgedIsLostWhenConnectionsAreCut: both ends die at random points while several callers write,
// flush, and read back what they were told is there. Then nothing is left: no goroutine, no file descriptor, no queue
// pair nor anything else of RDMA, and no buffer (see site). -kills.for 10m -kills.rate 20 is the long run.
func TestNothingAcknowledgedIsLostWhenConnectionsAreCut(t *testing.T) {
	for _, n := range append(networks(), overRoCE()) {
		t.Run(n.name, func(t *testing.T) {
			goroutines, files := goleak.IgnoreCurrent(), openFiles(t)
			t.Run("cut", func(t *testing.T) { checkCuts(t, n) })
			if n.held != nil {
				// Ends of connections that were cut are let go by the provider's own goroutines.
				assert.Eventually(t, func() bool { return n.held() == 0 }, time.Minute, 10*time.Millisecond, "queue pairs and the like")
			}
			if n.close != nil {
				assert.NoError(t, n.close())
			}
			goleak.VerifyNone(t, goroutines)
			assert.Equal(t, files, openFiles(t), "open files")
		})
	}
}

// overRoCE is iSER over our RoCE, at an address that other processes on this machine do not use.
func overRoCE() network {
	a := rdmatest.Address(0)
	p := roce.New(roce.Options{Addr: a})
	return network{
		name: "roce", dial: &iser.Dialer{Provider: p},
		listen: func(int) (iscsi.Listener, error) {
			return iser.Listen(p, netip.AddrPortFrom(a, 3260), iser.TargetConfig{})
		},
		held: func() int { return len(p.QueuePairs()) }, close: p.Close,
	}
}

func checkCuts(t *testing.T, n network) {
	k := &knife{rng: rand.New(rand.NewSource(*killsSeed)), most: 300}
	if *killsRate > 0 {
		k.pause = time.Minute / time.Duration(*killsRate)
	}
	listen := n.listen
	n.listen = func(portal int) (iscsi.Listener, error) {
		l, err := listen(portal)
		return cutListener{l, k}, err
	}
	address := n.serve(t)
	o := options(t)
	o.ReconnectTimeout, o.Exclusive, o.PingInterval = 20*time.Second, true, -1
	c, d := connectThrough(t, cutTransport{n.dial, k}, address, o)
	operations := load(t, d, *killsSeed, time.Now().Add(*killsFor))
	k.sheathed.Store(true)
	assert.Positive(t, k.cuts.Load(), "nothing was cut: the test shows nothing")
	t.Logf("seed %d: %d cuts in %d operations", *killsSeed, k.cuts.Load(), operations)
	assert.NoError(t, d.ReadAt(t.Context(), make([]byte, 512), 0), "over a connection that nobody has cut, nor will")
	assert.NoError(t, c.Close())
}

// connectThrough connects and opens the disk, as often as it takes: the first login has no session to fall back to.
func connectThrough(t *testing.T, tr initiator.Transport, address string, o initiator.Options) (*initiator.Connection, *initiator.Disk) {
	t.Helper()
	for range 100 {
		c, err := initiator.Connect(t.Context(), tr, address, diskName, o)
		if err != nil {
			continue
		}
		d, err := c.Disk(t.Context(), 0)
		if err == nil {
			return c, d
		}
		_ = c.Close()
	}
	require.Fail(t, "no login lives long enough")
	return nil, nil
}

// A verifier knows what its part of the disk holds.
type verifier struct {
	d      *initiator.Disk
	rng    *rand.Rand
	off    int64
	shadow []byte
}

// step writes, zeroes, reads or flushes something. None of it may fail, whatever is cut.
func (v *verifier) step(t *testing.T, number uint64) {
	at := v.rng.Intn(len(v.shadow)/512) * 512
	p := v.shadow[at:min(at+512*(1+v.rng.Intn(128)), len(v.shadow))]
	ctx := t.Context()
	switch v.rng.Intn(8) {
	case 0:
		if err := v.d.Flush(ctx); !errors.Is(err, initiator.ErrCacheDoubtful) {
			assert.NoError(t, err)
		}
	case 1:
		clear(p)
		assert.NoError(t, v.d.WriteZeroes(ctx, v.off+int64(at), int64(len(p))))
	case 2, 3, 4:
		for i := 0; i < len(p); i += 8 {
			binary.BigEndian.PutUint64(p[i:], number<<20|uint64(i))
		}
		assert.NoError(t, v.d.WriteAt(ctx, p, v.off+int64(at)))
	default:
		got := bytes.Repeat([]byte{0xdb}, len(p))
		if assert.NoError(t, v.d.ReadAt(ctx, got, v.off+int64(at))) {
			assert.True(t, bytes.Equal(p, got), "%d bytes at %d are not as written", len(p), v.off+int64(at))
		}
	}
}

// batchUntil writes and reads back the upper half of the disk, many blocks at a time.
func batchUntil(t *testing.T, d *initiator.Disk, end time.Time) {
	const depth, size = 16, 8 << 10
	b, err := d.Batch(depth)
	if !assert.NoError(t, err) {
		return
	}
	defer b.Close()
	done := make([]initiator.Completion, depth)
	for round := byte(1); time.Now().Before(end) && !t.Failed(); round++ {
		bufs := make([][]byte, depth)
		for i := range bufs {
			bufs[i] = bytes.Repeat([]byte{round, byte(i)}, size/2)
		}
		for _, add := range []func([]byte, int64, uint64) error{b.WriteAt, b.ReadAt} {
			for i := range bufs {
				assert.NoError(t, add(bufs[i], diskSize/2+int64(i)*size, uint64(i)))
			}
			n, err := b.Wait(t.Context(), done, depth)
			assert.NoError(t, err)
			assert.Equal(t, depth, n)
			for _, c := range done[:n] {
				assert.NoError(t, c.Err)
			}
			for i := range bufs {
				assert.True(t, bytes.Equal(bufs[i], bytes.Repeat([]byte{round, byte(i)}, size/2)), "block %d of round %d", i, round)
				clear(bufs[i]) // for the read
			}
		}
	}
}

func (v *verifier) all(t *testing.T) {
	got := make([]byte, len(v.shadow))
	if assert.NoError(t, v.d.ReadAt(t.Context(), got, v.off)) {
		assert.True(t, bytes.Equal(v.shadow, got), "at the end")
	}
}

// openFiles counts the process's file descriptors.
func openFiles(t *testing.T) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	runtime.GC()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
