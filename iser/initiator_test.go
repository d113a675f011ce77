package iser

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
)

// An iniBench is our initiator with a target played by hand.
type iniBench struct {
	f   *fabric.Fabric
	tap *tap
	ini *initiator
	seq *iscsi.Sequence
	loop
}

func newInitiator(t testing.TB, o fabric.Options, c InitiatorConfig) (*iniBench, *peer) {
	b := &iniBench{tap: &tap{}, seq: &iscsi.Sequence{StatSN: 0x55}}
	if o.Tap == nil {
		o.Tap = b.tap.record
	}
	b.f = fabric.New(o)
	l, err := b.f.Listen(portal)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		dm, err := (&Dialer{Provider: b.f, Config: c}).Dial(ctx, portal.String())
		if err == nil {
			b.ini = dm.(*initiator)
		}
		done <- err
	}()
	ep, err := l.Accept(ctx)
	require.NoError(t, err)
	p := newPeer(t, ep)
	require.NoError(t, ep.Accept(rdma.ConnParam{PrivateData: []byte{0x80, 0, 0, 0}, InitiatorDepth: ep.Peer().InitiatorDepth}))
	require.NoError(t, <-done)
	t.Cleanup(func() { require.NoError(t, b.ini.Close()) })
	b.loop = loop{t: t, dm: b.ini}
	return b, p
}

func (b *iniBench) enable(p *iscsi.Params) {
	require.NoError(b.t, b.ini.Prepare(p))
	require.NoError(b.t, b.ini.Enable(p, b.seq))
}

// command queues a command.
func (b *iniBench) command(itt uint32, in, out []byte) *iscsi.Transfer {
	tr := &iscsi.Transfer{ITT: itt, EDTL: uint32(len(in) + len(out)), LUN: 0x0001000000000000}
	if in != nil {
		tr.In = split(in, 1000)
	}
	if out != nil {
		tr.Out = split(out, 1000)
	}
	b.start(tr, in != nil, out != nil)
	return tr
}

func (b *iniBench) start(tr *iscsi.Transfer, read, write bool) {
	cmd := iscsi.SCSICommand{Read: read, Write: write, ITT: tr.ITT, EDTL: tr.EDTL, LUN: tr.LUN, CmdSN: iscsi.CmdSN(tr.ITT)}
	var bhs [iscsi.BHSSize]byte
	cmd.Put(&bhs)
	b.ini.SendCommand(tr, &bhs, nil)
}

// received parses a command or Data-Out at the target.
func received(t testing.TB, a arrival) (message, iscsi.SCSICommand) {
	t.Helper()
	var m message
	require.NoError(t, m.parse(a.b))
	require.Len(t, a.b, fixedSize+len(m.AHS)+len(m.Data), "no padding")
	var c iscsi.SCSICommand
	if iscsi.OpcodeOf(m.BHS) == iscsi.OpSCSICommand {
		require.NoError(t, c.Parse(m.BHS))
	}
	return m, c
}

// answer sends a SCSI Response.
func (p *peer) answer(r iscsi.SCSIResponse) { p.send(responseBytes(r)) }

func responseBytes(r iscsi.SCSIResponse) []byte {
	var bhs [iscsi.BHSSize]byte
	r.Put(&bhs)
	return append((&Header{}).Append(nil), bhs[:]...)
}

// put writes to the initiator's memory.
func (p *peer) put(key uint32, addr uint64, b []byte) {
	p.startOp(rdma.SendWR{Op: rdma.OpWrite, RKey: key, RemoteAddr: addr}, b)
	sent := p.sent
	p.until(func() bool { return p.sent > sent || len(p.bad) > 0 })
}

// get reads the initiator's memory.
func (p *peer) get(key uint32, addr uint64, n int) []byte {
	m := make([]byte, n)
	mr, err := p.dev.Register(m, rdma.LocalWrite)
	require.NoError(p.t, err)
	_, err = p.qp.PostSend([]rdma.SendWR{{
		ID: sendID, Op: rdma.OpRead, Flags: rdma.Signaled, RKey: key, RemoteAddr: addr, SGL: []rdma.SGE{rdma.Piece(mr, 0, uint32(n))},
	}})
	require.NoError(p.t, err)
	sent := p.sent
	p.until(func() bool { return p.sent > sent || len(p.bad) > 0 })
	require.NoError(p.t, mr.Deregister())
	return m
}

