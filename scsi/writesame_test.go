package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

func TestWriteSame(t *testing.T) {
	const capacity = 4096
	odd := blocksOf(0, 1)
	odd[511] = 1
	type want struct {
		lba, blocks  int
		with         []byte
		unmaps, zero int // calls of the store
	}
	for _, c := range []struct {
		name  string
		cdb   []byte
		out   []byte
		sense string
		want  want
	}{
		{"10", cdb10(0x41, 0, 7, 3), blocksOf('s', 1), "", want{lba: 7, blocks: 3, with: blocksOf('s', 1)}},
		{"16", cdb16(0x93, 0, 7, 3), odd, "", want{lba: 7, blocks: 3, with: odd}},
		{"more than one write", cdb16(0x93, 0, 5, 4001), odd, "", want{lba: 5, blocks: 4001, with: odd}},
		{"zeros", cdb10(0x41, 0, 7, 3), blocksOf(0, 1), "", want{lba: 7, blocks: 3, with: blocksOf(0, 1), zero: 1}},
		{"unmap 10", cdb10(0x41, 8, 7, 30), blocksOf(0, 1), "", want{lba: 7, blocks: 30, with: blocksOf(0, 1), unmaps: 1}},
		{"unmap 16", cdb16(0x93, 8, 8, 8), blocksOf(0, 1), "", want{lba: 8, blocks: 8, with: blocksOf(0, 1), unmaps: 1}},
		{"unmap, not zeros", cdb16(0x93, 8, 8, 8), odd, "", want{lba: 8, blocks: 8, with: odd}},
		{"NDOB", cdb16(0x93, 1, 8, 8), nil, "", want{lba: 8, blocks: 8, with: blocksOf(0, 1), zero: 1}},
		{"NDOB, unmap", cdb16(0x93, 9, 8, 8), nil, "", want{lba: 8, blocks: 8, with: blocksOf(0, 1), unmaps: 1}},
		{"NDOB with data", cdb16(0x93, 1, 8, 8), blocksOf('s', 1), "", want{lba: 8, blocks: 8, with: blocksOf(0, 1), zero: 1}},
		{"up to the end", cdb10(0x41, 0, 4000, 0), odd, "", want{lba: 4000, blocks: 96, with: odd}},
		{"NDOB of 10", cdb10(0x41, 1, 8, 8), odd, "5/24/00", want{}},
		{"ANCHOR", cdb16(0x93, 0x18, 8, 8), blocksOf(0, 1), "5/24/00", want{}},
		{"PBDATA", cdb16(0x93, 4, 8, 8), odd, "5/24/00", want{}},
		{"LBDATA", cdb10(0x41, 2, 8, 8), odd, "5/24/00", want{}},
		{"WRPROTECT", cdb10(0x41, 0x20, 8, 8), odd, "5/24/00", want{}},
		{"half a block", cdb16(0x93, 0, 8, 8), odd[:256], "5/0e/03", want{}},
		{"two blocks", cdb16(0x93, 8, 8, 8), blocksOf(0, 2), "5/0e/03", want{}},
		{"no data", cdb16(0x93, 0, 8, 8), nil, "5/0e/03", want{}},
		{"beyond the end", cdb16(0x93, 0, capacity-1, 2), odd, "5/21/00", want{}},
		{"nothing up to the end", cdb16(0x93, 0, capacity, 0), odd, "5/21/00", want{}},
		{"2^64-1 to the end", cdb16(0x93, 0, 1<<64-1, 0), odd, "5/21/00", want{}},
		{"2^64-1, 2 blocks", cdb16(0x93, 0, 1<<64-1, 2), odd, "5/21/00", want{}},
		{"2^63", cdb16(0x93, 0, 1<<63, 1), odd, "5/21/00", want{}},
		{"2^55", cdb16(0x93, 1, 1<<55, 1<<31), nil, "5/21/00", want{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newThin(capacity * 512)
			require.NoError(t, s.WriteAt([][]byte{blocksOf('d', capacity)}, 0, false))
			b := newBench(t, s)
			r := b.run(0, c.cdb, 0, c.out)
			assert.Equal(t, c.sense, r.sense())
			want := blocksOf('d', capacity)
			copy(want[c.want.lba*512:], bytes.Repeat(c.want.with, c.want.blocks))
			assert.True(t, bytes.Equal(want, s.b), "the medium")
			assert.Equal(t, [2]int{c.want.unmaps, c.want.zero}, [2]int{s.unmaps, s.zeroing})
			assert.Zero(t, s.fua)
		})
	}
}

