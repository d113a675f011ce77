//go:build ceph

package gotgt

import (
	_ "github.com/gostor/gotgt/pkg/scsi/backingstore/cephstore" // ceph-rbd; needs cgo, librados and librbd
)
