//go:build rdma && !(linux && cgo)

package verbs

const missing = "this binary was built with the tag rdma but without cgo on Linux; build it there with CGO_ENABLED=1 and a C compiler"
