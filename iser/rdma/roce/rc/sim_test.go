package rc

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// The memory of an end in a simulation. Sources never change, every receive, Write target and Read sink is used once,
// so what memory must look like does not depend on the order of anything.
const (
	sourceSize = 16 << 10
	recvSize   = 3 << 10
	simRecvs   = 30
	targetAt   = sourceSize + recvSize*simRecvs
	targetSize = 64 << 10
	sinkAt     = targetAt + targetSize
	sinkSize   = 64 << 10
	guard      = 512 // in front of and behind the region
	regionSize = sinkAt + sinkSize
	windowSize = 1500
)

// A party is an end's user in a simulation.
type party struct {
	*end
	all, model []byte // guards included; what all must be
	mr         rdma.MemoryRegion
	peer       *party

	target, sink  uint64 // used of each
	posted, taken uint64 // receives
	next          uint64 // ID of the next work request
	lastID        uint64
	signaled      []uint64 // IDs that must complete
	expect        map[uint64]func() error
	arriving      []arrival // messages that the peer has posted, in order
	win           rdma.Window
	winState      int
	winKey        uint32
	err           error
	fails         bool // an error completion is what is wanted
	failed        rdma.Status
}

// An arrival is a message on its way: its data, what it invalidates, and what must be in memory when it is there.
type arrival struct {
	data   []byte
	key    uint32
	before func() error
}

const (
	winIdle = iota
	winBinding
	winOpen // bound; the peer may use it
	winUsed // by the peer, which invalidates it if its queue has room
	winDead
)

func (p *party) mem() []byte   { return p.all[guard : guard+regionSize] }
func (p *party) shade() []byte { return p.model[guard : guard+regionSize] }

func newParty(e *end) *party {
	p := &party{end: e, all: make([]byte, guard+regionSize+guard), expect: map[uint64]func() error{}, next: 1}
	block := make([]byte, 4093) // repeated; a prime, so that what is misplaced by a packet or a page differs
	for i := range block {
		block[i] = byte(e.n.rng.Uint32())
	}
	for i := 0; i < len(p.all); {
		i += copy(p.all[i:], block)
	}
	p.model = bytes.Clone(p.all)
	p.mr, p.err = e.mem.Register(p.mem(), rights)
	p.win, _ = e.mem.NewWindow()
	p.target = windowSize // the first are the window's
	e.done = p.completed
	return p
}

func (p *party) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("end %d: "+format, append([]any{p.side}, args...)...)
	}
}

func (p *party) completed(c rdma.Completion) {
	switch {
	case c.Status != rdma.Success && !p.fails:
		p.fail("completion %+v", c)
	case c.Status != rdma.Success:
		if p.failed == 0 && c.Status != rdma.WRFlushErr {
			p.failed = c.Status
		}
	case c.Recv:
		p.arrived(c)
	default:
		p.ended(c)
	}
}

func (p *party) arrived(c rdma.Completion) {
	if c.ID != p.taken || len(p.arriving) == 0 {
		p.fail("receive %d ended, not %d; %d messages are on their way", c.ID, p.taken, len(p.arriving))
		return
	}
	at := sourceSize + p.taken*recvSize
	p.taken++
	m := p.arriving[0]
	p.arriving = p.arriving[1:]
	copy(p.shade()[at:], m.data)
	if int(c.ByteLen) != len(m.data) || !bytes.Equal(p.mem()[at:at+uint64(len(m.data))], m.data) {
		p.fail("message %d of %d bytes arrived as %d bytes, or others", c.ID, len(m.data), c.ByteLen)
	}
	if c.Invalidated != (m.key != 0) || c.InvalidatedKey != m.key {
		p.fail("message %d invalidated %#x, not %#x", c.ID, c.InvalidatedKey, m.key)
	}
	if m.key != 0 {
		p.winState = winDead
	}
	if m.before != nil {
		if err := m.before(); err != nil {
			p.fail("when message %d arrived: %v", c.ID, err)
		}
	}
}

func (p *party) ended(c rdma.Completion) {
	if len(p.signaled) == 0 || c.ID != p.signaled[0] {
		p.fail("work request %d ended, not %v", c.ID, p.signaled)
		return
	}
	p.signaled = p.signaled[1:]
	for ; p.lastID < c.ID; p.lastID++ { // those without a completion have ended as well
		if f := p.expect[p.lastID+1]; f != nil {
			if err := f(); err != nil {
				p.fail("when work request %d ended: %v", c.ID, err)
			}
		}
	}
}

