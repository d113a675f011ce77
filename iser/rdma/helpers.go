package rdma

import "fmt"

// Longest private data of connection manager messages, in bytes, as left over by the RDMA IP CM service
// on InfiniBand and RoCE (IBTA, 12.6 and annex A11); iWARP's own limit is higher.
const (
	MaxRequestPrivate = 56
	MaxReplyPrivate   = 196
	MaxRejectPrivate  = 148
)

// Reasons of a RejectedError (IBTA, 12.6.7.2, table 108).
const (
	ReasonNoListener = 8 // invalid service ID
	ReasonStale      = 10
	ReasonConsumer   = 28
)

// Length is the number of bytes of a scatter/gather list. It cannot wrap: a list has fewer than 2^32
// entries of fewer than 2^32 bytes.
func Length(sgl []SGE) uint64 {
	var n uint64
	for i := range sgl {
		n += uint64(sgl[i].Length)
	}
	return n
}

// Piece names bytes [off, off+n) of a region in a scatter/gather list. It does not check the range: the
// device does.
func Piece(mr MemoryRegion, off uint64, n uint32) SGE {
	return SGE{Addr: mr.Addr() + off, Length: n, LKey: mr.LKey()}
}

// Check reports rights that no device grants together: remote write needs local write (IBTA,
// 10.6.3.1).
func (a Access) Check() error {
	if a&RemoteWrite != 0 && a&LocalWrite == 0 {
		return fmt.Errorf("memory access %#x: remote write without local write", uint8(a))
	}
	return nil
}

// NextKey is the key that a window gets by the next bind: its low 8 bits are the consumer's, and count (IBTA,
// 10.6.3.3; ibv_inc_rkey).
func NextKey(key uint32) uint32 { return key&^0xff | uint32(uint8(key)+1) }
