package target

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/require"
)

// wholeWindows reports whether the windows of the sessions of several connections are whole: a slot that is not
// open belongs to something that is under way. A session that fails owes nobody anything.
func (b *bench) wholeWindows() bool {
	b.s.mu.Lock()
	sessions := slices.Collect(maps.Values(b.s.sessions))
	sessions = slices.DeleteFunc(sessions, func(ses *session) bool { return !ses.shared || !ses.opened })
	b.s.mu.Unlock()
	return !slices.ContainsFunc(sessions, func(ses *session) bool { return !b.wholeOrFailed(ses) })
}

func (b *bench) wholeOrFailed(ses *session) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	used := int(ses.win.owed)
	for i := range ses.tasks.tasks {
		if t := &ses.tasks.tasks[i]; t.windowed && t.state != taskFree && t.state != taskResponding {
			used++
		}
	}
	for _, m := range ses.members {
		if !m.entered {
			continue
		}
		for _, op := range m.c.tmfs {
			if op.windowed {
				used++
			}
		}
	}
	return ses.failed || ses.numbers.MaxCmdSN.Sub(ses.numbers.ExpCmdSN)+1+used == int(ses.win.size)
}

// checkWindows waits for connections that have failed to say so.
func (b *bench) checkWindows() {
	b.t.Helper()
	require.Eventually(b.t, b.wholeWindows, testTimeout, time.Millisecond, "a slot of the window is lost")
}

// FuzzConnections lets several connections of a session do anything, and come, go and be replaced at any time: no
// panic, no slot of the window lost, and when all have ended every buffer is back.
func FuzzConnections(f *testing.F) {
	f.Add([]byte("\x00\x01\x08\x01\x08\x09\x00\x00\x08\x00\x00\x11\x02\x08\x05\x08\x02\x08\x09\x00\x00\x08\x00\x00\x0c\x0d\x05"))
	f.Add([]byte("\x0e\x01\x01\x09\x02\x10\x09\x00\x00\x10\x00\x00\x02\x03\x01\x02\x02\x00\x0c\x01\x00\x0f\x0d\x02\x10"))
	f.Add([]byte("\x0e\x02\x02\x09\x02\x10\x09\x00\x00\x10\x00\x00\x01\x03\x09\x05\x02\x00\x0b\x01\x10\x01\x0d\x01\x0f\x0a\x02"))
	f.Fuzz(func(t *testing.T, program []byte) {
		b := newBench(t, benchConfig{chunks: 32, size: "1MiB", neg: severalConnections, config: Config{Workers: 2, MaxTransfer: 512 << 10}})
		conns := []*client{b.login(tcpTraits, "MaxConnections=4", "InitialR2T=No")}
		for cid := range uint16(2) {
			conns = append(conns, b.join(conns[0], cid+1))
		}
		next := conns[0].cmdSN
		in := &fuzzInput{program}
		for range 100 {
			if len(in.b) == 0 {
				break
			}
			what := in.byte()
			k := int(what>>4) % len(conns)
			c := conns[k].at(next)
			switch what & 15 {
			case 9:
				c.persist(in.byte()&7, uint64(k&1), uint64(in.byte()&1))
			case 10:
				c.logout(iscsi.LogoutReason(in.byte()&3), uint16(k))
			case 11:
				c.logout(iscsi.LogoutConnection, uint16(in.byte()&3))
			case 12: // a connection is replaced, or a new one comes
				conns[k] = b.joining(c, uint16(in.byte()&3))
			case 13:
				conns[k] = b.joining(c, uint16(k))
			case 14:
				b.slow.Hold()
			case 15:
				b.slow.Release()
			case 8:
				c.dm.set(func() { c.dm.err = io.EOF })
			case 7: // the session is replaced
				r := wholeLogin
				if in.byte()&1 != 0 {
					r.ISID[5]++ // another one
				}
				c = &client{t: t, dm: b.connect(tcpTraits), cmdSN: next, stat: 7}
				c.loginRequest(r, loginLines(tcpTraits, "MaxConnections=4", "InitialR2T=No")...)
				conns[k] = c
			default:
				in.step(c)
			}
			next = conns[k].cmdSN
			if what&1 == 0 {
				b.checkWindows()
			}
		}
		b.slow.Release()
		b.checkWindows()
		for _, dm := range b.fakes {
			dm.set(func() { dm.holdGets, dm.err = false, io.EOF })
		}
		b.sessionsEnd(0)
		if l := b.lines.String(); strings.Contains(l, "internal error") {
			t.Fatal(l)
		}
	})
}
