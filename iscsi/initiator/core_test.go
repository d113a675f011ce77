package initiator

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errDead = errors.New("the wire is cut")

// A bench is a core on a fake datamover, at a time of its own.
type bench struct {
	*core
	dm     *fakeDM
	now    time.Time
	stat   iscsi.StatSN
	told   []*request
	failed bool
}

func newBench(depth int) *bench {
	log := logrus.New()
	log.SetOutput(io.Discard)
	b := &bench{dm: newFake(), now: time.Unix(1000, 0), stat: 100}
	b.core = newCore(b.dm, log, depth, timing{command: 30 * time.Second})
	b.cmdSN = 1
	b.seq = iscsi.Sequence{StatSN: 100, ExpCmdSN: 1, MaxCmdSN: 128}
	b.heard = b.now
	return b
}

// round does what the loop does behind the events of a round, and its end.
func (b *bench) round() {
	if b.err == nil {
		b.tick(b.now)
	}
	if b.err == nil {
		b.pump(b.now)
		_ = b.dm.Flush()
	}
	if b.err != nil && !b.failed {
		b.failed = true
		_ = b.dm.Close()
		b.end(b.err)
	}
	b.told = append(b.told, b.finished...)
	b.finished = b.finished[:0]
}

func (b *bench) ask(kind requestKind, c Command) *request {
	r := &request{kind: kind, cmd: c}
	b.submit(b.now, letter{r: r})
	b.round()
	return r
}

func (b *bench) feed(p interface{ Put(*[iscsi.BHSSize]byte) }, data []byte) {
	ev := pduEvent(p, data)
	b.event(b.now, &ev)
	b.round()
}

func (b *bench) respond(itt uint32) { b.feed(&iscsi.SCSIResponse{ITT: itt, StatSN: b.nextStat()}, nil) }

func (b *bench) nextStat() iscsi.StatSN { b.stat++; return b.stat - 1 }

func (b *bench) release(t *iscsi.Transfer) {
	b.event(b.now, &iscsi.Event{Kind: iscsi.EventReleased, Transfer: t})
	b.round()
}

func (b *bench) answerTMF(itt uint32, r iscsi.TMResponse) {
	b.feed(&iscsi.TMFResponse{ITT: itt, Response: r, StatSN: b.nextStat()}, nil)
}

// lastTMF is the last task management request sent.
func (b *bench) lastTMF(t *testing.T) iscsi.TMFRequest {
	for i := len(b.dm.sent) - 1; i >= 0; i-- {
		if iscsi.OpcodeOf(&b.dm.sent[i].bhs) == iscsi.OpTMFRequest {
			var req iscsi.TMFRequest
			require.NoError(t, req.Parse(&b.dm.sent[i].bhs))
			return req
		}
	}
	require.Fail(t, "no task management request was sent")
	return iscsi.TMFRequest{}
}

var testUnitReady = Command{CDB: make([]byte, 6)}

func TestCancelledBeforeSentNeverGoesOut(t *testing.T) {
	b := newBench(4)
	b.seq.MaxCmdSN = 0 // closed
	first := b.ask(requestCommand, testUnitReady)
	second := b.ask(requestCommand, testUnitReady)
	b.submit(b.now, letter{first, errors.New("cancelled")})
	b.round()
	assert.Equal(t, []*request{first}, b.told)
	assert.Len(t, b.free, 3)
	b.feed(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: iscsi.ReservedTag, ExpCmdSN: 1, MaxCmdSN: 10, StatSN: b.stat}, nil)
	require.Len(t, b.dm.commands, 1)
	assert.Same(t, second.task, b.taskOf(b.dm.commands[0]))
	assert.Empty(t, b.dm.sent, "no abort, no answer to a NOP-In that asks for none")
}

func TestWindowIsNeverExceeded(t *testing.T) {
	for _, start := range []iscsi.CmdSN{1, 0xfffffffe} { // LG-04: across the wrap
		for _, width := range []uint32{1, 2, 16} {
			b := newBench(64)
			b.cmdSN, b.seq.ExpCmdSN, b.seq.MaxCmdSN = start, start, start.Add(width-1)
			for range 64 {
				b.ask(requestCommand, testUnitReady)
			}
			for done := range 64 {
				require.Len(t, b.dm.commands, min(done+int(width), 64), "window of %d after %d", width, done)
				tr := b.dm.commands[done]
				exp := start.Add(uint32(done) + 1)
				b.release(tr)
				b.feed(&iscsi.SCSIResponse{ITT: b.dm.cmdPDUs[done].ITT, StatSN: b.nextStat(), ExpCmdSN: exp, MaxCmdSN: exp.Add(width - 1)}, nil)
			}
			require.NoError(t, b.err)
			require.Len(t, b.told, 64)
			for i, p := range b.dm.cmdPDUs {
				assert.Equal(t, start.Add(uint32(i)), p.CmdSN)
			}
		}
	}
}

