package target

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets of a Latency: below 4 us one each microsecond, then four to each power of two, and the last for all that is
// longer than maxLatency. So a quantile is found within a quarter of itself.
const (
	subBits = 2
	octaves = 25
	// maxLatency is where the last bucket begins, 33.6 s: longer than what initiators wait for by default.
	maxLatency = time.Microsecond << octaves
	// LatencyBuckets is how many buckets there are.
	LatencyBuckets = (octaves-subBits+1)<<subBits + 1
)

// A Latency is a histogram of durations.
type Latency struct {
	Sum     time.Duration
	Buckets [LatencyBuckets]uint64
}

// LatencyBound is the duration at which bucket i ends and the next one begins; the last bucket has no end, and 0.
func LatencyBound(i int) time.Duration {
	switch next := i + 1; {
	case next >= LatencyBuckets:
		return 0
	case next < 1<<subBits:
		return time.Duration(next) * time.Microsecond
	default:
		octave, sub := next>>subBits-1, next&(1<<subBits-1)
		return time.Duration(1<<subBits+sub) << octave * time.Microsecond
	}
}

// bucketOf finds the bucket of a duration.
func bucketOf(d time.Duration) int {
	us := uint64(d) / uint64(time.Microsecond)
	switch {
	case d < 0:
		return 0
	case us < 1<<subBits:
		return int(us)
	case d >= maxLatency:
		return LatencyBuckets - 1
	}
	octave := bits.Len64(us) - 1 - subBits
	return (octave+1)<<subBits + int(us>>octave)&(1<<subBits-1)
}

// Count is how many durations are in it.
func (l *Latency) Count() uint64 {
	n := uint64(0)
	for _, b := range l.Buckets {
		n += b
	}
	return n
}

// Add adds what another one has.
func (l *Latency) Add(o *Latency) {
	l.Sum += o.Sum
	for i, n := range o.Buckets {
		l.Buckets[i] += n
	}
}

// record adds one duration.
func (l *Latency) record(d time.Duration) {
	l.Sum += d
	l.Buckets[bucketOf(d)]++
}

// A liveLatency is a Latency that its owner adds to while others read. Sum and buckets may be one command apart.
type liveLatency struct {
	sum     atomic.Uint64
	buckets [LatencyBuckets]atomic.Uint64
}

func (l *liveLatency) record(d time.Duration) {
	l.sum.Add(uint64(d))
	l.buckets[bucketOf(d)].Add(1)
}

func (l *liveLatency) addTo(sum *Latency) {
	sum.Sum += time.Duration(l.sum.Load())
	for i := range l.buckets {
		sum.Buckets[i] += l.buckets[i].Load()
	}
}
