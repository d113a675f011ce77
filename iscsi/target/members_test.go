package target

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func severalConnections(c *iscsi.Config) { c.MaxConnections = 4 }

// joinRequest is the login of another connection of c's session.
func (c *client) joinRequest(cid uint16) iscsi.LoginRequest {
	r := wholeLogin
	r.TSIH, r.CID = c.tsih, cid
	return r
}

// join adds a connection to c's session. Its CmdSN is 0 until somebody sets it.
func (b *bench) join(c *client, cid uint16) *client {
	b.t.Helper()
	d := b.joining(c, cid)
	r, _ := d.loginResponse()
	require.Equal(b.t, iscsi.LoginSuccess, r.Status)
	require.Equal(b.t, c.tsih, r.TSIH)
	return d
}

// joining sends the login of another connection of c's session.
func (b *bench) joining(c *client, cid uint16) *client {
	d := &client{t: b.t, dm: b.connect(tcpTraits), cmdSN: c.cmdSN, stat: 50, itt: 0x1000 * (uint32(cid) + 1), tsih: c.tsih}
	d.loginRequest(c.joinRequest(cid), loginLines(tcpTraits)...)
	return d
}

// at makes the next command of c number sn.
func (c *client) at(sn iscsi.CmdSN) *client {
	c.cmdSN = sn
	return c
}

func (c *client) logout(reason iscsi.LogoutReason, cid uint16) {
	var bhs [iscsi.BHSSize]byte
	(&iscsi.LogoutRequest{Immediate: true, Reason: reason, CID: cid, ITT: 4, CmdSN: c.cmdSN}).Put(&bhs)
	c.push(bhs, nil, nil)
}

func (c *client) logoutResponse(want uint8) {
	c.t.Helper()
	p := c.expect(iscsi.OpLogoutResp)
	var r iscsi.LogoutResponse
	require.NoError(c.t, r.Parse(&p.bhs))
	require.Equal(c.t, want, r.Response)
	require.Equal(c.t, c.stat, r.StatSN)
	c.stat++
}

func (c *client) writes(lunNo, lba int, data []byte) uint32 {
	return c.command(iscsi.SCSICommand{Final: true, Write: true, LUN: lun(lunNo), EDTL: uint32(len(data))}, write10(lba, len(data)/512), data)
}

func (c *client) good(itt uint32) {
	c.t.Helper()
	r, _ := c.response(itt)
	require.Zero(c.t, r.Status)
}

func TestAConnectionJoinsItsSession(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=8")
	one.clearUA(0)
	two := &client{t: t, dm: b.connect(tcpTraits), cmdSN: one.cmdSN, stat: 50, itt: 0x9000}
	two.loginRequest(one.joinRequest(7), "InitiatorName="+testInitiator, "TargetName="+testTarget,
		"MaxRecvDataSegmentLength=4096", "InitialR2T=No", "MaxBurstLength=512", "ErrorRecoveryLevel=2", "HeaderDigest=CRC32C,None")
	p := two.next()
	var r iscsi.LoginResponse
	require.NoError(t, r.Parse(&p.bhs))
	two.stat++
	assert.Equal(t, iscsi.LoginSuccess, r.Status)
	assert.Equal(t, one.tsih, r.TSIH)
	assert.Equal(t, one.cmdSN, r.ExpCmdSN, "the session's")
	assert.Equal(t, one.max, r.MaxCmdSN)
	assert.Equal(t, "TargetPortalGroupTag=1\x00InitialR2T=Irrelevant\x00MaxBurstLength=Irrelevant\x00ErrorRecoveryLevel=Irrelevant\x00"+
		"HeaderDigest=None\x00MaxRecvDataSegmentLength=262144\x00", string(p.data))

	data := pattern(1024, 3)
	two.good(two.writes(0, 4, data)) // no unit attention: it is the same nexus
	itt := one.at(two.cmdSN).read(0, 4, 2)
	one.good(itt)
	one.dm.set(func() { assert.Equal(t, data, one.dm.memory[itt]) })
	list := b.s.Sessions()
	require.Len(t, list, 1)
	assert.Equal(t, 2, list[0].Connections)
	assert.EqualValues(t, 4, list[0].Params.MaxConnections)
	assert.EqualValues(t, 256<<10, list[0].Params.MaxBurstLength, "of the first login")
}

