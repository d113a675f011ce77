package iser

import (
	"fmt"

	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iser/rdma"
)

// A block is memory outside Go's heap, registered with one device: a device reads and writes it by
// physical address, so it must neither move nor be reused by the runtime.
type block struct {
	pool *arena.Pool
	mem  []byte
	mr   rdma.MemoryRegion
}

// newBlock maps and registers size bytes or a little more.
func newBlock(dev rdma.Device, size int, access rdma.Access) (*block, error) {
	pool, err := arena.New(int64(size))
	if err != nil {
		return nil, err
	}
	mem := pool.Memory()
	mr, err := dev.Register(mem, access)
	if err != nil {
		_ = pool.Close() // the first error is the one to tell
		return nil, fmt.Errorf("register %d bytes with %s: %w", len(mem), dev.Name(), err)
	}
	return &block{pool: pool, mem: mem, mr: mr}, nil
}

// close ends the registration and unmaps the memory. No work request may use it any more: memory that
// could not be deregistered stays mapped, for the device may still reach it.
func (b *block) close() error {
	if err := b.mr.Deregister(); err != nil {
		return fmt.Errorf("deregister %d bytes: %w", len(b.mem), err)
	}
	return b.pool.Close()
}

// sge names bytes [off, off+n) of the block.
func (b *block) sge(off, n int) rdma.SGE { return rdma.Piece(b.mr, uint64(off), uint32(n)) }
