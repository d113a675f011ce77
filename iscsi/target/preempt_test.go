package target

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asker logs in as an initiator port that no test state uses.
func (b *bench) asker() *client {
	b.t.Helper()
	r := wholeLogin
	r.ISID[5] += 9
	return b.loginAs(tcpTraits, r)
}

// persist sends a PERSISTENT RESERVE OUT to unit 1.
func (c *client) persist(action byte, key, actionKey uint64) uint32 {
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[2], cdb[8] = 0x5f, action, 1, 24
	param := make([]byte, 24)
	binary.BigEndian.PutUint64(param, key)
	binary.BigEndian.PutUint64(param[8:], actionKey)
	// A SIMPLE one would have to wait for an ORDERED one that is held back itself.
	return c.command(iscsi.SCSICommand{
		Final: true, Write: true, EDTL: 24, LUN: lun(1), Attr: iscsi.AttrHeadOfQueue,
	}, cdb, param)
}

const (
	persistRegister     = 0
	persistPreemptAbort = 5
)

// twoRegistered logs in two that are registered with unit 1, by the keys 1 and 2. more is for the second.
func (b *bench) twoRegistered(more ...string) (c, d *client) {
	b.t.Helper()
	c, d = b.asker(), b.login(tcpTraits, more...)
	for i, x := range []*client{c, d} {
		x.clearUA(0, 1)
		x.good(x.persist(persistRegister, 0, uint64(i+1)))
	}
	return c, d
}

// TestPreemptAndAbortWaitsUntilTheTasksAreQuiet: in every state of a task of the nexus that is preempted.
func TestPreemptAndAbortWaitsUntilTheTasksAreQuiet(t *testing.T) {
	for _, st := range tmStates {
		t.Run(st.name, inBubble(func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c, victim := b.twoRegistered("InitialR2T=No")
			itt := st.start(b, victim)
			synctest.Wait()
			out := c.persist(persistPreemptAbort, 1, 2)
			if st.finish != nil {
				synctest.Wait() // executed, and not answered
				st.finish(b, victim)
			}
			c.good(out)
			victim.dm.set(func() { assert.Empty(t, victim.dm.gets) })
			victim.dm.releaseAll()
			if st.responds {
				victim.good(itt)
			} else {
				victim.checkCondition(victim.command(iscsi.SCSICommand{Final: true, LUN: lun(1)}, nil, nil), 0x06_2f_00)
			}
			victim.checkCondition(victim.command(iscsi.SCSICommand{Final: true, LUN: lun(1)}, nil, nil), 0x06_2a_05)
			victim.alive()
			c.alive()
		}))
	}
}

// inBubble runs a test in a bubble, where synctest.Wait waits until the workers have nothing left to do.
func inBubble(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// TestOfTwoThatPreemptEachOther: each waits for a write of the other in the store, and none for the
// other: who comes first ends the other one.
func TestOfTwoThatPreemptEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c, d := b.twoRegistered()
		b.slow.Hold()
		c.writes(1, 0, pattern(512, 1))
		d.writes(1, 0, pattern(512, 2))
		b.slow.Held(t, 2)
		first := c.persist(persistPreemptAbort, 1, 2)
		synctest.Wait() // executed, and not answered
		second := d.persist(persistPreemptAbort, 2, 1)
		// The other's write has been ended: it is told, and its command not executed.
		d.checkCondition(second, 0x06_2f_00)
		second = d.persist(persistPreemptAbort, 2, 1)
		d.checkCondition(second, 0x06_2a_05)
		second = d.persist(persistPreemptAbort, 2, 1)
		r, _ := d.response(second)
		assert.Equal(t, uint8(scsi.ReservationConflict), r.Status, "not registered any more")
		b.slow.Release()
		p := c.expect(iscsi.OpSCSIResponse) // of its own write, or of what was to end the others'
		q := c.expect(iscsi.OpSCSIResponse)
		itts := []uint32{iscsi.ITTOf(&p.bhs), iscsi.ITTOf(&q.bhs)}
		assert.Contains(t, itts, first)
		assert.Equal(t, []byte{0, 0}, []byte{p.bhs[3], q.bhs[3]}, "good")
	})
}

// TestPreemptOfItself: an all-registrants preemption names the nexus that asks too; its command is not among what
// it ends.
func TestPreemptOfItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(0, 1)
		c.good(c.persist(persistRegister, 0, 1))
		itt := b.stuck(c)
		out := c.persist(persistPreemptAbort, 1, 1)
		synctest.Wait() // executed, and not answered
		b.slow.Release()
		c.good(out)
		c.dm.set(func() {
			for _, p := range c.dm.out {
				assert.NotEqual(t, itt, iscsi.ITTOf(&p.bhs), "ended, not answered")
			}
		})
		c.alive()
	})
}

// TestAbortOfAPreemption: it ends at once; what it has begun goes on.
func TestAbortOfAPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []iscsi.TMFunction{iscsi.TMAbortTask, iscsi.TMAbortTaskSet} {
			b := newBench(t, benchConfig{})
			c, victim := b.twoRegistered()
			b.stuck(victim)
			out := c.persist(persistPreemptAbort, 1, 2)
			synctest.Wait() // executed, and not answered
			c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(1), RefITT: out, RefCmdSN: c.cmdSN - 1})
			c.tmfResponse(iscsi.TMComplete)
			b.slow.Release()
			victim.checkCondition(victim.command(iscsi.SCSICommand{Final: true, LUN: lun(1)}, nil, nil), 0x06_2f_00)
			synctest.Wait()
			c.good(c.read(1, 0, 1))
		}
	})
}

