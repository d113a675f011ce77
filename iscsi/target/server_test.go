package target

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func isid(n byte) iscsi.LoginRequest {
	r := wholeLogin
	r.ISID[5] = n
	return r
}

func (b *bench) sessionsEnd(n int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return len(b.s.Sessions()) == n }, testTimeout, time.Millisecond)
}

func TestSilentPeersDoNotBlockLogins(t *testing.T) { // field report LG-05
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		var silent []*fakeDM
		for i := range 200 {
			dm := b.connect(tcpTraits)
			silent = append(silent, dm)
			if i%5 == 0 { // one that has begun
				c := &client{t: t, dm: dm}
				r := wholeLogin
				r.Transit, r.Next = false, 0
				c.loginRequest(r, loginLines(tcpTraits)...)
			}
		}
		start := time.Now()
		for i := range 5 {
			c := b.loginAs(tcpTraits, isid(byte(i)))
			c.clearUA(0)
		}
		assert.Zero(t, time.Since(start), "good logins do not wait")
		synctest.Wait()
		closed := 0
		for _, dm := range silent {
			dm.set(func() {
				if dm.closed {
					closed++
				}
			})
		}
		// A good login takes the place of one more, until it is done.
		assert.InDelta(t, 200-defaultMaxLogins, closed, 5, "the oldest had to go")
		time.Sleep(defaultLoginTimeout + time.Second)
		synctest.Wait()
		for _, dm := range silent {
			dm.set(func() { assert.True(t, dm.closed) })
		}
		assert.Len(t, b.s.Sessions(), 5)
		assert.Less(t, len(b.lines.String()), 10000, "the log is rate-limited")
	})
}

func TestFirstPDUMustBeALogin(t *testing.T) { // field report SE-10
	b := newBench(t, benchConfig{})
	for op := range iscsi.Opcode(0x40) {
		if op == iscsi.OpLoginRequest {
			continue
		}
		c := &client{t: t, dm: b.connect(tcpTraits)}
		var bhs [iscsi.BHSSize]byte
		bhs[0] = byte(op)
		c.push(bhs, nil, nil)
		c.closes()
	}
	c := b.login(tcpTraits)
	c.clearUA(0)
}

func TestARefusalArrivesBeforeTheClose(t *testing.T) { // conformance 56
	b := newBench(t, benchConfig{})
	c := &client{t: t, dm: b.connect(tcpTraits)}
	c.loginRequest(wholeLogin, "InitiatorName="+testInitiator, "TargetName=iqn.2026-01.test:none")
	r, _ := c.loginResponse()
	assert.Equal(t, iscsi.LoginNotFound, r.Status)
	c.closes()
	assert.Contains(t, b.lines.String(), "login refused")
}

func TestSessionsAreBounded(t *testing.T) {
	b := newBench(t, benchConfig{config: Config{MaxSessions: 2}})
	b.loginAs(tcpTraits, isid(1))
	two := b.loginAs(tcpTraits, isid(2))
	c := &client{t: t, dm: b.connect(tcpTraits)}
	c.loginRequest(isid(3), loginLines(tcpTraits)...)
	r, _ := c.loginResponse()
	assert.Equal(t, iscsi.LoginOutOfResources, r.Status)
	c.closes()
	b.loginAs(tcpTraits, isid(2)) // in place of two
	two.closes()
	b.loginAs(tcpTraits, isid(1))
}

func TestReinstatementWaitsForRunningCommands(t *testing.T) { // conformance 62
	b := newBench(t, benchConfig{})
	old := b.login(tcpTraits)
	old.clearUA(1)
	b.slow.Hold()
	old.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1)}, write10(0, 1), pattern(512, 1))
	b.slow.Held(t, 1)

	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7}
	c.loginRequest(wholeLogin, loginLines(tcpTraits)...)
	old.closes()
	c.dm.set(func() { assert.Empty(t, c.dm.out, "the old write still runs") })
	b.slow.Release()
	r, _ := c.loginResponse()
	require.Equal(t, iscsi.LoginSuccess, r.Status)
	require.NotEqual(t, old.tsih, r.TSIH)
	c.dm.set(func() { assert.Equal(t, 1, b.slow.Writes(), "it landed before the answer") })
	c.clearUA(1)
	assert.Len(t, b.s.Sessions(), 1)
}

func TestReinstatementGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		old := b.login(tcpTraits)
		old.clearUA(1)
		b.slow.Hold()
		old.read(1, 0, 1)
		synctest.Wait()
		c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7}
		c.loginRequest(wholeLogin, loginLines(tcpTraits)...)
		time.Sleep(reinstateTimeout + time.Second)
		r, _ := c.loginResponse()
		assert.Equal(t, iscsi.LoginServiceUnavail, r.Status)
		c.closes()
		// Another port of the same initiator is not concerned.
		d := b.loginAs(tcpTraits, isid(9))
		d.clearUA(0)
		b.slow.Release()
		synctest.Wait()
		e := b.login(tcpTraits)
		e.clearUA(0)
	})
}

func TestManyLoginsOfOnePort(t *testing.T) { // field report RC-04
	b := newBench(t, benchConfig{chunks: 256})
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(rounds)))
			for range rounds {
				c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 1}
				c.loginRequest(wholeLogin, loginLines(tcpTraits)...)
				p := c.next()
				if p == nil {
					continue // a winner took its place at once
				}
				c.stat++
				for i := range 4 {
					c.read(i&1, 0, 8)
				}
				if rng.IntN(2) == 0 {
					c.dm.set(func() { c.dm.err = io.EOF })
				}
			}
		})
	}
	wg.Wait()
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	b.sessionsEnd(1)
}

func TestNothingIsLeftOfManySessions(t *testing.T) { // field report RC-03
	b := newBench(t, benchConfig{chunks: 256})
	rounds := 125
	if testing.Short() {
		rounds = 20
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range rounds {
				c := b.loginAs(tcpTraits, isid(byte(w)))
				if c.tsih == 0 {
					t.Error("TSIH 0")
				}
				c.clearUA(0)
				if i%2 == 0 {
					c.read(1, 0, 8)
					c.dm.set(func() { c.dm.err = io.ErrUnexpectedEOF })
					c.dm.waitFor(t, "close", func() bool { return c.dm.closed })
					continue
				}
				var bhs [iscsi.BHSSize]byte
				(&iscsi.LogoutRequest{Immediate: true, ITT: 4, CmdSN: c.cmdSN}).Put(&bhs)
				c.push(bhs, nil, nil)
				c.expect(iscsi.OpLogoutResp)
				c.dm.set(func() { c.dm.err = io.EOF })
			}
		})
	}
	wg.Wait()
	b.sessionsEnd(0)
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	assert.Empty(t, b.s.byKey)
	assert.Empty(t, b.s.logins)
	assert.Len(t, b.s.reserve.chunks, 128)
}

// TestSixteenSessionsShareASmallPool is field report WP-13: 4 MiB of buffers, 16 sessions, 32 commands
// each of 1 MiB. All are done, whoever waits.
func TestSixteenSessionsShareASmallPool(t *testing.T) {
	bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
		b := newBench(t, benchConfig{chunks: 64, config: Config{MaxTransfer: 1 << 20}})
		size := 1 << 20
		data := pattern(size, 7)
		var wg sync.WaitGroup
		for i := range 16 {
			c := b.loginAs(tr, isid(byte(i)), "InitialR2T=No")
			c.clearUA(0, 1)
			wg.Go(func() {
				todo, out := 32, map[uint32]bool{}
				if tr.RDMA {
					todo = 8 // the same again, for less time
				}
				for todo > 0 || len(out) > 0 {
					for todo > 0 && len(out) < 32 && !c.cmdSN.After(c.max) {
						c.itt++
						itt := c.itt
						out[itt] = true
						todo--
						c.dm.set(func() { c.dm.memory[itt] = data })
						c.command(iscsi.SCSICommand{
							Final: true, Write: true, EDTL: uint32(size), LUN: lun(todo & 1), ITT: itt,
						}, write10(0, size/512), data[:4096])
					}
					var r iscsi.SCSIResponse
					p := c.next()
					if p == nil || r.Parse(&p.bhs) != nil || r.Status != 0 || !out[r.ITT] {
						t.Errorf("session %d: %v %+v", i, p, r)
						return
					}
					delete(out, r.ITT)
					c.max = r.MaxCmdSN
				}
			})
		}
		wg.Wait()
	})
}