// submit posts a work request; what it must have done is checked when it, or a later one, completes.
func (p *party) submit(wr rdma.SendWR, done func() error) bool {
	wr.ID = p.next
	if p.n.rng.IntN(3) > 0 || p.q.sq.posted-p.q.sq.freed > 20 {
		wr.Flags |= rdma.Signaled
	}
	_, err := p.q.PostSend([]rdma.SendWR{wr}, p.end)
	if errors.Is(err, rdma.ErrQueueFull) {
		return false
	}
	if err != nil {
		p.fail("post: %v", err)
		return false
	}
	p.next++
	p.expect[wr.ID] = done
	if wr.Flags&rdma.Signaled != 0 {
		p.signaled = append(p.signaled, wr.ID)
	}
	return true
}

// pieces cuts [off, off+n) of the region into a scatter/gather list.
func (p *party) pieces(off uint64, n int) []rdma.SGE {
	var sgl []rdma.SGE
	for len(sgl) < 3 && n > 0 {
		k := p.n.rng.IntN(n + 1)
		sgl = append(sgl, rdma.Piece(p.mr, off, uint32(k)))
		off, n = off+uint64(k), n-k
	}
	return append(sgl, rdma.Piece(p.mr, off, uint32(n)))
}

func (p *party) source(n int) (uint64, []byte) {
	at := p.n.rng.IntN(sourceSize - n + 1)
	return uint64(at), p.mem()[at : at+n]
}

func (p *party) size(most int) int {
	switch p.n.rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return min(most, 256*p.n.rng.IntN(10))
	}
	return p.n.rng.IntN(most + 1)
}

// check makes a check that memory is data.
func check(what string, mem, data []byte) func() error {
	data = bytes.Clone(data)
	return func() error {
		if !bytes.Equal(mem, data) {
			return fmt.Errorf("%s of %d bytes is not in place", what, len(data))
		}
		return nil
	}
}

// write posts an RDMA Write of n bytes and returns its check.
func (p *party) write(n int, to uint64, key uint32) func() error {
	from, data := p.source(n)
	o := p.peer
	f := check("a Write", o.mem()[to:to+uint64(n)], data)
	if !p.submit(rdma.SendWR{Op: rdma.OpWrite, SGL: p.pieces(from, n), RemoteAddr: o.mr.Addr() + to, RKey: key}, f) {
		return nil
	}
	copy(o.shade()[to:], data)
	return f
}

func (p *party) send(key uint32, before func() error) {
	n := p.size(recvSize)
	from, data := p.source(n)
	wr := rdma.SendWR{Op: rdma.OpSend, SGL: p.pieces(from, n)}
	if key != 0 {
		wr.Op, wr.InvalidateKey = rdma.OpSendInv, key
	}
	if p.submit(wr, nil) {
		p.peer.arriving = append(p.peer.arriving, arrival{bytes.Clone(data), key, before})
	}
}

func (p *party) writeAndSend() {
	n := p.size(6000)
	if o := p.peer; o.target+uint64(n) <= targetSize {
		if f := p.write(n, targetAt+o.target, o.mr.RKey()); f != nil {
			o.target += uint64(n)
			if p.sendsLeft() {
				p.send(0, f)
			}
		}
	}
}

func (p *party) sendsLeft() bool {
	return int(p.peer.taken)+len(p.peer.arriving) < simRecvs-1
}

func (p *party) read() {
	n := p.size(12000)
	if p.sink+uint64(n) > sinkSize {
		return
	}
	from, data := p.peer.source(n)
	to := sinkAt + p.sink
	wr := rdma.SendWR{Op: rdma.OpRead, SGL: p.pieces(to, n), RemoteAddr: p.peer.mr.Addr() + from, RKey: p.peer.mr.RKey()}
	if p.n.rng.IntN(4) == 0 {
		wr.Flags = rdma.Fence
	}
	if p.submit(wr, check("a Read", p.mem()[to:to+uint64(n)], data)) {
		copy(p.shade()[to:], data)
		p.sink += uint64(n)
	}
}

