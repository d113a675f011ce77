package iscsi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSerialNumbersOrderAcrossTheWrap(t *testing.T) {
	for _, start := range []uint32{0, 1, 0x7ffffffa, 0x80000000, 0xfffffffa, 0xffffffff} {
		for step := uint32(1); step < 20; step++ {
			a, b := CmdSN(start), CmdSN(start).Add(step)
			assert.True(t, a.Before(b) && b.After(a), "%#x + %d", start, step)
			assert.False(t, b.Before(a) || a.After(b) || a.Before(a) || a.After(a))
			assert.Equal(t, int(step), b.Sub(a))
			assert.Equal(t, -int(step), a.Sub(b))
			s, u := StatSN(start), StatSN(start).Add(step)
			assert.True(t, s.Before(u) && u.After(s))
			assert.False(t, u.Before(s) || s.After(u) || s.Before(s) || s.After(s))
			assert.Equal(t, int(step), u.Sub(s))
		}
	}
}

func TestCommandWindow(t *testing.T) {
	for _, first := range []CmdSN{5, 0xfffffffd} {
		last := first.Add(9)
		assert.True(t, first.InWindow(first, last))
		assert.True(t, last.InWindow(first, last))
		assert.True(t, first.Add(4).InWindow(first, last))
		assert.False(t, (first-1).InWindow(first, last))
		assert.False(t, last.Add(1).InWindow(first, last))
		assert.False(t, first.InWindow(first, first-1), "a closed window holds nothing")
		assert.False(t, (first-1).InWindow(first, first-1))
	}
}

func TestLUNForms(t *testing.T) {
	for _, c := range []struct {
		number int
		wire   LUN
	}{
		{0, 0},
		{1, 0x0001_0000_0000_0000},
		{255, 0x00ff_0000_0000_0000},
		{256, 0x4100_0000_0000_0000},
		{16383, 0x7fff_0000_0000_0000},
	} {
		assert.Equal(t, c.wire, LUNFromNumber(c.number))
		n, ok := c.wire.Number()
		assert.True(t, ok)
		assert.Equal(t, c.number, n)
	}
	for text, l := range map[string]LUN{
		"7":                  0x4007_0000_0000_0000, // flat though small
		"70000":              0xd201_1170_0000_0000, // extended flat
		"0x0101000000000000": 0x0101_0000_0000_0000, // bus 1
		"0x0001000100000000": 0x0001_0001_0000_0000, // second level
		"0xc101000000000000": 0xc101_0000_0000_0000, // well known
		"0x8001000000000000": 0x8001_0000_0000_0000, // logical unit addressing
		"0xd200000100000001": 0xd200_0001_0000_0001,
	} {
		assert.Equal(t, text, l.String())
	}
	assert.Panics(t, func() { LUNFromNumber(-1) })
	assert.Panics(t, func() { LUNFromNumber(MaxLUNNumber + 1) })
}

func TestNamesThatAreGood(t *testing.T) {
	for _, s := range []string{
		"iqn.2001-04.com.example", "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
		"iqn.1994-05.com.redhat:a_b", "eui.02004567A425678D", "naa.52004567BA64678D",
		"naa.62004567BA64678D0123456789ABCDEF", "iqn.2003-01.org.x:" + strings.Repeat("a", 205),
		"iqn.2003-01.org.x:größe",
	} {
		n, err := ParseName(s)
		require.NoError(t, err, s)
		assert.Equal(t, Name(strings.ToLower(s)), n)
	}
}

func TestNamesThatAreBad(t *testing.T) {
	for s, why := range map[string]string{
		"":                                     "does not start",
		"iqn":                                  "does not start",
		"abc.2001-04.com.example":              "does not start",
		"iqn.":                                 "no date",
		"iqn.2001-4.com.example":               "no date",
		"iqn.20x1-04.com.example":              "no date",
		"iqn.2001-13.com.example":              "month 13",
		"iqn.2001-00.com.example":              "month 00",
		"iqn.2001-04.":                         "no naming authority",
		"iqn.2001-04.:x":                       "no naming authority",
		"iqn.2001-04.com/example":              "'/' is not allowed",
		"iqn.2001-04.com.x:a b":                "' ' is not allowed",
		"iqn.2001-04.com.x:a\x00b":             "'\\x00' is not allowed",
		"iqn.2001-04.com.x:\xff":               "is not allowed",
		"iqn.2001-04.com.x:$(ls)":              "'$' is not allowed",
		"eui.02004567A425678":                  "15 hexadecimal digits",
		"eui.02004567A425678G":                 "'G' is not a hexadecimal digit",
		"naa.52004567BA64678":                  "15 hexadecimal digits",
		"naa.52004567BA64678Z":                 "'Z' is not a hexadecimal digit",
		"naa.62004567BA64678D0123456789ABCDEZ": "'Z' is not",
		"iqn.2003-01.org.x:" + strings.Repeat("a", 206): "longer than 223",
	} {
		_, err := ParseName(s)
		assert.ErrorContains(t, err, why, "%q", s)
	}
}

func TestStatusesInWords(t *testing.T) {
	seen := map[string]LoginStatus{}
	for _, s := range []LoginStatus{0, 0x101, 0x102, 0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, 0x208, 0x209, 0x20a, 0x20b, 0x300, 0x301, 0x302, 0x1ff, 0x2ff, 0x3ff, 0x9900} {
		w := s.String()
		assert.NotEmpty(t, w)
		assert.NotContains(t, seen, w, "%04x says the same as %04x", uint16(s), uint16(seen[w]))
		seen[w] = s
		assert.Equal(t, s>>8 == 3, s.Temporary())
		assert.Equal(t, s>>8 == 1, s.Redirect())
	}
	assert.Equal(t, "target out of resources", LoginOutOfResources.String())
	err := &LoginError{Status: LoginOutOfResources, Reason: "asked at 10.0.0.1"}
	assert.Equal(t, "login status 0302 (target out of resources): asked at 10.0.0.1", err.Error())
	assert.Equal(t, "rejected (09, invalid PDU field): x", (&RejectError{Reason: RejectInvalidField, What: "x"}).Error())
}

func TestCodesInWords(t *testing.T) {
	for f := TMAbortTask; f <= TMQueryAsyncEvent; f++ {
		assert.NotContains(t, f.String(), "function ")
		assert.Equal(t, strings.HasPrefix(f.String(), "query"), f.Asks(), "%v", f)
	}
	assert.Equal(t, "function 13", TMFunction(13).String())
	for _, r := range []TMResponse{0, 1, 2, 3, 4, 5, 6, 7, 255} {
		assert.NotContains(t, r.String(), "response ")
	}
	assert.Equal(t, "response 8", TMResponse(8).String())
	for _, r := range []RejectReason{2, 3, 4, 5, 6, 7, 8, 9, 10, 12} {
		assert.NotContains(t, r.String(), "reason ")
	}
	assert.Equal(t, "reason 0x0b", RejectReason(0x0b).String())
	for _, h := range headers {
		assert.NotContains(t, h.op.String(), "opcode")
	}
}
