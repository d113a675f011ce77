package roce_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/link"
)

// converse has b answer n messages of a's, after which acknowledgements wait for answers.
func converse(a, b *rdmatest.End, n uint64) {
	for id := range n {
		a.Recv(id, 0, 64)
		b.Recv(id, 0, 64)
		a.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
		b.Ended(b.Recvs(1), rdma.Success, id)
		if id > 0 {
			b.Ended(b.Sends(1), rdma.Success, id-1) // acknowledged before or with a's message
		}
		b.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: b.Piece(0, 64)})
		a.Ended(a.Recvs(1), rdma.Success, id)
		a.Ended(a.Sends(1), rdma.Success, id)
	}
}

// Who gets the last message of a conversation and ends the connection has taken it: its sender must not find it
// flushed, although the acknowledgement was waiting for an answer.
func TestWhoDisconnectsAcknowledgesWhatItHas(t *testing.T) {
	for name, leave := range map[string]func(*rdmatest.End){
		"disconnect": func(e *rdmatest.End) { _ = e.EP.Disconnect() },
		"close":      func(e *rdmatest.End) { _ = e.EP.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, link.Weather{Delay: 10 * time.Microsecond}, roce.Options{}, func(t *testing.T, s sides, _ *link.Net) {
				a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
				converse(a, b, 2)
				b.Recv(9, 0, 64)
				sent := s.passive.Counters().QP.Sent
				a.Post(rdma.SendWR{ID: 9, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)})
				b.Ended(b.Recvs(1), rdma.Success, 9)
				require.Equal(t, sent, s.passive.Counters().QP.Sent, "the acknowledgement waits, or this tests nothing")
				leave(b)
				a.Ended(a.Sends(1), rdma.Success, 9)
			})
		})
	}
}

// Messages that are answered cost one packet each way, not two.
func TestAnsweredMessagesCostNoAcknowledgementsOfTheirOwn(t *testing.T) {
	bubble(t, 1, link.Weather{Delay: 10 * time.Microsecond}, roce.Options{}, func(t *testing.T, s sides, n *link.Net) {
		a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
		converse(a, b, 2)
		b.Ended(b.Sends(1), rdma.Success, 1)
		const rounds = 100
		before, start := s.active.Counters().Link, time.Now()
		converse(a, b, rounds)
		require.Equal(t, rounds*20*time.Microsecond, time.Since(start), "nobody waits for an acknowledgement")
		after := s.active.Counters().Link
		require.LessOrEqual(t, after.SentPackets-before.SentPackets, uint64(2*rounds+1), "a message and an acknowledgement each")
	})
}
