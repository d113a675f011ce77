package iser

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// A model is a device, and what it checks of its user at every step: who may read and write which memory, and under
// which key. Nothing in it happens by itself: the walk decides each step. Everything that is wrong panics with a breach.
type model struct {
	regions map[uint32]*modelRegion // by key, which is the local and the remote one
	bound   map[uint32]*modelWindow // by key
	windows int                     // not closed
	serial  uint32
	sq      []modelPost
	begun   int // of sq: executed
	cq      []rdma.Completion
	recvs   []rdma.RecvWR
	failed  bool // the queue pair is in the error state
	closed  bool
}

// A breach is a rule that was broken.
type breach string

func breachf(format string, args ...any) { panic(breach(fmt.Sprintf(format, args...))) }

// A modelPost is a work request whose completion has not come.
type modelPost struct {
	wr   rdma.SendWR
	sent []byte // what a Send reads, as it was when it was posted
	key  uint32 // that a command's Send offers, or that a bind opens
}

type modelRegion struct {
	m      *model
	mem    []byte
	access rdma.Access
	key    uint32
}

func (r *modelRegion) LKey() uint32 { return r.key }
func (r *modelRegion) RKey() uint32 { return r.key }
func (r *modelRegion) Addr() uint64 { return uint64(r.key) << 32 }

// Deregister is a breach while the device may use the memory.
func (r *modelRegion) Deregister() error {
	for _, p := range r.m.sq {
		for _, e := range p.wr.SGL {
			if e.LKey == r.key && !r.m.closed {
				breachf("memory of a work request that has not completed is deregistered")
			}
		}
	}
	for _, w := range r.m.bound {
		if w.region == r {
			breachf("memory is deregistered while a window is bound to it")
		}
	}
	delete(r.m.regions, r.key)
	return nil
}

type modelWindow struct {
	m      *model
	next   uint32 // last key posted
	region *modelRegion
	addr   uint64
	n      uint32
	access rdma.Access
}

func (w *modelWindow) RKey() uint32 { return w.next }

func (w *modelWindow) Close() error {
	if !w.m.closed {
		breachf("a window is closed while the queue pair lives")
	}
	for k, b := range w.m.bound {
		if b == w {
			delete(w.m.bound, k)
		}
	}
	w.m.windows--
	return nil
}

func (m *model) Name() string { return "model" }
func (m *model) Limits() rdma.Limits {
	return rdma.Limits{MaxMessage: 1 << 30, MaxSGE: 4, MaxReadSGE: 4, MaxQPDepth: 1000, MaxCQDepth: 4000, MaxReadDepth: 4, Windows: true}
}

func (m *model) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	m.serial += 1 << 8
	r := &modelRegion{m: m, mem: mem, access: access, key: m.serial}
	m.regions[r.key] = r
	return r, nil
}

func (m *model) NewWindow() (rdma.Window, error) {
	m.serial += 1 << 8
	m.windows++
	return &modelWindow{m: m, next: m.serial}, nil
}

func (m *model) NewCQ(int) (rdma.CompletionQueue, error)        { return modelCQ{m}, nil }
func (m *model) Device() rdma.Device                            { return m }
func (m *model) LocalAddr() netip.AddrPort                      { return portal }
func (m *model) RemoteAddr() netip.AddrPort                     { return portal }
func (m *model) Peer() rdma.ConnParam                           { return rdma.ConnParam{} }
func (m *model) CreateQP(rdma.QPConfig) (rdma.QueuePair, error) { return m, nil }
func (m *model) Connect(context.Context, rdma.ConnParam) error  { return nil }
func (m *model) Accept(rdma.ConnParam) error                    { return nil }
func (m *model) Reject([]byte) error                            { return nil }
func (m *model) Num() uint32                                    { return 7 }
func (m *model) Disconnect() error                              { m.fail(); return nil }
func (m *model) Close() error                                   { m.fail(); m.closed = true; return nil }

// A modelCQ is the model as a completion queue: the two have a Close each.
type modelCQ struct{ m *model }

func (c modelCQ) Poll(cs []rdma.Completion) (int, error) {
	n := copy(cs, c.m.cq)
	c.m.cq = c.m.cq[n:]
	return n, nil
}
func (c modelCQ) Wait(time.Time) error { return nil }
func (c modelCQ) Wake()                {}
func (c modelCQ) Close() error         { return nil }

func (m *model) PostRecv(wrs []rdma.RecvWR) (int, error) {
	for _, wr := range wrs {
		wr.SGL = append([]rdma.SGE(nil), wr.SGL...)
		if m.failed {
			m.cq = append(m.cq, rdma.Completion{ID: wr.ID, Status: rdma.WRFlushErr, Recv: true})
			continue
		}
		m.recvs = append(m.recvs, wr)
	}
	return len(wrs), nil
}

func (m *model) PostSend(wrs []rdma.SendWR) (int, error) {
	if m.closed {
		return 0, net.ErrClosed
	}
	for _, wr := range wrs {
		wr.SGL = append([]rdma.SGE(nil), wr.SGL...)
		p := modelPost{wr: wr}
		switch wr.Op {
		case rdma.OpSend:
			p.sent = m.gather(wr.SGL)
			p.key = m.offer(p.sent)
		case rdma.OpBindWindow:
			w := wr.Window.(*modelWindow)
			w.next = rdma.NextKey(w.next)
			p.key = w.next
		}
		m.sq = append(m.sq, p)
	}
	if m.failed {
		m.flush()
	}
	return len(wrs), nil
}

