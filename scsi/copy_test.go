package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goiser/goiser/backstore"
)

// cscdOf is an identification descriptor that names a unit, as sg_xcopy makes it.
func cscdOf(lu *LogicalUnit) []byte {
	d := make([]byte, 32)
	d[0], d[4], d[5], d[7] = 0xe4, 1, 3, 8
	naa := lu.naa()
	copy(d[8:], naa[:])
	binary.BigEndian.PutUint32(d[28:], uint32(lu.blockSize))
	return d
}

// blocksSegment and offsetsSegment are segment descriptors 02h and 0Ah.
func blocksSegment(from, to, blocks uint16, fromLBA, toLBA uint64) []byte {
	be := binary.BigEndian
	d := be.AppendUint16([]byte{0x02, 0, 0, 0x18}, from)
	d = be.AppendUint16(d, to)
	d = be.AppendUint16(append(d, 0, 0), blocks)
	return be.AppendUint64(be.AppendUint64(d, fromLBA), toLBA)
}

func offsetsSegment(from, to uint16, n uint32, fromLBA, toLBA uint64, fromOffset, toOffset uint16) []byte {
	be := binary.BigEndian
	d := be.AppendUint16([]byte{0x0a, 0, 0, 0x1c}, from)
	d = be.AppendUint16(d, to)
	d = be.AppendUint32(d, n)
	d = be.AppendUint64(be.AppendUint64(d, fromLBA), toLBA)
	return be.AppendUint16(be.AppendUint16(d, fromOffset), toOffset)
}

func copyListOf(id, usage byte, ends []byte, segments ...[]byte) []byte {
	all := bytes.Join(segments, nil)
	l := make([]byte, 16)
	l[0], l[1] = id, usage<<3
	binary.BigEndian.PutUint16(l[2:], uint16(len(ends)))
	binary.BigEndian.PutUint32(l[8:], uint32(len(all)))
	return append(append(l, ends...), all...)
}

func (b *bench) copy(list []byte) *result {
	cdb := make([]byte, 16)
	cdb[0] = 0x83
	binary.BigEndian.PutUint32(cdb[10:], uint32(len(list)))
	return b.run(0, cdb, 0, list)
}

func (b *bench) copyResults(action, id byte) *result {
	return b.run(0, []byte{0x84, action, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0}, 1024, nil)
}

// copyBench has two units: 0 with blocks of 512, 1 with blocks of 4096.
func copyBench(t testing.TB, first, second backstore.Store) (b *bench, other *LogicalUnit) {
	b = newBench(t, first)
	other, err := b.d.Add(1, second, LUConfig{ID: "unit 1", BlockSize: 4096})
	require.NoError(t, err)
	require.Equal(t, "6/3f/0e", b.run(0, testReady, 0, nil).sense())
	return b, other
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b) // never fails
	return b
}

func TestCopyBetweenUnits(t *testing.T) {
	one, two := newMemory(64<<10), newMemory(64<<10)
	one.b, two.b = noise(1, 64<<10), noise(2, 64<<10)
	b, other := copyBench(t, one, two)
	want := bytes.Clone(two.b)
	copy(want[3*4096:], one.b[5*512:][:16*512])
	ends := append(cscdOf(b.lu), cscdOf(other)...)
	r := b.copy(copyListOf(1, 0, ends, blocksSegment(0, 1, 16, 5, 3)))
	require.Equal(t, Good, r.Status, r.sense())
	require.True(t, r.MayBlock, "never on a connection's loop, whatever the store")
	require.True(t, bytes.Equal(want, two.b))

	// The number of blocks counts those of the destination with DC.
	segment := blocksSegment(1, 0, 8, 1, 64)
	segment[1] = 0x02
	copy(one.b[64*512:], make([]byte, 4096))
	require.Equal(t, Good, b.copy(copyListOf(1, 0, ends, segment)).Status)
	require.True(t, bytes.Equal(two.b[4096:8192], one.b[64*512:][:4096]))
	require.Equal(t, "a/26/0a", b.copy(copyListOf(1, 0, ends, blocksSegment(0, 1, 7, 0, 0))).sense(), "no whole blocks there")

	// FFFFh is the unit itself, of which no descriptor is needed; several segments go in order.
	r = b.copy(copyListOf(0, 3, nil, blocksSegment(0xffff, 0xffff, 1, 0, 9), blocksSegment(0xffff, 0xffff, 1, 9, 10)))
	require.Equal(t, Good, r.Status, r.sense())
	require.Equal(t, one.b[:512], one.b[10*512:][:512])

	// Offsets inside blocks, on both sides.
	want = bytes.Clone(two.b)
	copy(want[2*4096+1000:], one.b[512*3+100:][:1024])
	require.Equal(t, Good, b.copy(copyListOf(1, 0, ends, offsetsSegment(0, 1, 1024, 3, 2, 100, 1000))).Status)
	require.True(t, bytes.Equal(want, two.b))
	require.Equal(t, "a/26/0a", b.copy(copyListOf(1, 0, ends, offsetsSegment(0, 1, 1000, 3, 2, 0, 0))).sense(), "granularity")
	assert.Zero(t, b.d.copies.Load())
	assert.Zero(t, other.held())
}