func TestWindowClosedToNothingOpensAgain(t *testing.T) {
	b := newBench(4)
	b.feed(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: iscsi.ReservedTag, ExpCmdSN: 129, MaxCmdSN: 128}, nil)
	b.cmdSN = 129
	b.ask(requestCommand, testUnitReady)
	assert.Empty(t, b.dm.commands)
	b.feed(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: iscsi.ReservedTag, ExpCmdSN: 129, MaxCmdSN: 129}, nil)
	assert.Len(t, b.dm.commands, 1)
}

func TestWindowIgnoresNonsense(t *testing.T) { // checklist 156
	b := newBench(1)
	b.window(50, 100)
	before := b.seq
	b.window(50, 48) // MaxCmdSN < ExpCmdSN-1
	assert.Equal(t, before, b.seq)
	b.window(40, 90) // backwards
	assert.Equal(t, iscsi.CmdSN(50), b.seq.ExpCmdSN)
	assert.Equal(t, iscsi.CmdSN(128), b.seq.MaxCmdSN)
}

func TestStatSNIsFollowedAcrossTheWrap(t *testing.T) { // LG-04
	b := newBench(32)
	b.stat, b.seq.StatSN = 0xfffffffa, 0xfffffffa
	for i := range 20 {
		b.ask(requestCommand, testUnitReady)
		assert.Equal(t, iscsi.StatSN(0xfffffffa).Add(uint32(i)), b.dm.cmdPDUs[i].ExpStatSN)
		b.release(b.dm.commands[i])
		b.respond(b.dm.cmdPDUs[i].ITT)
	}
	assert.Equal(t, iscsi.StatSN(14), b.seq.StatSN)
	require.NoError(t, b.err)
}

func TestITTIsNotReusedSoon(t *testing.T) { // checklist 143, ISER.md 4.6 rule 7
	b := newBench(1)
	seen := map[uint32]bool{}
	for i := range 1000 {
		b.ask(requestCommand, testUnitReady)
		itt := b.dm.cmdPDUs[i].ITT
		require.False(t, seen[itt] || itt == iscsi.ReservedTag)
		seen[itt] = true
		b.release(b.dm.commands[i])
		b.respond(itt)
		b.seq.MaxCmdSN++
	}
	for slot := range slotCount {
		assert.NotEqual(t, uint32(iscsi.ReservedTag), makeITT(1<<20-1, indexManagement|slot))
	}
	assert.NotEqual(t, uint32(iscsi.ReservedTag), makeITT(1<<20-1, indexAbort|(maxQueueDepth-1)))
}

func TestCommandCarriesWhatWasAsked(t *testing.T) {
	b := newBench(4)
	in, out := make([]byte, 10), make([]byte, 20)
	b.ask(requestCommand, Command{LUN: 5, CDB: []byte{1, 2, 3}, In: in, Attr: iscsi.AttrOrdered})
	b.ask(requestCommand, Command{CDB: []byte{4}, Out: out})
	long := make([]byte, 32)
	long[0], long[31] = 0x7f, 9
	b.ask(requestCommand, Command{CDB: long})
	want := []iscsi.SCSICommand{
		{Final: true, Read: true, Attr: iscsi.AttrOrdered, LUN: 5, EDTL: 10, CmdSN: 1, CDB: [16]byte{1, 2, 3}},
		{Final: true, Write: true, Attr: iscsi.AttrSimple, EDTL: 20, CmdSN: 2, CDB: [16]byte{4}},
		{Final: true, Attr: iscsi.AttrSimple, CmdSN: 3, CDB: [16]byte{0x7f}, AHSLength: 5},
	}
	for i := range want {
		want[i].ExpStatSN, want[i].ITT = 100, b.dm.commands[i].ITT
	}
	assert.Equal(t, want, b.dm.cmdPDUs)
	assert.Equal(t, [][]byte{in}, b.dm.commands[0].In)
	assert.Equal(t, [][]byte{out}, b.dm.commands[1].Out)
	ahs, err := iscsi.ParseAHS(b.dm.ahs)
	require.NoError(t, err)
	assert.Equal(t, long[16:], ahs.ExtendedCDB)
}

func TestAbortNamesItsTask(t *testing.T) {
	b := newBench(2)
	b.ask(requestCommand, testUnitReady)
	r := b.ask(requestCommand, Command{LUN: 9, CDB: make([]byte, 6)})
	b.submit(b.now, letter{r, errors.New("cancelled")})
	b.round()
	assert.Equal(t, iscsi.TMFRequest{
		Immediate: true, Function: iscsi.TMAbortTask, LUN: 9, ITT: b.dm.commands[1].ITT | indexAbort,
		RefITT: b.dm.commands[1].ITT, CmdSN: 3, RefCmdSN: 2, ExpStatSN: 100,
	}, b.lastTMF(t))
}