func TestConnectionsOfASessionAreBounded(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=2")
	b.join(one, 1)
	three := b.joining(one, 2)
	r, _ := three.loginResponse()
	assert.Equal(t, iscsi.LoginTooManyConns, r.Status)
	three.closes()
	one.clearUA(0)

	single := b.loginAs(tcpTraits, isid(5)) // has not offered MaxConnections
	more := &client{t: t, dm: b.connect(tcpTraits), stat: 50}
	req := isid(5)
	req.TSIH, req.CID = single.tsih, 1
	more.loginRequest(req, loginLines(tcpTraits)...)
	r, _ = more.loginResponse()
	assert.Equal(t, iscsi.LoginTooManyConns, r.Status)
	single.clearUA(0)
}

// TestCommandsOfAllConnectionsAreDeliveredInOrder: CmdSN counts over the session (RFC 7143, 4.2.2.1). Each
// write overwrites the one before.
func TestCommandsOfAllConnectionsAreDeliveredInOrder(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections, chunks: 256})
	conns := []*client{b.login(tcpTraits, "MaxConnections=4")}
	conns[0].clearUA(0)
	for cid := range uint16(3) {
		conns = append(conns, b.join(conns[0], cid+1))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	next := conns[0].cmdSN
	for round := range 40 {
		n := rng.IntN(12) + 1
		require.False(t, next.Add(uint32(n)).After(conns[0].max), "the window has room")
		type sent struct {
			c   *client
			itt uint32
		}
		list := make([]sent, n)
		for _, i := range rng.Perm(n) {
			c := conns[rng.IntN(4)]
			list[i] = sent{c, c.at(next.Add(uint32(i))).writes(0, 9, pattern(512, byte(round*16+i)))}
		}
		next = next.Add(uint32(n))
		for c := range conns { // responses of a connection come in CmdSN order
			for _, s := range list {
				if s.c == conns[c] {
					s.c.good(s.itt)
				}
			}
		}
		itt := conns[0].at(next).read(0, 9, 1)
		next++
		conns[0].good(itt)
		conns[0].dm.set(func() {
			require.Equal(t, pattern(512, byte(round*16+n-1)), conns[0].dm.memory[itt], "the last write of round %d", round)
		})
	}
}

// TestAFailedConnectionEndsItsSession: ErrorRecoveryLevel 0 (RFC 7143, 7.1.5).
func TestAFailedConnectionEndsItsSession(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4")
	two, three := b.join(one, 1), b.join(one, 2)
	two.dm.set(func() { two.dm.err = io.ErrUnexpectedEOF })
	one.closes()
	three.closes()
	b.sessionsEnd(0)
	late := b.joining(one, 3)
	r, _ := late.loginResponse()
	assert.Equal(t, iscsi.LoginNoSession, r.Status)
}

// wholeWindow checks that no slot of the window has been lost.
func (b *bench) wholeWindow(c *client) {
	b.t.Helper()
	for range 3 {
		c.good(c.read(0, 0, 1))
	}

	assert.EqualValues(b.t, b.s.live(c.tsih).win.size, c.max.Sub(c.cmdSN)+1)
}

func TestLogoutOfOneOfSeveralConnections(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4")
	one.clearUA(0, 1)
	two := b.join(one, 1)
	// Two has a command under way, one whose response has not left, and one that waits for its turn.
	two.dm.set(func() { two.dm.holdGets, two.dm.keepAll = true, true })
	two.at(one.cmdSN)
	two.command(iscsi.SCSICommand{Final: true, Write: true, EDTL: 512}, write10(0, 1), nil)
	two.good(two.read(0, 0, 1))
	two.at(two.cmdSN+2).read(0, 0, 1)
	two.logout(iscsi.LogoutConnection, 1)
	two.logoutResponse(logoutClosed)
	two.dm.set(func() { two.dm.err = io.EOF })
	require.Eventually(t, func() bool { return b.s.Sessions()[0].Connections == 1 }, testTimeout, time.Millisecond)
	one.at(two.cmdSN - 3) // the two between
	one.good(one.read(0, 0, 1))
	one.good(one.read(0, 0, 1))
	one.cmdSN++ // dropped with its connection
	b.wholeWindow(one)
	b.join(one, 1)
	assert.NotContains(t, b.lines.String(), "session failed")
}

func TestLogoutOfTheSessionEndsAllConnections(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4")
	two := b.join(one, 1)
	two.logout(iscsi.LogoutSession, 0)
	two.logoutResponse(logoutClosed)
	one.closes()
	two.dm.set(func() { two.dm.err = io.EOF })
	b.sessionsEnd(0)
	assert.NotContains(t, b.lines.String(), "session failed")
}

