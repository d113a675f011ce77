package rc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A lone queue pair whose peer is the test: packets are made by hand, and what comes back is looked at.
type lone struct {
	t     *testing.T
	q     *QP
	now   time.Time
	out   []wire.Packet
	ended []rdma.Completion
	mem   []byte
	mr    rdma.MemoryRegion
	room  int // packets of a round
}

func newLone(t *testing.T, change func(*Config)) *lone {
	c := config()
	c.Memory = NewMemory(1)
	if change != nil {
		change(&c)
	}
	l := &lone{t: t, q: New(c), now: time.Unix(5, 0), room: 1000, mem: make([]byte, 8192)}
	var err error
	l.mr, err = c.Memory.Register(l.mem, rights)
	require.NoError(t, err)
	return l
}

func (l *lone) Packet(_ *QP, op wire.Opcode, n int) wire.Packet {
	if len(l.out) == l.room {
		return nil
	}
	p := wire.New(make([]byte, 5000), op, n)
	l.out = append(l.out, p)
	return p
}

func (l *lone) Complete(_ *QP, c rdma.Completion) { l.ended = append(l.ended, c) }

// packet makes one from the peer; the PSN counts from the first.
func (l *lone) packet(op wire.Opcode, psn int, data []byte) wire.Packet {
	p := wire.New(make([]byte, 5000), op, len(data))
	copy(p.Payload(), data)
	p.SetDestQP(l.q.cfg.QPN)
	base := l.q.cfg.RecvPSN
	if op.Is(wire.Response) {
		base = l.q.cfg.SendPSN
	}
	p.SetPSN(base.Add(uint32(psn)))
	return p
}

func (l *lone) receive(ps ...wire.Packet) {
	for _, p := range ps {
		l.q.Receive(l.now, p, l)
	}
}

// round transmits and returns what came out.
func (l *lone) round() []wire.Packet {
	l.out = nil
	l.q.Transmit(l.now, l)
	return l.out
}

func (l *lone) after(d time.Duration) { l.now = l.now.Add(d) }

func (l *lone) send(wrs ...rdma.SendWR) {
	_, err := l.q.PostSend(wrs, l)
	require.NoError(l.t, err)
}

func (l *lone) recv(id uint64, n uint32) {
	_, err := l.q.PostRecv([]rdma.RecvWR{{ID: id, SGL: []rdma.SGE{rdma.Piece(l.mr, 4096, n)}}}, l)
	require.NoError(l.t, err)
}

// answer is the one packet of a round: its syndrome, PSN counted from the first expected, and MSN.
func (l *lone) answer() (wire.Syndrome, int, uint32) {
	out := l.round()
	require.Len(l.t, out, 1)
	require.Equal(l.t, wire.Acknowledge, out[0].Opcode())
	require.Equal(l.t, l.q.cfg.PeerQPN, out[0].DestQP())
	s, msn := out[0].AETH()
	return s, int(out[0].PSN().Sub(l.q.cfg.RecvPSN)), msn
}

func (l *lone) ack(psn int, s wire.Syndrome) wire.Packet {
	p := l.packet(wire.Acknowledge, psn, nil)
	p.SetAETH(s, 0)
	return p
}

func reth(p wire.Packet, addr uint64, key uint32, n uint32) wire.Packet {
	p.SetRETH(addr, key, n)
	return p
}

var mtuData = make([]byte, 256)

