//go:build !linux

package backstore

import (
	"errors"
	"fmt"
)

// openFile is written for Linux, whose rules of what a flush means it relies on.
func openFile(s settings) (Store, error) {
	return nil, fmt.Errorf("file store %s: %w on this system: use Linux, or a ram store", s["path"], errors.ErrUnsupported)
}

func openBlock(s settings) (Store, error) {
	return nil, fmt.Errorf("block store %s: %w on this system: use Linux, or a ram store", s["path"], errors.ErrUnsupported)
}

func openGotgt(s settings) (Store, error) {
	return nil, fmt.Errorf("gotgt store %s:%s: %w on this system: use Linux, or a ram store", s["plugin"], s["path"], errors.ErrUnsupported)
}
