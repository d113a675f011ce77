//go:build linux && cgo && rdma

package verbs

// #include "verbs.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/goiser/goiser/iser/rdma"
)

// errorPause slows the event goroutine down should the channel go on failing.
const errorPause = 10 * time.Millisecond

// An event is a connection manager event, copied out of the library and acknowledged, so that
// rdma_destroy_id, which waits for acknowledgements, never waits for us.
type event struct {
	kind   C.int32_t            // enum rdma_cm_event_type
	status int                  // a reject reason or a negative errno value
	id     *C.struct_rdma_cm_id // of a connection request: the new id
	handle uint64               // and its handle
	peer   rdma.ConnParam
}

// A sink is told of the events of one rdma_cm_id, on the channel's goroutine: it must not wait.
type sink interface{ event(event) }

// events is an event channel and the goroutine that reads it. Ids are known by handles, never used
// twice: an event that was under way when its id was destroyed finds nobody.
type events struct {
	p    *Provider
	ch   *C.struct_rdma_event_channel
	file *os.File
	done chan struct{}

	mu    sync.Mutex
	last  uint64
	sinks map[uint64]sink
}

func newEvents(p *Provider) (*events, error) {
	ch, err := C.gv_create_events(p.lib)
	if ch == nil {
		return nil, fmt.Errorf("connection manager: %w", err)
	}
	ev := &events{p: p, ch: ch, done: make(chan struct{}), sinks: map[uint64]sink{}}
	file, raw, err := pollable(int(ch.fd), "connection manager")
	if err != nil {
		C.gv_destroy_events(p.lib, ch)
		return nil, err
	}
	ev.file = file
	go ev.run(raw)
	return ev, nil
}

// handle is a number for a new id.
func (ev *events) handle() uint64 {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.last++
	return ev.last
}

func (ev *events) attach(handle uint64, s sink) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.sinks[handle] = s
}

func (ev *events) detach(handle uint64) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	delete(ev.sinks, handle)
}

// run hands out events until the file is closed.
func (ev *events) run(raw syscall.RawConn) {
	defer close(ev.done)
	var c C.struct_gv_event
	for {
		next := ev.handle()
		var e C.int
		err := raw.Read(func(uintptr) bool {
			e = C.gv_take_event(ev.p.lib, ev.ch, C.uint64_t(next), &c)
			return syscall.Errno(e) != syscall.EAGAIN
		})
		if err != nil {
			return
		}
		if e != 0 {
			time.Sleep(errorPause) // one event could not be read; the channel goes on
			continue
		}
		ev.dispatch(&c, next)
	}
}

func (ev *events) dispatch(c *C.struct_gv_event, next uint64) {
	e := event{kind: c._type, status: int(c.status), id: c.id, handle: next}
	e.peer = rdma.ConnParam{ // librdmacm has turned the two numbers to our point of view
		PrivateData:        C.GoBytes(unsafe.Pointer(&c.private_data), C.int(c.private_len)),
		ResponderResources: uint8(c.responder_resources),
		InitiatorDepth:     uint8(c.initiator_depth),
	}
	ev.mu.Lock()
	s := ev.sinks[uint64(c.handle)]
	ev.mu.Unlock()
	switch {
	case s != nil:
		s.event(e)
	case e.id != nil: // a request for a listener that is gone
		C.gv_destroy_id(ev.p.lib, e.id)
	}
}

// close ends the goroutine; all ids must be gone.
func (ev *events) close() {
	ev.file.Close()
	<-ev.done
	C.gv_destroy_events(ev.p.lib, ev.ch)
}
