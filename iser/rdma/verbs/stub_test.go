//go:build !(linux && cgo && rdma)

package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

func TestOpenSaysHowToBuildWithDevices(t *testing.T) {
	p, err := Open()
	require.Nil(t, p)
	require.ErrorIs(t, err, rdma.ErrUnavailable)
	require.ErrorContains(t, err, "build it")
}