// A store that has no way of its own to write zeros gets them written.
func TestWriteSameOfZerosOnAnyStore(t *testing.T) {
	m := newMemory(8192 * 512)
	copy(m.b, blocksOf('d', 8192))
	b := newBench(t, m)
	r := b.run(0, cdb16(0x93, 0, 1, 8190), 0, blocksOf(0, 1))
	require.Equal(t, Good, r.Status)
	assert.True(t, r.MayBlock, "megabytes are not written on a loop")
	assert.True(t, bytes.Equal(join(blocksOf('d', 1), blocksOf(0, 8190), blocksOf('d', 1)), m.b))
	assert.False(t, b.run(0, cdb16(0x93, 1, 1, loopBytes/512), 0, nil).MayBlock)
	assert.True(t, b.run(0, cdb16(0x93, 1, 1, loopBytes/512+1), 0, nil).MayBlock)
	m.err = errors.New("bad sector")
	r = b.run(0, cdb16(0x93, 0, 5, 8), 0, blocksOf('x', 1))
	assert.Equal(t, "3/0c/00", r.sense())
	assert.Equal(t, []byte{0xf0, 0, 3, 0, 0, 0, 5}, r.Sense()[:7])
	m.info.ReadOnly = true
	assert.Equal(t, "7/27/00", newBench(t, &memory{b: m.b, info: m.info}).run(0, cdb16(0x93, 0, 5, 8), 0, blocksOf('x', 1)).sense())
}

// endless is a store without bytes: for extents that no test has memory for.
type endless struct {
	*memory
	size int64
	last struct{ off, n int64 }
}

func (e *endless) Info() backstore.Info {
	i := e.memory.info
	i.SizeBytes, i.Thin = e.size, true
	return i
}

func (e *endless) ReadAt(bufs [][]byte, off int64) error {
	e.last.off, e.last.n = off, int64(length(bufs))
	return nil
}
func (e *endless) WriteAt(bufs [][]byte, off int64, _ bool) error { return e.ReadAt(bufs, off) }
func (e *endless) Unmap(off, n int64) error                       { e.last.off, e.last.n = off, n; return nil }
func (e *endless) WriteZeroes(off, n int64, _, _ bool) error      { return e.Unmap(off, n) }
func (e *endless) Extent(off, n int64) (bool, int64, error) {
	e.last.off, e.last.n = off, n
	return off >= e.size/2, min(n, max(e.size/2-off, 1)), nil
}

// LU-03 of the field reports, and units of 2^63 bytes: the last block is the last block.
func TestLargestUnit(t *testing.T) {
	for _, size := range []int{512, 4096} {
		e := &endless{memory: newMemory(512), size: 1<<63 - 1}
		b := benchOf(t, e, LUConfig{ID: "x", BlockSize: size})
		capacity := uint64(1<<63-1) / uint64(size)
		require.Equal(t, capacity, b.lu.Blocks())
		assert.Equal(t, binary.BigEndian.AppendUint64(nil, capacity-1), b.run(0, cdb16(0x9e, 0x10, 0, 32), 32, nil).data[:8])
		last := capacity - 1
		block := make([]byte, size)
		list := unmapList(last, 1)
		for _, c := range []struct {
			cdb []byte
			out []byte
		}{
			{cdb16(0x88, 0, last, 1), nil},
			{cdb16(0x8a, 0, last, 1), block},
			{cdb16(0x8b, 0, last, 1), block},
			{cdb16(0x8f, 0, last, 1), nil},
			{compareAndWrite(last, 1), append(block, block...)},
			{cdb16(0x93, 0, last, 0), block},
			{cdb16(0x93, 8, last, 1), block},
			{cdbUnmap(len(list)), list},
			{cdb16(0x9e, 0x12, last, 24), nil},
		} {
			e.last.off, e.last.n = 0, 0
			r := b.run(0, c.cdb, size, c.out)
			require.Equal(t, Good, r.Status, "% x: %s", c.cdb, r.sense())
			assert.Equal(t, int64(last)*int64(size), e.last.off, "% x", c.cdb)
			assert.EqualValues(t, size, e.last.n, "% x", c.cdb)
		}
	}
}

// MAXIMUM WRITE SAME LENGTH is accepted, and one block more is not; so is "up to the end".
func TestWriteSameLimitIsWhatBlockLimitsSays(t *testing.T) {
	for _, size := range []int{512, 4096} {
		e := &endless{memory: newMemory(512), size: 1 << 40}
		b := benchOf(t, e, LUConfig{ID: "x", BlockSize: size})
		limits := inquiry(b, 0, 1, 0xb0).data
		assert.Zero(t, limits[4], "WSNZ")
		most := binary.BigEndian.Uint64(limits[36:])
		assert.EqualValues(t, maxWriteSameBytes/size, most)
		end := uint64(1<<40) / uint64(size)
		for _, op := range []byte{0, 8, 1} {
			out := make([]byte, size)
			if op == 1 {
				out = nil
			}
			assert.Equal(t, Good, b.run(0, cdb16(0x93, op, 5, uint32(most)), 0, out).Status)
			r := b.run(0, cdb16(0x93, op, 5, uint32(most+1)), 0, out)
			assert.Equal(t, "5/24/00", r.sense())
			assert.Equal(t, []byte{0xcf, 0, 10}, r.Sense()[15:18])
			assert.Equal(t, Good, b.run(0, cdb16(0x93, op, end-most, 0), 0, out).Status)
			assert.EqualValues(t, maxWriteSameBytes, e.last.n)
			assert.Equal(t, "5/24/00", b.run(0, cdb16(0x93, op, end-most-1, 0), 0, out).sense())
		}
		assert.Equal(t, "5/24/00", b.run(0, cdb10(0x41, 0, 0, 0), 0, make([]byte, size)).sense(), "all of it")
		if most < 0xffff {
			assert.Equal(t, "5/24/00", b.run(0, cdb10(0x41, 0, 0, uint16(most+1)), 0, make([]byte, size)).sense())
		}
	}
}

