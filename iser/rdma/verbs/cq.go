//go:build linux && cgo && rdma

package verbs

// #cgo noescape gv_poll_cq
// #cgo nocallback gv_poll_cq
// #cgo nocallback gv_arm_cq
// #cgo nocallback gv_take_cq_event
// #include "verbs.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goiser/goiser/iser/rdma"
)

// batch is how many work requests or completions cross into C at once.
const batch = C.GV_BATCH

// A completionQueue is an ibv_cq with its own completion channel, whose file descriptor waits in Go's
// poller.
type completionQueue struct {
	d    *device
	cq   *C.struct_ibv_cq
	ch   *C.struct_ibv_comp_channel
	file *os.File
	raw  syscall.RawConn
	take func(fd uintptr) bool // for raw.Read; made once, so that Wait does not allocate
	got  error                 // what take found

	// wc receives from C. Completions that Wait found wait in wc[next:have] for Poll.
	wc         []C.struct_gv_wc
	next, have int
	// armed: the queue was armed and its event has not been taken.
	armed bool
	woken atomic.Bool
}

// NewCQ implements rdma.Device.
func (d *device) NewCQ(depth int) (rdma.CompletionQueue, error) {
	cq, err := d.newCQ(depth)
	if err != nil {
		return nil, fmt.Errorf("%s: make completion queue of depth %d: %w", d.name, depth, err)
	}
	return cq, nil
}

func (d *device) newCQ(depth int) (*completionQueue, error) {
	if depth < 1 || depth > d.limits.MaxCQDepth {
		return nil, fmt.Errorf("depth must be 1 to %d: %w", d.limits.MaxCQDepth, syscall.EINVAL)
	}
	ch, err := C.gv_create_channel(d.lib, d.ctx)
	if ch == nil {
		return nil, fmt.Errorf("completion channel: %w", err)
	}
	q := &completionQueue{d: d, ch: ch, wc: make([]C.struct_gv_wc, batch)}
	if q.file, q.raw, err = pollable(int(ch.fd), "completion channel"); err != nil {
		C.gv_destroy_channel(d.lib, ch)
		return nil, err
	}
	vector := d.nextVector.Add(1) % d.vectors // spread over the device's interrupts
	if q.cq, err = C.gv_create_cq(d.lib, d.ctx, C.int(depth), ch, C.int(vector)); q.cq == nil {
		q.file.Close()
		C.gv_destroy_channel(d.lib, ch)
		return nil, err
	}
	q.take = q.takeEvent
	return q, nil
}

// pollable gives Go's poller a duplicate of a non-blocking descriptor, so that the library and the
// os.File each close their own.
func pollable(fd int, name string) (*os.File, syscall.RawConn, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	f := os.NewFile(uintptr(dup), name)
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails if the poller did not take it
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, raw, nil
}

// Poll implements rdma.CompletionQueue.
func (q *completionQueue) Poll(cs []rdma.Completion) (int, error) {
	if q.cq == nil {
		return 0, closedError("poll completion queue")
	}
	done := 0
	for done < len(cs) {
		if q.next == q.have {
			if err := q.fill(min(len(cs)-done, batch)); err != nil || q.have == 0 {
				return done, err
			}
		}
		for done < len(cs) && q.next < q.have {
			fromWC(&cs[done], &q.wc[q.next])
			q.next++
			done++
		}
		if q.next == q.have && q.have < batch {
			break // the device had no more a moment ago
		}
	}
	return done, nil
}

// fill takes up to n completions from the device into wc, which must be empty.
func (q *completionQueue) fill(n int) error {
	q.next, q.have = 0, 0
	r := C.gv_poll_cq(q.cq, &q.wc[0], C.int(n), q.d.invFlags)
	if r < 0 {
		return fmt.Errorf("%s: poll completion queue: %w", q.d.name, syscall.Errno(-r))
	}
	q.have = int(r)
	return nil
}

func fromWC(c *rdma.Completion, w *C.struct_gv_wc) {
	*c = rdma.Completion{
		ID: uint64(w.id), Status: rdma.Status(w.status), VendorErr: uint32(w.vendor_err), QPNum: uint32(w.qp_num),
		Recv: w.recv != 0, ByteLen: uint32(w.byte_len),
		Invalidated: w.invalidated != 0, InvalidatedKey: uint32(w.inv_key),
	}
}

// Wait implements rdma.CompletionQueue. The order is arm, poll, sleep: a completion that came before the
// queue was armed is found by the poll, one that came after makes an event.
//
// Wake sets woken and then a read deadline in the past. Wait sets its own deadline and then looks at
// woken: if it does not see a Wake there, that Wake's deadline comes after Wait's and ends the read.
func (q *completionQueue) Wait(deadline time.Time) error {
	if q.cq == nil {
		return closedError("wait for completion queue")
	}
	if q.next < q.have {
		return nil
	}
	if err := q.file.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("%s: completion channel: %w", q.d.name, err)
	}
	for !q.woken.Swap(false) {
		if err := q.arm(); err != nil {
			return err
		}
		if err := q.fill(batch); err != nil || q.have > 0 {
			return err
		}
		switch err := q.raw.Read(q.take); {
		case errors.Is(err, os.ErrDeadlineExceeded): // passed, or Wake
			q.woken.Store(false)
			return nil
		case err != nil:
			return fmt.Errorf("%s: completion channel: %w", q.d.name, err)
		case q.got != nil:
			return fmt.Errorf("%s: take completion event: %w", q.d.name, q.got)
		}
		q.armed = false
	}
	return nil
}

func (q *completionQueue) arm() error {
	if q.armed {
		return nil
	}
	if err := errno(C.gv_arm_cq(q.cq)); err != nil {
		return fmt.Errorf("%s: arm completion queue: %w", q.d.name, err)
	}
	q.armed = true
	return nil
}

// takeEvent is the body of Wait's raw read: false makes Go's poller wait for the descriptor.
func (q *completionQueue) takeEvent(uintptr) bool {
	q.got = errno(C.gv_take_cq_event(q.d.lib, q.ch))
	return q.got != syscall.EAGAIN
}

// Wake implements rdma.CompletionQueue.
func (q *completionQueue) Wake() {
	if q.woken.Swap(true) {
		return // an earlier Wake has not been seen yet and does for both
	}
	// An error means that the queue is being closed: nobody waits.
	_ = q.file.SetReadDeadline(time.Unix(1, 0))
}

// Close implements rdma.CompletionQueue.
func (q *completionQueue) Close() error {
	if q.cq == nil {
		return nil
	}
	if err := errno(C.gv_destroy_cq(q.d.lib, q.cq)); err != nil {
		return fmt.Errorf("%s: free completion queue: %w", q.d.name, err)
	}
	q.cq = nil
	q.file.Close()
	return errno(C.gv_destroy_channel(q.d.lib, q.ch))
}
