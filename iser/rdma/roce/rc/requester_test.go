package rc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

func (l *lone) piece(n uint32) []rdma.SGE { return []rdma.SGE{rdma.Piece(l.mr, 0, n)} }

func (l *lone) message(id uint64, n uint32) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: l.piece(n)}
}

func (l *lone) reading(id uint64, n uint32) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: l.piece(n), RemoteAddr: 0x1000, RKey: 7}
}

// sent are the PSNs of packets, counted from the first.
func (l *lone) sent(ps []wire.Packet) []int {
	var n []int
	for _, p := range ps {
		n = append(n, int(p.PSN().Sub(l.q.cfg.SendPSN)))
	}
	return n
}

// ids are the completions so far: 1000 times the status and the ID.
func (l *lone) ids() []int {
	var n []int
	for _, c := range l.ended {
		n = append(n, int(c.Status)*1000+int(c.ID))
	}
	return n
}

func TestMessagesAreCutIntoPackets(t *testing.T) {
	l := newLone(t, nil)
	l.send(
		rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Solicited, SGL: l.piece(513)},
		rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: 0xabcd, SGL: l.piece(257)},
		rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: 0x55, RKey: 0x66, SGL: l.piece(512)},
		rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: 0xef01},
		rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: 0x77, RKey: 0x88, SGL: l.piece(1)},
		l.reading(1, 600),
		l.message(2, 256),
	)
	out := l.round()
	type packet struct {
		op     wire.Opcode
		psn, n int
		ask    bool
	}
	var got []packet
	for _, p := range out {
		got = append(got, packet{p.Opcode(), int(p.PSN().Sub(l.q.cfg.SendPSN)), len(p.Payload()), p.AckReq()})
		assert.EqualValues(t, 0x22, p.DestQP())
	}
	assert.Equal(t, []packet{
		{wire.SendFirst, 0, 256, false},
		{wire.SendMiddle, 1, 256, false},
		{wire.SendLast, 2, 1, true},
		{wire.SendFirst, 3, 256, false},
		{wire.SendLastInv, 4, 1, true},
		{wire.WriteFirst, 5, 256, false},
		{wire.WriteLast, 6, 256, false}, // the Send behind it asks
		{wire.SendOnlyInv, 7, 0, true},
		{wire.WriteOnly, 8, 1, true},
		{wire.ReadRequest, 9, 0, true},
		{wire.SendOnly, 12, 256, true},
	}, got)
	assert.True(t, out[2].Solicited())
	assert.False(t, out[1].Solicited())
	assert.EqualValues(t, 0xabcd, out[4].InvalidateKey())
	addr, key, n := out[5].RETH()
	assert.Equal(t, []uint64{0x55, 0x66, 512}, []uint64{addr, uint64(key), uint64(n)})
	addr, key, n = out[9].RETH()
	assert.Equal(t, []uint64{0x1000, 7, 600}, []uint64{addr, uint64(key), uint64(n)})
}

func TestNAKEndsTheRequestThatHoldsItsPSN(t *testing.T) {
	for s, status := range map[wire.Syndrome]rdma.Status{
		0x61: rdma.RemInvReqErr, 0x62: rdma.RemAccessErr, 0x63: rdma.RemOpErr, 0x64: rdma.BadRespErr,
	} {
		l := newLone(t, nil)
		l.recv(50, 8)
		l.send(l.message(1, 8), l.message(2, 600), l.message(3, 8))
		l.round()
		l.receive(l.ack(2, s)) // in the middle of 2; acknowledges 1
		assert.Equal(t, []int{1, int(status)*1000 + 2, 5003, 5050}, l.ids())
		assert.True(t, l.q.Failed())
		l.send(l.message(4, 8))
		l.recv(51, 8)
		assert.Equal(t, []int{5004, 5051}, l.ids()[4:], "posted in the error state")
		assert.Empty(t, l.round())
		assert.True(t, l.q.Deadline().IsZero())
	}
}

func TestSequenceNAKIsActedOnAtOnceAndOnce(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 256*6))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5}, l.sent(l.round()))
	l.receive(l.ack(2, wire.NakSequence))
	require.Equal(t, []int{2, 3, 4, 5}, l.sent(l.round()))
	l.receive(l.ack(2, wire.NakSequence))
	assert.Empty(t, l.round())
	assert.Equal(t, startWindow*3/4, l.q.req.window)
	l.receive(l.ack(5, wire.Ack))
	assert.Equal(t, []int{1}, l.ids())
	assert.True(t, l.q.Deadline().IsZero())
}

