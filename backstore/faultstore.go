package backstore

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrInjected is what every error that a rule asked for wraps.
var ErrInjected = errors.New("injected fault")

// Bounds of what a FaultStore remembers, in bytes.
const (
	staleBytes = 16 << 20 // of what was there before a write, for stale reads
	maxCache   = 1 << 30  // of what a simulated power cut would lose
)

// A FaultStore passes everything to the store below it, and does some of it wrong as its rules say: what a disk
// does in the worst case, to see whether it is noticed. Rules come from the option rules and from SetRules. Each
// fault is recorded (Faults).
//
// Its methods beyond those of a store are what tests and administrators call; all may be called at any time from
// many goroutines. It never says that it does not block, since rules may come, and is no Mapper, since what goes
// through memory would pass it by. The optional interfaces are always there: what the store below cannot do is
// answered as it would be without them. It does not own the store below, whose owner closes it after this one.
//
// With the option cache it is also a disk with a write cache that a power cut empties: see PowerCut.
type FaultStore struct {
	below      Store
	seed       uint64
	cacheBytes int64
	rules      atomic.Pointer[faultRules] // nil: none
	closed     atomic.Bool
	down       chan struct{} // closed by Close
	log        faultLog

	stuck struct {
		mu      sync.Mutex
		release chan struct{} // closed to let go those who wait, and replaced
		waiting int
	}

	mu   sync.Mutex    // held over a write, from remembering what was there until it is done, while anything is remembered
	undo *sectorMemory // what the sectors not yet durable held; nil without the option cache
	old  *sectorMemory // what was there before the last write, where there are rules for stale reads
}

// faultRules are those in force.
type faultRules struct {
	list []*faultRule
	any  faultOps // all that they are about
}

func faultType() Type {
	return Type{
		Name: "fault", Summary: "another store, with faults: latency, errors, torn, misplaced, lost and stale data, flipped bits", over: openFault,
		Options: []Option{
			{Name: wrapOption, Required: true, Summary: "the name of the store that it wraps, and that nothing else may use", check: notEmpty},
			{
				Name: "rules", Summary: "what to do wrong: KIND OP [FROM-TO] [KEY=VALUE]..., parted by semicolons " +
					`("bitflip read 0-1MiB rate=1/1000; latency write delay=5ms")`,
				check: func(v string) error { _, err := parseRules(v); return err },
			},
			{Name: "seed", Default: "1", Summary: "of chance: one seed makes the same faults of the same requests", check: checkSeed},
			{Name: "cache", Summary: "bytes that a simulated power cut may lose (64MiB): what is written and not flushed; default: none", check: checkCache},
		},
	}
}

func checkSeed(v string) error {
	if _, err := strconv.ParseUint(v, 10, 64); err != nil {
		return fmt.Errorf("%q is not a number from 0 to 2^64-1", v)
	}
	return nil
}

func checkCache(v string) error {
	if n, err := ParseSize(v); err != nil {
		return err
	} else if n < MinBlock || n > maxCache {
		return fmt.Errorf("%d bytes are not between %d and %d", n, MinBlock, maxCache)
	}
	return nil
}

func openFault(s settings, below Store) (Store, error) {
	f := &FaultStore{below: below, cacheBytes: s.size("cache"), seed: s.number("seed"), down: make(chan struct{}), old: newSectorMemory(staleBytes)}
	f.stuck.release = make(chan struct{})
	if f.cacheBytes > 0 {
		f.undo = newSectorMemory(f.cacheBytes)
	}
	if err := f.SetRules(s["rules"]); err != nil {
		return nil, &OptionError{Type: "fault", Option: "rules", Err: err}
	}
	return f, nil
}

// SetRules replaces the rules, for requests that come from now on: counts begin anew, and requests that are stuck
// go on. No text is no rules. The grammar is that of the option rules. After an error the old rules
// stay.
func (f *FaultStore) SetRules(text string) error {
	list, err := parseRules(text)
	if err != nil {
		return err
	}
	var rules *faultRules
	if len(list) > 0 {
		rules = &faultRules{list: list}
		for _, r := range list {
			rules.any |= r.ops
		}
	}
	f.mu.Lock()
	f.rules.Store(rules)
	f.old.clear()
	f.mu.Unlock()
	f.Release()
	return nil
}

// Rules are those in force, in the grammar of SetRules.
func (f *FaultStore) Rules() string {
	rules := f.rules.Load()
	if rules == nil {
		return ""
	}
	var texts []string
	for _, r := range rules.list {
		texts = append(texts, r.text)
	}
	return strings.Join(texts, "; ")
}

// Faults are the last faults that were injected, in the order of their Sequence, and how many older ones have
// been forgotten.
func (f *FaultStore) Faults() (list []Fault, forgotten uint64) { return f.log.all() }

// Release lets every request go on that is stuck, and says how many they were.
func (f *FaultStore) Release() int {
	f.stuck.mu.Lock()
	defer f.stuck.mu.Unlock()
	n := f.stuck.waiting
	f.stuck.waiting = 0
	close(f.stuck.release)
	f.stuck.release = make(chan struct{})
	return n
}

// Stuck is how many requests are stuck.
func (f *FaultStore) Stuck() int {
	f.stuck.mu.Lock()
	defer f.stuck.mu.Unlock()
	return f.stuck.waiting
}

// wait is a request that is stuck.
func (f *FaultStore) wait() error {
	f.stuck.mu.Lock()
	release := f.stuck.release
	f.stuck.waiting++
	f.stuck.mu.Unlock()
	select {
	case <-release:
		return nil
	case <-f.down:
		return net.ErrClosed
	}
}

