package tcp

import (
	"github.com/goiser/goiser/iscsi"
)

// maxBacklog is how many bytes of control PDUs may wait for a peer that does not read before we stop
// reading from it: pings that carry data are outside any window.
const maxBacklog = 256 << 10

// An itemKind says what an item becomes.
type itemKind uint8

const (
	itemPDU     itemKind = iota // one PDU; its AHS and data are in the fifo or, for a command, in src
	itemDataIn                  // Data-In PDUs for [off, end) of t
	itemDataOut                 // Data-Out PDUs for [off, end) of t
)

// An item is one thing queued to be sent.
type item struct {
	kind   itemKind
	gone   bool // cut: nothing is to be sent
	status bool // itemDataIn: bhs is a SCSI Response that rides on the last PDU
	t      *iscsi.Transfer
	bhs    [iscsi.BHSSize]byte
	inline int    // bytes of AHS and data in the fifo
	src    cursor // payload that is not copied
	off    uint32 // task offset of src, bytes
	end    uint32
	ttt    uint32 // itemDataOut
	sn     uint32 // itemDataOut: DataSN of the next PDU
}

// A sender is the queue and the batch made of its front.
//
// The queue is bounded by what the engine may have outstanding (its window) and, where the peer decides how
// much we answer, by maxBacklog.
type sender struct {
	items  []item // ring; its length is a power of two
	head   int
	count  int
	fifo   []byte // AHS and data of queued PDUs, in order; fifo[:taken] is used up
	taken  int
	queued int // bytes of control PDUs waiting
	b      batch
	busy   bool // the writer has the batch

	// Scratch; on the stack it would escape into the digest.
	bhs [iscsi.BHSSize]byte
	end [3 + iscsi.DigestSize]byte
}

// push appends an item and returns it, empty.
func (s *sender) push(kind itemKind, t *iscsi.Transfer) *item {
	if s.count == len(s.items) {
		ring := make([]item, max(16, 2*len(s.items)))
		for i := range s.count {
			ring[i] = *s.at(i)
		}
		s.items, s.head = ring, 0
	}
	it := s.at(s.count)
	s.count++
	*it = item{kind: kind, t: t}
	if t != nil {
		t.DM.Pending++
		t.DM.Index++
	}
	return it
}

// at is the i-th item from the front.
func (s *sender) at(i int) *item { return &s.items[(s.head+i)&(len(s.items)-1)] }

// tail is the last item, nil if there is none.
func (s *sender) tail() *item {
	if s.count == 0 {
		return nil
	}
	return s.at(s.count - 1)
}

// stash keeps a copy of p until its item's turn.
func (s *sender) stash(it *item, p []byte) {
	if s.taken == len(s.fifo) {
		s.fifo, s.taken = s.fifo[:0], 0
	} else if cap(s.fifo)-len(s.fifo) < len(p) && s.taken >= len(s.fifo)/2 {
		s.fifo = s.fifo[:copy(s.fifo, s.fifo[s.taken:])]
		s.taken = 0
	}
	s.fifo = append(s.fifo, p...)
	it.inline += len(p)
}

// pop removes the front item.
func (s *sender) pop(c *conn) {
	it := s.at(0)
	s.taken += it.inline
	if it.kind == itemPDU {
		s.queued -= iscsi.BHSSize + it.inline
	}
	t := it.t
	*it = item{}
	s.head = (s.head + 1) & (len(s.items) - 1)
	s.count--
	if t != nil {
		t.DM.Index--
		c.unref(t)
	}
}

// drop empties the queue and the batch of a dead connection.
func (s *sender) drop(c *conn) {
	for s.count > 0 {
		s.pop(c)
	}
	for _, t := range s.b.refs {
		c.unref(t)
	}
	s.b.reset()
}

// cut takes what has not begun to be sent of t's items out of the queue; keep says which stay.
func (s *sender) cut(c *conn, t *iscsi.Transfer, keep func(*item) bool) {
	if t.DM.Index == 0 {
		return
	}
	for i := range s.count {
		it := s.at(i)
		if it.t != t || keep(it) {
			continue
		}
		it.gone, it.t, it.src, it.off = true, nil, cursor{}, it.end
		t.DM.Index--
		c.unref(t)
	}
}

