package scsi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// masked is a second initiator of b's device that sees only some units.
func (b *bench) masked(luns ...int) *bench {
	return &bench{t: b.t, d: b.d, nexus: b.d.Attach(NexusConfig{Initiator: "masked", RelativePort: 1, LUNs: append([]int{}, luns...)})}
}

func TestMaskedUnitsAreNotThere(t *testing.T) {
	b := newBench(t, newMemory(4096))
	b.add(1, "one")
	b.add(300, "three hundred")
	for _, r := range []struct {
		luns, hidden []int
		list         []byte
	}{
		{[]int{1}, []int{0, 300}, []byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}},
		{[]int{300, 7, -1, MaxLUN + 1}, []int{0, 1, 7}, []byte{0, 0, 0, 8, 0, 0, 0, 0, 0x41, 0x2c, 0, 0, 0, 0, 0, 0}},
		{nil, []int{0, 1, 300}, make([]byte, 8)},
	} {
		m := b.masked(r.luns...)
		for _, lun := range r.hidden {
			assert.Equal(t, "5/25/00", m.ready(lun), "LUN %d", lun)
			assert.Equal(t, "5/25/00", m.run(lunAt(lun), []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, 512, nil).sense())
			assert.Equal(t, "5/25/00", m.run(lunAt(lun), []byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0}, 0, make([]byte, 512)).sense())
			inquiry := m.run(lunAt(lun), []byte{0x12, 0, 0, 0, 96, 0}, 96, nil)
			require.Empty(t, inquiry.sense())
			assert.Equal(t, byte(0x7f), inquiry.data[0], "no unit can be there")
			assert.Equal(t, "5/25/00", senseOf(m.run(lunAt(lun), []byte{0x03, 0, 0, 0, 96, 0}, 96, nil).data))
			assert.False(t, b.d.Sees(m.nexus, lunAt(lun)))
			assert.False(t, b.d.ResetLU(lunAt(lun), m.nexus), "nor can it be reset")
		}
		// The list is told at LUN 0 even if that is masked (SPC-4, 6.33.1).
		assert.Equal(t, r.list, m.run(0, []byte{0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, 256, nil).data)
	}
	assert.Equal(t, byte(0), b.run(0, []byte{0x12, 0, 0, 0, 96, 0}, 96, nil).data[0], "for others it is")
	assert.True(t, b.d.Sees(b.nexus, lunAt(300)))
	assert.False(t, b.d.Sees(b.nexus, lunAt(2)))
	assert.False(t, b.d.Sees(b.nexus, 1<<63), "no unit's LUN")
}

// senseOf is fixed sense data in short.
func senseOf(data []byte) string {
	r := &result{}
	r.senseLen = copy(r.Task.sense[:], data)
	return r.sense()
}

func TestNothingIsToldOfMaskedUnits(t *testing.T) {
	b := newBench(t, newMemory(4096))
	b.add(1, "one")
	m := b.masked(1, 3)
	assert.Equal(t, "6/29/00", m.ready(1))
	for range 2 { // what comes of the list and of unit 1 for the other
		b.ready(0)
		b.ready(1)
	}

	b.add(2, "two")
	assert.Empty(t, m.ready(1), "a masked unit has come")
	assert.Equal(t, "6/3f/0e", b.ready(0))
	require.NoError(t, b.d.Remove(2))
	assert.Empty(t, m.ready(1), "and gone")
	b.add(3, "three")
	assert.Equal(t, "6/3f/0e", m.ready(1), "one of its own has come")

	b.d.Reset(m.nexus)
	assert.Equal(t, "6/3f/0e", b.ready(0), "a masked unit is not reset: nothing but the list has changed")
	assert.Equal(t, "6/29/03", b.ready(1), "one of its own is")
}

func TestReadOnlyNexus(t *testing.T) {
	store := newMemory(64 << 10)
	b := newBench(t, store)
	r := &bench{t: t, d: b.d, nexus: b.d.Attach(NexusConfig{Initiator: "reader", RelativePort: 1, ReadOnly: true})}
	assert.Equal(t, "6/29/00", r.ready(0))
	for i := range operations {
		op := &operations[i]
		if op.offered != nil && !op.offered(b.d.LU(0)) {
			continue
		}
		cdb := make([]byte, max(len(op.usage), 10))
		cdb[0] = op.opcode
		if op.action != noAction {
			cdb[1] = byte(op.action)
		}
		cdb = cdb[:len(op.usage)]
		if op.access.of(cdb) != accessWrite || strings.HasPrefix(op.name, "SYNCHRONIZE CACHE") {
			continue
		}
		res := r.run(0, cdb, 0, make([]byte, 512))
		assert.Equal(t, "7/27/00", res.sense(), op.name)
	}
	assert.Empty(t, r.run(0, []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, 512, nil).sense(), "reads")
	assert.Empty(t, r.run(0, []byte{0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0, nil).sense(), "flushes")
	mode := []byte{0x1a, 0, 0x3f, 0, 255, 0}
	assert.Equal(t, byte(0x80), r.run(0, mode, 255, nil).data[2]&0x80, "WP")
	assert.Equal(t, byte(0), b.run(0, mode, 255, nil).data[2]&0x80, "for others it is writable")
	assert.Empty(t, b.run(0, []byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0}, 0, make([]byte, 512)).sense())
}
