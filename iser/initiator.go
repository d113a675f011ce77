package iser

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

const (
	defaultQueueDepth   = 128
	maxQueueDepth       = 4096
	defaultPoolBytes    = 32 << 20
	defaultMaxImmediate = 4096
	// recvReserve is how many PDUs that answer no command a target may send at a time: the kernel's
	// constants assume two NOP-In and two Async.
	recvReserve = 8
	// smallCommand holds a command with AHS and any control PDU, without inline data.
	smallCommand = fixedSize + maxAHS + maxSendData
)

// A command is a transfer's state at the initiator, from SendCommand to EventReleased.
type command struct {
	request
	t   *iscsi.Transfer
	bhs [iscsi.BHSSize]byte
	ahs []byte
	itt uint32

	started bool // its command PDU has been staged
	reads   bool // what it offers is for read data
	offered
	out    [][]byte // data to be written: the caller's, or a copy after Detach
	outCur cursor
	plan   plan
	next   uint32 // offset of the next unsolicited Data-Out
	dataSN uint32
}

// A plan is how a write's data travels: with the command, in unsolicited Data-Out PDUs up to the byte
// unsolicited, and the rest by the target's RDMA Reads.
type plan struct{ immediate, unsolicited, total uint32 }

func (p plan) fetched() uint32 { return p.total - p.unsolicited }

// An initiator is the initiator's end of a connection.
type initiator struct {
	conn
	config InitiatorConfig
	params iscsi.Params
	seq    *iscsi.Sequence

	// pings are immediate NOP-Outs. They pass commands that wait for memory: a busy target would else be
	// taken for a dead one. Nothing orders them (RFC 7143, 4.2.2.1).
	pings queue[entry]

	byITT    map[uint32]*command // commands without response
	active   int                 // of these, those that were sent
	commands []*command          // not in use
	keys     *keyring            // nil: keys are permanent
	sink     *pool               // read data
	source   *pool               // write data
	closing  queue[*command]     // those whose keys are to be invalidated
	copied   uint64              // bytes of data that our processor has moved
}

var (
	_ iscsi.InitiatorDatamover = (*initiator)(nil)
	_ iscsi.Registrar          = (*initiator)(nil)
)

// Traits implements iscsi.Datamover. The cap on what is sent in full-feature phase is for initiators' short
// receive buffers; a target posts what it has declared, and immediate data needs it.
func (i *initiator) Traits() iscsi.Traits {
	t := i.conn.Traits()
	t.MaxSendData = 0
	return t
}

// Send implements iscsi.Datamover.
func (i *initiator) Send(bhs *[iscsi.BHSSize]byte, data []byte) {
	if iscsi.OpcodeOf(bhs) != iscsi.OpNOPOut || !iscsi.IsImmediate(bhs) {
		i.conn.Send(bhs, data)
		return
	}
	if index, ok := i.fill(&Header{}, bhs, nil, data); ok {
		i.pings.push(entry{slot: index})
	}
}

// Idle implements iscsi.Datamover.
func (i *initiator) Idle() bool { return i.conn.Idle() && i.pings.len() == 0 }

// Prepare implements iscsi.InitiatorDatamover. All receives have been posted since the connection was made,
// each long enough for login and for full-feature phase, so there is no transition to prepare.
func (i *initiator) Prepare(*iscsi.Params) error { return i.err }

// Enable implements iscsi.Datamover: it makes the send slots of full-feature phase.
func (i *initiator) Enable(p *iscsi.Params, seq *iscsi.Sequence) error {
	if i.err != nil {
		return i.err
	}
	if i.fullFeature {
		return errors.New("iSER connection: enabled twice")
	}
	i.fullFeature = true
	i.params, i.seq = *p, seq
	n := i.config.QueueDepth
	if err := i.slots.grow(i.dev, 2*n+recvReserve+2*spareSlots, smallCommand); err != nil {
		return err
	}
	if p.Discovery {
		return nil // no commands, and text may be long
	}
	i.maxData = maxSendData
	return i.slots.grow(i.dev, n, fixedSize+maxAHS+int(i.inline()))
}

// inline is the longest data segment of a command or Data-Out.
func (i *initiator) inline() uint32 {
	most := uint32(i.config.MaxImmediate)
	if i.config.PartialImmediate || !i.params.InitialR2T {
		most = maxRecvData
	}
	return min(most, i.params.MaxSendData, maxRecvData)
}

