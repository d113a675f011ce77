//go:build !(linux && cgo && rdma)

package verbs

import (
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
)

// Open loads the libraries and looks for devices. An error wraps rdma.ErrUnavailable and says what to do.
func Open() (rdma.Provider, error) {
	return nil, fmt.Errorf("verbs: %s: %w", missing, rdma.ErrUnavailable)
}
