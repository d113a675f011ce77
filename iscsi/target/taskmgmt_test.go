package target

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tmf sends a function request, immediate, and returns its ITT.
func (c *client) tmf(r iscsi.TMFRequest) {
	r.Immediate, r.ITT, r.CmdSN = true, 0x7777, c.cmdSN
	var bhs [iscsi.BHSSize]byte
	r.Put(&bhs)
	c.push(bhs, nil, nil)
}

func (c *client) tmfResponse(want iscsi.TMResponse) {
	c.t.Helper()
	p := c.expect(iscsi.OpTMFResponse)
	var r iscsi.TMFResponse
	require.NoError(c.t, r.Parse(&p.bhs))
	assert.Equal(c.t, want.String(), r.Response.String())
	assert.EqualValues(c.t, 0x7777, r.ITT)
	assert.Equal(c.t, c.stat, r.StatSN)
	assert.Empty(c.t, p.data)
	c.stat++
}

// A tmState brings a task into a state and says what must happen before an abort of it can be answered.
type tmState struct {
	name string
	// start sends the task and waits until it is in its state.
	start func(b *bench, c *client) (itt uint32)
	// finish lets go of what holds it; nil if nothing does.
	finish func(b *bench, c *client)
	// responds: the task's own response comes, before that of the function.
	responds bool
	sessions int // in all; 0 is 1
}

var tmStates = []tmState{
	{
		name: "collecting unsolicited data",
		start: func(b *bench, c *client) uint32 {
			return c.command(iscsi.SCSICommand{Write: true, EDTL: 1024, LUN: lun(1)}, write10(0, 2), make([]byte, 512))
		},
	}, {
		name: "held back behind another task",
		start: func(b *bench, c *client) uint32 {
			d := b.other()
			d.clearUA(1)
			d.dm.set(func() { d.dm.holdGets = true })
			older := d.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1)}, write10(0, 1), nil)
			d.dm.waitFor(b.t, "GetData", func() bool { return d.dm.gets[older] != nil })
			itt := c.command(iscsi.SCSICommand{
				Final: true, Write: true, EDTL: 512, LUN: lun(1), Attr: iscsi.AttrOrdered,
			}, write10(0, 1), pattern(512, 1))
			c.ping()
			return itt
		},
		sessions: 2,
	}, {
		name: "waiting for buffers",
		start: func(b *bench, c *client) uint32 {
			n := (b.pool.Free() - 1) * arena.ChunkSize
			hog, ok := b.pool.Get(nil, n)
			require.True(b.t, ok)
			b.t.Cleanup(func() { b.pool.Put(hog) })
			itt := c.read(1, 0, 2048)
			c.ping()
			return itt
		},
	}, {
		name: "fetching",
		start: func(b *bench, c *client) uint32 {
			c.dm.set(func() { c.dm.holdGets = true })
			itt := c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1024, LUN: lun(1)}, write10(0, 2), nil)
			c.dm.waitFor(b.t, "GetData", func() bool { return c.dm.gets[itt] != nil })
			c.dm.set(func() { c.dm.keepAll = true })
			return itt
		},
		finish: func(b *bench, c *client) { c.dm.releaseAll() },
	}, {
		name: "in the store",
		start: func(b *bench, c *client) uint32 {
			b.slow.Hold()
			itt := c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1)}, write10(0, 1), pattern(512, 1))
			b.slow.Held(b.t, 1)
			return itt
		},
		finish: func(b *bench, c *client) { b.slow.Release() },
	}, {
		name: "reading from the store",
		start: func(b *bench, c *client) uint32 {
			b.slow.Hold()
			itt := c.read(1, 0, 8)
			b.slow.Held(b.t, 1)
			return itt
		},
		finish: func(b *bench, c *client) { b.slow.Release() },
	}, {
		name: "responding",
		start: func(b *bench, c *client) uint32 {
			c.dm.set(func() { c.dm.keepAll = true })
			itt := c.read(1, 0, 8)
			c.dm.waitFor(b.t, "response", func() bool { return len(c.dm.out) > c.seen })
			return itt
		},
		responds: true,
	},
}

