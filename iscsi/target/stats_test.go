package target

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatsOutliveTheirSession: every command is counted once, under what it was and how it was answered, and stays
// counted when its session has ended.
func TestStatsOutliveTheirSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(0)
		c.response(c.read(0, 0, 8))
		c.response(c.read(0, 8, 8))
		c.response(c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512}, write10(0, 1), make([]byte, 512)))
		c.response(c.command(iscsi.SCSICommand{Final: true, Read: true, EDTL: 512}, read10(1<<30, 1), nil)) // out of range
		synctest.Wait()

		check := func(sessions, conns int) {
			t.Helper()
			s := b.s.Stats()
			assert.Equal(t, map[scsi.Status]uint64{scsi.Good: 2, scsi.CheckCondition: 1}, s.Commands[scsi.ClassRead])
			assert.Equal(t, map[scsi.Status]uint64{scsi.Good: 1}, s.Commands[scsi.ClassWrite])
			assert.Equal(t, map[scsi.Status]uint64{scsi.CheckCondition: 1}, s.Commands[scsi.ClassOther], "the unit attention")
			assert.EqualValues(t, 3, s.Latency[scsi.ClassRead].Count())
			assert.EqualValues(t, 1, s.Latency[scsi.ClassWrite].Count())
			assert.Equal(t, []uint64{2 * 4096, 512}, []uint64{s.ReadBytes, s.WrittenBytes})
			assert.Equal(t, [16]uint64{5: 1, 6: 1}, s.Sense)
			assert.Equal(t, map[iscsi.LoginStatus]uint64{iscsi.LoginSuccess: 1}, s.Logins)
			assert.Equal(t, []int{sessions, conns, 0}, []int{s.Sessions, s.Connections, s.InFlight})
			assert.Equal(t, b.pool.Chunks()<<16, int(s.Buffers))
		}
		check(1, 1)
		used := b.s.Stats().FreeBuffers
		c.logout(iscsi.LogoutSession, 0)
		c.logoutResponse(logoutClosed)
		c.closes()
		b.sessionsEnd(0)
		synctest.Wait()
		check(0, 0)
		s := b.s.Stats()
		assert.Greater(t, s.FreeBuffers, used, "the session's part of the reserve is back")
		assert.Equal(t, s.Buffers, s.FreeBuffers)
		assert.Equal(t, []uint64{1, 0, 0, 0}, []uint64{s.LoggedOut, s.Closed, s.Lost, s.NoLogin})
	})
}

// TestLatencyIsUntilTheAnswerHasLeft: a store that takes its time is seen in the command's latency and in the store's
// own, and a command is in flight as long as that.
func TestLatencyIsUntilTheAnswerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(1)
		b.slow.Hold()
		itt := c.read(1, 0, 8)
		synctest.Wait()
		s := b.s.Stats()
		assert.Equal(t, []int{1, 1}, []int{s.InFlight, s.Working})
		assert.Equal(t, 1, b.s.Sessions()[0].InFlight)
		time.Sleep(3 * time.Second)
		c.dm.set(func() { c.dm.keepAll = true })
		b.slow.Release()
		c.response(itt)
		synctest.Wait()
		s = b.s.Stats()
		assert.Equal(t, []int{1, 0}, []int{s.InFlight, s.Working}, "answered, and not left yet")
		assert.Zero(t, s.Latency[scsi.ClassRead].Count())
		assert.Equal(t, 3*time.Second, s.Store[scsi.ClassRead].Sum)
		assert.EqualValues(t, 1, s.Store[scsi.ClassRead].Count())
		time.Sleep(2 * time.Second)
		c.dm.releaseAll()
		synctest.Wait()
		s = b.s.Stats()
		assert.Zero(t, s.InFlight)
		assert.Equal(t, 5*time.Second, s.Latency[scsi.ClassRead].Sum)
		assert.EqualValues(t, 1, s.Latency[scsi.ClassRead].Buckets[bucketOf(5*time.Second)])
	})
}

// TestAbortedCommandsAreNotAnswers, nor are they forgotten: what came is what was answered and what was aborted.
func TestAbortedCommandsAreNotAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(1)
		c.response(c.read(1, 8, 8))
		b.slow.Hold()
		itt := c.read(1, 0, 8)
		synctest.Wait()
		c.tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTask, LUN: lun(1), RefITT: itt, RefCmdSN: c.cmdSN - 1})
		synctest.Wait()
		b.slow.Release()
		c.tmfResponse(iscsi.TMComplete)
		synctest.Wait()
		s := b.s.Stats()
		assert.EqualValues(t, 1, s.Aborted)
		assert.Equal(t, map[scsi.Status]uint64{scsi.Good: 1}, s.Commands[scsi.ClassRead])
		assert.Zero(t, s.InFlight)
		assert.Equal(t, map[Function]uint64{{iscsi.TMAbortTask, iscsi.TMComplete}: 1}, s.Functions)
	})
}

// TestEventsAreCountedAndTold: what happens to connections and what a store does wrong is a log line with its kind, and a
// count.
func TestEventsAreCountedAndTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{allow: []string{"iqn.2026-01.test:host"}})
		ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
		require.NoError(t, err)
		bad, err := backstore.OpenOver("fault", backstore.Options{"store": "ram", "rules": "error read"}, ram)
		require.NoError(t, err)
		defer func() { assert.NoError(t, bad.Close()) }()
		_, err = b.device.Add(2, bad, scsi.LUConfig{ID: "bad"})
		require.NoError(t, err)

		c := b.login(tcpTraits)
		c.clearUA(2)
		r, _ := c.response(c.read(2, 0, 8))
		require.Equal(t, uint8(scsi.CheckCondition), r.Status)
		assert.EqualValues(t, 1, b.s.Stats().Sense[senseMediumError])
		assert.Contains(t, b.lines.String(), `msg="read failed: sense 3/11/00" event=store_error`)
		for range 2 * limiterBurst {
			c.response(c.read(2, 0, 8))
		}
		assert.Equal(t, limiterBurst, strings.Count(b.lines.String(), "event=store_error"), "a store that fails on and on is not told of on and on")

		b.logsIn(b.connect(tcpTraits), "iqn.2026-01.test:stranger", isid(9))
		gone := b.connect(tcpTraits)
		gone.set(func() { gone.err = io.EOF })
		c.dm.set(func() { c.dm.err = errors.New("cable") })
		b.sessionsEnd(0)
		synctest.Wait()
		s := b.s.Stats()
		assert.Equal(t, map[iscsi.LoginStatus]uint64{iscsi.LoginSuccess: 1, iscsi.LoginForbidden: 1}, s.Logins)
		assert.Equal(t, []uint64{0, 0, 1, 1}, []uint64{s.LoggedOut, s.Closed, s.Lost, s.NoLogin})
		for _, kind := range []string{"login", "login_refused", "no_login", "session_lost"} {
			assert.Equal(t, 1, strings.Count(b.lines.String(), "event="+kind+" "), kind)
		}
	})
}