// TestCopyIsLikeMoving: any segments, within a unit and across, overlapping or not, with chunks that do not
// fit: as if each had been read whole before it was written.
func TestCopyIsLikeMoving(t *testing.T) {
	const size = 3 << 20
	one, two := newThin(size), newMemory(size)
	b, other := copyBench(t, one, two)
	ends := append(cscdOf(b.lu), cscdOf(other)...)
	models := [][]byte{make([]byte, size), make([]byte, size)}
	rapid.Check(t, func(t *rapid.T) {
		rnd := rapid.Uint64().Draw(t, "seed")
		require.NoError(t, one.WriteAt([][]byte{noise(rnd, 64<<10)}, 0, false))
		require.NoError(t, two.WriteAt([][]byte{noise(rnd+1, 64<<10)}, 100<<10, false))
		copy(models[0], noise(rnd, 64<<10))
		copy(models[1][100<<10:], noise(rnd+1, 64<<10))
		var segments [][]byte
		for range rapid.IntRange(1, 4).Draw(t, "segments") {
			from, to := rapid.Uint16Range(0, 1).Draw(t, "from"), rapid.Uint16Range(0, 1).Draw(t, "to")
			blocks := rapid.Uint16Range(0, 600).Draw(t, "blocks of 4096")
			at := rapid.Uint64Range(0, size/4096-uint64(blocks))
			fromAt, toAt := at.Draw(t, "from at")*4096, at.Draw(t, "to at")*4096
			n := uint64(blocks) * 4096
			count := n / []uint64{512, 4096}[from]
			segments = append(segments, blocksSegment(from, to, uint16(count), fromAt/[]uint64{512, 4096}[from], toAt/[]uint64{512, 4096}[to]))
			copy(models[to][toAt:toAt+n], models[from][fromAt:fromAt+n])
		}
		r := b.copy(copyListOf(1, 0, ends, segments...))
		require.Equal(t, Good, r.Status, r.sense())
		require.True(t, bytes.Equal(models[0], one.b), "unit 0")
		require.True(t, bytes.Equal(models[1], two.b), "unit 1")
	})
}

// TestCopyKeepsHoles: what a thin source does not have takes no space in a thin destination.
func TestCopyKeepsHoles(t *testing.T) {
	from, to := newThin(16<<20), newThin(16<<20)
	data := noise(3, 1<<20)
	require.NoError(t, from.WriteAt([][]byte{data}, 8<<20, false))
	require.NoError(t, to.WriteAt([][]byte{noise(4, 16<<20)}, 0, false))
	b, other := copyBench(t, from, to)
	r := b.copy(copyListOf(1, 0, append(cscdOf(b.lu), cscdOf(other)...), blocksSegment(0, 1, 32<<10, 0, 0)))
	require.Equal(t, Good, r.Status, r.sense())
	want := make([]byte, 16<<20)
	copy(want[8<<20:], data)
	require.True(t, bytes.Equal(want, to.b))
	for off, there := range map[int64]bool{0: false, 8 << 20: true, 9 << 20: false} {
		allocated, n, err := to.Extent(off, 1<<20)
		require.NoError(t, err)
		require.Equal(t, there, allocated, "at %d", off)
		require.EqualValues(t, 1<<20, n)
	}
	assert.Equal(t, uint64(1<<20), other.Stats().WrittenBytes)
}

