package isertest

import (
	"hash/crc32"
	"slices"
	"sync"

	"github.com/goiser/goiser/iser/rdma"
)

// A Watch stands between iser and one provider and checks what passes, in both directions:
//
//   - completions come in the order of the posts, once each, none for a queue pair that is closed, and after an error
//     nothing succeeds;
//   - what a Send reads does not change before it has completed, for until then the device may read it again; with
//     StableWrites neither does what an RDMA Write reads;
//   - memory offered to the peer with a command is offered to no other command before that one's response, does not
//     change meanwhile if the peer may only read it, and does not change afterwards until it is offered again;
//   - a key is offered only if there is something to do with it, grants what its direction needs and no more, and a
//     window's is ended exactly once: before its memory is offered again, and not before the Send that offered it has
//     completed;
//   - nothing is posted once the peer has invalidated a key that was not its to invalidate;
//   - memory is not deregistered while a queue pair may still use it.
//
// Faults of a provider are planted here as well, below the checks.
type Watch struct {
	name   string
	fail   func(format string, args ...any)
	burst  uint32      // FirstBurstLength, bytes
	limits rdma.Limits // the bounds that are to hold, zero: the device's own
	stable bool        // see StableWrites
	tell   func(Event)

	faults Faults

	mu      sync.Mutex // guards what follows, and the watched things
	serial  uint64
	dev     *watchedDevice
	qps     map[uint32]*watchedQP
	regions []*watchedRegion
	keys    map[uint32]*windowKey
	checks  Checks
}

// Checks count what was compared, so that a test can see that it was.
type Checks struct{ Completions, Sends, Writes, Offers, Ended, Keys int }

// Add adds o's to c.
func (c *Checks) Add(o Checks) {
	c.Completions += o.Completions
	c.Sends += o.Sends
	c.Writes += o.Writes
	c.Offers += o.Offers
	c.Ended += o.Ended
	c.Keys += o.Keys
}

// New makes a watch of the provider called name. burst is the FirstBurstLength that commands go by, in bytes; fail is
// told what is wrong, each time, and not called by several goroutines at once.
func New(name string, burst uint32, f Faults, fail func(format string, args ...any)) *Watch {
	return &Watch{
		name: name, fail: fail, burst: burst, faults: f,
		qps: make(map[uint32]*watchedQP), keys: make(map[uint32]*windowKey),
	}
}

// Lessen has the device do less than it can, so that a command's data takes several work requests: messages of so many
// bytes at most, and so many entries of a scatter/gather list. Call it before the watch is used.
func (w *Watch) Lessen(message uint32, sges, readSGEs int) {
	w.limits = rdma.Limits{MaxMessage: message, MaxSGE: sges, MaxReadSGE: readSGEs}
}

// StableWrites has the watch check that what an RDMA Write reads does not change before it has completed. A store in
// memory that the device reads in place changes it by right. Call it before the watch is used.
func (w *Watch) StableWrites() { w.stable = true }

// Observe has tell called with every step that is seen, with the watch's lock held. Call it before the watch is used.
func (w *Watch) Observe(tell func(Event)) { w.tell = tell }

// Arm lets faults begin that would else keep sessions from being opened.
func (w *Watch) Arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults.armed = true
}

// Name is whose provider it is.
func (w *Watch) Name() string { return w.name }

// Checks are those made so far.
func (w *Watch) Checks() Checks {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checks
}

// Regions is how many are registered.
func (w *Watch) Regions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.regions)
}

