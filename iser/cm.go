package iser

// The first byte of the private data of a CM REQ or REP (IBTA annex A12). Both are exceptions: a set bit
// says no.
const (
	noZeroBased  = 0x80 // zero-based virtual addresses are not supported, not used
	noInvalidate = 0x40 // Send with Invalidate is not supported, not used
)

// privateData is our private data: four bytes, of which the last three are reserved. It is always sent: on InfiniBand and RoCE a peer cannot tell silence
// from zeros, and zeros claim everything.
func privateData(invalidate bool) []byte {
	if invalidate {
		return []byte{noZeroBased, 0, 0, 0}
	}
	return []byte{noZeroBased | noInvalidate, 0, 0, 0}
}

// mayInvalidate reports whether the peer's private data agrees to Send with Invalidate. Every peer that
// says anything sets the bit for zero-based addresses, so a byte without it is padding and agrees to
// nothing.
func mayInvalidate(private []byte) bool {
	return len(private) > 0 && private[0]&(noZeroBased|noInvalidate) == noZeroBased
}

// minReads is the least number of RDMA Reads that a connection must allow: with none every write would
// fail.
const minReads = 1

// maxReads bounds the RDMA Reads of one connection that we serve, and by default those that we make.
const maxReads = 16

// readDepth is how many RDMA Reads a target may have outstanding: what the initiator serves, what the
// device can do, what was configured. 0: the connection is of no use.
func readDepth(peer, device uint8, configured int) int {
	return min(int(peer), int(device), configured)
}