func TestASlowUnitDelaysNoOther(t *testing.T) {
	b := newBench(t, benchConfig{chunks: 1024, config: Config{Workers: 2}})
	slow, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
	require.NoError(t, err)
	other := &backstoretest.Gate{Store: slow} // may block, but does not
	_, err = b.device.Add(2, other, scsi.LUConfig{ID: "other"})
	require.NoError(t, err)
	c := b.login(tcpTraits)
	c.clearUA(0, 1, 2)
	b.slow.Hold()
	for range 16 {
		c.read(1, 0, 8)
	}
	b.slow.Held(t, 1)
	for _, n := range []int{2, 0, 2} {
		itt := c.read(n, 0, 8)
		r, _ := c.response(itt)
		require.Zero(t, r.Status)
	}
	b.slow.Release()
	for range 16 {
		c.expect(iscsi.OpSCSIResponse)
	}
}

func TestShutdownOfBusySessions(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	silent := b.loginAs(tcpTraits, isid(2)) // has sent nothing yet: gets nothing unasked
	disc := b.discovery(tcpTraits)
	b.slow.Hold()
	itt := c.read(1, 0, 8)
	b.slow.Held(t, 1)
	done := make(chan error)
	go func() { done <- b.s.Shutdown(context.Background()) }()
	p := c.expect(iscsi.OpAsync)
	assert.EqualValues(t, iscsi.AsyncLogoutReq, p.bhs[36])
	c.stat++
	silent.closes()
	disc.closes()
	select {
	case <-done:
		t.Fatal("a command still runs")
	case <-time.After(shutdownGrace + 100*time.Millisecond):
	}
	b.slow.Release()
	r, _ := c.response(itt)
	require.Zero(t, r.Status)
	c.isDropped()
	require.NoError(t, <-done)
	_, err := b.s.AddTarget(TargetConfig{Name: "iqn.2026-01.test:x", Device: b.device})
	assert.Error(t, err)
	assert.Error(t, b.s.Serve(newFakeListener("tcp", "192.0.2.1:1"), PortalConfig{}))
}

func TestShutdownCutsOffWhatTakesTooLong(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	c.dm.set(func() { c.dm.holdGets = true })
	itt := c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1024}, write10(0, 2), nil)
	c.dm.waitFor(t, "GetData", func() bool { return c.dm.gets[itt] != nil })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.s.Shutdown(ctx), context.DeadlineExceeded)
	require.NoError(t, b.s.Shutdown(context.Background()), "the second time is harmless")
}

func TestRemoveTargetEndsItsSessions(t *testing.T) { // field reports DI-11 and TM-08
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0, 1)
	b.slow.Hold()
	c.read(1, 0, 8)
	b.slow.Held(t, 1)
	c.tmf(iscsi.TMFRequest{Function: iscsi.TMLogicalUnitReset, LUN: lun(1)})
	done := make(chan error)
	go func() { done <- b.s.RemoveTarget(testTarget) }()
	c.isDropped()
	select {
	case <-done:
		t.Fatal("a command still runs")
	default:
	}
	b.slow.Release()
	require.NoError(t, <-done)
	assert.Contains(t, b.lines.String(), "target removed")
	d := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7}
	d.loginRequest(wholeLogin, loginLines(tcpTraits)...)
	r, _ := d.loginResponse()
	assert.Equal(t, iscsi.LoginNotFound, r.Status)
}

