package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goiser/goiser/cmd/durable"
	"github.com/goiser/goiser/cmd/durable/durabletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	oldConfig = "version: 1\n# the old one\n"
	newConfig = "version: 1\n# the new one, which is longer\n"
)

// platterFile is a configuration file on a disk that can be cut off, with the old configuration saved in it.
func platterFile(t *testing.T) (*configFile, *durabletest.Platter) {
	p := durabletest.New()
	f := &configFile{path: "etc/iserd.yaml", disk: p}
	f.read = func(path string) ([]byte, error) {
		if b, ok := p.Read(path); ok {
			return b, nil
		}
		return nil, fs.ErrNotExist
	}
	f.list = func(dir string) (names []string, err error) {
		for n := 1; n < 100; n++ {
			if _, ok := p.Read(f.entry(n)); ok {
				names = append(names, filepath.Base(f.entry(n)))
			}
		}
		return names, nil
	}
	require.NoError(t, f.save([]byte(oldConfig), false))
	return f, p
}

// cutSaves saves after each number of steps, and lists what a power cut would leave that it must not.
func cutSaves(t *testing.T, lazy func(*durabletest.Platter)) (faults []string) {
	for n := 0; ; n++ {
		f, p := platterFile(t)
		lazy(p)
		p.Steps = n
		err := f.save([]byte(newConfig), false)
		for _, got := range p.After(f.path) {
			if string(got) != newConfig && (err == nil || string(got) != oldConfig) {
				faults = append(faults, fmt.Sprintf("after step %d (%v): %q", n, err, got))
			}
		}
		if err == nil {
			for _, got := range p.After(f.entry(1)) {
				if string(got) != oldConfig {
					faults = append(faults, fmt.Sprintf("history: %q", got))
				}
			}
			require.Greater(t, n, 6, "a save has so many steps that can be cut")
			return faults
		}
		p.Steps = 1 << 20 // the power is back: the next save succeeds, and keeps one copy of the old one
		require.NoError(t, f.remember())
		require.NoError(t, f.save([]byte(newConfig), false), "after step %d", n)
		got, _ := p.Read(f.path)
		require.Equal(t, newConfig, string(got))
		names, err := f.list("")
		require.NoError(t, err)
		require.LessOrEqual(t, len(names), 1, "after step %d", n)
	}
}

// TestPowerCutAtEveryStepOfASave: the old configuration or the new one, whole, never neither, and after save the new
// one. Without the sync of files, or of directories, it is not so: the test can tell.
func TestPowerCutAtEveryStepOfASave(t *testing.T) {
	assert.Empty(t, cutSaves(t, func(*durabletest.Platter) {}))
	assert.NotEmpty(t, cutSaves(t, func(p *durabletest.Platter) { p.LazyFiles = true }))
	assert.NotEmpty(t, cutSaves(t, func(p *durabletest.Platter) { p.LazyDirs = true }))
}

// TestKilledWhileSavingConfig: a daemon that is killed at any moment of a save leaves what it had announced, or the one
// after.
func TestKilledWhileSavingConfig(t *testing.T) {
	if path := os.Getenv("CONFIG_TEST_CHILD"); path != "" {
		saveConfigsForEver(path)
	}
	path := filepath.Join(t.TempDir(), "iserd.yaml")
	require.NoError(t, os.WriteFile(path, []byte("0\n"), 0o600))
	for range 5 {
		last := durabletest.Killed(t, "CONFIG_TEST_CHILD="+path, 30)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		var kept int
		_, err = fmt.Sscan(string(b), &kept)
		require.NoError(t, err, "%q", b)
		assert.Contains(t, []int{last, last + 1}, kept)
		assert.Equal(t, fmt.Sprintf("%d\n%s", kept, strings.Repeat("x", kept%5000)), string(b), "it is whole")
		f, err := newConfigFile(path)
		require.NoError(t, err)
		list, err := f.history()
		require.NoError(t, err)
		assert.LessOrEqual(t, len(list), keptConfigs+1)
		for _, e := range list {
			b, err := os.ReadFile(e.File)
			require.NoError(t, err)
			assert.NotEmpty(t, b)
		}
	}
}

// saveConfigsForEver saves numbers, and announces each when it is durable.
func saveConfigsForEver(path string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	f, err := newConfigFile(path)
	if err != nil {
		fail(err)
	}
	var first int
	if _, err := fmt.Sscan(string(f.last), &first); err != nil {
		fail(err)
	}
	for i := first + 1; ; i++ {
		if err := f.save(fmt.Appendf(nil, "%d\n%s", i, strings.Repeat("x", i%5000)), false); err != nil {
			fail(err)
		}
		fmt.Printf("%d\n", i)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iserd.yaml")
	require.NoError(t, os.WriteFile(path, []byte("0"), 0o640))
	link := path + ".link"
	require.NoError(t, os.Symlink(path, link))
	f, err := newConfigFile(link)
	require.NoError(t, err)
	for i := range 15 {
		require.NoError(t, f.save(fmt.Appendf(nil, "%d", i+1), false))
		require.NoError(t, f.save(fmt.Appendf(nil, "%d", i+1), false), "the same again is nothing")
	}
	list, err := f.history()
	require.NoError(t, err)
	require.Len(t, list, keptConfigs)
	for i, e := range list {
		b, err := os.ReadFile(e.File)
		require.NoError(t, err)
		assert.Equal(t, i+1, e.N)
		assert.Equal(t, fmt.Sprint(14-i), string(b))
	}
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.Equal(t, fs.ModeSymlink, info.Mode().Type(), "a link stays one")
	info, err = os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode().Perm())
}

// A fullDisk has no room for what is written.
type fullDisk struct{ durable.System }

type fullFile struct{ durable.File }

func (fullFile) Write(b []byte) (int, error) { return len(b) / 2, syscall.ENOSPC }

func (d fullDisk) Create(path string, perm os.FileMode) (durable.File, error) {
	f, err := d.System.Create(path, perm)
	return fullFile{f}, err
}

// TestFullDiskAtSave: the old file is whole, nothing is left behind, and the error says what to do.
func TestFullDiskAtSave(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "iserd.yaml")
	require.NoError(t, os.WriteFile(path, []byte(oldConfig), 0o600))
	f, err := newConfigFile(path)
	require.NoError(t, err)
	f.disk = fullDisk{}
	err = f.save([]byte(newConfig), false)
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Contains(t, toError(err).Error(), "no space left on device; the old file is whole; make room, and try again")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, oldConfig, string(b))
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	assert.Empty(t, left, "half a file would only fill the disk")
}

func TestForeignWorkIsNotWrittenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iserd.yaml")
	require.NoError(t, os.WriteFile(path, []byte(oldConfig), 0o600))
	f, err := newConfigFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("somebody's"), 0o600))
	require.ErrorIs(t, f.save([]byte(newConfig), false), errForeign)
	require.NoError(t, f.save([]byte(newConfig), true))
	list, err := f.history()
	require.NoError(t, err)
	require.Len(t, list, 1)
	b, err := os.ReadFile(list[0].File)
	require.NoError(t, err)
	assert.Equal(t, "somebody's", string(b), "and it is kept")
}
