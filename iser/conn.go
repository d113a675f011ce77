package iser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

const (
	// pollBatch is how many completions are taken at a time.
	pollBatch = 64
	// maxLoginData is the longest data segment of a login or discovery PDU, in bytes (RFC 7143, 6.2).
	maxLoginData = 8192
	// maxRecvData is the longest data segment that we can receive in full-feature phase, in bytes.
	maxRecvData = 8192
	// maxSendData caps what we send in full-feature phase, in bytes: the Linux initiator posts buffers
	// for 128, whatever it has negotiated.
	maxSendData = 128
	// recvSize is the size of a receive buffer, in bytes.
	recvSize = (fixedSize + maxAHS + maxRecvData + maxPad + 63) &^ 63
	// loginSlots is how many long PDUs can be queued during login and in discovery.
	loginSlots = 4
	// spareSlots is how many send slots are kept for PDUs that answer nothing: pings and asynchronous
	// messages.
	spareSlots = 2
	// drainTimeout bounds how long a dead connection's completions are waited for.
	drainTimeout = 5 * time.Second
	// retryInterval and retryTimeout: a device that has refused a post although there is room, with
	// nothing outstanding whose completion could make room, is asked again.
	retryInterval = time.Millisecond
	retryTimeout  = 5 * time.Second
)

// A role is what the two ends do differently.
type role interface {
	// receive handles a PDU; ok is false if there is nothing to tell the engine.
	receive(m *message, c *rdma.Completion) (ev iscsi.Event, ok bool)
	// sent: the Send of a slot has completed, or was flushed, or will never be posted. The slot is freed
	// next.
	sent(s *slot)
	// stage makes work requests of the front of the queue; false if it has to stay.
	stage(e entry) bool
	// stageMore makes work requests of what is outside the queue.
	stageMore()
	// done: a Read, a step or an invalidation has completed. The op is freed next.
	done(o *op, ok bool)
	// failed: the connection is over; nothing that has not been posted ever will be.
	failed()
	// abandoned: this entry was still queued then.
	abandoned(e entry)
}

// An entry of the send queue is a filled slot or, at the initiator, a command that may have to wait for
// memory.
type entry struct {
	slot int32
	cmd  *command
}

// A conn is what both ends of a connection have in common: a queue pair with one completion queue, the
// receive buffers, and the first-in-first-out queue of what is to be sent. One goroutine, the engine's
// loop, calls everything but Wake.
//
//	engine ─Send,Respond─► queue ─stage─► wrs ─post─► device ─complete─► slots, ops, events
type conn struct {
	role   role
	ep     rdma.Endpoint
	qp     rdma.QueuePair
	cq     rdma.CompletionQueue
	dev    *device
	limits rdma.Limits
	trace  func(TraceEvent)

	local, remote net.Addr

	fullFeature bool // Enable has been called
	maxData     int  // longest data segment to be sent now, bytes

	slots  slots
	ops    ops
	queue  queue[entry]
	ready  queue[iscsi.Event] // events without views that are still to be delivered
	onWire int                // signalled work requests posted and not completed
	sends  int                // of these, and of those staged, the Sends

	staging
	receiving

	comps [pollBatch]rdma.Completion
	moved bool // completions were handled since the last advance

	err        error // why the connection is over
	drainUntil time.Time
	closed     bool

	woken  atomic.Bool
	wakeMu sync.Mutex // guards cq against Close while others wake
	gone   bool       // cq is closed
}

// Traits implements iscsi.Datamover.
func (c *conn) Traits() iscsi.Traits {
	return iscsi.Traits{
		Name: "iser", RDMA: true, DefaultInitialR2T: true, Acknowledged: true,
		MaxLoginData: maxLoginData, MaxSendData: maxSendData, MaxRecvData: maxRecvData,
	}
}

