package link

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// witness keeps what it is shown.
type witness struct {
	mu   sync.Mutex
	seen []Sight
}

func (w *witness) See(s Sight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Data = slices.Clone(s.Data)
	w.seen = append(w.seen, s)
}

// packets are those of one direction, one by one.
func (w *witness) packets(sent bool) (ps [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen {
		if s.Sent == sent {
			ps = append(ps, split(s.Data, s.Size)...)
		}
	}
	return ps
}

// TestTapShowsWhatIsSentAndReceived: each packet once on each side, sealed, with the addresses that its ICRC covers;
// nothing before a watcher is there and nothing after.
func TestTapShowsWhatIsSentAndReceived(t *testing.T) {
	for name, noOffload := range map[string]bool{"joined": false, "single": true} {
		t.Run(name, func(t *testing.T) {
			var tap Tap
			a, b := open(t, Options{NoOffload: noOffload, Tap: &tap}), open(t, Options{NoOffload: noOffload, Tap: &tap})
			path := wire.NewPath(a.local, b.local)
			rng := rand.New(rand.NewPCG(1, 2))
			var w witness
			exchange := func() [][]byte {
				require.NoError(t, a.Send([]Burst{burst(rng, path, 10*1024+100, 1024, 500)}))
				return receive(t, b, 11)
			}
			exchange()
			tap.Watch(&w)
			got := exchange()
			tap.Watch(nil)
			exchange()
			assert.Equal(t, got, w.packets(true))
			assert.Equal(t, got, w.packets(false))
			for _, s := range w.seen {
				assert.Equal(t, netip.AddrPortFrom(a.local, wire.Port), s.Src)
				assert.Equal(t, netip.AddrPortFrom(b.local, wire.Port), s.Dst)
				assert.Equal(t, s.Sent, s.Link == a.local)
				assert.Zero(t, s.Lost)
			}
			assert.True(t, w.seen[0].Sent, "a packet is seen to leave before it is seen to come")
		})
	}
}

// receive receives n packets.
func receive(t *testing.T, l Link, n int) (ps [][]byte) {
	rs := make([]Received, 16)
	for deadline := time.Now().Add(5 * time.Second); len(ps) < n; {
		k, err := l.Recv(rs, deadline)
		require.NoError(t, err)
		require.True(t, time.Now().Before(deadline), "%d of %d packets came", len(ps), n)
		for _, r := range rs[:k] {
			ps = append(ps, split(slices.Clone(r.Data), r.Size)...)
		}
	}
	return ps
}
