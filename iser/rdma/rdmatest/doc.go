// Package rdmatest is the suite that every RDMA provider passes, and the pair of connected ends on which
// its tests, and those of providers, are written.
//
// The suite uses nothing but package rdma: its memory is mapped outside Go's heap, every wait has a
// deadline, and each test closes what it opened. Where devices differ within the law, a test takes the
// set of lawful answers and says why.
//
//	func TestProvider(t *testing.T) {
//		rdmatest.Run(t, fabric.New(fabric.Options{}), func() netip.AddrPort {
//			return netip.MustParseAddrPort("10.0.0.1:0")
//		})
//	}
package rdmatest
