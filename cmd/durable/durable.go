// Package durable replaces files so that a crash, a kill -9 or a power cut at any moment leaves the old one or the new
// one, whole.
package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// A Disk is what replacing a file does to the file system, step by step.
type Disk interface {
	// Create makes an empty file with permissions, or makes one empty.
	Create(path string, perm os.FileMode) (File, error)
	// Mkdir makes a directory; one that is there is fine.
	Mkdir(path string, perm os.FileMode) error
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes the names in a directory durable, as they are.
	SyncDir(path string) error
}

// A File is being written.
type File interface {
	io.WriteCloser
	// Sync makes what was written durable. The file's name is another matter.
	Sync() error
}

// ErrInUse is returned by Lock for what another process has locked.
var ErrInUse = errors.New("in use by another process")

// Suffix is what a file is called behind its name while it is being written. One that is found means nothing.
const Suffix = ".new"

// Replace puts b in place of what a file holds, or makes the file. It returns when the bytes are on the disk and have the
// file's name; the name is durable after SyncDir of its directory. After an error the old file is there, or the new one.
func Replace(d Disk, path string, b []byte, perm os.FileMode) error {
	temporary := path + Suffix
	if err := write(d, temporary, b, perm); err != nil {
		_ = d.Remove(temporary) // it may be what fills the disk
		return err
	}
	return d.Rename(temporary, path)
}

func write(d Disk, path string, b []byte, perm os.FileMode) error {
	f, err := d.Create(path, perm)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// System is the real disk.
type System struct{}

// Create implements Disk. The permissions are those that are asked for, whatever the umask.
func (System) Create(path string, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(perm); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Mkdir implements Disk.
func (System) Mkdir(path string, perm os.FileMode) error {
	if err := os.Mkdir(path, perm); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Rename implements Disk.
func (System) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements Disk.
func (System) Remove(path string) error { return os.Remove(path) }

// SyncDir implements Disk.
func (System) SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
