package roce_test

import (
	"bytes"
	"context"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi/initiator"
)

// A host is one initiator: a session, and another when that one has died.
type host struct {
	w       *world
	number  int
	options initiator.Options
	dialer  initiator.Transport
	turn    chan struct{} // holds a token; who has it opens a session (a lock would stop the bubble's time)
	login   atomic.Pointer[login]
	users   []*user
}

// A login is a session and its disk.
type login struct {
	session *initiator.Session
	disk    *initiator.Disk
	serial  int // in the model
}

const (
	openTries = 60
	openPause = time.Second
)

// open logs in, again and again if the network is not to be relied on.
func (h *host) open(ctx context.Context) bool {
	for range openTries {
		s, err := initiator.Open(ctx, h.dialer, portal, targetName, h.options)
		if err == nil {
			if old := h.login.Load(); old != nil {
				h.w.model.Settle(old.serial)
			}
			l := &login{session: s, serial: h.w.count(&h.w.sum.sessions)}
			l.disk, err = s.Disk(ctx, 0)
			h.login.Store(l)
		}
		if err == nil {
			h.w.watches[1+h.number].Arm()
			return true
		}
		if h.w.climate.mild {
			h.w.fail("host %d: log in: %v", h.number, err)
			return false
		}
		if l := h.login.Load(); l != nil {
			_ = l.session.Close() // it has failed: there is nothing more to learn from it
		}
		time.Sleep(openPause)
	}
	h.w.fail("host %d: no login in %d tries", h.number, openTries)
	return false
}

// reopen replaces a session that has died.
func (h *host) reopen(ctx context.Context, dead *login) bool {
	<-h.turn
	defer func() { h.turn <- struct{}{} }()
	if h.login.Load() != dead {
		return true // another user has
	}
	if err := dead.session.Err(); h.w.climate.mild {
		h.w.fail("host %d: its session has died: %v", h.number, err)
		return false
	}
	h.w.count(&h.w.sum.deaths)
	return h.open(ctx)
}

// A user reads and writes, one command at a time.
type user struct {
	h      *host
	rng    *rand.Rand
	buf    []byte // what is not in use is poison
	used   int    // bytes of the last command
	poison []byte
}

func (u *user) run(ctx context.Context) {
	for range commands {
		if u.h.w.failed() || !u.command(ctx) {
			return
		}
	}
}

// extent draws where a command goes: most are short.
func (u *user) extent() (off int64, n int) {
	n = 1 + u.rng.IntN(maxCommand/sector)
	n = max(1, n>>u.rng.IntN(bits.Len(uint(maxCommand/sector))))
	return int64(u.rng.IntN(diskSectors-n+1)) * sector, n * sector
}

// command runs one; false if there is no going on.
func (u *user) command(ctx context.Context) bool {
	w, l := u.h.w, u.h.login.Load()
	off, n := u.extent()
	write := u.rng.IntN(2) == 0
	cmd := ctx
	if u.rng.IntN(abortShare) == 0 {
		var stop context.CancelFunc
		cmd, stop = context.WithTimeout(ctx, 1+time.Duration(u.rng.Int64N(int64(w.climate.patience()))))
		defer stop()
	}
	err := u.transfer(cmd, l, off, n, write)
	switch {
	case w.failed():
		return false
	case err == nil:
		w.count(&w.sum.done)
	case ctx.Err() != nil:
		w.fail("host %d: no end in %v", u.h.number, deadline)
		return false
	case cmd.Err() != nil:
		w.count(&w.sum.aborted)
	case l.session.Err() != nil:
		return u.h.reopen(ctx, l)
	case w.climate.mild:
		w.fail("host %d: %v", u.h.number, err)
		return false
	default:
		w.count(&w.sum.refused)
	}
	return true
}

// transfer runs one command and gives its buffer back: from now on nobody may touch that.
func (u *user) transfer(ctx context.Context, l *login, off int64, n int, write bool) (err error) {
	m := u.h.w.model
	u.untouched()
	p := u.buf[:n]
	if write {
		v := m.Write(l.serial, off, p)
		if err = l.disk.WriteAt(ctx, p, off); err == nil {
			m.Acknowledge(v)
		}
	} else {
		began := m.Read()
		if err = l.disk.ReadAt(ctx, p, off); err == nil {
			if wrong := m.Check(began, off, p); wrong != nil {
				u.h.w.fail("host %d read %d bytes at %d: %v", u.h.number, n, off, wrong)
			}
		}
	}
	copy(p, u.poison)
	u.used = n
	return err
}

// untouched checks the memory of the last command.
func (u *user) untouched() {
	if !bytes.Equal(u.buf[:u.used], u.poison[:u.used]) {
		u.h.w.fail("host %d: the buffer of a command was touched after it had been given back", u.h.number)
	}
}

// leave logs out. Sessions end as they like where they may die.
func (h *host) leave() {
	for _, u := range h.users {
		u.untouched()
	}
	if err := h.login.Load().session.Close(); err != nil && h.w.climate.mild {
		h.w.fail("host %d: log out: %v", h.number, err)
	}
}

// stackMemory is what simulations use one after the other: poison, and a buffer full of it for each user.
func stackMemory() [][]byte {
	m := make([][]byte, 1+hostCount*usersOfHost)
	for i := range m {
		m[i] = make([]byte, maxCommand)
		stamp.Poison(m[i])
	}
	return m
}
