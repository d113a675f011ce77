package statedir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// version is the version of a file's form.
	version = 1
	// maxFile bounds a file, in bytes: what is larger was not written by Save.
	maxFile = 1 << 20

	suffix    = ".json"
	temporary = ".new" // of a file that is being written; one that is found means nothing
	nameChars = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
)

// A Dir is a directory in use. Its methods may be called from many goroutines, but not for one name at
// once.
type Dir struct {
	path string
	lock io.Closer
	disk disk
}

// A disk is what Save does to the file system, step by step.
type disk interface {
	// create makes an empty file, or makes one empty.
	create(path string) (file, error)
	rename(from, to string) error
	remove(path string) error
	// syncDir makes the names in a directory durable, as they are.
	syncDir(path string) error
}

// A file is being written.
type file interface {
	io.WriteCloser
	// Sync makes what was written durable. The file's name is another matter.
	Sync() error
}

// Open makes the directory if it is not there, and keeps others out of it until Close: an error for a
// directory in use wraps ErrInUse.
func Open(path string) (*Dir, error) {
	if err := makeDir(path); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", path, err)
	}
	return &Dir{path: path, lock: lock, disk: system{}}, nil
}

// ErrInUse is returned for a directory that another process uses.
var ErrInUse = errors.New("in use by another process")

// makeDir makes a directory, and its name durable.
func makeDir(path string) error {
	switch st, err := os.Stat(path); {
	case err == nil && !st.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: errors.New("not a directory")}
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return system{}.syncDir(filepath.Dir(path))
}

// Close lets others use the directory.
func (d *Dir) Close() error { return d.lock.Close() }

// An envelope is the form of a file. The sum is of the bytes of State as they stand there.
type envelope struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"`
	State   json.RawMessage `json:"state"`
}

// file is the path of a name's file.
func (d *Dir) file(name string) (string, error) {
	if name == "" || strings.Trim(name, nameChars) != "" {
		return "", fmt.Errorf("state %q: no name for a file", name)
	}
	return filepath.Join(d.path, name+suffix), nil
}

// Load reads what was saved last under a name; nil if nothing was. A file that is damaged is an error
// that names it.
func (d *Dir) Load(name string) ([]byte, error) {
	path, err := d.file(name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	state, err := open(b)
	if err != nil {
		return nil, fmt.Errorf("state file %s is damaged: %w; to start without what it holds, move it away", path, err)
	}
	return state, nil
}

// seal makes a file of a state.
func seal(state []byte) []byte {
	return fmt.Appendf(nil, `{"version":%d,"sha256":"%x","state":%s}`+"\n", version, sha256.Sum256(state), state)
}

// open is the inverse of seal.
func open(b []byte) ([]byte, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("more than %d bytes", maxFile)
	}
	var e envelope
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows its end")
	}
	if e.Version != version {
		return nil, fmt.Errorf("version %d is not known", e.Version)
	}
	if sum := sha256.Sum256(e.State); hex.EncodeToString(sum[:]) != e.SHA256 {
		return nil, errors.New("its checksum is wrong")
	}
	return e.State, nil
}

// Save keeps a state, which is JSON, under a name. It returns when a power cut would not undo it; after
// an error the old state is there, or the new one, whole. An empty state is forgotten.
//
// The order is what makes it so: the new file's bytes are on the disk before its name replaces the old
// one's, and the names before Save returns.
func (d *Dir) Save(name string, state []byte) error {
	path, err := d.file(name)
	if err != nil {
		return err
	}
	if len(state) == 0 {
		err = d.disk.remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // and its absence may not be durable yet
		}
	} else if err = d.write(path+temporary, seal(state)); err == nil {
		err = d.disk.rename(path+temporary, path)
	}
	if err == nil {
		err = d.disk.syncDir(d.path)
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

func (d *Dir) write(path string, b []byte) error {
	f, err := d.disk.create(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// system is the real disk.
type system struct{}

func (system) create(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (system) rename(from, to string) error { return os.Rename(from, to) }
func (system) remove(path string) error     { return os.Remove(path) }

func (system) syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
