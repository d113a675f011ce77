//go:build !rdma

package verbs

const missing = "this binary was built without RDMA device support; build it with `-tags rdma` and cgo (headers: libibverbs-dev, librdmacm-dev)"
