package iser

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// patience bounds every wait of a test; nothing that works takes that long.
const patience = 10 * time.Second

var portal = netip.MustParseAddrPort("10.0.0.1:3260")

// strict is a fabric on which a message without a receive buffer ends the connection.
var strict = fabric.Options{RNRFatal: true, TwoDevices: true}

// A tap records what a fabric does.
type tap struct {
	mu  sync.Mutex
	ops []tapped
}

type tapped struct {
	fabric.Operation
	bytes []byte
}

func (p *tap) record(o *fabric.Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := tapped{Operation: *o}
	for _, b := range o.Data {
		t.bytes = append(t.bytes, b...)
	}
	t.Data = nil
	p.ops = append(p.ops, t)
}

// take returns the operations since the last take.
func (p *tap) take() []tapped {
	p.mu.Lock()
	defer p.mu.Unlock()
	ops := p.ops
	p.ops = nil
	return ops
}

// ofKind filters.
func ofKind(ops []tapped, k rdma.OpCode) (out []tapped) {
	for _, o := range ops {
		if o.Op == k {
			out = append(out, o)
		}
	}
	return out
}

// A peer is the other end of a connection, played by hand.
type peer struct {
	t    testing.TB
	ep   rdma.Endpoint
	dev  rdma.Device
	cq   rdma.CompletionQueue
	qp   rdma.QueuePair
	mem  []byte // receive buffers, then one send buffer
	mr   rdma.MemoryRegion
	got  []arrival
	sent int // Sends completed
	bad  []rdma.Completion
	next uint64
}

type arrival struct {
	b           []byte
	invalidated bool
	key         uint32
}

const (
	peerBuffers = 512
	peerBuffer  = recvSize
	sendID      = 1 << 40
)

func newPeer(t testing.TB, ep rdma.Endpoint) *peer {
	p := &peer{t: t, ep: ep, dev: ep.Device(), mem: make([]byte, (peerBuffers+1)*peerBuffer)}
	var err error
	p.cq, err = p.dev.NewCQ(2 * peerBuffers)
	require.NoError(t, err)
	p.qp, err = ep.CreateQP(rdma.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, SendDepth: 64, RecvDepth: peerBuffers, MaxSendSGE: 1, MaxRecvSGE: 1})
	require.NoError(t, err)
	p.mr, err = p.dev.Register(p.mem, rdma.LocalWrite)
	require.NoError(t, err)
	t.Cleanup(p.close)
	return p
}

func (p *peer) close() {
	if p.ep == nil {
		return
	}
	require.NoError(p.t, p.ep.Close())
	require.NoError(p.t, p.cq.Close())
	require.NoError(p.t, p.mr.Deregister())
	p.ep = nil
}

// post posts n receives.
func (p *peer) post(n int) {
	for range n {
		slot := p.next % peerBuffers
		_, err := p.qp.PostRecv([]rdma.RecvWR{{ID: slot, SGL: []rdma.SGE{rdma.Piece(p.mr, slot*peerBuffer, peerBuffer)}}})
		require.NoError(p.t, err)
		p.next++
	}
}

// send sends raw bytes and waits until they have been acknowledged.
func (p *peer) send(b []byte) {
	p.t.Helper()
	p.start(b)
	sent := p.sent
	p.until(func() bool { return p.sent > sent || len(p.bad) > 0 })
}

// start sends raw bytes without waiting; one at a time.
func (p *peer) start(b []byte) {
	p.t.Helper()
	p.startOp(rdma.SendWR{Op: rdma.OpSend}, b)
}

func (p *peer) startOp(wr rdma.SendWR, b []byte) {
	p.t.Helper()
	const at = peerBuffers * peerBuffer
	require.LessOrEqual(p.t, len(b), peerBuffer)
	copy(p.mem[at:], b)
	wr.ID, wr.Flags = sendID, rdma.Signaled
	if len(b) > 0 {
		wr.SGL = []rdma.SGE{rdma.Piece(p.mr, at, uint32(len(b)))}
	}
	_, err := p.qp.PostSend([]rdma.SendWR{wr})
	require.NoError(p.t, err)
}

// poll takes what has completed.
func (p *peer) poll() {
	var cs [32]rdma.Completion
	n, err := p.cq.Poll(cs[:])
	require.NoError(p.t, err)
	for _, c := range cs[:n] {
		switch {
		case c.Status != rdma.Success:
			p.bad = append(p.bad, c)
		case c.ID == sendID:
			p.sent++
		default:
			b := append([]byte(nil), p.mem[c.ID*peerBuffer:][:c.ByteLen]...)
			p.got = append(p.got, arrival{b: b, invalidated: c.Invalidated, key: c.InvalidatedKey})
		}
	}
}

