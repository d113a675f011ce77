package backstore_test

import (
	"bytes"
	"os"
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
	assert.Equal(t, backstore.Info{SizeBytes: 1 << 20, BlockSize: 512, Volatile: true, NeverBlocks: true, Thin: true, UnmapGranularity: os.Getpagesize(), AtomicBytes: 1 << 30}, ram.Info())
	null := open(t, "null", backstore.Options{"size": "2TiB"})
	defer null.Close()
	assert.Equal(t, backstore.Info{SizeBytes: 2 << 40, BlockSize: 512, Volatile: true, NeverBlocks: true, Thin: true, UnmapGranularity: 512, AtomicBytes: 1 << 30}, null.Info())
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
		{"tape", nil, "", `store type "tape": not known; there are block, fault, file, gotgt, null, pattern, ram`},
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
	require.Equal(t, []string{"block", "fault", "file", "gotgt", "null", "pattern", "ram"}, names)
}

func BenchmarkRAM4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { return open(b, "ram", backstore.Options{"size": "64MiB"}) })
}

func BenchmarkNull4K(b *testing.B) {
	backstoretest.Benchmark(b, 4096, func(b *testing.B) backstore.Store { return open(b, "null", nil) })
}

// TestRAMGivesMemoryBack: what is unmapped is no longer this process's, as the system counts it.
func TestRAMGivesMemoryBack(t *testing.T) {
	s := open(t, "ram", backstore.Options{"size": "64MiB"})
	defer s.Close()
	allocated := func() (bytes int64) {
		for off := int64(0); off < 64<<20; {
			there, n, err := s.(backstore.Extenter).Extent(off, 64<<20-off)
			require.NoError(t, err)
			if there {
				bytes += n
			}
			off += n
		}
		return bytes
	}
	require.Zero(t, allocated(), "sparse")
	require.NoError(t, s.ReadAt([][]byte{make([]byte, 64<<20)}, 0))
	if allocated() != 64<<20 { // the system tells
		require.Zero(t, allocated(), "reading takes nothing")
	}
	require.NoError(t, s.WriteAt([][]byte{bytes.Repeat([]byte{1}, 32<<20)}, 16<<20, false))
	if allocated() == 64<<20 {
		t.Skip("the system does not tell what memory is in use")
	}
	require.EqualValues(t, 32<<20, allocated())
	require.NoError(t, s.(backstore.Unmapper).Unmap(17<<20+1, 8<<20))
	require.EqualValues(t, 24<<20+4096, allocated(), "all whole pages")
	require.NoError(t, s.(backstore.Zeroer).WriteZeroes(16<<20, 32<<20, false, false))
	require.EqualValues(t, 32<<20, allocated(), "without unmap the memory is taken")
}

// TestPinnedMemoryKeepsItsPages: a device knows them by physical address; given back and taken again they
// would be others.
func TestPinnedMemoryKeepsItsPages(t *testing.T) {
	s := open(t, "ram", backstore.Options{"size": "4MiB"})
	defer s.Close()
	full := bytes.Repeat([]byte{1}, 4<<20)
	require.NoError(t, s.WriteAt([][]byte{full}, 0, false))
	s.(backstore.Pinner).Pin()
	require.NoError(t, s.(backstore.Unmapper).Unmap(0, 4<<20))
	there, n, err := s.(backstore.Extenter).Extent(0, 4<<20)
	require.NoError(t, err)
	require.True(t, there)
	require.EqualValues(t, 4<<20, n)
	require.NoError(t, s.ReadAt([][]byte{full}, 0))
	require.Equal(t, make([]byte, 4<<20), full)
}

// TestRAMGrowsAsFarAsItSays: address space for growing is reserved, and not more than that.
func TestRAMGrowsAsFarAsItSays(t *testing.T) {
	s := open(t, "ram", backstore.Options{"size": "1MiB"})
	defer s.Close()
	r := s.(backstore.Resizer)
	require.NoError(t, r.Resize(64<<30+1<<20))
	require.NoError(t, s.WriteAt([][]byte{{7}}, 64<<30+1<<20-1, false))
	err := r.Resize(64<<30 + 2<<20)
	require.ErrorIs(t, err, backstore.ErrNoSpace)
	require.ErrorContains(t, err, "it can grow to 68720525312 bytes until it is opened again")
}

// TestSizesUpTo2To63: no offset wraps (case LU-03).
func TestSizesUpTo2To63(t *testing.T) {
	const last = 1<<63 - 512
	s := open(t, "null", backstore.Options{"size": "9223372036854775296"})
	defer s.Close()
	require.EqualValues(t, last, s.Info().SizeBytes)
	require.NoError(t, s.ReadAt([][]byte{make([]byte, 512)}, last-512))
	require.ErrorIs(t, s.ReadAt([][]byte{make([]byte, 513)}, last-512), backstore.ErrRange)
	require.NoError(t, s.(backstore.Unmapper).Unmap(0, last))
	_, n, err := s.(backstore.Extenter).Extent(0, last)
	require.NoError(t, err)
	require.EqualValues(t, last, n)
}
