package scsi

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func reportOpcodes(b *bench, options, opcode byte, action uint16) *result {
	cdb := []byte{0xa3, 0x0c, options, opcode, byte(action >> 8), byte(action), 0, 0, 0x10, 0, 0, 0}
	return b.run(0, cdb, 4096, nil)
}

// Every row is well formed, is reported as it stands, and is the row that the dispatcher takes.
func TestEveryRowIsReportedAndDispatched(t *testing.T) {
	b := newBench(t, newThin(1<<20)) // it has every command
	all := reportOpcodes(b, 0, 0, 0).data
	require.EqualValues(t, len(all)-4, binary.BigEndian.Uint32(all))
	require.Len(t, all, 4+8*len(operations))
	withTimeouts := reportOpcodes(b, 0x80, 0, 0).data
	require.Len(t, withTimeouts, 4+20*len(operations))
	sizes := map[byte]int{0: 6, 1: 10, 2: 10, 4: 16, 5: 12}
	for i := range operations {
		op := &operations[i]
		assert.Equal(t, op.opcode, op.usage[0], op.name)
		assert.Len(t, op.usage, sizes[op.opcode>>5], op.name)
		assert.Less(t, len(op.ignored), len(op.usage), op.name)
		if i > 0 {
			assert.LessOrEqual(t, operations[i-1].opcode, op.opcode, "%s: order", op.name)
		}
		for j := range op.ignored {
			assert.Zero(t, op.ignored[j]&op.usage[j+1], "%s byte %d: used and ignored", op.name, j+1)
		}

		action, options := uint16(0), byte(1)
		want := []byte{op.opcode, 0, 0, 0, 0, 0, 0, byte(len(op.usage))}
		cdb := make([]byte, len(op.usage))
		cdb[0] = op.opcode
		if op.action != noAction {
			action, options = uint16(op.action), 2
			assert.EqualValues(t, op.action, op.usage[1]&serviceActionMask, op.name)
			want[3], want[5] = byte(op.action), 1
			cdb[1] = byte(op.action)
		}
		assert.Equal(t, want, all[4+8*i:12+8*i], op.name)
		want[5] |= 2
		want = append(want, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		assert.Equal(t, want, withTimeouts[4+20*i:24+20*i], op.name)

		one := append([]byte{0, 3, 0, byte(len(op.usage))}, op.usage...)
		assert.Equal(t, one, reportOpcodes(b, options, op.opcode, action).data, op.name)
		assert.Equal(t, one, reportOpcodes(b, 3, op.opcode, action).data, op.name)
		one[1] |= 0x80
		one = append(one, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		assert.Equal(t, one, reportOpcodes(b, options|0x80, op.opcode, action).data, op.name)
		assert.Equal(t, "5/24/00", reportOpcodes(b, 3-options, op.opcode, action).sense(), "%s, the other option", op.name)

		found, err := lookup(cdb)
		require.NoError(t, err, op.name)
		assert.Same(t, op, found)
		checkEveryBit(t, op, cdb)
		for n := range len(cdb) {
			r := b.run(0, cdb[:n], 0, nil)
			assert.Equal(t, CheckCondition, r.Status, "%s: %d bytes of CDB", op.name, n)
		}
	}
}

// checkEveryBit sets each bit of a CDB: it is refused, with a pointer to it, just if no map knows it.
func checkEveryBit(t *testing.T, op *operation, cdb []byte) {
	t.Helper()
	for i := 1; i < len(cdb); i++ {
		for bit := range 8 {
			if i == 1 && op.action != noAction && bit < 5 {
				continue // another service action
			}
			known := op.usage[i]&(1<<bit) != 0
			if i <= len(op.ignored) {
				known = known || op.ignored[i-1]&(1<<bit) != 0
			}
			known = known || i == len(cdb)-1 && bit >= 6
			changed := append([]byte(nil), cdb...)
			changed[i] ^= 1 << bit
			err := op.checkCDB(changed)
			if known {
				assert.NoError(t, err, "%s byte %d bit %d", op.name, i, bit)
			} else {
				assert.Equal(t, invalidField(i, bit), err, "%s byte %d bit %d", op.name, i, bit)
			}
		}
	}
}

func TestReportOfUnknownOpcodes(t *testing.T) {
	b := newBench(t, newMemory(4096))
	none := []byte{0, 1, 0, 0}
	for options := byte(1); options <= 3; options++ {
		assert.Equal(t, none, reportOpcodes(b, options, 0x42, 0).data)
	}
	assert.Equal(t, none, reportOpcodes(b, 2, 0x9e, 0x13).data)
	assert.Equal(t, none, reportOpcodes(b, 2, 0x9e, 0x110).data, "not cut to 8 bits")
	assert.Equal(t, none, reportOpcodes(b, 3, 0x28, 1).data)
	assert.Equal(t, "5/24/00", reportOpcodes(b, 4, 0x28, 0).sense())
}

func TestReportTaskManagementFunctions(t *testing.T) {
	b := newBench(t, newMemory(4096))
	assert.Equal(t, []byte{0xda, 0, 0, 0}, b.run(0, []byte{0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0}, 4, nil).data)
	long := append([]byte{0xda, 0, 0, 12}, make([]byte, 12)...)
	assert.Equal(t, long, b.run(0, []byte{0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 16, 0, 0}, 16, nil).data)
	b.nexus = b.d.Attach(NexusConfig{Initiator: "j", RelativePort: 1, QueryTasks: true})
	require.Equal(t, "6/29/00", b.ready(0))
	assert.Equal(t, []byte{0xde, 7, 0, 0}, b.run(0, []byte{0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0}, 4, nil).data)
}

// What initiators set without meaning to use it is not refused.
func TestToleratedBits(t *testing.T) {
	b := newBench(t, newMemory(4096))
	for _, cdb := range [][]byte{
		cdb10(0x28, 0x02, 0, 1), // FUA_NV
		cdb10(0x28, 0x04, 0, 1), // RARC
		{0x28, 0, 0, 0, 0, 0, 0x1f, 0, 1, 0},
		cdb10(0x35, 0x04, 0, 1), // SYNC_NV
		{0x1b, 0x01, 0, 0x05, 0x01, 0},
		{0x00, 0, 0, 0, 0, 0xc0},
		append(cdb10(0x28, 0, 0, 1), 1, 2, 3, 4, 5, 6), // iSCSI pads a CDB to 16 bytes
	} {
		assert.Equal(t, Good, b.run(0, cdb, 512, nil).Status, "% x", cdb)
	}
	assert.Equal(t, "5/24/00", b.run(0, []byte{0, 0, 0, 0, 0, 0x04}, 0, nil).sense(), "NACA")
	assert.Equal(t, "5/20/00", b.run(0, nil, 0, nil).sense(), "no CDB at all")
	assert.Equal(t, "5/24/00", b.run(0, []byte{0x1e, 0, 0, 0, 2, 0}, 0, nil).sense(), "PREVENT")
	assert.Equal(t, Good, b.run(0, []byte{0x1e, 0, 0, 0, 1, 0}, 0, nil).Status)
}

func TestStoppedUnit(t *testing.T) {
	m := newMemory(4096)
	b := newBench(t, m)
	other := &bench{t: t, d: b.d, nexus: b.d.Attach(NexusConfig{Initiator: "j", RelativePort: 1})}
	other.run(0, make([]byte, 6), 0, nil)
	stop, start := []byte{0x1b, 0, 0, 0, 0, 0}, []byte{0x1b, 0, 0, 0, 1, 0}
	require.Equal(t, Good, b.run(0, stop, 0, nil).Status)
	assert.Equal(t, 1, m.flushes)
	for _, cdb := range [][]byte{make([]byte, 6), cdb10(0x28, 0, 0, 1), cdb10(0x2a, 0, 0, 1), cdb10(0x2f, 0, 0, 1), cdb10(0x35, 0, 0, 0)} {
		assert.Equal(t, "2/04/02", b.run(0, cdb, 0, nil).sense())
		assert.Equal(t, "2/04/02", other.run(0, cdb, 0, nil).sense())
	}
	assert.Equal(t, Good, inquiry(b, 0, 0, 0).Status)
	sense := b.run(0, []byte{3, 0, 0, 0, 18, 0}, 18, nil).data
	assert.Equal(t, []byte{2, 4, 2}, []byte{sense[2], sense[12], sense[13]})
	require.Equal(t, Good, other.run(0, start, 0, nil).Status)
	assert.Equal(t, Good, b.run(0, make([]byte, 6), 0, nil).Status)

	require.Equal(t, Good, b.run(0, []byte{0x1b, 0, 0, 0, 4, 0}, 0, nil).Status)
	assert.Equal(t, 1, m.flushes, "NO_FLUSH")
	b.d.ResetLU(0, b.nexus)
	require.Equal(t, "6/29/03", b.ready(0))
	assert.Equal(t, Good, b.run(0, make([]byte, 6), 0, nil).Status, "a reset starts the unit")
	for _, bad := range []byte{0x10, 0x31, 0x02, 0x03} {
		assert.Equal(t, "5/24/00", b.run(0, []byte{0x1b, 0, 0, 0, bad, 0}, 0, nil).sense())
	}
}
