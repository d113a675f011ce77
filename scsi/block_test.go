package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

// Commands of each size class, for an extent.

func cdb6(op byte, lba uint32, blocks byte) []byte {
	return []byte{op, byte(lba >> 16), byte(lba >> 8), byte(lba), blocks, 0}
}

func cdb10(op, flags byte, lba uint32, blocks uint16) []byte {
	b := binary.BigEndian.AppendUint32([]byte{op, flags}, lba)
	b = binary.BigEndian.AppendUint16(append(b, 0), blocks)
	return append(b, 0)
}

func cdb12(op, flags byte, lba, blocks uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{op, flags}, lba)
	return append(binary.BigEndian.AppendUint32(b, blocks), 0, 0)
}

func cdb16(op, flags byte, lba uint64, blocks uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{op, flags}, lba)
	return append(binary.BigEndian.AppendUint32(b, blocks), 0, 0)
}

// blocksOf is n blocks of 512 bytes filled with c.
func blocksOf(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n*512) }

func TestWriteThenReadGivesTheSameBytes(t *testing.T) {
	pattern := make([]byte, 1024)
	for i := range pattern {
		pattern[i] = byte(i ^ i>>8)
	}
	pairs := []struct {
		name        string
		write, read []byte
	}{
		{"6", cdb6(0x0a, 9, 2), cdb6(0x08, 9, 2)},
		{"10", cdb10(0x2a, 0, 9, 2), cdb10(0x28, 0, 9, 2)},
		{"12", cdb12(0xaa, 0, 9, 2), cdb12(0xa8, 0, 9, 2)},
		{"16", cdb16(0x8a, 0, 9, 2), cdb16(0x88, 0, 9, 2)},
		{"10 DPO FUA", cdb10(0x2a, 0x18, 9, 2), cdb10(0x28, 0x18, 9, 2)},
		{"and verify 10", cdb10(0x2e, 0x02, 9, 2), cdb10(0x28, 0, 9, 2)},
		{"and verify 12", cdb12(0xae, 0x02, 9, 2), cdb12(0xa8, 0, 9, 2)},
		{"and verify 16", cdb16(0x8e, 0x00, 9, 2), cdb16(0x88, 0, 9, 2)},
	}
	for _, mapped := range []bool{false, true} {
		for _, p := range pairs {
			t.Run(fmt.Sprint(p.name, " mapped ", mapped), func(t *testing.T) {
				m := newMemory(1 << 20)
				var s backstore.Store = m
				if mapped {
					s = mappable{m}
				}
				b := newBench(t, s)
				r := b.run(0, p.write, 0, pattern)
				require.Equal(t, Good, r.Status, r.sense())
				r = b.run(0, p.read, 1024, nil)
				require.Equal(t, Good, r.Status, r.sense())
				assert.Equal(t, mapped, r.Mapped)
				assert.Equal(t, pattern, r.data)
				assert.Equal(t, pattern, m.b[9*512:11*512])
				assert.Zero(t, r.Residual)
				assert.False(t, r.Underflow || r.Overflow)
				assert.Equal(t, blocksOf(0, 9), m.b[:9*512])
				assert.Equal(t, Stats{Commands: 3, ReadBytes: 1024, WrittenBytes: 1024, Errors: 1}, b.lu.Stats())
			})
		}
	}
}

func TestLength0OfRead6Is256Blocks(t *testing.T) {
	b := &bench{t: t, d: NewDevice(DeviceConfig{MaxTransfer: 256 * 512})}
	_, err := b.d.Add(0, newMemory(300*512), LUConfig{ID: "x"})
	require.NoError(t, err)
	b.nexus = b.d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})
	b.run(0, make([]byte, 6), 0, nil)
	assert.EqualValues(t, 256*512, b.run(0, cdb6(0x08, 0, 0), 1<<20, nil).InData)
	assert.Equal(t, "5/21/00", b.run(0, cdb6(0x08, 45, 0), 1<<20, nil).sense())
}