func TestCommandHeaders(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	params := normalParams()
	params.FirstBurstLength = 3000
	b.enable(params)
	p.post(16)
	zero := make([]byte, HeaderSize)
	zero[0] = 0x10
	b.command(1, nil, nil)
	in := make([]byte, 8192)
	b.command(2, in, nil)
	out := pattern(make([]byte, 8192), 5)
	b.command(3, nil, out)
	b.command(4, nil, out[:3000])
	b.command(5, nil, out[:3001])
	tr := &iscsi.Transfer{ITT: 6}
	b.start(tr, true, false) // a read of nothing
	require.NoError(t, b.ini.Flush())

	a := p.recv()
	_, c := received(t, a)
	assert.Equal(t, zero, a.b[:HeaderSize])
	assert.True(t, c.Final)

	a = p.recv()
	m, c := received(t, a)
	assert.Equal(t, byte(0x14), a.b[0])
	assert.Equal(t, make([]byte, 15), a.b[1:16])
	assert.True(t, c.Final && c.Read)
	assert.EqualValues(t, 8192, c.EDTL)
	assert.Zero(t, m.ReadBase%4096, "page-aligned")
	read := m.Header

	a = p.recv()
	m, c = received(t, a)
	assert.Equal(t, byte(0x18), a.b[0])
	assert.Equal(t, make([]byte, 12), a.b[16:28])
	assert.True(t, c.Final && c.Write)
	assert.Empty(t, m.Data)
	assert.Equal(t, out, p.get(m.WriteSTag, m.WriteBase, 8192))
	write := m.Header

	a = p.recv() // all inline: no key
	m, c = received(t, a)
	assert.Equal(t, zero, a.b[:HeaderSize])
	assert.True(t, c.Final && c.Write)
	assert.Equal(t, out[:3000], m.Data)

	a = p.recv() // one byte more than FirstBurstLength: nothing inline
	m, c = received(t, a)
	assert.Equal(t, byte(0x18), a.b[0])
	assert.Empty(t, m.Data)
	assert.True(t, c.Final)

	a = p.recv()
	_, c = received(t, a)
	assert.Equal(t, zero, a.b[:HeaderSize])
	assert.True(t, c.Read && c.Final)

	// A key grants what its direction needs and no more.
	require.NotEqual(t, read.ReadSTag, write.WriteSTag)
	p.get(read.ReadSTag, read.ReadBase, 16)
	require.NotEmpty(t, p.bad)
	require.Equal(t, rdma.RemAccessErr, p.bad[0].Status)
	for _, o := range b.tap.take() {
		require.NotEqual(t, rdma.OpSendInv, o.Op)
	}
}

func TestWriteKeyDoesNotAllowWriting(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(2)
	b.command(3, nil, make([]byte, 8192))
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	p.put(m.WriteSTag, m.WriteBase, []byte{1})
	require.NotEmpty(t, p.bad)
	require.Equal(t, rdma.RemAccessErr, p.bad[0].Status)
}