// planWrite decides how edtl bytes travel. Immediate data is all or nothing, unless configured otherwise:
// a command without key cannot have it invalidated while its inline data is being sent, and the target
// has no offset to get wrong.
func (i *initiator) planWrite(edtl uint32) plan {
	p := &i.params
	var inline uint32
	if p.ImmediateData {
		inline = min(p.FirstBurstLength, i.inline(), edtl)
	}
	if edtl <= inline && edtl <= uint32(i.config.MaxImmediate) {
		return plan{immediate: edtl, unsolicited: edtl, total: edtl}
	}
	if !i.config.PartialImmediate {
		inline = 0
	}
	unsolicited := inline
	if !p.InitialR2T && i.inline() > 0 {
		unsolicited = max(inline, min(p.FirstBurstLength, edtl))
	}
	return plan{immediate: inline, unsolicited: unsolicited, total: edtl}
}

// SendCommand implements iscsi.InitiatorDatamover. Bidirectional commands are not supported.
func (i *initiator) SendCommand(t *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, ahs []byte) {
	const flagRead, flagWrite = 0x40, 0x20
	c := i.command()
	c.t, c.bhs, c.ahs, c.itt = t, *bhs, append(c.ahs[:0], ahs...), iscsi.ITTOf(bhs)
	c.queued = true
	t.DM = iscsi.TransferState{Ptr: c}
	if i.err != nil {
		i.do(c, c.die())
		return
	}
	read, write := bhs[1]&flagRead != 0 && t.EDTL > 0, bhs[1]&flagWrite != 0 && t.EDTL > 0
	if read && write || len(ahs) > maxAHS || i.byITT[c.itt] != nil {
		panic(fmt.Sprintf("iser: command %08x with %d bytes of AHS, bidirectional %v, outstanding %v",
			c.itt, len(ahs), read && write, i.byITT[c.itt] != nil))
	}
	c.reads = read
	if write {
		c.plan, c.out = i.planWrite(t.EDTL), t.Out
	}
	c.next = c.plan.immediate
	if t.InPlace && (read || write) {
		i.locate(c)
	}
	i.byITT[c.itt] = c
	i.queue.push(entry{cmd: c})
}

// command takes a command that is not in use.
func (i *initiator) command() *command {
	if last := len(i.commands) - 1; last >= 0 {
		c := i.commands[last]
		i.commands = i.commands[:last]
		return c
	}
	return &command{ahs: make([]byte, 0, maxAHS)}
}

// stage implements role.
func (i *initiator) stage(e entry) bool {
	c := e.cmd
	if c == nil {
		if i.room() < 1 {
			return false
		}
		i.stageSend(e.slot, 0)
		return true
	}
	if !c.started && !i.start(c) {
		return false
	}
	for c.next < c.plan.unsolicited && !c.answered && !c.forgotten {
		if !i.stageDataOut(c) {
			return false
		}
	}
	i.do(c, c.allSent())
	return true
}

// start stages a command's PDU, behind the bind of its window. False if it has to wait: for another command's end,
// or for memory.
func (i *initiator) start(c *command) bool {
	const bindAndSend = 2
	if i.room() < bindAndSend || i.active >= i.config.QueueDepth {
		return false
	}
	index, ok := i.slot(c, len(c.ahs), c.plan.immediate)
	if !ok {
		return false
	}
	i.slots.all[index].op = rdma.OpSend
	h, ok := i.offer(c)
	if !ok {
		i.slots.put(index)
		return false
	}
	iscsi.SetFinal(&c.bhs, c.plan.immediate == c.plan.unsolicited)
	iscsi.SetDataLength(&c.bhs, c.plan.immediate)
	s := &i.slots.all[index]
	word := firstWord(c.out, c.outCur)
	i.inlineData(c, s, append(append(h.Append(s.mem[:0]), c.bhs[:]...), c.ahs...), 0, c.plan.immediate)
	c.started = true
	i.active++
	i.stageSend(index, i.stageBind(c, index))
	if i.trace != nil {
		i.trace(TraceEvent{
			Step: TraceCommandSent, ITT: c.itt, Key: cmp.Or(h.ReadSTag, h.WriteSTag), Addr: cmp.Or(h.ReadBase, h.WriteBase),
			Length: c.t.EDTL, Word: word,
		})
	}
	return true
}

// slot takes a send slot for a PDU of a command, with ahs bytes of AHS and data bytes of data, unless it is wanted
// for the answers to what may still arrive. One Send at a time always goes: PDUs that wait behind the command may
// hold all the others.
func (i *initiator) slot(c *command, ahs int, data uint32) (int32, bool) {
	if i.sends > 0 && i.slots.spare() <= i.posted+spareSlots {
		return 0, false
	}
	if c.inPlace {
		data = 0 // it is sent from where it is
	}
	return i.slots.get(fixedSize + ahs + int(data))
}

// inlineData ends the PDU b, which is in s, with bytes [off, off+n) of the command's data.
func (i *initiator) inlineData(c *command, s *slot, b []byte, off, n uint32) {
	s.itt, s.cmd = c.itt, c
	c.sending()
	switch {
	case n == 0:
	case c.inPlace:
		s.data = c.sge(off, n)
	default:
		data := b[len(b) : len(b)+int(n)]
		clear(data[i.copyOut(data, c.out, &c.outCur):])
	}
}

