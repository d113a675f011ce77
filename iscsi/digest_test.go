package iscsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The examples of RFC 3720, B.4, which RFC 7143 keeps (A.4).
func TestDigestExamplesOfTheRFC(t *testing.T) {
	rising, falling := make([]byte, 32), make([]byte, 32)
	for i := range rising {
		rising[i], falling[i] = byte(i), byte(31-i)
	}
	read10 := unhex(t, `01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018
		28000000 00000000 02000000 00000000`)
	for _, c := range []struct {
		name string
		data []byte
		wire string
	}{
		{"32 bytes of zeroes", make([]byte, 32), "aa36918a"},
		{"32 bytes of ones", bytes.Repeat([]byte{0xff}, 32), "43aba862"},
		{"32 bytes of incrementing 00..1f", rising, "4e79dd46"},
		{"32 bytes of decrementing 1f..00", falling, "5cdb3f11"},
		{"a SCSI Read (10) Command PDU", read10, "563a96d9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := unhex(t, c.wire)
			var got [DigestSize]byte
			Digest(0).Add(c.data).Put(got[:])
			assert.Equal(t, want, got[:])
			assert.Equal(t, Digest(0).Add(c.data), DigestFrom(want))
			for cut := range c.data {
				assert.Equal(t, DigestFrom(want), Digest(0).Add(c.data[:cut]).Add(nil).Add(c.data[cut:]))
			}
		})
	}
}

func TestDigestDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 4096)
	assert.Zero(t, testing.AllocsPerRun(10, func() { Digest(0).Add(buf).Add(buf).Put(buf) }))
}

func BenchmarkDigest(b *testing.B) {
	buf := make([]byte, 64<<10)
	b.ReportAllocs()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		Digest(0).Add(buf)
	}
}
