package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPcapFiles: microseconds and nanoseconds, both byte orders, to the byte.
func TestPcapFiles(t *testing.T) {
	for name, f := range map[string]struct {
		hex string
		at  time.Time
	}{
		"little, microseconds": {"d4c3b2a1 0200 0400 00000000 00000000 ffff0000 65000000  01000000 02000000 03000000 09000000 616263", time.Unix(1, 2000)},
		"big, nanoseconds":     {"a1b23c4d 0002 0004 00000000 00000000 0000ffff 00000065  00000001 00000002 00000003 00000009 616263", time.Unix(1, 2)},
	} {
		b := unhex(t, f.hex)
		ps, err := readAll(b)
		require.Equal(t, io.EOF, err, name)
		assert.Equal(t, []Packet{{Time: f.at, LinkType: RawIP, Data: []byte("abc"), Size: 9}}, ps, name)
		for n := range b {
			_, err := readAll(b[:n])
			switch {
			case n < 4:
				require.ErrorIs(t, err, ErrFormat, "%s: %d bytes", name, n)
			case n == 24:
				require.Equal(t, io.EOF, err)
			default:
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s: %d bytes", name, n)
			}
		}
	}
}

// TestBigEndianSection: as a writer of that order makes it, with a block that nobody here knows, an interface in
// microseconds, a second section with another, and a packet of either.
func TestBigEndianSection(t *testing.T) {
	ps, err := readAll(unhex(t, `
		0a0d0d0a 0000001c 1a2b3c4d 0001 0000 ffffffffffffffff 0000001c
		0000000b 00000010 deadbeef 00000010
		00000001 00000014 0001 0000 00000000 00000014
		00000006 00000024 00000000 00000000 0000000f 00000003 00000009 61626300 00000024
		0a0d0d0a 1c000000 4d3c2b1a 0100 0000 ffffffffffffffff 1c000000
		01000000 14000000 6500 0000 00000000 14000000
		06000000 24000000 00000000 00000000 0f000000 03000000 03000000 61626300 24000000`))
	require.Equal(t, io.EOF, err)
	require.Len(t, ps, 2)
	at := time.Unix(0, 15000)
	assert.Equal(t, Packet{Time: at, LinkType: Ethernet, Data: []byte("abc"), Size: 9}, ps[0])
	assert.Equal(t, Packet{Time: at, LinkType: RawIP, Data: []byte("abc"), Size: 3}, ps[1])
}

func TestInstant(t *testing.T) {
	for _, r := range []struct {
		n          uint64
		resolution byte
		want       time.Time
	}{
		{3_000_001, 6, time.Unix(3, 1000)},
		{3, 0, time.Unix(3, 0)},
		{3_000_000_000_999, 12, time.Unix(3, 0)},
		{3<<10 | 512, 0x80 | 10, time.Unix(3, 5e8)},
		{3, 0x80, time.Unix(3, 0)},
		{1 << 62, 0x80 | 63, time.Unix(0, 5e8)},
		{math.MaxUint64, 0x80 | 64, time.Time{}},
		{math.MaxUint64, 20, time.Time{}},
	} {
		assert.True(t, r.want.Equal(instant(r.n, r.resolution)), "%d of %d: %v", r.n, r.resolution, instant(r.n, r.resolution))
	}
}

// TestLiesAreFormatErrors, and no reason to take memory.
func TestLiesAreFormatErrors(t *testing.T) {
	head := appendInterface(appendSection(nil, "x"), here)
	s := sight(true, []byte("abcd"), 4)
	packet := appendPacket(nil, 0, time.Unix(0, 0), &s, s.Data, 0, 0)
	for what, lie := range map[string]func(b []byte){
		"block length":     func(b []byte) { binary.LittleEndian.PutUint32(b[4:], 1<<31) },
		"odd block length": func(b []byte) { b[4]++ },
		"no block length":  func(b []byte) { b[4] = 8 },
		"second length":    func(b []byte) { b[len(b)-4]++ },
		"interface":        func(b []byte) { b[8] = 1 },
		"captured length":  func(b []byte) { binary.LittleEndian.PutUint32(b[20:], math.MaxUint32) },
	} {
		b := bytes.Clone(packet)
		lie(b)
		_, err := readAll(append(bytes.Clone(head), b...))
		assert.ErrorIs(t, err, ErrFormat, what)
	}
	_, err := readAll(unhex(t, "0a0d0d0a 1c000000 00000000 0100 0000 ffffffffffffffff 1c000000"))
	assert.ErrorIs(t, err, ErrFormat, "byte order")
	_, err = readAll(unhex(t, "d4c3b2a1 0200 0400 00000000 00000000 ffff0000 65000000  01000000 02000000 ffffffff 09000000"))
	assert.ErrorIs(t, err, ErrFormat, "a packet of 4 GiB")
	_, err = readAll([]byte("not a capture"))
	assert.ErrorIs(t, err, ErrFormat)
	all := bytes.Clone(head)
	for range maxReadInterfaces {
		all = appendInterface(all, here)
	}
	_, err = readAll(all)
	assert.ErrorIs(t, err, ErrFormat, "interfaces without end")
}

// FuzzReader: whatever a file holds, what is read of it is within it, and the end is one of three.
func FuzzReader(f *testing.F) {
	s := sight(true, []byte("aaaabbbbcc"), 4)
	b := appendInterface(appendSection(nil, "x"), six)
	b = appendPacket(b, 0, time.Unix(1, 2), &s, s.Data[:4], 0, 3)
	f.Add(appendStatistics(b, 0, time.Unix(1, 2), 1, 3))
	f.Add([]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x65\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ps, err := readAll(b)
		if err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			require.ErrorIs(t, err, ErrFormat)
		}
		n := 0
		for _, p := range ps {
			n += len(p.Data)
		}
		require.LessOrEqual(t, n, len(b))
	})
}
