//go:build unix

package rdmatest

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// mapMemory is size bytes that a device can use: whole pages outside Go's heap.
func mapMemory(t testing.TB, size int) []byte {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err, "map %d bytes", size)
	return b
}

func unmapMemory(t testing.TB, b []byte) { require.NoError(t, syscall.Munmap(b)) }
