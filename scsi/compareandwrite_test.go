package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// join is parts one after the other.
func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

// LU-07 of the field reports.
func TestCompareAndWrite(t *testing.T) {
	before := make([]byte, 64*512)
	for i := range 64 {
		copy(before[i*512:], blocksOf(byte(i), 1))
	}
	differs := func(at int) []byte {
		b := bytes.Clone(before[7*512 : 9*512])
		b[at]++
		return b
	}
	same, next := before[7*512:9*512], blocksOf('n', 2)
	for _, c := range []struct {
		name  string
		cdb   []byte
		out   []byte
		sense string
		at    int // of the first difference
	}{
		{"equal", compareAndWrite(7, 2), join(same, next), "", 0},
		{"byte 0", compareAndWrite(7, 2), join(differs(0), next), "e/1d/00", 0},
		{"byte 511", compareAndWrite(7, 2), join(differs(511), next), "e/1d/00", 511},
		{"byte 600", compareAndWrite(7, 2), join(differs(600), next), "e/1d/00", 600},
		{"last byte", compareAndWrite(7, 2), join(differs(1023), next), "e/1d/00", 1023},
		{"half of the data", compareAndWrite(7, 2), same, "5/24/00", 0},
		{"too much data", compareAndWrite(7, 2), join(same, next, next), "5/24/00", 0},
		{"no data", compareAndWrite(7, 2), nil, "5/24/00", 0},
		{"beyond the end", compareAndWrite(63, 2), join(same, next), "5/21/00", 0},
		{"protection", func() []byte { c := compareAndWrite(7, 2); c[1] = 0x20; return c }(), join(same, next), "5/24/00", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMemory(64 * 512)
			copy(m.b, before)
			b := newBench(t, m)
			r := b.run(0, c.cdb, 0, c.out)
			assert.Equal(t, c.sense, r.sense())
			want := bytes.Clone(before)
			switch c.sense {
			case "":
				copy(want[7*512:], next)
				assertResidual(t, 0, r)
			case "e/1d/00": // VALID, and an offset in Data-Out, not an LBA
				assert.Equal(t, []byte{0xf0, 0, 0x0e, 0, 0, byte(c.at >> 8), byte(c.at)}, r.Sense()[:7])
				assertResidual(t, 0, r)
			default:
				assertResidual(t, -len(c.out), r)
			}
			assert.True(t, bytes.Equal(want, m.b), "the medium")
			assert.True(t, r.MayBlock, "it may wait at the gate")
		})
	}
}

func TestCompareAndWriteOfNoBlocks(t *testing.T) {
	b := newBench(t, newMemory(4096))
	for lba, want := range map[uint64]string{0: "", 8: "", 9: "5/21/00", 1<<64 - 1: "5/21/00", 1 << 55: "5/21/00"} {
		assert.Equal(t, want, b.run(0, compareAndWrite(lba, 0), 0, nil).sense(), lba)
	}
	r := b.run(0, compareAndWrite(0, 0), 0, blocksOf('x', 1))
	assert.Equal(t, "5/24/00", r.sense())
	assert.Equal(t, []byte{0xcf, 0, 13}, r.Sense()[15:18])
	assertResidual(t, -512, r)
}

func TestCompareAndWriteKeepsFUAAndErrors(t *testing.T) {
	m := newMemory(4096)
	b := newBench(t, m)
	out := join(blocksOf(0, 1), blocksOf('x', 1))
	c := compareAndWrite(3, 1)
	c[1] = 0x18 // DPO, FUA
	require.Equal(t, Good, b.run(0, c, 0, out).Status)
	assert.Equal(t, 1, m.fua)
	m.err = errors.New("bad sector")
	r := b.run(0, c, 0, out)
	assert.Equal(t, "3/11/00", r.sense())
	assert.Equal(t, []byte{0xf0, 0, 3, 0, 0, 0, 3}, r.Sense()[:7])
	m.info.ReadOnly = true
	assert.Equal(t, "7/27/00", newBench(t, &memory{b: m.b, info: m.info}).run(0, c, 0, out).sense())
}

