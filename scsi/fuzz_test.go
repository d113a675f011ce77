package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzBlocks is how many blocks the fuzzed unit has.
const fuzzBlocks = 32

// FuzzCDB sends any CDB with any EDTL, direction and data, which is repeated up to EDTL. Nothing panics,
// what is said of the data adds up, and the medium is what afterCommand says: unchanged after a refusal.
func FuzzCDB(f *testing.F) {
	for i := range operations {
		op := &operations[i]
		f.Add([]byte(op.usage), uint32(512), uint8(1), uint64(0), []byte{0xff})
		cdb := make([]byte, len(op.usage))
		cdb[0], cdb[1] = op.opcode, byte(max(op.action, 0))
		f.Add(cdb, uint32(4096), uint8(2), uint64(0), []byte("data"))
		cdb = append([]byte(nil), cdb...)
		cdb[len(cdb)-2] = 255
		f.Add(cdb, uint32(255), uint8(1), lunAt(0), []byte{})
		if op.usage[0] >= 0x80 {
			cdb = append([]byte(nil), cdb...)
			cdb[len(cdb)-2], cdb[13%len(cdb)], cdb[9] = 0, 2, 3
			f.Add(cdb, uint32(1024), uint8(2), lunAt(0), []byte{0, 1})
		}
	}
	f.Add(cdb10(0x2a, 0, 3, 2), uint32(1024), uint8(2), uint64(0), []byte{1})
	f.Add(cdb16(0x8a, 0, 1<<55, 1), uint32(512), uint8(2), uint64(0), []byte{1})
	f.Add(cdb10(0x28, 0, 3, 2), uint32(0xffffffff), uint8(3), uint64(0x4000)<<48, []byte{})
	f.Add(cdbUnmap(40), uint32(40), uint8(2), uint64(0), unmapList(3, 7, 8, 16))
	f.Add(cdbUnmap(40), uint32(40), uint8(2), uint64(0), unmapList(3, 7, 31, 2))
	f.Add(compareAndWrite(4, 1), uint32(1024), uint8(2), uint64(0), []byte{7})
	f.Add(cdb16(0x93, 9, 4, 0), uint32(0), uint8(0), uint64(0), []byte{})
	f.Add(cdb16(0x93, 8, 4, 9), uint32(512), uint8(2), uint64(0), []byte{0})
	f.Add(writeAtomic(4, 3), uint32(1536), uint8(2), uint64(0), []byte{1, 2, 3})
	f.Add(sanitize(1, 12), uint32(12), uint8(2), uint64(0), []byte{0x82, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(sanitize(0x82, 0), uint32(0), uint8(0), uint64(0), []byte{1})
	list := copyListOf(0, 3, nil, blocksSegment(0xffff, 0xffff, 3, 0, 1))
	f.Add(append(make16(0x83)[:13], byte(len(list)), 0, 0), uint32(len(list)), uint8(2), uint64(0), list)
	f.Add([]byte{}, uint32(0), uint8(0), uint64(1), []byte{})
	s := newThin(fuzzBlocks * 512)
	b := newBench(f, s)
	f.Fuzz(func(t *testing.T, cdb []byte, edtl uint32, direction uint8, lun uint64, repeat []byte) {
		if len(cdb) > MaxCDB {
			return
		}
		data := make([]byte, 64<<10)
		if len(repeat) > 0 {
			copy(data, bytes.Repeat(repeat, len(data)/len(repeat)+1))
		}
		copy(s.b, data) // so that comparing finds equal blocks now and then
		before := bytes.Clone(s.b)
		r := &result{Task: Task{Nexus: b.nexus, LUN: lun, CDB: cdb, EDTL: edtl, Read: direction&1 != 0, Write: direction&2 != 0}}
		b.do(r, data)
		waitSanitized(b.lu)
		checkConsistent(t, r)
		if want := afterCommand(r, before, data); !bytes.Equal(want, s.b) {
			require.Equal(t, want, s.b)
		}
		b.d.ResetLU(0, b.nexus) // starts it again
		b.lu.reservations.Store(nil)
		require.NoError(t, b.d.SetPortGroupState(1, Optimized))
		b.attentions() // or the next command would end here
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
		require.Contains(t, []Status{Good, ConditionMet}, r.Status)
		require.Equal(t, r.InLen, r.InData)
	}
	require.Nil(t, r.lu)
}

// afterCommand is what a command has made of the medium, told apart from the code that does it.
func afterCommand(r *result, before, data []byte) []byte {
	if r.Status != Good || r.LUN != 0 && r.LUN != lunAt(0) {
		return before
	}
	be, cdb, b := binary.BigEndian, r.CDB, bytes.Clone(before)
	switch cdb[0] {
	case 0x0a:
		copy(b[be.Uint32(cdb)&0x1fffff*512:], data[:r.OutLen])
	case 0x2a, 0x2e, 0xaa, 0xae:
		copy(b[be.Uint32(cdb[2:])*512:], data[:r.OutLen])
	case 0x8a, 0x8e, 0x9c:
		copy(b[be.Uint64(cdb[2:])*512:], data[:r.OutLen])
	case 0x8b:
		for i, c := range data[:r.OutLen] {
			b[be.Uint64(cdb[2:])*512+uint64(i)] |= c
		}
	case 0x89:
		copy(b[be.Uint64(cdb[2:])*512:], data[r.OutLen/2:r.OutLen])
	case 0x41:
		same(b, uint64(be.Uint32(cdb[2:])), uint64(be.Uint16(cdb[7:])), data[:512])
	case 0x93:
		block := data[:512]
		if cdb[1]&1 != 0 {
			block = make([]byte, 512)
		}
		same(b, be.Uint64(cdb[2:]), uint64(be.Uint32(cdb[10:])), block)
	case 0x48:
		switch cdb[1] & 0x1f {
		case 1:
			pattern := data[4 : 4+be.Uint16(data[2:])]
			same(b, 0, 0, bytes.Repeat(pattern, 512/len(pattern)+1)[:512])
		case 2:
			clear(b)
		}
	case 0x83:
		if r.OutLen > 0 {
			applyCopy(data, [][]byte{b})
		}
	case 0x42:
		if r.OutLen < 8 {
			break
		}
		for list := data[8:min(uint32(be.Uint16(data[2:]))+8, r.OutLen)]; len(list) >= 16; list = list[16:] {
			lba := be.Uint64(list) * 512
			clear(b[lba : lba+uint64(be.Uint32(list[8:]))*512])
		}
	}
	return b
}

// same fills blocks of b from lba on, 0 of them up to the end.
func same(b []byte, lba, blocks uint64, block []byte) {
	if blocks == 0 {
		blocks = fuzzBlocks - lba
	}
	copy(b[lba*512:], bytes.Repeat(block, int(blocks)))
}
