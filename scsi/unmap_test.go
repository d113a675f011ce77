package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

func cdbUnmap(n int) []byte { return cdb10(0x42, 0, 0, uint16(n)) }

// unmapList is a parameter list with pairs of LBA and number of blocks.
func unmapList(pairs ...uint64) []byte {
	n := len(pairs) / 2
	b := binary.BigEndian.AppendUint16(nil, uint16(6+16*n))
	b = append(binary.BigEndian.AppendUint16(b, uint16(16*n)), 0, 0, 0, 0)
	for i := range n {
		b = binary.BigEndian.AppendUint64(b, pairs[2*i])
		b = append(binary.BigEndian.AppendUint32(b, uint32(pairs[2*i+1])), 0, 0, 0, 0)
	}
	return b
}

// LU-05 and LU-03 of the field reports: either all of a list is done, or nothing of it.
func TestUnmap(t *testing.T) {
	const capacity = 256
	one := unmapList(8, 16)
	for _, c := range []struct {
		name  string
		list  []byte
		sense string
		gone  []uint64 // pairs of LBA and blocks
	}{
		{"nothing", nil, "", nil},
		{"7 bytes", one[:7], "5/1a/00", nil},
		{"header only", one[:8], "", nil},
		{"header that says more than there is", one[:23], "", nil},
		{"one", one, "", []uint64{8, 16}},
		{"descriptor cut", append(bytes.Clone(one), make([]byte, 15)...), "", []uint64{8, 16}},
		{"no descriptors counted", append([]byte{0, 22, 0, 0}, one[4:]...), "", nil},
		{"15 bytes counted", append([]byte{0, 22, 0, 15}, one[4:]...), "", nil},
		{"31 bytes counted", append([]byte{0, 37, 0, 31}, unmapList(8, 16, 64, 8)[4:]...), "", []uint64{8, 16}},
		{"two that overlap", unmapList(8, 16, 16, 16), "", []uint64{8, 24}},
		{"no blocks", unmapList(8, 0, 16, 8), "", []uint64{16, 8}},
		{"not aligned", unmapList(3, 7), "", []uint64{3, 7}},
		{"to the end", unmapList(capacity-8, 8), "", []uint64{capacity - 8, 8}},
		{"no blocks at the end", unmapList(capacity, 0), "", nil},
		{"beyond the end", unmapList(8, 16, capacity-1, 2), "5/21/00", nil},
		{"LBA = capacity", unmapList(8, 16, capacity, 1), "5/21/00", nil},
		{"2^64-1, 2 blocks", unmapList(8, 16, 1<<64-1, 2), "5/21/00", nil},
		{"2^63", unmapList(8, 16, 1<<63, 1), "5/21/00", nil},
		{"2^55, 2^32-1 blocks", unmapList(8, 16, 1<<55, 1<<32-1), "5/21/00", nil},
		{"0, 2^32-1 blocks", unmapList(0, 1<<32-1), "5/21/00", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newThin(capacity * 512)
			require.NoError(t, s.WriteAt([][]byte{blocksOf('d', capacity)}, 0, false))
			b := newBench(t, s)
			r := b.run(0, cdbUnmap(len(c.list)), 0, c.list)
			assert.Equal(t, c.sense, r.sense())
			want := blocksOf('d', capacity)
			for e := range slices.Chunk(c.gone, 2) {
				clear(want[e[0]*512 : (e[0]+e[1])*512])
			}
			assert.True(t, bytes.Equal(want, s.b), "the medium")
			assert.Equal(t, min(len(c.gone), 1) > 0, s.unmaps > 0)
		})
	}
}

