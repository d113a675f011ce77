package iser

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

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