// LU-03 of the field reports: nothing wraps around to the start of the medium.
func TestRangeChecksDoNotWrap(t *testing.T) {
	const capacity = 100
	const beyond = "5/21/00"
	extents := []struct {
		lba    uint64
		blocks uint32
		want   string
	}{
		{capacity - 1, 1, ""},
		{capacity, 0, ""},
		{capacity, 1, beyond},
		{capacity + 1, 0, beyond},
		{capacity - 1, 2, beyond},
		{0, capacity + 1, beyond},
		{0xffffffff, 1, beyond},
		{1 << 55, 1, beyond},
		{1<<63 - 1, 1, beyond},
		{1 << 63, 0, beyond},
		{1<<64 - 1, 0, beyond},
		{1<<64 - 1, 1, beyond},
		{1<<64 - 1, 2, beyond},
		{1 << 55, 0xffffffff, beyond}, // times 512 is 0 in 64 bits
		{2, 0xffffffff, beyond},
	}
	m := newMemory(capacity * 512)
	b := newBench(t, m)
	for _, e := range extents {
		for _, op := range []byte{0x88, 0x8a, 0x8e, 0x8f, 0x91} {
			// SYNCHRONIZE CACHE's length is a range, and 0 is up to the end.
			r := b.run(0, cdb16(op, 0, e.lba, e.blocks), 0, blocksOf('x', 1))
			assert.Equal(t, e.want, r.sense(), "%#x lba %d blocks %d", op, e.lba, e.blocks)
		}
		if e.lba <= 0xffffffff {
			for _, op := range []byte{0xa8, 0xaa, 0xae, 0xaf} {
				assert.Equal(t, e.want, b.run(0, cdb12(op, 0, uint32(e.lba), e.blocks), 0, nil).sense(), "%#x %v", op, e)
			}
		}
	}
	assert.Equal(t, blocksOf(0, capacity-1), m.b[:(capacity-1)*512])
	for _, op := range []byte{0x28, 0x2a, 0x2e, 0x2f, 0x35} {
		assert.Equal(t, beyond, b.run(0, cdb10(op, 0, 0xffffffff, 1), 0, nil).sense())
	}
}

// The limit of VPD page B0h is accepted, and one block more is not.
func TestMaximumTransferLengthIsWhatBlockLimitsSays(t *testing.T) {
	m := newMemory(1 << 20)
	b := newBench(t, m)
	limits := b.run(0, []byte{0x12, 1, 0xb0, 0, 64, 0}, 64, nil).data
	most := binary.BigEndian.Uint32(limits[8:])
	require.EqualValues(t, 64<<10/512, most)
	for _, op := range []byte{0x88, 0x8a, 0x8e, 0x8f} {
		data := blocksOf('x', int(most+1))
		r := b.run(0, cdb16(op, 0, 3, most), 0, data)
		assert.Equal(t, Good, r.Status, "%#x", op)
		r = b.run(0, cdb16(op, 0, 3, most+1), 0, data)
		assert.Equal(t, "5/24/00", r.sense(), "%#x", op)
		assert.Equal(t, []byte{0xcf, 0, 10}, r.Sense()[15:18], "points at the length, %#x", op)
	}
}

