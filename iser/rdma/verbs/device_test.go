package verbs_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/verbs"
)

// The suite on a real device: VERBS_TEST_ADDR is an address on it. `make interop` runs this on the
// kernel's rxe in a virtual machine.
func TestDeviceKeepsTheRules(t *testing.T) {
	addr := os.Getenv("VERBS_TEST_ADDR")
	if addr == "" {
		t.Skip("VERBS_TEST_ADDR names no address on an RDMA device")
	}
	p, err := verbs.Open()
	require.NoError(t, err)
	ip := netip.MustParseAddr(addr)
	rdmatest.Run(t, p, func() netip.AddrPort { return netip.AddrPortFrom(ip, 0) })
}