// TestCopyListsThatAreWrong change nothing, whichever segment is wrong, and each has its answer.
func TestCopyListsThatAreWrong(t *testing.T) {
	one, two := newMemory(64<<10), newMemory(64<<10)
	one.b, two.b = noise(1, 64<<10), noise(2, 64<<10)
	b, other := copyBench(t, one, two)
	ends := append(cscdOf(b.lu), cscdOf(other)...)
	good := blocksSegment(0, 1, 8, 0, 0)
	set := func(l []byte, at int, v ...byte) []byte { copy(l[at:], v); return l }
	for name, c := range map[string]struct {
		list []byte
		want string
	}{
		"list identifier with usage 11b":  {copyListOf(1, 3, ends, good), "5/26/00"},
		"usage 01b":                       {copyListOf(1, 1, ends, good), "5/26/00"},
		"inline data":                     {set(append(copyListOf(1, 0, ends, good), 1, 2, 3, 4), 15, 4), "5/26/0b"},
		"inline data that is not there":   {set(copyListOf(1, 0, ends, good), 15, 4), "5/1a/00"},
		"descriptors longer than list":    {set(copyListOf(1, 0, ends, good), 11, 29), "5/1a/00"},
		"huge descriptors":                {set(copyListOf(1, 0, ends, good), 8, 0xff, 0xff, 0xff, 0xff), "5/1a/00"},
		"part of a CSCD descriptor":       {copyListOf(1, 0, ends[:63], good), "5/26/00"},
		"Fibre Channel":                   {set(copyListOf(1, 0, ends, good), 16, 0xe0), "5/26/07"},
		"a tape":                          {set(copyListOf(1, 0, ends, good), 17, 1), "a/0d/03"},
		"long designator":                 {set(copyListOf(1, 0, ends, good), 16+7, 21), "5/26/00"},
		"another block size":              {set(copyListOf(1, 0, ends, good), 16+30, 0x10, 0), "5/26/00"},
		"stream to stream":                {copyListOf(1, 0, ends, set(bytes.Clone(good), 0, 3)), "5/26/09"},
		"segment too short":               {copyListOf(1, 0, ends, good[:27]), "5/1a/00"},
		"segment header too short":        {copyListOf(1, 0, ends, good, good[:3]), "5/1a/00"},
		"segment says another length":     {copyListOf(1, 0, ends, set(bytes.Clone(good), 3, 0x19)), "5/26/00"},
		"unknown unit":                    {copyListOf(1, 0, set(bytes.Clone(ends), 40, 0xff), good), "a/0d/02"},
		"name of another kind":            {copyListOf(1, 0, set(bytes.Clone(ends), 37, 0x13), good), "a/0d/02"},
		"index of no descriptor":          {copyListOf(1, 0, ends, good, blocksSegment(0, 2, 8, 0, 0)), "a/08/04"},
		"index FFFEh":                     {copyListOf(1, 0, ends, good, blocksSegment(0xfffe, 0, 8, 0, 0)), "a/08/04"},
		"source beyond the end":           {copyListOf(1, 0, ends, good, blocksSegment(0, 1, 8, 121, 0)), "a/0d/02"},
		"destination beyond the end":      {copyListOf(1, 0, ends, good, blocksSegment(0, 1, 16, 0, 15)), "a/0d/02"},
		"destination LBA that would wrap": {copyListOf(1, 0, ends, good, blocksSegment(0, 1, 8, 0, 1<<52)), "a/0d/02"},
		"source LBA 2^64-1":               {copyListOf(1, 0, ends, good, blocksSegment(0, 1, 8, 1<<64-1, 0)), "a/0d/02"},
		"bytes beyond the end":            {copyListOf(1, 0, ends, good, offsetsSegment(0, 1, 512, 127, 0, 1, 0)), "a/0d/02"},
		"offset of a block":               {copyListOf(1, 0, ends, good, offsetsSegment(0, 1, 512, 0, 0, 512, 0)), "5/26/00"},
		"offset of a block there":         {copyListOf(1, 0, ends, good, offsetsSegment(0, 1, 512, 0, 0, 0, 4096)), "5/26/00"},
	} {
		before := [][]byte{bytes.Clone(one.b), bytes.Clone(two.b)}
		r := b.copy(c.list)
		assert.Equal(t, c.want, r.sense(), name)
		require.Equal(t, before, [][]byte{one.b, two.b}, name)
	}
	full := copyListOf(1, 0, ends, good)
	for n := 1; n < len(full); n++ {
		require.Equal(t, "5/1a/00", b.copy(full[:n]).sense(), "the first %d bytes", n)
	}
	cdb := []byte{0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(full)), 0, 0}
	require.Equal(t, "5/1a/00", b.run(0, cdb, 0, full[:len(full)-1]).sense(), "less is sent than the CDB says")
	require.Equal(t, Good, b.run(0, make16(0x83), 0, nil).Status, "no list is nothing to do")
	require.Equal(t, Good, b.copy(copyListOf(1, 0, ends)).Status, "no segments neither")
	require.Equal(t, Good, b.copy(copyListOf(1, 0, set(bytes.Clone(ends), 8, 0xff), blocksSegment(1, 1, 1, 0, 1))).Status,
		"an unknown unit that no segment names")
	require.Equal(t, Good, b.copy(copyListOf(1, 0, ends, blocksSegment(0, 1, 0, 128, 16))).Status, "no blocks, at the end")
}

