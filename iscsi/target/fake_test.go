package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
)

var (
	tcpTraits  = iscsi.Traits{Name: "tcp", MaxLoginData: 8192, MaxRecvData: 256 << 10}
	iserTraits = iscsi.Traits{
		Name: "iser", RDMA: true, MaxLoginData: 8192, MaxSendData: 128, MaxRecvData: 8192, DefaultInitialR2T: true,
	}
)

const testTimeout = 5 * time.Second

// A pdu is one PDU that has been sent to the initiator.
type pdu struct {
	bhs  [iscsi.BHSSize]byte
	data []byte
}

func (p *pdu) op() iscsi.Opcode { return iscsi.OpcodeOf(&p.bhs) }

// A fakeDM is a datamover whose wire is a pair of queues. Memory of the initiator is a map by ITT: GetData
// reads it and PutData writes it.
type fakeDM struct {
	traits iscsi.Traits
	local  net.Addr
	remote net.Addr

	mu       sync.Mutex
	cond     sync.Cond
	in       []fakeEvent
	out      []pdu
	woken    bool
	closed   bool
	err      error
	memory   map[uint32][]byte // by ITT
	gets     map[uint32]*fakeGet
	holdGets bool   // GetData stays pending until finishGet
	stuffed  bool   // Idle says no
	maxSend  uint32 // as set last
	keepAll  bool   // EventReleased is not delivered until releaseAll
	kept     []*iscsi.Transfer
	noMemory bool // CanPut and CanGet say no
	enabled  bool
	aborted  int
	busy     map[*iscsi.Transfer]bool
	queued   []pdu // until Flush
	late     []fakeEvent
}

type fakeGet struct {
	t    *iscsi.Transfer
	bufs [][]byte
	off  uint32
}

type fakeEvent struct {
	ev  iscsi.Event
	bhs [iscsi.BHSSize]byte
	ahs []byte
	// data is overwritten after the Flush that ends its life.
	data []byte
}

func newFakeDM(tr iscsi.Traits) *fakeDM {
	d := &fakeDM{
		traits: tr, memory: make(map[uint32][]byte), gets: make(map[uint32]*fakeGet),
		busy: make(map[*iscsi.Transfer]bool), local: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 3260},
		remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 40000},
	}
	d.cond.L = &d.mu
	return d
}

func (d *fakeDM) Traits() iscsi.Traits { return d.traits }
func (d *fakeDM) LocalAddr() net.Addr  { return d.local }
func (d *fakeDM) RemoteAddr() net.Addr { return d.remote }

func (d *fakeDM) Wait(evs []iscsi.Event, deadline time.Time) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var timer *time.Timer
	if !deadline.IsZero() {
		timer = time.AfterFunc(time.Until(deadline), d.cond.Broadcast)
		defer timer.Stop()
	}
	for len(d.in) == 0 && !d.woken && d.err == nil && !d.closed {
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			break
		}
		d.cond.Wait()
	}
	d.woken = false
	n := 0
	for n < len(evs) && len(d.in) > 0 {
		e := d.in[0]
		d.in = d.in[1:]
		if e.ev.Kind == iscsi.EventReleased {
			delete(d.busy, e.ev.Transfer)
			e.ev.Transfer.DM = iscsi.TransferState{}
		}
		ev := e.ev
		if ev.Kind == iscsi.EventPDU {
			d.late = append(d.late, e)
			ev.BHS, ev.AHS, ev.Data = &e.bhs, e.ahs, e.data
		}
		evs[n] = ev
		n++
	}
	if n > 0 {
		return n, nil
	}
	if d.closed {
		return 0, net.ErrClosed
	}
	return 0, d.err
}

func (d *fakeDM) send(bhs *[iscsi.BHSSize]byte, data []byte) {
	p := pdu{bhs: *bhs, data: append([]byte(nil), data...)}
	if int(iscsi.DataLengthOf(bhs)) != len(data) {
		panic(fmt.Sprintf("%v with DataSegmentLength %d and %d bytes", p.op(), iscsi.DataLengthOf(bhs), len(data)))
	}
	d.queued = append(d.queued, p)
}

func (d *fakeDM) Send(bhs *[iscsi.BHSSize]byte, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.send(bhs, data)
}

func (d *fakeDM) Enable(*iscsi.Params, *iscsi.Sequence) error {
	d.enabled = true
	return nil
}

func (d *fakeDM) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out = append(d.out, d.queued...)
	d.queued = nil
	for _, e := range d.late { // views end here
		for i := range e.data {
			e.data[i] = 0xdb
		}
	}
	d.late = nil
	d.cond.Broadcast()
	return d.err
}

func (d *fakeDM) SetMaxSendData(n uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.maxSend = n
}

func (d *fakeDM) Idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.stuffed
}

