package roce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/isertest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/rc"
	"github.com/goiser/goiser/scsi"
)

const (
	targetName  = "iqn.2026-01.test:disk"
	portal      = "10.0.0.1:3260"
	hostCount   = 2
	usersOfHost = 3
	commands    = 4  // of each user
	abortShare  = 12 // one command in so many is given up
	diskSectors = 1024
	sector      = stamp.SectorSize
	maxCommand  = 256 << 10 // bytes
	// deadline is for all the users do, in the bubble's time. The worst they meet is 60 logins of 15 s each.
	deadline = time.Hour
)

// A climate is the weather of a simulation and what goes with it.
type climate struct {
	name    string
	weather link.Weather
	mild    bool // no session may die of it, and no command fail
	cuts    bool // hosts are cut off, for a moment or for longer than a session lives; some commands take longer still
	buffer  int  // bytes of the receive buffers; 0: enough
}

// patience is within which a command that is given up is. It is about what one takes.
func (c *climate) patience() time.Duration { return 4*c.weather.Delay + 300*time.Microsecond }

// ackTimeout is short where hosts are cut off: their sessions die in half a second.
func (c *climate) ackTimeout() time.Duration {
	if c.cuts {
		return 60 * time.Millisecond
	}
	return 0
}

// climates take turns by seed. Times differ by chance everywhere: timers that end in the same instant would run in an
// order that no seed determines.
func climates() []climate {
	const us = time.Microsecond
	weather := func(w link.Weather) link.Weather { w.Delay, w.Jitter = 20*us, 10*us; return w }
	distant := link.Weather{Loss: 0.002, Duplicate: 0.01, Reorder: 0.01, ReorderWindow: 1000 * us, Delay: 5000 * us, Jitter: 1000 * us}
	return []climate{
		{name: "fair", mild: true, weather: weather(link.Weather{})},
		{name: "lossy", mild: true, weather: weather(link.Weather{Loss: 0.01})},
		{name: "disordered", mild: true, weather: weather(link.Weather{Duplicate: 0.02, Reorder: 0.02})},
		{name: "noisy", mild: true, weather: weather(link.Weather{Corrupt: 0.01, BurstLoss: 0.002, BurstLength: 5})},
		{name: "crowded", mild: true, weather: weather(link.Weather{Duplicate: 0.001}), buffer: 64 << 10},
		{name: "distant", mild: true, weather: distant},
		{name: "foul", weather: weather(link.Weather{Loss: 0.05, Corrupt: 0.02, Duplicate: 0.02, Reorder: 0.02, BurstLoss: 0.005, BurstLength: 30})},
		{name: "cut off", cuts: true, weather: weather(link.Weather{Loss: 0.002})},
	}
}

// planted are a simulation's faults.
type planted struct {
	target, hosts isertest.Faults
	skip          bool // the target skips a retransmission
}

// A world is one simulation: a target, hosts and their users, all of it drawn from one seed.
type world struct {
	seed    uint64
	climate climate
	planted planted
	rng     *rand.Rand
	net     *link.Net
	model   *isertest.Model
	target  *target.Server
	pool    *arena.Pool
	store   backstore.Store
	hosts   []*host
	roces   []*roce.Provider  // the target's, then the hosts'
	watches []*isertest.Watch // theirs

	mu  sync.Mutex // guards what follows
	err error
	sum summary
}

// A summary counts what has happened.
type summary struct {
	sessions, deaths       int // deaths: and replaced
	done, aborted, refused int // commands
	sectors                int // read and compared
	checks                 isertest.Checks
	qp                     rc.Counters
	badICRC                uint64
}

// fail notes what is wrong first.
func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// count counts one of the summary's up.
func (w *world) count(n *int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n++
	return *n
}