func make16(opcode byte) []byte { return append([]byte{opcode}, make([]byte, 15)...) }

// TestCopyReachesOnlyWhatTheNexusMayUse (case SE-08), and what others have reserved, write-protected or
// stopped is left alone.
func TestCopyReachesOnlyWhatTheNexusMayUse(t *testing.T) {
	one, two := newMemory(64<<10), newMemory(64<<10)
	b, other := copyBench(t, one, two)
	two.b = noise(2, 64<<10)
	ends := append(cscdOf(b.lu), cscdOf(other)...)
	steal, spoil := copyListOf(1, 0, ends, blocksSegment(1, 0, 1, 0, 0)), copyListOf(1, 0, ends, blocksSegment(0, 1, 8, 0, 0))
	before := [][]byte{bytes.Clone(one.b), bytes.Clone(two.b)}
	untouched := func(b *bench, list []byte, want string) {
		t.Helper()
		r := b.copy(list)
		require.Equal(t, want, r.sense())
		require.Equal(t, before, [][]byte{one.b, two.b})
	}
	masked := &bench{t: t, d: b.d, lu: b.lu, nexus: b.d.Attach(NexusConfig{Initiator: "m,i,0x0", RelativePort: 1, LUNs: []int{0}})}
	require.Equal(t, "6/29/00", masked.run(0, testReady, 0, nil).sense())
	for _, list := range [][]byte{steal, spoil} {
		untouched(masked, list, "a/0d/02")
	}

	// Reserved by another: by RESERVE, neither is allowed; a write exclusive reservation allows reads.
	rival := b.another()
	require.Equal(t, "6/29/00", rival.run(lunAt(1), testReady, 0, nil).sense())
	require.Equal(t, Good, rival.run(lunAt(1), []byte{0x16, 0, 0, 0, 0, 0}, 0, nil).Status)
	untouched(b, steal, "a/0d/01")
	untouched(b, spoil, "a/0d/01")
	require.Equal(t, Good, rival.run(lunAt(1), []byte{0x17, 0, 0, 0, 0, 0}, 0, nil).Status)

	stpg := []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}
	require.Equal(t, Good, rival.run(lunAt(1), stpg, 0, []byte{0, 0, 0, 0, byte(Standby), 0, 0, 1}).Status)
	untouched(b, steal, "a/0d/01")
	untouched(b, spoil, "a/0d/01")
	require.Equal(t, Good, rival.run(lunAt(1), stpg, 0, []byte{0, 0, 0, 0, byte(Optimized), 0, 0, 1}).Status)

	other.stopped.Store(true)
	untouched(b, steal, "a/0d/01")
	other.stopped.Store(false)
	require.Equal(t, Good, b.copy(steal).Status)
	require.Equal(t, two.b[:4096], one.b[:4096])
}