// How writes travel, by what was negotiated and configured.
func TestWritePlans(t *testing.T) {
	const big = 100000
	for _, c := range []struct {
		name    string
		r2t     bool // InitialR2T
		imm     bool // ImmediateData
		first   uint32
		dsl     uint32
		partial bool
		max     int // MaxImmediate
		edtl    uint32
		want    plan
	}{
		{"all inline", true, true, 65536, 8192, false, 4096, 4096, plan{4096, 4096, 4096}},
		{"too long to be inline", true, true, 65536, 8192, false, 4096, 4097, plan{0, 0, 4097}},
		{"no immediate data", true, false, 65536, 8192, true, 4096, 100, plan{0, 0, 100}},
		{"target takes less", true, true, 65536, 512, false, 4096, 513, plan{0, 0, 513}},
		{"target takes just that", true, true, 65536, 512, false, 4096, 512, plan{512, 512, 512}},
		{"first burst is shorter", true, true, 600, 8192, false, 4096, 601, plan{0, 0, 601}},
		{"partial", true, true, 65536, 8192, true, 4096, big, plan{8192, 8192, big}},
		{"partial, first burst is shorter", true, true, 600, 8192, true, 4096, big, plan{600, 600, big}},
		{"partial, just all", true, true, 65536, 8192, true, 4096, 8192, plan{8192, 8192, 8192}},
		{"unsolicited", false, true, 65536, 8192, false, 4096, big, plan{0, 65536, big}},
		{"unsolicited, all of it", false, true, 65536, 8192, false, 4096, 65536, plan{0, 65536, 65536}},
		{"unsolicited, short", false, true, 65536, 8192, false, 4096, 100, plan{100, 100, 100}},
		{"unsolicited, partial", false, true, 65536, 8192, true, 4096, big, plan{8192, 65536, big}},
		{"unsolicited, no immediate data", false, false, 65536, 8192, true, 4096, big, plan{0, 65536, big}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 8, MaxImmediate: c.max, PartialImmediate: c.partial})
			params := normalParams()
			params.InitialR2T, params.ImmediateData, params.FirstBurstLength, params.MaxSendData = c.r2t, c.imm, c.first, c.dsl
			b.enable(params)
			p.post(20)
			out := pattern(make([]byte, c.edtl), 77)
			tr := b.command(9, nil, out)
			require.NoError(t, b.ini.Flush())
			require.Equal(t, c.want, tr.DM.Ptr.(*command).plan)
			m, cmd := received(t, p.recv())
			require.Equal(t, c.edtl, cmd.EDTL)
			require.Equal(t, c.want.immediate == c.want.unsolicited, cmd.Final)
			data := m.Data
			require.Len(t, data, int(c.want.immediate))
			var sn uint32
			for len(data) < int(c.want.unsolicited) {
				a := p.recv()
				require.Equal(t, append([]byte{0x10}, make([]byte, 27)...), a.b[:HeaderSize])
				d, _ := received(t, a)
				var pdu iscsi.DataOut
				require.NoError(t, pdu.Parse(d.BHS))
				require.Equal(t, iscsi.DataOut{
					Final: len(data)+len(d.Data) == int(c.want.unsolicited), DataLength: uint32(len(d.Data)), LUN: tr.LUN, ITT: 9,
					TTT: iscsi.ReservedTag, ExpStatSN: 0x55, DataSN: sn, Offset: uint32(len(data)),
				}, pdu)
				if !pdu.Final {
					require.EqualValues(t, c.dsl, pdu.DataLength, "all but the last are as long as the target takes")
				}
				sn++
				data = append(data, d.Data...)
			}
			if rest := int(c.edtl) - len(data); rest > 0 {
				require.Equal(t, WriteValid, m.Flags)
				data = append(data, p.get(m.WriteSTag, m.WriteBase, rest)...)
			} else {
				require.Zero(t, m.Header, "nothing to fetch: no key")
			}
			require.Equal(t, out, data)
			p.poll()
			require.Empty(t, p.got)
			p.answer(iscsi.SCSIResponse{ITT: 9})
			ev := b.until(iscsi.EventPDU)
			require.Same(t, tr, ev.Transfer)
			require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
			require.Zero(t, tr.DM)
			require.Zero(t, b.ini.source.live)
		})
	}
}

func TestWriteOfLessThanAnnouncedIsFilledWithZeros(t *testing.T) {
	for _, edtl := range []uint32{2000, 9000, 70000} {
		b, p := newInitiator(t, strict, InitiatorConfig{})
		params := normalParams()
		params.InitialR2T = edtl < 10000
		b.enable(params)
		p.post(20)
		for _, blk := range append(b.ini.slots.blocks, b.ini.source.block) { // what was sent before
			for i := range blk.mem {
				blk.mem[i] = 0xbb
			}
		}
		out := pattern(make([]byte, 1000), 1)
		tr := &iscsi.Transfer{ITT: 1, EDTL: edtl, Out: [][]byte{out}}
		b.start(tr, false, true)
		require.NoError(t, b.ini.Flush())
		m, _ := received(t, p.recv())
		data := m.Data
		for len(p.got) > 0 {
			d, _ := received(t, p.recv())
			data = append(data, d.Data...)
		}
		if rest := int(edtl) - len(data); rest > 0 {
			data = append(data, p.get(m.WriteSTag, m.WriteBase, rest)...)
		}
		require.Equal(t, append(append([]byte(nil), out...), make([]byte, edtl-1000)...), data)
	}
}