func TestLossOfARetryIsActedOnAfterTheTimer(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 256*3))
	l.round()
	l.receive(l.ack(1, wire.NakSequence))
	require.Equal(t, []int{1, 2}, l.sent(l.round()))
	l.after(30 * time.Millisecond)
	require.Equal(t, []int{1, 2}, l.sent(l.round()))
	l.receive(l.ack(1, wire.NakSequence))
	require.Equal(t, []int{1, 2}, l.sent(l.round()))

	l = newLone(t, nil)
	l.send(l.reading(1, 600))
	l.round()
	for _, wait := range []time.Duration{30, 60} { // the first response is lost, and then that of each retry
		l.receive(l.respond(1, 600))
		require.Equal(t, []int{0}, l.sent(l.round()))
		l.after(wait * time.Millisecond)
		require.Equal(t, []int{0}, l.sent(l.round()))
	}
}

func TestReceiverNotReadyIsWaitedFor(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 8), l.message(2, 8), l.message(3, 8))
	l.round()
	l.receive(l.ack(1, wire.RNRNak|20))
	assert.Equal(t, []int{1}, l.ids())
	assert.Empty(t, l.round())
	// What follows on the wire does not cut the wait short, nor does new work.
	l.receive(l.ack(1, wire.NakSequence), l.ack(1, wire.RNRNak|1))
	l.send(l.message(4, 8))
	l.after(10 * time.Millisecond)
	assert.Empty(t, l.round())
	assert.Equal(t, 240*time.Microsecond, l.q.Deadline().Sub(l.now))
	l.after(240 * time.Microsecond)
	assert.Equal(t, []int{1, 2, 3}, l.sent(l.round()))
	l.receive(l.ack(3, wire.Ack))
	assert.Equal(t, []int{1, 2, 3, 4}, l.ids())
}

func TestReceiverNeverReady(t *testing.T) {
	l := newLone(t, func(c *Config) { c.RNRRetry = 2 })
	l.send(l.message(1, 8), l.message(2, 8))
	for range 2 {
		require.Len(t, l.round(), 2)
		l.receive(l.ack(0, wire.RNRNak|1))
		l.after(time.Millisecond)
	}
	require.Len(t, l.round(), 2)
	l.receive(l.ack(0, wire.RNRNak|1))
	assert.Equal(t, []int{13001, 5002}, l.ids())
}

func TestSilenceEndsInRetryExceeded(t *testing.T) {
	l := newLone(t, func(c *Config) { c.RetryCount = 3; c.AckTimeout = 100 * time.Millisecond })
	l.recv(9, 8)
	l.send(l.message(1, 8), l.message(2, 8))
	var waits []time.Duration
	for !l.q.Failed() {
		require.Len(t, l.round(), 2)
		waits = append(waits, l.q.Deadline().Sub(l.now))
		l.after(waits[len(waits)-1] - 1)
		require.Empty(t, l.round(), "too early")
		l.after(1)
		if len(waits) == 4 {
			l.round()
		}
	}
	const ms = time.Millisecond
	assert.Equal(t, []time.Duration{30 * ms, 60 * ms, 100 * ms, 100 * ms}, waits)
	assert.Equal(t, []int{12001, 5002, 5009}, l.ids())
	assert.EqualValues(t, 4, l.q.Counters().Timeouts)
}

func TestRetryTimerKeepsClearOfTheRoundTrip(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 8))
	l.round()
	l.after(25 * time.Millisecond)
	l.receive(l.ack(0, wire.Ack))
	l.send(l.message(2, 8))
	l.round()
	assert.Equal(t, 100*time.Millisecond, l.q.Deadline().Sub(l.now))
}

func TestAnswersToNothingAreIgnored(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 8), l.message(2, 8))
	l.round()
	for _, s := range []wire.Syndrome{wire.Ack, wire.RNRNak, wire.NakSequence, wire.NakRemoteAccess, 0x40} {
		l.receive(l.ack(2, s), l.ack(-1, s), l.ack(-1000, s), l.ack(1000, s))
	}
	l.receive(l.packet(wire.ReadRespOnly, 0, nil))
	assert.Empty(t, l.ended)
	assert.Empty(t, l.round())
	l.receive(l.ack(1, wire.Ack))
	assert.Equal(t, []int{1, 2}, l.ids())
	for _, s := range []wire.Syndrome{wire.Ack, wire.RNRNak, wire.NakSequence, wire.NakRemoteAccess} {
		l.receive(l.ack(0, s), l.ack(1, s))
	}
	assert.False(t, l.q.Failed())
	assert.Empty(t, l.round())
}

// respond is packet psn of the answer to a Read of n bytes that began at PSN 0.
func (l *lone) respond(psn, n int) wire.Packet {
	data := make([]byte, min(256, n-psn*256))
	for i := range data {
		data[i] = byte(psn + 1)
	}
	return l.packet(wire.ReadRespMiddle, psn, data)
}

