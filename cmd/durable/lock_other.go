//go:build !linux

package durable

import (
	"io"
	"strings"
)

// Lock keeps nobody out on other systems.
func Lock(string) (io.Closer, error) { return io.NopCloser(strings.NewReader("")), nil }