// TestNobodyJoinsASessionThatHasLoggedOut: with its last connection a session is closed, though that connection
// still lingers (RFC 7143, 11.14). A second loop would share without a lock what is said to have one owner.
func TestNobodyJoinsASessionThatHasLoggedOut(t *testing.T) {
	for _, limit := range []string{"1", "4"} {
		for _, cid := range []uint16{0, 1} {
			b := newBench(t, benchConfig{neg: severalConnections})
			one := b.login(tcpTraits, "MaxConnections="+limit)
			one.logout(iscsi.LogoutConnection, 0)
			one.logoutResponse(logoutClosed)
			late := b.joining(one, cid)
			r, _ := late.loginResponse()
			assert.Equal(t, iscsi.LoginNoSession, r.Status, "connection %d of %s", cid, limit)
			late.closes()
			one.dm.set(func() { one.dm.err = io.EOF })
			b.sessionsEnd(0)
		}
	}
}

// TestAFunctionOfAConnectionThatIsGoneKeepsNoSlot: one that waits for a store when its connection ends.
func TestAFunctionOfAConnectionThatIsGoneKeepsNoSlot(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4")
	one.clearUA(0, 1)
	two := b.join(one, 9)
	b.slow.Hold()
	two.at(one.cmdSN).read(1, 0, 1)
	b.slow.Held(t, 1)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.TMFRequest{Function: iscsi.TMAbortTaskSet, LUN: lun(1), ITT: 77, CmdSN: two.cmdSN}).Put(&bhs)
	two.push(bhs, nil, nil)
	one.at(two.cmdSN + 1).expect(iscsi.OpNOPIn) // the function has come: it asks here what has been acknowledged
	one.logout(iscsi.LogoutConnection, 9)
	two.closes()
	b.slow.Release()
	p := one.next()
	for p.op() == iscsi.OpNOPIn { // slots may have opened before
		p = one.next()
	}
	require.Equal(t, iscsi.OpLogoutResp, p.op())
	one.stat++
	b.wholeWindow(one)
}

// TestLogoutOfAnotherConnection: the answer comes when nothing of that connection can happen any more.
func TestLogoutOfAnotherConnection(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4")
	one.clearUA(0, 1)
	two := b.join(one, 9)
	b.slow.Hold()
	two.at(one.cmdSN).writes(1, 0, pattern(512, 1))
	b.slow.Held(t, 1)
	one.at(two.cmdSN).logout(iscsi.LogoutConnection, 9)
	two.closes()
	one.alive()
	b.slow.Release()
	one.logoutResponse(logoutClosed)
	one.dm.set(func() { assert.Equal(t, 1, b.slow.Writes(), "it landed before the answer") })
	one.logout(iscsi.LogoutConnection, 9)
	one.logoutResponse(logoutNoCID)
	b.wholeWindow(one)
}

func TestLogoutOfAnotherConnectionGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, benchConfig{neg: severalConnections})
		one := b.login(tcpTraits, "MaxConnections=4")
		one.clearUA(1)
		two := b.join(one, 9)
		b.slow.Hold()
		two.at(one.cmdSN).read(1, 0, 1)
		synctest.Wait()
		one.at(two.cmdSN).logout(iscsi.LogoutConnection, 9)
		time.Sleep(reinstateTimeout + 2*housekeeping)
		one.logoutResponse(logoutCleanup)
		b.slow.Release()
	})
}

// TestConnectionReinstatement: a login with a live CID ends the old connection, and is answered once nothing
// of that can happen any more (RFC 7143, 6.3.4). The session, its nexus, and its other connections go on.
func TestConnectionReinstatement(t *testing.T) {
	for _, limit := range []string{"1", "4"} {
		t.Run(limit, func(t *testing.T) {
			b := newBench(t, benchConfig{neg: severalConnections})
			one := b.login(tcpTraits, "MaxConnections="+limit)
			one.clearUA(0, 1)
			var mate *client
			if limit != "1" {
				mate = b.join(one, 1)
			}
			b.slow.Hold()
			one.writes(1, 0, pattern(512, 1))
			b.slow.Held(t, 1)
			again := b.joining(one, 0)
			one.closes()
			again.dm.set(func() { assert.Empty(t, again.dm.out, "the old write still runs") })
			b.slow.Release()
			r, _ := again.loginResponse()
			require.Equal(t, iscsi.LoginSuccess, r.Status)
			require.Equal(t, one.tsih, r.TSIH)
			require.Equal(t, one.cmdSN, r.ExpCmdSN)
			again.dm.set(func() { assert.Equal(t, 1, b.slow.Writes(), "it landed before the answer") })
			itt := again.read(1, 0, 1) // no unit attention
			again.good(itt)
			again.dm.set(func() { assert.Equal(t, pattern(512, 1), again.dm.memory[itt]) })
			b.wholeWindow(again)
			if mate != nil {
				mate.at(again.cmdSN).good(mate.read(0, 0, 1))
			}
			require.Len(t, b.s.Sessions(), 1)
			assert.NotContains(t, b.lines.String(), "session failed")
		})
	}
}

