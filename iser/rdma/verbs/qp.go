//go:build linux && cgo && rdma

package verbs

// #cgo noescape gv_post_send
// #cgo nocallback gv_post_send
// #cgo noescape gv_post_recv
// #cgo nocallback gv_post_recv
// #include "verbs.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goiser/goiser/iser/rdma"
)

// The entries of rdma's scatter/gather lists go to C as they are: the compiler checks that the two
// structures agree.
var (
	_ [unsafe.Sizeof(C.struct_ibv_sge{})]byte          = [unsafe.Sizeof(rdma.SGE{})]byte{}
	_ [unsafe.Offsetof(C.struct_ibv_sge{}.addr)]byte   = [unsafe.Offsetof(rdma.SGE{}.Addr)]byte{}
	_ [unsafe.Offsetof(C.struct_ibv_sge{}.length)]byte = [unsafe.Offsetof(rdma.SGE{}.Length)]byte{}
	_ [unsafe.Offsetof(C.struct_ibv_sge{}.lkey)]byte   = [unsafe.Offsetof(rdma.SGE{}.LKey)]byte{}
)

// A queuePair is an ibv_qp of an rdma_cm_id. Requests are copied into the scratch slices, which hold no
// pointers, and cross into C a batch at a time.
type queuePair struct {
	d       *device
	num     uint32
	sendMax int // scatter/gather entries of a request
	recvMax int

	mu sync.Mutex       // held during a post, so that Close cannot free the queue pair under it
	qp *C.struct_ibv_qp // nil once destroyed

	send    []C.struct_gv_send
	sendSGE []rdma.SGE
	recv    []C.struct_gv_recv
	recvSGE []rdma.SGE
}

func newQueuePair(d *device, qp *C.struct_ibv_qp, c rdma.QPConfig) *queuePair {
	return &queuePair{
		d: d, num: uint32(qp.qp_num), qp: qp, sendMax: c.MaxSendSGE, recvMax: c.MaxRecvSGE,
		send: make([]C.struct_gv_send, 0, batch), sendSGE: make([]rdma.SGE, 0, batch*c.MaxSendSGE),
		recv: make([]C.struct_gv_recv, 0, batch), recvSGE: make([]rdma.SGE, 0, batch*c.MaxRecvSGE),
	}
}

// Num implements rdma.QueuePair.
func (q *queuePair) Num() uint32 { return q.num }

