//go:build !linux

package backstore

import "errors"

// A region takes memory from Go's heap, and does not grow.
type region struct {
	mem  []byte
	page int
}

func mapRegion(size, _ int) (*region, error) {
	return &region{mem: make([]byte, size), page: MinBlock}, nil
}

func (r *region) use(size int) error {
	if size > len(r.mem) {
		return errors.ErrUnsupported
	}
	return nil
}

func (r *region) drop(pages []byte) { clear(pages) }

func (r *region) extent(_, n int64) (allocated bool, length int64) { return true, n }

// close leaves the memory to the garbage collector.
func (r *region) close() error { return nil }
