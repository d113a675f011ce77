//go:build !unix

package rdmatest

import "testing"

// mapMemory makes do with the heap: there is no RDMA device on such a system, only the fabric.
func mapMemory(_ testing.TB, size int) []byte { return make([]byte, size) }

func unmapMemory(testing.TB, []byte) {}
