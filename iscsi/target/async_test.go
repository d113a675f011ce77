package target

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// isDropped takes the message that says that the session ends (RFC 7143, 11.9.1, event 3), and its end.
func (c *client) isDropped() {
	c.t.Helper()
	p := c.expect(iscsi.OpAsync)
	want := [iscsi.BHSSize]byte{0: 0x32, 1: 0x80, 16: 0xff, 17: 0xff, 18: 0xff, 19: 0xff, 36: 3, 41: 2}
	copy(want[24:36], p.bhs[24:36])
	require.Equal(c.t, want, p.bhs, "wait 2 s, retain nothing")
	var a iscsi.Async
	require.NoError(c.t, a.Parse(&p.bhs))
	require.Equal(c.t, c.stat, a.StatSN)
	c.stat++
	c.closes()
}

// TestOtherConnectionsAreToldOfTheEnd: of a session of which one connection has failed.
func TestOtherConnectionsAreToldOfTheEnd(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4", "DefaultTime2Retain=20")
	one.clearUA(0, 1)
	two, silent := b.join(one, 1), b.join(one, 2)
	two.at(one.cmdSN).good(two.read(0, 0, 1))
	two.command(iscsi.SCSICommand{Write: true, EDTL: 1024}, write10(0, 2), nil)
	two.dm.set(func() { two.dm.err = io.ErrUnexpectedEOF })
	one.isDropped()
	silent.closes() // has sent nothing yet: gets nothing unasked
	b.sessionsEnd(0)
}

// TestAColdResetTellsOtherSessions: their commands get no answer after the message.
func TestAColdResetTellsOtherSessions(t *testing.T) {
	b := newBench(t, benchConfig{})
	one, two := b.loginAs(tcpTraits, isid(1)), b.loginAs(tcpTraits, isid(2))
	one.clearUA(0)
	two.clearUA(0)
	one.tmf(iscsi.TMFRequest{Function: iscsi.TMTargetColdReset})
	one.tmfResponse(iscsi.TMComplete)
	two.isDropped()
	one.closes()
	b.sessionsEnd(0)
}

// TestADroppedPeerThatDoesNotReadIsClosed: within a bound.
func TestADroppedPeerThatDoesNotReadIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(0)
		c.dm.set(func() { c.dm.stuffed = true })
		done := make(chan error)
		go func() { done <- b.s.RemoveTarget(testTarget) }()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, <-done)
		assert.Equal(t, lastPDUTimeout, time.Since(start))
		assert.Contains(t, b.lines.String(), "session closed")
		assert.NotContains(t, b.lines.String(), "session failed")
	})
}