func (f *FaultStore) sleep(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-f.down:
		return net.ErrClosed
	}
}

// A hit is a rule that has fired, and where.
type hit struct {
	rule   *faultRule
	op     faultOps
	off, n int64 // of the request
	a, b   int64 // the bytes of the request that the rule is about, [a, b)
	chance chance
}

// at finds what is done wrong with a request on [off, off+n): nil if nothing. It takes the time that rules
// want it to take, and fails only if the store is closed meanwhile.
func (f *FaultStore) at(rules *faultRules, op faultOps, off, n int64) (*hit, error) {
	if rules == nil || rules.any&op == 0 {
		return nil, nil
	}
	var found *hit
	for i, r := range rules.list {
		delays := r.kind == FaultLatency || r.kind == FaultStuck
		if !r.touches(op, off, n) || found != nil && !delays {
			continue
		}
		h := &hit{rule: r, op: op, off: off, n: n, a: max(off, r.from), b: min(off+n, r.to)}
		if !f.possible(h) {
			continue
		}
		var fires bool
		if h.chance, fires = r.fires(f.seed, i); !fires {
			continue
		}
		if !delays {
			found = h
			continue
		}
		if err := f.delay(h); err != nil {
			return nil, f.failed(op, off, n, err)
		}
	}
	return found, nil
}

// possible reports whether a rule can do to a request what it says: otherwise the request does not count.
func (f *FaultStore) possible(h *hit) bool {
	switch size := f.below.Info().SizeBytes; h.rule.kind {
	case FaultStale:
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.old.knows(h.a, h.b-h.a)
	case FaultMisplaced:
		if by := h.rule.by; by != 0 {
			return h.a >= -by && h.b <= size-max(by, 0)
		}
		return h.b-h.a <= size-MinBlock
	}
	return true
}

func (f *FaultStore) delay(h *hit) error {
	r := h.rule
	if r.kind == FaultStuck {
		f.record(h, h.off, h.off+h.n, Fault{})
		return f.wait()
	}
	d := r.delay
	if r.jitter > 0 {
		d += time.Duration(h.chance.below(int64(r.jitter) + 1))
	}
	f.record(h, h.off, h.off+h.n, Fault{Delay: d})
	return f.sleep(d)
}

// record logs that [from, to) suffers; more holds what only some kinds have.
func (f *FaultStore) record(h *hit, from, to int64, more Fault) {
	more.Kind, more.Op, more.Rule = h.rule.kind, h.op.String(), h.rule.text
	more.Offset, more.Length = from, to-from
	if h.op == onFlush {
		more.Offset, more.Length = 0, 0
	}
	f.log.add(more)
}

// failed is the error of a request.
func (f *FaultStore) failed(op faultOps, off, n int64, err error) error {
	return rangeError("fault store", op.String(), off, n, err)
}

func (f *FaultStore) closedError(what string) error {
	return fmt.Errorf("fault store: %s: %w", what, net.ErrClosed)
}

// usable checks that the store is open and the range inside it, before any fault: what the store below refuses
// anyway is not worth one.
func (f *FaultStore) usable(op faultOps, off, n int64) error {
	info := f.below.Info()
	switch {
	case f.closed.Load():
		return f.failed(op, off, n, net.ErrClosed)
	case op&(onWrite|onZero) != 0 && info.ReadOnly:
		return f.failed(op, off, n, ErrReadOnly)
	case !within(off, n, info.SizeBytes):
		return f.failed(op, off, n, ErrRange)
	}
	return nil
}

// stale reports whether rules want to know what [off, off+n) held before a write.
func (r *faultRules) stale(off, n int64) bool {
	if r == nil {
		return false
	}
	for _, rule := range r.list {
		if rule.kind == FaultStale && rule.touches(onRead, off, n) {
			return true
		}
	}
	return false
}

// Info is the store's below, but for what it does not promise here.
func (f *FaultStore) Info() Info {
	i := f.below.Info()
	i.NeverBlocks = false
	if f.undo != nil && !i.ReadOnly {
		i.WriteCache, i.Volatile, i.AtomicBytes = true, false, 0
	}
	return i
}

// Close lets stuck requests fail. The store below stays open.
func (f *FaultStore) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	close(f.down)
	return f.below.Flush()
}

// Measure measures the store below, if it can be measured.
func (f *FaultStore) Measure() error {
	if f.closed.Load() {
		return f.closedError("measure")
	}
	if m, ok := f.below.(Measurer); ok {
		return m.Measure()
	}
	return nil
}

// Resize resizes the store below; errors.ErrUnsupported if it cannot be resized.
func (f *FaultStore) Resize(size int64) error {
	if f.closed.Load() {
		return resizeError("fault store", size, net.ErrClosed)
	}
	r, ok := f.below.(Resizer)
	if !ok {
		return resizeError("fault store", size, errors.ErrUnsupported)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := r.Resize(size); err != nil {
		return err
	}
	// What is cut off is gone for good, and a later write there has zeros before it.
	f.old.forget(size/MinBlock, math.MaxInt64/MinBlock)
	if f.undo != nil {
		f.undo.forget(size/MinBlock, math.MaxInt64/MinBlock)
	}
	return nil
}

// Extent is that of the store below; where that cannot tell, all is allocated.
func (f *FaultStore) Extent(off, n int64) (allocated bool, length int64, err error) {
	if err := f.usable(onRead, off, n); err != nil {
		return false, 0, err
	}
	if e, ok := f.below.(Extenter); ok {
		return e.Extent(off, n)
	}
	return true, n, nil
}
