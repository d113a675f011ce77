package backstore

import (
	"bytes"
	"fmt"
	"slices"
)

// ReadAt reads, with such faults as rules say.
func (f *FaultStore) ReadAt(bufs [][]byte, off int64) error {
	rules := f.rules.Load()
	if rules == nil && !f.closed.Load() {
		return f.below.ReadAt(bufs, off)
	}
	h, _, err := f.begin(rules, onRead, off, total(bufs), false)
	switch {
	case err != nil:
		return err
	case h == nil:
		return f.below.ReadAt(bufs, off)
	case h.rule.kind == FaultError:
		return f.refuse(h)
	}
	if err := f.below.ReadAt(bufs, off); err != nil {
		return err
	}
	part := slice(bufs, h.a-off, h.b-off)
	switch h.rule.kind {
	case FaultMisplaced:
		from := f.elsewhere(h)
		f.record(h, h.a, h.b, Fault{Elsewhere: from})
		return f.below.ReadAt(part, from)
	case FaultStale:
		f.makeStale(h, part)
	case FaultBitFlip:
		f.record(h, h.a, h.b, Fault{Bits: flip(h, part)})
	}
	return nil
}

// WriteAt writes, with such faults as rules say.
func (f *FaultStore) WriteAt(bufs [][]byte, off int64, fua bool) error {
	rules := f.rules.Load()
	if rules == nil && f.undo == nil && !f.closed.Load() {
		return f.below.WriteAt(bufs, off, fua)
	}
	h, fua, err := f.begin(rules, onWrite, off, total(bufs), fua)
	switch {
	case err != nil:
		return err
	case h == nil:
		return f.put(rules, bufs, off, fua)
	}
	return f.writeWrong(rules, h, bufs, fua)
}

// begin checks a request and finds what is done wrong with it: nil if nothing. durable is whether it is still to be durable
// when it is answered.
func (f *FaultStore) begin(rules *faultRules, op faultOps, off, n int64, fua bool) (h *hit, durable bool, err error) {
	if err := f.usable(op, off, n); err != nil {
		return nil, false, err
	}
	if h, err = f.at(rules, op, off, n); err != nil || !fua {
		return h, false, err
	}
	lost, err := f.flushFault(rules, off, n)
	return h, !lost, err
}

// writeWrong writes with a fault.
func (f *FaultStore) writeWrong(rules *faultRules, h *hit, bufs [][]byte, fua bool) error {
	switch off := h.off; h.rule.kind {
	case FaultError:
		return f.refuse(h)
	case FaultShort, FaultTorn:
		at := h.b - 1 - h.chance.below(max(h.b-h.a-1, 1)) // in (a, b) if there is such a byte
		end := h.b
		if h.rule.kind == FaultShort {
			end = off + h.n // a write that fails does not go on behind the rule's range
		}
		f.record(h, at, end, Fault{})
		if err := f.put(rules, slice(bufs, 0, at-off), off, fua); err != nil {
			return err
		}
		if h.rule.kind == FaultShort {
			return f.failed(onWrite, off, h.n, fmt.Errorf("%w: done up to byte %d", ErrInjected, at))
		}
		return f.put(rules, slice(bufs, h.b-off, h.n), h.b, fua)
	case FaultBitFlip:
		part := bytes.Join(slice(bufs, h.a-off, h.b-off), nil)
		f.record(h, h.a, h.b, Fault{Bits: flip(h, [][]byte{part})})
		wrong := append(slice(bufs, 0, h.a-off), part)
		return f.put(rules, append(wrong, slice(bufs, h.b-off, h.n)...), off, fua)
	case FaultMisplaced:
		to := f.elsewhere(h)
		f.record(h, h.a, h.b, Fault{Elsewhere: to})
		if err := f.put(rules, slice(bufs, h.a-off, h.b-off), to, fua); err != nil {
			return err
		}
	case FaultLost:
		f.record(h, h.a, h.b, Fault{})
	}
	if err := f.put(rules, slice(bufs, 0, h.a-h.off), h.off, fua); err != nil {
		return err
	}
	return f.put(rules, slice(bufs, h.b-h.off, h.n), h.b, fua)
}

// put writes what is to be written.
func (f *FaultStore) put(rules *faultRules, bufs [][]byte, off int64, fua bool) error {
	return f.change(rules, off, total(bufs), fua, func() error { return f.below.WriteAt(bufs, off, fua) })
}

