package cm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
)

func transcript(t *testing.T, w *world, want string) {
	t.Helper()
	want = strings.TrimSpace(strings.ReplaceAll(want, "\t", ""))
	require.Equal(t, want, strings.Join(w.log, "\n"))
}

func TestHandshakeAndFarewell(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.settle()
	w.a.step(cm.Disconnect{Conn: w.a.conn})
	w.pass(time.Minute)
	transcript(t, w, `
		active: REQ
		passive: new request
		passive: REP
		active: connected
		active: RTU
		passive: confirmed
		active: DREQ
		passive: disconnected
		passive: DREP
		active: freed
		passive: freed`)
	req, rep := w.p.conn.REQ, w.a.conn.REP
	assert.Equal(t, w.a.conn.REQ, req)
	assert.Equal(t, w.p.conn.REP, rep)
	assert.Equal(t, activeAddr, req.SrcAddr)
	assert.Equal(t, passiveAddr, req.DstAddr)
	assert.EqualValues(t, 0x0106<<16|port, req.ServiceID)
	assert.EqualValues(t, 0x200, rep.QPN)
	assert.Equal(t, "request", strings.TrimRight(string(req.Private[:]), "\x00"))
	assert.Equal(t, "reply", strings.TrimRight(string(rep.Private[:]), "\x00"))
	assert.Zero(t, w.a.m.Deadline())
	assert.Zero(t, w.p.m.Deadline())
}

// Whatever message is lost, both sides connect and part, within seconds, and nothing is left.
func TestEveryMessageLostOnce(t *testing.T) {
	for k := 1; k <= 8; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			w := newWorld(t)
			w.deliver = func(n int) int {
				if n == k {
					return 0
				}
				return 1
			}
			w.connect()
			w.pass(2 * time.Second)
			require.Equal(t, 1, w.a.news[cm.Connected])
			require.Equal(t, 1, w.p.news[cm.Confirmed])
			require.Equal(t, 1, w.p.news[cm.NewRequest])
			w.p.step(cm.Disconnect{Conn: w.p.conn})
			w.pass(2 * time.Second)
			require.Equal(t, 1, w.a.news[cm.Disconnected])
			w.pass(time.Minute)
			require.Len(t, w.a.freed, 1)
			require.Len(t, w.p.freed, 1)
			require.Zero(t, w.a.news[cm.Unreachable]+w.a.news[cm.Refused])
		})
	}
}

func TestEveryMessageDoubled(t *testing.T) {
	w := newWorld(t)
	w.deliver = func(int) int { return 2 }
	w.connect()
	w.settle()
	w.a.step(cm.Disconnect{Conn: w.a.conn})
	w.pass(time.Minute)
	for _, k := range []cm.Kind{cm.NewRequest, cm.Confirmed, cm.Disconnected, cm.Freed} {
		assert.Equal(t, 1, w.p.news[k], kinds[k])
	}
	for _, k := range []cm.Kind{cm.Connected, cm.Freed} {
		assert.Equal(t, 1, w.a.news[k], kinds[k])
	}
	assert.NotZero(t, w.p.m.Counters().Duplicates)
	assert.NotZero(t, w.a.m.Counters().Duplicates)
}

func TestCrossingDREQsAreBothAnswered(t *testing.T) {
	w := newWorld(t)
	a, p := w.established()
	w.a.step(cm.Disconnect{Conn: a})
	w.p.step(cm.Disconnect{Conn: p})
	w.pass(time.Minute)
	transcript(t, w, `
		active: DREQ
		passive: DREQ
		passive: disconnected
		passive: DREP
		active: disconnected
		active: DREP
		active: freed
		passive: freed`)
}

// The DREQ behind an RTU may come before it, and an RTU that comes later revives nothing.
func TestDREQOvertakesTheRTU(t *testing.T) {
	w := newWorld(t)
	w.deliver = func(n int) int { return map[bool]int{true: 1}[n == 1] } // only the REQ
	w.connect()
	w.settle()
	rtu := mad(&cm.RTU{LocalID: w.a.conn.ID(), RemoteID: w.p.conn.ID()})
	dreq := mad(&cm.DREQ{LocalID: w.a.conn.ID(), RemoteID: w.p.conn.ID(), RemoteQPN: 0x200})
	w.log = nil
	w.p.step(cm.Packet{From: activeAddr, MAD: dreq})
	w.p.step(cm.Packet{From: activeAddr, MAD: rtu})
	transcript(t, w, `
		passive: disconnected
		passive: DREP`)
	assert.Zero(t, w.p.news[cm.Confirmed])
}