// TestPreemptAndAbortThatAStoreHoldsUp: GOOD would not be true, ever.
func TestPreemptAndAbortThatAStoreHoldsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c, victim := b.twoRegistered()
		b.slow.Hold()
		victim.writes(1, 0, pattern(512, 1))
		synctest.Wait()
		out := c.persist(persistPreemptAbort, 1, 2)
		time.Sleep(taskManagementTimeout + 2*housekeeping)
		c.checkCondition(out, senseAborted)
		assert.Contains(t, b.lines.String(), "PREEMPT AND ABORT waits for a store")
		b.slow.Release()
		synctest.Wait()
		c.alive()
	})
}

// TestClearTaskSetIsToldToThoseItConcerns: COMMANDS CLEARED BY ANOTHER INITIATOR, to a nexus that had
// commands there and did not ask (SAM-5, 7.5).
func TestClearTaskSetIsToldToThoseItConcerns(t *testing.T) {
	b := newBench(t, benchConfig{})
	c, victim, idle := b.asker(), b.login(tcpTraits), b.other()
	for _, x := range []*client{c, victim, idle} {
		x.clearUA(0, 1)
	}
	b.slow.Hold()
	victim.read(1, 0, 1)
	c.read(1, 0, 1)
	b.slow.Held(t, 2)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMClearTaskSet, LUN: lun(1)})
	c.ping()
	b.slow.Release()
	c.tmfResponse(iscsi.TMComplete)
	c.good(c.read(1, 0, 1))
	idle.good(idle.read(1, 0, 1))
	victim.checkCondition(victim.read(1, 0, 1), 0x06_2f_00)
	victim.good(victim.read(1, 0, 1))
	victim.good(victim.read(0, 0, 1))
}

// TestTargetResetLeavesMaskedUnitsAlone: neither tasks nor unit attentions of a unit that the asking
// nexus does not see.
func TestTargetResetLeavesMaskedUnitsAlone(t *testing.T) {
	b := newBench(t, benchConfig{})
	const masked = "iqn.2026-01.test:masked"
	_, err := b.s.AddTarget(TargetConfig{
		Name: testTarget + "2", Device: b.device, Negotiate: iscsi.DefaultConfig(),
		Initiators: []InitiatorConfig{{Name: testInitiator}, {Name: masked, LUNs: []int{0}}},
	})
	require.NoError(t, err)
	login := func(initiator string) *client {
		c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000}
		c.loginRequest(wholeLogin, "InitiatorName="+initiator, "TargetName="+testTarget+"2", "SessionType=Normal")
		r, _ := c.loginResponse()
		require.Equal(t, iscsi.LoginSuccess, r.Status)
		return c
	}
	c, d := login(masked), login(testInitiator)
	c.clearUA(0)
	d.clearUA(0, 1)
	itt := b.stuck(d)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMTargetWarmReset})
	c.tmfResponse(iscsi.TMComplete) // it waits for nothing of unit 1
	b.slow.Release()
	d.good(itt)
	d.checkCondition(d.read(0, 0, 1), 0x06_29_03)
	d.good(d.read(1, 0, 1))
}

// TestReportedTaskManagementFunctionsAreTrue asks for each function of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
// (SPC-4, 6.36), in a session with those of RFC 7144 and in one without.
func TestReportedTaskManagementFunctionsAreTrue(t *testing.T) {
	b := newBench(t, benchConfig{})
	b.login(tcpTraits, "iSCSIProtocolLevel=1").reportIsTrue(0)
	b.other("iSCSIProtocolLevel=2").reportIsTrue(7)
}

// reportIsTrue checks the report, and that its second byte is newer.
func (c *client) reportIsTrue(newer byte) {
	c.t.Helper()
	c.clearUA(0)
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[9] = 0xa3, 0x0d, 16
	itt := c.command(iscsi.SCSICommand{Final: true, Read: true, EDTL: 16}, cdb, nil)
	c.good(itt)
	var said uint16
	c.dm.set(func() {
		require.Len(c.t, c.dm.memory[itt], 4)
		said = binary.BigEndian.Uint16(c.dm.memory[itt])
	})
	assert.Equal(c.t, newer, byte(said))
	for f, bit := range map[iscsi.TMFunction]uint16{
		iscsi.TMAbortTask: 0x8000, iscsi.TMAbortTaskSet: 0x4000, iscsi.TMClearACA: 0x2000, iscsi.TMClearTaskSet: 0x1000,
		iscsi.TMLogicalUnitReset: 0x0800, iscsi.TMQueryTask: 0x0400, iscsi.TMTargetWarmReset: 0x0200,
		iscsi.TMQueryAsyncEvent: 4, iscsi.TMQueryTaskSet: 2, iscsi.TMNexusReset: 1,
	} {
		c.tmf(iscsi.TMFRequest{Function: f})
		p := c.expect(iscsi.OpTMFResponse)
		c.stat++
		assert.Equal(c.t, said&bit != 0, iscsi.TMResponse(p.bhs[2]) != iscsi.TMNotSupported, "%v", f)
	}
}