// choked reports that no new PDU may be read until queued ones have left.
func (c *conn) choked() bool { return c.rx.state == rxHeader && c.tx.queued > maxBacklog }

// queuePDU queues a PDU with its data copied.
func (c *conn) queuePDU(t *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, data []byte) *item {
	it := c.tx.push(itemPDU, t)
	it.bhs = *bhs
	c.tx.stash(it, data)
	c.tx.queued += iscsi.BHSSize + it.inline
	return it
}

// Send implements iscsi.Datamover.
func (c *conn) Send(bhs *[iscsi.BHSSize]byte, data []byte) {
	if c.err == nil {
		c.queuePDU(nil, bhs, data)
	}
}

// Flush implements iscsi.Datamover.
func (c *conn) Flush() error {
	c.rx.views = false
	c.reap()
	c.pump()
	return c.err
}

// Idle implements iscsi.Datamover.
func (c *conn) Idle() bool { return c.tx.count == 0 && !c.tx.busy }

// pump writes as much as the socket takes, and hands the rest of a batch to the writer.
func (c *conn) pump() {
	b := &c.tx.b
	for c.err == nil && !c.tx.busy && c.tx.count > 0 {
		c.fill()
		if len(b.pieces) == 0 {
			continue // all of it had been cut
		}
		b.ready()
		done, err := c.writeNow(b)
		switch {
		case err != nil:
			c.fail(err)
		case done:
			c.sent()
		default:
			c.tx.busy = true
			c.writer.start()
		}
	}
}

// reap takes the batch back from the writer, if it has finished, and goes on.
func (c *conn) reap() {
	if !c.tx.busy {
		return
	}
	select {
	case err := <-c.writer.done:
		c.tx.busy = false
		if err != nil {
			c.fail(err)
			return
		}
		c.sent()
		c.pump()
	default:
	}
}

// sent ends a batch that the socket has taken.
func (c *conn) sent() {
	for _, t := range c.tx.b.refs {
		c.unref(t)
	}
	c.tx.b.reset()
}

// fill makes a batch of the front of the queue.
func (c *conn) fill() {
	s := &c.tx
	for s.count > 0 && !s.b.full() {
		it := s.at(0)
		if it.t != nil {
			it.t.DM.Pending++
			s.b.refs = append(s.b.refs, it.t)
		}
		switch {
		case it.gone:
		case it.kind == itemPDU:
			c.emitPDU(it)
		case it.kind == itemDataIn:
			for it.off < it.end && !s.b.full() {
				c.emitDataIn(it)
			}
		default:
			for it.off < it.end && !s.b.full() {
				c.emitDataOut(it)
			}
			if it.off == it.end && it.ttt != iscsi.ReservedTag {
				it.t.DM.Words[wordOpen]--
			}
		}
		if it.off == it.end {
			s.pop(c)
		}
	}
}

// emitPDU makes one PDU, with inline data and what src has.
func (c *conn) emitPDU(it *item) {
	if it.t != nil && iscsi.OpcodeOf(&it.bhs) == iscsi.OpSCSIResponse {
		putExpDataSN(&it.bhs, it.t.DM.SN)
	}
	inline := c.tx.fifo[c.tx.taken : c.tx.taken+it.inline]
	ahs := inline[:iscsi.AHSLengthOf(&it.bhs)]
	inline = inline[len(ahs):]
	c.emitHeader(&it.bhs, ahs)
	var crc iscsi.Digest
	digest := c.digests(&it.bhs) && c.p.DataDigest
	if digest {
		crc = crc.Add(inline)
	}
	c.tx.b.add(inline)
	n := len(inline) + int(it.end-it.off)
	crc = c.emitPayload(it, int(it.end-it.off), crc, false)
	c.emitTrailer(n, digest, crc)
}

