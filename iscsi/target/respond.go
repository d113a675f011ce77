package target

import (
	"encoding/binary"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
)

const (
	// maxSending is how many bytes of read data a session may have queued in the datamover. More waits
	// here: what is queued leaves in order, and the answer to a ping must not stand behind many
	// megabytes (field report RC-08).
	maxSending = 2 << 20
	// senseMax is the longest sense data sent, bytes: what scsi makes.
	senseMax = scsi.MaxSense
)

// A taskQueue is tasks in order, linked by task.next.
type taskQueue struct{ head, tail *task }

func (q *taskQueue) push(t *task) {
	t.next = nil
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.next = t
	}
	q.tail = t
}

func (q *taskQueue) pop() *task {
	t := q.head
	if q.head = t.next; q.head == nil {
		q.tail = nil
	}
	t.next = nil
	return t
}

// remove takes t out, which must be in it.
func (q *taskQueue) remove(t *task) {
	prev := (*task)(nil)
	for p := q.head; p != t; p = p.next {
		prev = p
	}
	if prev == nil {
		q.head = t.next
	} else {
		prev.next = t.next
	}
	if q.tail == t {
		q.tail = prev
	}
	t.next = nil
}

// answerTask sends the data and the response of a task that has been executed.
func (c *conn) answerTask(t *task) {
	if len(t.scsi.Preempted) > 0 {
		c.preempt(t)
		return
	}
	if t.scsi.InData == 0 {
		c.respond(t)
		return
	}
	t.state = taskReady
	c.ready.push(t)
	c.sendReady()
}

// sendReady sends read data as far as there is room.
func (c *conn) sendReady() {
	ses := c.ses
	for t := c.ready.head; t != nil; t = c.ready.head {
		n := int(t.scsi.InData)
		if c.sending > 0 && c.sending+n > maxSending {
			return
		}
		c.ready.pop()
		t.sent = n
		c.sending += n
		ses.stats.readBytes.Add(uint64(n))
		t.sub = appendPrefix(t.sub[:0], t.scsi.In, n)
		c.dm.PutData(&t.transfer, t.sub, 0)
		c.respond(t)
	}
}

// respond queues a task's SCSI Response. From here on its ITT is free, and its slot of the window open.
func (c *conn) respond(t *task) {
	ses, s := c.ses, &t.scsi
	r := iscsi.SCSIResponse{
		Status:    uint8(s.Status),
		Overflow:  s.Overflow,
		Underflow: s.Underflow,
		Residual:  s.Residual,
		ITT:       t.transfer.ITT,
	}
	sense := s.Sense()
	if t.refused {
		r.Status, r.Overflow, r.Residual, r.Underflow = uint8(scsi.CheckCondition), false, s.EDTL, s.EDTL > 0
		sense = t.device.AppendSense(c.text[2:2], s.LUN, uint8(t.sense>>16), uint8(t.sense>>8), uint8(t.sense))
	}
	var data []byte
	if r.Status == uint8(scsi.CheckCondition) && len(sense) > 0 {
		binary.BigEndian.PutUint16(c.text[:], uint16(len(sense)))
		data = c.text[:2+copy(c.text[2:], sense)]
		c.countSense(t, sense)
	}
	ses.stats.answer(t.cdb[0], r.Status)
	if r.Status == uint8(scsi.Good) {
		ses.stats.writtenBytes.Add(uint64(s.OutLen))
	}
	t.state = taskResponding
	ses.tasks.forget(t)
	if t.windowed {
		ses.win.respond()
	}
	r.DataLength = uint32(len(data))
	r.StatSN, r.ExpCmdSN, r.MaxCmdSN = c.nextStatSN(), c.seq.ExpCmdSN, c.seq.MaxCmdSN
	c.told = r.MaxCmdSN
	r.Put(&c.bhs)
	c.dm.Respond(&t.transfer, &c.bhs, data)
	// Only now: tasks that wait for its end must not be answered before it.
	if t.sent == 0 {
		c.releaseMemory(t)
	} else if !s.Mapped {
		t.device.Release(s)
	}
}

// taskLeft ends a task whose response has left.
func (c *conn) taskLeft(t *task) {
	if t.state != taskResponding {
		panic(fmt.Sprintf("target: the datamover released task %08x in state %d", t.transfer.ITT, t.state))
	}
	c.sending -= t.sent
	c.ses.stats.latency[scsi.ClassOf(t.cdb[0])].record(c.elapsed - t.arrived)
	c.freeTask(t)
	if t.windowed {
		c.ses.win.left()
	}
	c.sendReady()
}

// endTask ends a task without a response.
func (c *conn) endTask(t *task) {
	c.ses.stats.aborted.Add(1)
	c.ses.gone.add(t.transfer.ITT)
	c.ses.tasks.forget(t)
	c.freeTask(t)
	c.openSlot(t.windowed)
	c.checkAborts()
}

func (c *conn) freeTask(t *task) {
	c.releaseMemory(t)
	t.due = false
	c.ses.tasks.put(t)
	if !t.windowed {
		c.ses.immediate--
	}
}

// releaseMemory gives back what a task holds of the pool, of the session and of the store.
func (c *conn) releaseMemory(t *task) {
	c.abandon(t)
	t.device.Release(&t.scsi)
	t.scsi.In, t.scsi.Out, t.scsi.Mapped = nil, nil, false
	if t.piece != nil {
		c.ses.mem.put(t.piece)
		t.piece = nil
	}
	if len(t.bufs) > 0 {
		c.s.c.Pool.Put(t.bufs)
		t.bufs = t.bufs[:0]
	}
	t.data = t.data[:0]
}
