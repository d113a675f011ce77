// Package durabletest has a disk that loses what is not durable, and stops at any step.
package durabletest

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/goiser/goiser/cmd/durable"
)

// ErrPowerCut is what every step returns after the last that succeeds.
var ErrPowerCut = errors.New("power cut")

// A Platter is a disk on which nothing is durable that has not been synced. It stops at a step.
type Platter struct {
	Steps int // that still succeed; then every one fails
	// LazyFiles and LazyDirs leave out a kind of sync: the negative control.
	LazyFiles, LazyDirs bool

	files   map[string]*platterFile
	durable map[string]*platterFile // the names that are on the disk
}

// New is an empty disk that does not stop for a long time.
func New() *Platter {
	return &Platter{Steps: 1 << 20, files: map[string]*platterFile{}, durable: map[string]*platterFile{}}
}

type platterFile struct {
	p          *Platter
	b, durable []byte
}

func (p *Platter) step() error {
	if p.Steps--; p.Steps < 0 {
		return ErrPowerCut
	}
	return nil
}

// Create implements durable.Disk.
func (p *Platter) Create(path string, _ os.FileMode) (durable.File, error) {
	if err := p.step(); err != nil {
		return nil, err
	}
	f := &platterFile{p: p}
	p.files[path] = f
	return f, nil
}

// Mkdir implements durable.Disk: directories are where they are named.
func (p *Platter) Mkdir(string, os.FileMode) error { return p.step() }

// Rename implements durable.Disk.
func (p *Platter) Rename(from, to string) error {
	if err := p.step(); err != nil {
		return err
	}
	p.files[to] = p.files[from]
	delete(p.files, from)
	return nil
}

// Remove implements durable.Disk.
func (p *Platter) Remove(path string) error {
	if err := p.step(); err != nil {
		return err
	}
	if p.files[path] == nil {
		return fs.ErrNotExist
	}
	delete(p.files, path)
	return nil
}

// SyncDir implements durable.Disk.
func (p *Platter) SyncDir(string) error {
	if err := p.step(); err != nil || p.LazyDirs {
		return err
	}
	p.durable = maps.Clone(p.files)
	return nil
}

// Write may be cut in half.
func (f *platterFile) Write(b []byte) (int, error) {
	if err := f.p.step(); err != nil {
		f.b = append(f.b, b[:len(b)/2]...)
		return len(b) / 2, err
	}
	f.b = append(f.b, b...)
	return len(b), nil
}

// Sync implements durable.File.
func (f *platterFile) Sync() error {
	if err := f.p.step(); err != nil || f.p.LazyFiles {
		return err
	}
	f.durable = slices.Clone(f.b)
	return nil
}

// Close implements durable.File.
func (f *platterFile) Close() error { return nil }

// Read is what a file holds as long as the power is on, and whether it is there.
func (p *Platter) Read(path string) ([]byte, bool) {
	f := p.files[path]
	if f == nil {
		return nil, false
	}
	return slices.Clone(f.b), true
}

// After gives what may be in a file after a power cut: with the names that were synced or those that are there, and
// with the bytes that were synced or all of them. nil: it is not there.
func (p *Platter) After(path string) (outcomes [][]byte) {
	for _, names := range []map[string]*platterFile{p.durable, p.files} {
		f := names[path]
		if f == nil {
			outcomes = append(outcomes, nil)
			continue
		}
		outcomes = append(outcomes, append([]byte{}, f.durable...), append([]byte{}, f.b...))
	}
	return outcomes
}