func TestResponderRefuses(t *testing.T) {
	data := make([]byte, 40)
	for i := range data {
		data[i] = 0xee
	}
	type packets func(l *lone) []wire.Packet
	one := func(f func(l *lone) wire.Packet) packets {
		return func(l *lone) []wire.Packet { return []wire.Packet{f(l)} }
	}
	write := func(addr, key, n int64) packets {
		return one(func(l *lone) wire.Packet {
			return reth(l.packet(wire.WriteOnly, 0, data), l.mr.Addr()+uint64(addr), l.mr.RKey()+uint32(key), uint32(n))
		})
	}
	read := func(addr, key, n int64) packets {
		return one(func(l *lone) wire.Packet {
			return reth(l.packet(wire.ReadRequest, 0, nil), l.mr.Addr()+uint64(addr), l.mr.RKey()+uint32(key), uint32(n))
		})
	}
	ops := func(first func(l *lone) wire.Packet, op wire.Opcode, data []byte) packets {
		return func(l *lone) []wire.Packet { return []wire.Packet{first(l), l.packet(op, 1, data)} }
	}
	sendFirst := func(l *lone) wire.Packet { return l.packet(wire.SendFirst, 0, mtuData) }
	writeFirst := func(l *lone) wire.Packet {
		return reth(l.packet(wire.WriteFirst, 0, mtuData), l.mr.Addr(), l.mr.RKey(), 300)
	}
	for _, c := range []struct {
		name    string
		packets packets
		nak     wire.Syndrome
		recv    rdma.Status
	}{
		{"SEND Middle first", one(func(l *lone) wire.Packet { return l.packet(wire.SendMiddle, 0, mtuData) }), 0x61, rdma.WRFlushErr},
		{"SEND Last first", one(func(l *lone) wire.Packet { return l.packet(wire.SendLast, 0, data) }), 0x61, rdma.WRFlushErr},
		{"WRITE Last first", one(func(l *lone) wire.Packet { return l.packet(wire.WriteLast, 0, data) }), 0x61, rdma.WRFlushErr},
		{"SEND Only in a SEND", ops(sendFirst, wire.SendOnly, data), 0x61, rdma.WRFlushErr},
		{"WRITE Middle in a SEND", ops(sendFirst, wire.WriteMiddle, mtuData), 0x61, rdma.WRFlushErr},
		{"SEND Last in a WRITE", ops(writeFirst, wire.SendLast, data), 0x61, rdma.WRFlushErr},
		{"READ in a WRITE", ops(writeFirst, wire.ReadRequest, nil), 0x61, rdma.WRFlushErr},
		{"atomic", one(func(l *lone) wire.Packet { return l.packet(wire.FetchAdd, 0, nil) }), 0x61, rdma.WRFlushErr},
		{"short SEND First", one(func(l *lone) wire.Packet { return l.packet(wire.SendFirst, 0, data) }), 0x61, rdma.WRFlushErr},
		{"long SEND Only", one(func(l *lone) wire.Packet { return l.packet(wire.SendOnly, 0, make([]byte, 260)) }), 0x61, rdma.WRFlushErr},
		{"empty SEND Last", ops(sendFirst, wire.SendLast, nil), 0x61, rdma.WRFlushErr},
		{"WRITE Only shorter than announced", write(0, 0, 41), 0x61, rdma.WRFlushErr},
		{"WRITE Only longer than announced", write(0, 0, 39), 0x61, rdma.WRFlushErr},
		{"WRITE First of one packet", one(func(l *lone) wire.Packet {
			return reth(l.packet(wire.WriteFirst, 0, mtuData), l.mr.Addr(), l.mr.RKey(), 256)
		}), 0x61, rdma.WRFlushErr},
		{"WRITE of more than 2^31", one(func(l *lone) wire.Packet {
			return reth(l.packet(wire.WriteFirst, 0, mtuData), l.mr.Addr(), l.mr.RKey(), 1<<31+1)
		}), 0x61, rdma.WRFlushErr},
		{"WRITE that goes on too long", ops(writeFirst, wire.WriteMiddle, mtuData), 0x61, rdma.WRFlushErr},
		{"WRITE that ends too early", ops(writeFirst, wire.WriteLast, data), 0x61, rdma.WRFlushErr},
		{"WRITE with another variant", write(0, 1, 40), 0x62, rdma.WRFlushErr},
		{"WRITE with another index", write(0, 256, 40), 0x62, rdma.WRFlushErr},
		{"WRITE before the region", write(-1, 0, 40), 0x62, rdma.WRFlushErr},
		{"WRITE past the region", write(8192-39, 0, 40), 0x62, rdma.WRFlushErr},
		{"WRITE whose First fits and whose end does not", one(func(l *lone) wire.Packet {
			return reth(l.packet(wire.WriteFirst, 0, mtuData), l.mr.Addr()+8192-256, l.mr.RKey(), 257)
		}), 0x62, rdma.WRFlushErr},
		{"WRITE that wraps", one(func(l *lone) wire.Packet {
			return reth(l.packet(wire.WriteOnly, 0, data), ^uint64(0)-10, l.mr.RKey(), 40)
		}), 0x62, rdma.WRFlushErr},
		{"READ with another variant", read(0, 1, 40), 0x62, rdma.WRFlushErr},
		{"READ past the region", read(8192-39, 0, 40), 0x62, rdma.WRFlushErr},
		{"READ of more than 2^31", read(0, 0, 1<<31+1), 0x61, rdma.WRFlushErr},
		{"SEND longer than the receive", ops(sendFirst, wire.SendLast, make([]byte, 45)), 0x61, rdma.LocLenErr},
		{"SEND with Invalidate of a region", one(func(l *lone) wire.Packet {
			p := l.packet(wire.SendOnlyInv, 0, data)
			p.SetInvalidateKey(l.mr.RKey())
			return p
		}), 0x62, rdma.RemInvReqErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, nil)
			l.recv(1, 300)
			ps := c.packets(l)
			l.receive(ps...)
			l.receive(l.packet(wire.SendOnly, len(ps), data)) // what follows is not looked at
			s, psn, msn := l.answer()
			assert.Equal(t, c.nak, s)
			assert.Equal(t, len(ps)-1, psn)
			assert.Zero(t, msn)
			assert.True(t, l.q.Failed())
			assert.Equal(t, []rdma.Completion{{ID: 1, Status: c.recv, QPNum: 0x11, Recv: true}}, l.ended)
			l.receive(l.packet(wire.SendOnly, 0, data))
			assert.Empty(t, l.round(), "in the error state")
			for i, b := range l.mem[:4096] {
				require.Zero(t, b, "byte %d", i)
			}
		})
	}
}

