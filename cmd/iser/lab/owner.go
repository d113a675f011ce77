package lab

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iser/rdma"
)

// Scenarios of ownership: who may end a key, and until when memory and blocks are whose.

func foreignInvalidate() *Scenario {
	return &Scenario{
		Name: "foreign-invalidate", Title: "The target invalidates a key of another task, or one that it was never given",
		Controls: []Control{{
			Name: "key-unchecked", Breaks: "the initiator does not look at which key was invalidated",
			plant: func(s *settings) {
				s.targetLayer = invalidatesForeign(false)
				s.hostLayer = believesTheTarget()
			},
			sees: "not its own",
		}},
		set: func(s *settings, rng *rand.Rand) {
			s.wrapStore = slow(200*time.Microsecond, 100*time.Microsecond)
			s.targetLayer = invalidatesForeign(rng.IntN(2) == 0)
		},
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			var all []extent
			for range 4 {
				all = append(all, h.extent(4096*(1+w.rng.IntN(4))))
			}
			refused := 0
			var mu sync.Mutex
			together(len(all), func(i int) {
				if h.read(ctx, all[i]) != nil {
					mu.Lock()
					refused++
					mu.Unlock()
				}
			})
			if h.session.Err() == nil {
				w.fail("%s: the session goes on after the target has invalidated a key that was not its to invalidate", h.name)
			}
			if refused < len(all) {
				w.fail("%s: a command ended well, though what answered it invalidated a key that was not its own", h.name)
			}
			w.targetLayer.arm(false)
			if h.session.Err() == nil {
				return // what is read now is not the same hazard
			}
			if h.must("log in again", h.open(ctx)) {
				h.must("read", h.read(ctx, all[0]))
			}
		},
	}
}

// invalidatesForeign is a target that answers a command, while others wait, with a Send that invalidates one of
// theirs, or a key that nobody gave it.
func invalidatesForeign(unknown bool) *layer {
	type given struct{ itt, key uint32 }
	var waiting []given
	l := &layer{}
	l.polled = func(_ *layerCQ, cs []rdma.Completion, n int) int {
		for i := range cs[:n] {
			q := l.qps[cs[i].QPNum]
			if !cs[i].Recv || cs[i].Status != rdma.Success || q == nil {
				continue
			}
			if h, itt, ok := isA(q.received(&cs[i]), iscsi.OpSCSICommand); ok && h.ReadSTag != 0 {
				waiting = append(waiting, given{itt, h.ReadSTag})
			}
		}
		return n
	}
	l.posting = func(_ *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		for i := range wrs {
			if wrs[i].Op != rdma.OpSend && wrs[i].Op != rdma.OpSendInv {
				continue
			}
			_, itt, ok := isA(l.bytes(wrs[i].SGL[0]), iscsi.OpSCSIResponse)
			if !ok {
				continue
			}
			waiting = slices.DeleteFunc(waiting, func(g given) bool { return g.itt == itt })
			if len(waiting) == 0 {
				continue
			}
			wrs[i].Op, wrs[i].InvalidateKey = rdma.OpSendInv, waiting[0].key
			if unknown {
				wrs[i].InvalidateKey ^= 0x55
			}
		}
		return wrs
	}
	return l
}

// believesTheTarget is an initiator that takes whatever was invalidated for the key of the command that was answered.
func believesTheTarget() *layer {
	keys := make(map[uint32]uint32) // by task
	l := &layer{}
	l.posting = func(_ *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		for i := range wrs {
			if wrs[i].Op == rdma.OpSend {
				if h, itt, ok := isA(l.bytes(wrs[i].SGL[0]), iscsi.OpSCSICommand); ok {
					keys[itt] = h.ReadSTag
				}
			}
		}
		return wrs
	}
	l.polled = func(_ *layerCQ, cs []rdma.Completion, n int) int {
		for i := range cs[:n] {
			if q := l.qps[cs[i].QPNum]; q != nil && cs[i].Recv && cs[i].Invalidated {
				_, itt, _ := isA(q.received(&cs[i]), iscsi.OpSCSIResponse)
				cs[i].InvalidatedKey = keys[itt]
			}
		}
		return n
	}
	return l
}