// TestAbortWaitsUntilTheTaskIsQuiet: in every state of a task, with every function, the answer comes only
// when nothing of the task can happen any more (ISER.md 4.7, field report TM-03).
func TestAbortWaitsUntilTheTaskIsQuiet(t *testing.T) {
	functions := []iscsi.TMFunction{
		iscsi.TMAbortTask, iscsi.TMAbortTaskSet, iscsi.TMClearTaskSet, iscsi.TMLogicalUnitReset,
		iscsi.TMTargetWarmReset, iscsi.TMTargetColdReset, iscsi.TMNexusReset,
	}
	for _, st := range tmStates {
		for _, f := range functions {
			t.Run(st.name+"/"+f.String(), func(t *testing.T) {
				b := newBench(t, benchConfig{})
				c := b.login(tcpTraits, "InitialR2T=No", "iSCSIProtocolLevel=2")
				c.clearUA(0, 1)
				itt := st.start(b, c)
				c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(1), RefITT: itt, RefCmdSN: c.cmdSN - 1})
				if st.responds {
					r, _ := c.response(itt)
					require.Zero(t, r.Status)
				}
				if st.finish != nil {
					c.ping() // it has been seen, and not answered
					st.finish(b, c)
				}
				want := iscsi.TMComplete
				if st.responds && f == iscsi.TMAbortTask {
					want = iscsi.TMNoTask
				}
				c.tmfResponse(want)
				c.dm.set(func() {
					assert.Empty(t, c.dm.gets)
					if !st.responds {
						assert.Empty(t, c.dm.memory[itt], "no read data of an aborted task")
					}
				})
				if f == iscsi.TMTargetColdReset {
					c.closes()
					return
				}
				c.dm.releaseAll()
				c.dm.set(func() { c.dm.holdGets = false })
				// Data-Out that was on its way is no error.
				var bhs [iscsi.BHSSize]byte
				if st.name == "collecting unsolicited data" {
					(&iscsi.DataOut{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 512}).Put(&bhs)
					c.push(bhs, nil, make([]byte, 512))
				}
				switch f {
				case iscsi.TMTargetWarmReset:
					c.checkCondition(c.command(iscsi.SCSICommand{Final: true}, nil, nil), 0x06_29_03)
				case iscsi.TMNexusReset:
					c.checkCondition(c.command(iscsi.SCSICommand{Final: true}, nil, nil), 0x06_29_07)
				}
				c.command(iscsi.SCSICommand{Final: true, ITT: itt, LUN: lun(0)}, nil, nil)
				r, _ := c.response(itt)
				require.Zero(t, r.Status, "the tag is free")
				require.Len(t, b.s.Sessions(), max(1, st.sessions))
			})
		}
	}
}

func TestAbortOfWhatIsNotThere(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	itt := c.command(iscsi.SCSICommand{Final: true}, nil, nil)
	c.response(itt)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, RefITT: itt, RefCmdSN: c.cmdSN - 1})
	c.tmfResponse(iscsi.TMNoTask)
	for _, f := range []iscsi.TMFunction{iscsi.TMAbortTaskSet, iscsi.TMClearTaskSet, iscsi.TMLogicalUnitReset} {
		c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(9)})
		c.tmfResponse(iscsi.TMNoLUN)
	}
	for f, want := range map[iscsi.TMFunction]iscsi.TMResponse{ // conformance 124
		0: iscsi.TMNotSupported, 3: iscsi.TMNotSupported, 8: iscsi.TMReassignNotSupp, 9: iscsi.TMNotSupported,
		10: iscsi.TMNotSupported, 11: iscsi.TMNotSupported, 12: iscsi.TMNotSupported, 13: iscsi.TMNotSupported, 127: iscsi.TMNotSupported,
	} {
		c.tmf(iscsi.TMFRequest{Function: f})
		c.tmfResponse(want)
	}
	c.alive()
}