// The limits of VPD page B0h are accepted, and one block more is not.
func TestAtomicLimitsAreWhatBlockLimitsSays(t *testing.T) {
	m := newThin(1 << 20)
	for _, c := range []struct {
		atomicBytes     int
		volatile        bool
		compare         byte
		most, unit      uint32
		blockSize       int
		atomicSupported bool
	}{
		{1 << 30, true, 64, 128, 1, 512, true},
		{1 << 30, true, 8, 16, 1, 4096, true},
		{16384, true, 64, 32, 1, 512, true},
		{16384, false, 64, 32, 32, 512, true},
		{1 << 30, false, 64, 0, 0, 512, false}, // more than a command moves
		{0, true, 64, 0, 0, 512, false},
		{0, false, 64, 0, 0, 512, false},
		{511, false, 64, 0, 0, 512, false},
	} {
		m.info.AtomicBytes, m.info.Volatile = c.atomicBytes, c.volatile
		b := benchOf(t, m, LUConfig{ID: "x", BlockSize: c.blockSize})
		limits := inquiry(b, 0, 1, 0xb0).data
		assert.Equal(t, c.compare, limits[5])
		assert.Equal(t, golden(t, hex32(c.most)+hex32(c.unit)+hex32(c.unit)+zeros(8)), limits[44:], "%+v", c)

		n := int(limits[5])
		data := func(blocks int) []byte { return make([]byte, blocks*c.blockSize) }
		assert.Equal(t, Good, b.run(0, compareAndWrite(0, byte(n)), 0, data(2*n)).Status)
		assert.Equal(t, "5/24/00", b.run(0, compareAndWrite(0, byte(n+1)), 0, data(2*n+2)).sense())

		descriptor := reportOpcodes(b, 1, 0x9c, 0).data
		if !c.atomicSupported {
			assert.Equal(t, "5/20/00", b.run(0, writeAtomic(0, 1), 0, data(1)).sense())
			assert.Equal(t, []byte{0, 1, 0, 0}, descriptor)
			continue
		}
		assert.Equal(t, []byte{0, 3, 0, 16}, descriptor[:4])
		most, unit := int(c.most), int(c.unit)
		last := uint64((1<<20)/c.blockSize - most)
		for _, lba := range []uint64{0, last} {
			assert.Equal(t, Good, b.run(0, writeAtomic(lba, uint16(most)), 0, data(most)).Status)
		}
		assert.Equal(t, Good, b.run(0, writeAtomic(0, 0), 0, nil).Status)
		assert.Equal(t, "5/24/00", b.run(0, writeAtomic(0, uint16(most+1)), 0, data(most+1)).sense())
		assert.Equal(t, "5/21/00", b.run(0, writeAtomic(last+uint64(unit), uint16(most)), 0, data(most)).sense())
		assert.Equal(t, "5/0e/03", b.run(0, writeAtomic(0, uint16(most)), 0, data(most-1)).sense())
		if unit > 1 {
			r := b.run(0, writeAtomic(1, uint16(unit)), 0, data(unit))
			assert.Equal(t, "5/24/00", r.sense(), "alignment")
			assert.Equal(t, []byte{0xcf, 0, 2}, r.Sense()[15:18])
			r = b.run(0, writeAtomic(0, uint16(unit-1)), 0, data(unit-1))
			assert.Equal(t, "5/24/00", r.sense(), "granularity")
			assert.Equal(t, []byte{0xcf, 0, 12}, r.Sense()[15:18])
		}
		boundary := writeAtomic(0, uint16(unit))
		boundary[11] = 1
		assert.Equal(t, "5/24/00", b.run(0, boundary, 0, data(unit)).sense(), "ATOMIC BOUNDARY")
	}
}

// hex32 is a field of 4 bytes in hexadecimal.
func hex32(n uint32) string {
	const digits = "0123456789abcdef"
	var b []byte
	for _, c := range binary.BigEndian.AppendUint32(nil, n) {
		b = append(b, digits[c>>4], digits[c&15])
	}
	return string(b)
}

func TestOrWrite(t *testing.T) {
	m := newMemory(64 * 512)
	copy(m.b[7*512:], blocksOf(0x0f, 3))
	b := newBench(t, m)
	r := b.run(0, cdb16(0x8b, 0x08, 8, 2), 0, blocksOf(0x11, 2))
	require.Equal(t, Good, r.Status)
	assert.Equal(t, join(blocksOf(0x0f, 1), blocksOf(0x1f, 2), blocksOf(0, 1)), m.b[7*512:11*512])
	assert.Equal(t, 1, m.fua)
	assert.Equal(t, Good, b.run(0, cdb16(0x8b, 0, 8, 0), 0, nil).Status)
	assert.Equal(t, "5/21/00", b.run(0, cdb16(0x8b, 0, 63, 2), 0, blocksOf(1, 2)).sense())
	assert.Equal(t, "5/24/00", b.run(0, cdb16(0x8b, 0x20, 0, 2), 0, blocksOf(1, 2)).sense())
	m.err = errors.New("bad sector")
	assert.Equal(t, "3/11/00", b.run(0, cdb16(0x8b, 0, 8, 2), 0, blocksOf(0x11, 2)).sense())
}
