package iser

import "github.com/goiser/goiser/iser/rdma"

const (
	// bounceSize is the size of one bounce chunk, in bytes.
	bounceSize = 64 << 10
	// bounceWrites is how many chunks a connection's RDMA Writes can hold. Reads have their own, one for
	// each that can be outstanding, so neither waits for the other.
	bounceWrites = 32

	noChunk = int32(-1)
)

// A bouncePool is registered memory through which data of unregistered buffers is copied. It is made when
// it is first needed: with a registered store and pool it never is.
type bouncePool struct {
	block *block
	next  []int32 // links free chunks, and the chunks of a chain
	free  int32
	// writes is how many more chunks RDMA Writes may take; reads are bounded by their depth.
	writes int
}

// open makes the pool, for reads RDMA Reads at a time.
func (p *bouncePool) open(d *device, reads int) error {
	if p.block != nil {
		return nil
	}
	n := bounceWrites + reads
	b, err := newBlock(d, n*bounceSize, d.access)
	if err != nil {
		return err
	}
	p.block, p.free, p.writes = b, noChunk, bounceWrites
	p.next = make([]int32, n)
	for i := n - 1; i >= 0; i-- {
		p.next[i], p.free = p.free, int32(i)
	}
	return nil
}

// take gets a chunk and puts it in front of list; there must be one.
func (p *bouncePool) take(list int32) int32 {
	i := p.free
	p.free, p.next[i] = p.next[i], list
	return i
}

// giveBack frees all chunks of a list and returns their number.
func (p *bouncePool) giveBack(list int32) (n int) {
	for list != noChunk {
		next := p.next[list]
		p.next[list], p.free = p.free, list
		list = next
		n++
	}
	return n
}

func (p *bouncePool) mem(i int32, n uint32) []byte {
	return p.block.mem[int(i)*bounceSize:][:n]
}

func (p *bouncePool) sge(i int32, n uint32) rdma.SGE { return p.block.sge(int(i)*bounceSize, int(n)) }

func (p *bouncePool) close() error {
	if p.block == nil {
		return nil
	}
	err := p.block.close()
	p.block = nil
	return err
}
