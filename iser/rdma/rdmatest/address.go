package rdmatest

import (
	"net/netip"
	"os"
)

// Addresses is how many addresses of its own a process has.
const Addresses = 64

// Address is the n-th loopback address of this process, n < Addresses: RoCE has one port an address only, and tests of
// several packages run at the same time. No two processes have one in common unless their ids differ by a multiple of 65536.
func Address(n int) netip.Addr {
	if n >= Addresses {
		panic("rdmatest: no more addresses")
	}
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 + n), byte(pid >> 8), byte(pid)})
}
