// Package verbs is the RDMA provider on libibverbs and librdmacm: RDMA hardware, or the kernel's own
// software devices rxe (RoCEv2) and siw (iWARP).
//
// It is built with cgo and the build tag "rdma", which needs the headers of libibverbs-dev and
// librdmacm-dev. The libraries themselves are loaded when Open is called, so that one binary runs with
// and without them. In a build without the tag or without cgo, Open says so.
//
//	p, err := verbs.Open()
//	if errors.Is(err, rdma.ErrUnavailable) {
//		// err says what is missing and what to do; use another provider
//	}
//
// One goroutine reads connection manager events; completion queues wait in Go's network poller, so that
// no thread is parked in C. Posts and polls cross into C once a batch (InfiniBand Architecture
// Specification, volume 1, chapters 10 and 11 for the verbs, 12 for the connection manager).
package verbs
