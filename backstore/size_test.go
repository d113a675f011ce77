package backstore_test

import (
	"math"
	"strings"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "4096": 4096, "512B": 512, "4k": 4096, "4K": 4096, "4KiB": 4096, "4kib": 4096, "4 KiB": 4096,
		"1.5GiB": 3 << 29, "0.5k": 512, "1m": 1 << 20, "2MiB": 2 << 20, "64GiB": 64 << 30, "3t": 3 << 40,
		"0.0009765625k": 1, "9223372036854775807": math.MaxInt64, "8388607TiB": 8388607 << 40, "007": 7,
	} {
		got, err := backstore.ParseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
}

func TestParseSizeRefuses(t *testing.T) {
	for _, s := range []string{
		"", " ", "k", "-1", "+1", "1e3", "0x10", "1/2", "1KB", "1MB", "1kb", "1p", "1.", ".5", "1.5.5", "1,5k", "1_000",
		"4k 4k", "4  k", " 4k", "4k ", "inf", "nan", "1.0001k", "1.5", "9223372036854775808", "8388608TiB", "१",
		strings.Repeat("9", 100), strings.Repeat("9", 1000000),
	} {
		_, err := backstore.ParseSize(s)
		require.Error(t, err, "%.40q", s)
		require.Less(t, len(err.Error()), 300)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"4096", "1.5GiB", "4 k", "1KB", "", "9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := backstore.ParseSize(s)
		if err == nil && n < 0 {
			t.Fatalf("%q is %d", s, n)
		}
	})
}

func TestParseSwitch(t *testing.T) {
	for s, want := range map[string]bool{"yes": true, "true": true, "Yes": true, "no": false, "false": false, "NO": false} {
		on, err := backstore.ParseSwitch(s)
		require.NoError(t, err, s)
		require.Equal(t, want, on, s)
	}
	for _, s := range []string{"", "y", "1", "on", "yes "} {
		_, err := backstore.ParseSwitch(s)
		require.ErrorContains(t, err, "want yes or no", s)
	}
}

func TestParseRange(t *testing.T) {
	for s, want := range map[string][2]int64{
		"0-4KiB": {0, 4096}, "1GiB-": {1 << 30, math.MaxInt64}, "4096+512": {4096, 4608}, "50TiB+64MiB": {50 << 40, 50<<40 + 64<<20},
		"9223372036854775806+1": {math.MaxInt64 - 1, math.MaxInt64},
	} {
		from, to, err := backstore.ParseRange(s)
		require.NoError(t, err, s)
		require.Equal(t, want, [2]int64{from, to}, s)
	}
	for s, want := range map[string]string{
		"": "not a range", "5": "not a range", "-": "not a range", "-5": "not a range", "1+": "not a range", "x-y": "not a range",
		"1+2+3": "not a size", "1-2-3": "not a size", "1+9223372036854775807": "not a range",
		"8k-4k": "an empty range", "4k-4k": "an empty range", "1+0": "an empty range",
	} {
		_, _, err := backstore.ParseRange(s)
		require.ErrorContains(t, err, want, s)
	}
}

func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"0-4KiB", "1GiB-", "4096+512", "1+9223372036854775807", "-", "8k-4k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		from, to, err := backstore.ParseRange(s)
		if err == nil && (from < 0 || to <= from) {
			t.Fatalf("%q is %d to %d", s, from, to)
		}
	})
}