func TestCopyToWriteProtectedUnit(t *testing.T) {
	two := newMemory(64 << 10)
	two.info.ReadOnly = true
	b, other := copyBench(t, newMemory(64<<10), two)
	ends := append(cscdOf(b.lu), cscdOf(other)...)
	require.Equal(t, "a/0d/01", b.copy(copyListOf(1, 0, ends, blocksSegment(0, 1, 8, 0, 0))).sense())
	require.Equal(t, Good, b.copy(copyListOf(1, 0, ends, blocksSegment(1, 0, 1, 0, 0))).Status)
}

// TestCopyLimits: every limit that is announced is what is accepted, and one more is not.
func TestCopyLimits(t *testing.T) {
	null, err := backstore.Open("null", backstore.Options{"size": "1TiB"})
	require.NoError(t, err)
	b, other := copyBench(t, null, null)
	be := binary.BigEndian
	p := b.copyResults(3, 0).data
	require.Equal(t, golden(t, `
		0000002b  AVAILABLE DATA
		01 000000  SNLID
		0008 0040  CSCD descriptors, segment descriptors
		00000900 10000000  descriptor list, segment, in bytes
		00000000 00000000 00000000  inline data, held data, stream transfer
		0000 0010 10  total and maximum concurrent copies
		09 00 00 000000  granularity of segments, inline data, held data
		03 020ae4  implemented descriptors`), p)
	endCount, segmentCount := int(be.Uint16(p[8:])), int(be.Uint16(p[10:]))
	listLen, segmentLen := int(be.Uint32(p[12:])), be.Uint32(p[16:])

	end, small := cscdOf(b.lu), blocksSegment(0, 0, 1, 0, 1)
	for extra, want := range []string{"", "5/26/06"} {
		require.Equal(t, want, b.copy(copyListOf(1, 0, bytes.Repeat(end, endCount+extra), small)).sense())
	}
	for extra, want := range []string{"", "5/26/08"} {
		require.Equal(t, want, b.copy(copyListOf(1, 0, end, bytes.Repeat(small, segmentCount+extra))).sense())
	}
	full := copyListOf(1, 0, bytes.Repeat(end, endCount), bytes.Repeat(offsetsSegment(0, 0, 512, 0, 1, 0, 0), segmentCount))
	require.Len(t, full, 16+listLen)
	require.Equal(t, "", b.copy(full).sense())
	require.Equal(t, "5/1a/00", b.copy(append(full, 0)).sense())
	for extra, want := range map[uint32]string{0: "", 512: "5/26/00"} {
		require.Equal(t, want, b.copy(copyListOf(1, 0, end, offsetsSegment(0, 0, segmentLen+extra, 0, 1<<22, 0, 0))).sense())
	}
	b.d.copies.Store(int32(be.Uint16(p[34:])))
	require.Equal(t, Busy, b.copy(copyListOf(1, 0, end, small)).Status)
	b.d.copies.Add(-1)
	require.Equal(t, Good, b.copy(copyListOf(1, 0, end, small)).Status)
	b.d.copies.Store(0)
	require.Zero(t, other.held())
}

func TestThirdPartyCopyPage(t *testing.T) {
	b := newBench(t, newMemory(4096))
	require.Equal(t, golden(t, `
		00 8f 0064  header
		0001 000c  supported commands
		08 83 01 00 84 03 00 03 04 000000  EXTENDED COPY(LID1); COPY STATUS, OPERATING PARAMETERS, FAILED SEGMENT DETAILS
		0004 001c  parameter data
		00000000 0008 0040 00000900 00000000  CSCD and segment descriptors, list length, inline data
		`+zeros(12)+`
		0008 0004  supported descriptors
		03 020ae4  block to block, with offsets, identification
		000c 0004  supported CSCD descriptor IDs
		0002 ffff  this unit
		8001 0020  general copy operations
		00000010 00000010 10000000  total and identified concurrent copies, segment length
		09 00 0000  granularity
		`+zeros(16)), inquiry(b, 0, 1, 0x8f).data)
}

// scripted is a store that calls at each request.
type scripted struct {
	*memory
	call func(op string, off int64) error
}

func (s *scripted) ReadAt(bufs [][]byte, off int64) error {
	if err := s.call("read", off); err != nil {
		return err
	}
	return s.memory.ReadAt(bufs, off)
}

