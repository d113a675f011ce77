package scsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzCDB sends any CDB with any EDTL and direction. Nothing panics, what is said of the data adds up,
// and only the blocks that a valid write names have changed.
func FuzzCDB(f *testing.F) {
	for i := range operations {
		op := &operations[i]
		f.Add([]byte(op.usage), uint32(512), uint8(1), uint64(0))
		cdb := make([]byte, len(op.usage))
		cdb[0], cdb[1] = op.opcode, byte(max(op.action, 0))
		f.Add(cdb, uint32(4096), uint8(2), uint64(0))
		cdb = append([]byte(nil), cdb...)
		cdb[len(cdb)-2] = 255
		f.Add(cdb, uint32(255), uint8(1), lunAt(0))
	}
	f.Add(cdb10(0x2a, 0, 3, 2), uint32(1024), uint8(2), uint64(0))
	f.Add(cdb16(0x8a, 0, 1<<55, 1), uint32(512), uint8(2), uint64(0))
	f.Add(cdb10(0x28, 0, 3, 2), uint32(0xffffffff), uint8(3), uint64(0x4000)<<48)
	f.Add([]byte{}, uint32(0), uint8(0), uint64(1))
	m := newMemory(16 * 512)
	b := newBench(f, m)
	data := make([]byte, 64<<10)
	for i := range data {
		data[i] = 0xff
	}
	f.Fuzz(func(t *testing.T, cdb []byte, edtl uint32, direction uint8, lun uint64) {
		if len(cdb) > MaxCDB {
			return
		}
		clear(m.b)
		r := &result{Task: Task{Nexus: b.nexus, LUN: lun, CDB: cdb, EDTL: edtl, Read: direction&1 != 0, Write: direction&2 != 0}}
		b.do(r, data)
		checkConsistent(t, r)
		from, to := written(r)
		want := make([]byte, len(m.b))
		copy(want[from:to], data)
		if !bytes.Equal(want, m.b) {
			require.Equal(t, want, m.b)
		}
		b.d.ResetLU(0, b.nexus) // starts it again
		require.Zero(t, b.lu.held())
	})
}

func checkConsistent(t *testing.T, r *result) {
	require.LessOrEqual(t, r.InLen, r.EDTL)
	require.LessOrEqual(t, r.OutLen, r.EDTL)
	require.LessOrEqual(t, r.InData, r.InLen)
	require.False(t, r.InLen > 0 && !r.Read)
	require.False(t, r.OutLen > 0 && !r.Write)
	require.False(t, r.Underflow && r.Overflow)
	require.Equal(t, r.Residual > 0, r.Underflow || r.Overflow)
	if r.Underflow {
		require.LessOrEqual(t, r.Residual, r.EDTL)
		require.Equal(t, r.EDTL, r.Residual+r.InData+r.OutLen)
	}
	require.Equal(t, r.Status == CheckCondition, len(r.Sense()) > 0)
	if r.Status == ReservationConflict {
		return
	}
	if r.Status != CheckCondition {
		require.Equal(t, Good, r.Status)
		require.Equal(t, r.InLen, r.InData)
	}
	require.Nil(t, r.lu)
}

// written is the range of bytes of the store that a command that ended well has written.
func written(r *result) (from, to uint64) {
	switch op, _ := lookup(r.CDB); {
	case r.Status != Good || op == nil || r.OutLen == 0:
	case op.access == accessWrite:
		e := parseExtent(r.CDB)
		return e.lba * 512, e.lba*512 + uint64(r.OutLen)
	}
	return 0, 0
}
