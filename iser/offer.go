package iser

import (
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
)

// offered is the memory that a command's key opens to the peer. It is in a piece of a pool or, of a command in place,
// in the caller's own registered memory. Sends never read it under that key: what they carry has keys that the peer
// does not get, or the end of one key would take the other's memory away (ISER.md 4.3, rule 3).
type offered struct {
	piece  piece
	pooled bool
	window rdma.Window       // nil: the key is the pool's
	region rdma.MemoryRegion // in which the memory is
	addr   uint64            // where it begins, for the peer
	// user is where the data of a command in place begins, byte 0 of it; only the region's local key opens it.
	user uint64
}

// sge names bytes [off, off+n) of the data of a command in place.
func (o *offered) sge(off, n uint32) rdma.SGE {
	return rdma.SGE{Addr: o.user + uint64(off), Length: n, LKey: o.region.LKey()}
}

// locate finds the registered memory that a command in place uses.
func (i *initiator) locate(c *command) {
	bufs := c.t.In
	if c.t.Out != nil {
		bufs = c.t.Out
	}
	if len(bufs) != 1 || uint64(len(bufs[0])) != uint64(c.t.EDTL) {
		panic(fmt.Sprintf("iser: command %08x in place with %d buffers, %d of %d bytes", c.itt, len(bufs), total(bufs), c.t.EDTL))
	}
	at := address(bufs[0])
	r := i.dev.find(at)
	if r == nil || uint64(r.end-at) < uint64(c.t.EDTL) {
		panic(fmt.Sprintf("iser: command %08x in place, in %d bytes that are not registered", c.itt, c.t.EDTL))
	}
	c.inPlace, c.region, c.user = true, r.mr, r.mr.Addr()+uint64(at-r.base)
}

// offer takes the memory that the peer will use, and the key for it, and names both in the header. Write data is
// copied to it now: all of it has to be there before the command is. When nothing is to be fetched there is no key:
// nothing can be done with it, least of all invalidate it while its memory is being sent.
func (i *initiator) offer(c *command) (h Header, ok bool) {
	n := c.plan.fetched()
	if c.reads {
		n = c.t.EDTL
	}
	if n == 0 {
		return h, true
	}
	var w rdma.Window
	if i.keys != nil {
		if w, ok = i.keys.take(); !ok {
			return h, false
		}
	}
	if !c.inPlace && !i.takePiece(c, n) {
		if w != nil {
			i.keys.put(w)
		}
		return h, false
	}
	if c.inPlace {
		c.addr = c.user + uint64(c.plan.unsolicited)
	}
	if c.window = w; w != nil {
		c.request.offer(keyOpen, rdma.NextKey(w.RKey()))
	} else {
		c.request.offer(keyPermanent, c.piece.key())
	}
	if c.reads {
		return Header{Flags: ReadValid, ReadSTag: c.stag, ReadBase: c.addr}, true
	}
	return Header{Flags: WriteValid, WriteSTag: c.stag, WriteBase: c.addr}, true
}

// takePiece takes n bytes of pool memory for a command, with its write data in them.
func (i *initiator) takePiece(c *command, n uint32) bool {
	pc, ok, err := i.pool(c).get(int(n))
	if err != nil {
		i.fail(fmt.Errorf("memory for %d bytes of command %08x: %w", n, c.itt, err))
	}
	if !ok {
		return false
	}
	c.piece, c.pooled, c.region, c.addr = pc, true, pc.block.mr, pc.addr()
	if c.reads {
		return true
	}
	cur := cursor{}
	if c.plan.unsolicited > 0 {
		cur = seek(c.out, c.plan.unsolicited)
	}
	mem := pc.mem(int(n))
	clear(mem[i.copyOut(mem, c.out, &cur):]) // a caller with fewer bytes than announced must not send old ones
	return true
}

// pool is where a command's memory comes from.
func (i *initiator) pool(c *command) *pool {
	if c.reads {
		return i.sink
	}
	return i.source
}

// stageBind stages the bind of a command's window, if it has one, and returns how many work requests that is. It is
// not signalled: the Send behind it tells.
func (i *initiator) stageBind(c *command, slot int32) int {
	if c.window == nil {
		return 0
	}
	n, access := c.plan.fetched(), rdma.RemoteRead
	if c.reads {
		n, access = c.t.EDTL, rdma.RemoteWrite
	}
	w := i.wr()
	w.ID, w.Op = workID(kindBind, slot), rdma.OpBindWindow
	w.Window, w.Region, w.Access = c.window, c.region, access
	w.SGL = append(w.SGL, rdma.SGE{Addr: c.addr, Length: n, LKey: c.region.LKey()})
	i.credits--
	return 1
}

// stageInvalidate stages the invalidation of a command's key. The send queue is in order: the bind goes before.
func (i *initiator) stageInvalidate(c *command) {
	index, o := i.ops.get(kindInvalidate)
	o.cmd, o.covers, o.key = c, 1, c.stag
	w := i.wr()
	w.ID, w.Op, w.Flags, w.InvalidateKey = workID(kindInvalidate, index), rdma.OpLocalInv, rdma.Signaled, c.stag
	i.credits--
	if i.trace != nil {
		i.trace(TraceEvent{Step: TraceKeyInvalidated, ITT: c.itt, Key: c.stag})
	}
}

// deliver moves read data to the caller, as far as it has to be moved, and returns how much has come.
func (i *initiator) deliver(c *command, n uint32) uint32 {
	if c.inPlace {
		return n
	}
	cur := cursor{}
	n = uint32(copyIn(c.t.In, &cur, c.piece.mem(int(n))))
	i.copied += uint64(n)
	return n
}

// copyOut is copyOut, counted.
func (i *initiator) copyOut(dst []byte, bufs [][]byte, cur *cursor) int {
	n := copyOut(dst, bufs, cur)
	i.copied += uint64(n)
	return n
}

// do performs what a step of a request asks for.
func (i *initiator) do(c *command, act action) {
	if act&actInvalidate != 0 && i.err == nil {
		i.closing.push(c)
	} else if act&actInvalidate != 0 {
		act |= c.die() // the queue pair's end closes it
	}
	if act&actPut != 0 {
		i.giveBack(c)
	}
	if act&actLose != 0 {
		i.pool(c).lose(c.piece)
	}
	if act&actRelease != 0 {
		i.release(c)
	}
}

// giveBack frees what the peer cannot use any more.
func (i *initiator) giveBack(c *command) {
	if c.window != nil {
		i.keys.put(c.window)
		c.window = nil
	}
	if c.pooled {
		c.pooled = false
		if err := i.pool(c).put(c.piece); err != nil {
			i.fail(err)
		}
	}
}

// seek is the place n bytes into bufs, or their end.
func seek(bufs [][]byte, n uint32) (cur cursor) {
	for cur.buf < len(bufs) && n > 0 {
		m := min(uint64(n), uint64(len(bufs[cur.buf])-cur.off))
		n -= uint32(m)
		if cur.off += int(m); cur.off == len(bufs[cur.buf]) {
			cur = cursor{buf: cur.buf + 1}
		}
	}
	return cur
}
