package target

import (
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const level2 = "iSCSIProtocolLevel=2"

// asks sends a query and checks its answer.
func (c *client) asks(r iscsi.TMFRequest, there bool) {
	c.t.Helper()
	c.tmf(r)
	want := iscsi.TMComplete
	if there {
		want = iscsi.TMSucceeded
	}
	c.tmfResponse(want)
}

// asksFor queries a task of unit 1, and the unit's task set, of which it is the only one.
func (c *client) asksFor(itt uint32, there bool) {
	c.t.Helper()
	c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, LUN: lun(1), RefITT: itt, RefCmdSN: c.cmdSN - 1}, there)
	c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTaskSet, LUN: lun(1)}, there)
}

// TestLevel2IsNegotiated: without it the functions of RFC 7144 do not exist.
func TestLevel2IsNegotiated(t *testing.T) {
	b := newBench(t, benchConfig{})
	for i, row := range []struct {
		lines []string
		has   bool
	}{
		{nil, false},
		{[]string{"iSCSIProtocolLevel=0"}, false},
		{[]string{"iSCSIProtocolLevel=1"}, false},
		{[]string{"iSCSIProtocolLevel=32"}, false},
		{[]string{level2}, true},
		{[]string{"iSCSIProtocolLevel=31"}, true},
	} {
		r := wholeLogin
		r.ISID[5] = byte(i + 1)
		c := b.loginAs(tcpTraits, r, row.lines...)
		c.clearUA(0)
		for _, f := range []iscsi.TMFunction{
			iscsi.TMQueryTask, iscsi.TMQueryTaskSet, iscsi.TMQueryAsyncEvent, iscsi.TMNexusReset,
		} {
			c.tmf(iscsi.TMFRequest{Function: f})
			if row.has {
				c.tmfResponse(iscsi.TMComplete)
				continue
			}
			c.tmfResponse(iscsi.TMNotSupported)
		}
		c.asksUnknown(row.has)
		if row.has {
			c.checkCondition(c.read(0, 0, 1), 0x06_29_07)
		}
		c.good(c.read(0, 0, 1))
	}
}

// asksUnknown names a unit that is not there; I_T NEXUS RESET names none.
func (c *client) asksUnknown(has bool) {
	c.t.Helper()
	want := iscsi.TMNotSupported
	if has {
		want = iscsi.TMNoLUN
	}
	for _, f := range []iscsi.TMFunction{iscsi.TMQueryTask, iscsi.TMQueryTaskSet, iscsi.TMQueryAsyncEvent} {
		c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(9)})
		c.tmfResponse(want)
	}
}

// TestQueriesSeeATaskInEveryState: and see it no more when it has been answered or ended.
func TestQueriesSeeATaskInEveryState(t *testing.T) {
	for _, st := range tmStates {
		t.Run(st.name, func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c := b.login(tcpTraits, "InitialR2T=No", level2)
			c.clearUA(0, 1)
			c.asksFor(0x1234, false)
			itt := st.start(b, c)
			if st.responds {
				c.good(itt)
				c.asksFor(itt, false)
				return
			}
			c.asksFor(itt, true)
			c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, LUN: lun(1), RefITT: itt + 1}, false)
			c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, LUN: lun(0), RefITT: itt}, false)
			c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTaskSet, LUN: lun(0)}, false)
			c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, LUN: lun(1), RefITT: itt})
			if st.finish != nil {
				c.ping()
				st.finish(b, c)
			}
			c.tmfResponse(iscsi.TMComplete)
			c.asksFor(itt, false)
		})
	}
}

// TestQueriesChangeNothing: a task in the store, one that others hold back and one whose data is still to come all end
// as if nobody had asked.
func TestQueriesChangeNothing(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, "InitialR2T=No", level2)
	d := b.other(level2)
	c.clearUA(0, 1)
	d.clearUA(0, 1)
	running := b.stuck(c)
	ordered := c.command(iscsi.SCSICommand{
		Final: true, Write: true, EDTL: 512, LUN: lun(1), Attr: iscsi.AttrOrdered,
	}, write10(1, 1), pattern(512, 2))
	due := c.command(iscsi.SCSICommand{Write: true, EDTL: 1024, LUN: lun(0)}, write10(0, 2), pattern(512, 3))
	for range 2 {
		c.asksFor(running, true)
		c.asksFor(ordered, true)
		c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, LUN: lun(0), RefITT: due}, true)
		c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryAsyncEvent, LUN: lun(1)}, false)
		d.asksFor(running, false) // another nexus
	}
	var bhs [iscsi.BHSSize]byte
	(&iscsi.DataOut{Final: true, ITT: due, TTT: iscsi.ReservedTag, LUN: lun(0), Offset: 512}).Put(&bhs)
	c.push(bhs, nil, pattern(512, 4))
	c.good(due)
	b.slow.Release()
	c.good(running)
	c.good(ordered)
	c.asksFor(running, false)
	itt := c.read(1, 0, 2)
	c.good(itt)
	c.dm.set(func() { assert.Equal(t, append(pattern(512, 1), pattern(512, 2)...), c.dm.memory[itt]) })
	b.wholeWindow(c)
}

