package iser

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// A walkKind is a kind of command, and how its data travels.
type walkKind struct {
	name               string
	read, write        bool
	size               int
	partial, noR2T     bool
	inPlace, permanent bool
	ways               uint64 // how many interleavings there are
}

const walkITT, abortITT = 0x1001, 0x2001

// A world is an initiator on the model's device, with an engine that does what iscsi/initiator does, and a target.
type world struct {
	model
	kind walkKind
	ini  *initiator
	c    *command // the command, as long as it is one
	tr   iscsi.Transfer
	buf  []byte // the caller's

	// the engine
	gaveUp, aborted, forgotten bool
	answered                   bool // the response came
	released, told             int
	err                        error
	over                       bool // Close was called

	// the target
	header             Header // of the command, once it has come
	knows, knowsAbort  bool
	data               bool // it has moved the data
	responds, finishes bool // it has sent the response, the abort's answer
	late               bool // and used the key after that
	wrong              bool // it has invalidated a key that was not its to
}

var (
	fromPeer = bytes.Repeat([]byte{0xaa}, 16<<10)
	callers  = bytes.Repeat([]byte{0x5a}, 16<<10)
	spoiled  = bytes.Repeat([]byte{0xdb}, 16<<10)
)

func newWorld(t testing.TB, k walkKind) *world {
	mem := make([]byte, 2048) // the model needs none that is mapped
	w := &world{kind: k, buf: mem[:k.size]}
	w.regions, w.bound = map[uint32]*modelRegion{}, map[uint32]*modelWindow{}
	pattern(w.buf, 7)
	c, err := InitiatorConfig{QueueDepth: 1, PoolBytes: 1, PartialImmediate: k.partial, NoInvalidate: k.permanent}.withDefaults()
	require.NoError(t, err)
	w.ini = &initiator{conn: conn{ep: w, dev: newDevice(w, windowRights)}, config: c, byITT: map[uint32]*command{}}
	w.ini.role = w.ini
	require.NoError(t, w.ini.connect(t.Context()))
	p := normalParams()
	p.InitialR2T, p.FirstBurstLength, p.MaxSendData = !k.noR2T, 512, 512
	require.NoError(t, w.ini.Enable(p, &iscsi.Sequence{}))
	w.tr = iscsi.Transfer{ITT: walkITT, EDTL: uint32(k.size), InPlace: k.inPlace}
	if k.inPlace {
		require.NoError(t, w.ini.Register(mem))
	}
	cmd := iscsi.SCSICommand{Read: k.read, Write: k.write, ITT: walkITT, EDTL: uint32(k.size)}
	if k.read {
		w.tr.In = [][]byte{w.buf}
	} else if k.write {
		w.tr.Out = [][]byte{w.buf}
	}
	var bhs [iscsi.BHSSize]byte
	cmd.Put(&bhs)
	w.ini.SendCommand(&w.tr, &bhs, nil)
	w.c = w.tr.DM.Ptr.(*command)
	w.flush()
	return w
}

func (w *world) flush() {
	if err := w.ini.Flush(); err != nil {
		w.err = err
	}
}

// The steps of the world, each a letter.
const (
	stepExecute  = 'x' // our device does the next work request
	stepComplete = 's' // the peer's acknowledgement comes: the oldest Send, or an invalidation, completes
	stepRound    = 'r' // the engine takes all completions, and posts what comes of it
	stepGiveUp   = 'g' // the caller's context ends, or the command times out
	stepMove     = 'w' // the target moves the command's data: RDMA Write, or Read
	stepRespond  = 'p' // the target responds
	stepInv      = 'i' // the same, and invalidates the key
	stepWrong    = 'f' // the same, and invalidates a key that is not this command's
	stepAnswer   = 'a' // the target answers the abort: no response will come
	stepLate     = 'l' // the target moves data after that
	stepLoss     = 'd' // the connection is lost: everything is flushed
	stepTimeout  = 't' // the abort is not answered: the engine ends the session
	stepClose    = 'c' // the engine closes a connection that is over
)

