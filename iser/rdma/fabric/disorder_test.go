package fabric_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
)

// Each test here shows that something lawful does happen with a seed, and never without: a hazard that
// the fabric does not bring about is one that its users' tests do not see.

// waitFor lets time pass until cond holds; false if it does not within 10 ms. Nothing completes to cq.
func waitFor(cq rdma.CompletionQueue, cond func() bool) bool {
	for deadline := time.Now().Add(10 * time.Millisecond); !cond(); {
		if !time.Now().Before(deadline) {
			return false
		}
		_ = cq.Wait(time.Now().Add(5 * time.Microsecond))
	}
	return true
}

// happens runs f once a seed, each in a bubble, and checks how often it reports true: never without a
// seed, at least once with one.
func happens(t *testing.T, f func(t *testing.T, seed uint64) bool) {
	t.Helper()
	times := 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			if f(t, seed) {
				require.NotZero(t, seed, "an orderly fabric does not do this")
				times++
			}
		})
	}
	require.NotZero(t, times)
}

func TestResponseOvertakesTheSendCompletion(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
		a.Recv(1, 0, 8)
		b.Recv(2, 0, 8)
		a.Post(send(3, nil))
		b.Recvs(1)
		b.Post(send(4, nil))
		a.Recvs(1)
		var cs [1]rdma.Completion
		n, err := a.SendCQ.Poll(cs[:])
		require.NoError(t, err)
		if n == 0 {
			a.Ended(a.Sends(1), rdma.Success, 3)
		}
		return n == 0
	})
}

// TestWriteCompletesBeforeItsDataIsThere: and then the Send brings it.
func TestWriteCompletesBeforeItsDataIsThere(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
		rdmatest.Fill(a.Memory[:64], 1)
		b.Recv(1, 4096, 8)
		a.Post(write(1, b, 0, a.Piece(0, 64)))
		a.Ended(a.Sends(1), rdma.Success, 1)
		late := b.Memory[0] == 0
		clear(a.Memory[:64]) // it has completed: the memory is ours
		a.Post(send(2, nil))
		b.Recvs(1)
		rdmatest.Check(t, b.Memory[:64], 1)
		return late
	})
}

// TestLateWriteComesByItself: without any Send the data is there a little later.
func TestLateWriteComesByItself(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
			rdmatest.Fill(a.Memory[:64], 1)
			a.Post(write(1, b, 0, a.Piece(0, 64)))
			require.True(t, waitFor(a.RecvCQ, func() bool { return b.Memory[0] != 0 }))
			rdmatest.Check(t, b.Memory[:64], 1)
		})
	}
}

// TestLateWriteDoesNotReachWhatWasTakenAway: the responder invalidates between acknowledgement and
// placement.
func TestLateWriteDoesNotReachWhatWasTakenAway(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
		mem := make([]byte, 64)
		mr, err := b.EP.Device().Register(mem, rdma.LocalWrite|rdma.RemoteWrite)
		require.NoError(t, err)
		rdmatest.Fill(a.Memory[:64], 1)
		w := write(1, b, 0, a.Piece(0, 64))
		w.RemoteAddr, w.RKey = mr.Addr(), mr.RKey()
		a.Post(w)
		a.Ended(a.Sends(1), rdma.Success, 1)
		lost := mem[0] == 0
		require.NoError(t, mr.Deregister())
		clear(mem)
		b.Recv(1, 0, 8)
		a.Post(send(2, nil))
		b.Recvs(1)
		require.False(t, waitFor(a.RecvCQ, func() bool { return mem[0] != 0 }))
		return lost
	})
}

func TestSendOvertakesAReadUnlessFenced(t *testing.T) {
	overtakes := func(flags rdma.SendFlags) func(t *testing.T, seed uint64) bool {
		return func(t *testing.T, seed uint64) bool {
			a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
			rdmatest.Fill(b.Memory[:64], 1)
			b.Recv(1, 4096, 8)
			s := send(2, nil)
			s.Flags |= flags
			a.Post(read(1, b, 0, a.Piece(0, 64)), s)
			b.Recvs(1)
			early := a.Memory[0] == 0
			a.Ended(a.Sends(2), rdma.Success, 1, 2)
			rdmatest.Check(t, a.Memory[:64], 1)
			return early
		}
	}
	happens(t, overtakes(0))
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { require.False(t, overtakes(rdma.Fence)(t, seed)) })
	}
}