func TestResponderRefusesReadsThatItDoesNotServe(t *testing.T) {
	l := newLone(t, func(c *Config) { c.ReadsIn = 0 })
	l.receive(reth(l.packet(wire.ReadRequest, 0, nil), l.mr.Addr(), l.mr.RKey(), 8))
	s, _, _ := l.answer()
	assert.Equal(t, wire.NakInvalidRequest, s)
}

func TestResponderRefusesOneReadTooMany(t *testing.T) {
	l := newLone(t, nil)
	for i := range 5 {
		l.receive(reth(l.packet(wire.ReadRequest, i, nil), l.mr.Addr(), l.mr.RKey(), 8))
	}
	out := l.round()
	require.Len(t, out, 5)
	s, _ := out[4].AETH()
	assert.Equal(t, wire.ReadRespOnly, out[3].Opcode(), "what was accepted is answered first")
	assert.Equal(t, wire.NakInvalidRequest, s)
}

func TestReceiveIntoUnwritableMemoryIsAnOperationError(t *testing.T) {
	l := newLone(t, nil)
	mr, err := l.q.cfg.Memory.Register(make([]byte, 64), rdma.RemoteRead)
	require.NoError(t, err)
	_, err = l.q.PostRecv([]rdma.RecvWR{{ID: 9, SGL: []rdma.SGE{rdma.Piece(mr, 0, 64)}}}, l)
	require.NoError(t, err)
	l.receive(l.packet(wire.SendOnly, 0, make([]byte, 4)))
	s, _, _ := l.answer()
	assert.Equal(t, wire.NakRemoteOp, s)
	assert.Equal(t, []rdma.Completion{{ID: 9, Status: rdma.LocProtErr, QPNum: 0x11, Recv: true}}, l.ended)
}

func TestEmptyReadAndWriteNeedNoKey(t *testing.T) {
	l := newLone(t, nil)
	w := reth(l.packet(wire.WriteOnly, 0, nil), 1, 2, 0)
	w.SetAckReq()
	l.receive(w)
	s, psn, msn := l.answer()
	assert.Equal(t, []any{wire.Ack, 0, uint32(1)}, []any{s, psn, msn})
	l.receive(reth(l.packet(wire.ReadRequest, 1, nil), 1, 2, 0))
	out := l.round()
	require.Len(t, out, 1)
	assert.Equal(t, wire.ReadRespOnly, out[0].Opcode())
	assert.Empty(t, out[0].Payload())
}

