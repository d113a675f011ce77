package initiator

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
)

type sentPDU struct {
	bhs  [iscsi.BHSSize]byte
	data []byte
}

// A fakeDM is a datamover without a wire. Tests put events into it, or give it functions that answer what
// is sent. Like a real one it spoils the views of an event with the next Flush.
type fakeDM struct {
	traits iscsi.Traits
	onSend func(op iscsi.Opcode, bhs *[iscsi.BHSSize]byte, data []byte)
	onCmd  func(t *iscsi.Transfer, cmd *iscsi.SCSICommand)

	sent      []sentPDU
	commands  []*iscsi.Transfer
	cmdPDUs   []iscsi.SCSICommand
	ahs       []byte
	detached  []*iscsi.Transfer
	forgotten []*iscsi.Transfer
	prepared  int
	enabled   int
	keep      bool // keep no record of what was sent
	timer     *time.Timer
	cmd       iscsi.SCSICommand

	mu     sync.Mutex
	cond   chan struct{} // capacity 1
	events []iscsi.Event
	views  [][]byte
	err    error
	awake  bool
	closed int
}

var _ iscsi.InitiatorDatamover = (*fakeDM)(nil)

func newFake() *fakeDM {
	return &fakeDM{traits: iscsi.Traits{Name: "fake", MaxLoginData: 8192, MaxRecvData: 65536}, cond: make(chan struct{}, 1)}
}

func (d *fakeDM) Traits() iscsi.Traits        { return d.traits }
func (d *fakeDM) LocalAddr() net.Addr         { return &net.TCPAddr{} }
func (d *fakeDM) RemoteAddr() net.Addr        { return &net.TCPAddr{} }
func (d *fakeDM) Idle() bool                  { return true }
func (d *fakeDM) Prepare(*iscsi.Params) error { d.prepared++; return nil }

func (d *fakeDM) Enable(*iscsi.Params, *iscsi.Sequence) error { d.enabled++; return nil }

func (d *fakeDM) Received(t *iscsi.Transfer) uint32 { return t.DM.Offset }
func (d *fakeDM) Detach(t *iscsi.Transfer)          { d.detached = append(d.detached, t) }
func (d *fakeDM) Forget(t *iscsi.Transfer)          { d.forgotten = append(d.forgotten, t) }

func (d *fakeDM) Send(bhs *[iscsi.BHSSize]byte, data []byte) {
	if !d.keep {
		d.sent = append(d.sent, sentPDU{*bhs, append([]byte(nil), data...)})
	}
	if d.onSend != nil {
		d.onSend(iscsi.OpcodeOf(bhs), bhs, data)
	}
}

func (d *fakeDM) SendCommand(t *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, ahs []byte) {
	if err := d.cmd.Parse(bhs); err != nil {
		panic(err)
	}
	if !d.keep {
		d.commands = append(d.commands, t)
		d.cmdPDUs = append(d.cmdPDUs, d.cmd)
		d.ahs = append([]byte(nil), ahs...)
	}
	if d.onCmd != nil {
		d.onCmd(t, &d.cmd)
	}
}

func (d *fakeDM) push(ev iscsi.Event) {
	d.mu.Lock()
	d.events = append(d.events, ev)
	d.mu.Unlock()
	d.signal()
}

func (d *fakeDM) signal() {
	select {
	case d.cond <- struct{}{}:
	default:
	}
}

// pdu pushes a PDU.
func (d *fakeDM) pdu(p interface{ Put(*[iscsi.BHSSize]byte) }, data []byte) {
	d.push(pduEvent(p, data))
}

func pduEvent(p interface{ Put(*[iscsi.BHSSize]byte) }, data []byte) iscsi.Event {
	ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: new([iscsi.BHSSize]byte), Data: append([]byte(nil), data...)}
	p.Put(ev.BHS)
	iscsi.SetDataLength(ev.BHS, uint32(len(data)))
	return ev
}

func (d *fakeDM) die(err error) {
	d.mu.Lock()
	d.err = err
	d.mu.Unlock()
	d.signal()
}

func (d *fakeDM) Wait(evs []iscsi.Event, deadline time.Time) (int, error) {
	for {
		d.mu.Lock()
		n := copy(evs, d.events)
		d.events = append(d.events[:0], d.events[n:]...)
		awake, err := d.awake, d.err
		d.awake = false
		d.mu.Unlock()
		switch {
		case n > 0:
			for _, ev := range evs[:n] {
				if ev.BHS != nil && !d.keep {
					d.views = append(d.views, ev.BHS[:], ev.Data)
				}
			}
			return n, nil
		case err != nil || awake:
			return 0, err
		}
		if deadline.IsZero() {
			<-d.cond
			continue
		}
		if d.timer == nil {
			d.timer = time.NewTimer(0)
		}
		d.timer.Reset(time.Until(deadline))
		select {
		case <-d.cond:
			d.timer.Stop()
		case <-d.timer.C:
			return 0, nil
		}
	}
}

func (d *fakeDM) Flush() error {
	for _, v := range d.views {
		for i := range v {
			v[i] = 0xdb
		}
	}
	d.views = d.views[:0]
	return nil
}

func (d *fakeDM) Wake() {
	d.mu.Lock()
	d.awake = true
	d.mu.Unlock()
	d.signal()
}

func (d *fakeDM) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed++
	d.err = net.ErrClosed
	return nil
}

