package target_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A gated store makes reads and writes wait while its gate is closed.
type gated struct {
	backstore.Store
	mu   sync.RWMutex // held for writing while the gate is closed
	busy chan struct{}
}

func newGated(t *testing.T, size string) *gated {
	return &gated{Store: ramUnit(t, size, 512).store, busy: make(chan struct{}, 256)}
}

func (g *gated) Info() backstore.Info {
	i := g.Store.Info()
	i.NeverBlocks = false
	return i
}

func (g *gated) pass() {
	g.busy <- struct{}{}
	g.mu.RLock()
	defer g.mu.RUnlock()
}

func (g *gated) ReadAt(bufs [][]byte, off int64) error {
	g.pass()
	return g.Store.ReadAt(bufs, off)
}

func (g *gated) WriteAt(bufs [][]byte, off int64, fua bool) error {
	g.pass()
	return g.Store.WriteAt(bufs, off, fua)
}

// content is what a store holds.
func content(t *testing.T, s backstore.Store, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	require.NoError(t, s.ReadAt([][]byte{p}, 0))
	return p
}

// A record is what has come of each task, in order of arrival.
type record struct {
	n      int
	last   map[uint32]int // of a PDU of the task
	status map[uint32]int
	tmf    map[uint32]int
	answer map[uint32]iscsi.TMResponse
}

// take reads PDUs until done holds.
func (r *record) take(w *wire, done func() bool) {
	for !done() {
		require.NoError(w.t, w.nc.SetReadDeadline(time.Now().Add(10*time.Second)))
		bhs, _, err := w.recv()
		require.NoError(w.t, err)
		r.n++
		itt := iscsi.ITTOf(bhs)
		switch op := iscsi.OpcodeOf(bhs); op {
		case iscsi.OpTMFResponse:
			r.tmf[itt], r.answer[itt] = r.n, iscsi.TMResponse(bhs[2])
		case iscsi.OpSCSIResponse:
			require.NotContains(w.t, r.status, itt, "a second status")
			r.last[itt], r.status[itt] = r.n, r.n
		case iscsi.OpDataIn:
			r.last[itt] = r.n
			if bhs[1]&1 != 0 {
				require.NotContains(w.t, r.status, itt, "a second status")
				r.status[itt] = r.n
			}
		case iscsi.OpR2T:
			r.last[itt] = r.n
		case iscsi.OpNOPIn:
			r.last[itt] = r.n
		default:
			w.t.Fatalf("%v", op)
		}
	}
}

func (w *wire) function(f iscsi.TMFunction, itt uint32, unit int, ref uint32, refSN uint32) {
	(&iscsi.TMFRequest{
		Immediate: true, Function: f, ITT: itt, LUN: iscsi.LUNFromNumber(unit), RefITT: ref,
		CmdSN: iscsi.CmdSN(w.cmdSN), RefCmdSN: iscsi.CmdSN(refSN),
	}).Put(&w.hdr)
	w.send(&w.hdr, nil)
}

func (w *wire) ping(itt uint32) {
	(&iscsi.NOPOut{Immediate: true, ITT: itt, TTT: iscsi.ReservedTag, CmdSN: iscsi.CmdSN(w.cmdSN)}).Put(&w.hdr)
	w.send(&w.hdr, nil)
}

