package iser

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
)

// unhex reads bytes as they are printed in a reference.
func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// The vectors that follow are messages of the Linux initiator and of a target.
const (
	read10 = `14 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 01 23 45 00 00 7f 12 34 56 00 00 01 c1 00 00
		00 00 00 00 00 01 00 00 00 00 00 00 10 00 00 05
		00 00 10 00 00 00 00 07 00 00 00 09 28 00 00 00
		00 10 00 00 08 00 00 00 00 00 00 00`
	write10 = `18 00 00 00 00 02 22 01 00 00 7f 12 34 57 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 01 a1 00 00
		00 00 00 00 00 01 00 00 00 00 00 00 10 00 00 06
		00 01 00 00 00 00 00 08 00 00 00 09 2a 00 00 00
		00 20 00 00 80 00 00 00 00 00 00 00`
	write10Immediate = `18 00 00 00 00 02 22 02 00 00 7f 12 34 57 20 00
		00 00 00 00 00 00 00 00 00 00 00 00 01 a1 00 00
		00 00 20 00 00 01 00 00 00 00 00 00 10 00 00 07
		00 01 00 00 00 00 00 09 00 00 00 09 2a 00 00 00
		00 20 00 00 80 00 00 00 00 00 00 00`
	responseGood = `10 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 21 80 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 10 00 00 05
		00 00 00 00 00 00 00 09 00 00 00 08 00 00 00 87
		00 00 00 00 00 00 00 00 00 00 00 00`
)

func TestHeaderVectors(t *testing.T) {
	for name, v := range map[string]struct {
		bytes string
		data  int
		want  Header
		op    iscsi.Opcode
	}{
		"READ(10)":            {read10, 0, Header{Flags: ReadValid, ReadSTag: 0x12345, ReadBase: 0x7f1234560000}, iscsi.OpSCSICommand},
		"WRITE(10)":           {write10, 0, Header{Flags: WriteValid, WriteSTag: 0x22201, WriteBase: 0x7f1234570000}, iscsi.OpSCSICommand},
		"WRITE(10) immediate": {write10Immediate, 8192, Header{Flags: WriteValid, WriteSTag: 0x22202, WriteBase: 0x7f1234572000}, iscsi.OpSCSICommand},
		"response":            {responseGood, 0, Header{}, iscsi.OpSCSIResponse},
	} {
		t.Run(name, func(t *testing.T) {
			b := append(unhex(t, v.bytes), make([]byte, v.data)...)
			var m message
			require.NoError(t, m.parse(b))
			assert.Equal(t, v.want, m.Header)
			assert.Equal(t, v.op, iscsi.OpcodeOf(m.BHS))
			assert.Len(t, m.Data, v.data)
			assert.Empty(t, m.AHS)
			assert.Equal(t, b[:HeaderSize], v.want.Append(nil))
		})
	}
}

func TestHeaderWithBothSTags(t *testing.T) {
	h := Header{
		Flags: ReadValid | WriteValid, WriteSTag: 0x01020304, WriteBase: 0x1112131415161718,
		ReadSTag: 0x21222324, ReadBase: 0x3132333435363738,
	}
	b := h.Append([]byte{0xff})
	require.Equal(t, unhex(t, "ff 1c000000 01020304 1112131415161718 21222324 3132333435363738"), b)
	var got Header
	rest, err := got.Parse(append(b[1:], 9, 8))
	require.NoError(t, err)
	require.Equal(t, []byte{9, 8}, rest)
	require.Equal(t, h, got)
}

func TestHeaderIgnoresReservedBitsAndWhatIsNotValid(t *testing.T) {
	b := unhex(t, "13 ff ff ff 01020304 1112131415161718 21222324 3132333435363738")
	h := Header{Flags: ReadValid, ReadSTag: 99, WriteSTag: 98} // of an earlier message
	_, err := h.Parse(b)
	require.NoError(t, err)
	require.Zero(t, h)
}