// What was thrown away has come again before the round ended: then there is nothing to complain of.
func TestWhatHasComeMeanwhileIsAcknowledged(t *testing.T) {
	l := newLone(t, nil)
	l.recv(1, 64)
	l.recv(2, 64)
	second := l.packet(wire.SendOnly, 1, nil)
	l.receive(second, l.packet(wire.SendOnly, 0, nil), second)
	s, psn, _ := l.answer()
	assert.Equal(t, []any{wire.Ack, 1}, []any{s, psn})
	third := l.packet(wire.SendOnly, 2, nil)
	third.SetAckReq()
	l.receive(third)
	l.recv(3, 64)
	l.receive(third)
	s, psn, _ = l.answer()
	assert.Equal(t, []any{wire.Ack, 2}, []any{s, psn}, "a receive has been posted meanwhile")
}

func TestReadAskedForAgainWhileItIsAnswered(t *testing.T) {
	l := newLone(t, func(c *Config) { c.ReadsIn = 2 })
	l.room = 2
	read := func(psn int, n uint32) wire.Packet {
		return reth(l.packet(wire.ReadRequest, psn, nil), l.mr.Addr(), l.mr.RKey(), n)
	}
	rounds := func() (psns []int) {
		for more := true; more; more = l.q.More() {
			for _, p := range l.round() {
				psns = append(psns, int(p.PSN().Sub(l.q.cfg.RecvPSN)))
			}
		}
		return psns
	}
	l.receive(read(0, 1000), read(4, 300))
	l.round() // 0 and 1
	l.receive(read(0, 1000))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5}, rounds())
	// A late copy is about to be answered when the peer, having got its answer, goes on.
	l.receive(read(0, 1000), read(4, 300), read(6, 300))
	require.Equal(t, []int{4, 5, 6, 7}, rounds())
	require.False(t, l.q.Failed())
}

func TestStrangersAreDropped(t *testing.T) {
	l := newLone(t, nil)
	l.recv(1, 64)
	p := l.packet(wire.SendOnly, 0, nil)
	p.SetDestQP(0x99)
	k := l.packet(wire.SendOnly, 0, nil)
	k.SetPKey(0x7ffe)
	l.receive(p, k, l.packet(wire.UDSendOnly, 0, nil), l.packet(wire.CongestionNotify, 0, make([]byte, 16)), l.packet(wire.AtomicAck, -1, nil), l.ack(0, wire.Ack))
	assert.Empty(t, l.round())
	assert.Empty(t, l.ended)
	assert.EqualValues(t, 6, l.q.Counters().Dropped)
	k.SetPKey(0x7fff) // a limited member of the partition
	l.receive(k)
	assert.Len(t, l.ended, 1)
}

func TestSequenceErrorIsSaidOnceUntilThePacketComes(t *testing.T) {
	l := newLone(t, nil)
	for i := range uint64(4) {
		l.recv(i, 64)
	}
	l.receive(l.packet(wire.SendOnly, 1, nil), l.packet(wire.SendOnly, 2, nil))
	s, psn, _ := l.answer()
	assert.Equal(t, []any{wire.NakSequence, 0}, []any{s, psn})
	l.receive(l.packet(wire.SendOnly, 3, nil))
	assert.Empty(t, l.round())
	l.receive(l.packet(wire.SendOnly, 0, nil), l.packet(wire.SendOnly, 2, nil))
	s, psn, msn := l.answer()
	assert.Equal(t, []any{wire.NakSequence, 1, uint32(1)}, []any{s, psn, msn})
	assert.Len(t, l.ended, 1)
}

func TestReceiverNotReadyNamesItsPacketAndExecutesNothing(t *testing.T) {
	l := newLone(t, nil)
	l.receive(l.packet(wire.SendOnly, 0, nil), reth(l.packet(wire.WriteOnly, 1, make([]byte, 4)), 0, 0, 4))
	s, psn, _ := l.answer()
	assert.Equal(t, []any{wire.RNRNak | rnrCode, 0}, []any{s, psn})
	assert.Equal(t, 10240*time.Microsecond, rnrWait(s))
	l.receive(l.packet(wire.WriteOnlyImm, 0, nil))
	s, _, _ = l.answer()
	assert.True(t, s.IsRNR(), "immediate data needs a receive")
	l.recv(1, 64)
	w := l.packet(wire.WriteOnlyImm, 0, nil)
	w.SetAckReq()
	l.receive(w)
	s, psn, msn := l.answer()
	assert.Equal(t, []any{wire.Ack, 0, uint32(1)}, []any{s, psn, msn})
	assert.Equal(t, []rdma.Completion{{ID: 1, QPNum: 0x11, Recv: true}}, l.ended)
	assert.EqualValues(t, 1, l.q.Counters().Immediates)
}