// A fakeTransport dials fakes.
type fakeTransport struct {
	dial  func(address string) (*fakeDM, error)
	addrs []string
}

func (f *fakeTransport) Name() string { return "fake" }

func (f *fakeTransport) Dial(_ context.Context, address string) (iscsi.InitiatorDatamover, error) {
	f.addrs = append(f.addrs, address)
	return f.dial(address)
}

// A fakeTarget answers login, pings, logout, and commands by a function.
type fakeTarget struct {
	*fakeDM
	statSN  iscsi.StatSN
	exp     iscsi.CmdSN
	window  uint32
	mute    atomic.Bool // pings are not answered
	deaf    atomic.Bool // logout is not answered
	group   string      // TargetPortalGroupTag; empty: not told
	execute func(cdb []byte, in, out []byte) (status uint8, sense []byte, n int)

	bhs [64][iscsi.BHSSize]byte // of SCSI Responses, in turn: the allocation test wants none made
	at  int
}

func newFakeTarget(execute func(cdb []byte, in, out []byte) (status uint8, sense []byte, n int)) *fakeTarget {
	t := &fakeTarget{fakeDM: newFake(), statSN: 0xfffffffd, exp: 1, window: 128, execute: execute}
	t.onSend, t.onCmd = t.control, t.command
	return t
}

func (t *fakeTarget) stat() iscsi.StatSN { t.statSN++; return t.statSN - 1 }

func (t *fakeTarget) control(op iscsi.Opcode, bhs *[iscsi.BHSSize]byte, data []byte) {
	most := t.exp.Add(t.window - 1)
	switch op {
	case iscsi.OpLoginRequest:
		var req iscsi.LoginRequest
		_ = req.Parse(bhs)
		kvs, _ := iscsi.ParseText(data)
		neg := iscsi.NewNegotiation(iscsi.Target, t.traits, iscsi.DefaultConfig(), false)
		answers, _ := neg.Receive(kvs)
		if t.group != "" {
			answers = append(answers, iscsi.KeyValue{Key: "TargetPortalGroupTag", Value: t.group})
		}
		t.pdu(&iscsi.LoginResponse{
			Transit: req.Transit, Current: req.Current, Next: req.Next, ISID: req.ISID, TSIH: 1, ITT: req.ITT,
			StatSN: t.stat(), ExpCmdSN: t.exp, MaxCmdSN: most,
		}, iscsi.AppendText(nil, answers...))
	case iscsi.OpNOPOut:
		var req iscsi.NOPOut
		_ = req.Parse(bhs)
		if req.ITT != iscsi.ReservedTag && !t.mute.Load() {
			t.pdu(&iscsi.NOPIn{ITT: req.ITT, TTT: iscsi.ReservedTag, StatSN: t.stat(), ExpCmdSN: t.exp, MaxCmdSN: most}, nil)
		}
	case iscsi.OpTMFRequest:
		var req iscsi.TMFRequest
		_ = req.Parse(bhs)
		t.pdu(&iscsi.TMFResponse{ITT: req.ITT, StatSN: t.stat(), ExpCmdSN: t.exp, MaxCmdSN: most}, nil)
	case iscsi.OpLogoutReq:
		var req iscsi.LogoutRequest
		_ = req.Parse(bhs)
		if !t.deaf.Load() {
			t.pdu(&iscsi.LogoutResponse{ITT: req.ITT, StatSN: t.stat(), ExpCmdSN: t.exp, MaxCmdSN: most}, nil)
		}
	}
}

func (t *fakeTarget) command(tr *iscsi.Transfer, cmd *iscsi.SCSICommand) {
	if t.execute == nil {
		return
	}
	t.exp = t.exp.Add(1)
	var in, out []byte
	if len(tr.In) > 0 {
		in = tr.In[0]
	}
	if len(tr.Out) > 0 {
		out = tr.Out[0]
	}
	status, sense, n := t.execute(cmd.CDB[:], in, out)
	tr.DM.Offset = uint32(n)
	rsp := iscsi.SCSIResponse{
		Status: status, ITT: tr.ITT, StatSN: t.stat(), ExpCmdSN: t.exp, MaxCmdSN: t.exp.Add(t.window - 1),
		Underflow: n < int(tr.EDTL), Residual: tr.EDTL - uint32(n),
	}
	var data []byte
	if sense != nil {
		data = append(binary.BigEndian.AppendUint16(nil, uint16(len(sense))), sense...)
	}
	rsp.DataLength = uint32(len(data))
	bhs := &t.bhs[t.at%len(t.bhs)]
	t.at++
	rsp.Put(bhs)
	t.push(iscsi.Event{Kind: iscsi.EventPDU, Transfer: tr, BHS: bhs, Data: data})
	t.push(iscsi.Event{Kind: iscsi.EventReleased, Transfer: tr})
}

// transport dials this target once and again.
func (t *fakeTarget) transport() *fakeTransport {
	return &fakeTransport{dial: func(string) (*fakeDM, error) { return t.fakeDM, nil }}
}

func fixedSense(key, asc, ascq uint8) []byte {
	return []byte{0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0}
}

func openFake(t *testing.T, ft *fakeTarget, o Options) *Session {
	t.Helper()
	s, err := Open(context.Background(), ft.transport(), "10.0.0.1:3260", "iqn.2026-01.test:disk", o)
	if err != nil {
		t.Fatal(fmt.Errorf("open: %w", err))
	}
	return s
}
