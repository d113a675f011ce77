package bench

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A memory is a disk whose requests end when they are waited for.
type memory struct {
	mu      sync.Mutex
	data    []byte
	fail    error
	lose    bool // writes do nothing
	longest int
	reads   []int64 // offsets
}

const testPiece = 8 << 10

func (m *memory) disk() Disk {
	return Disk{SizeBytes: int64(len(m.data)), BlockSize: 512, MaxTransfer: testPiece, Open: func(depth int) (Queue, error) {
		return &memoryQueue{m: m, ended: make([]initiator.Completion, 0, depth)}, nil
	}}
}

type memoryQueue struct {
	m     *memory
	ended []initiator.Completion
}

func (q *memoryQueue) ReadAt(p []byte, off int64, tag uint64) error {
	q.m.mu.Lock()
	defer q.m.mu.Unlock()
	copy(p, q.m.data[off:off+int64(len(p))])
	q.m.longest = max(q.m.longest, len(p))
	if len(q.m.reads) < cap(q.m.reads) {
		q.m.reads = append(q.m.reads, off)
	}
	return q.end(tag)
}

func (q *memoryQueue) WriteAt(p []byte, off int64, tag uint64) error {
	q.m.mu.Lock()
	defer q.m.mu.Unlock()
	if !q.m.lose {
		copy(q.m.data[off:off+int64(len(p))], p)
	}
	return q.end(tag)
}

func (q *memoryQueue) end(tag uint64) error {
	if len(q.ended) == cap(q.ended) {
		return initiator.ErrBatchFull
	}
	q.ended = append(q.ended, initiator.Completion{Tag: tag, Err: q.m.fail})
	return nil
}

func (q *memoryQueue) Submit(ctx context.Context) error { return ctx.Err() }

func (q *memoryQueue) Wait(_ context.Context, done []initiator.Completion, least int) (int, error) {
	n := copy(done, q.ended)
	q.ended = append(q.ended[:0], q.ended[n:]...)
	return n, nil
}

func (q *memoryQueue) Close() {}

func noCPU() time.Duration { return 0 }

func testPlan() Plan {
	return Plan{ReadPercent: 50, Random: true, MinBytes: 4096, MaxBytes: 16384, Depth: 4, Time: 20 * time.Millisecond, Seed: 1}
}

