package backstore

import "golang.org/x/sys/unix"

// mapMemory maps private anonymous memory, sparse until written. MADV_DONTFORK: a device that knows
// these pages must not be left with a child's copies of them.
func mapMemory(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(mem) // the first error is the one to tell
		return nil, err
	}
	return mem, nil
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem) }
