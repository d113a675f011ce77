package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// params are what both ends of the tests have negotiated, unless changed.
func params(change ...func(*iscsi.Params)) iscsi.Params {
	p := iscsi.Params{
		ImmediateData:       true,
		MaxBurstLength:      1 << 20,
		FirstBurstLength:    64 << 10,
		MaxOutstandingR2T:   1,
		MaxConnections:      1,
		DataPDUInOrder:      true,
		DataSequenceInOrder: true,
		MaxSendData:         256 << 10,
		MaxRecvData:         256 << 10,
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

// socketPair is a connection over the loopback interface.
func socketPair(t testing.TB) (a, b net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	return a, b
}

const (
	opRead  = 0x88
	opWrite = 0x8a
)

// A diskTask is a command at the disk.
type diskTask struct {
	iscsi.Transfer
	write  bool
	off    uint64
	length uint32
	got    uint32
	bufs   [][]byte
	memory [16][]byte
}

// A disk is the least target engine: it serves reads and writes of mem and echoes pings.
type disk struct {
	dm    iscsi.TargetDatamover
	p     iscsi.Params
	seq   iscsi.Sequence
	mem   []byte
	piece int // payload is handed over in pieces of this size
	free  []*diskTask
	live  map[uint32]*diskTask
	seen  func(*iscsi.Event) bool // true: handled
	loop  func()
	bhs   [iscsi.BHSSize]byte // what is handed to an interface's method is on the heap
}

func newDisk(nc net.Conn, p iscsi.Params, size int) *disk {
	d := &disk{dm: NewTarget(nc), p: p, mem: make([]byte, size), piece: 64 << 10, live: map[uint32]*diskTask{}}
	d.seq = iscsi.Sequence{StatSN: 1, ExpCmdSN: 1, MaxCmdSN: 129}
	if err := d.dm.Enable(&p, &d.seq); err != nil {
		panic(err)
	}
	return d
}

// run serves until the connection is over and says why.
func (d *disk) run() error {
	defer d.dm.Close()
	evs := make([]iscsi.Event, 64)
	for {
		n, err := d.dm.Wait(evs, time.Time{})
		if err != nil {
			return err
		}
		if d.loop != nil {
			d.loop()
		}
		for i := range evs[:n] {
			if d.seen == nil || !d.seen(&evs[i]) {
				d.event(&evs[i])
			}
		}
		if err := d.dm.Flush(); err != nil {
			return err
		}
	}
}

func (d *disk) event(ev *iscsi.Event) {
	switch ev.Kind {
	case iscsi.EventGot:
		d.respond(d.live[ev.Transfer.ITT])
	case iscsi.EventReleased:
		task := d.live[ev.Transfer.ITT]
		delete(d.live, ev.Transfer.ITT)
		d.free = append(d.free, task)
	case iscsi.EventPDU:
		d.pdu(ev)
	}
}

func (d *disk) pdu(ev *iscsi.Event) {
	switch iscsi.OpcodeOf(ev.BHS) {
	case iscsi.OpSCSICommand:
		var c iscsi.SCSICommand
		_ = c.Parse(ev.BHS)
		d.command(&c, ev.Data)
	case iscsi.OpDataOut:
		var p iscsi.DataOut
		_ = p.Parse(ev.BHS)
		task := d.live[p.ITT]
		copy(d.mem[task.off+uint64(p.Offset):], ev.Data)
		task.got += p.DataLength
		d.fetch(task)
	case iscsi.OpNOPOut:
		var p iscsi.NOPOut
		_ = p.Parse(ev.BHS)
		r := iscsi.NOPIn{
			DataLength: p.DataLength, LUN: p.LUN, ITT: p.ITT, TTT: iscsi.ReservedTag,
			StatSN: d.seq.StatSN, ExpCmdSN: d.seq.ExpCmdSN, MaxCmdSN: d.seq.MaxCmdSN,
		}
		d.seq.StatSN++
		r.Put(&d.bhs)
		d.dm.Send(&d.bhs, ev.Data)
	}
}

func (d *disk) command(c *iscsi.SCSICommand, data []byte) {
	var task *diskTask
	if n := len(d.free); n > 0 {
		task, d.free = d.free[n-1], d.free[:n-1]
	} else {
		task = &diskTask{}
	}
	d.live[c.ITT] = task
	d.seq.ExpCmdSN++
	d.seq.MaxCmdSN++
	task.Transfer = iscsi.Transfer{ITT: c.ITT, LUN: c.LUN, EDTL: c.EDTL}
	task.off = binary.BigEndian.Uint64(c.CDB[2:])
	task.length = binary.BigEndian.Uint32(c.CDB[10:])
	task.write = c.CDB[0] == opWrite
	task.got = 0
	task.bufs = task.memory[:0]
	if !task.write {
		d.cut(task, 0)
		d.dm.PutData(&task.Transfer, task.bufs, 0)
		d.respond(task)
		return
	}
	task.Unsolicited = d.p.Announced(c.EDTL, c.DataLength, c.Final)
	copy(d.mem[task.off:], data)
	task.got = uint32(len(data))
	d.fetch(task)
}

func (d *disk) cut(task *diskTask, from uint32) {
	mem := d.mem[task.off+uint64(from) : task.off+uint64(task.length)]
	for len(mem) > 0 {
		n := min(d.piece, len(mem))
		task.bufs = append(task.bufs, mem[:n])
		mem = mem[n:]
	}
}

// fetch goes on when all unsolicited data has come.
func (d *disk) fetch(task *diskTask) {
	switch {
	case task.got < task.Unsolicited:
	case task.got < task.length:
		d.cut(task, task.got)
		d.dm.GetData(&task.Transfer, task.bufs, task.got)
	default:
		d.respond(task)
	}
}

func (d *disk) respond(task *diskTask) {
	r := iscsi.SCSIResponse{
		ITT: task.ITT, StatSN: d.seq.StatSN, ExpCmdSN: d.seq.ExpCmdSN, MaxCmdSN: d.seq.MaxCmdSN,
		Residual: task.EDTL - task.length, Underflow: task.length < task.EDTL,
	}
	d.seq.StatSN++
	r.Put(&d.bhs)
	d.dm.Respond(&task.Transfer, &d.bhs, nil)
}

// A request is a command at the client.
type request struct {
	iscsi.Transfer
	responded, released bool
	status              iscsi.SCSIResponse
	received            uint32
}

// A client is the least initiator engine, driven by its test.
type client struct {
	dm   iscsi.InitiatorDatamover
	seq  iscsi.Sequence
	itt  uint32
	evs  []iscsi.Event
	pdu  func(*iscsi.Event)
	live int
	bhs  [iscsi.BHSSize]byte
}

func newClient(nc net.Conn, p iscsi.Params) *client {
	c := &client{dm: NewInitiator(nc), evs: make([]iscsi.Event, 64)}
	c.seq = iscsi.Sequence{StatSN: 1, ExpCmdSN: 1, MaxCmdSN: 129}
	if err := errors.Join(c.dm.Prepare(&p), c.dm.Enable(&p, &c.seq)); err != nil {
		panic(err)
	}
	return c
}

// submit queues a read into in or a write of out at byte off of the disk.
func (c *client) submit(r *request, off uint64, in, out [][]byte) {
	c.itt++
	*r = request{Transfer: iscsi.Transfer{ITT: c.itt, LUN: iscsi.LUNFromNumber(5), In: in, Out: out}}
	r.EDTL = uint32(total(in) + total(out))
	cmd := iscsi.SCSICommand{
		Final: true, Read: in != nil, Write: out != nil, LUN: r.LUN, ITT: r.ITT, EDTL: r.EDTL,
		CmdSN: iscsi.CmdSN(c.itt), ExpStatSN: c.seq.StatSN,
	}
	cmd.CDB[0] = opRead
	if out != nil {
		cmd.CDB[0] = opWrite
	}
	binary.BigEndian.PutUint64(cmd.CDB[2:], off)
	binary.BigEndian.PutUint32(cmd.CDB[10:], r.EDTL)
	cmd.Put(&c.bhs)
	r.Tag = r.ITT
	c.live++
	c.dm.SendCommand(&r.Transfer, &c.bhs, nil)
}

// turn is one round: Flush, Wait, and the events. find tells the request of a transfer.
func (c *client) turn(deadline time.Time, find func(*iscsi.Transfer) *request) error {
	if err := c.dm.Flush(); err != nil {
		return err
	}
	n, err := c.dm.Wait(c.evs, deadline)
	if err != nil {
		return err
	}
	for i := range c.evs[:n] {
		ev := &c.evs[i]
		switch {
		case ev.Kind == iscsi.EventReleased:
			find(ev.Transfer).released = true
			c.live--
		case ev.Transfer != nil:
			r := find(ev.Transfer)
			r.responded = true
			r.received = c.dm.Received(ev.Transfer)
			if err := r.status.Parse(ev.BHS); err != nil {
				return err
			}
			c.seq.StatSN = r.status.StatSN + 1
		case c.pdu != nil:
			c.pdu(ev)
		}
	}
	return nil
}

// wait runs rounds until r is done.
func (c *client) wait(r *request) error {
	find := func(*iscsi.Transfer) *request { return r }
	deadline := time.Now().Add(20 * time.Second)
	for !r.responded || !r.released {
		if err := c.turn(deadline, find); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
		}
	}
	return nil
}

// rig joins a client and a disk; the disk runs until the test ends.
func rig(t testing.TB, a, b net.Conn, ip, tp iscsi.Params, size int) (*client, *disk) {
	c, d := newClient(a, ip), newDisk(b, tp, size)
	ended := make(chan error, 1)
	go func() { ended <- d.run() }()
	t.Cleanup(func() {
		_ = c.dm.Close()
		<-ended
	})
	return c, d
}

// stamp fills b so that every word tells where it stands.
func stamp(b []byte, seed uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (seed+uint64(i))*0x9e3779b97f4a7c15)
	}
	for i := len(b) &^ 7; i < len(b); i++ {
		b[i] = byte(seed) + byte(i)
	}
}

// time0 is no deadline.
var time0 time.Time

// errEnded is what a loop ends with when its peer has closed in order.
var errEnded = io.EOF
