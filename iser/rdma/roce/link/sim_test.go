package link

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

var addrA, addrB, addrC = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::3")

// An arrival is a packet received, and when.
type arrival struct {
	at  time.Duration // since the start of the test
	psn wire.PSN
	ok  bool // parsed and verified
}

// gather receives until nothing has come for a second of virtual time.
func gather(t *testing.T, l Link, from netip.Addr, start time.Time) (as []arrival) {
	path, rs := wire.NewPath(from, l.Addr()), make([]Received, 3)
	for {
		n, err := l.Recv(rs, time.Now().Add(time.Second))
		require.NoError(t, err)
		if n == 0 {
			return as
		}
		for _, r := range rs[:n] {
			require.Equal(t, from, r.From.Addr())
			for _, b := range split(r.Data, r.Size) {
				a := arrival{at: time.Since(start)}
				if p, err := wire.Parse(b); err == nil && path.Verify(p, r.From.Port(), 0) {
					a.psn, a.ok = p.PSN(), true
				}
				as = append(as, a)
			}
		}
	}
}

// weathered sends count packets from A to B, a burst of 10 every 10 us, and returns what arrives.
func weathered(t *testing.T, seed uint64, o NetOptions, count int, prepare func(*Net)) (as []arrival, fates map[Fate]int) {
	fates = make(map[Fate]int)
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(seed, o)
		n.Tap(func(e Event) { fates[e.Fate]++ })
		if prepare != nil {
			prepare(n)
		}
		a, b := n.Link(addrA), n.Link(addrB)
		start := time.Now()
		go func() {
			path, rng := wire.NewPath(addrA, addrB), rand.New(rand.NewPCG(1, 1))
			for psn := 0; psn < count; psn += 10 {
				assert.NoError(t, a.Send([]Burst{burst(rng, path, 10*64, 64, wire.PSN(psn))}))
				time.Sleep(10 * time.Microsecond)
			}
		}()
		as = gather(t, b, addrA, start)
		assert.EqualValues(t, count, a.Stats().SentPackets+a.Stats().SendDropped)
		assert.EqualValues(t, len(as), b.Stats().ReceivedPackets)
	})
	return as, fates
}

func TestSimInFairWeatherLosesNothing(t *testing.T) {
	for _, o := range []NetOptions{{}, {NoOffload: true}, {Weather: Weather{Delay: 3 * time.Microsecond, Jitter: 50 * time.Microsecond}}} {
		as, fates := weathered(t, 1, o, 1000, nil)
		require.Len(t, as, 1000)
		for i, a := range as {
			sent := time.Duration(i/10) * 10 * time.Microsecond
			require.True(t, a.ok)
			require.Equal(t, wire.PSN(i), a.psn, "order")
			require.GreaterOrEqual(t, a.at, sent+o.Weather.Delay)
			require.LessOrEqual(t, a.at, sent+o.Weather.Delay+50*time.Microsecond)
		}
		assert.Equal(t, map[Fate]int{Arrives: 1000}, fates)
	}
}

func TestSimWeather(t *testing.T) {
	const count = 4000
	for _, c := range []struct {
		name     string
		w        Weather
		fate     Fate
		min, max int // packets of that fate
	}{
		{"loss", Weather{Loss: 0.1}, Lost, 320, 480},
		{"burst loss", Weather{BurstLoss: 0.01, BurstLength: 20}, Lost, 300, 1100},
		{"duplicates", Weather{Duplicate: 0.1}, Doubled, 320, 480},
		{"reordering", Weather{Reorder: 0.1, Delay: time.Microsecond}, HeldBack, 320, 480},
		{"corruption", Weather{Corrupt: 0.3}, Corrupted, 1000, 1400},
		{"everything", Weather{Loss: 1}, Lost, count, count},
	} {
		t.Run(c.name, func(t *testing.T) {
			as, fates := weathered(t, 7, NetOptions{Weather: c.w}, count, nil)
			assert.GreaterOrEqual(t, fates[c.fate], c.min)
			assert.LessOrEqual(t, fates[c.fate], c.max)
			seen, disorder, bad := make(map[wire.PSN]int), 0, 0
			var last wire.PSN
			for _, a := range as {
				if !a.ok {
					bad++
					continue
				}
				seen[a.psn]++
				if seen[a.psn] == 1 {
					if a.psn.Before(last) {
						disorder++
					} else {
						last = a.psn
					}
				}
			}
			assert.Equal(t, fates[Corrupted], bad, "every wrong bit is found")
			assert.Len(t, seen, count-fates[Lost]-fates[Corrupted])
			assert.Len(t, as, count-fates[Lost]+fates[Doubled])
			if c.fate == HeldBack {
				assert.Greater(t, disorder, 200)
			} else {
				assert.Zero(t, disorder)
			}
		})
	}
}