func TestIdleSessionsArePinged(t *testing.T) { // conformance 116
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(iserTraits)
		time.Sleep(2 * defaultPingInterval)
		c.dm.set(func() { assert.Len(t, c.dm.out, 1, "nothing before the first request") })
		c.clearUA(0)
		for range 3 {
			start := time.Now()
			time.Sleep(defaultPingInterval + time.Second)
			p := c.expect(iscsi.OpNOPIn)
			assert.LessOrEqual(t, time.Since(start), defaultPingInterval+time.Second)
			var in iscsi.NOPIn
			require.NoError(t, in.Parse(&p.bhs))
			assert.EqualValues(t, iscsi.ReservedTag, in.ITT)
			assert.NotEqualValues(t, iscsi.ReservedTag, in.TTT)
			assert.Zero(t, in.LUN)
			assert.Equal(t, c.stat, in.StatSN, "not used up")
			assert.Empty(t, p.data)
			var bhs [iscsi.BHSSize]byte
			(&iscsi.NOPOut{Immediate: true, ITT: iscsi.ReservedTag, TTT: in.TTT, CmdSN: c.cmdSN}).Put(&bhs)
			c.push(bhs, nil, nil)
		}
		for range 20 { // data flows: no ping
			time.Sleep(defaultPingInterval / 2)
			c.alive()
		}
		time.Sleep(defaultPingInterval + time.Second)
		c.expect(iscsi.OpNOPIn)
		time.Sleep(defaultPingTimeout + time.Second)
		c.closes()
		assert.Contains(t, b.lines.String(), "no answer to a ping")
	})
}

// TestABusyConnectionIsNotGivenUp: while what has been queued has not left, the answer to a ping cannot be due, and
// no ping is sent. A peer that takes nothing at all is dead after a while (field report RC-08).
func TestABusyConnectionIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(tcpTraits)
		c.clearUA(0)
		c.dm.set(func() { c.dm.stuffed = true })
		c.ping()
		time.Sleep(stallTimeout - time.Second)
		c.alive() // nothing came in between
		c.dm.set(func() { c.dm.stuffed = false })
		c.alive()
		time.Sleep(defaultPingInterval + time.Second)
		c.expect(iscsi.OpNOPIn)
		c.dm.set(func() { c.dm.stuffed = true }) // a slow link, full of read data and our ping
		c.alive()
		time.Sleep(defaultPingTimeout + time.Minute)
		c.alive()
		c.dm.set(func() { c.dm.stuffed = false })
		c.alive()
		time.Sleep(defaultPingTimeout - time.Second)
		c.alive()                                 // news of any kind prove life
		c.dm.set(func() { c.dm.holdGets = true }) // write data trickles in, and the answer to a ping would come behind it
		itt := c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512}, write10(0, 1), nil)
		time.Sleep(dataTimeout - time.Second)
		c.dm.set(func() { c.dm.holdGets = false; c.dm.finish(itt) })
		c.good(itt)
		c.dm.set(func() { c.dm.stuffed = true })
		c.alive()
		time.Sleep(stallTimeout + time.Second)
		c.closes()
		assert.Contains(t, b.lines.String(), "peer takes no data")
	})
}

func TestDiscoverySessionsAreLeftAlone(t *testing.T) { // conformance 66
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.discovery(iserTraits)
		c.sendTargets("All", 8192)
		time.Sleep(discoveryIdle - time.Second)
		c.ping()
		time.Sleep(discoveryIdle + time.Second)
		c.closes()
	})
}

func TestLogoutLingers(t *testing.T) {
	acknowledged := iserTraits
	acknowledged.Acknowledged = true
	for traits, linger := range map[iscsi.Traits]time.Duration{
		tcpTraits:    lingerTime, // the initiator closes first, if it does
		acknowledged: 0,          // the Logout Response has arrived
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, benchConfig{})
			c := b.login(traits)
			var bhs [iscsi.BHSSize]byte
			(&iscsi.LogoutRequest{Immediate: true, ITT: 4, CmdSN: c.cmdSN}).Put(&bhs)
			c.push(bhs, nil, nil)
			c.expect(iscsi.OpLogoutResp)
			start := time.Now()
			c.closes()
			assert.Equal(t, linger, time.Since(start))
		})
	}
}

