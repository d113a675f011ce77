package rc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
)

// newMeasured is a queue pair that has measured its path at 100 us, and then sent packets 1 to 6 into silence.
func newMeasured(t *testing.T) *lone {
	l := newLone(t, nil)
	l.send(l.message(1, 8))
	require.Equal(t, []int{0}, l.sent(l.round()))
	l.after(100 * time.Microsecond)
	l.receive(l.ack(0, 0x1f))
	l.send(l.message(2, 256*6))
	require.Equal(t, []int{1, 2, 3, 4, 5, 6}, l.sent(l.round()))
	require.Equal(t, probeTimeout, l.q.Deadline().Sub(l.now))
	l.after(probeTimeout)
	return l
}

func TestSilenceIsProbedWithOnePacket(t *testing.T) {
	l := newMeasured(t)
	out := l.round()
	require.Equal(t, []int{1}, l.sent(out))
	require.True(t, out[0].AckReq())
	require.Empty(t, l.round())
	l.receive(l.ack(1, 0x1f)) // the rest was lost
	require.Equal(t, []int{2, 3, 4, 5, 6}, l.sent(l.round()))
	assert.Equal(t, startWindow*3/4, l.q.req.window)
	assert.EqualValues(t, 6, l.q.Counters().Retransmits)
	l.receive(l.ack(6, 0x1f))
	assert.Equal(t, []int{1, 2}, l.ids())
}

func TestProbeOfAPeerThatIsLateCostsOnePacket(t *testing.T) {
	l := newMeasured(t)
	require.Equal(t, []int{1}, l.sent(l.round()))
	l.receive(l.ack(6, 0x1f)) // it has all, but did not run
	require.Empty(t, l.round())
	assert.Equal(t, []int{1, 2}, l.ids())
	assert.EqualValues(t, 1, l.q.Counters().Retransmits)
	assert.Equal(t, startWindow, l.q.req.window)
	l.send(l.message(3, 8))
	l.round()
	assert.Equal(t, probeTimeout, l.q.Deadline().Sub(l.now), "the next silence is probed again")
}

func TestProbeIsNoRetry(t *testing.T) {
	l := newMeasured(t)
	require.Equal(t, []int{1}, l.sent(l.round()))
	for i := range l.q.cfg.RetryCount {
		require.Empty(t, l.ended[1:], "retry %d", i)
		require.GreaterOrEqual(t, l.q.Deadline().Sub(l.now), firstTimeout, "only once")
		l.after(l.q.Deadline().Sub(l.now))
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, l.sent(l.round()))
	}
	l.after(l.q.Deadline().Sub(l.now))
	l.round()
	require.Equal(t, []int{1, int(rdma.RetryExcErr)*1000 + 2}, l.ids())
}

func TestNAKOfAProbeIsActedOn(t *testing.T) {
	l := newMeasured(t)
	l.round()
	l.receive(l.ack(1, 0x60))
	require.Equal(t, []int{1, 2, 3, 4, 5, 6}, l.sent(l.round()))
}

func TestReadsAreNotProbed(t *testing.T) {
	l := newLone(t, nil)
	l.send(l.message(1, 8))
	l.round()
	l.after(100 * time.Microsecond)
	l.receive(l.ack(0, 0x1f))
	l.send(l.reading(2, 8))
	l.round()
	require.Equal(t, firstTimeout, l.q.Deadline().Sub(l.now))
}
