package roce_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loopback is an address for this process alone: tests of several packages run at the same time.
func loopback() netip.AddrPort {
	return netip.AddrPortFrom(rdmatest.Address(0), 0)
}

func open(t testing.TB, o roce.Options) *roce.Provider {
	p := roce.New(o)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestSuiteOverUDP(t *testing.T) {
	p := open(t, roce.Options{})
	rdmatest.Run(t, p, loopback)
	require.Empty(t, p.QueuePairs(), "left open")
}