// TestReadSeesMemoryUntilItCompletes: a responder may execute a Read again as long as its requester
// has not seen the response.
func TestReadSeesMemoryUntilItCompletes(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
		rdmatest.Fill(b.Memory[:64], 1)
		b.Recv(1, 4096, 8)
		a.Post(read(1, b, 0, a.Piece(0, 64)), send(2, nil))
		b.Recvs(1) // "done with it", says a that should have waited for the Read
		rdmatest.Fill(b.Memory[:64], 2)
		a.Ended(a.Sends(2), rdma.Success, 1, 2)
		want := make([]byte, 64)
		rdmatest.Fill(want, 2)
		return string(a.Memory[:64]) == string(want)
	})
}

// TestRetransmissionNeedsTheKey: who deregisters the memory of a Send when the response has come, and
// not when the Send has completed, loses the queue pair.
func TestRetransmissionNeedsTheKey(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
		mr, err := a.EP.Device().Register(make([]byte, 64), 0)
		require.NoError(t, err)
		b.Recv(1, 0, 64)
		a.Post(send(2, []rdma.SGE{rdma.Piece(mr, 0, 64)}))
		b.Ended(b.Recvs(1), rdma.Success, 1)
		require.NoError(t, mr.Deregister())
		c := a.Sends(1)[0]
		if c.Status != rdma.Success {
			require.Equal(t, rdma.LocProtErr, c.Status)
		}
		return c.Status != rdma.Success
	})
}

func TestRecycledSendMemoryIsCounted(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		f := fabric.New(fabric.Options{Seed: seed})
		a, b := connect(t, f, rdmatest.Config{})
		b.Recv(1, 0, 64)
		a.Post(send(2, a.Piece(0, 64)))
		b.Recvs(1)
		rdmatest.Fill(a.Memory[:64], 3)
		a.Ended(a.Sends(1), rdma.Success, 2)
		return f.Counters.Recycled.Load() > 0
	})
}

// TestFlushedThoughDelivered: when a queue pair fails, nobody can tell of what was not acknowledged.
func TestFlushedThoughDelivered(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		a, b := connect(t, fabric.New(fabric.Options{Seed: seed}), rdmatest.Config{})
		b.Recv(1, 0, 64)
		a.Post(send(2, nil))
		b.Ended(b.Recvs(1), rdma.Success, 1)
		require.NoError(t, b.EP.Disconnect())
		return a.Sends(1)[0].Status == rdma.WRFlushErr
	})
}

// TestQueuePairsInterleave: what is posted first on one may arrive after what is posted on another.
func TestQueuePairsInterleave(t *testing.T) {
	happens(t, func(t *testing.T, seed uint64) bool {
		var order []uint32
		f := fabric.New(fabric.Options{Seed: seed, Tap: func(o *fabric.Operation) { order = append(order, o.QP) }})
		a1, b1 := connect(t, f, rdmatest.Config{})
		a2, b2 := connect(t, f, rdmatest.Config{})
		b1.Recv(1, 0, 8)
		b2.Recv(1, 0, 8)
		a1.Post(send(1, nil))
		a2.Post(send(1, nil))
		b1.Recvs(1)
		b2.Recvs(1) // after both, the tap is quiet
		return order[0] == a2.QP.Num()
	})
}

// TestSeedBringsTheSameOrderBack runs a mixed load of one caller and writes down what comes when.
func TestSeedBringsTheSameOrderBack(t *testing.T) {
	trace := func(seed uint64) string {
		var wire, log strings.Builder // what the timer sees and what the caller sees
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			f := fabric.New(fabric.Options{Seed: seed, Tap: func(o *fabric.Operation) {
				fmt.Fprintln(&wire, time.Since(start), o.Op, o.QP, o.Addr, o.Length)
			}})
			a, b := connect(t, f, rdmatest.Config{})
			for i := range uint64(20) {
				b.Recv(i, 0, 64)
				a.Post(write(i, b, 64*i, a.Piece(0, 64)), read(i, b, 64*i, a.Piece(128, 64)), send(i, a.Piece(0, 8)))
				b.Recvs(1)
				fmt.Fprintln(&log, time.Since(start), "received", i)
				a.Sends(3)
				fmt.Fprintln(&log, time.Since(start), "completed", i)
			}
		})
		return wire.String() + log.String()
	}
	first := trace(3)
	assert.Equal(t, first, trace(3))
	assert.NotEqual(t, first, trace(4))
}