// stageDataOut stages the next unsolicited Data-Out: as long as the target takes, but for the last one
// (RFC 7145, 6.4).
func (i *initiator) stageDataOut(c *command) bool {
	n := min(c.plan.unsolicited-c.next, i.inline())
	if i.room() < 1 {
		return false
	}
	index, ok := i.slot(c, 0, n)
	if !ok {
		return false
	}
	pdu := iscsi.DataOut{
		Final: c.next+n == c.plan.unsolicited, DataLength: n, LUN: c.t.LUN, ITT: c.itt, TTT: iscsi.ReservedTag,
		ExpStatSN: i.seq.StatSN, DataSN: c.dataSN, Offset: c.next,
	}
	var bhs [iscsi.BHSSize]byte
	pdu.Put(&bhs)
	s := &i.slots.all[index]
	h := Header{}
	i.inlineData(c, s, append(h.Append(s.mem[:0]), bhs[:]...), c.next, n)
	s.op = rdma.OpSend
	c.dataSN++
	c.next += n
	i.stageSend(index, 0)
	return true
}

// stageMore implements role. Invalidations are not in the queue of Sends, which may be waiting for just the memory
// that they free.
func (i *initiator) stageMore() {
	for i.closing.len() > 0 && i.room() > 0 {
		i.stageInvalidate(i.closing.pop())
	}
	for i.pings.len() > 0 && i.room() > 0 {
		i.stageSend(i.pings.pop().slot, 0)
	}
}

// done implements role. An invalidation that was flushed has not closed its key: the queue pair's end does.
func (i *initiator) done(o *op, ok bool) {
	switch {
	case o.kind != kindInvalidate:
	case ok && i.err == nil:
		i.do(o.cmd, o.cmd.closed())
	default:
		i.do(o.cmd, o.cmd.die())
	}
}

// sent implements role.
func (i *initiator) sent(s *slot) {
	if s.cmd != nil {
		i.do(s.cmd, s.cmd.sent())
	}
}

// abandoned implements role.
func (i *initiator) abandoned(e entry) {
	if e.cmd == nil {
		i.slots.put(e.slot)
	}
}

// failed implements role: every command ends, but those whose caller's memory the queue pair may still use.
func (i *initiator) failed() {
	for _, c := range i.byITT {
		i.do(c, c.die())
	}
	clear(i.byITT)
	i.active = 0
	for i.closing.len() > 0 {
		c := i.closing.pop()
		i.do(c, c.die())
	}
	for i.pings.len() > 0 {
		i.slots.put(i.pings.pop().slot)
	}
}

// Received implements iscsi.InitiatorDatamover. The number outlives the transfer's EventReleased, which may
// come in the same batch as the response: until then it is in Offset.
func (i *initiator) Received(t *iscsi.Transfer) uint32 { return t.DM.Offset }

// Detach implements iscsi.InitiatorDatamover. A command that has not been sent yet must still be sent, for
// it has its CmdSN: it then has a copy of its data, the one thing here that allocates.
func (i *initiator) Detach(t *iscsi.Transfer) {
	c, _ := t.DM.Ptr.(*command)
	if c == nil || c.detached {
		return
	}
	if c.inPlace {
		panic(fmt.Sprintf("iser: command %08x uses its caller's memory and cannot be detached from it", c.itt))
	}
	c.detached = true
	if !c.queued || len(c.out) == 0 {
		c.out = nil
		return
	}
	private := make([]byte, total(c.out))
	i.copyOut(private, c.out, &cursor{})
	c.out = [][]byte{private}
	if c.started {
		c.outCur = seek(c.out, c.next)
	}
}

// Forget implements iscsi.InitiatorDatamover. A command that still waits to be sent is not sent.
func (i *initiator) Forget(t *iscsi.Transfer) {
	c, _ := t.DM.Ptr.(*command)
	if c == nil || c.answered || c.forgotten || c.released {
		return
	}
	delete(i.byITT, c.itt)
	if c.started {
		i.active--
	} else {
		i.queue.remove(func(e entry) bool { return e.cmd == c })
		c.queued = false
	}
	i.do(c, c.forget())
}

// release tells the engine that a command is over.
func (i *initiator) release(c *command) {
	t := c.t
	t.DM = iscsi.TransferState{Offset: t.DM.Offset}
	i.ready.push(iscsi.Event{Kind: iscsi.EventReleased, Transfer: t})
	if i.err == nil { // else its slots may still name it
		*c = command{ahs: c.ahs[:0]}
		i.commands = append(i.commands, c)
	}
}

// Close implements iscsi.Datamover.
func (i *initiator) Close() error {
	if i.closed {
		return nil
	}
	return errors.Join(i.shut(), i.closeMemory())
}
