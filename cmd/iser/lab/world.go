package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/isertest"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/scsi"
)

const (
	targetName  = "iqn.2026-01.lab:disk"
	targetPort  = 3260
	sector      = stamp.SectorSize
	diskSectors = 1024
	window      = 8         // commands
	poolChunks  = 64        // of the target's memory
	poolBytes   = 2 << 20   // of an initiator's
	maxCommand  = 128 << 10 // bytes, of the scenarios' commands
	// deadline is for all that a scenario does, in virtual time.
	deadline = time.Hour
)

// Settings are what a scenario and its controls set up.
type settings struct {
	hosts   int
	weather link.Weather // of all ways; SetWeather has the rest
	keys    iscsi.Config
	config  iser.InitiatorConfig
	// stable: the store is not read in place, so that what an RDMA Write reads must not change.
	stable bool
	// message, if not 0, is the longest of the target's device, in bytes: a command's data takes several.
	message uint32

	hostFaults, targetFaults isertest.Faults
	hostLayer, targetLayer   *layer
	// wrapStore and wrapTransport put something in front, if not nil.
	wrapStore     func(w *world, s backstore.Store) (backstore.Store, error)
	wrapTransport func(initiator.Transport) initiator.Transport
	// blind has the checker of data look away.
	blind bool
}

// A world is one run: a target, its initiators, and what checks them.
type world struct {
	settings
	seed   uint64
	rng    *rand.Rand
	rec    *recorder
	mtu    uint32
	net    *link.Net
	model  *isertest.Model
	server *target.Server
	pool   *arena.Pool
	store  backstore.Store // the lowest
	owned  backstore.Store // in front of it, to be closed first; nil: none
	hosts  []*host
	names  map[netip.Addr]string
	links  map[netip.Addr]*wireLink
	roces  []*roce.Provider
	watch  []*isertest.Watch

	mu       sync.Mutex // guards what follows
	wrongs   []string
	sessions int
}

// maxWrongs bounds what is kept of what is wrong: the first tells the most.
const maxWrongs = 8

// fail notes something wrong.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.rec.add(Event{Where: "checker", What: whatWrong, Note: text})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wrongs) < maxWrongs {
		w.wrongs = append(w.wrongs, text)
	}
}

func (w *world) nameOf(a netip.Addr) string { return w.names[a] }

func targetAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), targetPort)
}

func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}) }

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// fair is weather in which nothing goes wrong.
func fair() link.Weather {
	return link.Weather{Delay: 20 * time.Microsecond, Jitter: 10 * time.Microsecond}
}

func defaults() settings {
	k := iscsi.DefaultConfig()
	k.FirstBurstLength = 16 << 10
	return settings{hosts: 1, weather: fair(), keys: k, config: iser.InitiatorConfig{QueueDepth: window, PoolBytes: poolBytes}}
}

// build makes everything, and logs the initiators in.
func (w *world) build(ctx context.Context) (err error) {
	w.names = map[netip.Addr]string{targetAddr().Addr(): "target"}
	w.links = make(map[netip.Addr]*wireLink)
	w.model = isertest.NewModel(w.seed, diskSectors)
	w.mtu = pick[uint32](w.rng, 4096, 1024)
	w.weather.MTU = int(w.mtu)
	w.net = link.NewNet(w.seed, link.NetOptions{Weather: w.weather, NoOffload: true})
	if w.rec != nil {
		w.net.Tap(w.tap)
	}
	if err := w.buildTarget(); err != nil {
		return err
	}
	for i := range w.settings.hosts {
		w.buildHost(i)
	}
	for _, h := range w.hosts {
		if err := h.open(ctx); err != nil {
			return fmt.Errorf("%s: log in: %w", h.name, err)
		}
	}
	return nil
}