func (s *scripted) WriteAt(bufs [][]byte, off int64, fua bool) error {
	if err := s.call("write", off); err != nil {
		return err
	}
	return s.memory.WriteAt(bufs, off, fua)
}

// TestCopyIsInsideOneGateAtATime: that of the unit whose blocks are touched, so that atomic commands wait for
// a chunk, and two copies never for each other.
func TestCopyIsInsideOneGateAtATime(t *testing.T) {
	one, two := &scripted{memory: newMemory(4 << 20)}, &scripted{memory: newMemory(4 << 20)}
	quiet := func(string, int64) error { return nil }
	one.call, two.call = quiet, quiet
	b, other := copyBench(t, one, two)
	var calls []string
	one.call = func(op string, off int64) error {
		calls = append(calls, fmt.Sprint(op, off>>20, b.lu.fast(), other.fast()))
		return nil
	}
	two.call = func(op string, off int64) error {
		calls = append(calls, fmt.Sprint(op, off>>20, b.lu.fast(), other.fast()))
		return nil
	}
	r := b.copy(copyListOf(1, 0, append(cscdOf(b.lu), cscdOf(other)...), blocksSegment(0, 1, 6<<10, 0, 256)))
	require.Equal(t, Good, r.Status, r.sense())
	require.Equal(t, []string{"read0 1 0", "write1 0 1", "read1 1 0", "write2 0 1", "read2 1 0", "write3 0 1"}, calls)
}

// TestCopyInProgress: while a copy works its units stay, its status can be asked for, and it stops between
// chunks when it is told to.
func TestCopyInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newMemory(4<<20), &scripted{memory: newMemory(4 << 20)}
		go1 := make(chan struct{})
		two.call = func(string, int64) error { return nil }
		b, other := copyBench(t, one, two)
		writes := 0
		two.call = func(op string, off int64) error {
			if op == "write" {
				writes++
				<-go1
			}
			return nil
		}
		list := copyListOf(7, 0, append(cscdOf(b.lu), cscdOf(other)...), blocksSegment(0, 1, 1, 0, 0), blocksSegment(0, 1, 6<<10, 0, 256))
		binary.BigEndian.PutUint16(list[16+64+10:], 8)
		cdb := make16(0x83)
		cdb[13] = byte(len(list))
		task := &Task{Nexus: b.nexus, CDB: cdb, Write: true, EDTL: uint32(len(list))}
		b.d.Prepare(task)
		require.False(t, task.Done)
		task.Out = [][]byte{list}
		done := make(chan struct{})
		go func() { b.d.Execute(task); close(done) }()
		synctest.Wait()
		go1 <- struct{}{} // the first segment is done
		synctest.Wait()
		require.Equal(t, 2, writes)

		status := b.copyResults(0, 7)
		require.Equal(t, golden(t, `00000008  00  goes on
			00 0001  segments
			01 00000004  KiB`), status.data)
		require.Equal(t, "5/00/16", b.copy(list).sense(), "its list identifier is in use")
		require.Equal(t, "5/24/00", b.copyResults(0, 8).sense())

		removed := make(chan error, 1)
		go func() { removed <- b.d.Remove(1) }()
		synctest.Wait()
		require.Empty(t, removed, "the unit stays while it is written to")

		task.Stop()
		close(go1)
		<-done
		require.Equal(t, 2, writes, "no chunk after that")
		require.NoError(t, <-removed)
		b.d.Release(task)
		require.Zero(t, b.d.copies.Load())
	})
}

