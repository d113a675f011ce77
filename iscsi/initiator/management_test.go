package initiator

import (
	"errors"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPingsOfTheTarget(t *testing.T) { // checklist 154
	b := newBench(1)
	b.feed(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: 0x1234, LUN: 7, StatSN: 100, ExpCmdSN: 1, MaxCmdSN: 200}, nil)
	require.Len(t, b.dm.sent, 1)
	var nop iscsi.NOPOut
	require.NoError(t, nop.Parse(&b.dm.sent[0].bhs))
	assert.Equal(t, iscsi.NOPOut{Immediate: true, LUN: 7, ITT: iscsi.ReservedTag, TTT: 0x1234, CmdSN: 1, ExpStatSN: 100}, nop)
	assert.Equal(t, iscsi.CmdSN(200), b.seq.MaxCmdSN)
	assert.Equal(t, iscsi.StatSN(100), b.seq.StatSN, "not used up")
	b.feed(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: iscsi.ReservedTag, StatSN: 100}, nil)
	assert.Len(t, b.dm.sent, 1, "only a window update")
}

func TestOwnPings(t *testing.T) { // checklist 155
	b := newBench(1)
	b.timing.ping = 5 * time.Second
	assert.Equal(t, b.now.Add(5*time.Second), b.deadline())
	b.now = b.now.Add(5 * time.Second)
	b.round()
	require.Len(t, b.dm.sent, 1)
	var nop iscsi.NOPOut
	require.NoError(t, nop.Parse(&b.dm.sent[0].bhs))
	assert.True(t, nop.Immediate)
	assert.Zero(t, nop.DataLength)
	assert.Equal(t, uint32(iscsi.ReservedTag), nop.TTT)
	b.now = b.now.Add(time.Second)
	b.feed(&iscsi.NOPIn{ITT: nop.ITT, TTT: iscsi.ReservedTag, StatSN: b.nextStat()}, nil)
	assert.Equal(t, b.now.Add(5*time.Second), b.deadline(), "answered")

	b.now = b.now.Add(5 * time.Second)
	b.round()
	require.Len(t, b.dm.sent, 2)
	b.now = b.now.Add(9 * time.Second) // something else comes: the peer lives
	b.feed(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: iscsi.ReservedTag}, nil)
	b.now = b.now.Add(9 * time.Second)
	b.round()
	require.NoError(t, b.err)
	assert.Equal(t, b.now.Add(time.Second), b.deadline())
	b.now = b.now.Add(time.Second)
	b.round()
	assert.ErrorContains(t, b.err, "NOP-Out was not answered")
}

func TestManagementOfCallers(t *testing.T) {
	b := newBench(4)
	ping := b.ask(requestPing, Command{})
	b.now = b.now.Add(time.Millisecond)
	b.feed(&iscsi.NOPIn{ITT: iscsi.ITTOf(&b.dm.sent[0].bhs), TTT: iscsi.ReservedTag, StatSN: b.nextStat()}, nil)
	assert.True(t, ping.ended)
	assert.Equal(t, time.Millisecond, ping.elapsed)

	for _, lun := range []iscsi.LUN{1, 2} {
		b.ask(requestCommand, Command{LUN: lun, CDB: make([]byte, 6)})
	}
	reset := &request{kind: requestTMF, function: iscsi.TMLogicalUnitReset, lun: 2}
	b.submit(b.now, letter{r: reset})
	b.ask(requestCommand, Command{LUN: 2, CDB: make([]byte, 6)}) // behind the reset
	req := b.lastTMF(t)
	assert.Equal(t, iscsi.TMFRequest{Immediate: true, Function: iscsi.TMLogicalUnitReset, LUN: 2, ITT: req.ITT, RefITT: iscsi.ReservedTag, CmdSN: 3, ExpStatSN: b.seq.StatSN}, req)
	b.told = nil
	b.answerTMF(req.ITT, iscsi.TMComplete)
	require.Len(t, b.told, 2)
	assert.ErrorIs(t, b.told[0].err, ErrAborted)
	assert.Same(t, reset, b.told[1])
	assert.Equal(t, b.dm.commands[1:2], b.dm.forgotten, "only what the reset has met")

	refused := &request{kind: requestTMF, function: iscsi.TMTargetColdReset}
	b.submit(b.now, letter{r: refused})
	b.round()
	b.answerTMF(b.lastTMF(t).ITT, iscsi.TMNotSupported)
	assert.Equal(t, iscsi.TMNotSupported, refused.response)
	assert.Len(t, b.dm.forgotten, 1)
	require.NoError(t, b.err)
}