func TestWriteDataThatNeverComes(t *testing.T) { // field report WP-04
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{config: Config{PingInterval: -1}})
		c := b.login(tcpTraits)
		c.clearUA(0)
		c.dm.set(func() { c.dm.holdGets = true })
		c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1024}, write10(0, 2), nil)
		for range 10 {
			time.Sleep(dataTimeout / 11)
			c.alive() // everything else goes on
		}
		time.Sleep(dataTimeout)
		c.closes()
		assert.Contains(t, b.lines.String(), "no data for write")
	})
}

// A panicStore panics on reads.
type panicStore struct{ backstore.Store }

func (panicStore) ReadAt([][]byte, int64) error { panic("out of cheese") }

func (s panicStore) Info() backstore.Info {
	i := s.Store.Info()
	i.NeverBlocks = false
	return i
}

func TestAPanicEndsOneSessionOnly(t *testing.T) {
	b := newBench(t, benchConfig{})
	ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
	require.NoError(t, err)
	_, err = b.device.Add(2, panicStore{ram}, scsi.LUConfig{ID: "panic"})
	require.NoError(t, err)
	c := b.login(tcpTraits)
	d := b.loginAs(tcpTraits, isid(2))
	c.clearUA(0, 2)
	d.clearUA(0)
	c.read(2, 0, 8) // with a worker
	c.closes()
	assert.Contains(t, b.lines.String(), "out of cheese")
	d.alive()

	e := b.loginAs(tcpTraits, isid(3))
	e.clearUA(0)
	e.dm.set(func() { // on the loop
		e.dm.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventReleased, Transfer: &iscsi.Transfer{Tag: 9999}}})
	})
	e.closes()
	assert.Contains(t, b.lines.String(), "names a transfer 9999 that is none")
	d.alive()
	b.sessionsEnd(1)
	require.NoError(t, b.device.Remove(2), "the panic has not left the unit in use")
	require.NoError(t, ram.Close())
}

func TestASessionThatNeverSpeaksEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{})
		c := b.login(iserTraits)
		time.Sleep(stallTimeout + time.Second)
		c.closes()
		assert.Contains(t, b.lines.String(), "nothing came")
	})
}

func TestACommandMayComeRightBehindTheLogin(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := &client{t: t, dm: b.connect(iserTraits), cmdSN: 100, stat: 7}
	var login, cmd [iscsi.BHSSize]byte
	r := wholeLogin
	r.CmdSN, r.ExpStatSN = c.cmdSN, c.stat
	r.Put(&login)
	data := text(loginLines(iserTraits)...)
	iscsi.SetDataLength(&login, uint32(len(data)))
	(&iscsi.SCSICommand{Final: true, ITT: 5, CmdSN: c.cmdSN}).Put(&cmd)
	c.dm.set(func() { // in one batch
		c.dm.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventPDU}, bhs: login, data: data})
		c.dm.push(fakeEvent{ev: iscsi.Event{Kind: iscsi.EventPDU}, bhs: cmd})
	})
	c.loginResponse()
	c.checkCondition(5, 0x06_29_00)
}

func TestImmediateCommandsBeyondBounds(t *testing.T) {
	b := newBench(t, benchConfig{chunks: 4}) // a window of 1
	c := b.login(tcpTraits)
	c.clearUA(1)
	b.slow.Hold()
	full := 0
	for i := range uint32(spareTasks + 3) {
		c.command(iscsi.SCSICommand{Final: true, Immediate: true, LUN: lun(1), Read: true, EDTL: 512, ITT: 1 + i}, read10(0, 1), nil)
	}
	c.ping2(&full)
	assert.Equal(t, 3, full)
	c.stat += iscsi.StatSN(full + 1)
	itt := c.read(0, 0, 1) // the window has its own
	c.checkCondition(itt, 0x06_29_00)
	b.slow.Release()
	for range spareTasks {
		p := c.expect(iscsi.OpSCSIResponse)
		require.Zero(t, p.bhs[3])
	}
}

