package backstore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGotgtFile(t *testing.T) {
	backstoretest.RunAllocating(t, func(t *testing.T) backstore.Store {
		path := filepath.Join(t.TempDir(), "disk.img")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, 4<<20))
		return open(t, "gotgt", backstore.Options{"plugin": "file", "path": path})
	})
}

func TestGotgtNull(t *testing.T) {
	backstoretest.RunComputed(t, func(t *testing.T) backstore.Store {
		return open(t, "gotgt", backstore.Options{"plugin": "null", "size": "4MiB"})
	})
}

func TestGotgtSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "odd")
	require.NoError(t, os.WriteFile(odd, make([]byte, 1000), 0o600))
	for want, opts := range map[string]backstore.Options{
		"option plugin: missing":                                   {"path": odd},
		"option size: missing: the null plug-in":                   {"plugin": "null"},
		"no such file or directory":                                {"plugin": "file", "path": filepath.Join(dir, "missing")},
		"says that it has 1000 bytes, which is no multiple":        {"plugin": "file", "path": odd},
		"Backend storage tape is not found":                        {"plugin": "tape"},
		"it has 1000 bytes":                                        {"plugin": "file", "path": odd, "size": "1MiB"},
		"gotgt store file:" + odd:                                  {"plugin": "file", "path": odd},
		"option readonly: not known; there are plugin, path, size": {"plugin": "null", "readonly": "yes"},
	} {
		_, err := backstore.Open("gotgt", opts)
		assert.ErrorContains(t, err, want)
	}
	require.NoError(t, os.Truncate(odd, 1024))
	s := open(t, "gotgt", backstore.Options{"plugin": "file", "path": odd, "size": "1k"})
	assert.Equal(t, backstore.Info{SizeBytes: 1024, BlockSize: 512, WriteCache: true}, s.Info())

	// Somebody shortens the file: what is not there any more is an error, not zeros.
	require.NoError(t, os.Truncate(odd, 512))
	b := make([]byte, 1024)
	assert.ErrorContains(t, s.ReadAt([][]byte{b}, 0), "read 1024 bytes at 0")
	require.NoError(t, s.Close())
}
