package scsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	testReady    = []byte{0, 0, 0, 0, 0, 0}
	reportLUNs   = []byte{0xa0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0}
	requestSense = []byte{3, 0, 0, 0, 252, 0}
)

// ready is what TEST UNIT READY says of a unit: a condition, or empty.
func (b *bench) ready(lun int) string { return b.run(lunAt(lun), testReady, 0, nil).sense() }

func (b *bench) add(lun int, id string) {
	b.t.Helper()
	_, err := b.d.Add(lun, newMemory(4096), LUConfig{ID: id})
	require.NoError(b.t, err)
}

func TestPowerOnComesOncePerNexusAndUnit(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	x, y := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}, &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "y", RelativePort: 1})}
	x.add(0, "a")
	x.add(300, "b")
	for _, b := range []*bench{x, y} {
		b.run(0, reportLUNs, 4096, nil) // both units have come after the nexus
		for _, lun := range []int{0, 300} {
			assert.Equal(t, "6/29/00", b.ready(lun))
			assert.Empty(t, b.ready(lun))
			assert.Empty(t, b.ready(lun))
		}
	}
	again := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
	assert.Equal(t, "6/29/00", again.ready(0))
}

func TestAttentionAnswersEveryCommandButThree(t *testing.T) {
	for i := range operations {
		op := &operations[i]
		d := NewDevice(DeviceConfig{})
		b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
		b.add(0, "a")
		cdb := []byte(op.usage[:1] + string(make([]byte, len(op.usage)-1)))
		if op.action != noAction {
			cdb[1] = byte(op.action)
		}
		exempt := op.name == "INQUIRY" || op.name == "REPORT LUNS" || op.name == "REQUEST SENSE"
		if r := b.run(0, cdb, 0, nil); exempt {
			assert.Equal(t, Good, r.Status, op.name)
		} else {
			assert.Equal(t, "6/29/00", r.sense(), op.name)
		}
	}
	d := NewDevice(DeviceConfig{})
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
	b.add(0, "a")
	b.run(0, reportLUNs, 4096, nil)
	assert.Equal(t, "6/29/00", b.run(0, []byte{0xff}, 0, nil).sense(), "unknown opcode")
	assert.Equal(t, "5/20/00", b.run(0, []byte{0xff}, 0, nil).sense())
}

func TestRequestSenseTakesTheAttention(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
	b.add(0, "a")
	b.run(0, reportLUNs, 4096, nil)
	assert.Equal(t, golden(t, "70 00 06 00000000 0a 00000000 29 00 00 000000"), b.run(0, requestSense, 252, nil).data)
	assert.Empty(t, b.ready(0))
	assert.Equal(t, golden(t, "70 00 00 00000000 0a 00000000 00 00 00 000000"), b.run(0, requestSense, 252, nil).data)
	assert.Equal(t, golden(t, "72 00 00 00 00000000"), b.run(0, []byte{3, 1, 0, 0, 252, 0}, 252, nil).data)
	assert.Equal(t, golden(t, "72 05 25 00 00000000"), b.run(lunAt(9), []byte{3, 1, 0, 0, 252, 0}, 252, nil).data)
}

func TestAttentionsComeInOrderOfPrecedence(t *testing.T) {
	b := newBench(t, newMemory(4096))
	other := &bench{t: t, d: b.d, nexus: b.d.Attach(NexusConfig{Initiator: "j", RelativePort: 1})}
	require.Equal(t, "6/29/00", other.ready(0))
	b.add(1, "b")
	require.NoError(t, b.lu.CapacityChanged())
	require.True(t, b.d.ResetLU(0, other.nexus))
	for _, want := range []string{"6/29/03", "6/2a/09", "6/3f/0e", "", ""} {
		assert.Equal(t, want, b.ready(0))
	}
	for _, want := range []string{"6/29/03", "6/2a/09", "6/3f/0e", ""} {
		assert.Equal(t, want, other.ready(0), "whoever resets is told of it too")
	}
	assert.False(t, b.d.ResetLU(lunAt(7), nil))
	assert.False(t, b.d.ResetLU(1<<62|1, nil))
	b.d.Reset(nil)
	assert.Equal(t, "6/29/03", b.ready(0))
	assert.Equal(t, "6/29/03", other.ready(0))
}

// TestNexusReset: the nexus is told on every unit, after resets and before all else; nobody else is, and only what it
// held itself goes.
func TestNexusReset(t *testing.T) {
	b := newBench(t, newMemory(4096))
	b.add(1, "b")
	require.Equal(t, "6/3f/0e", b.ready(0))
	require.Equal(t, "6/29/00", b.ready(1))
	other := b.peer("j", 1)
	require.Equal(t, Good, b.status(reserve6...))
	b.d.ResetNexus(other.nexus)
	assert.Equal(t, Good, b.status(reserve6...), "another one's reset")
	assert.Equal(t, "6/29/07", other.ready(0), "told though the unit is reserved")
	assert.Equal(t, ReservationConflict, other.status(testReady...))

	require.NoError(t, b.lu.CapacityChanged())
	b.d.ResetNexus(b.nexus)
	require.True(t, b.d.ResetLU(0, nil))
	for _, want := range []string{"6/29/03", "6/29/07", "6/2a/09", ""} {
		assert.Equal(t, want, b.ready(0))
	}
	assert.Equal(t, "6/29/07", b.ready(1))
	b.d.ResetNexus(b.nexus)
	assert.Equal(t, "6/29/03", other.ready(0))
	assert.Equal(t, "6/2a/09", other.ready(0))
	assert.Equal(t, "", other.ready(0))
	assert.Equal(t, Good, other.status(reserve6...))
	b.d.ResetNexus(b.nexus)
	assert.Equal(t, "6/29/07", b.ready(0))
	assert.Equal(t, ReservationConflict, b.status(testReady...), "not its own")
}