// TestCopyOfThePreempted: a copy writes nothing to a unit once PREEMPT AND ABORT of its nexus there has been
// answered, although its task is one of another unit; and a RESERVE ends it too.
func TestCopyOfThePreempted(t *testing.T) {
	for name, fence := range map[string]func(b *bench) *result{
		"preempt and abort": func(b *bench) *result {
			return b.runAt(1, []byte{0x5f, prPreemptAndAbort, byte(writeExclusive), 0, 0, 0, 0, 0, 24, 0}, list(keyB, keyA, 0))
		},
		"reserve": func(b *bench) *result { return b.runAt(1, reserve6, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			one, two := newMemory(4<<20), &scripted{memory: newMemory(4 << 20)}
			two.call = func(string, int64) error { return nil }
			b, other := copyBench(t, one, two)
			by := b.peer(portB, 1)
			require.Equal(t, "6/29/00", b.runAt(1, testReady, nil).sense())
			require.Equal(t, "6/29/00", by.runAt(1, testReady, nil).sense())
			if name != "reserve" {
				for nexus, key := range map[*bench]uint64{b: keyA, by: keyB} {
					require.Equal(t, Good, nexus.runAt(1, []byte{0x5f, prRegister, 0, 0, 0, 0, 0, 0, 24, 0}, list(0, key, 0)).Status)
				}
				require.Equal(t, Good, b.runAt(1, []byte{0x5f, prReserve, byte(writeExclusive), 0, 0, 0, 0, 0, 24, 0}, list(keyA, 0, 0)).Status)
			}
			before := other.reservations.Load()
			events := make(chan string, 8)
			first := true
			two.call = func(op string, _ int64) error {
				if first { // held at the store until the reservation is there
					first = false
					fenced := make(chan struct{})
					go func() {
						defer close(fenced)
						if r := fence(by); r.Status == Good {
							events <- "fenced"
						}
					}()
					for other.reservations.Load() == before {
						runtime.Gosched()
					}
					if name == "reserve" {
						<-fenced // which promises nothing for what has begun
					}
					for range 1000 {
						runtime.Gosched()
					}
				}
				events <- op
				return nil
			}
			r := b.copy(copyListOf(1, 0, append(cscdOf(b.lu), cscdOf(other)...), blocksSegment(0, 1, 6<<10, 0, 0)))
			require.Equal(t, "a/0d/01", r.sense())
			want := []string{"write", "fenced"}
			if name == "reserve" {
				want = []string{"fenced", "write"}
			}
			require.Equal(t, want, []string{<-events, <-events})
			require.Empty(t, events, "no chunk after that")
		})
	}
}

// runAt runs a command on another unit, with Data-Out or nothing.
func (b *bench) runAt(lun int, cdb, out []byte) *result { return b.run(lunAt(lun), cdb, 0, out) }

// TestCopyErrors: the segment is told, what was done before it stays, and the results can be asked for once.
func TestCopyErrors(t *testing.T) {
	one, two := newMemory(64<<10), &scripted{memory: newMemory(64 << 10)}
	two.call = func(string, int64) error { return nil }
	b, other := copyBench(t, one, two)
	copy(one.b, noise(5, 64<<10))
	fail := backstore.ErrInUse
	two.call = func(op string, off int64) error {
		if off >= 8192 {
			return fail
		}
		return nil
	}
	list := copyListOf(9, 0, append(cscdOf(b.lu), cscdOf(other)...), blocksSegment(0, 1, 16, 0, 0), blocksSegment(0, 1, 16, 0, 2))
	r := b.copy(list)
	want := golden(t, `70 00 0a  COPY ABORTED
		00000000 0a  INFORMATION, additional length
		00000001  COMMAND-SPECIFIC INFORMATION: segment 1
		0d 01 00 000000  THIRD PARTY DEVICE FAILURE`)
	require.Equal(t, want, r.Sense())
	require.Equal(t, one.b[:8192], two.b[:8192])
	require.Equal(t, golden(t, `00000008 02 0001 01 00000008`), b.copyResults(0, 9).data)
	require.Equal(t, "5/24/00", b.copyResults(0, 9).sense(), "the end is told once")
	details := b.copyResults(4, 9).data
	require.Equal(t, append(golden(t, `0000004a `+zeros(52)+` 02 00 0012`), want...), details)
	require.Equal(t, make([]byte, 4), b.copyResults(4, 9).data, "and so is what failed")
	require.Equal(t, "5/24/00", b.copyResults(4, 10).sense())

	b.d.ResetLU(0, nil)
	require.Equal(t, "6/29/03", b.run(0, testReady, 0, nil).sense())
	require.Equal(t, "5/24/00", b.copyResults(4, 9).sense(), "a reset forgets")

	fail = fmt.Errorf("full: %w", backstore.ErrNoSpace)
	require.Equal(t, "7/27/07", b.copy(list).sense(), "as any other write")

	require.Equal(t, "5/24/00", b.another().copyResults(0, 9).sense(), "another nexus")
	none := copyListOf(0, 3, nil, blocksSegment(0xffff, 0xffff, 1, 0, 1))
	require.Equal(t, Good, b.copy(none).Status)
	require.Equal(t, "5/24/00", b.copyResults(0, 0).sense(), "without a list identifier nothing is kept")
}

