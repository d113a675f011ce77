package tcp

import (
	"net"
	"slices"

	"github.com/goiser/goiser/iscsi"
)

const (
	// maxBatch is how many bytes are made ready for the socket at a time.
	maxBatch = 512 << 10
	// maxDataPDU bounds the data segment of our data PDUs, whatever the peer would take.
	maxDataPDU = 256 << 10
	// maxPieces is how many pieces a batch has before it is full; the last PDU may go beyond.
	maxPieces = 960
	// slabMin is the first size of the memory for headers, bytes. It grows with need.
	slabMin = 2 << 10
)

// A batch is what is being written: headers in a slab of its own and payload by reference.
type batch struct {
	slab   []byte
	pieces [][]byte    // slab pieces and payload, in order
	rest   net.Buffers // what of pieces the socket has not taken
	refs   []*iscsi.Transfer
	size   int  // bytes
	joined bool // the last piece ends where the slab ends
}

// add copies p to the end of the batch and returns where it is now.
func (b *batch) add(p []byte) []byte {
	if cap(b.slab)-len(b.slab) < len(p) {
		// The old slab lives as long as the pieces that point into it.
		b.slab = make([]byte, 0, max(slabMin, 2*cap(b.slab), len(p)))
		b.joined = false
	}
	start := len(b.slab)
	b.slab = append(b.slab, p...)
	b.size += len(p)
	if b.joined {
		last := &b.pieces[len(b.pieces)-1]
		*last = (*last)[:len(*last)+len(p)]
	} else if len(p) > 0 {
		b.pieces = append(b.pieces, b.slab[start:])
		b.joined = true
	}
	return b.slab[start:]
}

// refer puts p at the end of the batch without a copy.
func (b *batch) refer(p []byte) {
	b.pieces = append(b.pieces, p)
	b.size += len(p)
	b.joined = false
}

// full reports that it is time to write.
func (b *batch) full() bool { return b.size >= maxBatch || len(b.pieces) >= maxPieces }

// ready begins the writing.
func (b *batch) ready() { b.rest = b.pieces }

// wrote takes n bytes off rest.
func (b *batch) wrote(n int) {
	for n > 0 {
		p := b.rest[0]
		if n < len(p) {
			b.rest[0] = p[n:]
			return
		}
		n -= len(p)
		b.rest[0] = nil
		b.rest = b.rest[1:]
	}
}

// own copies what is left, so that nobody's memory but ours is referred to.
func (b *batch) own() {
	var flat []byte
	for _, p := range b.rest {
		flat = append(flat, p...)
	}
	clear(b.rest)
	b.rest = net.Buffers{flat}
}

// reset empties the batch for the next one.
func (b *batch) reset() {
	clear(b.pieces)
	clear(b.refs)
	b.pieces, b.refs, b.slab, b.rest = b.pieces[:0], b.refs[:0], b.slab[:0], nil
	b.size, b.joined = 0, false
}

// has reports whether the batch may refer to memory of t.
func (b *batch) has(t *iscsi.Transfer) bool {
	return slices.Contains(b.refs, t)
}