// TestAnEmptySessionEnds: its only connection was to be replaced, and the new one is gone, or another port
// takes over the session.
func TestAnEmptySessionEnds(t *testing.T) {
	for _, takeover := range []bool{false, true} {
		b := newBench(t, benchConfig{})
		one := b.login(tcpTraits)
		one.clearUA(1)
		b.slow.Hold()
		one.read(1, 0, 1)
		b.slow.Held(t, 1)
		again := b.joining(one, 0)
		one.closes()
		again.dm.set(func() { again.dm.err = io.EOF })
		if takeover {
			fresh := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7}
			fresh.loginRequest(wholeLogin, loginLines(tcpTraits)...)
			b.slow.Release()
			r, _ := fresh.loginResponse()
			require.Equal(t, iscsi.LoginSuccess, r.Status)
			require.NotEqual(t, one.tsih, r.TSIH)
			b.sessionsEnd(1)
			continue
		}
		b.slow.Release()
		b.sessionsEnd(0)
	}
}

// TestSessionReinstatementEndsAllConnections: the new login is answered when the last store is done with the
// last connection of the old session.
func TestSessionReinstatementEndsAllConnections(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4")
	one.clearUA(1)
	two := b.join(one, 1)
	b.slow.Hold()
	two.at(one.cmdSN).writes(1, 0, pattern(512, 1))
	b.slow.Held(t, 1)
	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7}
	c.loginRequest(wholeLogin, loginLines(tcpTraits)...)
	one.closes()
	two.closes()
	c.dm.set(func() { assert.Empty(t, c.dm.out) })
	b.slow.Release()
	r, _ := c.loginResponse()
	require.Equal(t, iscsi.LoginSuccess, r.Status)
	c.dm.set(func() { assert.Equal(t, 1, b.slow.Writes()) })
	b.sessionsEnd(1)
}

// TestTaskManagementReachesOtherConnections: in every state of a task.
func TestTaskManagementReachesOtherConnections(t *testing.T) {
	for _, st := range tmStates {
		for _, f := range []iscsi.TMFunction{iscsi.TMAbortTask, iscsi.TMAbortTaskSet, iscsi.TMLogicalUnitReset, iscsi.TMNexusReset} {
			t.Run(st.name+"/"+f.String(), func(t *testing.T) {
				b := newBench(t, benchConfig{neg: severalConnections})
				one := b.login(tcpTraits, "MaxConnections=4", "InitialR2T=No", "iSCSIProtocolLevel=2")
				one.clearUA(0, 1)
				two := b.join(one, 1)
				itt := st.start(b, two.at(one.cmdSN))
				one.at(two.cmdSN).tmf(iscsi.TMFRequest{Function: f, LUN: lun(1), RefITT: itt, RefCmdSN: one.cmdSN - 1})
				if st.finish != nil {
					one.alive()
					st.finish(b, two)
				}
				want := iscsi.TMComplete
				if st.responds {
					two.good(itt)
					if f == iscsi.TMAbortTask {
						want = iscsi.TMNoTask
					}
				}
				if two.stat > 51 && want == iscsi.TMComplete { // something has been answered there
					one.ping() // no answer yet
					two.pong(51)
					two.pong(two.stat)
				}
				one.tmfResponse(want)
				two.dm.set(func() { two.dm.holdGets = false })
				two.dm.releaseAll()
				two.cmdSN = one.cmdSN
				switch f {
				case iscsi.TMLogicalUnitReset:
					two.checkCondition(two.read(1, 0, 1), 0x06_29_03)
				case iscsi.TMNexusReset:
					two.checkCondition(two.read(1, 0, 1), 0x06_29_07)
					two.checkCondition(two.read(0, 0, 1), 0x06_29_07)
				}
				two.good(two.read(1, 0, 1))
				b.wholeWindow(one.at(two.cmdSN))
			})
		}
	}
}

