package rc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A talker is a lone queue pair whose program has just answered a message of the peer's, and so is believed to
// answer the next. psn is that of the peer's next packet.
type talker struct {
	*lone
	psn int
}

func newTalker(t *testing.T, change func(*Config)) *talker {
	l := &talker{lone: newLone(t, change)}
	for range 20 {
		l.recv(1, 1024)
	}
	l.arrives(wire.SendOnly, nil)
	require.Equal(t, []wire.Opcode{wire.Acknowledge}, l.leaves(), "at first an acknowledgement waits for nothing")
	l.answers()
	require.Equal(t, []wire.Opcode{wire.SendOnly}, l.leaves())
	l.receive(l.ack(0, wire.Ack))
	return l
}

// arrives takes the peer's next packet, which asks for an acknowledgement.
func (l *talker) arrives(op wire.Opcode, data []byte) {
	p := l.packet(op, l.psn, data)
	p.SetAckReq()
	if op.HasRETH() {
		p.SetRETH(l.mr.Addr(), l.mr.RKey(), uint32(max(len(data), 256)))
	}
	l.receive(p)
	l.psn++
}

// answers posts a message.
func (l *talker) answers() { l.send(l.message(9, 16)) }

// leaves is what is transmitted now.
func (l *talker) leaves() []wire.Opcode {
	var ops []wire.Opcode
	for _, p := range l.round() {
		ops = append(ops, p.Opcode())
	}
	return ops
}

func TestAcknowledgementOfAMessageLeavesWithTheAnswer(t *testing.T) {
	l := newTalker(t, nil)
	for i := range 3 {
		l.after(time.Second)
		l.arrives(wire.SendOnly, nil)
		require.Empty(t, l.leaves())
		require.Equal(t, l.now.Add(ackDelay), l.q.resp.acks.due)
		l.after(ackDelay - 1)
		l.answers()
		require.Equal(t, []wire.Opcode{wire.SendOnly, wire.Acknowledge}, l.leaves())
		s, msn := l.out[1].AETH()
		require.Equal(t, wire.Ack, s)
		require.EqualValues(t, l.psn, msn)
		require.EqualValues(t, l.psn-1, l.out[1].PSN().Sub(l.q.cfg.RecvPSN))
		require.Empty(t, l.leaves(), "once")
		l.receive(l.ack(1+i, wire.Ack))
	}
}

func TestAcknowledgementWaitsForAnAnswerOnlySoLong(t *testing.T) {
	l := newTalker(t, nil)
	l.arrives(wire.SendOnly, nil)
	l.after(100 * time.Microsecond)
	l.arrives(wire.SendOnly, nil)
	require.Empty(t, l.leaves())
	l.after(ackDelay - 100*time.Microsecond)
	require.Equal(t, l.now, l.q.Deadline(), "from the first of them on")
	require.Equal(t, []wire.Opcode{wire.Acknowledge}, l.leaves())
	l.arrives(wire.SendOnly, nil)
	require.Equal(t, []wire.Opcode{wire.Acknowledge}, l.leaves(), "there was no answer, so the next does not wait")
	l.after(ackDelay)
	l.answers()
	l.leaves()
	l.arrives(wire.SendOnly, nil)
	require.Equal(t, []wire.Opcode{wire.Acknowledge}, l.leaves(), "one as late as that is none")
	l.after(ackDelay - 1)
	l.answers()
	l.leaves()
	l.arrives(wire.SendOnly, nil)
	require.Empty(t, l.leaves(), "but this was one")
}

func TestWhatAPeerMayWaitForIsAcknowledgedAtOnce(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Config)
		happen func(l *talker)
	}{
		{"a Write", nil, func(l *talker) { l.arrives(wire.WriteOnly, mtuData) }},
		{"a packet in the middle of a message", nil, func(l *talker) { l.arrives(wire.SendFirst, mtuData) }},
		{"a duplicate", nil, func(l *talker) {
			l.arrives(wire.SendOnly, nil)
			l.psn--
			l.arrives(wire.SendOnly, nil)
		}},
		{"more packets than a peer should have to keep", nil, func(l *talker) {
			for range ackBatch / 2 {
				l.receive(reth(l.packet(wire.WriteFirst, l.psn, mtuData), l.mr.Addr(), l.mr.RKey(), 512), l.packet(wire.WriteLast, l.psn+1, mtuData))
				l.psn += 2
			}
			require.Empty(l.t, l.leaves())
			l.arrives(wire.SendOnly, nil)
		}},
		{"a message of a peer that is soon impatient", func(c *Config) { c.AckTimeout = minPatience - 1 }, func(l *talker) {
			l.arrives(wire.SendOnly, nil)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newTalker(t, row.change)
			row.happen(l)
			require.Equal(t, []wire.Opcode{wire.Acknowledge}, l.leaves())
			require.EqualValues(t, l.psn-1, l.out[0].PSN().Sub(l.q.cfg.RecvPSN))
			require.Empty(t, l.leaves())
			require.Zero(t, l.q.resp.acks.due)
		})
	}
}

func TestAcknowledgementOfAWriteWaitsForThatOfTheMessageBehindIt(t *testing.T) {
	l := newTalker(t, nil)
	l.arrives(wire.WriteOnly, mtuData)
	l.arrives(wire.SendOnly, nil)
	require.Empty(t, l.leaves())
	l.answers()
	require.Equal(t, []wire.Opcode{wire.SendOnly, wire.Acknowledge}, l.leaves())
}

func TestReadResponsesAreTheAcknowledgementThatWaits(t *testing.T) {
	l := newTalker(t, nil)
	l.arrives(wire.SendOnly, nil)
	l.receive(reth(l.packet(wire.ReadRequest, l.psn, nil), l.mr.Addr(), l.mr.RKey(), 4))
	require.Equal(t, []wire.Opcode{wire.ReadRespOnly}, l.leaves())
	require.Zero(t, l.q.resp.acks.due)
}

func TestAcknowledgementThatWaitsCanBeHad(t *testing.T) {
	l := newTalker(t, nil)
	l.out = nil
	l.q.Acknowledge(l)
	require.Empty(t, l.out, "nothing waits")
	l.arrives(wire.SendOnly, nil)
	l.q.Acknowledge(l)
	require.Len(t, l.out, 1)
	require.Empty(t, l.leaves())
}

func TestAcknowledgementWithoutRoomLeavesInTheNextRound(t *testing.T) {
	l := newTalker(t, nil)
	l.arrives(wire.SendOnly, nil)
	l.answers()
	l.room = 1
	require.Equal(t, []wire.Opcode{wire.SendOnly}, l.leaves())
	require.True(t, l.q.More())
	require.Equal(t, []wire.Opcode{wire.Acknowledge}, l.leaves())
}
