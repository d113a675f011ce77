package rdmatest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

func (s *suite) queueTests() []test {
	return []test{
		{"SendWaitsForAReceive", s.receiverNotReady},
		{"FullSendQueueSaysSo", s.sendQueueFull},
		{"FullReceiveQueueSaysSo", s.recvQueueFull},
		{"WakeEndsWait", s.wakeEndsWait},
		{"DeadlineEndsWait", s.deadlineEndsWait},
		{"WaitMissesNothing", s.waitMissesNothing},
		{"PollTakesNoMoreThanAsked", s.pollTakesSome},
		{"CompletionQueueInUseStays", s.completionQueueInUse},
	}
}

// receiverNotReady: a Send without a receive waits, with all that is behind it, and nothing is lost.
func (s *suite) receiverNotReady(t *testing.T) {
	a, b := s.pair(t, Config{})
	clear(b.Memory)
	Fill(a.Memory[:64], 1)
	a.Post(
		rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 64)},
		rdma.SendWR{ID: 2, Op: rdma.OpWrite, SGL: a.Piece(0, 64), RemoteAddr: b.MR.Addr() + 4096, RKey: b.MR.RKey()},
		rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.Piece(0, 32)},
	)
	Quiet(t, a.SendCQ, quiet)
	require.Equal(t, make([]byte, 64), b.Memory[4096:4096+64], "the Write waits behind the Send")
	b.Recv(10, 0, 64)
	b.Ended(b.Recvs(1), rdma.Success, 10)
	Check(t, b.Memory[:64], 1)
	b.Recv(11, 0, 64)
	b.Ended(b.Recvs(1), rdma.Success, 11)
	Check(t, b.Memory[4096:4096+64], 1)
	a.Ended(a.Sends(2), rdma.Success, 1, 3)
}

// mostSlots is how far a driver may round up a queue that was asked to be depth deep: times 8, and then
// the completion queues of an End still have room for all of it.
const mostSlots = 8

func (s *suite) sendQueueFull(t *testing.T) {
	const depth = 8
	a, b := s.pair(t, Config{Depth: depth})
	taken := 0
	for ; taken < mostSlots*depth; taken++ { // none is delivered: there is no receive
		n, err := a.QP.PostSend([]rdma.SendWR{{ID: uint64(taken), Op: rdma.OpSend, Flags: rdma.Signaled}})
		if err != nil {
			require.ErrorIs(t, err, rdma.ErrQueueFull)
			require.Zero(t, n)
			break
		}
		require.Equal(t, 1, n)
	}
	require.GreaterOrEqual(t, taken, depth)
	require.Less(t, taken, mostSlots*depth, "the queue has no end")
	for i := range uint64(taken) { // what was taken arrives, in order; slots come back with completions
		b.Recv(i, 0, 64)
		b.Ended(b.Recvs(1), rdma.Success, i)
		a.Ended(a.Sends(1), rdma.Success, i)
	}
	n, err := a.QP.PostSend(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	// A chain that fits in part is taken in part.
	chain := make([]rdma.SendWR, taken+1)
	for i := range chain {
		chain[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled}
	}
	n, err = a.QP.PostSend(chain)
	require.ErrorIs(t, err, rdma.ErrQueueFull)
	require.Equal(t, taken, n)
	require.NoError(t, a.EP.Disconnect())
	for i, c := range a.Sends(n) {
		require.Equal(t, rdma.WRFlushErr, c.Status)
		require.EqualValues(t, i, c.ID)
	}
}

func (s *suite) recvQueueFull(t *testing.T) {
	const depth = 8
	_, b := s.pair(t, Config{Depth: depth})
	taken := 0
	for ; taken < mostSlots*depth; taken++ {
		n, err := b.QP.PostRecv([]rdma.RecvWR{{ID: uint64(taken), SGL: b.Piece(0, 64)}})
		if err != nil {
			require.ErrorIs(t, err, rdma.ErrQueueFull)
			require.Zero(t, n)
			break
		}
	}
	require.GreaterOrEqual(t, taken, depth)
	require.Less(t, taken, mostSlots*depth, "the queue has no end")
}

// timed runs f and says how long it took.
func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func (s *suite) wakeEndsWait(t *testing.T) {
	a, _ := s.pair(t, Config{})
	far := func() time.Time { return time.Now().Add(Patience) }
	a.RecvCQ.Wake() // before: ends the next
	took := timed(func() { assert.NoError(t, a.RecvCQ.Wait(far())) })
	assert.Less(t, took, Patience/2)
	ended := make(chan time.Duration, 1)
	for range 20 { // during, or just before
		go func() { ended <- timed(func() { assert.NoError(t, a.RecvCQ.Wait(far())) }) }()
		a.RecvCQ.Wake()
		require.Less(t, <-ended, Patience/2)
	}
}

func (s *suite) deadlineEndsWait(t *testing.T) {
	a, _ := s.pair(t, Config{})
	for _, d := range []time.Duration{-time.Second, 0, time.Millisecond, 30 * time.Millisecond} {
		deadline := time.Now().Add(d)
		took := timed(func() {
			for { // it may return early
				require.NoError(t, a.RecvCQ.Wait(deadline))
				if !time.Now().Before(deadline) {
					break
				}
			}
		})
		assert.Less(t, took, Patience/2)
	}
	var cs [1]rdma.Completion
	n, err := a.RecvCQ.Poll(cs[:])
	require.NoError(t, err)
	require.Zero(t, n)
}

// next waits for one completion without the help of a test; false if none comes, or an error.
func next(cq rdma.CompletionQueue) bool {
	var cs [1]rdma.Completion
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); {
		n, err := cq.Poll(cs[:])
		if err != nil || n > 0 {
			return err == nil && cs[0].Status == rdma.Success
		}
		if cq.Wait(deadline) != nil {
			return false
		}
	}
	return false
}

