package iscsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAHSStandsAsInTheRFC(t *testing.T) {
	for _, c := range []struct {
		name string
		ahs  AHS
		wire string
	}{
		{"none", AHS{}, ""},
		{"CDB of 32 bytes", AHS{ExtendedCDB: unhex(t, "a1a2a3a4a5a6a7a8a9aaabacadaeafb0")}, "00110100 a1a2a3a4 a5a6a7a8 a9aaabac adaeafb0"},
		{"CDB of 17 bytes, padded", AHS{ExtendedCDB: []byte{0xa1}}, "00020100 a1000000"},
		{"bidirectional", AHS{HasBidi: true, BidiEDTL: 0x01020304}, "00050200 01020304"},
		{"both", AHS{ExtendedCDB: []byte{0xa1, 0xa2}, HasBidi: true, BidiEDTL: 9}, "00030100 a1a20000 00050200 00000009"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire := unhex(t, c.wire)
			assert.Equal(t, wire, append([]byte{}, c.ahs.Append(nil)...))
			got, err := ParseAHS(wire)
			require.NoError(t, err)
			assert.Equal(t, c.ahs, got)
			for n := range wire {
				if got, err := ParseAHS(wire[:n]); err == nil {
					assert.Contains(t, []int{0, 8}, n, "cut after a whole segment only: %v", got)
				}
			}
		})
	}
}

func TestAHSRefusesMalformedChains(t *testing.T) {
	long := append([]byte{0, 0xf6, 1, 0}, make([]byte, 248)...)
	for _, c := range []struct {
		name  string
		wire  []byte
		cause error
	}{
		{"three bytes", unhex(t, "000101"), ErrShort},
		{"length beyond the chain", unhex(t, "00060100 a1a2a3a4"), ErrLength},
		{"length 65535", unhex(t, "ffff0100 a1a2a3a4"), ErrLength},
		{"length 0", unhex(t, "00000100"), ErrLength},
		{"extended CDB without bytes", unhex(t, "00010100"), ErrLength},
		{"CDB of 261 bytes", long, ErrLength},
		{"bidirectional of 3 bytes", unhex(t, "00040200 01020300"), ErrLength},
		{"type 0", unhex(t, "00050000 01020304"), ErrReserved},
		{"type 3", unhex(t, "00050300 01020304"), ErrReserved},
		{"two CDBs", unhex(t, "00020100 a1000000 00020100 a1000000"), ErrReserved},
		{"two lengths", unhex(t, "00050200 01020304 00050200 01020304"), ErrReserved},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseAHS(c.wire)
			var wire *WireError
			require.ErrorAs(t, err, &wire)
			assert.ErrorIs(t, err, c.cause)
		})
	}
	_, err := ParseAHS(append([]byte{0, 0xf5, 1, 0}, make([]byte, 244)...))
	assert.NoError(t, err, "260 bytes is the longest CDB")
	assert.Panics(t, func() { (&AHS{ExtendedCDB: make([]byte, MaxCDB-15)}).Append(nil) })
}

func TestFullCDBJoinsHeaderAndAHS(t *testing.T) {
	cmd := SCSICommand{CDB: [16]byte{0x7f}}
	dst := make([]byte, 0, MaxCDB)
	assert.Equal(t, cmd.CDB[:], FullCDB(dst, &cmd, &AHS{}))
	assert.Equal(t, append(cmd.CDB[:], 1, 2), FullCDB(dst, &cmd, &AHS{ExtendedCDB: []byte{1, 2}}))
	wire := []byte{0, 3, 1, 0, 1, 2, 0, 0}
	var ahs AHS
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		ahs, _ = ParseAHS(wire)
		FullCDB(dst, &cmd, &ahs)
	}))
}

func FuzzAHS(f *testing.F) {
	f.Add((&AHS{ExtendedCDB: bytes.Repeat([]byte{7}, 16), HasBidi: true, BidiEDTL: 5}).Append(nil))
	f.Add([]byte{0, 5, 2, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := ParseAHS(b)
		if err != nil {
			return
		}
		second, err := ParseAHS(first.Append(nil))
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.LessOrEqual(t, len(FullCDB(nil, &SCSICommand{}, &first)), MaxCDB)
	})
}
