package statedir

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// lockDir locks a directory for this process. The lock goes with the process, however that ends.
func lockDir(path string) (io.Closer, error) {
	f, err := os.Open(path)
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
