package initiator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A life is a model of one command: what must be true after each of its events.
type life struct {
	responded, released, forgotten, detached bool
	told                                     string // what the caller was told
	abort                                    byte   // ' ' none, 's' sent, 'a' answered
	failed                                   bool
	inPlace                                  bool   // it uses memory of AllocBuffer
	owed                                     string // what its caller will be told when that is free
}

// step applies an event to the model and reports whether it can happen.
//
//	R response  L released  C context ends  T command times out  0 abort done  1 abort: no task
//	X abort is not answered in time  D connection dies
func (m *life) step(ev byte) bool {
	if m.failed {
		return false
	}
	switch ev {
	case 'R':
		if m.responded || m.forgotten {
			m.fail() // nobody waits for it
			return true
		}
		m.responded = true
	case 'L':
		if m.released {
			return false
		}
		m.released = true
	case 'C', 'T':
		if m.told != "" || m.owed != "" {
			return ev == 'C' // a late cancellation changes nothing; the clock has no command to time
		}
		outcome := map[byte]string{'C': "cancelled", 'T': "timeout"}[ev]
		if m.responded {
			outcome = "success"
		} else {
			m.abort = 's'
		}
		switch {
		case m.released:
			m.told = outcome
		case m.inPlace:
			m.owed = outcome
		default:
			m.told, m.detached = outcome, true
		}
	case '0', '1', 'X':
		if m.abort != 's' {
			return false
		}
		m.abort = 'a'
		switch {
		case ev == 'X' || ev == '1' && !m.responded:
			m.fail()
		case !m.responded:
			m.forgotten = true
		}
	case 'D':
		m.fail()
	}
	switch {
	case m.told != "" || !m.released:
	case m.owed != "" && (m.responded || m.forgotten):
		m.told = m.owed
	case m.owed == "" && m.responded:
		m.told = "success"
	}
	return true
}

func (m *life) fail() {
	m.failed = true
	if m.told == "" {
		m.told = "session"
		if m.responded {
			m.told = "success"
		}
		if m.owed != "" {
			m.told = m.owed
		}
	}
}

// free reports whether nothing can refer to the slot any more.
func (m *life) free() bool {
	return m.told != "" && m.abort != 's' && m.released && (m.responded || m.forgotten)
}

// TestEveryOrderOfACommandsEnd walks every order of a command's events to a depth that leaves none out.
func TestEveryOrderOfACommandsEnd(t *testing.T) {
	for _, inPlace := range []bool{false, true} {
		everyOrder(t, inPlace)
	}
}

func everyOrder(t *testing.T, inPlace bool) {
	orders := 0
	var walk func(order string)
	walk = func(order string) {
		for _, ev := range []byte("RLCT01XD") {
			next := order + string(ev)
			m := life{inPlace: inPlace}
			possible := true
			for i := 0; i < len(next) && possible; i++ {
				possible = !m.isFree(next[:i]) && m.step(next[i])
			}
			if !possible || strings.Count(next, "C") > 2 {
				continue
			}
			orders++
			replay(t, next, &m)
			if len(next) < 7 {
				walk(next)
			}
		}
	}
	walk("")
	assert.Greater(t, orders, 300)
}

// isFree stops the walk where the slot is free: what comes then is another command's.
func (m *life) isFree(string) bool { return m.free() }

func replay(t *testing.T, order string, m *life) {
	b := newBench(1)
	mem := make([]byte, 512)
	own := &buffer{base: address(mem), end: address(mem) + 512, inPlace: true}
	cmd := testUnitReady
	if m.inPlace {
		b.buffers, cmd.Out = buffers{own}, mem
	}
	r := b.ask(requestCommand, cmd)
	require.Len(t, b.dm.commands, 1)
	tr := b.dm.commands[0]
	itt := tr.ITT
	for _, ev := range order {
		switch ev {
		case 'R':
			b.respond(itt)
		case 'L':
			b.release(tr)
		case 'C':
			b.submit(b.now, letter{r, errors.New("cancelled")})
			b.round()
		case 'T':
			b.now = b.now.Add(30 * time.Second)
			b.round()
		case '0':
			b.answerTMF(b.lastTMF(t).ITT, iscsi.TMComplete)
		case '1':
			b.answerTMF(b.lastTMF(t).ITT, iscsi.TMNoTask)
		case 'X':
			b.now = b.now.Add(managementTimeout)
			b.round()
		case 'D':
			b.fail(errDead)
			b.round()
		}
	}
	told := ""
	if len(b.told) > 0 {
		switch err := b.told[0].err; {
		case err == nil:
			told = "success"
		case errors.Is(err, ErrTimeout):
			told = "timeout"
		case err.Error() == "cancelled":
			told = "cancelled"
		default:
			told = "session"
		}
	}
	got := life{
		responded: m.responded, released: m.released, abort: m.abort,
		forgotten: len(b.dm.forgotten) > 0 || m.forgotten && m.released,
		detached:  len(b.dm.detached) > 0, told: told, failed: b.err != nil, inPlace: m.inPlace, owed: m.owed,
	}
	if m.inPlace && told != "" && b.err == nil {
		require.Zero(t, own.users, "order %s: told while the memory is in use", order)
		require.True(t, m.released, "order %s: told while the memory is in reach", order)
	}
	if m.inPlace && !m.failed && !m.released {
		require.ErrorIs(t, b.unregisterBuffer(nil), ErrBufferInUse)
	}
	require.Equal(t, *m, got, "order %s", order)
	require.LessOrEqual(t, len(b.told), 1, "order %s: the caller was told twice", order)
	require.LessOrEqual(t, len(b.dm.detached), 1, "order %s: detached twice", order)
	require.LessOrEqual(t, len(b.dm.forgotten), 1, "order %s: forgotten twice", order)
	if !m.failed {
		require.Equal(t, m.free(), len(b.free) == 1, "order %s: slot", order)
		require.Equal(t, m.free(), b.taskFreed == 1, "order %s: token", order)
	} else {
		require.Equal(t, 1, b.dm.closed)
	}
	if told != "" {
		require.True(t, r.ended)
	}
}
