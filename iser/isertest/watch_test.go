package isertest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
)

// A bench is a watch on a provider that does nothing by itself: it takes all, and gives the completions that it is told
// to give.
type bench struct {
	t      *testing.T
	watch  *Watch
	wrongs []string
	events []Event
	dev    rdma.Device
	ep     rdma.Endpoint
	qp     rdma.QueuePair
	cq     rdma.CompletionQueue
	next   []rdma.Completion
	ids    []uint64 // as the device sees them, of the send queue
	recvs  []uint64
	mem    []byte
	serial uint32 // of regions and windows
}

const benchQP = 7

func newBench(t *testing.T) *bench {
	b := &bench{t: t, mem: make([]byte, 4096)}
	b.watch = New("bench", 4096, Faults{}, func(f string, a ...any) { b.wrongs = append(b.wrongs, fmt.Sprintf(f, a...)) })
	b.watch.StableWrites()
	b.watch.Observe(func(e Event) { b.events = append(b.events, e) })
	var err error
	b.ep, err = b.watch.Provider(deaf{b: b}).Resolve(t.Context(), netip.AddrPort{})
	require.NoError(t, err)
	b.dev = b.ep.Device()
	b.cq, err = b.dev.NewCQ(8)
	require.NoError(t, err)
	b.qp, err = b.ep.CreateQP(rdma.QPConfig{SendCQ: b.cq, RecvCQ: b.cq})
	require.NoError(t, err)
	return b
}

// deaf is everything of the provider below.
type deaf struct {
	rdma.Provider
	rdma.Device
	rdma.CompletionQueue
	b *bench
}

type deafEndpoint struct {
	rdma.Endpoint
	d deaf
}

type deafQP struct {
	rdma.QueuePair
	b *bench
}

func (d deaf) Name() string { return "deaf" }
func (d deaf) Close() error { return nil }
func (d deaf) Resolve(context.Context, netip.AddrPort) (rdma.Endpoint, error) {
	return deafEndpoint{d: d}, nil
}
func (d deaf) NewCQ(int) (rdma.CompletionQueue, error)                { return d, nil }
func (e deafEndpoint) Device() rdma.Device                            { return e.d }
func (e deafEndpoint) Close() error                                   { return nil }
func (e deafEndpoint) CreateQP(rdma.QPConfig) (rdma.QueuePair, error) { return deafQP{b: e.d.b}, nil }

func (d deaf) NewWindow() (rdma.Window, error) {
	d.b.serial++
	return &deafWindow{d.b.serial << 8}, nil
}

func (d deaf) Register(mem []byte, _ rdma.Access) (rdma.MemoryRegion, error) {
	d.b.serial++
	return deafRegion(d.b.serial), nil
}

func (d deaf) Poll(cs []rdma.Completion) (int, error) {
	n := copy(cs, d.b.next)
	d.b.next = d.b.next[n:]
	return n, nil
}

func (q deafQP) Num() uint32 { return benchQP }

func (q deafQP) PostSend(wrs []rdma.SendWR) (int, error) {
	for i := range wrs {
		q.b.ids = append(q.b.ids, wrs[i].ID)
		if w, ok := wrs[i].Window.(*deafWindow); ok {
			w.key++
			_, ours := wrs[i].Region.(deafRegion)
			require.True(q.b.t, ours, "the device gets its own region")
		}
	}
	return len(wrs), nil
}

func (q deafQP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	for i := range wrs {
		q.b.recvs = append(q.b.recvs, wrs[i].ID)
	}
	return len(wrs), nil
}

type deafWindow struct{ key uint32 }

func (w *deafWindow) RKey() uint32 { return w.key }
func (w *deafWindow) Close() error { return nil }

type deafRegion uint32

func (r deafRegion) LKey() uint32      { return uint32(r) }
func (r deafRegion) RKey() uint32      { return uint32(r) }
func (r deafRegion) Addr() uint64      { return uint64(r) << 32 }
func (r deafRegion) Deregister() error { return nil }