// TestQueryOfACommandBeforeItsTurn: it has come, and will be executed.
func TestQueryOfACommandBeforeItsTurn(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, level2)
	c.clearUA(0, 1)
	first := c.cmdSN
	held := c.at(first+1).read(1, 0, 1)
	c.asksFor(held, true)
	c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, LUN: lun(0), RefITT: held}, false)
	c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTaskSet, LUN: lun(0)}, false)
	missing := c.at(first).read(0, 0, 1)
	c.good(missing)
	c.good(held)
	c.at(first+2).asksFor(held, false)
}

// TestQueriesOverConnections: a task is its session's. A query does not wait for commands that it may have overtaken,
// of which the target cannot know.
func TestQueriesOverConnections(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4", level2)
	one.clearUA(0, 1)
	two := b.join(one, 1)
	itt := b.stuck(two.at(one.cmdSN))
	one.at(two.cmdSN+1).asksFor(itt, true)
	one.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, LUN: lun(1), RefITT: itt + 1}, false)
	b.slow.Release()
	two.good(itt)
}

// TestQueryAsynchronousEvent: the response has what the next command will be told, in bytes 8 to 10, and the
// condition stays.
func TestQueryAsynchronousEvent(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, level2)
	query := func(unit int) [3]byte {
		c.tmf(iscsi.TMFRequest{Function: iscsi.TMQueryAsyncEvent, LUN: lun(unit)})
		p := c.expect(iscsi.OpTMFResponse)
		c.stat++
		info := [3]byte(p.bhs[8:11])
		want := iscsi.TMComplete
		if info != [3]byte{} {
			want = iscsi.TMSucceeded
		}
		assert.Equal(t, want, iscsi.TMResponse(p.bhs[2]))
		return info
	}
	assert.Equal(t, [3]byte{0x16, 0x29, 0}, query(0))
	assert.Equal(t, [3]byte{0x16, 0x29, 0}, query(0), "still there")
	c.clearUA(0)
	assert.Zero(t, query(0))
	assert.Equal(t, [3]byte{0x16, 0x29, 0}, query(1))
	require.True(t, b.device.ResetLU(0, nil))
	assert.Equal(t, [3]byte{0x16, 0x29, 3}, query(0))
	c.asks(iscsi.TMFRequest{Function: iscsi.TMNexusReset}, false)
	assert.Equal(t, [3]byte{0x26, 0x29, 3}, query(0))
	c.checkCondition(c.read(0, 0, 1), 0x06_29_03)
	c.checkCondition(c.read(0, 0, 1), 0x06_29_07)
	c.good(c.read(0, 0, 1))
	assert.Zero(t, query(0))
}

// TestNexusResetEndsOnlyItsOwn: tasks of all units, those that wait for their turn included, and no other session's.
func TestNexusResetEndsOnlyItsOwn(t *testing.T) {
	b := newBench(t, benchConfig{})
	c, d := b.login(tcpTraits, "InitialR2T=No", level2), b.other()
	c.clearUA(0, 1)
	d.clearUA(0, 1)
	other := b.stuck(d)
	mine := c.command(iscsi.SCSICommand{
		Final: true, Write: true, EDTL: 512, LUN: lun(1), Attr: iscsi.AttrOrdered,
	}, write10(0, 1), pattern(512, 7))
	due := c.command(iscsi.SCSICommand{Write: true, EDTL: 1024}, write10(0, 2), pattern(512, 7))
	next := c.cmdSN
	c.at(next+1).read(0, 0, 1)
	c.at(next).tmf(iscsi.TMFRequest{Function: iscsi.TMNexusReset, LUN: lun(9)})
	c.tmfResponse(iscsi.TMComplete) // it waits for none of the other's
	c.asksFor(mine, false)
	c.asks(iscsi.TMFRequest{Function: iscsi.TMQueryTask, RefITT: due}, false)
	b.slow.Release()
	d.good(other)
	itt := d.read(1, 0, 1)
	d.good(itt)
	d.dm.set(func() { assert.Equal(t, pattern(512, 1), d.dm.memory[itt]) })
	d.good(d.read(0, 0, 1))
	c.checkCondition(c.at(next).read(0, 0, 1), 0x06_29_07)
	c.checkCondition(c.at(next+2).read(1, 0, 1), 0x06_29_07)
	b.wholeWindow(c)
}

// TestPriorityIsIgnored: commands are executed whatever it is, and in every session (RFC 7144; reserved bits at level 1).
func TestPriorityIsIgnored(t *testing.T) {
	b := newBench(t, benchConfig{})
	for _, c := range []*client{b.login(tcpTraits), b.other(level2)} {
		c.clearUA(0)
		itt := c.command(iscsi.SCSICommand{Final: true, Priority: 15, Attr: iscsi.AttrSimple}, nil, nil)
		r, _ := c.response(itt)
		assert.Zero(t, r.Status)
		assert.Zero(t, r.StatusQualifier)
	}
}
