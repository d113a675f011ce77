package initiator

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An ordered is a command as the unit has got it.
type ordered struct{ cdb, out []byte }

// openOrders opens a disk of 4096 blocks of 512 whose Block Limits page is given from byte 4 on, and then notes what
// it is sent. An unknown command is refused, with an additional sense code.
func openOrders(t *testing.T, limits map[int]uint32, unknown, asc byte) (*Disk, *[]ordered) {
	u := &fakeUnit{blocks: 4096, blockSize: 512}
	var got []ordered
	opened := false
	execute := func(cdb, in, out []byte) (uint8, []byte, int) {
		if cdb[0] == opInquiry {
			page := make([]byte, 64)
			page[1], page[3] = pageBlockLimit, 60
			for at, v := range limits {
				binary.BigEndian.PutUint32(page[at:], v)
			}
			return statusGood, nil, copy(in, page)
		}
		if opened {
			got = append(got, ordered{append([]byte(nil), cdb...), append([]byte(nil), out...)})
		}
		if opened && cdb[0] == unknown {
			return statusCheckCondition, fixedSense(keyIllegalRequest, asc, 0), 0
		}
		return u.execute(cdb, in, out)
	}
	s := openFake(t, newFakeTarget(execute), Options{PingInterval: -1})
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	d, err := s.Disk(t.Context(), 0)
	require.NoError(t, err)
	opened = true
	return d, &got
}

func TestUnmapBytes(t *testing.T) {
	d, got := openOrders(t, map[int]uint32{20: 1000, 24: 1}, 0xff, 0)
	assert.True(t, d.CanUnmap())
	require.NoError(t, d.Unmap(t.Context(), 512*5, 512*1100))
	cdb := []byte{0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0}
	assert.Equal(t, []ordered{
		{cdb, []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x03, 0xe8, 0, 0, 0, 0}},
		{cdb, []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x03, 0xed, 0, 0, 0, 100, 0, 0, 0, 0}},
	}, *got)
	for name, limits := range map[string]map[int]uint32{"no page": nil, "no blocks": {24: 1}, "no descriptors": {20: 1}} {
		d, got := openOrders(t, limits, 0xff, 0)
		assert.ErrorIs(t, d.Unmap(t.Context(), 0, 512), errors.ErrUnsupported, name)
		assert.False(t, d.CanUnmap(), name)
		assert.Empty(t, *got)
	}
}

func TestWhatUnmappedBlocksReadAsIsAsked(t *testing.T) {
	for bits, want := range map[byte]bool{0: false, 0x80: false, 0x40: false, 0xc0: true, 0xff: true} {
		u := &fakeUnit{blocks: 4096, blockSize: 512}
		execute := func(cdb, in, out []byte) (uint8, []byte, int) {
			status, sense, n := u.execute(cdb, in, out)
			if cdb[0] == opServiceActionIn16 {
				require.Equal(t, 32, n)
				in[14] = bits // LBPME, LBPRZ, and the lowest aligned address (SBC-3, 5.16.2)
			}
			return status, sense, n
		}
		s := openFake(t, newFakeTarget(execute), Options{PingInterval: -1})
		d, err := s.Disk(t.Context(), 0)
		require.NoError(t, err)
		got, err := d.UnmapZeroes(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, got, "%#x", bits)
		require.NoError(t, s.Close())
	}
}

func TestWriteSameBytes(t *testing.T) {
	d, got := openOrders(t, map[int]uint32{40: 3000}, 0xff, 0)
	require.NoError(t, d.WriteZeroesStable(t.Context(), 512*6, 512*3001))
	assert.Equal(t, []ordered{
		{[]byte{0x93, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0x0b, 0xb8, 0, 0}, make([]byte, 512)},
		{[]byte{0x93, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0xbe, 0, 0, 0, 1, 0, 0}, make([]byte, 512)},
		{append([]byte{0x35}, make([]byte, 15)...), nil},
	}, *got, "WRITE SAME has no FUA: a flush follows (DC-15)")
}