// newRun has its own memory for each test.
func newRun(t *testing.T, m *memory, p Plan, jobs int) *Run {
	t.Helper()
	var disks []Disk
	for range jobs {
		disks = append(disks, m.disk())
	}
	r, err := New(disks, p, noCPU)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// rounds has a job go n rounds, whose plan does not end before that.
func rounds(t *testing.T, j *job, n int) {
	t.Helper()
	if j.began.IsZero() {
		j.began = time.Now()
	}
	for range n {
		busy, err := j.round(t.Context())
		require.NoError(t, err)
		require.True(t, busy)
	}
}

func TestTurnCountsWhatEnded(t *testing.T) {
	m := &memory{data: make([]byte, 1<<20)}
	r := newRun(t, m, testPlan(), 2)
	first, err := r.Turn(t.Context())
	require.NoError(t, err)
	second, err := r.Turn(t.Context())
	require.NoError(t, err)
	for d := range first.Sides {
		require.Positive(t, first.Sides[d].IOs)
		sum := r.Total().Sides[d]
		assert.Equal(t, first.Sides[d].IOs+second.Sides[d].IOs, sum.IOs)
		assert.Equal(t, sum.IOs, sum.Latency.TotalCount(), "each has a latency")
		assert.GreaterOrEqual(t, sum.Bytes, sum.IOs*4096)
		assert.LessOrEqual(t, sum.Bytes, sum.IOs*16384)
	}
	assert.Equal(t, first.Elapsed+second.Elapsed, r.Total().Elapsed)
	assert.GreaterOrEqual(t, first.Elapsed, 20*time.Millisecond)
	live := r.Live()
	assert.Equal(t, r.Total().Sides[Read].IOs+r.Total().Sides[Write].IOs, live.IOs)
	assert.Equal(t, testPiece, m.longest, "longer requests are cut")
}

// What ends before the ramp does is not counted.
func TestRampIsNotMeasured(t *testing.T) {
	m := &memory{data: make([]byte, 1<<20)}
	p := testPlan()
	p.Ramp, p.Time = time.Hour, time.Hour
	r := newRun(t, m, p, 1)
	j := r.jobs[0]
	rounds(t, j, 1)
	assert.Zero(t, j.sides[Read].IOs+j.sides[Write].IOs)
	j.began = j.began.Add(-p.Ramp)
	rounds(t, j, 1)
	assert.Positive(t, j.sides[Read].IOs+j.sides[Write].IOs)
}

func TestSequentialRequestsFollowEachOther(t *testing.T) {
	m := &memory{data: make([]byte, 64<<10), reads: make([]int64, 0, 20)}
	p := testPlan()
	p.ReadPercent, p.Random, p.MaxBytes, p.OffsetBytes, p.SizeBytes, p.Time = 100, false, 4096, 8192, 32<<10, time.Hour
	rounds(t, newRun(t, m, p, 1).jobs[0], 5)
	require.Len(t, m.reads, 20)
	for i, off := range m.reads {
		assert.Equal(t, int64(8192+i%8*4096), off, "request %d", i)
	}
}

func TestRequestsStayInTheirRegion(t *testing.T) {
	m := &memory{data: make([]byte, 1<<20), reads: make([]int64, 0, 10_000)}
	p := testPlan()
	p.ReadPercent, p.OffsetBytes, p.SizeBytes, p.Time = 100, 64<<10, 40<<10, time.Hour
	rounds(t, newRun(t, m, p, 1).jobs[0], 500)
	places := make(map[int64]bool)
	for _, off := range m.reads {
		require.GreaterOrEqual(t, off, int64(64<<10))
		require.Less(t, off, int64(104<<10))
		require.Zero(t, off%4096)
		places[off] = true
	}
	assert.Len(t, places, 10, "all of it is used")
}

func TestAnErrorEndsTheRun(t *testing.T) {
	m := &memory{data: make([]byte, 1<<20), fail: errors.New("burnt")}
	r := newRun(t, m, testPlan(), 2)
	_, err := r.Turn(t.Context())
	assert.ErrorIs(t, err, m.fail)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newRun(t, &memory{data: make([]byte, 1<<20)}, testPlan(), 1).Turn(ctx)
	assert.ErrorIs(t, err, context.Canceled)
}

// A turn that is stopped has what ended until then, and of the time no more than it took.
func TestAStoppedTurnCounts(t *testing.T) {
	p := testPlan()
	p.Time = time.Hour
	r := newRun(t, &memory{data: make([]byte, 1<<20)}, p, 2)
	done := make(chan *Result)
	go func() {
		res, err := r.Turn(t.Context())
		assert.NoError(t, err)
		done <- res
	}()
	r.Stop()
	res := <-done
	assert.Positive(t, res.Sides[Read].IOs+res.Sides[Write].IOs)
	assert.Less(t, res.Elapsed, time.Hour)
	assert.Positive(t, res.Elapsed)
}

func TestVerifyFindsWhatWasNotKept(t *testing.T) {
	p := testPlan()
	p.Verify = true
	good := &memory{data: make([]byte, 1<<20)}
	r := newRun(t, good, p, 2)
	_, err := r.Turn(t.Context())
	require.NoError(t, err)
	n, err := r.Check(t.Context())
	require.NoError(t, err)
	assert.Positive(t, n)

	good.data[p.MinBytes*int(firstWritten(r))+700] ^= 4
	_, err = r.Check(t.Context())
	wrong, is := errors.AsType[*MismatchError](err)
	require.True(t, is, "%v", err)
	assert.Equal(t, stamp.BitFlip, wrong.Mismatch.Kind)

	lost := &memory{data: make([]byte, 64<<10), lose: true}
	p.Time = time.Hour
	j := newRun(t, lost, p, 1).jobs[0]
	j.began, err = time.Now(), nil
	for i := 0; i < 1000 && err == nil; i++ {
		_, err = j.round(t.Context())
	}
	_, is = errors.AsType[*MismatchError](err)
	assert.True(t, is, "a read during the turn: %v", err)
}

func firstWritten(r *Run) int64 {
	at, _ := r.written.next(0, 1, r.plan.units())
	return at
}

func TestWrittenFindsRuns(t *testing.T) {
	const units = 200
	w := newWritten(units)
	_, n := w.next(0, 10, units)
	assert.Zero(t, n)
	w.set(62, 5)
	w.set(199, 1)
	at, n := w.next(0, 3, units)
	assert.Equal(t, [2]int64{62, 3}, [2]int64{at, n})
	at, n = w.next(65, 10, units)
	assert.Equal(t, [2]int64{65, 2}, [2]int64{at, n})
	at, n = w.next(67, 10, units)
	assert.Equal(t, [2]int64{199, 1}, [2]int64{at, n})
	assert.True(t, w.all(62, 5))
	assert.False(t, w.all(61, 2))
}

func TestARoundDoesNotAllocate(t *testing.T) {
	for _, verify := range []bool{false, true} {
		m := &memory{data: make([]byte, 1<<20)}
		p := testPlan()
		p.Time, p.Verify = time.Hour, verify
		j := newRun(t, m, p, 1).jobs[0]
		j.began = time.Now()
		var failed error
		n := testing.AllocsPerRun(100, func() {
			if _, err := j.round(t.Context()); err != nil {
				failed = err
			}
		})
		require.NoError(t, failed)
		assert.Less(t, n, 1.0, "verify %v: but for the series, ten times a second", verify)
		assert.Positive(t, j.sides[Write].IOs)
	}
}

func TestPlanSaysWhatIsWrong(t *testing.T) {
	d := (&memory{data: make([]byte, 1<<20)}).disk()
	for want, change := range map[string]func(*Plan){
		"depth 0":                       func(p *Plan) { p.Depth = 0 },
		"101 percent":                   func(p *Plan) { p.ReadPercent = 101 },
		"requests of 100 bytes":         func(p *Plan) { p.MinBytes = 100 },
		"requests of up to 5000 bytes":  func(p *Plan) { p.MaxBytes = 5000 },
		"time 0s":                       func(p *Plan) { p.Time = 0 },
		"offset 512":                    func(p *Plan) { p.OffsetBytes = 512 },
		"room for a request":            func(p *Plan) { p.OffsetBytes = 1 << 20 },
		"on the disk, which has 104857": func(p *Plan) { p.SizeBytes = 2 << 20 },
		"nothing is written":            func(p *Plan) { p.Verify, p.ReadPercent = true, 100 },
		"bytes of memory":               func(p *Plan) { p.Depth, p.MaxBytes = MaxDepth, MaxRequest },
	} {
		p := testPlan()
		change(&p)
		assert.ErrorContains(t, p.Check(1, &d), want)
	}
	p := testPlan()
	assert.ErrorContains(t, p.Check(0, &d), "0 jobs")
	huge := Disk{SizeBytes: 1 << 50, BlockSize: 512}
	p.Verify, p.SizeBytes = true, 0
	assert.ErrorContains(t, p.Check(1, &huge), "give a smaller size")
}

func TestSeriesStaysSmall(t *testing.T) {
	s := series{width: firstWindow}
	w := window{ios: [2]int64{2, 1}, bytes: [2]int64{100, 50}}
	w.lat[Read] = newHist(fewDigits)
	record(w.lat[Read], time.Millisecond)
	const adds = 300 // 30 s
	for i := range adds {
		s.add(time.Duration(i)*firstWindow, &w)
	}
	assert.LessOrEqual(t, len(s.windows), maxWindows)
	points := s.points(Read, adds*firstWindow)
	var bytes float64
	last := 0.0
	for _, p := range points {
		bytes += p.BytesPerS * (p.At - last)
		last = p.At
		assert.InDelta(t, 1000, p.P99, 20)
	}
	assert.InDelta(t, 100*adds, bytes, 100*adds*0.02)
	assert.Equal(t, int64(adds*3), s.live().IOs)
}

func TestLatenciesOutOfRangeAreKept(t *testing.T) {
	h := newHist(digits)
	record(h, 0)
	record(h, time.Hour)
	assert.Equal(t, int64(2), h.TotalCount())
	assert.InDelta(t, float64(time.Minute), float64(h.Max()), float64(time.Second))
}

func TestSVGIsWellFormed(t *testing.T) {
	for name, points := range map[string][]Point{
		"nothing": nil,
		"one":     {{At: 0.1, IOPS: 5, BytesPerS: 5e6, P50: 3, P99: 9}},
		"some":    {{At: 1, BytesPerS: 1 << 20, P50: 100, P99: 200}, {At: 2, BytesPerS: 3 << 20, P50: 120, P99: 900}},
	} {
		var b strings.Builder
		require.NoError(t, SVG(&b, "a <title> & more", []Line{{"iser://h/iqn.x:a&b read", points}, {"second", points}}))
		d := xml.NewDecoder(strings.NewReader(b.String()))
		lines := 0
		for {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			require.NoError(t, err, name)
			if e, is := tok.(xml.StartElement); is && e.Name.Local == "polyline" {
				lines++
			}
		}
		assert.Equal(t, 6, lines, "two of throughput, four of latency")
		assert.NotContains(t, b.String(), "NaN")
		assert.Contains(t, b.String(), "a &lt;title&gt; &amp; more")
	}
}
