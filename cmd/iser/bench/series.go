package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Direction is an index of what is kept for reads and writes.
type Direction int

// The directions.
const (
	Read Direction = iota
	Write
)

func (d Direction) String() string { return [...]string{"read", "write"}[d] }

// Latencies are kept in nanoseconds, to a minute; what is longer counts as that.
const (
	minLatency = 100 * time.Nanosecond
	maxLatency = time.Minute
	digits     = 3 // of the whole
	fewDigits  = 2 // of a window
)

func newHist(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(minLatency), int64(maxLatency), digits)
}

// record adds a latency, which it brings into the range: RecordValue then has no error.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(max(d, minLatency), maxLatency)))
}

// A series has maxWindows windows at most; each is firstWindow long at first. When they are used up, two become one.
const (
	maxWindows  = 128
	firstWindow = 100 * time.Millisecond
)

// A window is what ended in a part of the time.
type window struct {
	ios, bytes [2]int64
	lat        [2]*hdrhistogram.Histogram // nil: nothing yet
}

// merge adds from to w, and leaves from as it is.
func (w *window) merge(from *window) {
	for d := range w.lat {
		w.ios[d] += from.ios[d]
		w.bytes[d] += from.bytes[d]
		if from.lat[d] == nil || from.ios[d] == 0 {
			continue
		}
		if w.lat[d] == nil {
			w.lat[d] = newHist(fewDigits)
		}
		w.lat[d].Merge(from.lat[d])
	}
}

func (w *window) reset() {
	w.ios, w.bytes = [2]int64{}, [2]int64{}
	for _, h := range w.lat {
		if h != nil {
			h.Reset()
		}
	}
}

// A series is what ended over the time. Jobs add to it once a window, not once a request.
type series struct {
	mu      sync.Mutex
	width   time.Duration
	windows []window
	last    window // the newest that was added, for Live
	total   window // without latencies
}

// add puts what a job has done around the time at.
func (s *series) add(at time.Duration, w *window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for int(at/s.width) >= maxWindows {
		s.halve()
	}
	i := int(at / s.width)
	for len(s.windows) <= i {
		s.windows = append(s.windows, window{})
	}
	s.windows[i].merge(w)
	s.last.reset()
	s.last.merge(w)
	for d := range w.ios {
		s.total.ios[d] += w.ios[d]
		s.total.bytes[d] += w.bytes[d]
	}
}

// halve makes one window of two.
func (s *series) halve() {
	half := make([]window, 0, maxWindows)
	for i := range s.windows {
		if i%2 == 0 {
			half = append(half, s.windows[i])
		} else {
			half[i/2].merge(&s.windows[i])
		}
	}
	s.windows = half
	s.width *= 2
}

// A Point is one window of a direction. Latencies are in microseconds, and 0 where nothing ended.
type Point struct {
	At        float64 `json:"at_seconds"` // its end, from the start of measuring
	IOPS      float64 `json:"iops"`
	BytesPerS float64 `json:"bytes_per_second"`
	P50       float64 `json:"lat_us_p50"`
	P99       float64 `json:"lat_us_p99"`
}

// points are those of a direction over the time that was measured. A last window of which less than half was measured
// is left out: its rates would be noise.
func (s *series) points(d Direction, elapsed time.Duration) []Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Point
	for i := range s.windows {
		w := &s.windows[i]
		from := time.Duration(i) * s.width
		length := min(s.width, elapsed-from)
		if length < s.width/2 && i > 0 {
			break
		}
		secs := max(length, time.Microsecond).Seconds()
		p := Point{At: from.Seconds() + secs, IOPS: float64(w.ios[d]) / secs, BytesPerS: float64(w.bytes[d]) / secs}
		if h := w.lat[d]; h != nil {
			p.P50, p.P99 = micros(h.ValueAtQuantile(50)), micros(h.ValueAtQuantile(99))
		}
		all = append(all, p)
	}
	return all
}

func micros(ns int64) float64 { return float64(ns) / 1000 }

// A Live is how a run goes.
type Live struct {
	IOs, Bytes int64         // measured so far
	P99        time.Duration // of the newest requests; 0: none yet
}

func (s *series) live() Live {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := Live{IOs: s.total.ios[Read] + s.total.ios[Write], Bytes: s.total.bytes[Read] + s.total.bytes[Write]}
	for _, h := range s.last.lat {
		if h != nil {
			l.P99 = max(l.P99, time.Duration(h.ValueAtQuantile(99)))
		}
	}
	return l
}