// emitHeader makes BHS, AHS and header digest.
func (c *conn) emitHeader(bhs *[iscsi.BHSSize]byte, ahs []byte) {
	b := &c.tx.b
	b.add(bhs[:])
	b.add(ahs)
	if c.p.HeaderDigest && c.digests(bhs) {
		var d [iscsi.DigestSize]byte
		iscsi.Digest(0).Add(bhs[:]).Add(ahs).Put(d[:])
		b.add(d[:])
	}
}

// digests reports whether a PDU has those digests that were negotiated: login PDUs never have
// (RFC 7143, 13.1).
func (c *conn) digests(bhs *[iscsi.BHSSize]byte) bool {
	op := iscsi.OpcodeOf(bhs)
	return c.enabled && op != iscsi.OpLoginRequest && op != iscsi.OpLoginResponse
}

// emitPayload moves n bytes of an item's source to the batch, by reference unless copied is asked for.
func (c *conn) emitPayload(it *item, n int, crc iscsi.Digest, copied bool) iscsi.Digest {
	it.off += uint32(n)
	for n > 0 {
		p := it.src.next(n)
		if len(p) == 0 {
			panic("iscsi over tcp: less data than queued")
		}
		n -= len(p)
		if copied {
			p = c.tx.b.add(p)
		} else {
			c.tx.b.refer(p)
		}
		if c.p.DataDigest {
			crc = crc.Add(p)
		}
	}
	return crc
}

// emitTrailer makes padding and data digest behind a data segment of n bytes.
func (c *conn) emitTrailer(n int, digest bool, crc iscsi.Digest) {
	if n == 0 {
		return
	}
	b := &c.tx.end
	clear(b[:])
	pad := iscsi.Pad4(n) - n
	end := pad
	if digest {
		crc.Add(b[:pad]).Put(b[pad:])
		end += iscsi.DigestSize
	}
	c.tx.b.add(b[:end])
}

// emitDataIn makes one Data-In PDU (RFC 7143, 11.7).
func (c *conn) emitDataIn(it *item) {
	t := it.t
	burst := uint32(t.DM.Words[wordBurst])
	n := min(it.end-it.off, c.p.MaxSendData, c.p.MaxBurstLength-burst)
	last := it.off+n == it.end
	p := iscsi.DataIn{
		Final:      last || burst+n == c.p.MaxBurstLength,
		DataLength: n,
		ITT:        t.ITT,
		TTT:        iscsi.ReservedTag, // as is the LUN: both belong to the A bit (RFC 7143, 11.7.4)
		ExpCmdSN:   c.seq.ExpCmdSN,
		MaxCmdSN:   c.seq.MaxCmdSN,
		DataSN:     t.DM.SN,
		Offset:     it.off,
	}
	if last && it.status {
		mergeStatus(&p, &it.bhs)
	}
	t.DM.SN++
	t.DM.Words[wordBurst] = uint64(burst + n)
	if p.Final {
		t.DM.Words[wordBurst] = 0
	}
	bhs := &c.tx.bhs
	p.Put(bhs)
	c.emitHeader(bhs, nil)
	// A store in memory may change under a checksum, and the initiator would end the connection: what is
	// digested is copied first.
	crc := c.emitPayload(it, int(n), 0, c.p.DataDigest)
	c.emitTrailer(int(n), c.p.DataDigest, crc)
}

// emitDataOut makes one Data-Out PDU (RFC 7143, 11.7). What is sent here does not change while it is being
// digested: the caller has promised so for t.Out.
func (c *conn) emitDataOut(it *item) {
	n := min(it.end-it.off, c.p.MaxSendData)
	p := iscsi.DataOut{
		Final:      it.off+n == it.end,
		DataLength: n,
		ITT:        it.t.ITT,
		TTT:        it.ttt,
		ExpStatSN:  c.seq.StatSN,
		DataSN:     it.sn,
		Offset:     it.off,
	}
	if it.ttt != iscsi.ReservedTag {
		p.LUN = it.t.LUN // reserved without TTT (RFC 7143, 11.7.4)
	}
	it.sn++
	bhs := &c.tx.bhs
	p.Put(bhs)
	c.emitHeader(bhs, nil)
	crc := c.emitPayload(it, int(n), 0, false)
	c.emitTrailer(int(n), c.p.DataDigest, crc)
}