// pong answers a ping, having seen all up to StatSN sn.
func (c *client) pong(sn iscsi.StatSN) {
	c.t.Helper()
	p := c.expect(iscsi.OpNOPIn)
	var in iscsi.NOPIn
	require.NoError(c.t, in.Parse(&p.bhs))
	require.NotEqualValues(c.t, iscsi.ReservedTag, in.TTT)
	require.Equal(c.t, c.stat, in.StatSN)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.NOPOut{Immediate: true, ITT: iscsi.ReservedTag, TTT: in.TTT, CmdSN: c.cmdSN, ExpStatSN: sn}).Put(&bhs)
	c.push(bhs, nil, nil)
}

// TestAFunctionWaitsForCommandsThatItHasOvertaken: a command that was sent before an abort of its task set is
// aborted with it, though it comes later, on another connection (RFC 7143, 4.2.3.3).
func TestAFunctionWaitsForCommandsThatItHasOvertaken(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	one := b.login(tcpTraits, "MaxConnections=4", "InitialR2T=No")
	one.clearUA(0, 1)
	two := b.join(one, 1)
	first := one.cmdSN
	one.at(first + 2).tmf(iscsi.TMFRequest{Function: iscsi.TMAbortTaskSet, LUN: lun(1)})
	one.at(first + 1)
	read := one.read(0, 0, 1) // of another unit, and held until the one before has come
	one.at(first + 2).ping()
	two.at(first).command(iscsi.SCSICommand{Write: true, EDTL: 1024, LUN: lun(1)}, write10(0, 2), make([]byte, 512))
	one.good(read)
	one.tmfResponse(iscsi.TMComplete)
	b.wholeWindow(one.at(first + 2))
}

// TestConnectionsUnderStress: three connections of one session come and go by logout while all of them write
// and read, every one in its own part of both units; and the window is whole at the end.
func TestConnectionsUnderStress(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections, chunks: 128})
	lead := b.login(tcpTraits, "MaxConnections=4")
	lead.clearUA(0, 1)
	var mu sync.Mutex
	next := lead.cmdSN
	number := func(c *client, f func()) { // numbers are given in the order of sending, as initiators do
		mu.Lock()
		defer mu.Unlock()
		c.cmdSN = next
		f()
		next = c.cmdSN
	}
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	var wg sync.WaitGroup
	for cid := range uint16(3) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(cid), 7))
			c := b.join(lead, cid+1)
			for i := range rounds {
				data := make([]byte, 512)
				binary.BigEndian.PutUint64(data, rng.Uint64())
				unit, lba := i&1, int(cid)*100+rng.IntN(50)
				var itt uint32
				number(c, func() { itt = c.writes(unit, lba, data) })
				c.good(itt)
				number(c, func() { itt = c.read(unit, lba, 1) })
				c.good(itt)
				c.dm.set(func() {
					if !assert.ObjectsAreEqual(data, c.dm.memory[itt]) {
						t.Errorf("connection %d read what it has not written", cid)
					}
				})
				if rng.IntN(8) == 0 {
					c.logout(iscsi.LogoutConnection, cid+1)
					c.logoutResponse(logoutClosed)
					c = b.join(lead, cid+1)
				}
			}
		})
	}
	wg.Wait()
	lead.cmdSN = next
	b.wholeWindow(lead)
	require.Len(t, b.s.Sessions(), 1)
	assert.NotContains(t, b.lines.String(), "session failed")
}

// TestASingleConnectionTakesNoLock: what several connections need costs the others nothing.
func TestASingleConnectionTakesNoLock(t *testing.T) {
	b := newBench(t, benchConfig{neg: severalConnections})
	c := b.login(tcpTraits)
	c.clearUA(0)
	ses := b.s.live(c.tsih)
	assert.False(t, ses.shared)
	ses.mu.Lock()
	defer ses.mu.Unlock()
	c.good(c.writes(0, 0, pattern(512, 1)))
	c.good(c.read(0, 0, 1))
}

// TestTSIHsAreUnique: 0 is none, those of live sessions are passed over, and those of ended ones come again (field
// report RC-03: login 65536 and later).
func TestTSIHsAreUnique(t *testing.T) {
	b := newBench(t, benchConfig{})
	at := func(last uint16) {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		b.s.lastTSIH = last
	}
	at(65534)
	assert.EqualValues(t, 65535, b.loginAs(tcpTraits, isid(1)).tsih)
	one := b.loginAs(tcpTraits, isid(2))
	assert.EqualValues(t, 1, one.tsih)
	at(65534)
	assert.EqualValues(t, 2, b.loginAs(tcpTraits, isid(3)).tsih)
	one.dm.set(func() { one.dm.err = io.EOF })
	b.sessionsEnd(2)
	at(0)
	assert.EqualValues(t, 1, b.loginAs(tcpTraits, isid(4)).tsih)
}