// RS-03, RS-06 and checklist 84 to 86, 92 to 94.
func TestResiduals(t *testing.T) {
	type row struct {
		cdb      []byte
		edtl     int
		moved    int
		residual int // below 0: underflow
		sense    string
	}
	write := func(c []byte, edtl, moved, residual int, sense string) row {
		return row{c, edtl, moved, residual, sense}
	}
	for _, op := range [][2][]byte{
		{cdb6(0x0a, 0, 1), cdb6(0x0a, 0, 2)},
		{cdb10(0x2a, 0, 0, 1), cdb10(0x2a, 0, 0, 2)},
		{cdb12(0xaa, 0, 0, 1), cdb12(0xaa, 0, 0, 2)},
		{cdb16(0x8a, 0, 0, 1), cdb16(0x8a, 0, 0, 2)},
		{cdb10(0x2e, 0, 0, 1), cdb10(0x2e, 0, 0, 2)},
		{cdb12(0xae, 0, 0, 1), cdb12(0xae, 0, 0, 2)},
		{cdb16(0x8e, 0, 0, 1), cdb16(0x8e, 0, 0, 2)},
	} {
		for _, w := range []row{
			write(op[0], 0, 0, 512, ""),
			write(op[0], 200, 0, 312, "5/0e/03"), // inside a block: nothing is written
			write(op[0], 512, 512, 0, ""),
			write(op[0], 1024, 512, -512, ""),
			write(op[0], 10000, 512, -9488, ""),
			write(op[1], 512, 512, 512, ""),
			write(op[1], 1000, 0, 24, "5/0e/03"),
		} {
			m := newMemory(4096)
			copy(m.b, blocksOf('a', 8))
			b := newBench(t, m)
			r := &result{Task: Task{Nexus: b.nexus, CDB: w.cdb, EDTL: uint32(w.edtl), Write: true}}
			b.do(r, bytes.Repeat([]byte{'b'}, w.edtl))
			want := append(bytes.Repeat([]byte{'b'}, w.moved), bytes.Repeat([]byte{'a'}, 4096-w.moved)...)
			assert.Equal(t, w.sense, r.sense(), "% x EDTL %d", w.cdb, w.edtl)
			assertResidual(t, w.residual, r)
			assert.Equal(t, want, m.b, "% x EDTL %d", w.cdb, w.edtl)
		}
	}
	for _, op := range [][2][]byte{
		{cdb6(0x08, 0, 1), cdb6(0x08, 0, 2)},
		{cdb10(0x28, 0, 0, 1), cdb10(0x28, 0, 0, 2)},
		{cdb12(0xa8, 0, 0, 1), cdb12(0xa8, 0, 0, 2)},
		{cdb16(0x88, 0, 0, 1), cdb16(0x88, 0, 0, 2)},
	} {
		for _, w := range []row{
			{op[0], 0, 0, 512, ""},
			{op[0], 200, 200, 312, ""},
			{op[0], 512, 512, 0, ""},
			{op[0], 10000, 512, -9488, ""},
			{op[1], 512, 512, 512, ""},
		} {
			m := newMemory(4096)
			copy(m.b, blocksOf('a', 8))
			for _, s := range []backstore.Store{m, mappable{m}} {
				b := newBench(t, s)
				r := &result{Task: Task{Nexus: b.nexus, CDB: w.cdb, EDTL: uint32(w.edtl), Read: true}}
				b.do(r, nil)
				assert.Equal(t, w.sense, r.sense())
				assert.Equal(t, w.moved, len(r.data), "% x EDTL %d", w.cdb, w.edtl)
				assertResidual(t, w.residual, r)
			}
		}
	}
}

func assertResidual(t *testing.T, want int, r *result) {
	t.Helper()
	assert.Equal(t, want > 0, r.Overflow, "% x EDTL %d", r.CDB, r.EDTL)
	assert.Equal(t, want < 0, r.Underflow, "% x EDTL %d", r.CDB, r.EDTL)
	assert.EqualValues(t, max(want, -want), r.Residual, "% x EDTL %d", r.CDB, r.EDTL)
}