func (b *bench) register(access rdma.Access) rdma.MemoryRegion {
	mr, err := b.dev.Register(make([]byte, 4096), access)
	require.NoError(b.t, err)
	return mr
}

func (b *bench) post(wrs ...rdma.SendWR) {
	_, err := b.qp.PostSend(wrs)
	require.NoError(b.t, err)
}

// bind binds a new window to the first n bytes of r, and sees it done.
func (b *bench) bind(r rdma.MemoryRegion, n uint32, access rdma.Access) rdma.Window {
	w, err := b.dev.NewWindow()
	require.NoError(b.t, err)
	b.post(rdma.SendWR{Op: rdma.OpBindWindow, Flags: rdma.Signaled, Window: w, Region: r, SGL: []rdma.SGE{rdma.Piece(r, 0, n)}, Access: access})
	b.complete()
	return w
}

// command posts a SCSI Command that offers n bytes of r for reading data into, or for writing from it.
func (b *bench) command(itt uint32, write bool, key uint32, addr uint64, n, immediate uint32) {
	mem := make([]byte, 4096)
	mr, err := b.dev.Register(mem, 0)
	require.NoError(b.t, err)
	h := iser.Header{Flags: iser.ReadValid, ReadSTag: key, ReadBase: addr}
	if write {
		h = iser.Header{Flags: iser.WriteValid, WriteSTag: key, WriteBase: addr}
	}
	head := h.Append(mem[:0])
	bhs := (*[iscsi.BHSSize]byte)(mem[len(head):])
	bhs[0] = byte(iscsi.OpSCSICommand)
	bhs[1] = 0x80
	iscsi.SetDataLength(bhs, immediate)
	binary.BigEndian.PutUint32(bhs[16:], itt)
	binary.BigEndian.PutUint32(bhs[offEDTL:], n)
	b.post(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(mr, 0, uint32(len(head)+iscsi.BHSSize))}})
}

// complete ends the oldest send.
func (b *bench) complete() {
	b.next = append(b.next, rdma.Completion{ID: b.ids[0], QPNum: benchQP})
	b.ids = b.ids[1:]
	b.poll()
}

func (b *bench) poll() {
	var cs [4]rdma.Completion
	_, err := b.cq.Poll(cs[:])
	require.NoError(b.t, err)
}

// respond delivers the response to a command, which invalidates a key if it is not 0.
func (b *bench) respond(itt, key uint32) {
	mem := make([]byte, 128)
	mr, err := b.dev.Register(mem, rdma.LocalWrite)
	require.NoError(b.t, err)
	_, err = b.qp.PostRecv([]rdma.RecvWR{{SGL: []rdma.SGE{rdma.Piece(mr, 0, 128)}}})
	require.NoError(b.t, err)
	head := (&iser.Header{}).Append(mem[:0])
	mem[len(head)] = byte(iscsi.OpSCSIResponse)
	binary.BigEndian.PutUint32(mem[len(head)+16:], itt)
	b.next = append(b.next, rdma.Completion{
		ID: b.recvs[0], QPNum: benchQP, Recv: true, ByteLen: uint32(len(head) + iscsi.BHSSize),
		Invalidated: key != 0, InvalidatedKey: key,
	})
	b.recvs = b.recvs[1:]
	b.poll()
}

const readAccess = rdma.LocalWrite | rdma.WindowBind