func TestFewAbortsAtATime(t *testing.T) {
	b := newBench(20)
	for range 20 {
		b.ask(requestCommand, testUnitReady)
	}
	b.now = b.now.Add(30 * time.Second)
	b.round()
	require.Len(t, b.told, 20, "all callers go at once")
	answered := 0
	for answered < 20 {
		require.Len(t, b.dm.sent, min(answered+maxAborts, 20))
		b.answerTMF(iscsi.ITTOf(&b.dm.sent[answered].bhs), iscsi.TMComplete)
		answered++
	}
	require.Len(t, b.dm.forgotten, 20)
	for _, tr := range b.dm.commands {
		b.release(tr)
	}
	assert.Len(t, b.free, 20)
	require.NoError(t, b.err)
}

func TestAbortStillQueuedIsDroppedByTheResponse(t *testing.T) {
	b := newBench(maxAborts + 1)
	for range maxAborts + 1 {
		b.ask(requestCommand, testUnitReady)
	}
	b.now = b.now.Add(30 * time.Second)
	b.round()
	last := b.dm.commands[maxAborts]
	b.respond(last.ITT)
	b.release(last)
	b.answerTMF(iscsi.ITTOf(&b.dm.sent[0].bhs), iscsi.TMComplete)
	assert.Len(t, b.dm.sent, maxAborts)
	assert.Len(t, b.free, 1)
}

// TestUnexpectedPDUsEndTheSession is checklist 150.
func TestUnexpectedPDUsEndTheSession(t *testing.T) {
	header := func(op iscsi.Opcode) []byte {
		h := make([]byte, iscsi.BHSSize)
		h[0] = byte(op)
		return h
	}
	for name, p := range map[string]struct {
		pdu  interface{ Put(*[iscsi.BHSSize]byte) }
		data []byte
	}{
		"response of unknown ITT":     {&iscsi.SCSIResponse{ITT: 0x77000}, nil},
		"response of no slot":         {&iscsi.SCSIResponse{ITT: 0x77fff}, nil},
		"response without ITT":        {&iscsi.SCSIResponse{ITT: iscsi.ReservedTag}, nil},
		"NOP-In of unknown ITT":       {&iscsi.NOPIn{ITT: 5, TTT: iscsi.ReservedTag}, nil},
		"TMF response of unknown ITT": {&iscsi.TMFResponse{ITT: 5}, nil},
		"logout response unasked":     {&iscsi.LogoutResponse{ITT: 5}, nil},
		"Data-In":                     {&iscsi.DataIn{ITT: 5}, nil},
		"R2T":                         {&iscsi.R2T{ITT: 5}, nil},
		"login response":              {&iscsi.LoginResponse{}, nil},
		"text response":               {&iscsi.TextResponse{ITT: 5}, nil},
		"initiator's opcode":          {&iscsi.NOPOut{}, nil},
		"reject without header":       {&iscsi.Reject{Reason: iscsi.RejectProtocolError}, nil},
		"reject of 47 bytes":          {&iscsi.Reject{Reason: iscsi.RejectProtocolError}, make([]byte, 47)},
		"reject of a logout":          {&iscsi.Reject{Reason: iscsi.RejectProtocolError}, header(iscsi.OpLogoutReq)},
		"reject of a Data-Out":        {&iscsi.Reject{Reason: iscsi.RejectProtocolError}, header(iscsi.OpDataOut)},
		"reject of an unknown task":   {&iscsi.Reject{Reason: iscsi.RejectProtocolError}, header(iscsi.OpSCSICommand)},
		"connection will be dropped":  {&iscsi.Async{Event: iscsi.AsyncConnDrop}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(2)
			r := b.ask(requestCommand, testUnitReady)
			b.feed(p.pdu, p.data)
			require.Error(t, b.err)
			assert.Equal(t, []*request{r}, b.told)
			assert.ErrorIs(t, r.err, b.err)
			assert.Equal(t, 1, b.dm.closed, "before the caller is told")
		})
	}
	b := newBench(1)
	ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: &[iscsi.BHSSize]byte{0x3c}}
	b.event(b.now, &ev)
	assert.ErrorContains(t, b.err, "unexpected opcode 0x3c")
	b = newBench(1)
	ev = pduEvent(&iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: 1}, nil)
	ev.DigestError = true
	b.event(b.now, &ev)
	assert.ErrorContains(t, b.err, "data digest")
}

