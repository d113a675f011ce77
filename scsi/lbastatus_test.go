package scsi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func lbaStatus(lba uint64, allocation uint32) []byte { return cdb16(0x9e, 0x12, lba, allocation) }

func TestGetLBAStatus(t *testing.T) {
	s := newThin(10 * thinUnit)
	b := newBench(t, s)
	write := func(lba uint32) {
		require.Equal(t, Good, b.run(0, cdb10(0x2a, 0, lba, 1), 0, blocksOf('x', 1)).Status)
	}
	write(8)  // unit 1
	write(31) // unit 3
	write(32) // unit 4
	all := golden(t, `00000054  PARAMETER DATA LENGTH
		00000000
		0000000000000000 00000008 01 000000  deallocated
		0000000000000008 00000008 00 000000  mapped
		0000000000000010 00000008 01 000000
		0000000000000018 00000010 00 000000
		0000000000000028 00000028 01 000000`)
	r := b.run(0, lbaStatus(0, 4096), 4096, nil)
	assert.Equal(t, all, r.data)
	assertResidual(t, len(all)-4096, r)
	assert.True(t, r.MayBlock)

	// In the middle of a run, with room for two descriptors and a bit.
	assert.Equal(t, golden(t, `00000024 00000000
		000000000000000b 00000005 00 000000
		0000000000000010 00000008 01 000000`), b.run(0, lbaStatus(11, 41), 4096, nil).data)
	assert.Equal(t, golden(t, `00000014 00000000 000000000000004f 00000001 01 000000`),
		b.run(0, lbaStatus(79, 24), 24, nil).data, "the last block")
	for n := range uint32(24) {
		r := b.run(0, lbaStatus(11, n), 24, nil)
		require.Equal(t, Good, r.Status)
		assert.Equal(t, golden(t, `00000014 00000000 000000000000000b 00000005 00 000000`)[:n], append([]byte{}, r.data...), "cut")
	}
	for _, lba := range []uint64{80, 81, 1 << 55, 1 << 63, 1<<64 - 1} {
		assert.Equal(t, "5/21/00", b.run(0, lbaStatus(lba, 24), 24, nil).sense())
	}
	s.err = errors.New("bad sector")
	r = b.run(0, lbaStatus(5, 24), 24, nil)
	assert.Equal(t, "3/11/00", r.sense())
	assertResidual(t, -24, r)
}

// Where the store cannot tell, or is not thin, everything is mapped. A run is as long as its field can say.
func TestGetLBAStatusOfAFullUnit(t *testing.T) {
	b := newBench(t, newMemory(4096))
	assert.Equal(t, golden(t, `00000014 00000000 0000000000000003 00000005 00 000000`), b.run(0, lbaStatus(3, 255), 255, nil).data)
	e := &endless{memory: newMemory(512), size: 1 << 50}
	b = newBench(t, e)
	assert.Equal(t, golden(t, `00000024 00000000
		0000000000000003 ffffffff 01 000000
		0000000100000002 ffffffff 01 000000`), b.run(0, lbaStatus(3, 40), 40, nil).data)
}

// ragged has runs that end inside blocks.
type ragged struct{ *thin }

func (r ragged) Extent(off, n int64) (bool, int64, error) {
	edges := []int64{0, 512 + 100, 1024 + 200, 2048, 4096, 5000, 8192}
	for i := range edges[1:] {
		if off < edges[i+1] {
			return i%2 == 0, min(n, edges[i+1]-off), nil
		}
	}
	panic("beyond the end")
}

func TestGetLBAStatusCountsABlockWithAnyPartAsMapped(t *testing.T) {
	b := newBench(t, ragged{newThin(8192)})
	assert.Equal(t, golden(t, `00000044 00000000
		0000000000000000 00000004 00 000000
		0000000000000004 00000004 01 000000
		0000000000000008 00000002 00 000000
		000000000000000a 00000006 01 000000`), b.run(0, lbaStatus(0, 255), 255, nil).data)
}

func TestReadDefectData(t *testing.T) {
	b := newBench(t, newMemory(4096))
	for format := range byte(8) {
		for _, lists := range []byte{0, 0x08, 0x10, 0x18} {
			r10 := b.run(0, []byte{0x37, 0, lists | format, 0, 0, 0, 0, 0, 32, 0}, 32, nil)
			r12 := b.run(0, []byte{0xb7, lists | format, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0}, 32, nil)
			if format > 5 {
				assert.Equal(t, "5/24/00", r10.sense())
				assert.Equal(t, "5/24/00", r12.sense())
				continue
			}
			assert.Equal(t, []byte{0, lists | format, 0, 0}, r10.data)
			assert.Equal(t, []byte{0, lists | format, 0, 0, 0, 0, 0, 0}, r12.data)
			assertResidual(t, -28, r10)
			assertResidual(t, -24, r12)
		}
	}
	assert.Equal(t, "5/24/00", b.run(0, []byte{0xb7, 0x10, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0}, 32, nil).sense(), "index")
}

func TestPrefetch(t *testing.T) {
	for _, blocks := range []bool{false, true} {
		m := newMemory(4096)
		m.info.NeverBlocks = !blocks
		b := newBench(t, m)
		want := ConditionMet
		if blocks {
			want = Good
		}
		for _, c := range [][]byte{cdb10(0x34, 0, 0, 8), cdb10(0x34, 2, 7, 0), cdb16(0x90, 0, 7, 1), cdb16(0x90, 2, 0, 0)} {
			assert.Equal(t, want, b.run(0, c, 0, nil).Status)
		}
		for _, c := range [][]byte{
			cdb10(0x34, 0, 0, 9), cdb10(0x34, 0, 9, 0), cdb10(0x34, 0, 0xffffffff, 1),
			cdb16(0x90, 0, 1<<63, 1), cdb16(0x90, 0, 1<<64-1, 2), cdb16(0x90, 2, 1, 0xffffffff),
		} {
			assert.Equal(t, "5/21/00", b.run(0, c, 0, nil).sense())
		}
		assert.Equal(t, make([]byte, 4), inquiry(b, 0, 1, 0xb0).data[16:20], "no MAXIMUM PREFETCH LENGTH: no limit")
	}
}
