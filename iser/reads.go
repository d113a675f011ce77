package iser

import (
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// stageMore implements role: RDMA Reads, as many as may be outstanding. They are not in the queue of
// Sends: a device holds a Read that is one too many, and everything behind it.
func (t *target) stageMore() {
	for t.reads.len() > 0 && t.readsOut < t.readDepth && t.roomAny() > 0 {
		k := *t.reads.front()
		if !t.stageRead(k) {
			return
		}
		if k.getLeft == 0 {
			t.reads.pop()
		}
	}
}

// stageRead stages one RDMA Read; false if it cannot, because the connection has failed.
func (t *target) stageRead(k *task) bool {
	from := k.getCur
	limit := t.chunk(k.getLeft)
	w := t.wr()
	room := max(1, min(t.maxSGE, t.limits.MaxReadSGE))
	sgl, n := t.dev.gather(k.get, &k.getCur, w.SGL, room, limit)
	chunk := noChunk
	if n == 0 {
		if err := t.bounce.open(t.dev, t.readDepth); err != nil {
			t.wrs = t.wrs[:len(t.wrs)-1]
			t.fail(fmt.Errorf("memory for unregistered data: %w", err))
			return false
		}
		chunk = t.bounce.take(noChunk) // there is one for every Read that can be outstanding
		n = min(limit, bounceSize)
		skip(k.get, &k.getCur, n)
		sgl = append(sgl, t.bounce.sge(chunk, n))
	}
	index, o := t.ops.get(kindRead)
	r := &k.t.Remote
	w.ID, w.Op, w.SGL, w.Flags = workID(kindRead, index), rdma.OpRead, sgl, rdma.Signaled
	w.RKey = writeSTag(r)
	// The base already is the address of the first byte behind the unsolicited data: every initiator
	// sends it so (ISER: TaggedBufferForSolicitedDataOnly=Yes, never negotiated).
	w.RemoteAddr = r[remoteWriteBase] + uint64(k.getOff-k.t.Unsolicited)
	o.task, o.cur, o.chunk = k, from, chunk
	o.key, o.addr, o.n = w.RKey, w.RemoteAddr, n
	if t.trace != nil {
		t.trace(TraceEvent{Step: TraceReadPosted, ITT: k.t.ITT, Key: o.key, Addr: o.addr, Length: n})
	}
	k.getOff += n
	k.getLeft -= n
	k.pending++
	t.readsOut++
	return true
}

// readDone handles the end of an RDMA Read. The data counts only when all Reads of the transfer are there.
func (t *target) readDone(o *op, ok bool) {
	k := o.task
	t.readsOut--
	k.pending--
	if ok && !k.aborted {
		if o.chunk != noChunk {
			cur := o.cur
			copyIn(k.get, &cur, t.bounce.mem(o.chunk, o.n))
		}
		if t.trace != nil {
			t.trace(TraceEvent{Step: TraceReadDone, ITT: k.t.ITT, Key: o.key, Addr: o.addr, Length: o.n, Word: firstWord(k.get, o.cur)})
		}
	}
	t.bounce.giveBack(o.chunk)
	switch {
	case k.pending > 0 || k.getLeft > 0:
	case k.over:
		t.release(k)
	case ok && t.err == nil:
		k.get = nil
		t.ready.push(iscsi.Event{Kind: iscsi.EventGot, Transfer: k.t})
	}
}
