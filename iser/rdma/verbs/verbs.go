// Package verbs is the RDMA provider on libibverbs and librdmacm: RDMA hardware, or the kernel's rxe and
// siw. It is built with cgo and the build tag "rdma"; the libraries are loaded at run time. Without
// either, Open says what is missing.
package verbs

import "github.com/goiser/goiser/iser/rdma"

// Open loads the libraries and looks for devices. An error wraps rdma.ErrUnavailable and says what to do.
func Open() (rdma.Provider, error) { panic("not written") }