func TestTrafficConfirms(t *testing.T) {
	w := newWorld(t)
	w.deliver = func(n int) int { return map[bool]int{true: 1}[n < 3] } // the RTU is lost, and all after it
	w.connect()
	w.settle()
	w.p.step(cm.Confirm{Conn: w.p.conn})
	w.p.step(cm.Confirm{Conn: w.p.conn})
	require.Equal(t, 1, w.p.news[cm.Confirmed])
	w.pass(time.Minute)
	require.Equal(t, 1, strings.Count(strings.Join(w.log, "\n"), "passive: REP"), "it is not repeated")
}

func TestRejectIsRepeatedForARepeatedRequest(t *testing.T) {
	w := newWorld(t)
	w.p.no = cm.ReasonConsumer
	w.deliver = func(n int) int {
		if n == 2 {
			return 0 // the REJ
		}
		return 1
	}
	w.connect()
	w.pass(time.Minute)
	transcript(t, w, `
		active: REQ
		passive: new request
		passive: REJ 28
		active: REQ
		passive: REJ 28
		active: refused
		active: freed
		passive: freed`)
	assert.Equal(t, "why", strings.TrimRight(string(w.a.why.Private), "\x00"))
}

func TestSlowUserMakesThePeerWait(t *testing.T) {
	w := newWorld(t)
	w.p.slow = true
	w.connect()
	w.pass(10 * time.Second)
	w.p.answer()
	w.pass(time.Second)
	transcript(t, w, `
		active: REQ
		passive: new request
		active: REQ
		passive: MRA
		passive: REP
		active: connected
		active: RTU
		passive: confirmed`)
}

func TestNobodyThere(t *testing.T) {
	w := newWorld(t)
	w.deliver = func(int) int { return 0 }
	start := w.now
	w.connect()
	w.pass(time.Minute)
	transcript(t, w, strings.Repeat("active: REQ\n", 9)+`active: unreachable
		active: REJ 4
		active: freed`)
	assert.Equal(t, time.Minute, w.now.Sub(start))
}

// The peer dies after its REQ, or after all: what is said to it is said a few times, and then no more.
func TestPeerThatDies(t *testing.T) {
	w := newWorld(t)
	w.deliver = func(n int) int { return map[bool]int{true: 1}[n < 2] }
	w.connect()
	w.a.step(cm.Disconnect{Conn: w.a.conn}) // it would go on asking
	w.pass(time.Minute)
	assert.Equal(t, 1, w.p.news[cm.Disconnected])
	assert.Equal(t, 9, strings.Count(strings.Join(w.log, "\n"), "passive: REP"))
	assert.Len(t, w.p.freed, 1)

	w = newWorld(t)
	_, p := w.established()
	w.deliver = func(int) int { return 0 }
	w.p.step(cm.Disconnect{Conn: p})
	w.pass(time.Minute)
	transcript(t, w, strings.Repeat("passive: DREQ\n", 5)+"passive: freed")
}

func TestGivingUpEndsTheRequest(t *testing.T) {
	w := newWorld(t)
	w.p.slow = true
	w.connect()
	w.settle()
	w.a.step(cm.Disconnect{Conn: w.a.conn})
	w.settle()
	w.p.answer() // too late
	w.pass(time.Minute)
	transcript(t, w, `
		active: REQ
		passive: new request
		active: REJ 4
		active: freed
		passive: disconnected
		passive: freed`)
}

func TestREPNobodyWaitsForIsRefused(t *testing.T) {
	w := newWorld(t)
	w.p.slow = true
	w.deliver = func(n int) int { return map[bool]int{true: 0, false: 1}[n == 2] } // the REJ that says it gives up
	w.connect()
	w.settle()
	w.a.step(cm.Disconnect{Conn: w.a.conn})
	w.settle()
	w.p.answer()
	w.settle()
	transcript(t, w, `
		active: REQ
		passive: new request
		active: REJ 4
		active: freed
		passive: REP
		active: REJ 6
		passive: disconnected`)
}

func TestUnknownDREQIsAnswered(t *testing.T) {
	w := newWorld(t)
	w.p.step(cm.Packet{From: activeAddr, MAD: mad(&cm.DREQ{LocalID: 7, RemoteID: 8, RemoteQPN: 9})})
	require.Len(t, w.queue, 1)
	h, body, err := cm.ParseHeader(w.queue[0].MAD[:])
	require.NoError(t, err)
	assert.EqualValues(t, 99, h.Transaction)
	var r cm.DREP
	require.NoError(t, r.Parse(body))
	assert.Equal(t, cm.DREP{LocalID: 8, RemoteID: 7}, r)
}