// ISER.md 3.2, rows 11 to 13, and RS-06.
func TestResidualsOfOddCommands(t *testing.T) {
	for _, c := range []struct {
		name        string
		cdb         []byte
		read, write bool
		edtl        uint32
		sense       string
		residual    int
	}{
		{"read of no blocks", cdb10(0x28, 0, 0, 0), true, false, 512, "", -512},
		{"read beyond the end", cdb10(0x28, 0, 8, 1), true, false, 512, "5/21/00", -512},
		{"no data to move", []byte{0, 0, 0, 0, 0, 0}, true, false, 36, "", -36},
		{"read flagged as write", cdb10(0x28, 0, 0, 1), false, true, 512, "", 512},
		{"write flagged as read", cdb10(0x2a, 0, 0, 1), true, false, 512, "5/0e/03", -512},
		{"read without a direction", cdb10(0x28, 0, 0, 1), false, false, 512, "", 512},
		{"write without a direction", cdb10(0x2a, 0, 0, 1), false, false, 512, "", 512},
		{"both directions", cdb10(0x28, 0, 0, 1), true, true, 512, "5/24/00", -512},
		{"both directions, no data", make([]byte, 6), true, true, 0, "", 0},
		{"inquiry flagged as write", []byte{0x12, 0, 0, 0, 96, 0}, false, true, 96, "", 0},
		{"verify of the medium with data", cdb10(0x2f, 0, 0, 1), false, true, 512, "", -512},
		{"read capacity into 32 bytes", cdb10(0x25, 0, 0, 0), true, false, 32, "", -24},
		{"read capacity into 4 bytes", cdb10(0x25, 0, 0, 0), true, false, 4, "", 4},
		{"unknown opcode", []byte{0xff, 0, 0, 0, 0, 0}, true, false, 100, "5/20/00", -100},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMemory(4096)
			b := newBench(t, m)
			r := &result{Task: Task{Nexus: b.nexus, CDB: c.cdb, EDTL: c.edtl, Read: c.read, Write: c.write}}
			b.do(r, bytes.Repeat([]byte{'b'}, int(c.edtl)))
			assert.Equal(t, c.sense, r.sense())
			assertResidual(t, c.residual, r)
			assert.Equal(t, make([]byte, 4096), m.b)
		})
	}
}

// RS-11.
func TestStoreErrorsHaveTheirSense(t *testing.T) {
	read, write := cdb16(0x88, 0, 5, 1), cdb16(0x8a, 0, 5, 1)
	for _, c := range []struct {
		err              error
		onRead, onWrite  string
		informationValid bool
	}{
		{syscall.EIO, "3/11/00", "3/0c/00", true},
		{fmt.Errorf("pread: %w", syscall.ETIMEDOUT), "3/11/00", "3/0c/00", true},
		{fmt.Errorf("x: %w", backstore.ErrNoSpace), "7/27/07", "7/27/07", false},
		{fmt.Errorf("x: %w", backstore.ErrReadOnly), "7/27/00", "7/27/00", false},
		{fmt.Errorf("x: %w", backstore.ErrRange), "5/21/00", "5/21/00", false},
	} {
		m := newMemory(8192)
		b := newBench(t, m)
		m.err = c.err
		r := b.run(0, read, 512, nil)
		assert.Equal(t, c.onRead, r.sense())
		assertResidual(t, -512, r) // nothing is sent
		assert.Zero(t, r.InData)
		if c.informationValid {
			assert.Equal(t, []byte{0xf0, 0, 3, 0, 0, 0, 5}, r.Sense()[:7])
		}
		r = b.run(0, write, 0, blocksOf('x', 1))
		assert.Equal(t, c.onWrite, r.sense())
		assertResidual(t, 0, r) // all of Data-Out has moved
		assert.Equal(t, c.onWrite, b.run(0, cdb10(0x35, 0, 0, 0), 0, nil).sense(), "flush")
		assert.EqualValues(t, 4, b.lu.Stats().Errors)
	}
}

func TestReadOnlyUnitRefusesWrites(t *testing.T) {
	m := newMemory(4096)
	for _, c := range []struct {
		info bool
		lu   bool
	}{{true, false}, {false, true}} {
		m.info.ReadOnly = c.info
		d := NewDevice(DeviceConfig{})
		_, err := d.Add(0, m, LUConfig{ID: "x", ReadOnly: c.lu})
		require.NoError(t, err)
		b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})}
		b.run(0, make([]byte, 6), 0, nil)
		for _, op := range []byte{0x8a, 0x8e} {
			assert.Equal(t, "7/27/00", b.run(0, cdb16(op, 0, 0, 1), 0, blocksOf('x', 1)).sense())
		}
		assert.Equal(t, byte(0x90), b.run(0, []byte{0x1a, 0, 0x3f, 0, 255, 0}, 255, nil).data[2], "WP and DPOFUA")
	}
}

