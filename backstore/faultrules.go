package backstore

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of rules. Whoever sets them is trusted, but may err.
const (
	maxRules     = 64
	maxRuleText  = 8 << 10 // bytes, of all rules
	maxDelay     = time.Hour
	maxFlipBits  = 64
	maxRuleCount = math.MaxInt64
)

// faultOps are what a store is asked to do, as rules call it; several are joined by or.
type faultOps uint8

const (
	onRead faultOps = 1 << iota
	onWrite
	onZero  // zeroing and unmapping
	onFlush // also the flush that a forced write asks for
	onAny   = onRead | onWrite | onZero | onFlush
)

func (o faultOps) String() string {
	switch o {
	case onRead:
		return "read"
	case onWrite:
		return "write"
	case onZero:
		return "zero"
	case onFlush:
		return "flush"
	}
	return "any"
}

// A FaultKind names what is done wrong.
type FaultKind string

// The kinds of fault. Where a rule has a range, only bytes in the range suffer.
const (
	// FaultLatency: answered late.
	FaultLatency FaultKind = "latency"
	// FaultStuck: not answered until FaultStore.Release, new rules, or Close.
	FaultStuck FaultKind = "stuck"
	// FaultError: nothing done, and said so.
	FaultError FaultKind = "error"
	// FaultShort: a write that was done in part, and failed.
	FaultShort FaultKind = "short"
	// FaultTorn: a write that was done in part, and succeeded.
	FaultTorn FaultKind = "torn"
	// FaultMisplaced: written elsewhere, or read from elsewhere.
	FaultMisplaced FaultKind = "misplaced"
	// FaultStale: read what was there before the last write.
	FaultStale FaultKind = "stale"
	// FaultLost: not done, and success reported.
	FaultLost FaultKind = "lost"
	// FaultBitFlip: bits written or read are others.
	FaultBitFlip FaultKind = "bitflip"
)

// faultKinds says which operations each kind can befall.
func faultKinds() map[FaultKind]faultOps {
	return map[FaultKind]faultOps{
		FaultLatency: onAny, FaultStuck: onAny, FaultError: onAny,
		FaultShort: onWrite, FaultTorn: onWrite,
		FaultMisplaced: onRead | onWrite, FaultBitFlip: onRead | onWrite,
		FaultStale: onRead,
		FaultLost:  onWrite | onZero | onFlush,
	}
}

// A faultRule is one rule. Its counters go on while it is in use; the rest does not change.
//
//	KIND OP [RANGE] [KEY=VALUE]...
//
//	KIND   latency stuck error short torn misplaced stale lost bitflip
//	OP     read write zero flush any
//	RANGE  0-1MiB (its end is not in it), 1GiB- (to the end), 4096+512 (so many bytes)
//	when   rate=1/1000 or rate=0.001 (by chance), every=N (each Nth), skip=N (first), count=N (at most)
//	what   delay=5ms jitter=2ms (latency), by=8KiB or by=-8KiB (misplaced), bits=N (bitflip)
//
// Several are parted by semicolons or ends of lines. Of the rules that change data or the answer, the first one
// that fires is the only one; those that only delay come on top of it.
type faultRule struct {
	text     string
	kind     FaultKind
	ops      faultOps
	from, to int64 // bytes, [from, to)

	rate        float64 // 1: always
	every, skip uint64
	count       uint64
	delay       time.Duration
	jitter      time.Duration
	by          int64 // bytes; 0: anywhere
	bits        int

	seen, fired atomic.Uint64
}

// parseRules reads rules; no text is no rules. An error shows the rule and what was expected.
func parseRules(text string) ([]*faultRule, error) {
	if len(text) > maxRuleText {
		return nil, fmt.Errorf("rules of %d bytes; at most %d", len(text), maxRuleText)
	}
	var rules []*faultRule
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		r, err := parseRule(words)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", strings.Join(words, " "), err)
		}
		if rules = append(rules, r); len(rules) > maxRules {
			return nil, fmt.Errorf("more than %d rules", maxRules)
		}
	}
	return rules, nil
}