func TestZeroesAreSentWhereWriteSameIsNotKnown(t *testing.T) {
	for _, asc := range []byte{ascInvalidOpcode, ascInvalidField} { // the second is LIO's word for it
		d, got := openOrders(t, nil, opWriteSame16, asc)
		require.NoError(t, d.WriteZeroes(t.Context(), 0, 512*1025))
		require.Len(t, *got, 3)
		assert.Equal(t, byte(opWriteSame16), (*got)[0].cdb[0])
		assert.Equal(t, []byte{0x2a, 0, 0, 0, 0, 0, 0, 4, 0, 0}, (*got)[1].cdb[:10])
		assert.Equal(t, []byte{0x2a, 0, 0, 0, 4, 0, 0, 0, 1, 0}, (*got)[2].cdb[:10])
		assert.Equal(t, make([]byte, maxPiece), (*got)[1].out)
	}
}

func TestCompareAndWriteBytes(t *testing.T) {
	d, got := openOrders(t, map[int]uint32{4: 2 << 16}, 0xff, 0)
	old, now := make([]byte, 1024), make([]byte, 1024)
	old[0], now[0] = 1, 2
	require.NoError(t, d.CompareAndWrite(t.Context(), old, now, 512*9))
	assert.Equal(t, []ordered{
		{[]byte{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0}, append(append([]byte(nil), old...), now...)},
	}, *got)
	assert.ErrorIs(t, d.CompareAndWrite(t.Context(), make([]byte, 1536), make([]byte, 1536), 0), errors.ErrUnsupported)
}

func TestPersistentReserveBytes(t *testing.T) {
	d, got := openOrders(t, nil, 0xff, 0)
	ctx := t.Context()
	out := func(action, kind byte) []byte {
		return []byte{0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0}
	}
	list := func(key, service, flags byte) []byte {
		b := make([]byte, 24)
		b[7], b[15], b[20] = key, service, flags
		return b
	}
	rows := []struct {
		run  error
		want ordered
	}{
		{d.Register(ctx, 1, 2, true), ordered{out(0, 0), list(1, 2, 1)}},
		{d.Reserve(ctx, 2, WriteExclusive), ordered{out(1, 1), list(2, 0, 0)}},
		{d.Release(ctx, 2, ExclusiveAccessAllRegistrants), ordered{out(2, 8), list(2, 0, 0)}},
		{d.ClearReservations(ctx, 2), ordered{out(3, 0), list(2, 0, 0)}},
		{d.Preempt(ctx, 2, 3, ExclusiveAccess, false), ordered{out(4, 3), list(2, 3, 0)}},
		{d.Preempt(ctx, 2, 3, ExclusiveAccess, true), ordered{out(5, 3), list(2, 3, 0)}},
		{d.RegisterAndIgnore(ctx, 4, false), ordered{out(6, 0), list(0, 4, 0)}},
	}
	require.Len(t, *got, len(rows))
	for i, r := range rows {
		require.NoError(t, r.run)
		assert.Equal(t, r.want, (*got)[i])
	}
}

func TestReadKeysThatLie(t *testing.T) {
	answer := []byte(nil)
	s := openFake(t, newFakeTarget(func(cdb, in, _ []byte) (uint8, []byte, int) {
		if cdb[0] == opPersistentIn {
			return statusGood, nil, copy(in, answer)
		}
		u := fakeUnit{blocks: 8, blockSize: 512}
		return u.execute(cdb, in, nil)
	}), Options{PingInterval: -1})
	defer s.Close()
	d, err := s.Disk(t.Context(), 0)
	require.NoError(t, err)
	for _, a := range [][]byte{nil, {0, 0, 0, 1, 0, 0, 0}, {0, 0, 0, 1, 0, 0, 0, 8}, {0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 1}} {
		answer = a
		_, _, err := d.ReadKeys(t.Context())
		var wrong *ProtocolError
		assert.ErrorAs(t, err, &wrong, "%x", a)
	}
	answer = []byte{0, 0, 0, 1, 0, 0, 0, 16}
	_, err = d.ReadReservation(t.Context())
	assert.Error(t, err)
}

func TestInformation(t *testing.T) {
	fixed := fixedSense(keyMiscompare, 0x1d, 0)
	fixed[6] = 9
	_, ok := information(fixed)
	assert.False(t, ok, "VALID is clear")
	fixed[0] |= 0x80
	v, ok := information(fixed)
	assert.True(t, ok)
	assert.Equal(t, uint64(9), v)
	described := []byte{0x72, 0xe, 0x1d, 0, 0, 0, 0, 16, 2, 2, 0, 0, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2}
	v, ok = information(described)
	assert.True(t, ok)
	assert.Equal(t, uint64(0x102), v)
	for n := range described {
		_, ok := information(described[:n])
		assert.False(t, ok, "first %d bytes", n)
	}
}