func TestSimBurstLossTakesRuns(t *testing.T) {
	as, _ := weathered(t, 3, NetOptions{Weather: Weather{BurstLoss: 0.002, BurstLength: 20}}, 5000, nil)
	require.Less(t, len(as), 5000)
	for i := 1; i < len(as); i++ {
		gap := int(as[i].psn.Sub(as[i-1].psn)) - 1
		require.Zero(t, gap%20, "after %d", as[i-1].psn)
	}
}

func TestSimSeedBringsEverythingBack(t *testing.T) {
	o := NetOptions{RecvBuffer: 700, Weather: Weather{
		Loss: 0.05, Corrupt: 0.05, BurstLoss: 0.01, BurstLength: 5, Duplicate: 0.1, Reorder: 0.1, Delay: time.Microsecond, Jitter: 30 * time.Microsecond,
	}}
	a1, f1 := weathered(t, 11, o, 2000, nil)
	a2, f2 := weathered(t, 11, o, 2000, nil)
	require.Equal(t, a1, a2)
	require.Equal(t, f1, f2)
	assert.Positive(t, f1[Overflowed])
	a3, _ := weathered(t, 12, o, 2000, nil)
	require.NotEqual(t, a1, a3)
}

func TestSimBufferOverflows(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond} {
		o := NetOptions{RecvBuffer: 5 * 80, Weather: Weather{Delay: delay}} // packets have 80 bytes
		as, fates := weathered(t, 1, o, 20, nil)
		assert.Equal(t, map[Fate]int{Arrives: 20, Overflowed: 10}, fates)
		require.Len(t, as, 10, "what has been received makes room")
		assert.Equal(t, wire.PSN(4), as[4].psn)
		assert.Equal(t, wire.PSN(10), as[5].psn)
	}
}

func TestSimDropsTheKthThatMatches(t *testing.T) {
	even := func(from, to netip.Addr, p wire.Packet) bool { return from == addrA && p.PSN()%2 == 0 }
	as, fates := weathered(t, 1, NetOptions{}, 20, func(n *Net) {
		n.DropNth(1, even)
		n.DropNth(3, even)
		n.DropNth(1, func(netip.Addr, netip.Addr, wire.Packet) bool { return false })
	})
	assert.Equal(t, map[Fate]int{Arrives: 18, Dropped: 2}, fates)
	var got []wire.PSN
	for _, a := range as {
		got = append(got, a.psn)
	}
	assert.NotContains(t, got, wire.PSN(0))
	assert.NotContains(t, got, wire.PSN(4))
}

func TestSimPartitionWeatherAndMTUOfOneDirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, NetOptions{})
		a, b := n.Link(addrA), n.Link(addrB)
		rng := rand.New(rand.NewPCG(1, 1))
		exchange := func(size int) (toB, toA int) {
			require.NoError(t, a.Send([]Burst{burst(rng, wire.NewPath(addrA, addrB), size, size, 0)}))
			require.NoError(t, b.Send([]Burst{burst(rng, wire.NewPath(addrB, addrA), size, size, 0)}))
			return len(gather(t, b, addrA, time.Now())), len(gather(t, a, addrB, time.Now()))
		}
		check := func(toB, toA, size int) {
			t.Helper()
			x, y := exchange(size)
			assert.Equal(t, [2]int{toB, toA}, [2]int{x, y})
		}
		check(1, 1, 4096)
		n.Partition(addrA, addrB, true)
		check(0, 0, 4096)
		n.Partition(addrB, addrA, false)
		check(1, 1, 4096)
		n.SetWeather(addrA, addrB, Weather{Loss: 1})
		check(0, 1, 4096)
		n.SetWeather(addrA, addrB, Weather{MTU: 1024})
		check(0, 1, 4096)
		check(1, 1, 1024)
		assert.Equal(t, 1024, a.MTU(addrB))
		assert.Equal(t, 4096, b.MTU(addrA))
		assert.EqualValues(t, 1, a.Stats().SendDropped)

		require.NoError(t, b.Close())
		require.NoError(t, a.Send([]Burst{burst(rng, wire.NewPath(addrA, addrB), 10, 256, 0)}), "nobody there")
		b = n.Link(addrB)
		check(1, 1, 256)
	})
}

func TestSimFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, NetOptions{Weather: Weather{Jitter: 10 * time.Microsecond}})
		to := n.Link(addrB)
		for i := range 4 {
			from := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)})
			l := n.Link(from)
			go func() {
				path, rng := wire.NewPath(from, addrB), rand.New(rand.NewPCG(1, 1))
				for psn := range 50 {
					assert.NoError(t, l.Send([]Burst{burst(rng, path, 64, 64, wire.PSN(psn))}))
					to.Wake()
					time.Sleep(3 * time.Microsecond)
				}
			}()
		}
		next, rs := make(map[netip.Addr]wire.PSN), make([]Received, 3)
		for total := 0; total < 200; {
			k, err := to.Recv(rs, time.Now().Add(time.Second))
			require.NoError(t, err)
			for _, r := range rs[:k] {
				for _, b := range split(r.Data, r.Size) {
					from := r.From.Addr()
					require.Equal(t, next[from], wire.Packet(b).PSN())
					next[from]++
					total++
				}
			}
		}
		assert.Len(t, next, 4)
	})
}