func TestRejectedCommandEndsAlone(t *testing.T) {
	b := newBench(2)
	r := b.ask(requestCommand, testUnitReady)
	other := b.ask(requestCommand, testUnitReady)
	var bhs [iscsi.BHSSize]byte
	b.dm.cmdPDUs[0].Put(&bhs)
	b.feed(&iscsi.Reject{Reason: iscsi.RejectInvalidField, StatSN: b.nextStat()}, bhs[:])
	require.NoError(t, b.err)
	require.Equal(t, []*request{r}, b.told)
	var rej *iscsi.RejectError
	require.ErrorAs(t, r.err, &rej)
	assert.Equal(t, iscsi.RejectInvalidField, rej.Reason)
	assert.Equal(t, b.dm.commands[:1], b.dm.detached)
	assert.Equal(t, b.dm.commands[:1], b.dm.forgotten)
	b.release(b.dm.commands[0])
	assert.Len(t, b.free, 1)
	assert.False(t, other.ended)
	b.respond(b.dm.cmdPDUs[0].ITT)
	assert.Error(t, b.err, "a response behind a Reject")
}

func TestRejectMeetsAnAbort(t *testing.T) {
	b := newBench(1)
	r := b.ask(requestCommand, testUnitReady)
	b.submit(b.now, letter{r, errors.New("cancelled")})
	b.round()
	var bhs [iscsi.BHSSize]byte
	b.dm.cmdPDUs[0].Put(&bhs)
	b.feed(&iscsi.Reject{Reason: iscsi.RejectInvalidField, StatSN: b.nextStat()}, bhs[:])
	assert.Len(t, b.dm.detached, 1)
	assert.Len(t, b.dm.forgotten, 1)
	b.release(b.dm.commands[0])
	assert.Empty(t, b.free, "the abort is still out")
	b.answerTMF(b.lastTMF(t).ITT, iscsi.TMNoTask)
	require.NoError(t, b.err)
	assert.Len(t, b.free, 1)
	assert.Len(t, b.told, 1)
}

func TestRejectedPingEndsAlone(t *testing.T) {
	b := newBench(1)
	r := b.ask(requestPing, Command{})
	b.feed(&iscsi.Reject{Reason: iscsi.RejectNotSupported, StatSN: b.nextStat()}, b.dm.sent[0].bhs[:])
	require.NoError(t, b.err)
	assert.Equal(t, []*request{r}, b.told)
	assert.Equal(t, 1, b.managementFreed)
}

func TestReleaseOfNothingPanics(t *testing.T) {
	b := newBench(1)
	assert.Panics(t, func() { b.release(&iscsi.Transfer{}) })
	assert.Panics(t, func() { b.release(&iscsi.Transfer{Tag: 99}) })
	assert.Panics(t, func() { b.release(&b.tasks[0].transfer) })
}

func TestListKeepsOrder(t *testing.T) {
	var l taskList
	tasks := make([]task, 5)
	for i := range tasks {
		tasks[i].itt = uint32(i)
		l.push(&tasks[i])
	}
	l.unsent = &tasks[2]
	for _, i := range []int{2, 0, 4} {
		l.remove(&tasks[i])
	}
	var s strings.Builder
	for t := l.first; t != nil; t = t.next {
		s.WriteString(fmt.Sprint(t.itt))
	}
	assert.Equal(t, "13", s.String())
	assert.Same(t, &tasks[3], l.unsent)
	assert.Same(t, &tasks[3], l.last)
	l.remove(&tasks[1])
	l.remove(&tasks[3])
	assert.Equal(t, taskList{}, l)
}

// FuzzCore feeds PDUs of any content to a session with commands in progress.
func FuzzCore(f *testing.F) {
	for _, p := range []interface{ Put(*[iscsi.BHSSize]byte) }{
		&iscsi.SCSIResponse{ITT: 1 << indexBits, Status: 2}, &iscsi.NOPIn{ITT: iscsi.ReservedTag, TTT: 5}, &iscsi.TMFResponse{},
		&iscsi.Async{Event: iscsi.AsyncLogoutReq}, &iscsi.Reject{}, &iscsi.LogoutResponse{}, &iscsi.DataIn{},
	} {
		ev := pduEvent(p, make([]byte, 50))
		f.Add(append(ev.BHS[:], ev.Data...))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		b := newBench(4)
		for range 3 {
			b.ask(requestCommand, testUnitReady)
		}
		b.ask(requestPing, Command{})
		for len(in) >= iscsi.BHSSize && b.err == nil {
			ev := iscsi.Event{Kind: iscsi.EventPDU, BHS: (*[iscsi.BHSSize]byte)(append([]byte(nil), in[:iscsi.BHSSize]...))}
			in = in[iscsi.BHSSize:]
			n := min(int(ev.BHS[7]), len(in))
			ev.Data, in = append([]byte(nil), in[:n]...), in[n:]
			b.event(b.now, &ev)
			b.now = b.now.Add(time.Second)
			b.round()
		}
		b.fail(errDead)
		b.round()
		require.Len(t, b.told, 4, "each caller once")
	})
}
