package verify_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// memDisk is a disk in memory whose reads and writes tests may spoil.
type memDisk struct {
	mu    sync.Mutex
	data  []byte
	bs    int
	write func(p []byte, off int64) ([]byte, int64)
	read  func(p []byte, off int64)
	fail  error
	sizes map[int]int // requests by size
}

func newMemDisk(size, bs int) *memDisk {
	return &memDisk{data: make([]byte, size), bs: bs, sizes: make(map[int]int)}
}

func (d *memDisk) BlockSize() int              { return d.bs }
func (d *memDisk) Flush(context.Context) error { return nil }

func (d *memDisk) ReadAt(_ context.Context, p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.data[off:])
	if d.read != nil {
		d.read(p, off)
	}
	return nil
}

func (d *memDisk) WriteAt(_ context.Context, p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sizes[len(p)]++
	if d.fail != nil {
		return d.fail
	}
	if d.write != nil {
		p, off = d.write(p, off)
	}
	copy(d.data[off:], p)
	return nil
}

func plan(ranges ...verify.Range) verify.Plan {
	return verify.Plan{Ranges: ranges, Mixed: true, Seed: 42, Runs: 2, Depth: 4}
}

// run verifies a disk by as many jobs as it is given.
func run(t *testing.T, p verify.Plan, d *memDisk, jobs int) verify.Result {
	t.Helper()
	require.NoError(t, p.Check(int64(len(d.data)), d.bs))
	var disks []verify.Disk
	for range jobs {
		disks = append(disks, d)
	}
	res, err := verify.New(disks, p, nil).Run(t.Context())
	require.NoError(t, err)
	return res
}

func TestAGoodDiskPasses(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		for _, sequential := range []bool{false, true} {
			for _, bs := range []int{512, 4096} {
				p := plan(verify.Range{Start: 1 << 16, End: 1<<20 + 8192}, verify.Range{Start: 2 << 20, End: 2<<20 + 1<<18})
				p.Overlap, p.Sequential = overlap, sequential
				d := newMemDisk(4<<20, bs)
				res := run(t, p, d, 2)
				assert.Zero(t, res.Wrong, res.Bad)
				assert.Greater(t, len(d.sizes), 5, "sizes are mixed")
				if !overlap {
					assert.EqualValues(t, 2*(1<<20+8192-1<<16+1<<18), res.WrittenBytes)
					assert.Equal(t, res.WrittenBytes, res.ReadBytes)
				}
				assert.Equal(t, make([]byte, 1<<16), d.data[:1<<16], "nothing outside of the ranges is written")
				assert.Equal(t, make([]byte, 1<<20-8192), d.data[1<<20+8192:2<<20])
				assert.Equal(t, make([]byte, 1<<18), d.data[2<<20+1<<18:2<<20+1<<19])
			}
		}
	}
}

// at is the byte of the sector that the tests spoil; hits says whether a request covers it.
const at = 1 << 20

func hits(p []byte, off int64) bool { return off <= at && at+512 <= off+int64(len(p)) }

// lose makes a disk keep the old bytes of the sector in the n-th write that covers it, counted from 1.
func (d *memDisk) lose(which func(n int) bool) {
	n := 0
	d.write = func(p []byte, off int64) ([]byte, int64) {
		if hits(p, off) {
			if n++; which(n) {
				p = bytes.Clone(p)
				copy(p[at-off:], d.data[at:at+512])
			}
		}
		return p, off
	}
}