// A peer that starts again asks with the queue pair number of a connection that it has forgotten.
func TestNewRequestEndsAStaleConnection(t *testing.T) {
	w := newWorld(t)
	_, old := w.established()
	r := old.REQ
	r.LocalID++
	w.p.step(cm.Packet{From: activeAddr, MAD: mad(&r)})
	transcript(t, w, `
		passive: disconnected
		passive: freed
		passive: new request
		passive: REP`)
	assert.EqualValues(t, 1, w.p.m.Counters().Stale)
	// From another address the same numbers are another machine's.
	w.log = nil
	r.SrcAddr, r.LocalID = strangeAddr, r.LocalID+1
	w.p.step(cm.Packet{From: strangeAddr, MAD: mad(&r)})
	transcript(t, w, `
		passive: new request
		passive: REP`)
}

func TestRequestsThatAreRefusedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.connect()
	good := w.a.conn.REQ
	good.LocalID = 77
	for name, c := range map[string]struct {
		change func(*cm.REQ)
		want   cm.Reason
	}{
		"another port":       {func(r *cm.REQ) { r.ServiceID++ }, cm.ReasonInvalidService},
		"another port space": {func(r *cm.REQ) { r.ServiceID += 1 << 16 }, cm.ReasonInvalidService},
		"unreliable":         {func(r *cm.REQ) { r.Transport = 1 }, cm.ReasonTransport},
		"address of another": {func(r *cm.REQ) { r.SrcAddr = strangeAddr }, cm.ReasonInvalidGID},
		"MTU 0":              {func(r *cm.REQ) { r.MTU = 0 }, cm.ReasonInvalidMTU},
		"MTU 6":              {func(r *cm.REQ) { r.MTU = 6 }, cm.ReasonInvalidMTU},
		"MTU that we lack":   {func(r *cm.REQ) { r.MTU = 4 }, cm.ReasonInvalidMTU},
		"queue pair 1":       {func(r *cm.REQ) { r.QPN = 1 }, cm.ReasonNoQP},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			c.change(&r)
			w.log = nil
			w.p.step(cm.Packet{From: activeAddr, MAD: mad(&r)})
			transcript(t, w, fmt.Sprintf("passive: REJ %d", c.want))
		})
	}
	t.Run("no RDMA CM header", func(t *testing.T) {
		b := mad(&good)
		b[24+140+1] = 0x50
		w.log = nil
		w.p.step(cm.Packet{From: activeAddr, MAD: b})
		transcript(t, w, "passive: REJ 5")
	})
	assert.EqualValues(t, 9, w.p.m.Counters().Refused)
	w.log = nil
	w.p.step(cm.Packet{From: activeAddr, MAD: mad(&good)})
	transcript(t, w, "passive: new request\npassive: REP")
	w.p.step(cm.Unlisten{Port: port})
	good.LocalID, good.QPN, w.log = 78, 0x300, nil
	w.p.step(cm.Packet{From: activeAddr, MAD: mad(&good)})
	transcript(t, w, "passive: REJ 8")
}

func TestFloodOfRequestsIsBounded(t *testing.T) {
	w := newWorld(t)
	w.p.slow = true
	w.connect()
	r := w.a.conn.REQ
	flood := func(n int, change func()) {
		for range n {
			r.LocalID++
			r.QPN++
			change()
			w.p.step(cm.Packet{From: r.SrcAddr, MAD: mad(&r)})
		}
	}
	flood(1000, func() {})
	require.Equal(t, cm.MaxHalfOpenPeer, w.p.news[cm.NewRequest], "of one address")
	require.EqualValues(t, 1000-cm.MaxHalfOpenPeer, w.p.m.Counters().Flooded)
	flood(1000, func() { r.SrcAddr = r.SrcAddr.Next() })
	require.Equal(t, cm.MaxHalfOpen, w.p.news[cm.NewRequest], "of all")
	// Room comes back as requests are answered.
	w.p.no = cm.ReasonConsumer
	w.p.answer()
	flood(2, func() { r.SrcAddr = r.SrcAddr.Next() })
	require.Equal(t, cm.MaxHalfOpen+1, w.p.news[cm.NewRequest])
}

