package iser

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

const (
	// reserve is how many PDUs outside the command window an initiator may have outstanding: the Linux
	// initiator's worst case is 6 (two NOP-Out, two task management, text, logout).
	reserve = 16
	// discoveryReceives is the same in a discovery session, where requests come one by one.
	discoveryReceives = 4
	// maxUnsolicited bounds the receives posted for unsolicited Data-Out. With less than could come the
	// initiator is held up, not refused.
	maxUnsolicited = 1024
	// chainShare is how many work requests of a task the send queue is sized for.
	chainShare = 4
	// maxChunk is the longest RDMA Read or Write, in bytes, whatever the device can do: so that a
	// connection's messages alternate.
	maxChunk = 1 << 20
	// smallSlot holds any PDU that a target sends in a normal session's full-feature phase.
	smallSlot = fixedSize + maxSendData + maxPad
)

// What a Remote holds: the valid STags and bases of the command's header, and what sort of command it was.
const (
	remoteSTags = iota // write<<32 | read; 0 if not valid
	remoteWriteBase
	remoteReadBase
	remoteCommand // the bits below
)

const (
	cmdRead      = 1 << iota // R bit and EDTL > 0
	cmdWrite                 // W bit and EDTL > 0
	cmdImmediate             // with immediate data
)

func readSTag(r *iscsi.Remote) uint32  { return uint32(r[remoteSTags]) }
func writeSTag(r *iscsi.Remote) uint32 { return uint32(r[remoteSTags] >> 32) }

// makeRemote keeps what a SCSI Command offers. An STag of 0 is none.
func makeRemote(m *message) (r iscsi.Remote) {
	const flagRead, flagWrite, offEDTL = 0x40, 0x20, 20
	r[remoteSTags] = uint64(m.WriteSTag)<<32 | uint64(m.ReadSTag)
	r[remoteWriteBase], r[remoteReadBase] = m.WriteBase, m.ReadBase
	if [4]byte(m.BHS[offEDTL:]) == [4]byte{} {
		return r
	}
	if m.BHS[1]&flagRead != 0 {
		r[remoteCommand] |= cmdRead
	}
	if m.BHS[1]&flagWrite != 0 {
		r[remoteCommand] |= cmdWrite
	}
	if len(m.Data) > 0 {
		r[remoteCommand] |= cmdImmediate
	}
	return r
}

// A task is a transfer's state at the target, from its first PutData, GetData or Respond to its
// EventReleased.
type task struct {
	t *iscsi.Transfer

	// Data to be written before the response. Nothing of it leaves before Respond: a Write and the
	// response that must follow it are one chain.
	puts []put
	at   putCursor // what of it has been staged
	need chainSize // of the chain, if it has been found too long for what was free

	// Data to be read.
	get     [][]byte
	getCur  cursor
	getOff  uint32 // task offset of getCur
	getLeft uint32
	pending int // RDMA Reads outstanding

	steps     int // RDMA Writes outstanding that end a step of a long chain
	responded bool
	aborted   bool
	over      bool // to be released as soon as nothing is outstanding
	held      bool // in use until the queue pair is gone
}

// A put is one PutData.
type put struct {
	bufs [][]byte
	off  uint32 // task offset
	n    uint32
}

// reading reports whether the task waits for data.
func (k *task) reading() bool { return k.getLeft > 0 || k.pending > 0 }

// A target is the target's end of a connection.
type target struct {
	conn
	lis    *listener
	config TargetConfig

	invalidate bool // agreed: Send with Invalidate
	readDepth  int
	sendDepth  int
	readsOut   int
	reads      queue[*task] // with bytes not yet asked for
	bounce     bouncePool
	chunks     int32 // bounce chunks of the chain that is being staged
	tasks      []*task
	enabled    bool
	scratch    []rdma.SGE
}

var _ iscsi.TargetDatamover = (*target)(nil)

// task finds or makes the state of a transfer.
func (t *target) task(tr *iscsi.Transfer) *task {
	if tr.DM.Ptr != nil {
		return tr.DM.Ptr.(*task)
	}
	var k *task
	if last := len(t.tasks) - 1; last >= 0 {
		k, t.tasks = t.tasks[last], t.tasks[:last]
	} else {
		k = &task{}
	}
	k.t = tr
	tr.DM.Ptr = k
	return k
}

