package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/cmd/durable"
)

const (
	// keptConfigs is how many earlier configurations are kept.
	keptConfigs = 10
	// historySuffix is behind the file's name in that of the directory of earlier ones, which are numbered.
	historySuffix = ".history"
	historyExt    = ".yaml"
	maxConfigFile = 1 << 20 // bytes, as conf.Load reads
)

// A configFile is the file that the configuration is read from and saved to. The manager calls it, one at a time.
//
// Saving keeps an order that leaves the old file or the new one, whole, wherever it is cut: first the old one is
// copied to the history and that is durable; then the new one's bytes are on the disk; then they get the file's name; then that
// is durable.
type configFile struct {
	path string // of the file itself, not of a link to it
	disk durable.Disk
	last []byte // what it had when it was read or written last
	read func(path string) ([]byte, error)
	list func(dir string) ([]string, error)
}

// newConfigFile remembers what is in a file.
func newConfigFile(path string) (*configFile, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	f := &configFile{path: real, disk: durable.System{}, read: readFile, list: listDir}
	return f, f.remember()
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxConfigFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxConfigFile)
	}
	return os.ReadFile(path)
}

func listDir(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// remember takes what is in the file now as known.
func (f *configFile) remember() error {
	b, err := f.read(f.path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	f.last = b
	return nil
}

// errForeign is returned by save for a file that somebody else has changed.
var errForeign = errors.New("somebody else has changed it since iserd has read or written it last")

// save writes a configuration. It returns when a power cut would not undo it. What is there goes to the history; if it is
// not what was read or written last it is somebody's work, which only force writes over.
func (f *configFile) save(b []byte, force bool) error {
	now, err := f.read(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("save the configuration: %w", err)
	}
	if err == nil && !bytes.Equal(now, f.last) && !force {
		return fmt.Errorf("save %s: %w", f.path, errForeign)
	}
	if err == nil && bytes.Equal(now, b) {
		f.last = b
		return nil
	}
	if err == nil {
		if err := f.keep(now); err != nil {
			return fmt.Errorf("save %s: keep the old one: %w", f.path, err)
		}
	}
	if err := durable.Replace(f.disk, f.path, b, f.mode()); err != nil {
		return fmt.Errorf("save %s: %w", f.path, err)
	}
	f.last = b
	if err := f.disk.SyncDir(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("save %s: %w", f.path, err)
	}
	f.prune()
	return nil
}

// mode is the file's; a new one is for its owner and group.
func (f *configFile) mode() os.FileMode {
	if info, err := os.Stat(f.path); err == nil {
		return info.Mode().Perm()
	}
	return 0o640
}

func (f *configFile) historyDir() string { return f.path + historySuffix }

// numbers lists the history, the oldest first.
func (f *configFile) numbers() ([]int, error) {
	names, err := f.list(f.historyDir())
	if err != nil {
		return nil, err
	}
	var list []int
	for _, name := range names {
		s, ours := strings.CutSuffix(name, historyExt)
		if n, err := strconv.Atoi(s); ours && err == nil && n > 0 {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, nil
}

func (f *configFile) entry(n int) string {
	return filepath.Join(f.historyDir(), fmt.Sprintf("%06d%s", n, historyExt))
}

// keep adds to the history, unless the last entry is the same: an attempt that was cut off has been as far as that.
func (f *configFile) keep(b []byte) error {
	numbers, err := f.numbers()
	if err != nil {
		return err
	}
	next := 1
	if len(numbers) > 0 {
		last := numbers[len(numbers)-1]
		if old, err := f.read(f.entry(last)); err == nil && bytes.Equal(old, b) {
			return nil
		}
		next = last + 1
	} else if err := errors.Join(f.disk.Mkdir(f.historyDir(), 0o750), f.disk.SyncDir(filepath.Dir(f.path))); err != nil {
		return err
	}
	if err := durable.Replace(f.disk, f.entry(next), b, f.mode()&0o640); err != nil {
		return err
	}
	return f.disk.SyncDir(f.historyDir())
}

// prune forgets the oldest of the history. That it cannot is no reason to say that nothing was saved.
func (f *configFile) prune() {
	numbers, err := f.numbers()
	if err != nil {
		return
	}
	for len(numbers) > keptConfigs {
		_ = f.disk.Remove(f.entry(numbers[0]))
		numbers = numbers[1:]
	}
}

// history lists what was saved before, the last first.
func (f *configFile) history() ([]admin.HistoryEntry, error) {
	numbers, err := f.numbers()
	if err != nil {
		return nil, err
	}
	list := []admin.HistoryEntry{}
	for i, n := range slices.Backward(numbers) {
		info, err := os.Stat(f.entry(n))
		if err != nil {
			return nil, err
		}
		list = append(list, admin.HistoryEntry{N: len(numbers) - i, Time: info.ModTime(), File: f.entry(n)})
	}
	return list, nil
}

// noSpace reports whether an error is of a full disk.
func noSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