func TestUnmapFields(t *testing.T) {
	s := newThin(256 * 512)
	b := newBench(t, s)
	list := unmapList(8, 16)
	anchor, group := cdbUnmap(len(list)), cdbUnmap(len(list))
	anchor[1], group[6] = 1, 0x1f
	assert.Equal(t, "5/24/00", b.run(0, anchor, 0, list).sense(), "ANC_SUP is 0")
	r := b.run(0, group, 0, list)
	assert.Equal(t, Good, r.Status)
	assert.True(t, r.MayBlock)
	r = b.run(0, cdbUnmap(len(list)), 0, list[:20])
	assert.Equal(t, "5/0e/03", r.sense(), "less data than list")
	r = b.run(0, cdbUnmap(len(list)), 0, append(list, 1, 2, 3))
	assert.Equal(t, Good, r.Status)
	assertResidual(t, -3, r)
	s.err = fmt.Errorf("x: %w", backstore.ErrNoSpace)
	assert.Equal(t, "7/27/07", b.run(0, cdbUnmap(len(list)), 0, list).sense())

	s.info.ReadOnly = true
	assert.Equal(t, "7/27/00", newBench(t, s).run(0, cdbUnmap(len(list)), 0, list).sense())
}

// What VPD B0h says of UNMAP is accepted, and one more is not, and nothing is unmapped then.
func TestUnmapLimitsAreWhatBlockLimitsSays(t *testing.T) {
	s := newThin(maxUnmapBlocks*512 + 8192)
	b := newBench(t, s)
	limits := inquiry(b, 0, 1, 0xb0).data
	blocks, descriptors := uint64(binary.BigEndian.Uint32(limits[20:])), int(binary.BigEndian.Uint32(limits[24:]))
	assert.Equal(t, []byte{0, 0, 0, 8, 0x80, 0, 0, 0}, limits[28:36], "granularity and alignment")

	many := func(n int) []byte {
		var pairs []uint64
		for i := range n {
			pairs = append(pairs, uint64(i), 1)
		}
		return unmapList(pairs...)
	}
	for _, c := range []struct {
		list  []byte
		sense string
		field int
	}{
		{many(descriptors), "", 0},
		{many(descriptors + 1), "5/26/00", 2},
		{unmapList(0, blocks), "", 0},
		{unmapList(0, blocks+1), "5/26/00", 16},
		{unmapList(5, blocks-1, 3, 1), "", 0},
		{unmapList(5, blocks-1, 3, 2), "5/26/00", 32},
	} {
		s.unmaps = 0
		r := b.run(0, cdbUnmap(len(c.list)), 0, c.list)
		assert.Equal(t, c.sense, r.sense())
		assert.Equal(t, c.sense == "", s.unmaps > 0)
		if c.sense != "" {
			assert.Equal(t, []byte{0x8f, 0, byte(c.field)}, r.Sense()[15:18])
		}
	}
}

func TestProvisioningIsToldAlikeEverywhere(t *testing.T) {
	for _, isThin := range []bool{false, true} {
		var s backstore.Store = newMemory(1 << 20)
		if isThin {
			s = newThin(1 << 20)
		}
		b := newBench(t, s)
		bit := func(b byte) byte {
			if isThin {
				return b
			}
			return 0
		}
		assert.Equal(t, []byte{0, bit(0xe4), bit(2), 0}, inquiry(b, 0, 1, 0xb2).data[4:], "LBPU LBPWS LBPWS10 LBPRZ, thin")
		assert.Equal(t, bit(0xc0), b.run(0, cdb16(0x9e, 0x10, 0, 32), 32, nil).data[14], "LBPME LBPRZ")
		limits := inquiry(b, 0, 1, 0xb0).data
		assert.Equal(t, isThin, !bytes.Equal(make([]byte, 16), limits[20:36]))
		assert.Equal(t, isThin, reportOpcodes(b, 1, 0x42, 0).data[1] == 3)
		r := b.run(0, cdbUnmap(8), 0, unmapList())
		assert.Equal(t, isThin, r.Status == Good)
		for _, cdb := range [][]byte{cdb10(0x41, 0x08, 0, 8), cdb16(0x93, 0x08, 0, 8)} {
			r := b.run(0, cdb, 0, blocksOf(0, 1))
			assert.Equal(t, isThin, r.Status == Good)
			if !isThin {
				assert.Equal(t, "5/24/00", r.sense())
				assert.Equal(t, []byte{0xcb, 0, 1}, r.Sense()[15:18])
			}
		}
	}
}