func (w *Watch) failf(format string, args ...any) { w.fail(w.name+": "+format, args...) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// An offer is the memory of one command, which the peer may use until it has answered, or until its key is dead.
type offer struct {
	region *watchedRegion
	q      *watchedQP
	itt    uint32
	key    uint32
	off, n uint64
	write  bool   // the peer may write it; else read
	ended  bool   // the response has come, or the key is dead
	sum    uint32 // of the memory: when it was offered, or if ended, then
	before []byte // what it held when it was offered, for faults
	stale  *offer // an earlier one of the same memory, for faults
}

func (o *offer) mem() []byte { return o.region.mem[o.off : o.off+o.n] }

func (o *offer) overlaps(off, n uint64) bool { return o.off < off+n && off < o.off+o.n }

// unchanged checks the memory of an offer that has ended.
func (w *Watch) unchanged(o *offer) {
	if !o.ended {
		return // the peer may use it until the connection is gone
	}
	w.checks.Ended++
	if crc32.Checksum(o.mem(), castagnoli) != o.sum {
		w.failf("%d bytes of command %08x were touched after it had ended", o.n, o.itt)
	}
}

// offered notes that a command is sent that offers memory, and checks the key.
func (w *Watch) offered(q *watchedQP, itt uint32, write bool, key uint32, addr uint64, n uint32) {
	if n == 0 {
		w.failf("command %08x offers the key %#x, though there is nothing to do with it: the peer may invalidate it", itt, key)
		return
	}
	r := w.opened(q, itt, write, key, addr, n)
	if r == nil {
		return
	}
	o := &offer{region: r, q: q, itt: itt, key: key, off: addr - r.Addr(), n: uint64(n), write: write}
	w.checks.Offers++
	r.offers = slices.DeleteFunc(r.offers, func(old *offer) bool {
		if !old.overlaps(o.off, o.n) {
			return false
		}
		w.reoffered(o, old)
		return true
	})
	o.sum = crc32.Checksum(o.mem(), castagnoli)
	w.faults.offered(o, nil)
	r.offers = append(r.offers, o)
}

// reoffered checks that old's memory may be o's.
func (w *Watch) reoffered(o, old *offer) {
	if !old.ended {
		w.failf("command %08x offers memory of command %08x, which has not been answered", o.itt, old.itt)
	}
	if k := w.keys[old.key]; k != nil && old.key != o.key {
		w.failf("command %08x offers memory of command %08x, whose key %#x was not invalidated", o.itt, old.itt, old.key)
	}
	// Write data was put there before the command was sent; read data is only put there by the peer.
	if old.write {
		w.unchanged(old)
	}
	w.faults.offered(o, old)
}

// answered notes that a command's response has come.
func (w *Watch) answered(itt uint32) {
	w.each(func(o *offer) {
		if o.itt == itt && !o.ended {
			w.faults.answered(o)
			w.end(o)
		}
	})
}

// end notes that the peer may not use an offer's memory any more.
func (w *Watch) end(o *offer) {
	sum := crc32.Checksum(o.mem(), castagnoli)
	if !o.write && sum != o.sum {
		w.failf("the data of command %08x changed while the peer could read it", o.itt)
	}
	o.sum, o.ended = sum, true
}

// each calls f for all offers.
func (w *Watch) each(f func(*offer)) {
	for _, r := range w.regions {
		for _, o := range r.offers {
			f(o)
		}
	}
}

// bytes is the memory that e names.
func (w *Watch) bytes(e rdma.SGE) []byte {
	for _, r := range w.regions {
		if off := e.Addr - r.Addr(); r.LKey() == e.LKey && off <= uint64(len(r.mem)) && uint64(e.Length) <= uint64(len(r.mem))-off {
			return r.mem[off : off+uint64(e.Length)]
		}
	}
	w.failf("a work request names memory that is not registered: %+v", e)
	return nil
}

// first is the memory that the first entry names: a PDU's header never spans two.
func (w *Watch) first(sgl []rdma.SGE) []byte {
	if len(sgl) == 0 {
		return nil
	}
	return w.bytes(sgl[0])
}

func (w *Watch) sum(sgl []rdma.SGE) (sum uint32) {
	for _, e := range sgl {
		sum = crc32.Update(sum, castagnoli, w.bytes(e))
	}
	return sum
}