func TestProtectionIsRefused(t *testing.T) {
	b := newBench(t, newMemory(4096))
	for _, cdb := range [][]byte{
		cdb10(0x28, 0x20, 0, 1), cdb10(0x2a, 0x40, 0, 1), cdb12(0xa8, 0x60, 0, 1), cdb12(0xaa, 0x80, 0, 1),
		cdb16(0x88, 0xa0, 0, 1), cdb16(0x8a, 0xc0, 0, 1), cdb10(0x2f, 0xe0, 0, 1), cdb16(0x8e, 0x20, 0, 1),
	} {
		r := b.run(0, cdb, 0, blocksOf('x', 1))
		require.Equal(t, "5/24/00", r.sense(), "% x", cdb)
		assert.Equal(t, []byte{0xcf, 0, 1}, r.Sense()[15:18])
	}
}

func TestFUAReachesTheStore(t *testing.T) {
	m := newMemory(4096)
	m.info.WriteCache = true
	b := newBench(t, m)
	b.run(0, cdb10(0x2a, 0x08, 0, 1), 0, blocksOf('x', 1))
	assert.Equal(t, 1, m.fua)
	b.run(0, cdb10(0x2a, 0, 0, 1), 0, blocksOf('x', 1))
	assert.Equal(t, 1, m.fua)
	b.run(0, cdb10(0x28, 0, 0, 1), 512, nil)
	assert.Equal(t, 0, m.flushes)
	b.run(0, cdb10(0x28, 0x08, 0, 1), 512, nil)
	assert.Equal(t, 1, m.flushes, "a FUA read of a cached block must not be lost afterwards")
	b.run(0, cdb10(0x2e, 0, 0, 1), 0, blocksOf('x', 1))
	assert.Equal(t, 2, m.fua, "WRITE AND VERIFY")
	for _, cdb := range [][]byte{cdb10(0x35, 0, 0, 0), cdb10(0x35, 0x02, 1, 2), cdb16(0x91, 0, 8, 0)} {
		before := m.flushes
		assert.Equal(t, Good, b.run(0, cdb, 0, nil).Status)
		assert.Equal(t, before+1, m.flushes)
	}
}

func TestMayBlockFollowsTheStore(t *testing.T) {
	for _, blocks := range []bool{false, true} {
		m := newMemory(4096)
		m.info.NeverBlocks = !blocks
		b := newBench(t, mappable{m})
		for _, cdb := range [][]byte{
			cdb10(0x28, 0, 0, 1), cdb10(0x2a, 0, 0, 1), cdb10(0x2f, 0, 0, 1), cdb10(0x35, 0, 0, 1), {0x1b, 0, 0, 0, 0, 0},
		} {
			task := Task{Nexus: b.nexus, CDB: cdb, EDTL: 512, Read: cdb[0] == 0x28, Write: cdb[0] == 0x2a}
			b.d.Prepare(&task)
			require.False(t, task.Done)
			assert.Equal(t, blocks, task.MayBlock, "% x", cdb)
			assert.Equal(t, !blocks && cdb[0] == 0x28, task.Mapped, "only what never blocks is mapped")
			b.d.Abandon(&task)
		}
		task := Task{Nexus: b.nexus, CDB: []byte{0x12, 0, 0, 0, 96, 0}, EDTL: 96, Read: true}
		b.d.Prepare(&task)
		assert.False(t, task.MayBlock)
		b.d.Abandon(&task)
		assert.Zero(t, b.lu.held())
	}
}