// TestAbortThatCrossesAReset: the reset has ended the task, and the initiator has had no response.
func TestAbortThatCrossesAReset(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	b.slow.Hold()
	itt := c.read(1, 0, 8)
	b.slow.Held(t, 1)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMLogicalUnitReset, LUN: lun(1)})
	c.ping()
	b.slow.Release()
	c.tmfResponse(iscsi.TMComplete)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, LUN: lun(1), RefITT: itt})
	c.tmfResponse(iscsi.TMComplete)
	c.command(iscsi.SCSICommand{Final: true, ITT: itt}, nil, nil)
	c.response(itt)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, RefITT: itt})
	c.tmfResponse(iscsi.TMNoTask) // it was used again, and answered
}

func TestAbortOfACommandThatIsStillToCome(t *testing.T) { // conformance 122
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	missing := c.cmdSN
	c.cmdSN += 2 // the initiator has sent two, of which none has come
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, RefITT: 0x50, RefCmdSN: missing})
	c.tmfResponse(iscsi.TMComplete)
	c.cmdSN = missing
	c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, ITT: 0x50}, write10(0, 1), pattern(512, 1))
	itt := c.read(0, 0, 1)
	r, _ := c.response(itt)
	require.Zero(t, r.Status)
	c.dm.set(func() { assert.Equal(t, make([]byte, 512), c.dm.memory[itt], "the aborted write was not executed") })

	// One that came before its turn is dropped too.
	first := c.cmdSN
	c.cmdSN++
	c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, ITT: 0x51}, write10(0, 1), pattern(512, 1))
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, RefITT: 0x51, RefCmdSN: first + 1})
	c.tmfResponse(iscsi.TMComplete)
	c.cmdSN = first
	itt = c.read(0, 0, 1)
	r, _ = c.response(itt)
	require.Zero(t, r.Status)
	c.cmdSN = first + 2
	c.alive()
}

func TestResetReachesOtherSessions(t *testing.T) { // conformance 123
	for _, f := range []iscsi.TMFunction{iscsi.TMLogicalUnitReset, iscsi.TMClearTaskSet, iscsi.TMTargetWarmReset, iscsi.TMTargetColdReset} {
		t.Run(f.String(), func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c := b.login(tcpTraits)
			c.clearUA(0, 1)
			other := wholeLogin
			other.ISID[5] = 1
			d := b.loginAs(tcpTraits, other)
			d.clearUA(0, 1)
			b.slow.Hold()
			d.read(1, 0, 8)
			b.slow.Held(t, 1)
			c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(1)})
			c.ping()
			b.slow.Release()
			c.tmfResponse(iscsi.TMComplete)
			switch f {
			case iscsi.TMTargetColdReset:
				c.closes()
				d.dm.waitFor(t, "close", func() bool { return d.dm.closed })
				return
			case iscsi.TMClearTaskSet:
				d.alive()
				return
			}
			itt := d.command(iscsi.SCSICommand{Final: true, LUN: lun(1)}, nil, nil)
			d.checkCondition(itt, 0x06_29_03)
		})
	}
}

// TestResetWaitsForSessionsThatEnd: the other session's connection is gone, its write is still in the store.
func TestResetWaitsForSessionsThatEnd(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	other := wholeLogin
	other.ISID[5] = 1
	d := b.loginAs(tcpTraits, other)
	d.clearUA(1)
	b.slow.Hold()
	d.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1)}, write10(0, 1), pattern(512, 1))
	b.slow.Held(t, 1)
	d.dm.set(func() { d.dm.err = io.EOF })
	d.dm.waitFor(t, "close", func() bool { return d.dm.closed })
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMLogicalUnitReset, LUN: lun(1)})
	for range 3 {
		c.ping()
	}
	b.slow.Release()
	c.tmfResponse(iscsi.TMComplete)
	assert.Equal(t, 1, b.slow.Writes(), "it landed before the answer")
}

