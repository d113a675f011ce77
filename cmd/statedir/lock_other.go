//go:build !linux

package statedir

import (
	"io"
	"strings"
)

// lockDir keeps nobody out on other systems.
func lockDir(string) (io.Closer, error) { return io.NopCloser(strings.NewReader("")), nil }
