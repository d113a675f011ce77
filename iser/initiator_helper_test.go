package iser

import (
	"context"
	"testing"

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