func TestAFunctionThatAStoreHoldsUpIsRejectedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(0, 1)
		b.slow.Hold()
		itt := c.read(1, 0, 8)
		synctest.Wait()
		c.tmf(iscsi.TMFRequest{Function: iscsi.TMLogicalUnitReset, LUN: lun(1)})
		c.ping()
		start := time.Now()
		time.Sleep(taskManagementTimeout + 2*housekeeping)
		c.tmfResponse(iscsi.TMRejected)
		assert.Contains(t, b.lines.String(), "waits for a store that does not answer")
		assert.Less(t, time.Since(start), taskManagementTimeout+3*housekeeping)
		// The healthy unit is not impressed (field report TM-02).
		c.alive()
		b.slow.Release()
		synctest.Wait()
		c.dm.set(func() { assert.Empty(t, c.dm.memory[itt]) })
		c.alive()
	})
}

func TestTooManyFunctionsAreRejected(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(1)
	b.slow.Hold()
	c.read(1, 0, 8)
	b.slow.Held(t, 1)
	for range maxTMF + 1 {
		c.tmf(iscsi.TMFRequest{Function: iscsi.TMLogicalUnitReset, LUN: lun(1)})
	}
	c.tmfResponse(iscsi.TMRejected)
	b.slow.Release()
	for range maxTMF {
		c.tmfResponse(iscsi.TMComplete)
	}
}

// TestAbortsOfADeepQueue aborts every other of many tasks in all states at once.
func TestAbortsOfADeepQueue(t *testing.T) {
	b := newBench(t, benchConfig{chunks: 1024})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	b.slow.Hold()
	c.dm.set(func() { c.dm.holdGets = true })
	var itts []uint32
	for i := range 32 {
		if i%2 == 0 {
			itts = append(itts, c.read(1, 0, 64))
		} else {
			itts = append(itts, c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1024, LUN: lun(1)}, write10(0, 2), nil))
		}
	}
	b.slow.Held(t, 1)
	for i, itt := range itts {
		if i%4 < 2 {
			c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, LUN: lun(1), RefITT: itt})
		}
	}
	tmfs := 0
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 3, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
	c.push(bhs, nil, nil)
	for c.next().op() != iscsi.OpNOPIn {
		tmfs++
	}
	b.slow.Release()
	c.dm.waitFor(t, "GetData", func() bool { return len(c.dm.gets) == 8 })
	c.dm.set(func() {
		for itt := range c.dm.gets {
			c.dm.memory[itt] = make([]byte, 1024)
			c.dm.finish(itt)
		}
	})
	answered := map[uint32]int{}
	for len(answered) < 16 || tmfs < 16 {
		p := c.next()
		require.NotNil(t, p)
		switch p.op() {
		case iscsi.OpSCSIResponse:
			var r iscsi.SCSIResponse
			require.NoError(t, r.Parse(&p.bhs))
			require.Equal(t, uint8(scsi.Good), r.Status)
			answered[r.ITT]++
		case iscsi.OpTMFResponse:
			tmfs++
		}
	}
	for i, itt := range itts {
		if i%4 < 2 {
			assert.Zero(t, answered[itt], "task %d was aborted", i)
		} else {
			assert.Equal(t, 1, answered[itt], "task %d", i)
		}
	}
}

// TestAResetEndsTasksOfNoUnit: a target reset spares other sessions' tasks of units that its sender does not see,
// and none of its own (RFC 7143, 11.5.1): the initiator takes none of their responses after that of the function.
func TestAResetEndsTasksOfNoUnit(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, "InitialR2T=No")
	c.clearUA(0)
	itt := c.command(iscsi.SCSICommand{Write: true, EDTL: 1024, LUN: 1 << 32}, write10(0, 2), make([]byte, 512))
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMTargetWarmReset, RefITT: iscsi.ReservedTag})
	c.tmfResponse(iscsi.TMComplete)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.DataOut{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 512}).Put(&bhs)
	c.push(bhs, nil, make([]byte, 512))
	c.ping()
}
