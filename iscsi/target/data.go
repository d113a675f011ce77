package target

import (
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
)

// writeCommand takes a write with data that comes unasked: immediate data, and Data-Out that follows.
func (c *conn) writeCommand(t *task, data []byte) {
	s := &t.scsi
	want := int(s.OutLen) // 0 if the device server has answered already
	t.unsolicited = uint32(len(data))
	if !t.due && len(data) >= want && !s.MayBlock {
		// All of it is here, and the store takes it at once: from where it lies.
		if want > 0 {
			t.one[0] = data[:want]
			s.Out = t.one[:]
		}
		c.execute(t)
		t.one[0], s.Out = nil, nil
		return
	}
	if want > 0 && !c.placeUnsolicited(t, want) {
		c.taskSetFull(t)
		return
	}
	copyTo(t.data, 0, data)
	if t.due {
		t.state, t.since = taskCollecting, c.now
		return
	}
	c.collected(t)
}

// placeUnsolicited gives a write the place of its unsolicited data. It reports false if there is none,
// which happens to immediate commands only: see memory.go.
func (c *conn) placeUnsolicited(t *task, want int) bool {
	if t.windowed {
		t.piece = c.ses.mem.take()
		t.data = appendPrefix(t.data[:0], t.piece, min(want, c.ses.mem.unit))
		return true
	}
	var ok bool
	if t.bufs, ok = c.s.c.Pool.Get(t.bufs[:0], want); ok {
		t.data = append(t.data[:0], t.bufs...)
	}
	return ok
}

// taskSetFull answers a command for which there is no memory now.
func (c *conn) taskSetFull(t *task) {
	if t.due {
		c.ses.gone.add(t.transfer.ITT)
		t.due = false
	}
	c.abandon(t)
	s := &t.scsi
	s.Status, s.InData, s.Overflow = scsi.TaskSetFull, 0, false
	s.Residual, s.Underflow = s.EDTL, s.EDTL > 0
	c.respond(t)
}

// dataOut takes an unsolicited Data-Out (RFC 7143, 11.7). Data that was asked for stays in the datamover.
func (c *conn) dataOut(ev *iscsi.Event) {
	var d iscsi.DataOut
	if err := d.Parse(ev.BHS); err != nil {
		c.fail(err)
		return
	}
	t := c.ses.tasks.find(d.ITT)
	if t == nil && c.ses.gone.has(d.ITT) {
		return
	}
	if t != nil && t.c == c && (t.aborted || t.full) {
		return
	}
	switch {
	case t == nil || t.c != c:
		c.fail(fmt.Errorf("Data-Out for task %08x: no such task", d.ITT))
		return
	case !t.due:
		c.fail(fmt.Errorf("Data-Out for task %08x: no unsolicited data is due", d.ITT))
		return
	case d.TTT != iscsi.ReservedTag:
		c.fail(fmt.Errorf("Data-Out for task %08x: target transfer tag %08x was not given", d.ITT, d.TTT))
		return
	}
	n := uint32(len(ev.Data))
	if !t.refused && !t.follows(&d, n) {
		c.abandon(t)
		t.refused = true
		t.sense = senseWrongAmount
	}
	if !t.refused {
		copyTo(t.data, int(d.Offset), ev.Data)
		t.unsolicited += n
		t.dataSN++
		c.fetched = c.now
	}
	if d.Final {
		t.due = false
		if t.state == taskCollecting {
			c.collected(t)
		}
	}
}

// follows holds an unsolicited Data-Out against what came before (RFC 7143, 4.2.5.2 and 11.7). A task for which it
// does not is ended with CHECK CONDITION, once all of its data has come (RFC 7143, 7.8 and 7.9).
func (t *task) follows(d *iscsi.DataOut, n uint32) bool {
	return d.DataSN == t.dataSN && d.Offset == t.unsolicited &&
		n <= t.transfer.Unsolicited-t.unsolicited && // min(FirstBurstLength, EDTL) in all
		(n > 0 || d.Final)
}

// collected goes on with a write whose unsolicited data has come.
func (c *conn) collected(t *task) {
	if t.refused || t.scsi.Done {
		c.respond(t)
		return
	}
	c.fetch(t)
}

// fetch gets a prepared task the buffers that it needs and then the data; with both it is executed.
func (c *conn) fetch(t *task) {
	s := &t.scsi
	need := int(s.InLen)
	if s.Mapped {
		need = 0
	}
	if s.OutLen > 0 {
		if t.windowed && t.piece == nil {
			c.placeUnsolicited(t, int(s.OutLen))
		}
		need = int(s.OutLen) - totalLen(t.data)
	}
	if need <= 0 {
		c.gather(t)
		return
	}
	var ok bool
	if t.bufs, ok = c.s.c.Pool.Get(t.bufs[:0], need); ok {
		t.data = append(t.data, t.bufs...)
		c.gather(t)
		return
	}
	t.state = taskWaiting
	if !c.s.c.Pool.Wait(&t.wait, need) {
		panic(fmt.Sprintf("target: %d bytes from a pool of %d chunks", need, c.s.c.Pool.Chunks()))
	}
}

// granted goes on with a task that has waited for the pool.
func (c *conn) granted(t *task) {
	t.bufs = append(t.bufs[:0], t.wait.Bufs...)
	if t.aborted {
		c.endTask(t)
		return
	}
	t.data = append(t.data, t.bufs...)
	c.gather(t)
}

// gather fetches what is missing of a write. t.data has room for all that the device wants.
func (c *conn) gather(t *task) {
	s := &t.scsi
	if have := min(t.unsolicited, s.OutLen); have < s.OutLen {
		t.state, t.since = taskFetching, c.now
		t.sub = appendFrom(t.sub[:0], t.data, int(have))
		c.dm.GetData(&t.transfer, t.sub, have)
		return
	}
	c.start(t)
}

// got goes on with a write whose data has all come.
func (c *conn) got(t *task) {
	c.fetched = c.now
	if t.state != taskFetching {
		return // aborted meanwhile: EventReleased will come
	}
	c.start(t)
}

// start executes a task that has everything, here or with the workers.
func (c *conn) start(t *task) {
	s := &t.scsi
	switch {
	case s.OutLen > 0:
		s.Out = t.data
	case !s.Mapped && s.InLen > 0:
		s.In = t.data
	}
	switch {
	case !s.MayBlock:
		c.execute(t)
		return
	case t.device.TryExecute(s):
		t.prepared = false
		c.answerTask(t)
		return
	}
	t.state = taskRunning
	c.running++
	t.prepared = false // the worker executes it, or cancel brings it back
	c.s.workers.submit(t)
}

// execute executes a task whose store does not block, and answers.
func (c *conn) execute(t *task) {
	if t.prepared {
		t.device.Execute(&t.scsi)
		if t.scsi.NeedsRoom { // it was to be sent from the store's memory, and must not be
			c.fetch(t)
			return
		}
		t.prepared = false // not earlier: after a panic the task is abandoned
	}
	c.answerTask(t)
}

// executed goes on with a task that a worker has executed.
func (c *conn) executed(t *task) {
	c.running--
	if t.panicked != nil {
		c.reportPanic(t)
		c.fail(fmt.Errorf("task %08x on lun %v: panic while executing", t.transfer.ITT, t.transfer.LUN))
	}
	if t.aborted || c.err != nil {
		t.state = taskReady // no worker has it any more
		c.endTask(t)
		return
	}
	c.answerTask(t)
}