// ping2 is ping that counts TASK SET FULL responses before the answer.
func (c *client) ping2(full *int) {
	c.t.Helper()
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: 0x9999, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
	c.push(bhs, nil, nil)
	for {
		p := c.next()
		require.NotNil(c.t, p)
		if p.op() == iscsi.OpNOPIn {
			return
		}
		require.Equal(c.t, byte(scsi.TaskSetFull), p.bhs[3])
		*full++
	}
}

func TestImmediateWritesWithoutBuffersAreRefused(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(1)
	hog, ok := b.pool.Get(nil, b.pool.Free()*arena.ChunkSize)
	require.True(t, ok)
	itt := c.command(iscsi.SCSICommand{Final: true, Immediate: true, Write: true, EDTL: 512, LUN: lun(1)}, write10(0, 1), make([]byte, 512))
	r, _ := c.response(itt)
	assert.Equal(t, uint8(scsi.TaskSetFull), r.Status)
	// One in the window has its place.
	itt = c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, LUN: lun(1)}, write10(0, 1), make([]byte, 512))
	r, _ = c.response(itt)
	assert.Zero(t, r.Status)
	b.pool.Put(hog)
}

func TestReadDataWaitsForRoom(t *testing.T) { // field report RC-08
	b := newBench(t, benchConfig{chunks: 256})
	c := b.login(tcpTraits)
	c.clearUA(0)
	c.dm.set(func() { c.dm.keepAll = true })
	for range 6 {
		c.read(0, 0, 2048) // 1 MiB
	}
	for range 2 {
		c.expect(iscsi.OpSCSIResponse)
		c.stat++
	}
	c.ping() // not behind 6 MiB
	c.dm.releaseAll()
	for range 4 {
		c.expect(iscsi.OpSCSIResponse)
	}
}

func TestNewNeedsAPool(t *testing.T) {
	assert.Panics(t, func() { New(Config{}) })
	pool, err := arena.New(arena.ChunkSize)
	require.NoError(t, err)
	s := New(Config{Pool: pool}) // too small for any session
	require.NoError(t, s.Shutdown(context.Background()))
	require.NoError(t, pool.Close())
}

func TestSessionInfo(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(iserTraits)
	c.clearUA(0)
	itt := c.read(0, 0, 8)
	c.response(itt)
	itt = c.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512}, write10(0, 1), make([]byte, 512))
	c.response(itt)
	i := b.s.Sessions()[0]
	assert.Equal(t, "iqn.2026-01.test:host iqn.2026-01.test:disk iser 192.0.2.9:40000",
		fmt.Sprint(i.Initiator, " ", i.Target, " ", i.Transport, " ", i.Remote))
	assert.Equal(t, []uint64{3, 4096, 512, 1, 0}, []uint64{i.Commands, i.ReadBytes, i.WrittenBytes, i.Errors, i.Rejects})
	assert.True(t, i.Params.RDMAExtensions)
	assert.Equal(t, c.tsih, i.TSIH)
}

func TestAPortalOutlivesFailedAccepts(t *testing.T) {
	b := newBench(t, benchConfig{})
	l := b.serve("tcp", "192.0.2.1:3260", PortalConfig{})
	l.conns <- nil
	dm := newFakeDM(tcpTraits)
	b.fakes = append(b.fakes, dm)
	l.conns <- dm
	c := &client{t: t, dm: dm, cmdSN: 100, stat: 7}
	c.loginRequest(wholeLogin, loginLines(tcpTraits)...)
	r, _ := c.loginResponse()
	require.Zero(t, r.Status)
	require.NoError(t, l.Close())
	require.Eventually(t, func() bool {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		return len(b.s.portals) == 0
	}, testTimeout, time.Millisecond)
	c.clearUA(0) // sessions stay
}