func TestGapInReadResponsesIsRetriedOnceFromTheGap(t *testing.T) {
	const n = 5*256 + 9
	l := newLone(t, nil)
	l.send(l.reading(1, n), l.message(2, 8))
	require.Equal(t, []int{0, 6}, l.sent(l.round()))
	l.receive(l.respond(0, n), l.respond(1, n), l.respond(3, n), l.respond(4, n), l.ack(6, wire.Ack))
	out := l.round()
	require.Equal(t, []int{2}, l.sent(out), "and the Send is known to have arrived")
	addr, key, size := out[0].RETH()
	assert.Equal(t, []uint64{0x1000 + 512, 7, n - 512}, []uint64{addr, uint64(key), uint64(size)})
	l.receive(l.respond(5, n), l.respond(1, n), l.ack(6, wire.Ack))
	assert.Empty(t, l.round())
	l.receive(l.respond(2, n), l.respond(3, n), l.respond(4, n))
	assert.Empty(t, l.ended)
	l.receive(l.respond(5, n))
	assert.Equal(t, []rdma.Completion{{ID: 1, QPNum: 0x11, ByteLen: n}, {ID: 2, QPNum: 0x11}}, l.ended)
	for i, b := range l.mem[:n] {
		require.EqualValues(t, i/256+1, b)
	}
	assert.True(t, l.q.Deadline().IsZero())
}

func TestAckThatPassesAReadIsAnImpliedNAK(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 8), l.reading(2, 300), l.message(3, 8))
	require.Equal(t, []int{0, 1, 3}, l.sent(l.round()))
	l.receive(l.ack(3, wire.Ack))
	assert.Equal(t, []int{1}, l.ids())
	assert.Equal(t, []int{1}, l.sent(l.round()))
}

func TestResponsesThatComeBeforeTheyAreAskedForAgain(t *testing.T) {
	l := newLone(t, func(c *Config) { c.ReadsOut = 1 })
	l.send(l.reading(1, 600), l.message(2, 8), l.reading(3, 300))
	require.Equal(t, []int{0, 3}, l.sent(l.round()))
	l.receive(l.ack(3, wire.RNRNak|1)) // back to the Read, after a wait
	l.receive(l.respond(0, 600), l.respond(1, 600), l.respond(2, 600))
	require.Equal(t, []int{1}, l.ids())
	assert.Zero(t, l.q.req.reads)
	assert.Zero(t, l.q.req.readSeqs)
	l.after(time.Millisecond)
	require.Equal(t, []int{3, 4}, l.sent(l.round()))
}

func TestWrongReadResponsesEndTheRead(t *testing.T) {
	for _, size := range []int{0, 255, 257, 260} {
		l := newLone(t, nil)
		l.send(l.reading(1, 600), l.message(2, 8))
		l.round()
		l.receive(l.packet(wire.ReadRespFirst, 0, make([]byte, size)))
		assert.Equal(t, []int{int(rdma.BadRespErr)*1000 + 1, 5002}, l.ids(), "%d bytes", size)
	}
}

func TestReadsAreCutToWhatMayBeOutstanding(t *testing.T) {
	l := newLone(t, func(c *Config) { c.ReadWindow = 8 * 256; c.ReadsOut = 3 })
	l.send(l.reading(1, 256*10), l.reading(2, 8), l.message(3, 8))
	l.send(rdma.SendWR{ID: 4, Op: rdma.OpSend, Flags: rdma.Fence | rdma.Signaled})
	out := l.round()
	require.Equal(t, []int{0, 4}, l.sent(out), "two of four packets fill the window")
	for i := range 4 {
		l.receive(l.respond(i, 256*10))
	}
	out = l.round()
	assert.Equal(t, []int{8, 10, 11}, l.sent(out), "three Reads; the fenced Send waits, the other does not")
	addr, _, n := out[0].RETH()
	assert.Equal(t, []uint64{0x1000 + 8*256, 512}, []uint64{addr, uint64(n)})
	for i := 4; i < 10; i++ {
		l.receive(l.respond(i, 256*10))
	}
	assert.Equal(t, []int{1}, l.ids())
	assert.Empty(t, l.round())
	l.receive(l.packet(wire.ReadRespOnly, 10, make([]byte, 8)))
	assert.Equal(t, []int{12}, l.sent(l.round()))
}

func TestWindowIsHeldAndItsLastPacketAsks(t *testing.T) {
	l := newLone(t, func(c *Config) { c.Window = 40 })
	l.send(rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(l.mr, 0, 8192), rdma.Piece(l.mr, 0, 8192), rdma.Piece(l.mr, 0, 8192)}})
	out := l.round()
	require.Len(t, out, 32)
	assert.True(t, out[15].AckReq() && out[31].AckReq())
	l.receive(l.ack(15, wire.Ack))
	require.Len(t, l.round(), 16)
	l.receive(l.ack(31, wire.Ack))
	require.Len(t, l.round(), 17, "it grows by one for each window")
	for range 7 {
		l.after(l.q.Deadline().Sub(l.now))
		l.round()
	}
	assert.Equal(t, 33-33/4, l.q.req.window, "one loss of one flight")
}

