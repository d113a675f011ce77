package iscsi

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTextRoundTrip(t *testing.T) {
	kvs := []KeyValue{{"InitiatorName", "iqn.2001-04.com.example"}, {"X-empty", ""}, {"A", "b=c,d"}}
	wire := []byte("InitiatorName=iqn.2001-04.com.example\x00X-empty=\x00A=b=c,d\x00")
	assert.Equal(t, wire, AppendText(nil, kvs...))
	got, err := ParseText(wire)
	require.NoError(t, err)
	assert.Equal(t, kvs, got)
	for n := range wire {
		got, err := ParseText(wire[:n])
		if err == nil {
			assert.True(t, bytes.HasPrefix(wire, bytes.TrimSuffix(AppendText(nil, got...), []byte{0})), "first %d bytes", n)
		}
	}
}

func TestTextSeparators(t *testing.T) {
	for _, s := range []string{"A=1\x00B=2\x00", "A=1\x00B=2", "\x00\x00A=1\x00\x00\x00B=2\x00\x00\x00"} {
		got, err := ParseText([]byte(s))
		require.NoError(t, err)
		assert.Equal(t, []KeyValue{{"A", "1"}, {"B", "2"}}, got, "%q", s)
	}
	for _, s := range []string{"", "\x00", strings.Repeat("\x00", 8192)} {
		got, err := ParseText([]byte(s))
		assert.NoError(t, err)
		assert.Empty(t, got)
	}
}

func TestTextBounds(t *testing.T) {
	key63, key64 := strings.Repeat("k", 63), strings.Repeat("k", 64)
	for _, c := range []struct {
		name, text string
		cause      error
	}{
		{"key of 63", key63 + "=v", nil},
		{"key of 64", key64 + "=v", ErrLength},
		{"key of 1000", strings.Repeat("k", 1000) + "=v", ErrLength},
		{"key of 8000", strings.Repeat("k", 8000) + "=v", ErrLength},
		{"value of 255", "X-v=" + strings.Repeat("v", 255), nil},
		{"value of 8000", "X-v=" + strings.Repeat("v", 8000), nil},
		{"value of 8192", "X-v=" + strings.Repeat("v", 8192), nil},
		{"value of 8193", "X-v=" + strings.Repeat("v", 8193), ErrLength},
		{"no =", "InitialR2T\x00", ErrReserved},
		{"= first", "=Yes\x00", ErrLength},
		{"no = in the second pair", "A=1\x00Yes\x00", ErrReserved},
		{"control character in a key", "A\nB=1\x00", ErrReserved},
		{"blank in a key", "A B=1\x00", ErrReserved},
		{"key outside ASCII", "\xc3\xa4=1\x00", ErrReserved},
		{"MaxTextPairs", strings.Repeat("a=b\x00", MaxTextPairs), nil},
		{"one more", strings.Repeat("a=b\x00", MaxTextPairs+1), ErrLength},
		{"8192 bytes of tiny keys", strings.Repeat("a=b\x00", 2048), ErrLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			kvs, err := ParseText([]byte(c.text))
			if c.cause == nil {
				assert.NoError(t, err)
				return
			}
			var wire *WireError
			require.ErrorAs(t, err, &wire)
			assert.ErrorIs(t, err, c.cause)
			assert.Nil(t, kvs)
		})
	}
	kvs, err := ParseTextLimit(bytes.Repeat([]byte("a=b\x00"), 2048), 2048)
	assert.NoError(t, err)
	assert.Len(t, kvs, 2048)
}

func TestAnswersToUnknownKeysFitALoginPDU(t *testing.T) {
	kvs := make([]KeyValue, MaxTextPairs)
	for i := range kvs {
		kvs[i] = KeyValue{strings.Repeat("k", MaxKeyLength-2) + string(rune('a'+i%26)) + string(rune('a'+i/26)), "1"}
	}
	answers, err := NewNegotiation(Target, tcpTraits, DefaultConfig(), false).Receive(kvs)
	require.NoError(t, err)
	assert.Less(t, len(AppendText(nil, answers...)), 8192-512, "room for TargetPortalGroupTag and TargetAlias")
}

func TestNumbersAndBooleans(t *testing.T) {
	for s, want := range map[string]uint32{"0": 0, "8192": 8192, "0x2000": 8192, "0X2000": 8192, "0xFFffFFff": 1<<32 - 1, "4294967295": 1<<32 - 1, "007": 7, strings.Repeat("0", 8000) + "7": 7} {
		v, ok := parseNumber(s)
		assert.True(t, ok, "%.20q", s)
		assert.Equal(t, want, v)
	}
	for _, s := range []string{"", "-1", "+1", "1_0", "1.5", "8192 ", " 8192", "0x", "0xg", "4294967296", "0x100000000", "1~2", "Yes", strings.Repeat("9", 8192)} {
		_, ok := parseNumber(s)
		assert.False(t, ok, "%.20q", s)
	}
	for _, s := range []string{"", "yes", "YES", "No ", "1"} {
		_, ok := parseBool(s)
		assert.False(t, ok, "%q", s)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("InitiatorName=iqn.2001-04.com.example\x00SessionType=Normal\x00"))
	f.Add([]byte("A=1\x00\x00B"))
	f.Add(bytes.Repeat([]byte("a=b\x00"), MaxTextPairs+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		kvs, err := ParseText(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(kvs), MaxTextPairs)
		again, err := ParseText(AppendText(nil, kvs...))
		require.NoError(t, err)
		require.Equal(t, kvs, again)
	})
}