func abortRace() *Scenario {
	const takes, firstTakes = 300 * time.Microsecond, 100 * time.Microsecond
	return &Scenario{
		Name: "abort-race", Title: "Response and abort cross; a signal or a timeout releases the caller",
		Controls: []Control{{
			Name: "buffer-kept", Breaks: "the initiator goes on using the buffer of a caller that has given up",
			plant: func(s *settings) {
				s.wrapTransport = func(t initiator.Transport) initiator.Transport { return keepsBuffers{t} }
			},
			sees: "touched after it had been given back", races: true,
		}, {
			Name: "key-ended-twice", Breaks: "the initiator invalidates a key that has been invalidated",
			plant: func(s *settings) { s.hostLayer = &layer{posting: endsKeysTwice} },
			sees:  "twice?",
		}, {
			Name: "key-never-ended", Breaks: "the initiator uses memory again whose key it has not invalidated",
			plant: func(s *settings) { s.hostLayer = &layer{posting: endsNoKeys} },
			sees:  "",
		}},
		set: func(s *settings, _ *rand.Rand) {
			s.config.PoolBytes = 1 << 20
			s.stable = true
			s.wrapStore = func(w *world, b backstore.Store) (backstore.Store, error) {
				other, err := slow(0, takes)(w, b)
				if err != nil {
					return nil, err
				}
				var first sync.Once
				return &slowStore{b, func(write bool, off int64) time.Duration {
					d := other.(*slowStore).wait(write, off)
					first.Do(func() { d = firstTakes })
					return d
				}}, nil
			}
		},
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			// One whose caller gives up when the response is certainly on its way, and the rest by chance.
			x := h.extent(4096)
			short, stop := context.WithTimeout(ctx, firstTakes+35*time.Microsecond)
			_ = h.read(short, x)
			stop()
			for round := range 6 {
				var all []extent
				var limits []time.Duration
				for range 4 {
					all = append(all, h.extent(16<<10+sector*w.rng.IntN(96)))
					limits = append(limits, w.upTo(takes+200*time.Microsecond))
				}
				write := round%3 == 2
				together(len(all), func(i int) {
					short, stop := context.WithTimeout(ctx, limits[i])
					defer stop()
					var err error
					if write {
						err = h.write(short, all[i])
					} else {
						err = h.read(short, all[i])
					}
					if err != nil && short.Err() == nil {
						w.fail("%s: a command failed that was not given up: %v", h.name, err)
					}
				})
			}
			w.sleep(10 * time.Millisecond)
			h.must("read", h.read(ctx, h.extent(maxCommand)))
		},
	}
}

// keepsBuffers is a transport whose connections do not part from a caller's buffers.
type keepsBuffers struct{ initiator.Transport }

func (k keepsBuffers) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	dm, err := k.Transport.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return keepingConn{dm}, nil
}

type keepingConn struct{ iscsi.InitiatorDatamover }

// Detach does nothing.
func (keepingConn) Detach(*iscsi.Transfer) {}

func endsKeysTwice(_ *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
	for _, wr := range slices.Clone(wrs) {
		if wr.Op == rdma.OpLocalInv {
			wrs = append(wrs, rdma.SendWR{ID: ownID, Op: wr.Op, InvalidateKey: wr.InvalidateKey})
		}
	}
	return wrs
}

// endsNoKeys posts in the place of a Local Invalidate a Write of nothing, which ends as well.
func endsNoKeys(_ *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
	for i := range wrs {
		if wrs[i].Op == rdma.OpLocalInv {
			wrs[i] = rdma.SendWR{ID: wrs[i].ID, Op: rdma.OpWrite, Flags: wrs[i].Flags}
		}
	}
	return wrs
}

