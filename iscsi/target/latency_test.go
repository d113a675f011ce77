package target

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBucketsOfALatency(t *testing.T) {
	for d, want := range map[time.Duration]int{
		math.MinInt64: 0, -1: 0, 0: 0, 999: 0, 1000: 1, 3 * time.Microsecond: 3, 4 * time.Microsecond: 4,
		7999: 7, 8 * time.Microsecond: 8, 9 * time.Microsecond: 8, 10 * time.Microsecond: 9, 16 * time.Microsecond: 12,
		maxLatency - 1: LatencyBuckets - 2, maxLatency: LatencyBuckets - 1, math.MaxInt64: LatencyBuckets - 1,
	} {
		assert.Equal(t, want, bucketOf(d), "%v", d)
	}
	last := time.Duration(0)
	for i := range LatencyBuckets - 1 {
		bound := LatencyBound(i)
		require.Greater(t, bound, last, "bucket %d", i)
		assert.Equal(t, i, bucketOf(bound-1), "the last of bucket %d", i)
		assert.Equal(t, i+1, bucketOf(bound), "the first after bucket %d", i)
		last = bound
	}
	assert.Equal(t, maxLatency, last)
	assert.Zero(t, LatencyBound(LatencyBuckets-1))
}

// TestABucketIsNarrow: a quantile is found within a quarter of itself, or a microsecond.
func TestABucketIsNarrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(maxLatency)-1).Draw(t, "d"))
		i := bucketOf(d)
		low := time.Duration(0)
		if i > 0 {
			low = LatencyBound(i - 1)
		}
		if d < low || d >= LatencyBound(i) {
			t.Fatalf("%v in bucket %d, from %v to %v", d, i, low, LatencyBound(i))
		}
		if width := LatencyBound(i) - low; width > max(time.Microsecond, low/4) {
			t.Fatalf("bucket %d, from %v, is %v wide", i, low, width)
		}
	})
}

func TestLatenciesAddUp(t *testing.T) {
	var a, b Latency
	var live liveLatency
	for _, d := range []time.Duration{time.Microsecond, time.Millisecond, time.Hour} {
		a.record(d)
		live.record(d)
	}
	live.addTo(&b)
	assert.Equal(t, a, b)
	b.Add(&a)
	assert.EqualValues(t, 6, b.Count())
	assert.Equal(t, 2*(time.Hour+time.Millisecond+time.Microsecond), b.Sum)
	assert.EqualValues(t, 2, b.Buckets[LatencyBuckets-1])
}