func TestWhatADiskDidWrongIsNamed(t *testing.T) {
	reads := func(do func(d *memDisk, sector []byte)) func(*memDisk) {
		return func(d *memDisk) {
			d.read = func(p []byte, off int64) {
				if hits(p, off) {
					do(d, p[at-off:at-off+512])
				}
			}
		}
	}
	rows := []struct {
		name  string
		kind  stamp.Kind
		text  string
		spoil func(d *memDisk)
	}{
		{"drops a write of the second run", stamp.Stale, "generation 1", func(d *memDisk) {
			d.lose(func(n int) bool { return n == 2 })
		}},
		{"returns without data", stamp.Unwritten, "had not landed", reads(func(_ *memDisk, s []byte) { stamp.Poison(s) })},
		{"forgets", stamp.Zeros, "zeros", reads(func(_ *memDisk, s []byte) { clear(s) })},
		{"flips a bit", stamp.BitFlip, "bit 3 of byte 60", reads(func(_ *memDisk, s []byte) { s[60] ^= 8 })},
		{"reads the next sector", stamp.Misplaced, "sector 2049", reads(func(d *memDisk, s []byte) { copy(s, d.data[at+512:]) })},
		{"tears", stamp.Torn, "the right bytes up to 128, then zeros", reads(func(_ *memDisk, s []byte) { clear(s[128:]) })},
		{"has another writer", stamp.OtherWriter, "seed 5", reads(func(_ *memDisk, s []byte) {
			stamp.Fill(s, stamp.ID{Seed: 5, Sector: 2048, Generation: 1})
		})},
		{"returns junk", stamp.Foreign, "foreign", reads(func(_ *memDisk, s []byte) { copy(s, bytes.Repeat([]byte("junk"), 128)) })},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			d := newMemDisk(8<<20, 512)
			r.spoil(d)
			res := run(t, plan(verify.Range{Start: at - 1<<18, End: at + 1<<18}), d, 1)
			require.NotZero(t, res.Wrong)
			assert.Equal(t, res.Wrong, res.Kinds[r.kind], res.Kinds)
			b := res.Bad[0]
			assert.Equal(t, r.kind, b.Kind, b.Text)
			assert.Contains(t, b.Text, r.text)
			assert.EqualValues(t, at/512, b.Want.Sector)
			assert.Len(t, b.Expected, 512)
			assert.Len(t, b.Got, 512)
			assert.NotEqual(t, b.Expected, b.Got)
		})
	}
}

// While writers overlap, a lost write is still seen, and by each read that comes later.
func TestALostWriteAmongOverlappingOnesIsFound(t *testing.T) {
	d := newMemDisk(2<<20, 512)
	d.lose(func(n int) bool { return n > 1 }) // the second run fills it at least
	p := plan(verify.Range{Start: at - 8192, End: at + 1<<18})
	p.Overlap, p.RequestBytes = true, 1<<16
	res := run(t, p, d, 2)
	require.NotZero(t, res.Wrong)
	assert.Equal(t, res.Wrong, res.Kinds[stamp.Stale], res.Kinds)
	assert.EqualValues(t, at/512, res.Bad[0].Want.Sector)
}

func TestOtherMismatchesAmongOverlappingWriters(t *testing.T) {
	d := newMemDisk(2<<20, 512)
	d.read = func(p []byte, off int64) {
		if hits(p, off) {
			copy(p[at-off:], d.data[at+512:at+1024])
		}
	}
	p := plan(verify.Range{Start: at - 8192, End: at + 1<<18})
	p.Overlap = true
	res := run(t, p, d, 2)
	require.NotZero(t, res.Wrong)
	assert.Equal(t, res.Wrong, res.Kinds[stamp.Misplaced], res.Kinds)
}

func TestMismatchesKeptAreBounded(t *testing.T) {
	d := newMemDisk(8<<20, 512)
	d.read = func(p []byte, off int64) { clear(p) }
	res := run(t, plan(verify.Range{Start: 0, End: 1 << 20}), d, 1)
	assert.EqualValues(t, 2<<20/512, res.Wrong)
	assert.Len(t, res.Bad, 16)
	p := plan(verify.Range{Start: 0, End: 1 << 20})
	p.Keep = 100
	assert.Len(t, run(t, p, d, 1).Bad, 100)
}

func TestTheDisksErrorEndsIt(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		d := newMemDisk(8<<20, 512)
		d.fail = errors.New("no medium")
		p := plan(verify.Range{Start: 0, End: 4 << 20})
		p.Overlap = overlap
		require.NoError(t, p.Check(8<<20, 512))
		_, err := verify.New([]verify.Disk{d}, p, nil).Run(t.Context())
		assert.ErrorIs(t, err, d.fail)
	}
}

// endless is a disk of any size, which takes a while, and remembers what it is told to by generation only.
type endless struct {
	mu   sync.Mutex
	gens map[int64][]byte
}

func (d *endless) BlockSize() int              { return 512 }
func (d *endless) Flush(context.Context) error { return nil }