func lateWrite() *Scenario {
	return &Scenario{
		Name: "late-write", Title: "A hostile or broken target writes once more, after it has answered",
		Controls: []Control{{
			Name: "stale-key", Breaks: "the device lets in what names the key of a command that has ended",
			plant: func(s *settings) { s.targetLayer, s.hostFaults.EndedOffer = nil, true },
			sees:  "touched after it had ended",
		}},
		set: func(s *settings, _ *rand.Rand) { s.targetLayer, s.config.QueueDepth = writesAgain(), lateKeys },
		run: func(ctx context.Context, w *world) {
			h, refused := w.hosts[0], 0
			for range 8 {
				x := h.extent(4096 * (1 + w.rng.IntN(4)))
				// The late Write may end the session: that is how a device refuses one. What must not be is that it lands.
				_ = h.read(ctx, x)
				w.sleep(time.Millisecond)
				if h.session.Err() == nil {
					continue
				}
				refused++
				w.targetLayer.arm(false)
				if !h.must("log in again", h.open(ctx)) {
					return
				}
				w.targetLayer.arm(true)
			}
			if refused == 0 && w.targetLayer != nil {
				w.fail("%s: no late Write was refused", h.name)
			}
		},
	}
}

// lateKeys is how many commands the initiator has outstanding at most, and so in how many its keys come round: a dead
// key's window is bound again then, and the memory is another command's.
const lateKeys = 2

// writesAgain is a target that writes with the key of a command that has ended, between another's data and its response.
func writesAgain() *layer {
	l := &layer{}
	old := make(map[*layerQP][]rdma.SendWR)
	l.posting = func(q *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		first := slices.IndexFunc(wrs, func(wr rdma.SendWR) bool { return wr.Op == rdma.OpWrite })
		last := len(wrs) - 1
		if first < 0 || wrs[last].Op != rdma.OpSend && wrs[last].Op != rdma.OpSendInv {
			return wrs
		}
		if old[q] = append(old[q], wrs[first]); len(old[q]) <= lateKeys {
			return wrs
		}
		late := old[q][len(old[q])-1-lateKeys]
		late.ID, late.Flags = ownID, 0
		// The target's memory is another's by now: it sends what is there, here the response.
		late.SGL = slices.Clone(wrs[last].SGL)
		return slices.Insert(wrs, last, late)
	}
	return l
}

func twoInitiators() *Scenario {
	return &Scenario{
		Name: "two-initiators", Title: "Two initiators share a target: one loses packets, one disconnects in mid-transfer",
		Controls: []Control{{
			Name: "buffers-shared", Breaks: "the target uses the buffers of one connection for another before the device is done with them",
			plant: func(s *settings) { s.targetLayer = sharesBuffers() },
			sees:  "has changed before it has completed",
		}},
		set: func(s *settings, _ *rand.Rand) {
			s.hosts, s.wrapStore, s.stable = 2, slow(100*time.Microsecond, 60*time.Microsecond), true
		},
		run: func(ctx context.Context, w *world) {
			lossy := rough()
			lossy.Loss, lossy.MTU = 0.03, int(w.mtu)
			w.net.SetWeather(targetAddr().Addr(), hostAddr(0), lossy)
			w.net.SetWeather(hostAddr(0), targetAddr().Addr(), lossy)
			var all [2][]extent
			for i := range all {
				for range 3 {
					all[i] = append(all[i], w.hosts[i].extent(16<<10+sector*w.rng.IntN(64)))
				}
			}
			cut := 60*time.Microsecond + w.upTo(100*time.Microsecond)
			var wg sync.WaitGroup
			wg.Go(func() {
				for range 3 {
					together(3, func(j int) {
						h := w.hosts[0]
						h.must("write", h.write(ctx, all[0][j]))
						h.must("read", h.read(ctx, all[0][j]))
					})
				}
			})
			wg.Go(func() { w.hosts[1].leavesInTheMiddle(ctx, all[1], cut) })
			wg.Wait()
		},
	}
}

