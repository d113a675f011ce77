//go:build !linux

package arena

import "os"

// mapMemory takes the region from Go's heap, aligned to a page; large Go allocations do not move.
func mapMemory(size int) ([]byte, error) {
	page := os.Getpagesize()
	b := make([]byte, size+page)
	skip := (page - int(address(b)%uintptr(page))) % page
	return b[skip : skip+size : skip+size], nil
}

// unmapMemory leaves the region to the garbage collector.
func unmapMemory([]byte) error { return nil }
