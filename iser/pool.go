package iser

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/goiser/goiser/iser/rdma"
)

const (
	poolPage    = 4096
	minPoolHalf = 1 << 20 // bytes; less would not hold a usual command
)

// errPoolLost: see pool.get.
var errPoolLost = errors.New("the registered memory is all held by commands that got no response; only a new connection frees it")

// A pool is registered memory that the peer may reach for one direction, cut by a buddy scheme in pieces
// of 4 KiB times a power of two: a command's memory is one run of addresses, because it has one STag and
// one base.
type pool struct {
	dev    rdma.Device
	access rdma.Access
	block  *block
	top    int       // order of the whole
	free   [][]int32 // by order: offsets of free pieces, in pages
	state  []uint8   // by page: order+1 of the free piece that starts here, 0 if none does
	at     []int32   // by page: where in free it is

	live  int // pieces in use that will come back
	lost  int // bytes kept until the connection's end
	own   []*block
	extra int // bytes in own
}

// A piece is one command's part of a pool.
type piece struct {
	block *block
	page  int32
	order int
	size  int  // bytes, rounded up
	own   bool // block is the piece's own
}

// newPool makes a pool of at least sizeBytes, a power of two of pages.
func newPool(dev rdma.Device, sizeBytes int, access rdma.Access) (*pool, error) {
	pages := (max(sizeBytes, minPoolHalf) + poolPage - 1) / poolPage
	p := &pool{dev: dev, access: access, top: bits.Len(uint(pages - 1))}
	pages = 1 << p.top
	b, err := newBlock(dev, pages*poolPage, access)
	if err != nil {
		return nil, err
	}
	p.block, p.state, p.at = b, make([]uint8, pages), make([]int32, pages)
	p.free = make([][]int32, p.top+1)
	for order := range p.free {
		p.free[order] = make([]int32, 0, pages>>order)
	}
	p.push(0, p.top)
	return p, nil
}

func (p *pool) push(page int32, order int) {
	p.state[page], p.at[page] = uint8(order+1), int32(len(p.free[order]))
	p.free[order] = append(p.free[order], page)
}

// drop takes a free piece out of its list.
func (p *pool) drop(page int32, order int) {
	list := p.free[order]
	last := list[len(list)-1]
	list[p.at[page]], p.at[last] = last, p.at[page]
	p.free[order] = list[:len(list)-1]
	p.state[page] = 0
}

// get takes n bytes; ok is false if the caller has to wait for another piece to come back. A command
// longer than the whole pool, or one that finds all of it lost, gets a region of its own, within bounds;
// errPoolLost means that waiting is of no use.
func (p *pool) get(n int) (pc piece, ok bool, err error) {
	want := bits.Len(uint((n+poolPage-1)/poolPage - 1)) // order
	for order := want; order <= p.top; order++ {
		if last := len(p.free[order]) - 1; last >= 0 {
			page := p.free[order][last]
			p.drop(page, order)
			for ; order > want; order-- {
				p.push(page+int32(1)<<(order-1), order-1)
			}
			p.live++
			return piece{block: p.block, page: page, order: want, size: poolPage << want}, true, nil
		}
	}
	if want <= p.top && p.live > 0 {
		return pc, false, nil
	}
	return p.getOwn(n)
}

func (p *pool) getOwn(n int) (pc piece, ok bool, err error) {
	if p.extra > 0 && p.extra+n > len(p.block.mem) {
		if p.live > 0 {
			return pc, false, nil
		}
		return pc, false, errPoolLost
	}
	b, err := newBlock(p.dev, n, p.access)
	if err != nil {
		return pc, false, err
	}
	p.live++
	p.own, p.extra = append(p.own, b), p.extra+len(b.mem)
	return piece{block: b, size: len(b.mem), own: true}, true, nil
}

// put gives a piece back: the peer has promised not to use it any more.
func (p *pool) put(pc piece) error {
	p.live--
	if pc.own {
		p.extra -= pc.size
		p.own = slices.DeleteFunc(p.own, func(b *block) bool { return b == pc.block })
		return pc.block.close()
	}
	page, order := pc.page, pc.order
	if p.state[page] != 0 {
		panic(fmt.Sprintf("iser: pool page %d given back twice", page))
	}
	for ; order < p.top; order++ {
		buddy := page ^ int32(1)<<order
		if p.state[buddy] != uint8(order+1) {
			break
		}
		p.drop(buddy, order)
		page &^= int32(1) << order
	}
	p.push(page, order)
	return nil
}

// lose keeps a piece until the connection's end, for the peer may still use it: a plain memory region
// cannot be closed for one command alone.
func (p *pool) lose(pc piece) {
	p.live--
	p.lost += pc.size
}

// close frees all of it. The queue pair must be gone.
func (p *pool) close() error {
	errs := []error{p.block.close()}
	for _, b := range p.own {
		errs = append(errs, b.close())
	}
	p.own = nil
	return errors.Join(errs...)
}

// mem is the first n bytes of a piece.
func (pc *piece) mem(n int) []byte { return pc.block.mem[int(pc.page)*poolPage:][:n:n] }

// addr is the remote address of a piece, key its STag.
func (pc *piece) addr() uint64 { return pc.block.mr.Addr() + uint64(pc.page)*poolPage }
func (pc *piece) key() uint32  { return pc.block.mr.RKey() }