// can lists the steps that are possible.
func (w *world) can() (steps []byte) {
	add := func(step byte, ok bool) {
		if ok {
			steps = append(steps, step)
		}
	}
	if w.over {
		return nil
	}
	alive := !w.failed
	add(stepExecute, alive && w.begun < len(w.sq))
	add(stepComplete, alive && w.completable())
	add(stepRound, len(w.cq) > 0 && w.err == nil)
	add(stepGiveUp, w.told == 0 && !w.gaveUp && w.err == nil)
	keyed := w.header.Flags != 0
	open := alive && w.knows && !w.responds && !w.finishes
	add(stepMove, open && keyed && !w.data)
	add(stepRespond, open)
	add(stepInv, open && keyed && !w.kind.permanent)
	add(stepWrong, open)
	add(stepAnswer, alive && w.knowsAbort && !w.finishes)
	// Until the queue pair is gone a Write may be on its way, connection lost or not.
	add(stepLate, keyed && w.knows && !w.late && (w.responds || w.finishes || w.failed))
	add(stepLoss, alive)
	add(stepTimeout, w.aborted && !w.finishes && w.err == nil)
	add(stepClose, w.err != nil)
	return steps
}

// do does a step.
func (w *world) do(step byte) {
	switch step {
	case stepExecute:
		w.arrive(w.execute())
	case stepComplete:
		w.complete()
	case stepRound:
		w.round()
	case stepGiveUp:
		w.giveUp()
	case stepMove:
		w.data = w.use()
	case stepRespond, stepInv, stepWrong:
		w.respond(step)
	case stepAnswer:
		w.finishes = true
		var bhs [iscsi.BHSSize]byte
		(&iscsi.TMFResponse{ITT: abortITT}).Put(&bhs)
		w.deliver(append((&Header{}).Append(nil), bhs[:]...), false, 0)
	case stepLate:
		w.late = true
		w.use()
	case stepLoss:
		w.fail()
	case stepTimeout, stepClose:
		w.close()
	}
	w.spoil()
}

// arrive: the target has got a message.
func (w *world) arrive(b []byte) {
	if b == nil {
		return
	}
	var m message
	if err := m.parse(b); err != nil {
		breachf("%v", err)
	}
	switch iscsi.OpcodeOf(m.BHS) {
	case iscsi.OpSCSICommand:
		w.knows, w.header = true, m.Header
	case iscsi.OpTMFRequest:
		w.knowsAbort = true
	}
}

// use is an RDMA Write or Read with the command's key. One that is refused ends the connection (IBTA, 9.7.4.1.5).
func (w *world) use() bool {
	h := &w.header
	if w.kind.read {
		mem := w.remote(h.ReadSTag, h.ReadBase, w.tr.EDTL, rdma.RemoteWrite)
		if mem != nil && w.told > 0 && w.kind.inPlace {
			breachf("the caller has its memory back, and the target can write there")
		}
		byTrust := w.kind.permanent && w.responds // the peer has promised; no key of such a device could end with a command
		if mem != nil && !w.kind.inPlace && !byTrust && w.free(w.ini.sink, h.ReadBase) {
			breachf("the target can write to memory that is free")
		}
		copy(mem, fromPeer)
		if mem == nil {
			w.fail()
		}
		return mem != nil
	}
	mem := w.remote(h.WriteSTag, h.WriteBase, 1, rdma.RemoteRead)
	if mem == nil {
		w.fail()
	} else if !w.responds && !w.finishes && mem[0] != w.expects() {
		breachf("the target reads %#x, not what was written", mem[0])
	}
	return mem != nil
}

// expects is the first byte that the target is to fetch.
func (w *world) expects() byte { return pattern(make([]byte, w.kind.size), 7)[w.c.plan.unsolicited] }

// free reports whether an address is in memory that a pool may hand out.
func (w *world) free(p *pool, addr uint64) bool {
	if p == nil || w.over {
		return true
	}
	page := int32((addr - p.block.mr.Addr()) / poolPage)
	for order, list := range p.free {
		for _, start := range list {
			if page >= start && page < start+1<<order {
				return true
			}
		}
	}
	return false
}

func (w *world) respond(step byte) {
	w.responds = true
	key := w.header.ReadSTag | w.header.WriteSTag
	w.wrong = w.wrong || step == stepWrong
	if step == stepWrong {
		key ^= 0x10000 // of no window, but some devices tell all the same
	}
	r := iscsi.SCSIResponse{ITT: walkITT}
	if w.kind.read && !w.data {
		r.Status = 8 // BUSY: there is no data
	}
	w.deliver(responseBytes(r), step != stepRespond, key)
}

// giveUp is what iscsi/initiator does when a caller's context ends.
func (w *world) giveUp() {
	w.gaveUp = true
	if w.answered { // the result is there; only the release is missing
		w.part()
		return
	}
	w.part()
	w.aborted = true
	var bhs [iscsi.BHSSize]byte
	(&iscsi.TMFRequest{Immediate: true, Function: iscsi.TMAbortTask, ITT: abortITT, RefITT: walkITT}).Put(&bhs)
	w.ini.Send(&bhs, nil)
	w.flush()
}