func TestReadDataIsCopiedAsFarAsTheResponseSays(t *testing.T) {
	for name, c := range map[string]struct {
		r    iscsi.SCSIResponse
		want int
	}{
		"good":               {iscsi.SCSIResponse{}, 5000},
		"underflow":          {iscsi.SCSIResponse{Underflow: true, Residual: 1234}, 3766},
		"underflow of all":   {iscsi.SCSIResponse{Underflow: true, Residual: 5000}, 0},
		"residual too large": {iscsi.SCSIResponse{Underflow: true, Residual: 0xffffffff}, 0},
		"overflow":           {iscsi.SCSIResponse{Overflow: true, Residual: 1234}, 5000},
		"check condition":    {iscsi.SCSIResponse{Status: 2, Underflow: true, Residual: 4000}, 1000},
		"busy":               {iscsi.SCSIResponse{Status: 8}, 0},
		"target failure":     {iscsi.SCSIResponse{Response: 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, InitiatorConfig{})
			b.enable(normalParams())
			p.post(2)
			in := make([]byte, 5000)
			tr := b.command(1, in, nil)
			require.NoError(t, b.ini.Flush())
			m, _ := received(t, p.recv())
			data := pattern(make([]byte, 5000), 9)
			p.put(m.ReadSTag, m.ReadBase, data)
			require.Equal(t, make([]byte, 5000), in, "not before the response")
			c.r.ITT = 1
			p.answer(c.r)
			require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
			require.EqualValues(t, c.want, b.ini.Received(tr))
			require.Equal(t, append(append([]byte(nil), data[:c.want]...), make([]byte, 5000-c.want)...), in)
			require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
			require.EqualValues(t, c.want, b.ini.Received(tr), "the number outlives the release")
		})
	}
}

func TestReadIntoLessRoomThanAnnounced(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(2)
	in := make([]byte, 100)
	tr := &iscsi.Transfer{ITT: 1, EDTL: 5000, In: [][]byte{in}}
	b.start(tr, true, false)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	data := pattern(make([]byte, 5000), 9)
	p.put(m.ReadSTag, m.ReadBase, data)
	p.answer(iscsi.SCSIResponse{ITT: 1})
	b.until(iscsi.EventPDU)
	require.EqualValues(t, 100, b.ini.Received(tr))
	require.Equal(t, data[:100], in)
}

func TestLoginReceivesAreThereFromTheStart(t *testing.T) {
	const depth = 12
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: depth})
	for i := range 3 { // login answers as long as they get, unasked even
		p.send(testMessage(0, 8192))
		require.Len(t, b.until(iscsi.EventPDU).Data, 8192, i)
		require.NoError(t, b.ini.Flush())
	}
	b.enable(normalParams())
	require.NoError(t, b.ini.Flush())
	for range depth + recvReserve {
		p.send(testMessage(0, 100))
	}
	require.Empty(t, p.bad)
	require.Len(t, b.wait(time.Second), depth+recvReserve)
	require.NoError(t, b.ini.Flush())
	p.send(testMessage(0, 100)) // and they are posted again
	require.Empty(t, p.bad)
}

func TestDiscoveryOfManyAnswers(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 4})
	params := normalParams()
	params.Discovery = true
	b.enable(params)
	for range 100 {
		p.post(1)
		b.ini.Send(response(1), make([]byte, 4000))
		require.NoError(t, b.ini.Flush())
		require.Len(t, p.recv().b, fixedSize+4000)
		p.send(testMessage(0, 8192))
		b.until(iscsi.EventPDU)
		require.NoError(t, b.ini.Flush())
	}
}