// runStack runs the simulation of a seed in a bubble of its own. What was wrong with it is in the world's err.
func runStack(t *testing.T, seed uint64, c climate, p planted, memory [][]byte, tap func(link.Event)) *world {
	w := &world{seed: seed, climate: c, planted: p, rng: rand.New(rand.NewPCG(seed, 0)), model: isertest.NewModel(seed, diskSectors)}
	synctest.Test(t, func(*testing.T) {
		if err := w.build(memory, tap); err != nil {
			w.fail("set up: %v", err)
			return
		}
		w.work()
		if err := w.close(); err != nil {
			w.fail("close: %v", err)
		}
	})
	return w
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// provider makes the provider of an address, with its watch.
func (w *world) provider(name string, addr netip.Addr, burst uint32, f isertest.Faults) *isertest.Watch {
	p := roce.New(roce.Options{
		Addr: addr, Seed: w.rng.Uint64() | 1, Window: pick(w.rng, 16, 128), AckTimeout: w.climate.ackTimeout(),
		Link: func(a netip.Addr) (link.Link, error) {
			l := w.net.Link(a)
			if w.planted.skip && name == "target" {
				l = &isertest.Skipper{Link: l}
			}
			return l, nil
		},
	})
	w.roces = append(w.roces, p)
	watch := isertest.New(name, burst, f, w.fail)
	if w.rng.IntN(2) == 0 {
		watch.Lessen(pick[uint32](w.rng, 32<<10, 1<<20), pick(w.rng, 2, 8), pick(w.rng, 1, 2))
	}
	w.watches = append(w.watches, watch)
	return watch
}

func (w *world) build(memory [][]byte, tap func(link.Event)) error {
	weather := w.climate.weather
	weather.MTU = pick(w.rng, 4096, 4096, 4096, 1024, 512)
	w.net = link.NewNet(w.seed, link.NetOptions{
		Weather: weather, RecvBuffer: w.climate.buffer, NoOffload: w.rng.IntN(2) == 0,
	})
	w.net.Tap(tap)
	keys := iscsi.DefaultConfig()
	keys.ImmediateData = w.rng.IntN(4) > 0
	keys.FirstBurstLength = pick[uint32](w.rng, 4<<10, 16<<10, 64<<10)
	r2t := w.rng.IntN(2) == 0
	keys.InitialR2T = &r2t
	if err := w.buildTarget(keys); err != nil {
		return err
	}
	for i := range hostCount {
		w.buildHost(i, &keys, memory[0], memory[1+i*usersOfHost:])
	}
	return nil
}

func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}) }

func targetAddr() netip.AddrPort { return netip.MustParseAddrPort(portal) }

func (w *world) buildHost(i int, keys *iscsi.Config, poison []byte, buffers [][]byte) {
	watch := w.provider(fmt.Sprintf("host %d", i), hostAddr(i), keys.FirstBurstLength, w.planted.hosts)
	h := &host{
		w: w, number: i, turn: make(chan struct{}, 1),
		options: initiator.Options{
			InitiatorName: fmt.Sprintf("iqn.2026-01.test:host%d", i), ISID: iscsi.ISID{0x80, byte(i + 1)}, Negotiate: keys, QueueDepth: 8,
		},
		dialer: &iser.Dialer{Provider: watch.Provider(w.roces[i+1]), Config: iser.InitiatorConfig{
			QueueDepth: 8, PoolBytes: 4 << 20, PartialImmediate: w.rng.IntN(2) == 0, MaxImmediate: pick(w.rng, 512, 4096, 8192),
		}},
	}
	h.turn <- struct{}{}
	for j := range usersOfHost {
		rng := rand.New(rand.NewPCG(w.seed, uint64(100+10*i+j)))
		h.users = append(h.users, &user{h: h, rng: rng, buf: buffers[j], poison: poison})
	}
	w.hosts = append(w.hosts, h)
}