// LocalAddr implements iscsi.Datamover.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements iscsi.Datamover.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// Wait implements iscsi.Datamover; evs must have room.
func (c *conn) Wait(evs []iscsi.Event, deadline time.Time) (int, error) {
	for {
		woken := c.woken.Load()
		if woken {
			c.woken.Store(false) // before the poll: whoever wakes from here on is noticed by the next Wait
		}
		if n := c.poll(evs); n > 0 {
			return n, nil
		}
		if c.moved && c.err == nil {
			c.advance() // completions of which the engine need not know have made room
		}
		if c.err != nil && c.drained() {
			return 0, c.err
		}
		if woken || !deadline.IsZero() && !time.Now().Before(deadline) {
			return 0, nil
		}
		if c.ready.len() > 0 {
			continue
		}
		if err := c.cq.Wait(c.nextWait(deadline)); err != nil {
			c.fail(fmt.Errorf("wait for completions: %w", err))
			c.drainUntil = time.Time{} // no completion will come any more
		}
		if c.stalled() && c.err == nil {
			c.advance()
		}
	}
}

// nextWait is when to look again even if nothing has completed.
func (c *conn) nextWait(deadline time.Time) time.Time {
	own := c.drainUntil
	if c.err == nil {
		if !c.stalled() {
			return deadline
		}
		own = time.Now().Add(retryInterval)
	}
	if deadline.IsZero() || own.Before(deadline) {
		return own
	}
	return deadline
}

// drained reports whether a dead connection has nothing more to tell.
func (c *conn) drained() bool {
	return c.ready.len() == 0 && (c.closed || c.onWire == 0 || !time.Now().Before(c.drainUntil))
}

// poll takes completions and fills evs.
func (c *conn) poll(evs []iscsi.Event) int {
	n := c.takeReady(evs)
	for n < len(evs) && !c.closed {
		batch := c.comps[:min(len(evs)-n, pollBatch)]
		m, err := c.cq.Poll(batch)
		if err != nil {
			c.fail(fmt.Errorf("poll completions: %w", err))
			c.drainUntil = time.Time{}
		}
		for i := range batch[:m] {
			if ev, ok := c.complete(&batch[i]); ok {
				evs[n] = ev
				n++
			}
		}
		n += c.takeReady(evs[n:])
		if m < len(batch) {
			break
		}
	}
	return n
}

func (c *conn) takeReady(evs []iscsi.Event) int {
	n := 0
	for n < len(evs) && c.ready.len() > 0 {
		evs[n] = c.ready.pop()
		n++
	}
	return n
}

// complete handles one completion.
func (c *conn) complete(comp *rdma.Completion) (ev iscsi.Event, ok bool) {
	c.moved = true
	k, index := splitID(comp.ID)
	success := comp.Status == rdma.Success
	switch k {
	case kindRecv:
		return c.received(index, comp)
	case kindWrite, kindBind:
		if !success {
			c.fail(c.workError(comp))
		}
		return ev, false
	}
	o := c.ops.at(k, index)
	if o == nil {
		c.fail(fmt.Errorf("completion of unknown work request %#x", comp.ID))
		return ev, false
	}
	if !success {
		c.fail(c.workError(comp))
	}
	c.onWire--
	c.finish(index, o, success)
	return ev, false
}

// finish ends an op: its memory and its share of the send queue are free again.
func (c *conn) finish(index int32, o *op, success bool) {
	switch o.kind {
	case kindSend:
		c.sends--
		c.credits += int(o.covers)
		s := &c.slots.all[o.slot]
		if c.trace != nil && success {
			c.trace(TraceEvent{Step: TraceSendDone, ITT: s.itt})
		}
		c.role.done(o, success)
		c.role.sent(s)
		c.slots.put(o.slot)
	case kindStep, kindInvalidate:
		c.credits += int(o.covers)
		c.role.done(o, success)
	case kindRead:
		c.role.done(o, success)
	}
	c.ops.put(index)
}

// workError makes an error of a failed completion. A flushed work request did not fail: the queue pair
// was in error already, most likely because the peer has disconnected.
func (c *conn) workError(comp *rdma.Completion) error {
	if comp.Status == rdma.WRFlushErr {
		return fmt.Errorf("connection closed by the peer: %w", io.EOF)
	}
	k, index := splitID(comp.ID)
	e := &CompletionError{Work: k.String(), Status: comp.Status, Vendor: comp.VendorErr}
	invalidate := false
	slot := int32(-1)
	if o := c.ops.at(k, index); o != nil {
		e.Key, e.Addr, e.Length = o.key, o.addr, o.n
		switch {
		case k == kindSend:
			slot = o.slot
		case o.task != nil:
			e.ITT, e.HasITT = o.task.t.ITT, true
		case o.cmd != nil:
			e.ITT, e.HasITT = o.cmd.itt, true
		}
	} else if (k == kindWrite || k == kindBind) && index >= 0 && int(index) < len(c.slots.all) {
		slot = index
	}
	if slot >= 0 {
		s := &c.slots.all[slot]
		e.ITT, e.HasITT = s.itt, true
		if invalidate = s.op == rdma.OpSendInv && k == kindSend; invalidate {
			e.Work, e.Key = s.op.String(), s.inv
		}
	}
	e.Hint = hint(k, invalidate, comp.Status)
	return e
}