// leavesInTheMiddle loses its connection while commands are under way, logs in again and goes on.
func (h *host) leavesInTheMiddle(ctx context.Context, all []extent, cut time.Duration) {
	for range 2 {
		var wg sync.WaitGroup
		for i, x := range all {
			wg.Go(func() { // they may be lost
				if i%2 == 0 {
					_ = h.read(ctx, x)
				} else {
					_ = h.write(ctx, x)
				}
			})
		}
		h.w.sleep(cut)
		h.w.net.Partition(hostAddr(h.number), targetAddr().Addr(), true)
		h.w.sleep(20 * time.Second) // both ends notice
		h.w.net.Partition(hostAddr(h.number), targetAddr().Addr(), false)
		wg.Wait()
		if h.session.Err() == nil {
			h.w.fail("%s: the session outlives 20 s without a network", h.name)
			return
		}
		if !h.must("log in again", h.open(ctx)) {
			return
		}
	}
	for _, x := range all {
		h.must("write", h.write(ctx, x))
		h.must("read", h.read(ctx, x))
	}
}

// sharesBuffers is a target that puts the data of one connection where another's RDMA Writes are still read from.
func sharesBuffers() *layer {
	type outstanding struct {
		q  *layerQP
		id uint64
		e  rdma.SGE
	}
	var writes []outstanding
	l := &layer{}
	l.posting = func(q *layerQP, wrs []rdma.SendWR) []rdma.SendWR {
		for i := range wrs {
			if wrs[i].Op != rdma.OpWrite {
				continue
			}
			for _, o := range writes {
				if b := l.bytes(o.e); o.q != q && len(b) > 0 {
					copy(b, l.bytes(wrs[i].SGL[0]))
					b[0] ^= 1
				}
			}
		}
		for i := range wrs {
			if wrs[i].Op == rdma.OpWrite {
				writes = append(writes, outstanding{q, wrs[len(wrs)-1].ID, wrs[i].SGL[0]})
			}
		}
		return wrs
	}
	l.polled = func(_ *layerCQ, cs []rdma.Completion, n int) int {
		for i := range cs[:n] {
			writes = slices.DeleteFunc(writes, func(o outstanding) bool { return o.q == l.qps[cs[i].QPNum] && o.id == cs[i].ID })
		}
		return n
	}
	return l
}

// longWrite is what the store takes for a write that outlives its session.
const longWrite = 2 * time.Second

func staleSession() *Scenario {
	waits := func(w *world) func(bool, int64) time.Duration {
		var mu sync.Mutex
		first := true
		d := longWrite + w.upTo(longWrite)
		return func(write bool, _ int64) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if write && first {
				first = false
				return d
			}
			return time.Microsecond
		}
	}
	return &Scenario{
		Name: "stale-session", Title: "A write delayed from an old session lands after the session has been reinstated",
		Controls: []Control{{
			Name: "no-fence", Breaks: "the target does not wait for the writes of the session that was replaced",
			plant: func(s *settings) {
				s.wrapStore = func(w *world, b backstore.Store) (backstore.Store, error) {
					return &absentStore{slowStore: slowStore{b, waits(w)}}, nil
				}
			},
			sees: "has replaced",
		}},
		set: func(s *settings, _ *rand.Rand) {
			s.hostLayer = &layer{}
			s.wrapStore = func(w *world, b backstore.Store) (backstore.Store, error) { return &slowStore{b, waits(w)}, nil }
		},
		run: func(ctx context.Context, w *world) {
			h := w.hosts[0]
			x := h.extent(sector << w.rng.IntN(7))
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := h.write(ctx, x); err == nil {
					w.fail("%s: the write of the old session was acknowledged", h.name)
				}
			})
			w.sleep(time.Millisecond + w.upTo(time.Millisecond))
			w.hostLayer.disconnect()
			wg.Wait()
			if h.session.Err() == nil {
				w.fail("%s: the session has not died", h.name)
			}
			if !h.must("log in again", h.open(ctx)) || !h.must("write", h.write(ctx, x)) || !h.must("read", h.read(ctx, x)) {
				return
			}
			w.sleep(3 * longWrite)
			h.must("read", h.read(ctx, x))
		},
	}
}
