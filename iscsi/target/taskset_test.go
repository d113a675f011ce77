package target

import (
	"fmt"
	"io"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// other logs in as another initiator port.
func (b *bench) other(lines ...string) *client {
	b.t.Helper()
	r := wholeLogin
	r.ISID[5]++
	return b.loginAs(tcpTraits, r, lines...)
}

// stuck makes a SIMPLE write of c stand in the store of unit 1 until b.slow.Release.
func (b *bench) stuck(c *client) (itt uint32) {
	b.t.Helper()
	b.slow.Hold()
	itt = c.command(iscsi.SCSICommand{
		Final: true, Write: true, EDTL: 512, LUN: lun(1), Attr: iscsi.AttrSimple,
	}, write10(0, 1), pattern(512, 1))
	b.slow.Held(b.t, 1)
	return itt
}

// TestOrderedWaitsForOlderTasksOfAllSessions: an ORDERED write starts when the older write of another
// session has been answered, and holds back what comes after it, but not HEAD OF QUEUE and not other
// units.
func TestOrderedWaitsForOlderTasksOfAllSessions(t *testing.T) {
	b := newBench(t, benchConfig{})
	c, d := b.login(tcpTraits, "InitialR2T=No"), b.other()
	c.clearUA(0, 1)
	d.clearUA(0, 1)
	first := b.stuck(d)
	// Its data comes in all three ways, two of them while it is held back.
	data := pattern(3*512, 2)
	c.dm.set(func() { c.dm.memory[0x50] = data })
	ordered := c.command(iscsi.SCSICommand{
		Write: true, EDTL: 3 * 512, LUN: lun(1), ITT: 0x50, Attr: iscsi.AttrOrdered,
	}, write10(0, 3), data[:512])
	var bhs [iscsi.BHSSize]byte
	(&iscsi.DataOut{ITT: ordered, TTT: iscsi.ReservedTag, Offset: 512}).Put(&bhs)
	c.push(bhs, nil, data[512:1024])
	(&iscsi.DataOut{Final: true, ITT: ordered, TTT: iscsi.ReservedTag, Offset: 1024, DataSN: 1}).Put(&bhs)
	c.push(bhs, nil, data[1024:])
	simple := c.read(1, 0, 3)
	head := c.command(iscsi.SCSICommand{Final: true, LUN: lun(1), Attr: iscsi.AttrHeadOfQueue}, nil, nil)
	r, _ := c.response(head)
	require.Zero(t, r.Status)
	c.alive() // on another unit
	c.dm.set(func() { assert.Empty(t, c.dm.memory[simple]) })

	b.slow.Release()
	r, _ = d.response(first)
	require.Zero(t, r.Status)
	r, _ = c.response(ordered)
	require.Zero(t, r.Status)
	r, _ = c.response(simple)
	require.Zero(t, r.Status)
	c.dm.set(func() { assert.Equal(t, data, c.dm.memory[simple], "the read saw the ordered write") })
}

// TestHeldCommandsHoldNoBuffers is the proof in memory.go: ordered writes fill the window, and the older one
// still gets all the buffers there are.
func TestHeldCommandsHoldNoBuffers(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	c.dm.set(func() { c.dm.holdGets = true })
	n := b.pool.Free() * arena.ChunkSize / 512
	older := c.command(iscsi.SCSICommand{
		Final: true, Write: true, EDTL: uint32(n * 512), LUN: lun(1), Attr: iscsi.AttrSimple,
	}, write10(0, n), nil)
	c.dm.waitFor(t, "GetData", func() bool { return c.dm.gets[older] != nil })
	var held []uint32
	for !c.cmdSN.After(c.max) {
		held = append(held, c.command(iscsi.SCSICommand{
			Final: true, Write: true, EDTL: uint32(n * 512), LUN: lun(1), Attr: iscsi.AttrOrdered,
		}, write10(0, n), nil))
	}
	require.NotEmpty(t, held)
	c.ping()
	c.dm.set(func() {
		require.Len(t, c.dm.gets, 1)
		c.dm.holdGets = false
		c.dm.finish(older)
	})
	for _, itt := range append([]uint32{older}, held...) {
		r, _ := c.response(itt)
		require.Zero(t, r.Status)
	}
}

// TestHeldWriteThatBreaksTheRules: what is wrong with a held write's data is answered in its turn.
func TestHeldWriteThatBreaksTheRules(t *testing.T) {
	for name, off := range map[string]uint32{"ended": 512, "still due": 0} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c := b.login(tcpTraits, "InitialR2T=No")
			c.clearUA(0, 1)
			first := b.stuck(c)
			itt := c.command(iscsi.SCSICommand{Write: true, EDTL: 1024, LUN: lun(1), Attr: iscsi.AttrOrdered}, write10(8, 2), pattern(512, 2))
			var bhs [iscsi.BHSSize]byte
			(&iscsi.DataOut{Final: off != 0, ITT: itt, TTT: iscsi.ReservedTag, Offset: off, DataSN: 7}).Put(&bhs)
			c.push(bhs, nil, pattern(512, 3))
			c.ping()
			b.slow.Release()
			r, _ := c.response(first)
			require.Zero(t, r.Status)
			if off == 0 {
				c.ping() // it waits for the rest
				(&iscsi.DataOut{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 512, DataSN: 1}).Put(&bhs)
				c.push(bhs, nil, pattern(512, 3))
			}
			c.checkCondition(itt, senseWrongAmount)
			itt = c.read(1, 8, 2)
			r, _ = c.response(itt)
			require.Zero(t, r.Status)
			c.dm.set(func() { assert.Equal(t, make([]byte, 1024), c.dm.memory[itt], "not written") })
		})
	}
}