func TestNexusResetEndsItsReservation(t *testing.T) {
	b := newBench(t, newMemory(4096))
	other := b.peer("j", 1)
	require.Equal(t, Good, b.status(reserve6...))
	b.d.ResetNexus(b.nexus)
	assert.Equal(t, Good, other.status(reserve6...))
}

// TestQueryAttention: what is pending is told, with how much there is, and stays.
func TestQueryAttention(t *testing.T) {
	b := newBench(t, newMemory(4096))
	query := func() (info [3]byte) {
		info, ok := b.d.QueryAttention(b.nexus, 0)
		assert.Equal(t, info != [3]byte{}, ok)
		return info
	}
	assert.Zero(t, query())
	require.NoError(t, b.lu.CapacityChanged())
	assert.Equal(t, [3]byte{0x16, 0x2a, 0x09}, query())
	b.d.ResetNexus(b.nexus)
	assert.Equal(t, [3]byte{0x26, 0x29, 0x07}, query())
	require.True(t, b.d.ResetLU(0, nil))
	assert.Equal(t, [3]byte{0x26, 0x29, 0x03}, query())
	for _, want := range []string{"6/29/03", "6/29/07", "6/2a/09", ""} {
		assert.Equal(t, want, b.ready(0))
	}
	assert.Zero(t, query())
	b.nexus = b.d.Attach(NexusConfig{Initiator: "k", RelativePort: 1, LUNs: []int{0}})
	assert.Equal(t, [3]byte{0x16, 0x29, 0}, query(), "it has not met the unit")
	assert.Equal(t, "6/29/00", b.ready(0))
	b.add(1, "b")
	for _, lun := range []uint64{lunAt(1), lunAt(9), 1 << 62} {
		_, ok := b.d.QueryAttention(b.nexus, lun)
		assert.False(t, ok, "%x: not there for it", lun)
	}
}

func TestReportedLUNsChangedIsToldOnce(t *testing.T) {
	b := newBench(t, newMemory(4096))
	b.add(1, "b")
	b.ready(0)
	require.Equal(t, "6/29/00", b.ready(1))
	b.add(2, "c")
	assert.Equal(t, "6/3f/0e", b.ready(1))
	assert.Empty(t, b.ready(0), "told through unit 1 already")
	require.NoError(t, b.d.Remove(2))
	b.run(0, reportLUNs, 4096, nil)
	assert.Empty(t, b.ready(0), "the initiator has asked")
	assert.Empty(t, b.ready(1))
}

// CO-01: a command meant for the old disk never touches the new one.
func TestReusedNumberOwesAnAttentionBeforeMediaAccess(t *testing.T) {
	write := cdb10(0x2a, 0, 0, 1)
	for _, first := range [][]byte{write, cdb10(0x28, 0, 0, 1), cdb16(0x88, 0, 0, 1)} {
		b := newBench(t, newMemory(4096))
		b.add(5, "disk A")
		b.run(lunAt(0), testReady, 0, nil)
		b.ready(5)
		require.Empty(t, b.ready(5))
		before := inquiry(b, lunAt(5), 1, 0x83).data
		require.NoError(t, b.d.Remove(5))
		assert.Equal(t, "5/25/00", b.run(lunAt(5), write, 0, blocksOf('x', 1)).sense())
		disk := newMemory(8192)
		_, err := b.d.Add(5, disk, LUConfig{ID: "disk B"})
		require.NoError(t, err)
		assert.NotEqual(t, before, inquiry(b, lunAt(5), 1, 0x83).data)
		b.run(0, reportLUNs, 4096, nil)
		assert.Equal(t, "6/29/00", b.run(lunAt(5), first, 0, blocksOf('x', 1)).sense())
		assert.Equal(t, "6/3f/03", b.run(lunAt(5), first, 0, blocksOf('x', 1)).sense())
		assert.Equal(t, make([]byte, 8192), disk.b)
		require.Equal(t, Good, b.run(lunAt(5), write, 0, blocksOf('x', 1)).Status)
		assert.Equal(t, blocksOf('x', 1), disk.b[:512])
	}
}