func parseRule(words []string) (*faultRule, error) {
	r := &faultRule{
		text: strings.Join(words, " "), kind: FaultKind(words[0]),
		to: math.MaxInt64, rate: 1, every: 1, count: maxRuleCount, bits: 1,
	}
	may := faultKinds()[r.kind]
	if may == 0 {
		return nil, fmt.Errorf("%q is no kind of fault; there are latency, stuck, error, short, torn, misplaced, stale, lost, bitflip", words[0])
	}
	if len(words) < 2 {
		return nil, errors.New("no operation; give read, write, zero, flush or any")
	}
	for o := onRead; o <= onFlush; o <<= 1 {
		if words[1] == "any" || words[1] == o.String() {
			r.ops |= o
		}
	}
	if r.ops == 0 {
		return nil, fmt.Errorf("%q is no operation; there are read, write, zero, flush, any", words[1])
	}
	if r.ops &= may; r.ops == 0 {
		return nil, fmt.Errorf("there is no %s of a %s", words[0], words[1])
	}
	for i, w := range words[2:] {
		var err error
		if key, value, is := strings.Cut(w, "="); is {
			err = r.set(key, value)
		} else if i == 0 {
			r.from, r.to, err = ParseRange(w)
		} else {
			err = errors.New("not KEY=VALUE")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w, err)
		}
	}
	if r.kind == FaultLatency && r.delay == 0 && r.jitter == 0 {
		return nil, errors.New("no delay; give delay=5ms, jitter=5ms or both")
	}
	return r, nil
}

// set takes one KEY=VALUE.
func (r *faultRule) set(key, value string) (err error) {
	switch key {
	case "rate":
		r.rate, err = parseRate(value)
	case "every":
		r.every, err = parseCount(value, 1)
	case "skip":
		r.skip, err = parseCount(value, 0)
	case "count":
		r.count, err = parseCount(value, 1)
	case "delay":
		r.delay, err = r.parseDelay(value)
	case "jitter":
		r.jitter, err = r.parseDelay(value)
	case "by":
		if r.kind != FaultMisplaced {
			return errors.New("only of misplaced")
		}
		r.by, err = ParseSize(strings.TrimPrefix(value, "-"))
		if strings.HasPrefix(value, "-") {
			r.by = -r.by
		}
		if err == nil && (r.by == 0 || r.by%MinBlock != 0) {
			err = fmt.Errorf("not a multiple of %d bytes, before or behind", MinBlock)
		}
	case "bits":
		if r.kind != FaultBitFlip {
			return errors.New("only of bitflip")
		}
		r.bits, err = strconv.Atoi(value)
		if err != nil || r.bits < 1 || r.bits > maxFlipBits {
			err = fmt.Errorf("not between 1 and %d", maxFlipBits)
		}
	default:
		err = errors.New("no such key; there are rate, every, skip, count, delay, jitter, by, bits")
	}
	return err
}

// parseRate reads 1/N or a fraction above 0 and up to 1.
func parseRate(s string) (float64, error) {
	if n, is := strings.CutPrefix(s, "1/"); is {
		v, err := parseCount(n, 1)
		if err != nil {
			return 0, err
		}
		return 1 / float64(v), nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v <= 1) { // not a number is neither
		return 0, errors.New("not a rate; give 1/1000 or 0.001")
	}
	return v, nil
}

func parseCount(s string, least uint64) (uint64, error) {
	v, err := strconv.ParseUint(s, 10, 63)
	if err != nil || v < least {
		return 0, fmt.Errorf("not a count of %d or more", least)
	}
	return v, nil
}

func (r *faultRule) parseDelay(s string) (time.Duration, error) {
	if r.kind != FaultLatency {
		return 0, errors.New("only of latency")
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxDelay {
		return 0, fmt.Errorf("not a time up to %v; give 5ms", maxDelay)
	}
	return d, nil
}

// A chance is a sequence of numbers that depends on where it begins only (splitmix64).
type chance uint64

func (c *chance) next() uint64 {
	*c += 0x9e3779b97f4a7c15
	x := uint64(*c)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// below is a number from 0 to n-1; n is 1 or more.
func (c *chance) below(n int64) int64 { return int64(c.next() % uint64(n)) }

// fraction is a number from 0 to below 1.
func (c *chance) fraction() float64 { return float64(c.next()>>11) / (1 << 53) }

// touches reports whether the rule is about an operation on [off, off+n). A flush is about everything.
func (r *faultRule) touches(op faultOps, off, n int64) bool {
	return r.ops&op != 0 && (op == onFlush || off < r.to && r.from < off+n)
}

// fires decides about the next operation that the rule is about. What it decides depends on seed, on the rule's
// place among the rules and on how many operations there were before, and on no clock: so one seed does the
// same to the same sequence of operations.
func (r *faultRule) fires(seed uint64, place int) (chance, bool) {
	n := r.seen.Add(1) - 1
	c := chance(seed)
	c = chance(c.next() + uint64(place))
	c = chance(c.next() + n)
	if n < r.skip || (n-r.skip+1)%r.every != 0 || r.rate < 1 && c.fraction() >= r.rate {
		return c, false
	}
	return c, r.fired.Add(1) <= r.count
}
