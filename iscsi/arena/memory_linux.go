package arena

import "golang.org/x/sys/unix"

// mapMemory maps private anonymous memory: page-aligned, zero, and without pages until touched.
//
// MADV_DONTFORK keeps the region out of a child process. A device writes to the physical pages that were
// there when the region was registered; after a fork, copy-on-write could give this process other pages
// (ibv_fork_init(3) does the same for libibverbs).
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