// TestCopyResultsAreBounded: list identifiers on many units cannot fill the memory.
func TestCopyResultsAreBounded(t *testing.T) {
	var r copyResults
	var units [3]LogicalUnit
	for i := range 300 {
		p, err := r.begin(&units[i%3], &copyList{id: byte(i)})
		require.NoError(t, err)
		p.end(nil)
	}
	require.Len(t, r.list, maxCopyResults)
	require.NotNil(t, r.find(&units[299%3], 299%256))
	require.Nil(t, r.find(&units[0], 0))
}

// FuzzCopyList sends any parameter list. Nothing panics, a refused one changes nothing, and one that is carried
// out leaves what another reader of the list says.
func FuzzCopyList(f *testing.F) {
	one, two := newMemory(64<<10), newMemory(64<<10)
	b, other := copyBench(f, one, two)
	ends := append(cscdOf(b.lu), cscdOf(other)...)
	f.Add(copyListOf(1, 0, ends, blocksSegment(0, 1, 16, 5, 3)))
	f.Add(copyListOf(1, 2, ends, blocksSegment(0, 0, 16, 5, 9), offsetsSegment(1, 0, 512, 3, 2, 100, 100)))
	f.Add(copyListOf(0, 3, nil, blocksSegment(0xffff, 0xffff, 3, 0, 1)))
	f.Add([]byte{})
	first, second := noise(1, 64<<10), noise(2, 64<<10)
	f.Fuzz(func(t *testing.T, list []byte) {
		copy(one.b, first)
		copy(two.b, second)
		want := [][]byte{bytes.Clone(one.b), bytes.Clone(two.b)}
		r := b.copy(list)
		if r.Status == Good && len(list) > 0 {
			applyCopy(list, want)
		}
		require.True(t, bytes.Equal(want[0], one.b) && bytes.Equal(want[1], two.b), "%v %s", r.Status, r.sense())
		require.Zero(t, b.d.copies.Load())
		require.Zero(t, b.lu.held()+other.held())
	})
}

// applyCopy does on slices what a list that was accepted asks for: units by the order of copyBench.
func applyCopy(list []byte, units [][]byte) {
	be := binary.BigEndian
	nEnds := int(be.Uint16(list[2:]))
	unitOf := func(id uint16) int {
		if id == 0xffff || list[16+32*int(id)+9] == 0xd0 { // of SHA-256 of "unit 0"
			return 0
		}
		return 1
	}
	for d := list[16+nEnds:][:be.Uint32(list[8:])]; len(d) > 0; {
		from, to := unitOf(be.Uint16(d[4:])), unitOf(be.Uint16(d[6:]))
		size := []uint64{512, 4096}
		fromAt, toAt := be.Uint64(d[12:])*size[from], be.Uint64(d[20:])*size[to]
		var n uint64
		if d[0] == 2 {
			unit := size[from]
			if d[1]&2 != 0 {
				unit = size[to]
			}
			n = uint64(be.Uint16(d[10:])) * unit
			d = d[28:]
		} else {
			n = uint64(be.Uint32(d[8:]))
			fromAt, toAt = fromAt+uint64(be.Uint16(d[28:])), toAt+uint64(be.Uint16(d[30:]))
			d = d[32:]
		}
		copy(units[to][toAt:toAt+n], units[from][fromAt:fromAt+n])
	}
}

// BenchmarkCopy copies 16 MiB from one unit to another, in memory.
func BenchmarkCopy(b *testing.B) {
	const size = 16 << 20
	w, other := copyBench(b, newMemory(size), newMemory(size))
	list := copyListOf(0, 3, append(cscdOf(w.lu), cscdOf(other)...), offsetsSegment(0, 1, size, 0, 0, 0, 0))
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if r := w.copy(list); r.Status != Good {
			b.Fatal(r.sense())
		}
	}
}