func TestHeaderRejectsEveryTruncation(t *testing.T) {
	full := (&Header{WriteSTag: 7, ReadSTag: 9}).Append(nil)
	for n := range full {
		var h Header
		_, err := h.Parse(full[:n])
		require.ErrorIs(t, err, ErrShort, "first %d bytes", n)
	}
}

func TestHeaderRejectsOtherTypes(t *testing.T) {
	for op := range 16 {
		b := (&Header{}).Append(nil)
		b[0] = byte(op<<4) | b[0]&0xf
		var h Header
		_, err := h.Parse(b)
		if op == opControl {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrReserved, "type %d", op)
	}
}

// message is a PDU with AHS and data, of any opcode.
func testMessage(ahs, data int) []byte {
	b := make([]byte, fixedSize+ahs+data)
	(&Header{}).Append(b[:0])
	b[HeaderSize] = byte(iscsi.OpNOPOut)
	b[HeaderSize+4] = byte(ahs / 4)
	iscsi.SetDataLength((*[iscsi.BHSSize]byte)(b[HeaderSize:]), uint32(data))
	for i := range ahs {
		b[fixedSize+i] = 0xaa
	}
	for i := range data {
		b[fixedSize+ahs+i] = 0xdd
	}
	return b
}

func TestMessageLength(t *testing.T) {
	full := testMessage(16, 21)
	for n := range full {
		var m message
		require.Error(t, m.parse(full[:n]), "first %d bytes", n)
	}
	for pad := range 8 {
		var m message
		err := m.parse(append(full[:len(full):len(full)], make([]byte, pad)...))
		if pad > maxPad {
			require.ErrorIs(t, err, ErrLength, "%d more", pad)
			continue
		}
		require.NoError(t, err, "%d more", pad)
		require.Len(t, m.AHS, 16)
		require.Len(t, m.Data, 21)
		require.Equal(t, byte(0xaa), m.AHS[0])
		require.Equal(t, byte(0xdd), m.Data[20])
		require.Equal(t, 16, cap(m.AHS), "an append must not reach the data")
	}
}

func TestMessageBoundsAHS(t *testing.T) {
	var m message
	require.NoError(t, m.parse(testMessage(256, 0)))
	require.ErrorIs(t, m.parse(testMessage(260, 0)), ErrLength)
	require.ErrorIs(t, m.parse(testMessage(1020, 8)), ErrLength)
}

func TestOldFormatIsRecognised(t *testing.T) {
	b := make([]byte, 12+iscsi.BHSSize+40)
	b[0], b[12] = 0x10, 0x43
	assert.True(t, isOldFormat(b))
	assert.False(t, isOldFormat(b[:59]))
	login := make([]byte, fixedSize)
	login[12], login[HeaderSize] = 0x43, 0x43
	assert.False(t, isOldFormat(login))
}

func FuzzHeader(f *testing.F) {
	for _, s := range []string{read10, write10, write10Immediate, responseGood} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		rest, err := h.Parse(b)
		if err != nil {
			return
		}
		require.Len(t, rest, len(b)-HeaderSize)
		_, err = again.Parse(h.Append(nil))
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

func FuzzMessage(f *testing.F) {
	for _, s := range []string{read10, write10, responseGood} {
		f.Add(unhex(f, s))
	}
	f.Add(append(unhex(f, write10Immediate), make([]byte, 8192)...))
	f.Add(testMessage(16, 21))
	f.Add(testMessage(260, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		isOldFormat(b)
		var m message
		if m.parse(b) != nil {
			return
		}
		n := fixedSize + len(m.AHS) + len(m.Data)
		require.LessOrEqual(t, n, len(b))
		require.LessOrEqual(t, len(b), n+maxPad)
		r := makeRemote(&m)
		require.True(t, m.Flags&ReadValid != 0 || readSTag(&r) == 0)
		require.True(t, m.Flags&WriteValid != 0 || writeSTag(&r) == 0)
	})
}