func TestWhatIsWrongHereEndsInOrder(t *testing.T) {
	foreign := rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{{Addr: 1, Length: 1, LKey: 1}}}
	long := rdma.SendWR{ID: 2, Op: rdma.OpWrite, SGL: []rdma.SGE{{Length: 1 << 31}, {Length: 1}}}
	for _, c := range []struct {
		wr     rdma.SendWR
		status rdma.Status
	}{
		{foreign, rdma.LocProtErr},
		{long, rdma.LocLenErr},
		{rdma.SendWR{ID: 2, Op: rdma.OpLocalInv, InvalidateKey: 99}, rdma.LocQPOpErr},
	} {
		l := newLone(t, nil)
		l.send(l.message(1, 8), c.wr, l.message(3, 8))
		require.Equal(t, []int{0}, l.sent(l.round()))
		assert.Empty(t, l.ended, "what is before it has not ended")
		l.receive(l.ack(0, wire.Ack))
		assert.Equal(t, []int{1, int(c.status)*1000 + 2, 5003}, l.ids())
	}
}

func TestReadThatThePeerDoesNotServe(t *testing.T) {
	l := newLone(t, func(c *Config) { c.ReadsOut = 0 })
	l.send(l.reading(1, 8))
	assert.Empty(t, l.round())
	assert.Equal(t, []int{int(rdma.LocQPOpErr)*1000 + 1}, l.ids())
}

func TestMemoryThatIsGoneIsNotSentAgain(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 600))
	require.Len(t, l.round(), 3)
	require.NoError(t, l.mr.Deregister())
	l.after(time.Second)
	out := l.round()
	require.Len(t, out, 1)
	assert.Zero(t, out[0].DestQP(), "a packet without its data is for nobody")
	assert.Equal(t, make([]byte, 256), out[0].Payload())
	assert.Equal(t, []int{4001}, l.ids())
}

func TestRetransmissionReadsMemoryAgain(t *testing.T) {
	l := newLone(t, nil)
	l.mem[0] = 1
	l.send(l.message(1, 1))
	l.round()
	l.mem[0] = 2
	l.after(time.Second)
	assert.Equal(t, []byte{2}, l.round()[0].Payload())
}

func TestSlotsComeBackWithALaterCompletion(t *testing.T) {
	l := newLone(t, func(c *Config) { c.SendDepth = 4; c.RecvDepth = 2 })
	quiet := rdma.SendWR{Op: rdma.OpSend}
	n, err := l.q.PostSend([]rdma.SendWR{quiet, quiet, quiet}, l)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	l.round()
	l.receive(l.ack(2, wire.Ack))
	n, err = l.q.PostSend([]rdma.SendWR{l.message(4, 0), quiet}, l)
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Equal(t, 1, n)
	l.round()
	l.receive(l.ack(3, wire.Ack))
	l.send(quiet, quiet, quiet, quiet)
	n, err = l.q.PostRecv(make([]rdma.RecvWR, 3), l)
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Equal(t, 2, n)
}

func TestPostRefuses(t *testing.T) {
	l := newLone(t, nil)
	other := NewMemory(5)
	w, err := other.NewWindow()
	require.NoError(t, err)
	for _, wr := range []rdma.SendWR{
		{},
		{Op: 77},
		{Op: rdma.OpSend, SGL: make([]rdma.SGE, 5)},
		{Op: rdma.OpLocalInv, SGL: make([]rdma.SGE, 1)},
		{Op: rdma.OpBindWindow},
		{Op: rdma.OpBindWindow, Window: w, Region: l.mr, SGL: l.piece(8)},
	} {
		n, err := l.q.PostSend([]rdma.SendWR{l.message(1, 1), wr}, l)
		assert.ErrorIs(t, err, errInvalid, "%+v", wr)
		assert.Equal(t, 1, n)
	}
	_, err = l.q.PostRecv([]rdma.RecvWR{{SGL: make([]rdma.SGE, 5)}}, l)
	assert.ErrorIs(t, err, errInvalid)
}

func TestFail(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 1), l.message(2, 1))
	l.recv(3, 1)
	l.q.Fail(rdma.WRFlushErr, l)
	assert.Equal(t, []int{5001, 5002, 5003}, l.ids())
	l.q.Fail(rdma.FatalErr, l)
	assert.Len(t, l.ended, 3)
	assert.EqualValues(t, 0x11, l.q.Num())
}