func TestBadMessagesOfATarget(t *testing.T) {
	invalid := func(p *peer) {
		p.startOp(rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: 0}, responseBytes(iscsi.SCSIResponse{ITT: 1}))
	}
	plain := func(b []byte) func(*peer) { return func(p *peer) { p.start(b) } }
	opcode := func(op iscsi.Opcode) func(*peer) {
		b := testMessage(0, 0)
		b[HeaderSize] = byte(op)
		return plain(b)
	}
	for name, send := range map[string]func(*peer){
		"Data-In":             opcode(iscsi.OpDataIn),
		"R2T":                 opcode(iscsi.OpR2T),
		"invalidation of 0":   invalid,
		"too short":           plain(testMessage(0, 0)[:75]),
		"too long":            plain(append(testMessage(0, 8), make([]byte, 5)...)),
		"DSL too long":        plain(testMessage(0, 8)[:fixedSize+7]),
		"HelloReply":          plain(append([]byte{0x30}, make([]byte, 100)...)),
		"AHS of 260":          plain(testMessage(260, 0)),
		"nothing":             plain(nil),
		"response, truncated": plain(responseBytes(iscsi.SCSIResponse{ITT: 1})[:60]),
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 2})
			b.enable(normalParams())
			p.post(4)
			in := make([]byte, 100)
			tr := b.command(1, in, nil)
			require.NoError(t, b.ini.Flush())
			p.recv()
			send(p)
			evs, err := b.fails()
			if name == "invalidation of 0" { // the device itself refuses it
				require.Error(t, err)
			} else {
				require.ErrorIs(t, err, ErrProtocol)
			}
			require.Len(t, evs, 1, "the command ends once")
			require.Equal(t, iscsi.EventReleased, evs[0].Kind)
			require.Same(t, tr, evs[0].Transfer)
			require.Zero(t, b.ini.Received(tr))
			require.Empty(t, b.wait(time.Second))
		})
	}
}

// A device that lets an ordinary region be invalidated tells us so; the connection has to end.
func TestInvalidationThatWasRefused(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(1)
	in := make([]byte, 100)
	b.command(1, in, nil)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	// The fabric, like rxe, would refuse it; siw does not. Hand in what siw would say.
	raw := responseBytes(iscsi.SCSIResponse{ITT: 1})
	var msg message
	require.NoError(t, msg.parse(raw))
	_, ok := b.ini.receive(&msg, &rdma.Completion{Invalidated: true, InvalidatedKey: m.ReadSTag})
	require.False(t, ok)
	evs, err := b.fails()
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, fmt.Sprintf("%08x", m.ReadSTag))
	require.Len(t, evs, 1)
}

func TestPaddingIsTolerated(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	for pad := range maxPad + 1 {
		p.send(append(testMessage(0, 5), make([]byte, pad)...))
		require.Len(t, b.until(iscsi.EventPDU).Data, 5)
		require.NoError(t, b.ini.Flush())
	}
}

func TestUnknownTaskTagsReachTheEngine(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{})
	b.enable(normalParams())
	p.post(4)
	tr := b.command(1, make([]byte, 512), nil)
	require.NoError(t, b.ini.Flush())
	p.recv()
	for _, itt := range []uint32{2, iscsi.ReservedTag} {
		p.answer(iscsi.SCSIResponse{ITT: itt})
		require.Nil(t, b.until(iscsi.EventPDU).Transfer)
	}
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	b.until(iscsi.EventReleased)
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Nil(t, b.until(iscsi.EventPDU).Transfer, "a second response is of no task")
}

func TestResponseToACommandThatWasNotSent(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1})
	b.enable(normalParams())
	p.post(4)
	b.command(1, make([]byte, 512), nil)
	b.command(2, make([]byte, 512), nil) // waits
	require.NoError(t, b.ini.Flush())
	p.answer(iscsi.SCSIResponse{ITT: 2})
	evs, err := b.fails()
	require.ErrorIs(t, err, ErrProtocol)
	require.Len(t, evs, 2)
}