func (w *world) buildTarget(keys iscsi.Config) (err error) {
	if w.pool, err = arena.New(128 * arena.ChunkSize); err != nil {
		return err
	}
	if w.store, err = backstore.Open("ram", backstore.Options{"size": fmt.Sprint(diskSectors * sector)}); err != nil {
		return err
	}
	store := w.store
	switch rng := rand.New(rand.NewPCG(w.seed, 300)); {
	case w.climate.cuts:
		store = &slowStore{Store: store, rareShare: 6, rng: rng}
	case w.rng.IntN(3) == 0:
		store = &slowStore{Store: store, rareShare: 40, rng: rng}
	}
	device := scsi.NewDevice(scsi.DeviceConfig{Name: targetName})
	if _, err = device.Add(0, store, scsi.LUConfig{ID: "stack"}); err != nil {
		return err
	}
	w.target = target.New(target.Config{Pool: w.pool, MaxSessions: 4, Window: 8})
	if _, err = w.target.AddTarget(target.TargetConfig{Name: targetName, Device: device, Negotiate: keys}); err != nil {
		return err
	}
	watch := w.provider("target", targetAddr().Addr(), keys.FirstBurstLength, w.planted.target)
	l, err := iser.Listen(watch.Provider(w.roces[0]), targetAddr(), iser.TargetConfig{Window: 8})
	if err != nil {
		return err
	}
	return w.target.Serve(l, target.PortalConfig{})
}

// work has the users do theirs.
func (w *world) work() {
	ctx, stop := context.WithTimeout(context.Background(), deadline)
	defer stop()
	var wg sync.WaitGroup
	for _, h := range w.hosts {
		wg.Go(func() {
			if !h.open(ctx) {
				return
			}
			var users sync.WaitGroup
			for _, u := range h.users {
				users.Go(func() { u.run(ctx) })
			}
			users.Wait()
			h.leave()
		})
		if w.climate.cuts {
			wg.Go(func() { w.cutOff(h) })
		}
	}
	wg.Wait()
}

// cutOff parts a host from the target twice.
func (w *world) cutOff(h *host) {
	rng := rand.New(rand.NewPCG(w.seed, uint64(200+h.number)))
	for range 2 {
		time.Sleep(time.Duration(rng.Int64N(int64(500 * time.Microsecond))))
		w.net.Partition(hostAddr(h.number), targetAddr().Addr(), true)
		time.Sleep(time.Duration(rng.Int64N(int64(pick(rng, 20*time.Millisecond, 3*time.Second, 3*time.Second)))))
		w.net.Partition(hostAddr(h.number), targetAddr().Addr(), false)
	}
}

// close ends all of it, finds what is left over, and compares the disk with the model: now nothing is under way.
func (w *world) close() error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := w.target.Shutdown(ctx); err != nil && w.climate.mild {
		return err
	}
	for _, h := range w.hosts {
		if l := h.login.Load(); l != nil {
			_ = l.session.Close() // again, unless something is wrong
			w.model.Settle(l.serial)
		}
	}
	if err := w.model.Check(w.model.Read(), 0, w.store.(backstore.Mapper).Memory()); err != nil {
		w.fail("in the end, the disk: %v", err)
	}
	w.sum.sectors = w.model.Checked()
	var errs []error
	if free, all := w.pool.Free(), w.pool.Chunks(); free != all {
		errs = append(errs, fmt.Errorf("%d of %d chunks of the target's pool are lost", all-free, all))
	}
	for i := range w.roces {
		errs = append(errs, w.closeProvider(w.roces[i], w.watches[i]))
	}
	return errors.Join(append(errs, w.pool.Close(), w.store.Close())...)
}

func (w *world) closeProvider(p *roce.Provider, watch *isertest.Watch) (err error) {
	if left := p.QueuePairs(); len(left) > 0 {
		err = fmt.Errorf("%s: %d queue pairs are left", watch.Name(), len(left))
	}
	if n := watch.Regions(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d regions are left", watch.Name(), n))
	}
	w.sum.checks.Add(watch.Checks())
	c := p.Counters()
	addCounters(&w.sum.qp, c.QP)
	w.sum.badICRC += c.BadICRC
	return errors.Join(err, p.Close())
}