func (p *peer) until(done func() bool) {
	p.t.Helper()
	end := time.Now().Add(patience)
	for p.poll(); !done(); p.poll() {
		require.True(p.t, time.Now().Before(end), "nothing has come")
		require.NoError(p.t, p.cq.Wait(time.Now().Add(10*time.Millisecond)))
	}
}

// recv waits for a message.
func (p *peer) recv() arrival {
	p.t.Helper()
	p.until(func() bool { return len(p.got) > 0 || len(p.bad) > 0 })
	require.NotEmpty(p.t, p.got, "connection lost: %v", p.bad)
	a := p.got[0]
	p.got = p.got[1:]
	return a
}

// Lent is memory of the peer that the other end may use.
type lent struct {
	mem  []byte
	key  uint32
	addr uint64
}

// lend registers memory of the peer for good.
func (p *peer) lend(n int, access rdma.Access) lent {
	mem := make([]byte, n)
	mr, err := p.dev.Register(mem, access)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = mr.Deregister() })
	return lent{mem: mem, key: mr.RKey(), addr: mr.Addr()}
}

// lendOnce lends memory through a window, whose key the other end may invalidate.
func (p *peer) lendOnce(n int, access rdma.Access) lent {
	mem := make([]byte, n)
	mr, err := p.dev.Register(mem, rdma.LocalWrite|rdma.WindowBind)
	require.NoError(p.t, err)
	w, err := p.dev.NewWindow()
	require.NoError(p.t, err)
	p.t.Cleanup(func() { // after the queue pair's
		_ = w.Close()
		_ = mr.Deregister()
	})
	_, err = p.qp.PostSend([]rdma.SendWR{{
		ID: sendID, Op: rdma.OpBindWindow, Flags: rdma.Signaled, Window: w, Region: mr, Access: access,
		SGL: []rdma.SGE{rdma.Piece(mr, 0, uint32(n))},
	}})
	require.NoError(p.t, err)
	sent := p.sent
	p.until(func() bool { return p.sent > sent || len(p.bad) > 0 })
	require.Empty(p.t, p.bad)
	return lent{mem: mem, key: w.RKey(), addr: mr.Addr()}
}

// A loop drives a datamover from the test's goroutine.
type loop struct {
	t    testing.TB
	dm   iscsi.Datamover
	evs  [64]iscsi.Event
	kept []iscsi.Event // come, but not asked for yet
	err  error
}

// wait is one Wait, with nothing kept back. What the events show is copied.
func (l *loop) wait(d time.Duration) []iscsi.Event {
	l.t.Helper()
	out := l.kept
	if l.kept = nil; len(out) > 0 {
		return out
	}
	n, err := l.dm.Wait(l.evs[:], time.Now().Add(d))
	if err != nil {
		l.err = err
	}
	for _, ev := range l.evs[:n] {
		if ev.BHS != nil {
			bhs := *ev.BHS
			ev.BHS, ev.AHS, ev.Data = &bhs, bytes.Clone(ev.AHS), bytes.Clone(ev.Data)
		}
		out = append(out, ev)
	}
	return out
}

// until waits for one event of a kind and keeps the others.
func (l *loop) until(k iscsi.EventKind) iscsi.Event {
	l.t.Helper()
	end := time.Now().Add(patience)
	var others []iscsi.Event
	defer func() { l.kept = append(others, l.kept...) }()
	for {
		require.True(l.t, time.Now().Before(end), "no event of kind %d", k)
		evs := l.wait(time.Second)
		for i, ev := range evs {
			if ev.Kind == k {
				l.kept = evs[i+1:]
				return ev
			}
			others = append(others, ev)
		}
		require.NoError(l.t, l.err)
		require.NoError(l.t, l.dm.Flush())
	}
}

// idle checks that nothing happens.
func (l *loop) idle() {
	l.t.Helper()
	require.Empty(l.t, l.wait(time.Millisecond))
	require.NoError(l.t, l.err)
}

// fails waits until the connection is over and returns why; events on the way are returned as well.
func (l *loop) fails() (evs []iscsi.Event, err error) {
	l.t.Helper()
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		evs = append(evs, l.wait(time.Second)...)
		if l.err != nil {
			return evs, l.err
		}
		_ = l.dm.Flush()
	}
	l.t.Fatal("the connection did not end")
	return nil, nil
}

// A bench is a listener on a fabric and one connection to it.
type bench struct {
	f   *fabric.Fabric
	tap *tap
	lis iscsi.Listener
	tgt *target
	loop
}