func (d *fakeDM) Wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.woken = true
	d.cond.Broadcast()
}

func (d *fakeDM) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.cond.Broadcast()
	return nil
}

func (d *fakeDM) CanPut(*iscsi.Transfer) bool { return !d.noMemory }
func (d *fakeDM) CanGet(*iscsi.Transfer) bool { return !d.noMemory }

func (d *fakeDM) PutData(t *iscsi.Transfer, bufs [][]byte, off uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy[t] = true
	m := d.memory[t.ITT]
	for _, b := range bufs {
		if int(off)+len(b) > int(t.EDTL) {
			panic("PutData beyond EDTL")
		}
		if n := int(off) + len(b); n > len(m) {
			m = append(m, make([]byte, n-len(m))...)
		}
		off += uint32(copy(m[off:], b))
	}
	d.memory[t.ITT] = m
}

func (d *fakeDM) GetData(t *iscsi.Transfer, bufs [][]byte, off uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gets[t.ITT] != nil {
		panic("second GetData")
	}
	d.busy[t] = true
	d.gets[t.ITT] = &fakeGet{t, bufs, off}
	if !d.holdGets {
		d.finish(t.ITT)
	}
	d.cond.Broadcast()
}

func (d *fakeDM) finish(itt uint32) {
	g := d.gets[itt]
	delete(d.gets, itt)
	m := d.memory[itt]
	m = m[min(int(g.off), len(m)):]
	for _, b := range g.bufs {
		if int(g.off)+len(b) > int(g.t.EDTL) {
			panic("GetData beyond EDTL")
		}
		g.off += uint32(len(b))
		m = m[copy(b, m):]
	}
	d.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventGot, Transfer: g.t}})
}

func (d *fakeDM) Respond(t *iscsi.Transfer, bhs *[iscsi.BHSSize]byte, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gets[t.ITT] != nil && d.gets[t.ITT].t == t {
		panic("Respond while GetData is under way")
	}
	d.busy[t] = true
	d.send(bhs, data)
	d.released(t)
}

func (d *fakeDM) Abort(t *iscsi.Transfer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.gets[t.ITT]; g != nil && g.t == t {
		delete(d.gets, t.ITT)
	}
	d.aborted++
	d.released(t)
	d.cond.Broadcast()
}

func (d *fakeDM) released(t *iscsi.Transfer) {
	if d.keepAll {
		d.kept = append(d.kept, t)
		return
	}
	d.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventReleased, Transfer: t}})
}

func (d *fakeDM) push(e fakeEvent) {
	d.in = append(d.in, e)
	d.cond.Broadcast()
}

// releaseAll delivers the EventReleased that were kept, and keeps no more.
func (d *fakeDM) releaseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.kept {
		d.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventReleased, Transfer: t}})
	}
	d.kept, d.keepAll = nil, false
}

// set changes the fake's knobs.
func (d *fakeDM) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	d.cond.Broadcast()
}

// waitFor waits until f holds.
func (d *fakeDM) waitFor(t testing.TB, what string, f func() bool) {
	t.Helper()
	timer := time.AfterFunc(testTimeout, d.cond.Broadcast)
	defer timer.Stop()
	end := time.Now().Add(testTimeout)
	d.mu.Lock()
	defer d.mu.Unlock()
	for !f() {
		if !time.Now().Before(end) {
			t.Fatalf("timeout: %s", what)
		}
		d.cond.Wait()
	}
}

// A bench is a server with one target, of which logical unit 0 is in memory and 1 may block.
type bench struct {
	t      testing.TB
	s      *Server
	pool   *arena.Pool
	target *Target
	device *scsi.Device
	slow   *backstoretest.Gate
	lines  *logLines
	mu     sync.Mutex
	fakes  []*fakeDM
}

type benchConfig struct {
	chunks int
	size   string // of a unit
	config Config
	neg    func(*iscsi.Config)
	allow  []string
}

const (
	testTarget    = "iqn.2026-01.test:disk"
	testInitiator = "iqn.2026-01.test:host"
)