func (s *suite) waitMissesNothing(t *testing.T) {
	a, b := s.pair(t, Config{})
	const rounds = 200
	answered := make(chan struct{})
	go func() { // answers each message
		defer close(answered)
		for range rounds {
			if !next(b.RecvCQ) {
				return
			}
			if _, err := b.QP.PostSend([]rdma.SendWR{{Op: rdma.OpSend, Flags: rdma.Signaled}}); err != nil || !next(b.SendCQ) {
				return
			}
		}
	}()
	defer func() { <-answered }()
	for i := range DefaultDepth {
		b.Recv(uint64(i), 0, 8)
	}
	for i := range uint64(rounds) {
		a.Recv(i, 0, 8)
		took := timed(func() {
			a.Post(rdma.SendWR{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled})
			a.Ended(a.Recvs(1), rdma.Success, i)
		})
		require.Less(t, took, Patience/2, "round %d: a completion was there and Wait did not see it", i)
		a.Ended(a.Sends(1), rdma.Success, i)
		if i+DefaultDepth < rounds {
			b.Recv(i, 0, 8)
		}
	}
}

func (s *suite) pollTakesSome(t *testing.T) {
	a, b := s.pair(t, Config{})
	for i := range uint64(5) {
		b.Recv(i, 0, 8)
		a.Post(rdma.SendWR{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled})
	}
	a.Ended(a.Sends(5), rdma.Success, 0, 1, 2, 3, 4)
	n, err := b.RecvCQ.Poll(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	b.Ended(b.Recvs(2), rdma.Success, 0, 1)
	b.Ended(b.Recvs(3), rdma.Success, 2, 3, 4)
}

func (s *suite) completionQueueInUse(t *testing.T) {
	a, b := s.pair(t, Config{})
	if err := a.SendCQ.Close(); err == nil {
		t.Error("closed a completion queue that a queue pair uses")
	} else {
		assert.False(t, errors.Is(err, rdma.ErrUnavailable))
	}
	exchange(t, a, b, 1) // and it still works
}
