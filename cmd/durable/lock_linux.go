package durable

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Lock locks a directory or a file, which is made, for this process. The lock goes with the process, however that ends.
// An error wraps ErrInUse if another process has it.
func Lock(path string) (io.Closer, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