func newBench(t testing.TB, bc benchConfig) *bench {
	t.Helper()
	if bc.size == "" {
		bc.size = "16MiB"
	}
	if bc.chunks == 0 {
		bc.chunks = 64
	}
	b := &bench{t: t, lines: &logLines{}}
	var err error
	b.pool, err = arena.New(int64(bc.chunks) * arena.ChunkSize)
	require.NoError(t, err)
	log := logrus.New()
	log.SetOutput(b.lines)
	bc.config.Pool, bc.config.Log = b.pool, log
	b.s = New(bc.config)
	b.device = scsi.NewDevice(scsi.DeviceConfig{Name: testTarget})
	ram, err := backstore.Open("ram", backstore.Options{"size": bc.size})
	require.NoError(t, err)
	_, err = b.device.Add(0, ram, scsi.LUConfig{ID: "fast"})
	require.NoError(t, err)
	slow, err := backstore.Open("ram", backstore.Options{"size": bc.size})
	require.NoError(t, err)
	b.slow = &backstoretest.Gate{Store: slow}
	_, err = b.device.Add(1, b.slow, scsi.LUConfig{ID: "slow"})
	require.NoError(t, err)
	neg := iscsi.DefaultConfig()
	if bc.neg != nil {
		bc.neg(&neg)
	}
	b.target, err = b.s.AddTarget(TargetConfig{Name: testTarget, Device: b.device, Negotiate: neg, Allow: bc.allow})
	require.NoError(t, err)
	t.Cleanup(func() {
		b.slow.Release()
		for _, dm := range b.fakes { // initiators that vanish are not waited for
			dm.set(func() { dm.err = io.EOF })
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.s.Shutdown(ctx)
		require.Equal(t, b.pool.Chunks(), b.pool.Free(), "all buffers are back")
		require.NoError(t, b.pool.Close())
		require.NoError(t, ram.Close())
		require.NoError(t, slow.Close())
	})
	return b
}

// connect starts a connection on a fake datamover.
func (b *bench) connect(tr iscsi.Traits) *fakeDM {
	b.t.Helper()
	return b.connectFrom(tr, nil)
}

// connectFrom is connect from another address.
func (b *bench) connectFrom(tr iscsi.Traits, ip net.IP) *fakeDM {
	b.t.Helper()
	dm := newFakeDM(tr)
	if ip != nil {
		dm.remote = &net.TCPAddr{IP: ip, Port: 40000}
	}
	b.mu.Lock()
	b.fakes = append(b.fakes, dm)
	b.mu.Unlock()
	p := &portal{s: b.s, listener: newFakeListener("tcp", "192.0.2.1:3260"), config: PortalConfig{Tag: 1}}
	c := newConn(b.s, p, dm)
	require.True(b.t, b.s.admit(c))
	go c.run()
	return dm
}

// logLines keeps what has been logged.
type logLines struct {
	mu   sync.Mutex
	text []byte
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	return len(b), nil
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// A client is an initiator on a fake datamover.
type client struct {
	t     testing.TB
	dm    *fakeDM
	cmdSN iscsi.CmdSN
	stat  iscsi.StatSN // next expected
	seen  int          // PDUs of dm.out looked at
	itt   uint32
	tsih  uint16
	max   iscsi.CmdSN
}

func text(lines ...string) []byte {
	var b []byte
	for _, l := range lines {
		b = append(append(b, l...), 0)
	}
	return b
}

func (c *client) push(bhs [iscsi.BHSSize]byte, ahs, data []byte) {
	c.dm.mu.Lock()
	defer c.dm.mu.Unlock()
	iscsi.SetDataLength(&bhs, uint32(len(data)))
	c.dm.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventPDU}, bhs: bhs, ahs: ahs, data: append([]byte(nil), data...)})
}

// next is the next PDU from the target; nil if the connection closes instead.
func (c *client) next() *pdu {
	c.t.Helper()
	var p *pdu
	c.dm.waitFor(c.t, "a PDU from the target", func() bool {
		if c.seen < len(c.dm.out) {
			p = &c.dm.out[c.seen]
			c.seen++
			return true
		}
		return c.dm.closed
	})
	if p != nil {
		cp := *p
		return &cp
	}
	return nil
}

// expect is the next PDU, which must be an op.
func (c *client) expect(op iscsi.Opcode) *pdu {
	c.t.Helper()
	p := c.next()
	require.NotNil(c.t, p, "connection closed in place of %v", op)
	require.Equal(c.t, op.String(), p.op().String())
	return p
}

// closes waits for the target to close the connection, and fails on any PDU before.
func (c *client) closes() {
	c.t.Helper()
	if p := c.next(); p != nil {
		c.t.Fatalf("%v, want the connection closed", p.op())
	}
}

func (c *client) loginRequest(r iscsi.LoginRequest, lines ...string) {
	var bhs [iscsi.BHSSize]byte
	r.CmdSN = c.cmdSN
	r.ExpStatSN = c.stat
	r.Put(&bhs)
	c.push(bhs, nil, text(lines...))
}

func (c *client) loginResponse() (iscsi.LoginResponse, string) {
	c.t.Helper()
	p := c.expect(iscsi.OpLoginResponse)
	var r iscsi.LoginResponse
	require.NoError(c.t, r.Parse(&p.bhs))
	require.Equal(c.t, c.stat, r.StatSN)
	c.stat++
	c.max = r.MaxCmdSN
	return r, string(p.data)
}

var wholeLogin = iscsi.LoginRequest{
	Transit: true, Current: iscsi.StageOperational, Next: iscsi.StageFullFeature,
	ISID: iscsi.ISID{0x40, 0, 1, 0x37}, ITT: 1,
}