// windows moves the window's life on: bind it, let the peer use it, have the peer or ourselves invalidate it.
func (p *party) windows() {
	const at = targetAt
	switch o := p.peer; {
	case p.winState == winIdle || p.winState == winDead && p.n.rng.IntN(2) == 0:
		wr := rdma.SendWR{Op: rdma.OpBindWindow, Window: p.win, Region: p.mr, Access: rdma.RemoteWrite, SGL: []rdma.SGE{rdma.Piece(p.mr, at, windowSize)}}
		if p.submit(wr, func() error { p.winState = winOpen; return nil }) {
			p.winState, p.winKey = winBinding, p.win.RKey()
		}
	case p.winState == winOpen && p.n.rng.IntN(3) == 0:
		if p.submit(rdma.SendWR{Op: rdma.OpLocalInv, InvalidateKey: p.winKey}, nil) {
			p.winState = winDead
		}
	case p.winState == winOpen && o.sendsLeft():
		if f := o.write(p.n.rng.IntN(windowSize), at, p.winKey); f != nil {
			o.expect[o.next-1] = nil // a later use of the window writes the same bytes; the receive checks
			p.winState = winUsed
			o.send(p.winKey, f)
		}
	}
}

func (p *party) act() {
	switch p.n.rng.IntN(5) {
	case 0:
		if p.sendsLeft() {
			p.send(0, nil)
		}
	case 1, 2:
		p.writeAndSend()
	case 3:
		p.read()
	case 4:
		p.windows()
	}
}

// A scenario is a simulation's setting.
type scenario struct {
	w      weather
	change func(a, b *Config)
	faults faults // of end 1, and of end 0's requester
	ready  bool   // receives are posted before anything is sent
	stale  bool   // in the end, use a key that has been invalidated
	sum    *Counters
}

func (p *party) postRecv() {
	if p.posted < simRecvs {
		at := sourceSize + p.posted*recvSize
		if _, err := p.q.PostRecv([]rdma.RecvWR{{ID: p.posted, SGL: p.pieces(at, recvSize)}}, p.end); err == nil {
			p.posted++
		}
	}
}

// simulate runs both ends' random work under a seed and says what was wrong with it.
func simulate(seed uint64, sc scenario) error {
	n := newNetwork(seed, sc.w, func(a, b *Config) {
		a.RecvDepth, b.RecvDepth = simRecvs, simRecvs
		if sc.change != nil {
			sc.change(a, b)
		}
	})
	a, b := newParty(n.ends[0]), newParty(n.ends[1])
	a.peer, b.peer = b, a
	a.q.faults, b.q.faults = sc.faults, sc.faults
	for sc.ready && b.posted < simRecvs {
		a.postRecv()
		b.postRecv()
	}
	for range 40 {
		for _, p := range []*party{a, b} {
			if n.rng.IntN(2) == 0 {
				p.postRecv()
			}
			p.act()
			n.round(p.end)
			if p.err != nil {
				return p.err
			}
		}
		for range n.rng.IntN(30) {
			n.step()
		}
	}
	return finish(n, a, b, sc)
}

// finish lets everything end and compares all memory.
func finish(n *network, a, b *party, sc scenario) error {
	for a.posted < simRecvs || b.posted < simRecvs {
		a.postRecv()
		b.postRecv()
	}
	until := n.now.Add(time.Minute)
	for _, p := range []*party{a, b} {
		for !p.submit(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled}, nil) {
			if n.round(p.end); !n.step() || n.now.After(until) {
				return fmt.Errorf("end %d hangs with a full queue", p.side)
			}
		}
		p.peer.arriving = append(p.peer.arriving, arrival{})
	}
	if !n.run(time.Minute) {
		return errors.New("does not end")
	}
	for _, p := range []*party{a, b} {
		sc.sum.add(p.q.Counters())
		if p.q.sq.done != p.q.sq.posted || len(p.arriving) > 0 || p.q.Failed() {
			p.fail("%d of %d work requests ended, %d messages did not arrive, failed: %v", p.q.sq.done, p.q.sq.posted, len(p.arriving), p.q.Failed())
		}
		if c := p.q.Counters(); sc.ready && n.touched == 0 && c.Retransmits+c.Timeouts+c.NaksSent+c.RNRNaksSent+c.Duplicates+c.OutOfOrder+c.Dropped > 0 {
			p.fail("nothing was lost: %+v", c)
		}
	}
	if sc.stale && a.err == nil && b.err == nil {
		useDeadKey(n, a, b)
	}
	for _, p := range []*party{a, b} {
		if p.err == nil && !bytes.Equal(p.all, p.model) {
			i := 0
			for p.all[i] == p.model[i] {
				i++
			}
			p.fail("byte %d of memory was changed, or not", i-guard)
		}
		if p.err != nil {
			return p.err
		}
	}
	return nil
}

