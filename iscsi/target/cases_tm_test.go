package target

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Field reports of docs/cases.md about task management that need a store which hangs or several
// initiators. TM-03 is in cases_test.go and in package iser.

// TestCaseTM02: a store that never answers, with aborts and a reset of its unit, costs the other unit
// nothing, in the same session or another; a new login works, and the log names the tags.
func TestCaseTM02(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{chunks: 1024})
		c, d := b.login(tcpTraits), b.other()
		c.clearUA(0, 1)
		d.clearUA(0, 1)
		b.slow.Hold()
		window := c.max - c.cmdSN
		stuck := []uint32{c.read(1, 0, 1), c.read(1, 8, 1)}
		synctest.Wait()
		for i, itt := range stuck {
			c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, LUN: lun(1), RefITT: itt, RefCmdSN: c.cmdSN - 2 + iscsi.CmdSN(i)})
		}
		for range 20 {
			start := time.Now()
			c.alive()
			d.alive()
			require.Zero(t, time.Since(start))
			time.Sleep(time.Second)
		}
		e := b.asker() // it logs in, and has work done
		e.clearUA(0)
		e.alive()
		time.Sleep(taskManagementTimeout)
		c.tmfResponse(iscsi.TMRejected)
		c.tmfResponse(iscsi.TMRejected)
		for _, itt := range stuck {
			assert.Contains(t, b.lines.String(), fmt.Sprintf("itt=\"[%d]\"", itt))
		}
		c.alive()
		assert.Equal(t, window-2, c.max-c.cmdSN, "the stuck commands keep their slots, and no other is lost")
		b.slow.Release()
		synctest.Wait()
		c.alive()
		assert.Equal(t, window, c.max-c.cmdSN)
	})
}

// TestCaseTM08: the target is removed while a function waits for a command in the store, whose connection
// has died.
func TestCaseTM08(t *testing.T) {
	for _, f := range []iscsi.TMFunction{iscsi.TMAbortTask, iscsi.TMLogicalUnitReset} {
		t.Run(f.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, benchConfig{})
				c, d := b.login(tcpTraits), b.other()
				c.clearUA(0, 1)
				d.clearUA(0, 1)
				itt := b.stuck(c)
				held := d.command(iscsi.SCSICommand{Final: true, LUN: lun(1), Attr: iscsi.AttrOrdered}, nil, nil)
				c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(1), RefITT: itt, RefCmdSN: c.cmdSN - 1})
				d.tmf(iscsi.TMFRequest{Function: f, LUN: lun(1), RefITT: held, RefCmdSN: d.cmdSN - 1})
				synctest.Wait()
				c.dm.set(func() { c.dm.err = io.EOF })
				removed := make(chan error, 1)
				go func() { removed <- b.s.RemoveTarget(testTarget) }()
				synctest.Wait()
				require.Empty(t, removed, "a command of it runs")
				b.slow.Release()
				require.NoError(t, <-removed)
				assert.Empty(t, b.s.Sessions())
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				assert.NoError(t, b.device.LU(1).Exclusive(ctx, func() error { return nil }), "no task is left on the unit")
			})
		})
	}
}

// TestCaseTM10: what a reset by one initiator does to all: unit attentions, the end of an SPC-2
// reservation and none of a persistent one. (There is no prevention of medium removal to end: the medium
// is not removable.)
func TestCaseTM10(t *testing.T) {
	for _, f := range []iscsi.TMFunction{iscsi.TMLogicalUnitReset, iscsi.TMTargetWarmReset} {
		t.Run(f.String(), func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c, d := b.asker(), b.login(tcpTraits)
			c.clearUA(0, 1)
			d.clearUA(0, 1)
			reset := func() {
				c.tmf(iscsi.TMFRequest{Function: f, LUN: lun(1)})
				c.tmfResponse(iscsi.TMComplete)
				for _, x := range []*client{c, d} {
					x.checkCondition(x.command(iscsi.SCSICommand{Final: true, LUN: lun(1)}, nil, nil), 0x06_29_03)
				}
			}
			d.good(d.command(iscsi.SCSICommand{Final: true, LUN: lun(1)}, []byte{0x16, 0, 0, 0, 0, 0}, nil)) // RESERVE(6)
			r, _ := c.response(c.read(1, 0, 1))
			require.Equal(t, uint8(scsi.ReservationConflict), r.Status)
			reset()
			c.good(c.read(1, 0, 1))

			d.good(d.persist(persistRegister, 0, 7))
			d.good(d.persist(1, 7, 0)) // RESERVE, write exclusive
			reset()
			r, _ = c.response(c.writes(1, 0, pattern(512, 1)))
			assert.Equal(t, uint8(scsi.ReservationConflict), r.Status, "kept")
			d.good(d.writes(1, 0, pattern(512, 1)))
		})
	}
}