// TestImmediateCommandsThatWouldBeHeldWithData: there is no place for it; what follows is ignored.
func TestImmediateCommandsThatWouldBeHeldWithData(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, "InitialR2T=No")
	c.clearUA(0, 1)
	first := b.stuck(c)
	itt := c.command(iscsi.SCSICommand{
		Immediate: true, Write: true, EDTL: 1024, LUN: lun(1), Attr: iscsi.AttrOrdered,
	}, write10(8, 2), pattern(512, 2))
	r, _ := c.response(itt)
	assert.Equal(t, uint8(scsi.TaskSetFull), r.Status)
	assert.EqualValues(t, 1024, r.Residual)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.DataOut{Final: true, ITT: itt, TTT: iscsi.ReservedTag, Offset: 512}).Put(&bhs)
	c.push(bhs, nil, pattern(512, 2))
	c.ping()
	// Without data it waits as others do.
	itt = c.command(iscsi.SCSICommand{Immediate: true, Final: true, LUN: lun(1), Attr: iscsi.AttrOrdered}, nil, nil)
	c.ping()
	b.slow.Release()
	c.response(first)
	r, _ = c.response(itt)
	assert.Zero(t, r.Status)
}

// TestSessionEndsWithHeldTasks: its connection dies while tasks of it are held back, or hold others back;
// the other session goes on, and nothing of the dead one is written.
func TestSessionEndsWithHeldTasks(t *testing.T) {
	b := newBench(t, benchConfig{})
	c, d := b.login(tcpTraits), b.other()
	c.clearUA(0, 1)
	d.clearUA(0, 1)
	first := b.stuck(c)
	for i := range 4 {
		d.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1), Attr: iscsi.AttrOrdered}, write10(8+i, 1), pattern(512, 2))
	}
	d.ping()
	later := c.read(1, 8, 4)
	c.ping()
	d.dm.set(func() { d.dm.err = io.EOF })
	d.dm.waitFor(t, "close", func() bool { return d.dm.closed })
	b.slow.Release()
	c.responses(first, later)
	c.dm.set(func() { assert.Equal(t, make([]byte, 2048), c.dm.memory[later]) })
}

// responses takes good responses in any order.
func (c *client) responses(itts ...uint32) {
	c.t.Helper()
	want := map[uint32]bool{}
	for _, i := range itts {
		want[i] = true
	}
	for len(want) > 0 {
		p := c.expect(iscsi.OpSCSIResponse)
		var r iscsi.SCSIResponse
		require.NoError(c.t, r.Parse(&p.bhs))
		require.True(c.t, want[r.ITT], "response of %08x", r.ITT)
		require.Zero(c.t, r.Status)
		delete(want, r.ITT)
		c.stat++
		c.max = r.MaxCmdSN
	}
}

// TestACAIsRefused: NORMACA is 0, and an attribute that is none is no SIMPLE one.
func TestACAIsRefused(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	for attr := iscsi.AttrACA; attr < 8; attr++ {
		itt := c.command(iscsi.SCSICommand{Final: true, Attr: attr}, nil, nil)
		c.checkCondition(itt, 0x05_49_00)
	}
	c.alive()
}

// TestMixedAttributesAllEnd is many commands of all attributes at once from three sessions: all are answered.
func TestMixedAttributesAllEnd(t *testing.T) {
	b := newBench(t, benchConfig{chunks: 1024})
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			r := wholeLogin
			r.ISID[5] = byte(i)
			c := b.loginAs(tcpTraits, r)
			c.t = t
			c.clearUA(0, 1)
			for round := range 30 {
				var itts []uint32
				for k := range 8 {
					attr := iscsi.TaskAttr((round*3 + k*5 + i) % 4)
					if k%2 == 0 {
						itts = append(itts, c.command(iscsi.SCSICommand{Final: true, Read: true, EDTL: 512, LUN: lun(1), Attr: attr}, read10(k, 1), nil))
					} else {
						itts = append(itts, c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1), Attr: attr}, write10(k, 1), pattern(512, 9)))
					}
				}
				c.responses(itts...)
			}
		})
	}
}