// release tells the engine that a task that is over uses no memory any more; if something of it is
// outstanding, then later.
func (t *target) release(k *task) {
	k.over = true
	if k.held || k.pending > 0 || k.steps > 0 {
		return
	}
	tr := k.t
	tr.DM = iscsi.TransferState{}
	clear(k.puts)
	*k = task{puts: k.puts[:0]}
	t.tasks = append(t.tasks, k)
	t.ready.push(iscsi.Event{Kind: iscsi.EventReleased, Transfer: tr})
}

// Enable implements iscsi.Datamover: it makes and posts all receives of full-feature phase, so that the
// final Login Response finds them posted (RFC 7145, 5.1.2).
func (t *target) Enable(p *iscsi.Params, _ *iscsi.Sequence) error {
	if t.err != nil {
		return t.err
	}
	if t.enabled {
		return errors.New("iSER connection: enabled twice")
	}
	t.enabled = true
	t.lis.pending(-1)
	t.fullFeature = true
	if p.Discovery {
		if err := t.slots.grow(t.dev, 2*discoveryReceives, recvSize); err != nil {
			return err
		}
		return t.addReceives(discoveryReceives)
	}
	n := t.config.Window + reserve + unsolicitedReceives(p, t.config.Window)
	if err := t.slots.grow(t.dev, n+t.config.Window+reserve+spareSlots, smallSlot); err != nil {
		return err
	}
	if err := t.addReceives(n); err != nil {
		return err
	}
	t.maxData = maxSendData
	return nil
}

// unsolicitedReceives is how many Data-Out PDUs can come without being asked for while the window is
// full of writes.
func unsolicitedReceives(p *iscsi.Params, window int) int {
	if p.InitialR2T || p.MaxRecvData == 0 {
		return 0
	}
	first := p.FirstBurstLength
	if p.ImmediateData {
		first -= min(first, p.MaxRecvData)
	}
	each := (uint64(first) + uint64(p.MaxRecvData) - 1) / uint64(p.MaxRecvData)
	return int(min(uint64(window)*each, maxUnsolicited))
}

// receive implements role.
func (t *target) receive(m *message, _ *rdma.Completion) (iscsi.Event, bool) {
	ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: m.BHS, AHS: m.AHS, Data: m.Data}
	if iscsi.OpcodeOf(m.BHS) == iscsi.OpSCSICommand {
		ev.Remote = makeRemote(m)
		if t.trace != nil {
			t.trace(TraceEvent{
				Step: TraceCommandReceived, ITT: iscsi.ITTOf(m.BHS), Key: cmp.Or(m.ReadSTag, m.WriteSTag),
				Addr: cmp.Or(m.ReadBase, m.WriteBase), Length: uint32(len(m.Data)), Word: firstWord([][]byte{m.Data}, cursor{}),
			})
		}
	}
	return ev, true
}

// CanPut implements iscsi.TargetDatamover.
func (t *target) CanPut(tr *iscsi.Transfer) bool {
	return tr.EDTL == 0 || readSTag(&tr.Remote) != 0 && fits(tr.Remote[remoteReadBase], tr.EDTL)
}

// CanGet implements iscsi.TargetDatamover. The base names the first byte behind the unsolicited part.
func (t *target) CanGet(tr *iscsi.Transfer) bool {
	return tr.Unsolicited >= tr.EDTL ||
		writeSTag(&tr.Remote) != 0 && fits(tr.Remote[remoteWriteBase], tr.EDTL-tr.Unsolicited)
}

// fits reports whether n bytes from base on do not wrap.
func fits(base uint64, n uint32) bool { return base <= math.MaxUint64-uint64(n) }

// checkRange panics when the engine asks for bytes outside the task: they may be anything in the
// initiator's memory.
func checkRange(what string, tr *iscsi.Transfer, first, off uint32, n uint64) {
	if off < first || uint64(off)+n > uint64(tr.EDTL) {
		panic(fmt.Sprintf("iser: %s of %d bytes at %d of task %08x with %d bytes, %d unsolicited", what, n, off, tr.ITT, tr.EDTL, first))
	}
}

// PutData implements iscsi.TargetDatamover.
func (t *target) PutData(tr *iscsi.Transfer, bufs [][]byte, off uint32) {
	n := total(bufs)
	if n == 0 || t.err != nil {
		return
	}
	checkRange("PutData", tr, 0, off, n)
	if !t.CanPut(tr) {
		t.fail(fmt.Errorf("%w: task %08x expects data, but offers no memory for it", ErrProtocol, tr.ITT))
		return
	}
	k := t.task(tr)
	if k.responded {
		panic(fmt.Sprintf("iser: PutData of task %08x after its response", tr.ITT))
	}
	k.puts = append(k.puts, put{bufs: bufs, off: off, n: uint32(n)})
}