func (d *endless) WriteAt(_ context.Context, p []byte, off int64) error {
	time.Sleep(time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gens[off] = bytes.Clone(p)
	return nil
}

func (d *endless) ReadAt(_ context.Context, p []byte, off int64) error {
	time.Sleep(time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.gens[off]) // what was not written stays poison
	return nil
}

// All that is written in half of the time is read in the other half.
func TestTimeBoundsARunOf100TiB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &endless{gens: make(map[int64][]byte)}
		p := verify.Plan{Ranges: []verify.Range{{Start: 0, End: 100 << 40}}, RequestBytes: 4096, Seed: 1, Depth: 4, Time: time.Second}
		require.NoError(t, p.Check(100<<40, 512))
		start := time.Now()
		res, err := verify.New([]verify.Disk{d}, p, nil).Run(t.Context())
		require.NoError(t, err)
		assert.Zero(t, res.Wrong, res.Bad)
		assert.True(t, res.TimeUp)
		assert.InDelta(t, 4*500*4096, res.WrittenBytes, 16*4096)
		assert.InDelta(t, res.WrittenBytes, res.ReadBytes, 32*4096)
		assert.Less(t, time.Since(start), 1100*time.Millisecond)
		assert.Greater(t, len(d.gens), 1900, "they are spread")
	})
}

func TestPlansAreChecked(t *testing.T) {
	good := verify.Plan{Ranges: []verify.Range{{Start: 8192, End: 12288}, {Start: 0, End: 4096}}, RequestBytes: 4096, Runs: 1, Depth: 1}
	require.NoError(t, good.Check(1<<20, 4096))
	assert.EqualValues(t, 0, good.Ranges[0].Start, "in order")
	for what, spoil := range map[string]func(p *verify.Plan){
		"request size 512":           func(p *verify.Plan) { p.RequestBytes = 512 },
		"request size 33554432":      func(p *verify.Plan) { p.RequestBytes = 32 << 20 },
		"multiple of 4096":           func(p *verify.Plan) { p.RequestBytes = 4608 },
		"depth 0":                    func(p *verify.Plan) { p.Depth = 0 },
		"depth 1025":                 func(p *verify.Plan) { p.Depth = 1025 },
		"runs 0":                     func(p *verify.Plan) { p.Runs = 0 },
		"time -1":                    func(p *verify.Plan) { p.Time = -1 },
		"overlapping writers":        func(p *verify.Plan) { p.Overlap, p.CheckOnly = true, true },
		"zero 60 and unmap 41":       func(p *verify.Plan) { p.Zero, p.Unmap = 60, 41 },
		"zero -1":                    func(p *verify.Plan) { p.Zero = -1 },
		"keep 65537":                 func(p *verify.Plan) { p.Keep = 65537 },
		"0 ranges":                   func(p *verify.Plan) { p.Ranges = nil },
		"another range too":          func(p *verify.Plan) { p.Ranges = []verify.Range{{Start: 0, End: 8192}, {Start: 4096, End: 12288}} },
		"not on the disk":            func(p *verify.Plan) { p.Ranges = []verify.Range{{Start: 0, End: 2 << 20}} },
		"bytes 4096 to 4096 are not": func(p *verify.Plan) { p.Ranges = []verify.Range{{Start: 4096, End: 4096}} },
		"bytes 512 to 4096: both":    func(p *verify.Plan) { p.Ranges = []verify.Range{{Start: 512, End: 4096}} },
	} {
		p := good
		p.Ranges = append([]verify.Range{}, good.Ranges...)
		spoil(&p)
		assert.ErrorContains(t, p.Check(1<<20, 4096), what)
	}
}

// The map is XML, small whatever the time took, and shows the kinds that were found.
func TestHeatMapShowsWhereAndWhen(t *testing.T) {
	d := newMemDisk(8<<20, 512)
	d.read = func(p []byte, off int64) {
		if hits(p, off) {
			clear(p[at-off : at-off+512])
		}
	}
	p := plan(verify.Range{Start: 0, End: 2 << 20})
	require.NoError(t, p.Check(8<<20, 512))
	r := verify.New([]verify.Disk{d}, p, nil)
	_, err := r.Run(t.Context())
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, r.Heat().SVG(&b))
	svg := b.String()
	assert.Contains(t, svg, "zeros</text>")
	assert.Contains(t, svg, " wrong sectors, zeros first")
	assert.NotContains(t, svg, "torn")
	for dec := xml.NewDecoder(&b); ; {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
	}
}