func TestAbsentUnits(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
	b.add(3, "only")
	for _, lun := range []uint64{0, lunAt(4), lunAt(MaxLUN), 0xc101 << 48, 1, 0x0103 << 48, 0x8003 << 48} {
		data := inquiry(b, lun, 0, 0).data
		require.Len(t, data, 96)
		assert.Equal(t, byte(0x7f), data[0])
		assert.Equal(t, []byte{0x7f, 0, 0, 1, 0}, inquiry(b, lun, 1, 0).data)
		assert.Equal(t, "5/24/00", inquiry(b, lun, 1, 0x83).sense())
		for _, cdb := range [][]byte{testReady, cdb10(0x28, 0, 0, 1), cdb10(0x25, 0, 0, 0), {0x1a, 0, 0x3f, 0, 255, 0}, {0xff}} {
			assert.Equal(t, "5/25/00", b.run(lun, cdb, 255, nil).sense(), "%x % x", lun, cdb)
		}
		if r := b.run(lun, reportLUNs, 4096, nil); lun == 0 {
			assert.Equal(t, golden(t, "00000008 00000000 0003000000000000"), r.data)
		} else {
			assert.Equal(t, "5/25/00", r.sense())
		}
	}
}

func TestReportLUNs(t *testing.T) {
	d := NewDevice(DeviceConfig{})
	b := &bench{t: t, d: d, nexus: d.Attach(NexusConfig{Initiator: "x", RelativePort: 1})}
	for _, n := range []int{0, 255, 256, MaxLUN, 7} {
		b.add(n, "x")
	}
	all := golden(t, `00000028 00000000  LUN LIST LENGTH
		0000000000000000  0
		0007000000000000  7
		00ff000000000000  255, peripheral
		4100000000000000  256, flat space
		7fff000000000000  16383`)
	selectReport := func(how byte) *result {
		return b.run(0, append([]byte{0xa0, 0, how}, reportLUNs[3:]...), 4096, nil)
	}
	assert.Equal(t, all, selectReport(0).data)
	assert.Equal(t, all, selectReport(2).data)
	assert.Equal(t, make([]byte, 8), selectReport(1).data)
	assert.Equal(t, "5/24/00", selectReport(3).sense())
	assert.Equal(t, []int{0, 7, 255, 256, MaxLUN}, d.LUNs())
}

func TestNumber(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, MaxLUN} {
		got, ok := Number(Address(n))
		assert.True(t, ok)
		assert.Equal(t, n, got)
		got, ok = Number(uint64(0x4000|n) << 48) // flat form of every number
		assert.True(t, ok)
		assert.Equal(t, n, got)
	}
	for _, lun := range []uint64{0x0100 << 48, 0x3fff << 48, 0x8000 << 48, 0xc101 << 48, 0xd2 << 56, 1, 1 << 47} {
		_, ok := Number(lun)
		assert.False(t, ok, "%016x", lun)
	}
}

func TestBothFormsOfANumberReachTheUnit(t *testing.T) {
	b := newBench(t, newMemory(4096))
	b.add(9, "nine")
	b.ready(0)
	require.Equal(t, "6/29/00", b.ready(9))
	data := bytes.Repeat([]byte{9}, 512)
	require.Equal(t, Good, b.run(0x0009<<48, cdb10(0x2a, 0, 1, 1), 0, data).Status)
	assert.Equal(t, data, b.run(0x4009<<48, cdb10(0x28, 0, 1, 1), 512, nil).data)
}

func TestDeviceRefusesBadUnits(t *testing.T) {
	d := NewDevice(DeviceConfig{MaxTransfer: 1024})
	good := LUConfig{ID: "x"}
	for _, c := range []struct {
		lun  int
		size int
		conf LUConfig
	}{
		{-1, 512, good},
		{MaxLUN + 1, 512, good},
		{0, 511, good},
		{0, 512, LUConfig{}},
		{0, 8192, LUConfig{ID: "x", BlockSize: 1024}},
		{0, 8192, LUConfig{ID: "x", BlockSize: 4096}},
	} {
		_, err := d.Add(c.lun, newMemory(c.size), c.conf)
		assert.Error(t, err, "%+v", c)
	}
	_, err := d.Add(0, newMemory(512), good)
	require.NoError(t, err)
	_, err = d.Add(0, newMemory(512), good)
	assert.ErrorContains(t, err, "lun 0: already in use")
	assert.ErrorIs(t, d.Remove(1), ErrNoLUN)
	assert.ErrorIs(t, d.Remove(-1), ErrNoLUN)
}

func TestRemovedUnitIsForgotten(t *testing.T) {
	b := newBench(t, newMemory(4096))
	require.Empty(t, b.ready(0))
	require.Empty(t, b.ready(0))
	require.True(t, b.nexus.isClean(b.lu))
	require.NoError(t, b.d.Remove(0))
	assert.Empty(t, b.nexus.pending)
	assert.False(t, b.nexus.isClean(b.lu))
	assert.Equal(t, "5/25/00", b.ready(0))
	// A command that was on its way when the unit went leaves nothing behind either.
	assert.NotNil(t, b.d.attend(b.nexus, b.lu, allAttentions))
	assert.Empty(t, b.nexus.pending)
	b.d.Detach(b.nexus)
	assert.Empty(t, b.d.nexuses)
}
