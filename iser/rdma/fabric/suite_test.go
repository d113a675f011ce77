package fabric_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
)

func anyPort() netip.AddrPort { return netip.MustParseAddrPort("10.0.0.1:0") }

func TestSuite(t *testing.T) {
	iwarp := fabric.DefaultLimits()
	iwarp.MaxReadSGE, iwarp.Windows, iwarp.SendInvalidate, iwarp.ReadSinkNeedsRemoteWrite = 1, false, false, true
	for name, o := range map[string]fabric.Options{
		"orderly": {}, "seed1": {Seed: 1}, "seed2": {Seed: 2, TwoDevices: true}, "seed3": {Seed: 3},
		"iwarp": {ExactPrivateData: true, TwoDevices: true, Limits: &iwarp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fabric.New(o)
			t.Run("run", func(t *testing.T) { rdmatest.Run(t, f, anyPort) })
			require.Equal(t, fabric.Gauges{}, f.Gauges(), "left open")
			t.Log(fmt.Sprintf("%d operations", f.Counters.Operations.Load()))
		})
	}
}
