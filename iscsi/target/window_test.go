package target

import (
	"math/rand/v2"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newWindow(first iscsi.CmdSN, size uint32) (*window, *iscsi.Sequence) {
	w, seq := new(window), new(iscsi.Sequence)
	w.open(seq, first, size)
	return w, seq
}

// nextOf is the next request of the only connection.
func nextOf(w *window) *heldPDU {
	p, _ := w.next(nil)
	return p
}

func TestWindowDropsWhatLiesOutside(t *testing.T) {
	for _, first := range []iscsi.CmdSN{100, 0xfffffffe} {
		w, seq := newWindow(first, 4)
		assert.Equal(t, drop, w.arrive(first-1))
		assert.Equal(t, drop, w.arrive(first+4))
		assert.Equal(t, deliver, w.arrive(first))
		assert.Equal(t, drop, w.arrive(first), "duplicate")
		assert.Equal(t, first+1, seq.ExpCmdSN)
		assert.Equal(t, first+3, seq.MaxCmdSN, "no slot has opened")
		w.release()
		assert.Equal(t, first+4, seq.MaxCmdSN)
	}
}

func TestWindowPutsInOrder(t *testing.T) {
	w, seq := newWindow(0xffffffff, 8)
	a, b := new(heldPDU), new(heldPDU) // both of connection nil
	require.Equal(t, hold, w.arrive(1))
	w.keep(1, b)
	require.Equal(t, hold, w.arrive(0))
	w.keep(0, a)
	require.Equal(t, drop, w.arrive(0), "held already")
	require.Nil(t, nextOf(w))
	require.Equal(t, deliver, w.arrive(0xffffffff))
	require.Same(t, a, nextOf(w))
	require.Same(t, b, nextOf(w))
	require.Nil(t, nextOf(w))
	assert.EqualValues(t, 2, seq.ExpCmdSN)
}

func TestSkippedNumbersCountAsReceived(t *testing.T) {
	w, seq := newWindow(10, 4)
	p, ok := w.skip(11)
	require.True(t, ok)
	require.Nil(t, p)
	require.Equal(t, drop, w.arrive(11), "the aborted command comes late")
	require.Equal(t, deliver, w.arrive(10))
	require.Nil(t, nextOf(w))
	assert.EqualValues(t, 12, seq.ExpCmdSN)
	assert.EqualValues(t, 14, seq.MaxCmdSN, "the skipped slot is open again")
	assert.True(t, w.late)
	_, ok = w.skip(11)
	assert.False(t, ok)
	_, ok = w.skip(15)
	assert.False(t, ok)
}

func TestResponsesThatDoNotLeaveCloseTheWindow(t *testing.T) {
	w, seq := newWindow(0, 2)
	next := iscsi.CmdSN(0)
	n := 0
	for !next.After(seq.MaxCmdSN) {
		require.Equal(t, deliver, w.arrive(next))
		w.respond()
		next++
		n++
		require.LessOrEqual(t, n, 4)
	}
	assert.Equal(t, 4, n, "2 in the window, 2 responses on their way")
	assert.False(t, w.late)
	w.left()
	assert.True(t, w.late, "nobody but an extra PDU tells of the open slot")
	assert.Equal(t, next, seq.MaxCmdSN)
}

// TestWindowHoldsItsPromises walks at random: MaxCmdSN never goes back, the window is never wider than
// its size, and every number is delivered once, in order.
func TestWindowHoldsItsPromises(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	w, seq := newWindow(0xffffff00, 16)
	delivered, responding, open := iscsi.CmdSN(0xffffff00), 0, 0
	max := seq.MaxCmdSN
	take := func() {
		delivered++
		open++
		for nextOf(w) != nil {
			delivered++
			open++
		}
	}
	for range 20000 {
		switch rng.IntN(3) {
		case 0:
			sn := seq.ExpCmdSN.Add(rng.Uint32N(20)) - 2
			switch w.arrive(sn) {
			case deliver:
				require.Equal(t, delivered, sn)
				take()
			case hold:
				w.keep(sn, new(heldPDU))
			}
		case 1:
			if open > 0 {
				w.respond()
				open--
				responding++
			}
		case 2:
			if responding > 0 {
				w.left()
				responding--
			}
		}
		require.False(t, seq.MaxCmdSN.Before(max), "MaxCmdSN went back")
		max = seq.MaxCmdSN
		width := seq.MaxCmdSN.Sub(seq.ExpCmdSN) + 1
		require.LessOrEqual(t, width+open, 16)
		require.LessOrEqual(t, open+responding, 32)
	}
	require.True(t, delivered.Before(0x7fffffff), "it has wrapped")
}
