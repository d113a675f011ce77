package backstore_test

import (
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func open(t testing.TB, typ string, opts backstore.Options) backstore.Store {
	s, err := backstore.Open(typ, opts)
	require.NoError(t, err)
	return s
}

func TestRAM(t *testing.T) {
	backstoretest.Run(t, func(t *testing.T) backstore.Store { return open(t, "ram", backstore.Options{"size": "5MiB"}) })
}

func TestNull(t *testing.T) {
	backstoretest.RunDiscarding(t, func(t *testing.T) backstore.Store { return open(t, "null", nil) })
}

func TestWhatStoresSayOfThemselves(t *testing.T) {
	ram := open(t, "ram", backstore.Options{"size": "1MiB"})
	defer ram.Close()
	assert.Equal(t, backstore.Info{SizeBytes: 1 << 20, BlockSize: 512, Volatile: true, NeverBlocks: true, Thin: true}, ram.Info())
	null := open(t, "null", backstore.Options{"size": "2TiB"})
	defer null.Close()
	assert.Equal(t, backstore.Info{SizeBytes: 2 << 40, BlockSize: 512, Volatile: true, NeverBlocks: true, Thin: true}, null.Info())
}

func TestNullReadsZeros(t *testing.T) {
	s := open(t, "null", backstore.Options{"size": "512"})
	defer s.Close()
	b := []byte{1, 2, 3}
	require.NoError(t, s.WriteAt([][]byte{b}, 0, true))
	require.NoError(t, s.ReadAt([][]byte{b[:1], b[1:]}, 0))
	require.Equal(t, []byte{0, 0, 0}, b)
}

func TestWrongOptions(t *testing.T) {
	for _, c := range []struct {
		typ    string
		opts   backstore.Options
		option string
		want   string
	}{
		{"tape", nil, "", `store type "tape": not known; there are file, null, ram`},
		{"ram", nil, "size", "ram store: option size: missing: bytes (1GiB); memory is taken when first written"},
		{"ram", backstore.Options{"size": "1GB"}, "size", `ram store: option size: "1GB" is not a size: want bytes, or a number with k, m, g or t ("4096", "4k", "1.5GiB": powers of 1024)`},
		{"ram", backstore.Options{"size": "0"}, "size", "ram store: option size: 0 (0 bytes) is not a multiple of 512 bytes, at least one"},
		{"null", backstore.Options{"size": "1000"}, "size", "null store: option size: 1000 (1000 bytes) is not a multiple of 512 bytes, at least one"},
		{"ram", backstore.Options{"size": "1k", "path": "/x"}, "path", "ram store: option path: not known; there are size"},
		{"file", backstore.Options{"size": "1k"}, "path", "file store: option path: missing: the file's path"},
		{"file", backstore.Options{"path": ""}, "path", "file store: option path: empty"},
		{"file", backstore.Options{"path": "/x", "sync": "often"}, "sync", `file store: option sync: "often" is not one of flush, fua, dsync`},
		{"file", backstore.Options{"path": "/x", "direct": "maybe"}, "direct", `file store: option direct: "maybe" is not one of yes, no`},
	} {
		_, err := backstore.Open(c.typ, c.opts)
		require.EqualError(t, err, c.want)
		var oe *backstore.OptionError
		require.ErrorAs(t, err, &oe)
		assert.Equal(t, c.typ, oe.Type)
		assert.Equal(t, c.option, oe.Option)
		require.EqualError(t, backstore.Check(c.typ, c.opts), c.want)
	}
	require.NoError(t, backstore.Check("file", backstore.Options{"path": "/nowhere/x", "direct": "true", "readonly": "false"}), "Check opens nothing")
}

func TestRAMThatDoesNotFit(t *testing.T) {
	_, err := backstore.Open("ram", backstore.Options{"size": "4194304TiB"})
	require.ErrorContains(t, err, "ram store: ")
}

func TestTypes(t *testing.T) {
	var names []string
	for _, typ := range backstore.Types() {
		names = append(names, typ.Name)
		assert.NotEmpty(t, typ.Summary)
		for _, o := range typ.Options {
			assert.NotEmpty(t, o.Summary, o.Name)
		}
	}
	require.Equal(t, []string{"file", "null", "ram"}, names)
}

func BenchmarkRAM4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { return open(b, "ram", backstore.Options{"size": "64MiB"}) })
}

func BenchmarkNull4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { return open(b, "null", nil) })
}
