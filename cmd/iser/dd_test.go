package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func testApp(t *testing.T) (*app, func() string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return &app{out: f, errOut: f, output: "table"}, func() string {
		b, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		return string(b)
	}
}

func dd(t *testing.T, a *app, args ...string) error {
	t.Helper()
	o, err := parseDD(args)
	require.NoError(t, err)
	return a.dd(context.Background(), o)
}

func TestDDPatternIsLMDDs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	a, out := testApp(t)
	require.NoError(t, dd(t, a, "if=internal", "of="+file, "bs=1k", "count=3", "opat=1"))
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, b, 3072)
	assert.Equal(t, []byte{0, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0}, b[:12])
	assert.Equal(t, []byte{0xfc, 0x0b, 0, 0}, b[3068:])
	require.NoError(t, dd(t, a, "if="+file, "of=internal", "bs=1k", "ipat=1"))

	b[1026]++ // byte 2 of the word at 1024
	b[2048]++
	require.NoError(t, os.WriteFile(file, b, 0o600))
	err = dd(t, a, "if="+file, "of=internal", "bs=1k", "ipat=1")
	assert.Equal(t, exitMismatch, exitCode(err))
	assert.Contains(t, out(), "off=1024 want=400 got=10400\noff=2048 want=800 got=801\n")
}

func TestDDStopsAfterMismatchWords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte{0xff}, 4096), 0o600))
	a, out := testApp(t)
	err := dd(t, a, "if="+file, "of=internal", "bs=512", "ipat=1", "mismatch=3")
	assert.Equal(t, exitMismatch, exitCode(err))
	assert.Equal(t, 3, bytes.Count([]byte(out()), []byte("off=")))
}

func TestDDCopiesWithSkipSeekCountAndSync(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "s"), filepath.Join(dir, "d")
	want := make([]byte, 2500)
	fillWords(want, 0)
	require.NoError(t, os.WriteFile(src, want, 0o600))
	a, _ := testApp(t)
	require.NoError(t, dd(t, a, "if="+src, "of="+dst, "bs=512", "skip=1", "seek=2", "conv=sync"))
	got, err := os.ReadFile(dst)
	require.NoError(t, err)
	require.Len(t, got, 1024+2048)
	assert.Equal(t, want[512:], got[1024:1024+1988])
	assert.Equal(t, make([]byte, 60), got[1024+1988:])
}

func TestDDCutsAFileFromWhereItWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte{7}, 8192), 0o600))
	a, _ := testApp(t)
	require.NoError(t, dd(t, a, "if=internal", "of="+file, "bs=512", "count=2", "seek=4"))
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, append(bytes.Repeat([]byte{7}, 2048), make([]byte, 1024)...), got)
}

func TestDDRefusesBadOperands(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"if=a"},
		{"if=a", "of=b", "bs=100"},
		{"if=a", "of=b", "bs=1T"},
		{"if=a", "of=b", "count=-1"},
		{"if=a", "of=b", "opat=2"},
		{"if=a", "of=b", "nosuch=1"},
		{"stray"},
		{"if=a", "of=b", "conv=ebcdic"},
		{"if=a", "of=b", "skip=99999999999999"},
	} {
		_, err := parseDD(args)
		assert.Error(t, err, args)
	}
	a, _ := testApp(t)
	assert.Equal(t, exitUsage, exitCode(dd(t, a, "if=internal", "of=internal")))
}