// TestFunctionsOfLevel2: "function complete" of a query ends nothing, an I_T nexus reset ends all.
func TestFunctionsOfLevel2(t *testing.T) {
	b := newBench(4)
	for _, lun := range []iscsi.LUN{1, 2} {
		b.ask(requestCommand, Command{LUN: lun, CDB: make([]byte, 6)})
	}
	b.told = nil
	for _, f := range []iscsi.TMFunction{iscsi.TMQueryTaskSet, iscsi.TMQueryAsyncEvent, iscsi.TMNexusReset} {
		assert.Empty(t, b.dm.forgotten)
		b.told = nil
		r := &request{kind: requestTMF, function: f, lun: 1}
		b.submit(b.now, letter{r: r})
		b.round()
		req := b.lastTMF(t)
		assert.Equal(t, f, req.Function)
		b.answerTMF(req.ITT, iscsi.TMComplete)
		assert.Contains(t, b.told, r)
	}
	assert.Len(t, b.told, 3)
	assert.Equal(t, b.dm.commands, b.dm.forgotten)
	_, err := (&Session{}).TaskManagement(t.Context(), iscsi.TMQueryTask, 0)
	assert.ErrorContains(t, err, "not for callers")
}

func TestManagementWithoutAnswer(t *testing.T) {
	b := newBench(1)
	r := b.ask(requestTMF, Command{})
	b.submit(b.now, letter{r, errors.New("cancelled")})
	b.round()
	assert.Equal(t, []*request{r}, b.told)
	assert.Zero(t, b.managementFreed, "the slot waits for the answer")
	b.now = b.now.Add(managementTimeout)
	b.round()
	assert.ErrorContains(t, b.err, "was not answered")
}

// TestAPingWaitsForDataThatFlows: while bytes of a read come, nobody is dead (field report RC-08).
func TestAPingWaitsForDataThatFlows(t *testing.T) {
	b := newBench(2)
	b.timing.ping = 10 * time.Second
	b.timing.command = time.Hour
	b.ask(requestCommand, Command{CDB: []byte{0x28, 9: 0}, In: make([]byte, 4096)})
	require.Len(t, b.dm.commands, 1)
	b.now = b.now.Add(b.timing.ping)
	b.round()
	require.True(t, b.slots[slotKeepalive].used, "pinged")
	for range 5 {
		b.dm.commands[0].DM.Offset += 512
		b.now = b.now.Add(managementTimeout)
		b.round()
		require.NoError(t, b.err)
	}
	b.now = b.now.Add(managementTimeout)
	b.round()
	assert.ErrorContains(t, b.err, "was not answered")
}

func TestLogoutByTheTargetsWish(t *testing.T) {
	b := newBench(2)
	b.ask(requestCommand, testUnitReady)
	b.feed(&iscsi.Async{Event: iscsi.AsyncLogoutReq, Parameter3: 2, StatSN: b.nextStat()}, nil)
	late := b.ask(requestCommand, testUnitReady)
	assert.ErrorIs(t, late.err, ErrTargetLogout)
	assert.Empty(t, b.dm.sent, "the command in progress may end")
	assert.Equal(t, b.now.Add(2*time.Second), b.deadline())
	b.release(b.dm.commands[0])
	b.respond(b.dm.cmdPDUs[0].ITT)
	require.Len(t, b.dm.sent, 1)
	var req iscsi.LogoutRequest
	require.NoError(t, req.Parse(&b.dm.sent[0].bhs))
	assert.Equal(t, iscsi.LogoutRequest{Immediate: true, ITT: req.ITT, CmdSN: 2, ExpStatSN: b.seq.StatSN}, req)
	b.feed(&iscsi.LogoutResponse{ITT: req.ITT, StatSN: b.nextStat()}, nil)
	assert.ErrorIs(t, b.err, ErrTargetLogout)
}

func TestLogoutDoesNotWaitForSlowCommands(t *testing.T) {
	b := newBench(2)
	r := b.ask(requestCommand, testUnitReady)
	b.feed(&iscsi.Async{Event: iscsi.AsyncLogoutReq, Parameter3: 2}, nil)
	b.now = b.now.Add(2 * time.Second)
	b.round()
	require.Len(t, b.dm.sent, 1)
	b.now = b.now.Add(logoutTimeout)
	b.round()
	assert.ErrorIs(t, b.err, ErrTargetLogout)
	assert.ErrorIs(t, r.err, ErrTargetLogout)
}

func TestOtherAsyncMessagesAreNoted(t *testing.T) {
	for _, ev := range []iscsi.AsyncEvent{iscsi.AsyncSCSI, iscsi.AsyncNegotiation, iscsi.AsyncTasksEnded, iscsi.AsyncVendor} {
		b := newBench(1)
		b.feed(&iscsi.Async{Event: ev, StatSN: 100}, []byte("anything"))
		assert.NoError(t, b.err)
		assert.Equal(t, iscsi.StatSN(101), b.seq.StatSN)
	}
}
