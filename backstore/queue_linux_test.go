package backstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatSysfsTellsOfADevice, with a file system made by hand: a disk, a partition of it, and devices
// that tell less.
func TestWhatSysfsTellsOfADevice(t *testing.T) {
	dir := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	disk := map[string]string{
		"rotational": "1", "write_cache": "write through", "discard_granularity": "65536",
		"discard_max_bytes": "2147483648", "write_zeroes_max_bytes": "2147483648",
	}
	for name, v := range disk {
		put("devices/sda/queue/"+name, v)
	}
	put("devices/sda/sda1/partition", "1")
	put("block/8:1/dummy", "")
	require.NoError(t, os.Symlink("../devices/sda", filepath.Join(dir, "block", "8:0")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "block/8:1")))
	require.NoError(t, os.Symlink("../devices/sda/sda1", filepath.Join(dir, "block", "8:1")))
	queue := func(name string) device {
		d := device{logical: 512}
		d.readQueue(filepath.Join(dir, "block", name))
		return d
	}
	want := device{logical: 512, rotational: true, writeThrough: true, unmapGranularity: 64 << 10}
	require.Equal(t, want, queue("8:0"))
	require.Equal(t, want, queue("8:1"), "a partition")
	require.Equal(t, device{logical: 512}, queue("9:0"), "nothing told")

	for _, c := range []struct {
		name, value string
		want        int
	}{
		{"discard_granularity", "0", 512},
		{"discard_granularity", "99999999999999999999", 512}, // as if not told
		{"discard_granularity", "2147483648", 0},
		{"discard_granularity", "", 512},
		{"discard_max_bytes", "0", 0},
		{"write_zeroes_max_bytes", "0", 0}, // nothing says that what is discarded reads as zeros
		{"write_zeroes_max_bytes", "-1", 0},
	} {
		put("devices/sda/queue/"+c.name, c.value)
		require.Equal(t, c.want, queue("8:0").unmapGranularity, "%s %q", c.name, c.value)
		put("devices/sda/queue/"+c.name, disk[c.name])
	}
}
