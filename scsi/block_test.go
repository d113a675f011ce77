package scsi

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWriteThenReadGivesTheSameBytes(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		m := newMemory(1 << 20)
		b := newBench(t, m)
		if mapped {
			b = newBench(t, mappable{m})
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 64)
		r := b.run(0, []byte{0x2a, 0, 0, 0, 0, 9, 0, 0, 2, 0}, 0, data)
		require.Equal(t, Good, r.Status, r.sense())
		r = b.run(0, []byte{0x28, 0, 0, 0, 0, 9, 0, 0, 2, 0}, 1024, nil)
		require.Equal(t, Good, r.Status, r.sense())
		assert.Equal(t, mapped, r.Mapped)
		assert.Equal(t, data, r.data)
		assert.Equal(t, uint64(0), uint64(r.Residual))
		assert.Equal(t, data, m.b[9*512:11*512])
	}
}