// useDeadKey has b write through a window of a's that has been invalidated.
func useDeadKey(n *network, a, b *party) {
	a.fails, b.fails = true, true
	if a.winState == winOpen {
		a.submit(rdma.SendWR{Op: rdma.OpLocalInv, InvalidateKey: a.winKey}, nil)
		n.run(time.Second)
	} else if a.winState != winDead {
		return
	}
	if n.rng.IntN(2) == 0 { // the window is open again, under another key
		a.submit(rdma.SendWR{Op: rdma.OpBindWindow, Window: a.win, Region: a.mr, Access: rdma.RemoteWrite, SGL: []rdma.SGE{rdma.Piece(a.mr, targetAt, windowSize)}}, nil)
		n.run(time.Second)
	}
	from, _ := b.source(700)
	b.submit(rdma.SendWR{Op: rdma.OpWrite, SGL: b.pieces(from, 700), RemoteAddr: a.mr.Addr() + targetAt, RKey: a.winKey}, nil)
	n.run(time.Minute)
	if b.failed != rdma.RemAccessErr && (b.failed != rdma.RetryExcErr || n.touched == 0) {
		b.fail("a dead key: %v", b.failed)
	}
}

// Weathers from fair to foul. The scenarios take turns by seed.
func scenarios() []scenario {
	one := func(a, b *Config) {
		for _, c := range []*Config{a, b} {
			c.ReadsOut, c.ReadsIn, c.Window = 1, 1, 8
		}
	}
	big := func(a, b *Config) {
		for _, c := range []*Config{a, b} {
			c.MTU, c.Window, c.ReadWindow = 1024, 256, 64<<10
		}
	}
	return []scenario{
		{ready: true, stale: true},
		{w: weather{delay: time.Millisecond, room: 5}, ready: true, change: big},
		{w: weather{lose: 20}, stale: true},
		{w: weather{lose: 20, room: 3}, change: one},
		{w: weather{double: 50, delay: 200 * time.Microsecond}, stale: true},
		{w: weather{reorder: 50}},
		{w: weather{corrupt: 30}, change: big},
		{w: weather{lose: 30, double: 30, reorder: 30, corrupt: 10, delay: time.Millisecond, room: 7}, stale: true},
		{w: weather{lose: 120, double: 20}, change: one},
		{w: weather{delay: 20 * time.Millisecond, double: 10, reorder: 100}},
	}
}

// Seeds are run in turns through the scenarios. A thousand take a second or two; more find rarer things:
// go test -run Simulations -seeds 20000.
var seeds = flag.Uint64("seeds", 300, "simulations to run")

func TestSimulationsEndAsTheyMust(t *testing.T) {
	scs := scenarios()
	var sum Counters
	for seed := range *seeds {
		sc := scs[seed%uint64(len(scs))]
		sc.sum = &sum
		require.NoError(t, simulate(seed, sc), "seed %d", seed)
	}
	// Everything that can go wrong did.
	for i, n := range []uint64{
		sum.Retransmits, sum.Timeouts, sum.Duplicates, sum.OutOfOrder, sum.NaksSent, sum.NaksReceived, sum.RNRNaksSent, sum.RNRNaksReceived, sum.Dropped,
	} {
		assert.NotZero(t, n, "counter %d", i)
	}
}

// add adds up what ends have counted.
func (c *Counters) add(d Counters) {
	if c == nil {
		return
	}
	c.Retransmits += d.Retransmits
	c.Timeouts += d.Timeouts
	c.Duplicates += d.Duplicates
	c.OutOfOrder += d.OutOfOrder
	c.NaksSent += d.NaksSent
	c.NaksReceived += d.NaksReceived
	c.RNRNaksSent += d.RNRNaksSent
	c.RNRNaksReceived += d.RNRNaksReceived
	c.Dropped += d.Dropped
}

// A checker that cannot fail proves nothing: each planted fault is seen by it.
func TestCheckerSeesPlantedFaults(t *testing.T) {
	for name, sc := range map[string]scenario{
		"skip a retransmission":      {w: weather{lose: 20}, faults: faults{skipResend: true}},
		"accept a stale key":         {ready: true, stale: true, faults: faults{staleKey: true}},
		"acknowledge before placing": {ready: true, faults: faults{lateWrite: true}},
	} {
		seen := 0
		for seed := range uint64(20) {
			if simulate(seed, sc) != nil {
				seen++
			}
		}
		assert.Greater(t, seen, 5, name)
	}
}