// RS-11 of the field reports: whatever would write to a full store is told so.
func TestFullStoreIsDataProtect(t *testing.T) {
	list := unmapList(0, 1)
	for name, c := range map[string]struct{ cdb, out []byte }{
		"WRITE":             {cdb16(0x8a, 0, 0, 1), blocksOf('x', 1)},
		"WRITE AND VERIFY":  {cdb16(0x8e, 0, 0, 1), blocksOf('x', 1)},
		"WRITE ATOMIC":      {writeAtomic(0, 1), blocksOf('x', 1)},
		"ORWRITE":           {cdb16(0x8b, 0, 0, 1), blocksOf('x', 1)},
		"COMPARE AND WRITE": {compareAndWrite(0, 1), join(blocksOf(0, 1), blocksOf('x', 1))},
		"WRITE SAME":        {cdb16(0x93, 0, 0, 1), blocksOf('x', 1)},
		"WRITE SAME, zeros": {cdb16(0x93, 1, 0, 1), nil},
		"UNMAP":             {cdbUnmap(len(list)), list},
	} {
		s := &full{newThin(8192)}
		r := newBench(t, s).run(0, c.cdb, 0, c.out)
		assert.Equal(t, "7/27/07", r.sense(), name)
		assert.Equal(t, make([]byte, 8192), s.b, name)
	}
}

// full is a store that can be read, and has no space left.
type full struct{ *thin }

func (f *full) WriteAt([][]byte, int64, bool) error        { return backstore.ErrNoSpace }
func (f *full) Unmap(int64, int64) error                   { return backstore.ErrNoSpace }
func (f *full) WriteZeroes(int64, int64, bool, bool) error { return backstore.ErrNoSpace }

// LU-03 of the field reports, for the commands with extents of their own: nothing lands at the wrapped place.
func TestExtentsOfOtherCommandsDoNotWrap(t *testing.T) {
	const capacity = 128
	s := newThin(capacity * 512)
	b := newBench(t, s)
	for _, e := range []struct {
		lba    uint64
		blocks byte
	}{
		{1 << 63, 1},
		{1<<63 - 1, 1},
		{1 << 55, 1},
		{1<<64 - 1, 1},
		{1<<64 - 1, 2},
		{capacity - 1, 2},
		{capacity, 1},
		{1<<32 + 1, 1},
	} {
		one, two := blocksOf('x', int(e.blocks)), blocksOf(0, 2*int(e.blocks))
		list := unmapList(e.lba, uint64(e.blocks))
		for name, c := range map[string]struct{ cdb, out []byte }{
			"COMPARE AND WRITE": {compareAndWrite(e.lba, e.blocks), two},
			"ORWRITE":           {cdb16(0x8b, 0, e.lba, uint32(e.blocks)), one},
			"WRITE ATOMIC":      {writeAtomic(e.lba, uint16(e.blocks)), one},
			"WRITE SAME":        {cdb16(0x93, 0, e.lba, uint32(e.blocks)), blocksOf('x', 1)},
			"WRITE SAME, NDOB":  {cdb16(0x93, 9, e.lba, uint32(e.blocks)), nil},
			"UNMAP":             {cdbUnmap(len(list)), list},
			"PRE-FETCH":         {cdb16(0x90, 0, e.lba, uint32(e.blocks)), nil},
			"VERIFY":            {cdb16(0x8f, 0, e.lba, uint32(e.blocks)), nil},
		} {
			assert.Equal(t, "5/21/00", b.run(0, c.cdb, 0, c.out).sense(), "%s at %#x, %d blocks", name, e.lba, e.blocks)
		}
		if e.lba != capacity-1 {
			assert.Equal(t, "5/21/00", b.run(0, lbaStatus(e.lba, 24), 24, nil).sense(), "GET LBA STATUS at %#x", e.lba)
		}
	}
	assert.Equal(t, make([]byte, capacity*512), s.b)
	assert.Zero(t, s.unmaps)
}
