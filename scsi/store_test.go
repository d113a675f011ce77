package scsi

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
)

func TestUnitsOnRealStores(t *testing.T) {
	for _, c := range []struct {
		typ            string
		opts           backstore.Options
		mapped, blocks bool
	}{
		{"ram", backstore.Options{"size": "1MiB"}, true, false},
		{"file", backstore.Options{"size": "1MiB", "path": filepath.Join(t.TempDir(), "disk.img")}, false, true},
	} {
		t.Run(c.typ, func(t *testing.T) {
			s, err := backstore.Open(c.typ, c.opts)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			b := newBench(t, s)
			data := bytes.Repeat([]byte("0123456789abcdef"), 256)
			w := b.run(0, cdb16(0x8a, 0x08, 2040, 8), 0, data)
			require.Equal(t, Good, w.Status, w.sense())
			assert.Equal(t, c.blocks, w.MayBlock)
			r := b.run(0, cdb16(0x88, 0, 2040, 8), 4096, nil)
			require.Equal(t, Good, r.Status, r.sense())
			assert.Equal(t, c.mapped, r.Mapped)
			assert.Equal(t, data, r.data)
			assert.Equal(t, Good, b.run(0, cdb16(0x8f, 2, 2040, 8), 0, data).Status)
			assert.Equal(t, Good, b.run(0, cdb10(0x35, 0, 0, 0), 0, nil).Status)
			assert.Equal(t, Good, b.run(0, cdb16(0x88, 0, 2048, 0), 0, nil).Status)
			assert.Equal(t, "5/21/00", b.run(0, cdb16(0x88, 0, 2048, 1), 512, nil).sense())
			caching := b.run(0, []byte{0x1a, 8, 8, 0, 255, 0}, 255, nil).data
			assert.Equal(t, s.Info().WriteCache, caching[6]&0x04 != 0, "WCE")
		})
	}
}
