package backstore_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// loopDevice makes a block device of a sparse file of 5 MiB.
func loopDevice(t *testing.T, more ...string) (device, image string) {
	image = filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 5<<20))
	out, err := exec.Command("losetup", append(more, "--find", "--show", image)...).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() { require.NoError(t, exec.Command("losetup", "--detach", device).Run()) })
	return device, image
}

func TestBlock(t *testing.T) {
	for _, c := range []struct {
		name string
		opts backstore.Options
		loop []string
	}{
		{"direct", backstore.Options{}, nil},
		{"direct, blocks of 4096", backstore.Options{}, []string{"--sector-size", "4096"}},
		{"cached", backstore.Options{"direct": "no", "sync": "fua"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			backstoretest.Run(t, func(t *testing.T) backstore.Store {
				opts := backstore.Options{}
				maps.Copy(opts, c.opts)
				opts["path"], _ = loopDevice(t, c.loop...)
				return open(t, "block", opts)
			})
		})
	}
}

func TestBlockInfo(t *testing.T) {
	dev, _ := loopDevice(t)
	for _, c := range []struct {
		opts backstore.Options
		want backstore.Info
	}{
		{backstore.Options{}, backstore.Info{BlockSize: 512, WriteCache: true}},
		{backstore.Options{"sync": "dsync"}, backstore.Info{BlockSize: 512}},
		{backstore.Options{"direct": "no"}, backstore.Info{BlockSize: 4096, WriteCache: true}},
		{backstore.Options{"readonly": "yes"}, backstore.Info{BlockSize: 512, ReadOnly: true}},
	} {
		c.opts["path"] = dev
		s := open(t, "block", c.opts)
		got := s.Info()
		if !c.want.ReadOnly {
			assert.True(t, got.Thin)
			assert.GreaterOrEqual(t, got.UnmapGranularity, 4096)
		}
		got.Thin, got.UnmapGranularity, got.Rotational = false, 0, false // where the image lies decides
		c.want.SizeBytes = 5 << 20
		assert.Equal(t, c.want, got, "%v", c.opts)
		_, tells := s.(backstore.Extenter)
		assert.False(t, tells, "no device tells what it has")
		require.NoError(t, s.Close())
	}
}

// TestBlockUnmapReachesTheDevice, and reads give zeros whatever was in a cache (case DC-17).
func TestBlockUnmapReachesTheDevice(t *testing.T) {
	used := func(path string) int64 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(path, &st))
		return st.Blocks * 512
	}
	for _, direct := range []string{"yes", "no"} {
		dev, image := loopDevice(t)
		s := open(t, "block", backstore.Options{"path": dev, "direct": direct})
		ones := bytes.Repeat([]byte{1}, 4<<20)
		require.NoError(t, s.WriteAt([][]byte{ones}, 0, true))
		require.GreaterOrEqual(t, used(image), int64(4<<20))
		require.NoError(t, s.ReadAt([][]byte{ones}, 0))
		require.NoError(t, s.(backstore.Unmapper).Unmap(0, 4<<20))
		require.NoError(t, s.Flush())
		require.Less(t, used(image), int64(1<<20))
		require.NoError(t, s.ReadAt([][]byte{ones}, 0))
		require.Equal(t, make([]byte, 4<<20), ones)
		require.NoError(t, s.Close())
	}
}

func TestBlockIsTakenByOne(t *testing.T) {
	dev, _ := loopDevice(t)
	s := open(t, "block", backstore.Options{"path": dev})
	_, err := backstore.Open("block", backstore.Options{"path": dev})
	require.ErrorIs(t, err, backstore.ErrInUse)
	require.ErrorContains(t, err, "block store "+dev+": in use by another store or process, or mounted, or part of another device")
	require.NoError(t, s.Close())
	require.NoError(t, open(t, "block", backstore.Options{"path": dev}).Close())
}

func TestBlockReadOnly(t *testing.T) {
	dev, image := loopDevice(t, "--read-only")
	require.NoError(t, os.WriteFile(image, append([]byte("data"), make([]byte, 5<<20-4)...), 0o600))
	_, err := backstore.Open("block", backstore.Options{"path": dev})
	require.ErrorIs(t, err, backstore.ErrReadOnly)
	require.ErrorContains(t, err, "set readonly=yes")
	backstoretest.RunReadOnly(t, []byte("data\x00"), func(t *testing.T) backstore.Store {
		return open(t, "block", backstore.Options{"path": dev, "readonly": "yes"})
	})
}

// TestBlockGrows: its size is looked at again when it is said to have changed (case LU-08).
func TestBlockGrows(t *testing.T) {
	dev, image := loopDevice(t)
	s := open(t, "block", backstore.Options{"path": dev})
	require.NoError(t, os.Truncate(image, 6<<20))
	require.NoError(t, exec.Command("losetup", "--set-capacity", dev).Run())
	require.EqualValues(t, 5<<20, s.Info().SizeBytes, "not by itself")
	require.NoError(t, s.(backstore.Measurer).Measure())
	require.EqualValues(t, 6<<20, s.Info().SizeBytes)
	require.NoError(t, s.WriteAt([][]byte{{1}}, 6<<20-1, true))
	require.NoError(t, s.Close())
	require.Error(t, s.(backstore.Measurer).Measure())
}

// TestBlockMistakes: each message names the store's type and path, and what to do (case LU-12).
func TestBlockMistakes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 4096), 0o600))
	for path, want := range map[string]string{
		dir:           "is no block device",
		file:          "is no block device; a regular file is for type file",
		"/dev/null":   "is no block device",
		dir + "/a":    "there is no such file",
		dir + "/b/c":  "there is no directory " + dir + "/b",
		file + "/a/b": "open: ",
	} {
		_, err := backstore.Open("block", backstore.Options{"path": path})
		require.ErrorContains(t, err, "block store "+path+": ")
		require.ErrorContains(t, err, want)
	}
}