func TestDroppedRequestAllocatesLittle(t *testing.T) {
	w := newWorld(t)
	w.p.slow = true
	w.connect()
	r := w.a.conn.REQ
	for range 2 * cm.MaxHalfOpenPeer {
		r.LocalID++
		r.QPN++
		w.p.step(cm.Packet{From: activeAddr, MAD: mad(&r)})
	}
	r.LocalID++
	r.QPN++
	b := mad(&r)
	var ev cm.Event = cm.Packet{From: activeAddr, MAD: b}
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { w.p.m.Step(w.now, ev) }), 1.0)
}

// Messages in the name of a connection, from an address that is not its peer's, change nothing.
func TestStrangersChangeNothing(t *testing.T) {
	w := newWorld(t)
	a, p := w.established()
	aID, pID := a.ID(), p.ID()
	for _, m := range []message{
		&cm.DREQ{LocalID: aID, RemoteID: pID, RemoteQPN: 0x200},
		&cm.DREP{LocalID: aID, RemoteID: pID},
		&cm.REJ{LocalID: aID, RemoteID: pID, Reason: cm.ReasonStale},
		&cm.RTU{LocalID: aID, RemoteID: pID},
		&cm.MRA{LocalID: aID, RemoteID: pID, About: cm.AboutREP, ServiceTimeout: 31},
	} {
		w.p.step(cm.Packet{From: strangeAddr, MAD: mad(m)})
	}
	assert.Empty(t, w.log)
	// Nor do those of the peer that name the wrong ids or queue pair.
	for _, m := range []message{
		&cm.DREQ{LocalID: aID, RemoteID: pID, RemoteQPN: 0x201},
		&cm.DREQ{LocalID: aID + 1, RemoteID: pID, RemoteQPN: 0x200},
		&cm.REJ{LocalID: aID + 1, RemoteID: pID, Reason: cm.ReasonStale},
	} {
		w.p.step(cm.Packet{From: activeAddr, MAD: mad(m)})
	}
	assert.Empty(t, w.log)
	w.p.step(cm.Disconnect{Conn: p})
	w.pass(time.Minute)
	assert.Equal(t, 1, w.a.news[cm.Disconnected])
}

func TestTimeWaitIsBounded(t *testing.T) {
	w := newWorld(t)
	for range 3000 {
		w.connect()
		w.settle()
		w.a.step(cm.Disconnect{Conn: w.a.conn})
		w.settle()
		w.n, w.log = 0, nil
	}
	assert.Equal(t, 3000-1024, len(w.a.freed))
	assert.Equal(t, 3000-1024, len(w.p.freed))
	w.pass(time.Minute)
	assert.Equal(t, 3000, len(w.a.freed))
	assert.Equal(t, 3000, len(w.p.freed))
}

func TestRTUIsRepeatedForARepeatedREP(t *testing.T) {
	w := newWorld(t)
	w.deliver = func(n int) int { return map[bool]int{true: 0, false: 1}[n == 3] }
	w.connect()
	w.pass(time.Second)
	transcript(t, w, `
		active: REQ
		passive: new request
		passive: REP
		active: connected
		active: RTU
		passive: REP
		active: RTU
		passive: confirmed`)
}

func TestConnectionToOneself(t *testing.T) {
	w := newWorld(t)
	w.a.step(cm.Listen{Port: port})
	c := w.connect() // to the passive side, only to have a REQ
	c2 := &cm.Conn{Peer: activeAddr, REQ: c.REQ}
	c2.REQ.QPN = 0x101
	w.settle()
	w.log = nil
	w.a.step(cm.Connect{Conn: c2})
	w.settle()
	w.a.step(cm.Disconnect{Conn: c2})
	w.pass(time.Minute)
	transcript(t, w, `
		active: REQ
		active: new request
		active: REP
		active: connected
		active: RTU
		active: confirmed
		active: DREQ
		active: disconnected
		active: DREP
		active: freed
		active: freed`)
}

func TestCodes(t *testing.T) {
	assert.EqualValues(t, 3, cm.MTUCode(1500))
	assert.EqualValues(t, 5, cm.MTUCode(9000))
	assert.EqualValues(t, 1, cm.MTUCode(0))
	for code := uint8(1); code <= 5; code++ {
		assert.Equal(t, code, cm.MTUCode(cm.MTUSize(code)))
	}
	assert.Zero(t, cm.MTUSize(0)+cm.MTUSize(6))
	assert.EqualValues(t, 18, cm.Code(cm.Interval(18)))
	assert.EqualValues(t, 19, cm.Code(cm.Interval(18)+1))
	assert.EqualValues(t, 31, cm.Code(1<<62))
	assert.Equal(t, 17179869184*time.Nanosecond, cm.Interval(22))
}