// fail ends the connection: nothing more is posted, and what was posted comes back flushed. The first
// error is kept, unless all it said was that work requests were flushed.
func (c *conn) fail(err error) {
	if c.err != nil {
		if errors.Is(c.err, io.EOF) && !errors.Is(err, io.EOF) && !c.closed {
			c.err = err
		}
		return
	}
	c.err = err
	c.drainUntil = time.Now().Add(drainTimeout)
	_ = c.ep.Disconnect() // there is nobody to tell: the connection is lost either way
	c.unstage()
	for c.queue.len() > 0 {
		c.role.abandoned(c.queue.pop())
	}
	c.role.failed()
}

// Send implements iscsi.Datamover.
func (c *conn) Send(bhs *[iscsi.BHSSize]byte, data []byte) {
	if index, ok := c.fill(&Header{}, bhs, nil, data); ok {
		c.queue.push(entry{slot: index})
	}
}

// fill copies a PDU to a slot. Without one the connection is over: the slots suffice for all answers
// that a peer can ask for while we do not let it (see repost), so this is an engine that talks without
// being asked.
func (c *conn) fill(h *Header, bhs *[iscsi.BHSSize]byte, ahs, data []byte) (index int32, ok bool) {
	if c.err != nil {
		return 0, false
	}
	limit := c.maxData
	if iscsi.OpcodeOf(bhs) == iscsi.OpLoginResponse {
		limit = maxLoginData // the final one comes after Enable
	}
	if len(data) > limit {
		panic(fmt.Sprintf("iser: %d bytes of data in a PDU with opcode %v; %d may be sent", len(data), iscsi.OpcodeOf(bhs), limit))
	}
	index, ok = c.slots.get(fixedSize + len(ahs) + len(data))
	if !ok {
		c.fail(fmt.Errorf("%w: more PDUs queued than a connection can have outstanding", rdma.ErrQueueFull))
		return 0, false
	}
	s := &c.slots.all[index]
	b := append(h.Append(s.mem[:0]), bhs[:]...)
	b = append(b, ahs...)
	_ = append(b, data...)
	s.op, s.itt = rdma.OpSend, iscsi.ITTOf(bhs)
	return index, true
}

// Flush implements iscsi.Datamover.
func (c *conn) Flush() error {
	c.endViews()
	if c.err == nil {
		c.advance()
	}
	return c.err
}

// advance does all that can be done now: the receives first, so that the peer's next message finds a
// buffer before our answer has allowed it to be sent.
func (c *conn) advance() {
	c.moved = false
	c.repost()
	for c.err == nil && c.queue.len() > 0 {
		if !c.role.stage(*c.queue.front()) {
			break
		}
		if c.err == nil {
			c.queue.pop()
		}
	}
	if c.err == nil {
		c.role.stageMore()
	}
	c.post()
}

// Idle implements iscsi.Datamover.
func (c *conn) Idle() bool { return c.queue.len() == 0 && c.sends == 0 }

// Wake implements iscsi.Datamover.
func (c *conn) Wake() {
	if c.woken.Swap(true) {
		return // a Wait that has not noticed yet has been woken
	}
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if !c.gone {
		c.cq.Wake()
	}
}

// shut ends the connection and frees what both roles have. After the endpoint is closed the device uses
// no memory any more, so nothing has to be waited for.
func (c *conn) shut() error {
	c.fail(fmt.Errorf("iSER connection: %w", net.ErrClosed))
	c.closed = true
	errs := []error{c.ep.Close()}
	c.wakeMu.Lock()
	c.gone = true
	errs = append(errs, c.cq.Close())
	c.wakeMu.Unlock()
	for _, b := range append(c.slots.blocks, c.recvBlocks...) {
		errs = append(errs, b.close())
	}
	c.slots.blocks, c.recvBlocks = nil, nil
	return errors.Join(errs...)
}