// Commands wait in order for the queue depth, and for memory.
func TestCommandsWaitTheirTurn(t *testing.T) {
	for name, c := range map[string]InitiatorConfig{
		"queue depth": {QueueDepth: 2},
		"memory":      {QueueDepth: 64, PoolBytes: 2 << 20}, // two reads of 512 KiB
	} {
		t.Run(name, func(t *testing.T) {
			b, p := newInitiator(t, strict, c)
			b.enable(normalParams())
			p.post(40)
			const n = 400 << 10
			var trs []*iscsi.Transfer
			ins := make([][]byte, 8)
			for i := range ins {
				ins[i] = make([]byte, n)
				trs = append(trs, b.command(uint32(i), ins[i], nil))
			}
			b.ini.Send(testText(), nil) // keeps its place behind them
			b.ini.Send(testNOP(), nil)  // a ping does not
			require.False(t, b.ini.Idle())
			require.NoError(t, b.ini.Flush())
			for i := range ins {
				m, cmd := received(t, p.recv())
				require.EqualValues(t, i, cmd.ITT)
				if i == 1 {
					m, _ := received(t, p.recv())
					require.Equal(t, iscsi.OpNOPOut, iscsi.OpcodeOf(m.BHS))
				}
				p.poll()
				commands := 1
				for _, a := range p.got {
					if _, c := received(t, a); c.Read {
						commands++
					}
				}
				require.LessOrEqual(t, commands, 2, "at a time")
				p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 8000), uint32(i)))
				p.answer(iscsi.SCSIResponse{ITT: cmd.ITT})
				require.Same(t, trs[i], b.until(iscsi.EventPDU).Transfer)
				require.NoError(t, b.ini.Flush())
				require.Equal(t, pattern(make([]byte, 8000), uint32(i)), ins[i][:8000])
			}
			m, _ := received(t, p.recv())
			require.Equal(t, iscsi.OpTextRequest, iscsi.OpcodeOf(m.BHS))
			require.Zero(t, b.ini.sink.live)
			require.Len(t, b.ini.sink.free[b.ini.sink.top], 1, "all in one piece again")
		})
	}
}

func testNOP() *[iscsi.BHSSize]byte {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 1, TTT: iscsi.ReservedTag}).Put(&bhs)
	return &bhs
}

func TestCommandsLeaveSlotsForAnswers(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 2})
	b.enable(normalParams())
	p.post(4)
	b.command(1, nil, nil)
	require.NoError(t, b.ini.Flush()) // its completion is not polled for: one Send is outstanding
	var taken []int32
	for b.ini.slots.spare() > b.ini.posted+spareSlots {
		index, ok := b.ini.slots.get(1)
		require.True(t, ok)
		b.ini.slots.all[index].op = rdma.OpSend
		taken = append(taken, index)
	}
	b.command(2, nil, nil)
	require.NoError(t, b.ini.Flush())
	require.Len(t, ofKind(b.tap.take(), rdma.OpSend), 1)
	b.ini.slots.put(taken[0])
	require.NoError(t, b.ini.Flush())
	require.Len(t, ofKind(b.tap.take(), rdma.OpSend), 1)
}

func testText() *[iscsi.BHSSize]byte {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.TextRequest{Final: true, ITT: 2, TTT: iscsi.ReservedTag}).Put(&bhs)
	return &bhs
}

func TestCommandLongerThanThePool(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{PoolBytes: 2 << 20})
	b.enable(normalParams())
	p.post(2)
	regions := b.f.Gauges().Regions
	in := make([]byte, 3<<20)
	tr := b.command(1, in, nil)
	require.NoError(t, b.ini.Flush())
	require.Equal(t, regions+1, b.f.Gauges().Regions)
	m, _ := received(t, p.recv())
	p.put(m.ReadSTag, m.ReadBase+3<<20-8, []byte("the end!"))
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Equal(t, "the end!", string(in[3<<20-8:]))
	require.Equal(t, regions, b.f.Gauges().Regions)
}

func TestDetachedBuffersAreNotTouched(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1})
	params := normalParams()
	b.enable(params)
	p.post(4)
	in := make([]byte, 512)
	tr := b.command(1, in, nil)
	out := pattern(make([]byte, 9000), 4)
	want := append([]byte(nil), out...)
	waiting := b.command(2, nil, out)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	b.ini.Detach(tr)
	b.ini.Detach(tr)
	b.ini.Detach(waiting)
	clear(out) // the caller has its buffer back
	p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 512), 1))
	p.answer(iscsi.SCSIResponse{ITT: 1})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Zero(t, b.ini.Received(tr))
	require.Equal(t, make([]byte, 512), in)
	require.NoError(t, b.ini.Flush())
	b.until(iscsi.EventReleased)
	require.Zero(t, b.ini.sink.live, "the response has come: its memory is free")
	m, _ = received(t, p.recv())
	require.Equal(t, want, p.get(m.WriteSTag, m.WriteBase, 9000), "it still sends what it was given")
}

