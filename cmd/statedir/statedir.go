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

	"github.com/goiser/goiser/cmd/durable"
)

const (
	// version is the version of a file's form.
	version = 1
	// maxFile bounds a file, in bytes: what is larger was not written by Save.
	maxFile = 1 << 20

	suffix    = ".json"
	nameChars = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
)

// A Dir is a directory in use. Its methods may be called from many goroutines, but not for one name at
// once.
type Dir struct {
	path string
	lock io.Closer
	disk durable.Disk
}

// Open makes the directory if it is not there, and keeps others out of it until Close: an error for a
// directory in use wraps ErrInUse.
func Open(path string) (*Dir, error) {
	if err := makeDir(path); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	lock, err := durable.Lock(path)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", path, err)
	}
	return &Dir{path: path, lock: lock, disk: durable.System{}}, nil
}

// ErrInUse is returned for a directory that another process uses.
var ErrInUse = durable.ErrInUse

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
	return durable.System{}.SyncDir(filepath.Dir(path))
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
		err = d.disk.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // and its absence may not be durable yet
		}
	} else {
		err = durable.Replace(d.disk, path, seal(state), 0o600)
	}
	if err == nil {
		err = d.disk.SyncDir(d.path)
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}