// provider makes the provider of an address, watched, with a layer above if not nil.
func (w *world) provider(name string, addr netip.Addr, f isertest.Faults, l *layer) (rdma.Provider, *isertest.Watch) {
	w.names[addr] = name
	p := roce.New(roce.Options{Addr: addr, Seed: w.rng.Uint64() | 1, Link: func(a netip.Addr) (link.Link, error) {
		x := &wireLink{Link: w.net.Link(a), w: w, name: name, streams: make(map[stream]*arrivals)}
		w.links[addr] = x
		return x, nil
	}})
	w.roces = append(w.roces, p)
	watch := isertest.New(name, w.keys.FirstBurstLength, f, w.fail)
	if w.stable {
		watch.StableWrites()
	}
	if w.message > 0 && name == "target" {
		watch.Lessen(w.message, 4, 1)
	}
	if w.rec != nil {
		watch.Observe(func(e isertest.Event) { w.rec.add(stepEvent(name, &e)) })
	}
	w.watch = append(w.watch, watch)
	up := watch.Provider(p)
	if l != nil {
		up = l.provider(up)
	}
	return up, watch
}

// stepEvent is what a watch has seen.
func stepEvent(where string, e *isertest.Event) Event {
	x := Event{Where: where, What: string(e.Step), Tag: e.Tag, Key: e.Key, Addr: e.Addr, Length: e.Length, Word: e.Word}
	switch {
	case e.Op == 0:
		x.Of = e.What
	case e.What != "":
		x.Of = fmt.Sprintf("%v of %s", e.Op, e.What)
	default:
		x.Of = e.Op.String()
	}
	if e.Status != rdma.Success {
		x.Note = e.Status.String()
	}
	return x
}

func (w *world) buildHost(i int) {
	name := fmt.Sprintf("host %d", i)
	p, watch := w.provider(name, hostAddr(i), w.hostFaults, w.hostLayer)
	var t initiator.Transport = &iser.Dialer{Provider: p, Config: w.config}
	if w.wrapTransport != nil {
		t = w.wrapTransport(t)
	}
	keys := w.keys
	w.hosts = append(w.hosts, &host{
		w: w, name: name, number: i, watch: watch, transport: t, roce: w.roces[len(w.roces)-1],
		options: initiator.Options{
			InitiatorName: fmt.Sprintf("iqn.2026-01.lab:host%d", i), ISID: iscsi.ISID{0x80, byte(i + 1)}, Negotiate: &keys, QueueDepth: window,
		},
	})
}

func (w *world) buildTarget() (err error) {
	if w.pool, err = arena.New(poolChunks * arena.ChunkSize); err != nil {
		return err
	}
	if w.store, err = backstore.Open("ram", backstore.Options{"size": fmt.Sprint(diskSectors * sector)}); err != nil {
		return err
	}
	store := w.store
	if w.wrapStore != nil {
		if store, err = w.wrapStore(w, store); err != nil {
			return err
		}
		w.owned = store
	}
	device := scsi.NewDevice(scsi.DeviceConfig{Name: targetName})
	if _, err = device.Add(0, store, scsi.LUConfig{ID: "lab"}); err != nil {
		return err
	}
	w.server = target.New(target.Config{Pool: w.pool, MaxSessions: 4, Window: window})
	if _, err = w.server.AddTarget(target.TargetConfig{Name: targetName, Device: device, Negotiate: w.keys}); err != nil {
		return err
	}
	p, _ := w.provider("target", targetAddr().Addr(), w.targetFaults, w.targetLayer)
	l, err := iser.Listen(p, targetAddr(), iser.TargetConfig{Window: window})
	if err != nil {
		return err
	}
	return w.server.Serve(l, target.PortalConfig{})
}

// close ends all of it, and finds what is left over.
func (w *world) close() error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	for _, h := range w.hosts {
		h.leave()
	}
	_ = w.server.Shutdown(ctx) // sessions that have died are no mistake here
	if w.owned == nil && !w.blind {
		if err := w.model.Check(w.model.Read(), 0, w.store.(backstore.Mapper).Memory()); err != nil {
			w.fail("in the end, the disk: %v", err)
		}
	}
	var errs []error
	if free, all := w.pool.Free(), w.pool.Chunks(); free != all {
		errs = append(errs, fmt.Errorf("%d of %d chunks of the target's pool are lost", all-free, all))
	}
	for i, p := range w.roces {
		if left := p.QueuePairs(); len(left) > 0 {
			errs = append(errs, fmt.Errorf("%s: %d queue pairs are left", w.watch[i].Name(), len(left)))
		}
		errs = append(errs, p.Close())
	}
	if w.owned != nil && w.owned != w.store {
		errs = append(errs, w.owned.Close())
	}
	return errors.Join(append(errs, w.pool.Close(), w.store.Close())...)
}