func TestVerify(t *testing.T) {
	m := newMemory(200 * 512)
	for i := range 200 {
		copy(m.b[i*512:], blocksOf(byte(i), 1))
	}
	same := bytes.Clone(m.b[2*512 : 5*512])
	differs := bytes.Clone(same)
	differs[1024+7]++ // in block 4
	sevens := bytes.Clone(m.b[7*512 : 8*512])
	for _, c := range []struct {
		name  string
		cdb   []byte
		out   []byte
		sense string
		lba   byte
	}{
		{"medium", cdb10(0x2f, 0, 2, 3), nil, "", 0},
		{"nothing", cdb10(0x2f, 2, 2, 0), nil, "", 0},
		{"same 10", cdb10(0x2f, 2, 2, 3), same, "", 0},
		{"same 12", cdb12(0xaf, 2, 2, 3), same, "", 0},
		{"same 16, DPO", cdb16(0x8f, 0x12, 2, 3), same, "", 0},
		{"differs", cdb10(0x2f, 2, 2, 3), differs, "e/1d/00", 4},
		{"fewer data than blocks", cdb10(0x2f, 2, 2, 3), differs[:1024], "", 0},
		{"one block for all", cdb10(0x2f, 6, 7, 1), sevens, "", 0},
		{"one block not for all", cdb10(0x2f, 6, 7, 2), sevens, "e/1d/00", 8},
		{"reserved BYTCHK", cdb10(0x2f, 4, 7, 2), sevens, "5/24/00", 0},
		{"more than one read of the store", cdb16(0x8f, 2, 0, 128), bytes.Clone(m.b[:128*512]), "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, m)
			r := b.run(0, c.cdb, 0, c.out)
			assert.Equal(t, c.sense, r.sense())
			if c.lba != 0 {
				assert.Equal(t, []byte{0xf0, 0, 0x0e, 0, 0, 0, c.lba}, r.Sense()[:7], "VALID and INFORMATION")
			}
		})
	}
	m.err = errors.New("bad sector")
	b := newBench(t, m)
	assert.Equal(t, "3/11/00", b.run(0, cdb10(0x2f, 0, 2, 3), 0, nil).sense())
}

func TestVerifyReadsLongExtentsInChunks(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	m := newMemory(1 << 20)
	copy(m.b, bytes.Repeat([]byte{'q'}, 1<<20))
	m.b[1000*512+3] = 'z'
	_, err := d.Add(0, m, LUConfig{ID: "x"})
	require.NoError(t, err)
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})}
	b.run(0, make([]byte, 6), 0, nil)
	assert.Equal(t, Good, b.run(0, cdb16(0x8f, 6, 0, 1000), 0, blocksOf('q', 1)).Status)
	r := b.run(0, cdb16(0x8f, 6, 0, 1001), 0, blocksOf('q', 1))
	assert.Equal(t, "e/1d/00", r.sense())
	assert.Equal(t, []byte{0, 0, 3, 0xe8}, r.Sense()[3:7])
}

// What a command reads beyond the data that it moves does not keep a connection's loop.
func TestLongVerifiesLeaveTheLoop(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	_, err := d.Add(0, newMemory(1<<20), LUConfig{ID: "x"})
	require.NoError(t, err)
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})}
	b.run(0, make([]byte, 6), 0, nil)
	const most = loopBytes / 512
	for bytchk, out := range map[byte]int{0: 0, 2: most + 1, 6: 1} {
		short := b.run(0, cdb16(0x8f, bytchk, 0, most), 0, make([]byte, min(out, most)*512))
		long := b.run(0, cdb16(0x8f, bytchk, 0, most+1), 0, make([]byte, out*512))
		require.Equal(t, Good, short.Status)
		require.Equal(t, Good, long.Status)
		assert.False(t, short.MayBlock)
		assert.Equal(t, bytchk != 2, long.MayBlock, "BYTCHK %d", bytchk>>1)
	}
}

func TestBlocksOf4096(t *testing.T) {
	m := newMemory(1 << 20)
	d := NewDevice(DeviceConfig{})
	_, err := d.Add(0, m, LUConfig{ID: "x", BlockSize: 4096})
	require.NoError(t, err)
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "i", RelativePort: 1})}
	b.run(0, make([]byte, 6), 0, nil)
	assert.Equal(t, []byte{0, 0, 0, 255, 0, 0, 16, 0}, b.run(0, cdb10(0x25, 0, 0, 0), 8, nil).data)
	data := bytes.Repeat([]byte{'d'}, 4096)
	require.Equal(t, Good, b.run(0, cdb10(0x2a, 0, 255, 1), 0, data).Status)
	assert.Equal(t, data, m.b[255*4096:])
	assert.Equal(t, "5/0e/03", b.run(0, cdb10(0x2a, 0, 0, 2), 0, data[:512]).sense())
}