// Each rule about keys can be broken, and is seen to be.
func TestWatchKnowsKeys(t *testing.T) {
	end := func(key uint32) rdma.SendWR {
		return rdma.SendWR{Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvalidateKey: key}
	}
	for _, c := range []struct {
		name, wrong string // wrong: empty if nothing is
		do          func(b *bench, r rdma.MemoryRegion, w rdma.Window)
	}{
		{"ended by us", "", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.complete()
			b.respond(1, 0)
			b.post(end(w.RKey()))
			b.complete()
			x := b.bind(r, 512, rdma.RemoteWrite)
			b.command(2, false, x.RKey(), r.Addr(), 512, 0)
		}},
		{"ended by the peer, before the Send has completed", "", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.respond(1, w.RKey())
			b.complete()
		}},
		{"given up, and ended", "", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.complete()
			b.post(end(w.RKey()))
			b.complete()
			x := b.bind(r, 512, rdma.RemoteWrite)
			b.command(2, false, x.RKey(), r.Addr(), 512, 0)
		}},
		{"twice by us", "is not bound: twice?", func(b *bench, _ rdma.MemoryRegion, w rdma.Window) {
			b.post(end(w.RKey()), end(w.RKey()))
		}},
		{"by the peer and by us", "is not bound: twice?", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.complete()
			b.respond(1, w.RKey())
			b.post(end(w.RKey()))
		}},
		{"too early", "before the Send that offered it has completed", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.respond(1, 0)
			b.post(end(w.RKey()))
		}},
		{"never", "was not invalidated", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.complete()
			b.respond(1, 0)
			x := b.bind(r, 512, rdma.RemoteWrite)
			b.command(2, false, x.RKey(), r.Addr(), 512, 0)
		}},
		{"another's", "not its to invalidate", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			other := b.register(readAccess)
			x := b.bind(other, 512, rdma.RemoteWrite)
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.command(2, false, x.RKey(), other.Addr(), 512, 0)
			b.respond(1, x.RKey())
			b.command(3, false, 0, 0, 0, 0)
		}},
		{"memory that is not answered", "has not been answered", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 512, 0)
			b.command(2, false, w.RKey(), r.Addr(), 512, 0)
		}},
		{"too much", "grants 0x6 and not only 0x2", func(b *bench, r rdma.MemoryRegion, _ rdma.Window) {
			x := b.bind(r, 512, rdma.RemoteWrite|rdma.RemoteRead)
			b.command(1, false, x.RKey(), r.Addr(), 512, 0)
		}},
		{"too far", "beyond what its key opens", func(b *bench, r rdma.MemoryRegion, w rdma.Window) {
			b.command(1, false, w.RKey(), r.Addr(), 513, 0)
		}},
		{"unknown", "the unknown key 0x777", func(b *bench, r rdma.MemoryRegion, _ rdma.Window) {
			b.command(1, false, 0x777, r.Addr(), 512, 0)
		}},
		{"nothing to do", "nothing to do with it", func(b *bench, r rdma.MemoryRegion, _ rdma.Window) {
			x := b.bind(r, 512, rdma.RemoteRead)
			b.command(1, true, x.RKey(), r.Addr(), 512, 512)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			r := b.register(readAccess)
			c.do(b, r, b.bind(r, 512, rdma.RemoteWrite))
			if c.wrong == "" {
				assert.Empty(t, b.wrongs)
				return
			}
			require.NotEmpty(t, b.wrongs)
			assert.Contains(t, b.wrongs[0], c.wrong)
		})
	}
}

func TestWatchTellsOfEveryStep(t *testing.T) {
	b := newBench(t)
	r := b.register(readAccess)
	w := b.bind(r, 512, rdma.RemoteWrite)
	b.command(1, false, w.RKey(), r.Addr(), 512, 0)
	b.respond(1, w.RKey())
	b.complete()
	var steps []string
	for _, e := range b.events {
		steps = append(steps, fmt.Sprintf("%s %v %s %d", e.Step, e.Op, e.What, e.Tag))
	}
	assert.Equal(t, []string{
		"bound Bind Window  0", "completed Bind Window  0", "posted Send SCSI Command 1", "invalidated opcode 0  1", "delivered opcode 0 SCSI Response 1",
		"completed Send SCSI Command 1",
	}, steps)
}

// An RDMA Write's memory may change only by right.
func TestWatchSeesWritesChange(t *testing.T) {
	b := newBench(t)
	mem := make([]byte, 512)
	mr, err := b.dev.Register(mem, 0)
	require.NoError(t, err)
	b.post(rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(mr, 0, 512)}})
	mem[100]++
	b.complete()
	require.NotEmpty(t, b.wrongs)
	assert.Contains(t, b.wrongs[0], "has changed before it has completed")
}