// change does what changes [off, off+n), and remembers what was there as long as anybody wants to know.
func (f *FaultStore) change(rules *faultRules, off, n int64, durable bool, do func() error) error {
	if f.undo == nil && !rules.stale(off, n) {
		return do()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.remember(rules, off, n); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if durable && f.undo != nil {
		f.undo.forget(sectorsOf(off, n))
	}
	return nil
}

// refuse is an injected error.
func (f *FaultStore) refuse(h *hit) error {
	f.record(h, h.off, h.off+h.n, Fault{})
	return f.failed(h.op, h.off, h.n, ErrInjected)
}

// elsewhere is where misplaced bytes go, or come from: at another sector, which there is (see possible).
func (f *FaultStore) elsewhere(h *hit) int64 {
	if h.rule.by != 0 {
		return h.a + h.rule.by
	}
	places := (f.below.Info().SizeBytes-(h.b-h.a))/MinBlock + 1
	at := h.chance.below(places)
	if at*MinBlock == h.a {
		at = (at + 1) % places
	}
	return at * MinBlock
}

// makeStale puts what was there before the last write into part, which holds [h.a, h.b), where it is remembered.
func (f *FaultStore) makeStale(h *hit, part [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, last := int64(-1), int64(0)
	at := h.a
	for _, b := range part {
		for len(b) > 0 {
			s, in := at/MinBlock, at%MinBlock
			n := min(int64(len(b)), MinBlock-in)
			if old := f.old.old[s]; old != nil {
				copy(b[:n], old[in:])
				if first < 0 {
					first = at
				}
				last = at + n
			}
			b, at = b[n:], at+n
		}
	}
	if first >= 0 {
		f.record(h, first, last, Fault{})
	}
}

// flip flips bits of part, which holds [h.a, h.b), each another one, and says which.
func flip(h *hit, part [][]byte) (bits []int64) {
	for range min(int64(h.rule.bits), (h.b-h.a)*8) {
		bit := h.chance.below((h.b - h.a) * 8)
		for slices.Contains(bits, h.a*8+bit) {
			bit = (bit + 1) % ((h.b - h.a) * 8)
		}
		bits = append(bits, h.a*8+bit)
		at := bit / 8
		for _, b := range part {
			if at < int64(len(b)) {
				b[at] ^= 1 << (bit % 8)
				break
			}
			at -= int64(len(b))
		}
	}
	return bits
}

// slice is the part [from, to) of what is in bufs, as a new list of the same memory.
func slice(bufs [][]byte, from, to int64) [][]byte {
	var list [][]byte
	at := int64(0)
	for _, b := range bufs {
		a, z := max(from-at, 0), min(to-at, int64(len(b)))
		if a < z {
			list = append(list, b[a:z])
		}
		at += int64(len(b))
	}
	return list
}

// Unmap unmaps, with such faults as rules say. A store below that cannot is written with zeros.
func (f *FaultStore) Unmap(off, n int64) error {
	return f.zero(off, n, false, func(off, n int64, _ bool) error {
		if u, ok := f.below.(Unmapper); ok {
			return u.Unmap(off, n)
		}
		return f.putZeros(off, n, false)
	})
}

// WriteZeroes zeroes, with such faults as rules say. A store below that cannot is written with zeros.
func (f *FaultStore) WriteZeroes(off, n int64, unmap, fua bool) error {
	return f.zero(off, n, fua, func(off, n int64, fua bool) error {
		if z, ok := f.below.(Zeroer); ok {
			return z.WriteZeroes(off, n, unmap, fua)
		}
		return f.putZeros(off, n, fua)
	})
}

func (f *FaultStore) zero(off, n int64, fua bool, do func(off, n int64, fua bool) error) error {
	rules := f.rules.Load()
	h, fua, err := f.begin(rules, onZero, off, n, fua)
	if err != nil {
		return err
	}
	put := func(off, n int64) error {
		return f.change(rules, off, n, fua, func() error { return do(off, n, fua) })
	}
	switch {
	case h == nil:
		return put(off, n)
	case h.rule.kind == FaultError:
		return f.refuse(h)
	}
	f.record(h, h.a, h.b, Fault{}) // FaultLost, the only other
	if err := put(off, h.a-off); err != nil {
		return err
	}
	return put(h.b, off+n-h.b)
}

// zeroStep is how many zeros are written at once, in bytes.
const zeroStep = 64 << 10

func (f *FaultStore) putZeros(off, n int64, fua bool) error {
	zeros := make([]byte, min(n, zeroStep))
	for n > 0 {
		step := min(n, zeroStep)
		if err := f.below.WriteAt([][]byte{zeros[:step]}, off, fua); err != nil {
			return err
		}
		off, n = off+step, n-step
	}
	return nil
}

// Flush flushes, with such faults as rules say.
func (f *FaultStore) Flush() error {
	if f.closed.Load() {
		return f.closedError("flush")
	}
	lost, err := f.flushFault(f.rules.Load(), 0, 0)
	if err != nil || lost {
		return err
	}
	if f.undo == nil {
		return f.below.Flush()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.below.Flush(); err != nil {
		return err
	}
	f.undo.clear()
	return nil
}

// flushFault is what rules for flushes do: to a flush, or to a write that is to be durable.
func (f *FaultStore) flushFault(rules *faultRules, off, n int64) (lost bool, err error) {
	h, err := f.at(rules, onFlush, off, n)
	switch {
	case err != nil || h == nil:
		return false, err
	case h.rule.kind == FaultError:
		return false, f.refuse(h)
	}
	f.record(h, 0, 0, Fault{}) // FaultLost, the only other
	return true, nil
}