// TestCaseTM03: long reads whose data is on its way or queued, writes that wait for data that has been
// asked for, partly come, or is still to come unasked, commands in the store, before it, and held back
// behind others: when a function has been answered, nothing of what it ended is sent and nothing written,
// though data of it still arrives.
func TestCaseTM03(t *testing.T) {
	const (
		long   = 1 << 20
		fast   = 0 // unit, whose store never blocks
		slow   = 1 // unit
		tmfTag = 0x8000
		last   = 0x9000
	)
	for _, f := range []iscsi.TMFunction{
		iscsi.TMAbortTask, iscsi.TMAbortTaskSet, iscsi.TMClearTaskSet, iscsi.TMLogicalUnitReset, iscsi.TMTargetWarmReset,
	} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			g := newGated(t, "4MiB")
			ram := ramUnit(t, "4MiB", 512)
			old := stamp(make([]byte, 4<<20), 1)
			require.NoError(t, ram.store.WriteAt([][]byte{old}, 0, false))
			require.NoError(t, g.Store.WriteAt([][]byte{old}, 0, false))
			b := newCaseBench(t, 1024, target.Config{}, ram, unit{g, 512})
			w := b.dial()
			w.t = t
			defer w.nc.Close()
			require.Equal(t, iscsi.LoginSuccess, w.login(1, "InitialR2T=No", "FirstBurstLength=65536",
				"MaxRecvDataSegmentLength=65536", "MaxBurstLength=65536").Status)
			for _, u := range []int{fast, slow} {
				w.scsi(iscsi.SCSICommand{Final: true, LUN: iscsi.LUNFromNumber(u)}, nil)
				w.finish(nil, nil)
			}
			r := &record{
				last: map[uint32]int{}, status: map[uint32]int{}, tmf: map[uint32]int{},
				answer: map[uint32]iscsi.TMResponse{},
			}
			type sent struct {
				unit  int
				sn    uint32
				write bool
			}
			tasks := map[uint32]sent{}
			send := func(u int, c iscsi.SCSICommand, data []byte) uint32 {
				c.LUN = iscsi.LUNFromNumber(u)
				sn := w.cmdSN
				itt := w.scsi(c, data)
				tasks[itt] = sent{u, sn, c.Write}
				return itt
			}
			fresh := stamp(make([]byte, long), 9)
			g.mu.Lock() // the gate closes
			var r2ts []uint32
			for i := range 4 {
				// Data-Out that has been asked for: of every other one half of it comes before the function. It is known to
				// the initiator once the R2T has come.
				itt := send(fast, iscsi.SCSICommand{Final: true, Write: true, EDTL: long, CDB: cdb10(0x2a, 2048*(i%4), 2048)}, fresh[:4096])
				r2ts = append(r2ts, itt)
			}
			unasked := send(fast, iscsi.SCSICommand{Write: true, EDTL: 65536, CDB: cdb10(0x2a, 0, 128)}, fresh[:4096])
			r.take(w, func() bool { return r.last[r2ts[3]] > 0 })
			for range 2 {
				send(slow, iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096, CDB: cdb10(0x2a, 0, 8)}, fresh[:4096])
				send(slow, iscsi.SCSICommand{Final: true, Read: true, EDTL: long, CDB: cdb10(0x28, 0, 2048)}, nil)
			}
			send(slow, iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096, CDB: cdb10(0x2a, 64, 8), Attr: iscsi.AttrOrdered}, fresh[:4096])
			send(slow, iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096, CDB: cdb10(0x2a, 128, 8)}, fresh[:4096])
			for range 4 {
				<-g.busy
			}
			done := send(fast, iscsi.SCSICommand{Final: true, Read: true, EDTL: 512, CDB: cdb10(0x28, 0, 1)}, nil)
			r.take(w, func() bool { return r.status[done] > 0 })
			for range 16 { // more than the sockets and the target's send queue hold
				send(fast, iscsi.SCSICommand{Final: true, Read: true, EDTL: long, CDB: cdb10(0x28, 0, 2048)}, nil)
			}

			functions := 0
			if f == iscsi.TMAbortTask {
				for itt, s := range tasks {
					w.function(f, tmfTag+itt, s.unit, itt, s.sn)
					functions++
				}
			} else {
				for u := range 2 {
					w.function(f, tmfTag+uint32(u), u, iscsi.ReservedTag, 0)
					functions++
				}
			}
			// Data that was on its way when the function was sent.
			(&iscsi.DataOut{Final: true, ITT: unasked, TTT: iscsi.ReservedTag, Offset: 4096}).Put(&w.hdr)
			w.send(&w.hdr, fresh[4096:65536])
			w.ping(last)
			r.take(w, func() bool { return r.last[last] > 0 })
			if f == iscsi.TMTargetWarmReset {
				require.Empty(t, r.tmf, "answered while a store writes")
			}
			g.mu.Unlock()
			r.take(w, func() bool { return len(r.tmf) == functions })
			now := [2][]byte{content(t, ram.store, 4<<20), content(t, g.Store, 4<<20)}
			w.ping(last + 1)
			r.take(w, func() bool { return r.last[last+1] > 0 })

			assert.True(t, bytes.Equal(old, now[fast]), "no write to the fast unit had its data")
			assert.True(t, bytes.Equal(now[fast], content(t, ram.store, 4<<20)))
			assert.True(t, bytes.Equal(now[slow], content(t, g.Store, 4<<20)), "written after the answer")
			assert.True(t, bytes.Equal(old[64*512:], now[slow][64*512:]), "what was held back has been written")
			for itt, s := range tasks {
				tag := uint32(tmfTag + s.unit)
				if f == iscsi.TMAbortTask {
					tag = tmfTag + itt
				}
				require.Contains(t, r.tmf, tag)
				assert.Less(t, r.last[itt], r.tmf[tag], "task %d: a PDU after the function's response", itt)
				_, answered := r.status[itt]
				switch {
				case f != iscsi.TMAbortTask:
					assert.Equal(t, iscsi.TMComplete, r.answer[tag])
				case answered:
					assert.Contains(t, []iscsi.TMResponse{iscsi.TMNoTask, iscsi.TMComplete}, r.answer[tag])
				default:
					assert.Equal(t, iscsi.TMComplete, r.answer[tag], "task %d has had no answer", itt)
				}
				if s.write {
					assert.False(t, answered, "task %d", itt)
				}
			}
			assert.Contains(t, r.status, done)
		})
	}
}