// GetData implements iscsi.TargetDatamover.
func (t *target) GetData(tr *iscsi.Transfer, bufs [][]byte, off uint32) {
	n := total(bufs)
	if t.err != nil {
		return
	}
	if n == 0 {
		t.ready.push(iscsi.Event{Kind: iscsi.EventGot, Transfer: tr})
		return
	}
	checkRange("GetData", tr, tr.Unsolicited, off, n)
	if !t.CanGet(tr) {
		t.fail(fmt.Errorf("%w: task %08x has data, but offers no memory to fetch it from", ErrProtocol, tr.ITT))
		return
	}
	k := t.task(tr)
	if k.reading() || k.responded || k.aborted {
		panic(fmt.Sprintf("iser: GetData of task %08x, which is busy", tr.ITT))
	}
	k.get, k.getCur, k.getOff, k.getLeft = bufs, cursor{}, off, uint32(n)
	t.reads.push(k)
}

// Respond implements iscsi.TargetDatamover.
func (t *target) Respond(tr *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, data []byte) {
	k := t.task(tr)
	if k.responded || k.aborted || k.reading() && t.err == nil {
		panic(fmt.Sprintf("iser: response of task %08x, which is busy", tr.ITT))
	}
	k.responded = true
	index, ok := t.fill(&Header{}, bhs, nil, data)
	if !ok {
		t.release(k) // the connection is over; if Reads are outstanding their completions release it
		return
	}
	s := &t.slots.all[index]
	s.task = k
	if key := t.keyToInvalidate(tr, bhs); key != 0 {
		s.op, s.inv = rdma.OpSendInv, key
	}
	t.queue.push(entry{slot: index})
}

// keyToInvalidate is the STag that the response of a task may invalidate, 0 if none (RFC 7145, 7.3.2):
// the read STag of a read, or the write STag of a write of which no part came inline. Memory of inline
// data may still be in use by the initiator's own device when the response arrives.
func (t *target) keyToInvalidate(tr *iscsi.Transfer, bhs *[iscsi.BHSSize]byte) uint32 {
	if !t.invalidate || iscsi.OpcodeOf(bhs) != iscsi.OpSCSIResponse || iscsi.ITTOf(bhs) != tr.ITT {
		return 0
	}
	switch r := &tr.Remote; r[remoteCommand] {
	case cmdRead:
		return readSTag(r)
	case cmdWrite:
		if tr.Unsolicited == 0 {
			return writeSTag(r)
		}
	}
	return 0
}

// Abort implements iscsi.TargetDatamover.
func (t *target) Abort(tr *iscsi.Transfer) {
	k := t.task(tr)
	if k.responded || k.aborted {
		panic(fmt.Sprintf("iser: task %08x aborted after its end", tr.ITT))
	}
	k.aborted = true
	if k.getLeft > 0 {
		k.getLeft = 0
		t.reads.remove(func(q *task) bool { return q == k })
	}
	t.release(k)
}

// sent implements role.
func (t *target) sent(s *slot) {
	if s.task != nil {
		t.release(s.task)
	}
}

// done implements role.
func (t *target) done(o *op, ok bool) {
	if o.kind == kindRead {
		t.readDone(o, ok)
		return
	}
	t.bounce.writes += t.bounce.giveBack(o.chunk)
	if o.kind == kindStep {
		o.task.steps--
		if o.task.over {
			t.release(o.task) // the rest of the chain was dropped when the connection died
		}
	}
}

// abandoned implements role.
func (t *target) abandoned(e entry) {
	k := t.slots.all[e.slot].task
	t.slots.put(e.slot)
	if k != nil {
		t.release(k)
	}
}

// failed implements role.
func (t *target) failed() {
	for t.reads.len() > 0 {
		t.reads.pop().getLeft = 0
	}
	t.chunks = noChunk // the chain they belong to is gone; so is the pool, soon
}

// Close implements iscsi.Datamover.
func (t *target) Close() error {
	if t.closed {
		return nil
	}
	err := t.shut()
	if !t.enabled {
		t.enabled = true
		t.lis.pending(-1)
	}
	return errors.Join(err, t.bounce.close(), t.lis.leave(t.dev))
}