func loginLines(tr iscsi.Traits, more ...string) []string {
	lines := []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget, "SessionType=Normal"}
	if tr.RDMA {
		lines = append(lines, "RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192")
	} else {
		lines = append(lines, "MaxRecvDataSegmentLength=8192")
	}
	lines = append(lines, "ImmediateData=Yes", "FirstBurstLength=262144")
	return append(lines, more...)
}

// login logs in on a new connection, in one round.
func (b *bench) login(tr iscsi.Traits, more ...string) *client {
	b.t.Helper()
	return b.loginAs(tr, wholeLogin, more...)
}

func (b *bench) loginAs(tr iscsi.Traits, r iscsi.LoginRequest, more ...string) *client {
	b.t.Helper()
	c := &client{t: b.t, dm: b.connect(tr), cmdSN: 100, stat: 7, itt: 0x1000}
	c.loginRequest(r, loginLines(tr, more...)...)
	resp, _ := c.loginResponse()
	require.Equal(b.t, iscsi.LoginSuccess, resp.Status, "login status")
	require.True(b.t, resp.Transit && resp.Next == iscsi.StageFullFeature)
	c.tsih = resp.TSIH
	return c
}

func (b *bench) discovery(tr iscsi.Traits, more ...string) *client {
	b.t.Helper()
	c := &client{t: b.t, dm: b.connect(tr), cmdSN: 100, stat: 7, itt: 0x1000}
	c.loginRequest(wholeLogin, append([]string{"InitiatorName=" + testInitiator, "SessionType=Discovery"}, more...)...)
	resp, _ := c.loginResponse()
	require.Equal(b.t, iscsi.LoginSuccess, resp.Status)
	c.tsih = resp.TSIH
	return c
}

// command sends a SCSI Command and returns its ITT. cmd's ITT, CmdSN and ExpStatSN are filled in.
func (c *client) command(cmd iscsi.SCSICommand, cdb []byte, data []byte) uint32 {
	copy(cmd.CDB[:], cdb)
	if cmd.ITT == 0 {
		c.itt++
		cmd.ITT = c.itt
	}
	cmd.CmdSN, cmd.ExpStatSN = c.cmdSN, c.stat
	if !cmd.Immediate {
		c.cmdSN++
	}
	var bhs [iscsi.BHSSize]byte
	cmd.Put(&bhs)
	c.push(bhs, nil, data)
	return cmd.ITT
}

func (c *client) response(itt uint32) (iscsi.SCSIResponse, []byte) {
	c.t.Helper()
	p := c.expect(iscsi.OpSCSIResponse)
	var r iscsi.SCSIResponse
	require.NoError(c.t, r.Parse(&p.bhs))
	require.Equal(c.t, itt, r.ITT)
	require.Equal(c.t, c.stat, r.StatSN)
	require.Zero(c.t, r.Response)
	c.stat++
	require.False(c.t, r.MaxCmdSN.Before(c.max), "MaxCmdSN goes back")
	c.max = r.MaxCmdSN
	return r, p.data
}

func lun(n int) iscsi.LUN { return iscsi.LUNFromNumber(n) }

func rw10(op byte, lba, blocks int) []byte {
	cdb := make([]byte, 16)
	cdb[0] = op
	binary.BigEndian.PutUint32(cdb[2:], uint32(lba))
	binary.BigEndian.PutUint16(cdb[7:], uint16(blocks))
	return cdb
}

func read10(lba, blocks int) []byte  { return rw10(0x28, lba, blocks) }
func write10(lba, blocks int) []byte { return rw10(0x2a, lba, blocks) }

func (c *client) read(lunNo, lba, blocks int) uint32 {
	return c.command(iscsi.SCSICommand{
		Final: true, Read: true, LUN: lun(lunNo), EDTL: uint32(blocks * 512),
	}, read10(lba, blocks), nil)
}

// clearUA takes the unit attention that a new nexus has on a unit.
func (c *client) clearUA(luns ...int) {
	c.t.Helper()
	for _, n := range luns {
		itt := c.command(iscsi.SCSICommand{Final: true, LUN: lun(n)}, make([]byte, 16), nil)
		r, sense := c.response(itt)
		require.Equal(c.t, uint8(scsi.CheckCondition), r.Status)
		require.Equal(c.t, []byte{6, 0x29, 0}, []byte{sense[4], sense[14], sense[15]})
	}
}

// pattern is n bytes of which each 512 say where they lie and which seed they have.
func pattern(n int, seed byte) []byte {
	b := bytes.Repeat([]byte{seed}, n)
	for i := 0; i+8 <= n; i += 512 {
		binary.BigEndian.PutUint32(b[i:], uint32(i)|0x80000000)
	}
	return b
}
