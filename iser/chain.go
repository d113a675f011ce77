package iser

import (
	"fmt"

	"github.com/goiser/goiser/iser/rdma"
)

// A putCursor is a place in a task's data to be written.
type putCursor struct {
	put  int    // index
	done uint32 // bytes of it
	cur  cursor // in its buffers
}

// A chainSize is what a chain needs: entries of the send queue and bounce chunks.
type chainSize struct{ wrs, chunks int }

// A mark is where the staging of a chain began, to return to.
type mark struct {
	at  putCursor
	wrs int
}

// stage implements role: the Send of a PDU, and before it the RDMA Writes of its task. A chain is staged as
// a whole or not at all, so that a response never waits for room behind its own data with the peer's
// memory half written. Only a chain that could never be in the queue as a whole goes in steps.
func (t *target) stage(e entry) bool {
	s := &t.slots.all[e.slot]
	k := s.task
	if k == nil || len(k.puts) == 0 {
		if t.room() < 1 {
			return false
		}
		o := t.stageSend(e.slot, 0)
		o.task = k
		t.traceResponse(s, k)
		return true
	}
	if k.need.wrs > t.room() || k.need.chunks > 0 && k.need.chunks > t.bounce.writes {
		return false // as found the last time
	}
	m := mark{at: k.at, wrs: len(t.wrs)}
	t.chunks = noChunk
	for k.at.put < len(k.puts) {
		if t.room() < 2 || !t.stageWrite(k, e.slot) {
			return t.stuck(k, m)
		}
	}
	o := t.stageSend(e.slot, len(t.wrs)-m.wrs)
	o.task, o.chunk = k, t.chunks
	t.chunks = noChunk
	t.traceResponse(s, k)
	return true
}

// stageWrite stages one RDMA Write; false if it needs a bounce chunk and there is none, or if the
// connection has failed.
func (t *target) stageWrite(k *task, slot int32) bool {
	p := &k.puts[k.at.put]
	before := k.at.cur
	w := t.wr()
	sgl, n := t.dev.gather(p.bufs, &k.at.cur, w.SGL, t.maxSGE, t.chunk(p.n-k.at.done))
	if n == 0 {
		if n = t.copyToBounce(p.bufs, &k.at.cur, p.n-k.at.done); n == 0 {
			if t.err == nil {
				t.wrs = t.wrs[:len(t.wrs)-1]
			}
			return false
		}
		sgl = append(sgl, t.bounce.sge(t.chunks, n))
	}
	r := &k.t.Remote
	w.ID, w.Op, w.SGL = workID(kindWrite, slot), rdma.OpWrite, sgl
	w.RKey = readSTag(r)
	w.RemoteAddr = r[remoteReadBase] + uint64(p.off) + uint64(k.at.done)
	if t.trace != nil {
		t.trace(TraceEvent{Step: TraceWritePosted, ITT: k.t.ITT, Key: w.RKey, Addr: w.RemoteAddr, Length: n, Word: firstWord(p.bufs, before)})
	}
	t.credits--
	if k.at.done += n; k.at.done == p.n {
		k.at = putCursor{put: k.at.put + 1}
	}
	return true
}

// chunk bounds a work request's length.
func (t *target) chunk(n uint32) uint32 { return min(n, maxChunk, t.limits.MaxMessage) }

// copyToBounce copies data to a bounce chunk, in front of t.chunks, and returns how much; 0 if there is no
// chunk.
func (t *target) copyToBounce(bufs [][]byte, cur *cursor, left uint32) uint32 {
	if err := t.bounce.open(t.dev, t.readDepth); err != nil {
		t.fail(fmt.Errorf("memory for unregistered data: %w", err))
		return 0
	}
	if t.bounce.writes == 0 {
		return 0
	}
	t.bounce.writes--
	t.chunks = t.bounce.take(t.chunks)
	n := min(t.chunk(left), bounceSize)
	return uint32(copyOut(t.bounce.mem(t.chunks, n), bufs, cur))
}

// stuck decides about a chain for which there was no room: back, if it will fit once others have
// completed; else what has been staged goes ahead as a step, with a completion of its own.
func (t *target) stuck(k *task, m mark) bool {
	if t.err != nil {
		return false
	}
	staged := len(t.wrs) - m.wrs
	rest := k.at
	k.at = m.at
	k.need = t.measure(k)
	if k.need.wrs <= t.sendDepth && k.need.chunks <= bounceWrites {
		t.bounce.writes += t.bounce.giveBack(t.chunks)
		t.wrs, t.credits = t.wrs[:m.wrs], t.credits+staged
		t.chunks = noChunk
		return false
	}
	k.at, k.need = rest, chainSize{}
	if staged > 0 {
		index, o := t.ops.get(kindStep)
		last := &t.wrs[len(t.wrs)-1]
		o.task, o.covers, o.chunk = k, int32(staged), t.chunks
		o.key, o.addr, o.n = last.RKey, last.RemoteAddr, uint32(rdma.Length(last.SGL))
		last.ID, last.Flags = workID(kindStep, index), rdma.Signaled
		k.steps++
	}
	t.chunks = noChunk
	return false
}

// measure counts what the rest of a chain, its Send included, needs.
func (t *target) measure(k *task) chainSize {
	size := chainSize{wrs: 1}
	at := k.at
	for at.put < len(k.puts) {
		p := &k.puts[at.put]
		_, n := t.dev.gather(p.bufs, &at.cur, t.scratch[:0], t.maxSGE, t.chunk(p.n-at.done))
		if n == 0 {
			n = skip(p.bufs, &at.cur, min(t.chunk(p.n-at.done), bounceSize))
			size.chunks++
		}
		size.wrs++
		if at.done += n; at.done == p.n {
			at = putCursor{put: at.put + 1}
		}
	}
	return size
}

// skip moves cur n bytes on, as copyOut does.
func skip(bufs [][]byte, cur *cursor, n uint32) uint32 {
	for left := int(n); left > 0; {
		m := min(left, len(bufs[cur.buf])-cur.off)
		left -= m
		if cur.off += m; cur.off == len(bufs[cur.buf]) {
			*cur = cursor{buf: cur.buf + 1}
		}
	}
	return n
}

func (t *target) traceResponse(s *slot, k *task) {
	if t.trace != nil && k != nil {
		t.trace(TraceEvent{Step: TraceResponsePosted, ITT: s.itt, Key: s.inv, Length: s.sge.Length})
	}
}
