package lab

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iser/isertest"
	"github.com/goiser/goiser/iser/rdma/roce"
)

// A host is one initiator with its disk.
type host struct {
	w         *world
	name      string
	number    int
	watch     *isertest.Watch
	roce      *roce.Provider
	transport initiator.Transport
	options   initiator.Options

	session *initiator.Session
	disk    *initiator.Disk
	serial  int // of the session, in the model

	mu    sync.Mutex
	given [][]byte // buffers given back: nobody may touch them any more
}

// open logs in, perhaps in the place of a session that has died.
func (h *host) open(ctx context.Context) error {
	s, err := initiator.Open(ctx, h.transport, targetAddr().String(), targetName, h.options)
	if err != nil {
		return err
	}
	if h.session != nil {
		_ = h.session.Close() // it has died
		h.w.model.Settle(h.serial)
	}
	h.w.mu.Lock()
	h.w.sessions++
	h.session, h.serial = s, h.w.sessions
	h.w.mu.Unlock()
	if h.disk, err = s.Disk(ctx, 0); err != nil {
		return err
	}
	h.watch.Arm()
	h.w.rec.add(Event{Where: h.name, What: whatNote, Note: "logged in"})
	return nil
}

// leave logs out, and looks at the buffers once more.
func (h *host) leave() {
	if h.session != nil {
		_ = h.session.Close() // whether it could is not what a scenario is about
	}
	h.untouched()
}

// An extent is where a command goes, in bytes.
type extent struct {
	off int64
	n   int
}

// extent draws one of n bytes.
func (h *host) extent(n int) extent {
	return extent{int64(h.w.rng.IntN(diskSectors-n/sector+1)) * sector, n}
}

func (h *host) calls(what string, x extent) {
	h.w.rec.add(Event{Where: h.name, What: whatCalls, Of: what, Length: uint32(x.n), Note: fmt.Sprintf("at byte %d", x.off)})
}

func (h *host) returns(what string, x extent, err error, p []byte) {
	e := Event{Where: h.name, What: whatReturns, Of: what, Length: uint32(x.n), Word: firstWord(p), Note: "GOOD"}
	if err != nil {
		e.Note = err.Error()
	}
	h.w.rec.add(e)
}

// write writes a new generation.
func (h *host) write(ctx context.Context, x extent) error {
	p := make([]byte, x.n)
	v := h.w.model.Write(h.serial, x.off, p)
	h.calls("WRITE", x)
	err := h.disk.WriteAt(ctx, p, x.off)
	h.returns("WRITE", x, err, p)
	if err == nil {
		h.w.model.Acknowledge(v)
	}
	h.giveBack(p)
	return err
}

// read reads into a poisoned buffer and checks what is there.
func (h *host) read(ctx context.Context, x extent) error {
	p := make([]byte, x.n)
	stamp.Poison(p)
	began := h.w.model.Read()
	h.calls("READ", x)
	err := h.disk.ReadAt(ctx, p, x.off)
	h.returns("READ", x, err, p)
	if err == nil && !h.w.blind {
		if wrong := h.w.model.Check(began, x.off, p); wrong != nil {
			h.w.fail("%s read %d bytes at %d: %v", h.name, x.n, x.off, wrong)
		}
	}
	h.giveBack(p)
	return err
}

// giveBack poisons a buffer that a command has been done with: it is the caller's again.
func (h *host) giveBack(p []byte) {
	stamp.Poison(p)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given = append(h.given, p)
}

// untouched checks the buffers that were given back.
func (h *host) untouched() {
	h.mu.Lock()
	defer h.mu.Unlock()
	poison := make([]byte, maxCommand)
	stamp.Poison(poison)
	for _, p := range h.given {
		if !bytes.Equal(p, poison[:len(p)]) {
			h.w.fail("%s: the buffer of a command of %d bytes was touched after it had been given back", h.name, len(p))
		}
	}
	h.given = nil
}

// must is for what no weather of the scenario excuses.
func (h *host) must(what string, err error) bool {
	if err != nil {
		h.w.fail("%s: %s: %v", h.name, what, err)
	}
	return err == nil
}

// sleep lets virtual time pass.
func (w *world) sleep(d time.Duration) { time.Sleep(d) }

// upTo is a chance duration, at least 1 ns: timers that end in the same instant would run in an order that no seed
// determines.
func (w *world) upTo(d time.Duration) time.Duration { return 1 + time.Duration(w.rng.Int64N(int64(d))) }

// together runs f several times at once and waits. What each draws it draws before.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