func TestDetachAmidUnsolicitedData(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1, PartialImmediate: true})
	params := normalParams()
	params.InitialR2T, params.FirstBurstLength, params.MaxSendData = false, 65536, 512
	b.enable(params)
	p.post(200)
	out := pattern(make([]byte, 70000), 4)
	want := append([]byte(nil), out...)
	tr := b.command(2, nil, out)
	require.NoError(t, b.ini.Flush())
	require.True(t, tr.DM.Ptr.(*command).queued, "the send slots do not suffice for all at once")
	for range b.ini.posted { // whatever may arrive can be answered all the same
		b.ini.Send(testText(), nil)
	}
	require.NoError(t, b.ini.Flush())
	b.ini.Detach(tr)
	clear(out)
	m, _ := received(t, p.recv())
	data := m.Data
	for len(data) < 65536 {
		if p.poll(); len(p.got) == 0 {
			require.Empty(t, b.wait(time.Millisecond))
			continue
		}
		d, _ := received(t, p.recv())
		data = append(data, d.Data...)
	}
	require.Equal(t, want[:65536], data)
	require.Equal(t, want[65536:], p.get(m.WriteSTag, m.WriteBase, 70000-65536))
}

func TestForgottenMemoryIsQuarantined(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{PoolBytes: 2 << 20})
	b.enable(normalParams())
	p.post(40)
	var lost []message
	for i := range uint32(4) { // all of the pool
		tr := b.command(i, make([]byte, 256<<10), nil)
		require.NoError(t, b.ini.Flush())
		m, _ := received(t, p.recv())
		lost = append(lost, m)
		b.ini.Detach(tr)
		b.ini.Forget(tr)
		b.ini.Forget(tr)
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
	}
	require.Zero(t, b.ini.sink.live)
	require.EqualValues(t, 1<<20, b.ini.sink.lost)
	in := make([]byte, 4096)
	tr := b.command(9, in, nil) // gets memory of its own
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	for _, l := range lost { // late data of the forgotten ones does no harm
		p.put(l.ReadSTag, l.ReadBase, pattern(make([]byte, 8000), 666))
	}
	require.Empty(t, p.bad)
	p.put(m.ReadSTag, m.ReadBase, pattern(make([]byte, 4096), 1))
	p.answer(iscsi.SCSIResponse{ITT: 0})
	require.Nil(t, b.until(iscsi.EventPDU).Transfer, "the response of a forgotten task is of no task")
	p.answer(iscsi.SCSIResponse{ITT: 9})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Equal(t, pattern(make([]byte, 4096), 1), in)
	// When that is lost as well, nothing but a new connection helps.
	for i := range uint32(100) {
		tr := b.command(100+i, make([]byte, 256<<10), nil)
		if b.ini.Flush() != nil {
			break
		}
		p.recv()
		b.ini.Forget(tr)
	}
	_, err := b.fails()
	require.ErrorIs(t, err, errPoolLost)
}

func TestForgetBeforeItWasSent(t *testing.T) {
	b, p := newInitiator(t, strict, InitiatorConfig{QueueDepth: 1})
	b.enable(normalParams())
	p.post(4)
	b.command(1, nil, nil)
	tr := b.command(2, nil, make([]byte, 8192))
	b.command(3, nil, nil)
	require.NoError(t, b.ini.Flush())
	b.ini.Forget(tr)
	require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
	p.answer(iscsi.SCSIResponse{ITT: 1})
	b.until(iscsi.EventPDU)
	require.NoError(t, b.ini.Flush())
	p.recv()
	_, c := received(t, p.recv())
	require.EqualValues(t, 3, c.ITT)
}