func TestDuplicatesAreAcknowledgedAndNotExecuted(t *testing.T) {
	l := newLone(t, nil)
	l.recv(1, 64)
	l.recv(2, 64)
	one := func(psn int, b byte) wire.Packet {
		return reth(l.packet(wire.WriteOnly, psn, []byte{b}), l.mr.Addr(), l.mr.RKey(), 1)
	}
	l.receive(one(0, 1), l.packet(wire.SendOnly, 1, nil), one(2, 3))
	assert.Empty(t, l.round(), "nobody asked")
	l.receive(one(0, 9), l.packet(wire.SendOnly, 1, nil), l.packet(wire.FetchAdd, 0, nil))
	s, psn, msn := l.answer()
	assert.Equal(t, []any{wire.Ack, 2, uint32(3)}, []any{s, psn, msn})
	assert.EqualValues(t, 3, l.mem[0])
	assert.Len(t, l.ended, 1)
}

func TestReadIsAnsweredAgainFromWhereItIsAskedFor(t *testing.T) {
	l := newLone(t, nil)
	for i := range l.mem {
		l.mem[i] = byte(i / 256)
	}
	addr, key := l.mr.Addr(), l.mr.RKey()
	l.receive(reth(l.packet(wire.ReadRequest, 0, nil), addr, key, 700))
	require.Len(t, l.round(), 3)
	for _, c := range []struct {
		psn   int
		addr  uint64
		key   uint32
		n     uint32
		want  []wire.Opcode
		first byte
	}{
		{0, addr, key, 700, []wire.Opcode{wire.ReadRespFirst, wire.ReadRespMiddle, wire.ReadRespLast}, 0},
		{1, addr + 256, key, 444, []wire.Opcode{wire.ReadRespMiddle, wire.ReadRespLast}, 1},
		{2, addr + 512, key, 188, []wire.Opcode{wire.ReadRespLast}, 2},
		{1, addr + 256, key, 256, []wire.Opcode{wire.ReadRespLast}, 1},
		{1, addr + 256, key, 445, nil, 0}, // longer than what was asked for
		{1, addr, key, 444, nil, 0},       // not where it was
		{1, addr + 256, key + 1, 444, nil, 0},
		{-1, addr, key, 700, nil, 0}, // before any
	} {
		l.receive(reth(l.packet(wire.ReadRequest, c.psn, nil), c.addr, c.key, c.n))
		out := l.round()
		var got []wire.Opcode
		for _, p := range out {
			got = append(got, p.Opcode())
		}
		require.Equal(t, c.want, got, "%+v", c)
		if c.want != nil {
			assert.Equal(t, c.psn, int(out[0].PSN().Sub(l.q.cfg.RecvPSN)))
			assert.Equal(t, c.first, out[0].Payload()[0])
		}
	}
	assert.False(t, l.q.Failed())
}

func TestAcknowledgementWaitsForReadResponses(t *testing.T) {
	n := newNetwork(1, weather{room: 2}, nil)
	b := n.ends[1]
	_, mr := b.open(t, 4096, 0, rights)
	var got []wire.Packet
	n.tap = func(from int, p wire.Packet) { got = append(got, p) }
	req := func(op wire.Opcode, psn uint32, data []byte, size uint32) {
		p := wire.New(make([]byte, 600), op, len(data))
		p.SetDestQP(0x22)
		p.SetPSN(b.q.cfg.RecvPSN.Add(psn))
		p.SetRETH(mr.Addr(), mr.RKey(), size)
		p.SetAckReq()
		b.q.Receive(n.now, p, b)
	}
	req(wire.ReadRequest, 0, nil, 1000)
	req(wire.WriteOnly, 4, []byte{1, 2}, 2)
	b.sent = 0
	b.q.Transmit(n.now, b)
	require.True(t, b.q.More())
	n.round(b)
	require.Len(t, n.flying, 5)
	n.run(time.Second)
	require.Len(t, got, 5)
	assert.Equal(t, wire.ReadRespLast, got[3].Opcode())
	assert.Equal(t, wire.Acknowledge, got[4].Opcode())
}
