package main

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/goiser/goiser/backstore/stamp"
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
}

func newMemDisk(size, bs int) *memDisk { return &memDisk{data: make([]byte, size), bs: bs} }

func (d *memDisk) SizeBytes() int64            { return int64(len(d.data)) }
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
	if d.fail != nil {
		return d.fail
	}
	if d.write != nil {
		p, off = d.write(p, off)
	}
	copy(d.data[off:], p)
	return nil
}

var testPlan = verifyPlan{size: 4 << 20, bs: 1 << 20, mixed: true, seed: 42, runs: 2, depth: 4}

func TestVerifyPassesOnAGoodDisk(t *testing.T) {
	res, err := newVerifier(newMemDisk(8<<20, 512), testPlan).run(t.Context())
	require.NoError(t, err)
	assert.Zero(t, res.Wrong)
	assert.EqualValues(t, 8<<20, res.WrittenBytes)
	assert.EqualValues(t, 8<<20, res.ReadBytes)
}

func TestVerifyNamesWhatADiskDidWrong(t *testing.T) {
	const at = 1 << 20 // a byte inside the range
	covers := func(p []byte, off int64) bool { return off <= at && at+512 <= off+int64(len(p)) }
	rows := []struct {
		name  string
		kind  stamp.Kind
		spoil func(d *memDisk)
	}{
		{"drops a write of the second run", stamp.Stale, func(d *memDisk) {
			writes := 0
			d.write = func(p []byte, off int64) ([]byte, int64) {
				if covers(p, off) {
					if writes++; writes == 2 {
						return nil, off
					}
				}
				return p, off
			}
		}},
		{"returns without data", stamp.Unwritten, func(d *memDisk) {
			d.read = func(p []byte, off int64) {
				if covers(p, off) {
					stamp.Poison(p)
				}
			}
		}},
		{"flips a bit", stamp.BitFlip, func(d *memDisk) {
			d.read = func(p []byte, off int64) {
				if covers(p, off) {
					p[at-off+60] ^= 1
				}
			}
		}},
		{"reads the next sector", stamp.Misplaced, func(d *memDisk) {
			d.read = func(p []byte, off int64) {
				if covers(p, off) {
					copy(p[at-off:at-off+512], d.data[at+512:])
				}
			}
		}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			d := newMemDisk(8<<20, 512)
			r.spoil(d)
			res, err := newVerifier(d, testPlan).run(t.Context())
			require.NoError(t, err)
			require.NotZero(t, res.Wrong)
			assert.Equal(t, r.kind, res.Mismatches[0].Kind, res.Mismatches[0])
		})
	}
}

func TestVerifyEndsWithTheDisksError(t *testing.T) {
	d := newMemDisk(8<<20, 512)
	d.fail = errors.New("no medium")
	_, err := newVerifier(d, testPlan).run(t.Context())
	assert.ErrorIs(t, err, d.fail)
}

func TestExtentsCoverTheRangeOnce(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		for _, bs := range []int{512, 4096} {
			p := verifyPlan{offset: 1 << 16, size: 3<<20 + 4096, bs: 1 << 18, mixed: mixed, seed: 9}
			seen := make([]int, 8<<20/512)
			for _, e := range p.extents(bs, 1) {
				require.Zero(t, e.n%bs)
				require.Zero(t, e.off%int64(bs))
				require.LessOrEqual(t, e.n, p.bs)
				for s := e.off / 512; s < (e.off+int64(e.n))/512; s++ {
					seen[s]++
				}
			}
			for s, n := range seen {
				in := int64(s)*512 >= p.offset && int64(s)*512 < p.offset+p.size
				require.Equal(t, in, n == 1, "sector %d seen %d times", s, n)
			}
		}
	}
}