// A response can overtake the Send's completion: the acknowledgement was late. Nothing the Send reads may
// be used again before.
func TestResponseBeforeTheSendCompletion(t *testing.T) {
	early := 0
	for seed := uint64(1); seed < 200 && early < 5; seed++ {
		o := strict
		o.Seed = seed
		b, p := newInitiator(t, o, InitiatorConfig{QueueDepth: 1})
		b.enable(normalParams())
		p.post(4)
		out := pattern(make([]byte, 4096), 1)
		tr := b.command(1, nil, out)
		require.NoError(t, b.ini.Flush())
		slot := b.ini.slots.all[b.ini.ops.all[b.ini.firstOp()].slot].mem
		p.recv()
		p.start(responseBytes(iscsi.SCSIResponse{ITT: 1}))
		ev := b.until(iscsi.EventPDU)
		require.Same(t, tr, ev.Transfer)
		if b.ini.sends > 0 {
			early++
			require.NotZero(t, tr.DM, "the transfer is not released")
			before := append([]byte(nil), slot...)
			b.command(2, nil, pattern(make([]byte, 4096), 99)) // the same ITT's slot is not used
			require.NoError(t, b.ini.Flush())
			require.Equal(t, before, slot)
		}
		require.Same(t, tr, b.until(iscsi.EventReleased).Transfer)
		require.NoError(t, b.ini.Close())
		p.close()
	}
	require.NotZero(t, early, "no seed made it happen")
}

// firstOp is the op of the only Send outstanding.
func (i *initiator) firstOp() int {
	for n := range i.ops.all {
		if i.ops.all[n].kind == kindSend {
			return n
		}
	}
	panic("no Send is outstanding")
}

func TestEveryCommandEndsOnceWhenTheConnectionDies(t *testing.T) {
	for seed := range uint64(30) {
		o := strict
		o.Seed = seed
		b, p := newInitiator(t, o, InitiatorConfig{QueueDepth: 6})
		params := normalParams()
		params.InitialR2T = false
		b.enable(params)
		p.post(60)
		live := map[*iscsi.Transfer]bool{}
		for i := range uint32(10) {
			live[b.command(i, nil, make([]byte, 20000*(i%3)+1))] = true
		}
		require.NoError(t, b.ini.Flush())
		var evs []iscsi.Event
		for range seed % 4 {
			p.poll()
			p.start(responseBytes(iscsi.SCSIResponse{ITT: uint32(seed) % 3}))
			p.until(func() bool { return p.sent > 0 || len(p.bad) > 0 })
			p.sent = 0
			evs = append(evs, b.wait(0)...)
			if b.ini.Flush() != nil {
				break
			}
		}
		require.NoError(t, p.ep.Disconnect())
		late := b.command(99, make([]byte, 100), nil)
		live[late] = true
		more, err := b.fails()
		require.ErrorIs(t, err, io.EOF)
		for _, ev := range append(evs, more...) {
			if ev.Kind == iscsi.EventPDU {
				continue
			}
			require.Equal(t, iscsi.EventReleased, ev.Kind)
			require.True(t, live[ev.Transfer], "released twice")
			delete(live, ev.Transfer)
		}
		require.Empty(t, live, "seed %d", seed)
		after := b.command(100, nil, nil)
		evs = b.wait(time.Second)
		require.Len(t, evs, 1)
		require.Same(t, after, evs[0].Transfer)
		require.NoError(t, b.ini.Close())
		p.close()
		require.Zero(t, b.f.Gauges().Regions, "all memory is deregistered")
	}
}

func TestInitiatorTrace(t *testing.T) {
	var steps []TraceEvent
	b, p := newInitiator(t, strict, InitiatorConfig{Trace: func(e TraceEvent) { steps = append(steps, e) }})
	b.enable(normalParams())
	p.post(2)
	tr := b.command(7, make([]byte, 64), nil)
	require.NoError(t, b.ini.Flush())
	m, _ := received(t, p.recv())
	p.put(m.ReadSTag, m.ReadBase, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	p.answer(iscsi.SCSIResponse{ITT: 7})
	require.Same(t, tr, b.until(iscsi.EventPDU).Transfer)
	require.Equal(t, []TraceEvent{
		{Step: TraceCommandSent, ITT: 7, Key: m.ReadSTag, Addr: m.ReadBase, Length: 64},
		{Step: TraceSendDone, ITT: 7},
		{Step: TraceResponseReceived, ITT: 7, Key: m.ReadSTag, Addr: m.ReadBase, Length: 64, Word: 0x01020304},
	}, steps)
}