func (w *world) part() {
	if w.kind.inPlace && w.released == 0 {
		return // the caller is told when it is released
	}
	if w.released == 0 {
		w.ini.Detach(&w.tr)
	}
	w.tell()
}

// tell gives the caller its memory back, and the caller uses it.
func (w *world) tell() {
	if w.told++; w.told > 1 {
		breachf("the caller was told twice")
	}
	copy(w.buf, callers)
}

// round is one of the engine's.
func (w *world) round() {
	var evs [16]iscsi.Event
	for len(w.cq) > 0 || w.ini.ready.len() > 0 {
		n, err := w.ini.Wait(evs[:], time.Unix(1, 0))
		for i := range evs[:n] {
			w.event(&evs[i])
		}
		if err != nil {
			w.err = err
			break
		}
	}
	if w.err == nil {
		w.flush()
	}
}

func (w *world) event(ev *iscsi.Event) {
	switch {
	case ev.Kind == iscsi.EventReleased:
		if w.released++; w.released > 1 {
			breachf("a command was released twice")
		}
		w.settle()
	case iscsi.OpcodeOf(ev.BHS) == iscsi.OpSCSIResponse:
		if w.wrong {
			breachf("a response counts that has invalidated a foreign key")
		}
		if ev.Transfer == nil { // a second one, or after the abort's answer: the ends disagree
			w.err = ErrProtocol
			return
		}
		w.answered = true
		if w.kind.read && w.data && w.told == 0 && !w.gaveUp {
			if n := w.ini.Received(&w.tr); int(n) != w.kind.size || !bytes.Equal(w.buf, fromPeer[:n]) {
				breachf("the data is not there with the response")
			}
		}
		w.settle()
	default: // the abort's answer
		if !w.answered {
			w.forgotten = true
			w.ini.Forget(&w.tr)
		}
	}
}

func (w *world) settle() {
	if w.told == 0 && w.released > 0 && (w.answered || w.forgotten) {
		w.tell()
	}
}

func (w *world) close() {
	w.over = true
	if err := w.ini.Close(); err != nil {
		breachf("close: %v", err)
	}
	if w.told == 0 {
		w.tell()
	}
	if len(w.regions)+w.windows > 0 {
		breachf("%d regions and %d windows are left", len(w.regions), w.windows)
	}
}

// spoil overwrites what nobody may be using: the slots and the pool memory that a command has had and that are free.
func (w *world) spoil() {
	if w.over {
		return
	}
	for _, c := range w.ini.slots.classes {
		for _, i := range c.free {
			if mem := w.ini.slots.all[i].mem; mem[0]>>4 == opControl {
				copy(mem, spoiled)
			}
		}
	}
	for _, p := range []*pool{w.ini.sink, w.ini.source} {
		if w.free(p, p.block.mr.Addr()) {
			copy(p.block.mem[:w.kind.size], spoiled)
		}
	}
}

// check looks at what must be true after each step.
func (w *world) check() {
	if w.told > 0 && !bytes.Equal(w.buf, callers[:len(w.buf)]) {
		breachf("the caller's memory was written to after it had been told")
	}
	if !w.over {
		w.model.check()
	}
}

// settled checks a world in which nothing happens any more, with the connection alive.
func (w *world) settled() {
	if w.told != 1 || w.released != 1 || w.gaveUp && w.aborted && !w.finishes {
		breachf("the command has not ended: told %d times, released %d", w.told, w.released)
	}
	if len(w.bound) > 0 {
		breachf("a key was never invalidated")
	}
	if w.ini.sink.live+w.ini.source.live > 0 {
		breachf("pool memory was not given back")
	}
	if lost := w.ini.sink.lost + w.ini.source.lost; lost > 0 && !w.kind.permanent {
		breachf("%d bytes are lost", lost)
	}
	if w.ini.keys != nil && w.ini.keys.free.len() != len(w.ini.keys.all) {
		breachf("a window was not given back")
	}
	if w.ini.slots.spare() != len(w.ini.slots.all) || len(w.ini.ops.free) != len(w.ini.ops.all) || len(w.recvs)+len(w.ini.idle) != w.ini.depth {
		breachf("a send slot, an op or a receive was not given back")
	}
	w.close()
}