// newTarget makes a target's connection whose initiator is played by hand.
func newTarget(t testing.TB, o fabric.Options, c TargetConfig, active rdma.ConnParam) (*bench, *peer) {
	b := &bench{tap: &tap{}}
	if o.Tap == nil {
		o.Tap = b.tap.record
	}
	b.f = fabric.New(o)
	lis, err := Listen(b.f, portal, c)
	require.NoError(t, err)
	b.lis = lis
	t.Cleanup(func() { require.NoError(t, lis.Close()) })
	p := connectPeer(t, b.f, active, func() { b.tgt = accept(t, lis) })
	b.loop = loop{t: t, dm: b.tgt}
	return b, p
}

// accept takes a connection.
func accept(t testing.TB, lis iscsi.Listener) *target {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dm, err := lis.Accept(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dm.Close()) })
	return dm.(*target)
}

// connectPeer connects a hand-played initiator; accept runs meanwhile.
func connectPeer(t testing.TB, f *fabric.Fabric, active rdma.ConnParam, accept func()) *peer {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ep, err := f.Resolve(ctx, portal)
	require.NoError(t, err)
	p := newPeer(t, ep)
	done := make(chan error, 1)
	go func() { done <- ep.Connect(ctx, active) }()
	accept()
	require.NoError(t, <-done)
	return p
}

// agreed is a REQ that allows Send with Invalidate; refused does not.
var (
	agreed  = rdma.ConnParam{PrivateData: []byte{0x80, 0, 0, 0}, ResponderResources: 16}
	refused = rdma.ConnParam{PrivateData: []byte{0xc0, 0, 0, 0}, ResponderResources: 16}
)

func normalParams() *iscsi.Params {
	return &iscsi.Params{
		InitialR2T: true, ImmediateData: true, MaxBurstLength: 1 << 20, FirstBurstLength: 65536, MaxOutstandingR2T: 1,
		RDMAExtensions: true, MaxSendData: 8192, MaxRecvData: 8192,
	}
}

// enable puts the target in full-feature phase.
func (b *bench) enable(p *iscsi.Params) { require.NoError(b.t, b.tgt.Enable(p, &iscsi.Sequence{})) }

// A command on the wire.
type wireCommand struct {
	Header
	iscsi.SCSICommand
	data []byte
	pad  int
}

func (w wireCommand) bytes() []byte {
	var bhs [iscsi.BHSSize]byte
	w.DataLength = uint32(len(w.data))
	w.SCSICommand.Put(&bhs)
	return append(append(append(w.Header.Append(nil), bhs[:]...), w.data...), make([]byte, w.pad)...)
}

func readCommand(itt uint32, m lent, edtl uint32) wireCommand {
	return wireCommand{
		Header:      Header{Flags: ReadValid, ReadSTag: m.key, ReadBase: m.addr},
		SCSICommand: iscsi.SCSICommand{Final: true, Read: true, ITT: itt, EDTL: edtl},
	}
}

// writeCommand carries data inline; m lends the rest, from its start on.
func writeCommand(itt uint32, m lent, edtl uint32, data []byte) wireCommand {
	w := wireCommand{SCSICommand: iscsi.SCSICommand{Final: true, Write: true, ITT: itt, EDTL: edtl}, data: data}
	if m.key != 0 {
		w.Header = Header{Flags: WriteValid, WriteSTag: m.key, WriteBase: m.addr}
	}
	return w
}

// command sends a command and returns the engine's transfer for it.
func (b *bench) command(p *peer, w wireCommand) *iscsi.Transfer {
	b.t.Helper()
	p.send(w.bytes())
	ev := b.until(iscsi.EventPDU)
	require.Equal(b.t, iscsi.OpSCSICommand, iscsi.OpcodeOf(ev.BHS))
	return &iscsi.Transfer{ITT: iscsi.ITTOf(ev.BHS), EDTL: w.EDTL, Remote: ev.Remote, Unsolicited: uint32(len(w.data))}
}

func response(itt uint32) *[iscsi.BHSSize]byte {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.SCSIResponse{ITT: itt}).Put(&bhs)
	return &bhs
}

// pattern fills b so that every word tells its place and a seed.
func pattern(b []byte, seed uint32) []byte {
	for i := 0; i+4 <= len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], seed+uint32(i))
	}
	for i := len(b) &^ 3; i < len(b); i++ {
		b[i] = byte(seed)
	}
	return b
}

// split cuts b in pieces of at most n bytes.
func split(b []byte, n int) (out [][]byte) {
	for len(b) > 0 {
		m := min(n, len(b))
		out = append(out, b[:m:m])
		b = b[m:]
	}
	return out
}