// gather is the memory that local keys open.
func (m *model) gather(sgl []rdma.SGE) (b []byte) {
	for _, e := range sgl {
		r := m.regions[e.LKey]
		if r == nil {
			breachf("a Send reads memory that is not registered")
		}
		b = append(b, r.mem[e.Addr-r.Addr():][:e.Length]...)
	}
	return b
}

// offer is the key that a command offers. One that needs none must not have one.
func (m *model) offer(b []byte) uint32 {
	var msg message
	if err := msg.parse(b); err != nil {
		breachf("a message that cannot be read: %v", err)
	}
	if iscsi.OpcodeOf(msg.BHS) != iscsi.OpSCSICommand {
		return 0
	}
	edtl := binary.BigEndian.Uint32(msg.BHS[20:])
	if msg.Flags&WriteValid != 0 && uint32(len(msg.Data)) == edtl {
		breachf("a key is offered with a write that is all inline")
	}
	return msg.ReadSTag | msg.WriteSTag
}

// execute does the next work request, as far as it is our device's. A Send's bytes are what the peer gets.
func (m *model) execute() (sent []byte) {
	p := &m.sq[m.begun]
	m.begun++
	switch p.wr.Op {
	case rdma.OpBindWindow:
		w, e := p.wr.Window.(*modelWindow), p.wr.SGL[0]
		for _, b := range m.bound {
			if b == w {
				breachf("a window is bound whose last key is not dead")
			}
		}
		r := p.wr.Region.(*modelRegion)
		if m.regions[r.key] != r || r.access&rdma.WindowBind == 0 || e.LKey != r.key {
			breachf("a window is bound to memory that does not allow it")
		}
		w.region, w.addr, w.n, w.access = r, e.Addr, e.Length, p.wr.Access
		m.bound[p.key] = w
	case rdma.OpLocalInv:
		if m.bound[p.wr.InvalidateKey] == nil {
			breachf("a dead key is invalidated")
		}
		for _, q := range m.sq {
			if q.wr.Op == rdma.OpSend && q.key == p.wr.InvalidateKey {
				breachf("a key is invalidated before the Send that offered it has completed")
			}
		}
		delete(m.bound, p.wr.InvalidateKey)
	case rdma.OpSend:
		return p.sent
	}
	return nil
}

// complete ends the oldest work request that was executed, with those before it that make no completion.
func (m *model) complete() {
	for m.begun > 0 {
		p := m.sq[0]
		m.sq = m.sq[1:]
		m.begun--
		if p.wr.Flags&rdma.Signaled != 0 {
			m.cq = append(m.cq, rdma.Completion{ID: p.wr.ID})
			return
		}
	}
}

// completable reports whether complete would say something.
func (m *model) completable() bool {
	for _, p := range m.sq[:m.begun] {
		if p.wr.Flags&rdma.Signaled != 0 {
			return true
		}
	}
	return false
}

// fail moves the queue pair to the error state.
func (m *model) fail() {
	if !m.failed {
		m.failed = true
		m.flush()
	}
}

// flush completes everything with an error.
func (m *model) flush() {
	for _, p := range m.sq {
		m.cq = append(m.cq, rdma.Completion{ID: p.wr.ID, Status: rdma.WRFlushErr})
	}
	for _, r := range m.recvs {
		m.cq = append(m.cq, rdma.Completion{ID: r.ID, Status: rdma.WRFlushErr, Recv: true})
	}
	m.sq, m.begun, m.recvs = nil, 0, nil
}

// deliver is a Send of the peer's.
func (m *model) deliver(b []byte, invalidated bool, key uint32) {
	r := m.recvs[0]
	m.recvs = m.recvs[1:]
	e := r.SGL[0]
	reg := m.regions[e.LKey]
	copy(reg.mem[e.Addr-reg.Addr():][:e.Length], b)
	if invalidated {
		delete(m.bound, key)
	}
	m.cq = append(m.cq, rdma.Completion{ID: r.ID, Recv: true, ByteLen: uint32(len(b)), Invalidated: invalidated, InvalidatedKey: key})
}

// remote is the memory that the peer may use with need through key, nil if it must not.
func (m *model) remote(key uint32, addr uint64, n uint32, need rdma.Access) []byte {
	r, from, size, access := m.regions[key], uint64(0), uint64(0), rdma.Access(0)
	if w := m.bound[key]; w != nil {
		r, from, size, access = w.region, w.addr, uint64(w.n), w.access
		if access != need {
			breachf("a key grants %#x, wanted is %#x", access, need)
		}
	} else if r != nil {
		from, size, access = r.Addr(), uint64(len(r.mem)), r.access
		if access&(rdma.RemoteRead|rdma.RemoteWrite) == rdma.RemoteRead|rdma.RemoteWrite {
			breachf("a key grants both directions")
		}
	}
	if r == nil || access&need == 0 || addr < from || addr-from > size || uint64(n) > size-(addr-from) {
		return nil
	}
	return r.mem[addr-r.Addr():][:n]
}

// check looks at what the device may still read: nothing of it may have changed.
func (m *model) check() {
	if m.closed {
		return
	}
	for _, p := range m.sq {
		if p.wr.Op == rdma.OpSend && !bytes.Equal(p.sent, m.gather(p.wr.SGL)) {
			breachf("what a Send reads has changed before it completed")
		}
	}
}