// state is all that decides what can happen from here on.
func (w *world) state() string {
	i := w.ini
	var s strings.Builder
	fmt.Fprint(&s, w.gaveUp, w.aborted, w.forgotten, w.answered, w.released, w.told, w.err != nil, w.over,
		w.knows, w.knowsAbort, w.data, w.responds, w.finishes, w.late, w.wrong,
		w.begun, len(w.recvs), w.failed, len(w.bound), i.err != nil, i.active, i.closing.len(), i.queue.len(), i.credits)
	if w.released == 0 {
		fmt.Fprint(&s, w.c.request, w.c.started, w.c.next)
	}
	for _, p := range w.sq {
		fmt.Fprint(&s, " ", p.wr.Op, p.key != 0, len(p.sent))
	}
	for _, c := range w.cq {
		fmt.Fprint(&s, " ", c.ID, c.Status, c.Recv, c.Invalidated)
	}
	return s.String()
}

// A walk goes every way through a world. Ways that have come to the same state go on alike, so that each state's
// continuations are walked once, and counted as often as ways lead there.
type walk struct {
	t     testing.TB
	kind  walkKind
	ways  map[string]uint64
	taken int // steps
}

// from counts the ways from the world at the end of path to its ends. Whatever breaks a rule fails the test, with the
// path that leads there.
func (k *walk) from(w *world, path []byte) uint64 {
	state := w.state()
	if n, ok := k.ways[state]; ok {
		w.discard()
		return n
	}
	steps := w.can()
	if len(steps) == 0 || !w.over && !w.failed && w.told == 1 && string(steps) == string(stepLoss) {
		if !w.over {
			k.guard(path, w.settled)
		}
		k.ways[state] = 1
		return 1
	}
	var n uint64
	for i, s := range steps {
		next := w
		if i < len(steps)-1 {
			next = k.replay(path)
		}
		k.taken++
		way := append(path[:len(path):len(path)], s)
		k.guard(way, func() { next.do(s); next.check() })
		n += k.from(next, way)
	}
	k.ways[state] = n
	return n
}

// guard says which way has led to a breach.
func (k *walk) guard(way []byte, do func()) {
	defer func() {
		if r := recover(); r != nil {
			k.t.Fatalf("%s: %v, after the steps %s", k.kind.name, r, way)
		}
	}()
	do()
}

func (k *walk) replay(path []byte) *world {
	w := newWorld(k.t, k.kind)
	for _, s := range path {
		w.do(s)
	}
	return w
}

// discard frees a world that is not gone on with.
func (w *world) discard() {
	if !w.over {
		w.over = true
		_ = w.ini.Close()
	}
}

var walkKinds = []walkKind{
	{name: "no data", ways: 3_666},
	{name: "read", read: true, size: 600, ways: 699_162},
	{name: "write, inline", write: true, size: 512, ways: 3_666},
	{name: "write, fetched", write: true, size: 600, ways: 699_162},
	{name: "write, partly inline", write: true, size: 600, partial: true, ways: 699_162},
	{name: "write, partly unsolicited", write: true, size: 600, noR2T: true, ways: 16_761_136},
	{name: "read in place", read: true, size: 600, inPlace: true, ways: 699_162},
	{name: "write in place, inline", write: true, size: 512, inPlace: true, ways: 3_666},
	{name: "write in place, fetched", write: true, size: 600, inPlace: true, ways: 699_162},
	{name: "write in place, partly inline", write: true, size: 600, partial: true, inPlace: true, ways: 699_162},
	{name: "write in place, partly unsolicited", write: true, size: 600, noR2T: true, inPlace: true, ways: 16_761_136},
	{name: "read, permanent key", read: true, size: 600, permanent: true, ways: 87_892},
	{name: "write, permanent key", write: true, size: 600, permanent: true, ways: 87_892},
}

// TestEveryInterleaving walks every order in which Send completions, responses with and without invalidation, wrong
// invalidations, aborts and their answers, timeouts, flushes, the loss of the connection and late RDMA operations can
// come to one command of each kind, through the real initiator. The model checks each step (see model, world.check).
func TestEveryInterleaving(t *testing.T) {
	var all uint64
	for _, kind := range walkKinds {
		if RaceEnabled && kind.ways > 100_000 {
			continue // there is one goroutine: the race detector finds nothing here, slowly
		}
		k := &walk{t: t, kind: kind, ways: map[string]uint64{}}
		n := k.from(k.replay(nil), nil)
		require.Equal(t, kind.ways, n, "%s: another number of interleavings. If more or fewer can happen, that is the new number", kind.name)
		t.Logf("%-36s %d interleavings, %d states, %d steps", kind.name, n, len(k.ways), k.taken)
		all += n
	}
	t.Logf("%d interleavings in all", all)
}