// PostSend implements rdma.QueuePair.
func (q *queuePair) PostSend(wrs []rdma.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := 0
	for done < len(wrs) {
		if q.qp == nil {
			return done, closedError("post send")
		}
		bad := q.fillSend(wrs[done:])
		n := len(q.send)
		if n > 0 {
			p := C.gv_post_send(q.qp, &q.send[0], C.int(n), sgePointer(q.sendSGE))
			done += int(p.taken)
			if p.err != 0 {
				return done, q.postError("send", p.err)
			}
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

// fillSend puts up to a batch of wrs in the scratch slices, ending before one that cannot be posted; it
// then says why.
func (q *queuePair) fillSend(wrs []rdma.SendWR) error {
	q.send, q.sendSGE = q.send[:0], q.sendSGE[:0]
	for i := range wrs[:min(len(wrs), batch)] {
		wr := &wrs[i]
		if len(wr.SGL) > q.sendMax {
			return fmt.Errorf("qp %d: post send: %d pieces of memory, the queue pair takes %d: %w", q.num, len(wr.SGL), q.sendMax, syscall.EINVAL)
		}
		w := C.struct_gv_send{
			id: C.uint64_t(wr.ID), remote_addr: C.uint64_t(wr.RemoteAddr), rkey: C.uint32_t(wr.RKey),
			inv_key: C.uint32_t(wr.InvalidateKey), num_sge: C.int32_t(len(wr.SGL)), flags: sendFlags(wr.Flags),
		}
		switch wr.Op {
		case rdma.OpSend:
			w.opcode = C.IBV_WR_SEND
		case rdma.OpSendInv:
			w.opcode = C.IBV_WR_SEND_WITH_INV
		case rdma.OpWrite:
			w.opcode = C.IBV_WR_RDMA_WRITE
		case rdma.OpRead:
			w.opcode = C.IBV_WR_RDMA_READ
		case rdma.OpLocalInv:
			w.opcode = C.IBV_WR_LOCAL_INV
		case rdma.OpBindWindow:
			if err := bindWR(&w, wr); err != nil {
				return fmt.Errorf("qp %d: %w", q.num, err)
			}
		default:
			return fmt.Errorf("qp %d: post send: unknown operation %d: %w", q.num, wr.Op, syscall.EINVAL)
		}
		q.send = append(q.send, w)
		q.sendSGE = append(q.sendSGE, wr.SGL...)
	}
	return nil
}

// bindWR fills in what only a bind has.
func bindWR(w *C.struct_gv_send, wr *rdma.SendWR) error {
	win, ok := wr.Window.(*window)
	mr, ok2 := wr.Region.(*region)
	if !ok || !ok2 || win.mw == nil || mr.mr == nil || len(wr.SGL) != 1 {
		return fmt.Errorf("bind needs an open window and region of this provider and one piece of memory: %w", syscall.EINVAL)
	}
	w.opcode = C.IBV_WR_BIND_MW
	w.mw = C.uint64_t(uintptr(unsafe.Pointer(win.mw))) // C's memory: a number does not hide it from the collector
	w.mr = C.uint64_t(uintptr(unsafe.Pointer(mr.mr)))
	w.access = C.uint32_t(ibvAccess(wr.Access &^ (rdma.LocalWrite | rdma.WindowBind))) // remote rights only
	return nil
}

func sendFlags(f rdma.SendFlags) C.uint32_t {
	var v C.uint32_t
	if f&rdma.Signaled != 0 {
		v |= C.IBV_SEND_SIGNALED
	}
	if f&rdma.Solicited != 0 {
		v |= C.IBV_SEND_SOLICITED
	}
	if f&rdma.Fence != 0 {
		v |= C.IBV_SEND_FENCE
	}
	return v
}

// PostRecv implements rdma.QueuePair.
func (q *queuePair) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := 0
	for done < len(wrs) {
		if q.qp == nil {
			return done, closedError("post receive")
		}
		bad := q.fillRecv(wrs[done:])
		n := len(q.recv)
		if n > 0 {
			p := C.gv_post_recv(q.qp, &q.recv[0], C.int(n), sgePointer(q.recvSGE))
			done += int(p.taken)
			if p.err != 0 {
				return done, q.postError("receive", p.err)
			}
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

// fillRecv is fillSend for receives.
func (q *queuePair) fillRecv(wrs []rdma.RecvWR) error {
	q.recv, q.recvSGE = q.recv[:0], q.recvSGE[:0]
	for i := range wrs[:min(len(wrs), batch)] {
		wr := &wrs[i]
		if len(wr.SGL) > q.recvMax {
			return fmt.Errorf("qp %d: post receive: %d pieces of memory, the queue pair takes %d: %w", q.num, len(wr.SGL), q.recvMax, syscall.EINVAL)
		}
		q.recv = append(q.recv, C.struct_gv_recv{id: C.uint64_t(wr.ID), num_sge: C.int32_t(len(wr.SGL))})
		q.recvSGE = append(q.recvSGE, wr.SGL...)
	}
	return nil
}

func sgePointer(s []rdma.SGE) *C.struct_ibv_sge {
	return (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(s))) // same layout, checked above
}

// postError translates: providers say ENOMEM, some EAGAIN, when the queue is full.
func (q *queuePair) postError(what string, e C.int32_t) error {
	err := syscall.Errno(e)
	if err == syscall.ENOMEM || err == syscall.EAGAIN {
		return rdma.ErrQueueFull
	}
	return fmt.Errorf("%s: qp %d: post %s: %w", q.d.name, q.num, what, err)
}

// fail moves the queue pair to the error state, so that everything posted completes with a flush error.
func (q *queuePair) fail() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == nil {
		return nil
	}
	return errno(C.gv_qp_error(q.d.lib, q.qp))
}