func TestSimIdentificationsVary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, NetOptions{})
		path, plain := wire.NewPath(addrA, addrB), 0
		n.Tap(func(e Event) {
			p := bytes.Clone(e.Packet)
			path.Seal(p, wire.Port, 0)
			if bytes.Equal(p, e.Packet) {
				plain++
			}
		})
		a, b := n.Link(addrA), n.Link(addrB)
		require.NoError(t, a.Send([]Burst{burst(rand.New(rand.NewPCG(1, 1)), path, 100*64, 64, 0)}))
		require.Len(t, gather(t, b, addrA, time.Now()), 100)
		assert.Zero(t, plain)
	})
}

func TestSimIPv6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, NetOptions{Weather: Weather{Corrupt: 0.5}})
		a := n.Link(addrC)
		require.NoError(t, a.Send([]Burst{burst(rand.New(rand.NewPCG(1, 1)), wire.NewPath(addrC, addrC), 100*64, 64, 0)}))
		good := 0
		for _, x := range gather(t, a, addrC, time.Now()) {
			if x.ok {
				good++
			}
		}
		assert.InDelta(t, 50, good, 20)
	})
}

func TestSimJoinsAsTheKernelDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, NetOptions{})
		a, b, c := n.Link(addrA), n.Link(addrB), n.Link(netip.MustParseAddr("192.0.2.3"))
		rng := rand.New(rand.NewPCG(1, 1))
		ab, cb := wire.NewPath(addrA, addrB), wire.NewPath(c.Addr(), addrB)
		require.NoError(t, a.Send([]Burst{burst(rng, ab, 20*4096, 4096, 0), burst(rng, ab, 300, 256, 0), burst(rng, ab, 64, 64, 0)}))
		require.NoError(t, c.Send([]Burst{burst(rng, cb, 64, 64, 0)}))
		rs := make([]Received, 10)
		k, err := b.Recv(rs, time.Time{})
		require.NoError(t, err)
		var got [][2]int
		for _, r := range rs[:k] {
			got = append(got, [2]int{len(r.Data), r.Size})
		}
		// 15 of 4112 bytes are what 64 KiB hold; a shorter one ends a run; another size or sender begins one.
		assert.Equal(t, [][2]int{{15 * 4112, 4112}, {5*4112 + 272, 4112}, {60, 60}, {80, 80}, {80, 80}}, got)

		kept := rs[0].Data
		_, err = b.Recv(rs, time.Now())
		require.NoError(t, err)
		assert.Equal(t, bytes.Repeat([]byte{poison}, len(kept)), kept, "Data is valid until the next Recv")
	})
}

func TestSimWakeDeadlineAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1, NetOptions{Weather: Weather{Delay: time.Second}})
		a, b := n.Link(addrA), n.Link(addrB)
		rs, start := make([]Received, 4), time.Now()
		recv := func(deadline time.Time, want int, took time.Duration) {
			t.Helper()
			k, err := b.Recv(rs, deadline)
			require.NoError(t, err)
			require.Equal(t, want, k)
			require.Equal(t, took, time.Since(start))
		}
		b.Wake()
		recv(time.Time{}, 0, 0)
		recv(start.Add(30*time.Minute), 0, 30*time.Minute)
		start = time.Now()
		time.AfterFunc(time.Minute, b.Wake)
		recv(time.Time{}, 0, time.Minute)

		start = time.Now()
		x := burst(rand.New(rand.NewPCG(1, 1)), wire.NewPath(addrA, addrB), 10, 256, 0)
		time.AfterFunc(time.Second, func() { assert.NoError(t, a.Send([]Burst{x})) })
		recv(time.Time{}, 1, 2*time.Second)
		require.NoError(t, a.Send([]Burst{x}))
		b.Wake()
		recv(time.Time{}, 0, 2*time.Second)
		time.Sleep(time.Second)
		b.Wake()
		recv(start, 1, 3*time.Second) // what has come goes before both

		time.AfterFunc(time.Second, func() { assert.NoError(t, b.Close()) })
		_, err := b.Recv(rs[:0], time.Time{}) // the Wake
		require.NoError(t, err)
		_, err = b.Recv(rs, time.Time{})
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, b.Close(), net.ErrClosed)
		require.ErrorIs(t, b.Send([]Burst{x}), net.ErrClosed)
		require.Panics(t, func() { n.Link(addrA) }, "taken")
	})
}
