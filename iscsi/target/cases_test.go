package target_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore/backstoretest"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Field reports of docs/cases.md, each tried as it says, through a socket.

// stamp marks each 8 bytes with their place and a seed.
func stamp(b []byte, seed uint64) []byte {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], seed<<40+uint64(i))
	}
	return b
}

// chop stands between an initiator and the target: it passes everything on in pieces of size bytes, both ways, and
// rests for a millisecond after every so many of them.
func (b *tcpBench) chop(size int) string {
	b.t.Helper()
	const restAfter = 512
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b.t, err)
	var wg sync.WaitGroup
	pass := func(dst, src net.Conn) {
		buf := make([]byte, size)
		for i := 1; ; i++ {
			n, err := src.Read(buf)
			if err == nil {
				_, err = dst.Write(buf[:n])
			}
			if err != nil {
				dst.Close()
				src.Close()
				return
			}
			if i%restAfter == 0 {
				time.Sleep(time.Millisecond) // what a slow network does
			}
		}
	}
	wg.Go(func() {
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", b.addr)
		if err != nil {
			near.Close()
			return
		}
		wg.Go(func() { pass(far, near) })
		wg.Go(func() { pass(near, far) })
	})
	b.t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// TestCaseDC01: what goes over a network in any pieces is read back as it was written, and no PDU is longer than
// the initiator's MaxRecvDataSegmentLength.
func TestCaseDC01(t *testing.T) {
	t.Parallel()
	const longest = 4096
	b := newTCPBench(t, 256, target.Config{MaxTransfer: 8 << 20}, nil, ramUnit(t, "16MiB", 512))
	for size, lengths := range map[int][]int{
		1: {32 << 10}, 7: {32 << 10}, 48: {32 << 10, 1 << 20}, 49: {32 << 10, 1 << 20}, 1447: {32 << 10, 1 << 20, 8 << 20},
	} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := b.dialTo(b.chop(size))
			w.t, w.longest = t, longest
			defer w.nc.Close()
			require.Equal(t, iscsi.LoginSuccess, w.login(byte(size), fmt.Sprint("MaxRecvDataSegmentLength=", longest)).Status)
			w.ready()
			for i, n := range lengths {
				src, dst := stamp(make([]byte, n), uint64(size+i)), make([]byte, n)
				w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: uint32(n), CDB: cdb10(0x2a, 1, n/512)}, nil)
				require.Zero(t, w.finish(src, nil))
				w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: uint32(n), CDB: cdb10(0x28, 1, n/512)}, nil)
				require.Zero(t, w.finish(nil, dst))
				require.True(t, bytes.Equal(src, dst), "%d bytes", n)
			}
		})
	}
}

// expect is the next PDU, which must be an op.
func (w *wire) expect(op iscsi.Opcode) (*[iscsi.BHSSize]byte, []byte) {
	w.t.Helper()
	bhs, data, err := w.recv()
	require.NoError(w.t, err)
	require.Equal(w.t, op.String(), iscsi.OpcodeOf(bhs).String())
	return bhs, data
}

// TestCaseWP04: while writes wait for their data, everything else is answered at once; then the data of two writes
// comes mixed, PDU by PDU. That of a third never comes, and dies with the session.
func TestCaseWP04(t *testing.T) {
	b := newTCPBench(t, 64, target.Config{}, nil, ramUnit(t, "16MiB", 512))
	w := b.dial()
	defer w.nc.Close()
	require.Equal(t, iscsi.LoginSuccess, w.login(1, "InitialR2T=Yes", "MaxRecvDataSegmentLength=65536", "MaxBurstLength=1048576").Status)
	w.ready()
	src := [][]byte{stamp(make([]byte, 1<<20), 1), stamp(make([]byte, 128<<10), 2)}
	var r2t [2]iscsi.R2T
	w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1 << 20, CDB: cdb10(0x2a, 0, 2048)}, nil)
	bhs, _ := w.expect(iscsi.OpR2T)
	require.NoError(t, r2t[0].Parse(bhs))

	w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: 4096, CDB: cdb10(0x28, 8192, 8)}, nil)
	require.Zero(t, w.finish(nil, make([]byte, 4096)), "a read")
	(&iscsi.NOPOut{Immediate: true, ITT: 0x900, TTT: iscsi.ReservedTag, CmdSN: iscsi.CmdSN(w.cmdSN)}).Put(&w.hdr)
	w.send(&w.hdr, []byte("hello"))
	_, data := w.expect(iscsi.OpNOPIn)
	require.Equal(t, "hello", string(data))
	(&iscsi.TMFRequest{Immediate: true, Function: iscsi.TMAbortTask, ITT: 0x901, RefITT: 0x77, CmdSN: iscsi.CmdSN(w.cmdSN), RefCmdSN: 1}).Put(&w.hdr)
	w.send(&w.hdr, nil)
	bhs, _ = w.expect(iscsi.OpTMFResponse)
	var tmf iscsi.TMFResponse
	require.NoError(t, tmf.Parse(bhs))
	require.Equal(t, iscsi.TMNoTask, tmf.Response)
	(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 0x902, TTT: iscsi.ReservedTag, CmdSN: iscsi.CmdSN(w.cmdSN)}).Put(&w.hdr)
	w.send(&w.hdr, []byte("SendTargets=\x00"))
	_, data = w.expect(iscsi.OpTextResponse)
	require.Contains(t, string(data), "TargetName="+diskName)
	w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: 128 << 10, CDB: cdb10(0x2a, 4096, 256)}, src[1][:4096])
	bhs, _ = w.expect(iscsi.OpR2T)
	require.NoError(t, r2t[1].Parse(bhs))
	require.EqualValues(t, 4096, r2t[1].Offset)
	w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1 << 20, CDB: cdb10(0x2a, 8192, 2048)}, nil)
	w.expect(iscsi.OpR2T) // never answered

	var done [2]uint32
	for sn := uint32(0); done[0] < r2t[0].Length || done[1] < r2t[1].Length; sn++ {
		for i, r := range r2t {
			n := min(r.Length-done[i], 4096)
			if n == 0 {
				continue
			}
			off := r.Offset + done[i]
			done[i] += n
			(&iscsi.DataOut{Final: done[i] == r.Length, ITT: r.ITT, TTT: r.TTT, DataSN: sn, Offset: off}).Put(&w.hdr)
			w.send(&w.hdr, src[i][off:off+n])
		}
	}
	for range src {
		bhs, _ = w.expect(iscsi.OpSCSIResponse)
		require.Zero(t, bhs[3], "status")
	}
	for i, lba := range []int{0, 4096} {
		dst := make([]byte, len(src[i]))
		w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: uint32(len(dst)), CDB: cdb10(0x28, lba, len(dst)/512)}, nil)
		require.Zero(t, w.finish(nil, dst))
		require.True(t, bytes.Equal(src[i], dst), "write %d", i)
	}
}

// TestCaseWP12: a write of 64 KiB that comes in pieces of odd sizes is one write, and its neighbours stay as they are.
func TestCaseWP12(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	splits := [][]int{{5792, 15880, 11536, 2848, 11536, 5744, 12200}}
	rng := rand.New(rand.NewPCG(1, 12))
	for range 500 {
		var s []int
		for left := size; left > 0; left -= s[len(s)-1] {
			s = append(s, min(left, 1+rng.IntN(16384)))
		}
		splits = append(splits, s)
	}
	b := newTCPBench(t, 64, target.Config{}, nil, ramUnit(t, "1MiB", 512), ramUnit(t, "1MiB", 4096))
	w := b.dial()
	defer w.nc.Close()
	require.Equal(t, iscsi.LoginSuccess, w.login(1, "InitialR2T=Yes", "MaxRecvDataSegmentLength=262144").Status)
	for n, block := range []int{512, 4096} {
		number := iscsi.LUNFromNumber(n)
		w.scsi(iscsi.SCSICommand{Final: true, LUN: number}, nil)
		require.EqualValues(t, scsi.CheckCondition, w.finish(nil, nil), "unit attention")
		around := bytes.Repeat([]byte{0xa5}, size+2*block)
		w.scsi(iscsi.SCSICommand{Final: true, Write: true, LUN: number, EDTL: uint32(len(around)), CDB: cdb10(0x2a, 7, len(around)/block)}, nil)
		require.Zero(t, w.finish(around, nil))
		for i, s := range splits {
			copy(around[block:], stamp(make([]byte, size), uint64(i+1)))
			src := around[block : block+size]
			w.scsi(iscsi.SCSICommand{Final: true, Write: true, LUN: number, EDTL: size, CDB: cdb10(0x2a, 8, size/block)}, src[:s[0]])
			off := uint32(s[0])
			var r iscsi.R2T
			if off < size {
				bhs, _ := w.expect(iscsi.OpR2T)
				require.NoError(t, r.Parse(bhs))
				require.Equal(t, []uint32{off, size - off}, []uint32{r.Offset, r.Length})
			}
			for sn, piece := range s[1:] {
				end := off + uint32(piece)
				(&iscsi.DataOut{Final: end == size, ITT: r.ITT, TTT: r.TTT, DataSN: uint32(sn), Offset: off}).Put(&w.hdr)
				w.send(&w.hdr, src[off:end])
				off = end
			}
			require.Zero(t, w.finish(nil, nil), "split %v", s)
			dst := make([]byte, len(around))
			w.scsi(iscsi.SCSICommand{Final: true, Read: true, LUN: number, EDTL: uint32(len(dst)), CDB: cdb10(0x28, 7, len(dst)/block)}, nil)
			require.Zero(t, w.finish(nil, dst))
			require.True(t, bytes.Equal(around, dst), "split %v", s)
		}
	}
}

// TestCasePF01: long reads in a deep queue, of an initiator that takes them slowly and then fast, never come to a halt.
func TestCasePF01(t *testing.T) {
	t.Parallel()
	const standstill = 5 * time.Second
	b := newTCPBench(t, 256, target.Config{MaxTransfer: 8 << 20}, nil, ramUnit(t, "8MiB", 512))
	for _, row := range []struct{ depth, size int }{{64, 8 << 20}, {128, 1 << 20}, {256, 1 << 20}} {
		t.Run(fmt.Sprintf("%d reads of %d", row.depth, row.size), func(t *testing.T) {
			w := b.dial()
			w.t = t
			defer w.nc.Close()
			require.NoError(t, w.nc.(*net.TCPConn).SetReadBuffer(64<<10))
			login := w.login(1, "MaxRecvDataSegmentLength=65536", "MaxBurstLength=262144")
			require.Equal(t, iscsi.LoginSuccess, login.Status)
			w.ready()
			want := stamp(make([]byte, row.size), 1)
			w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: uint32(row.size), CDB: cdb10(0x2a, 0, row.size/512)}, nil)
			require.Zero(t, w.finish(want, nil))
			sent, most := 0, login.MaxCmdSN
			for done := 0; done < row.depth; {
				for ; sent < row.depth && !iscsi.CmdSN(w.cmdSN).After(most); sent++ {
					w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: uint32(row.size), CDB: cdb10(0x28, 0, row.size/512)}, nil)
				}
				require.NoError(t, w.nc.SetReadDeadline(time.Now().Add(standstill)))
				bhs, data := w.expect(iscsi.OpDataIn)
				var d iscsi.DataIn
				require.NoError(t, d.Parse(bhs))
				require.True(t, bytes.Equal(want[d.Offset:][:len(data)], data), "data at %d", d.Offset)
				if done == 0 && d.Offset < 1<<20 {
					time.Sleep(10 * time.Millisecond) // the slow reader
				}
				if d.HasStatus {
					require.Zero(t, d.Status)
					most = d.MaxCmdSN
					done++
				}
			}
		})
	}
}

// TestCaseLG05: initiators that stop in the middle of a login, and a store that does not answer, are in nobody's way.
func TestCaseLG05(t *testing.T) {
	const loginTimeout, good = time.Second, time.Second
	goroutines := runtime.NumGoroutine()
	stuck := &backstoretest.Gate{Store: ramUnit(t, "1MiB", 512).store}
	stuck.Hold()
	b := newTCPBench(t, 64, target.Config{LoginTimeout: loginTimeout}, nil, ramUnit(t, "1MiB", 512), unit{stuck, 512})
	defer stuck.Release()

	holder := b.dial() // more reads than there are workers stand in the store
	holder.login(200)
	holder.ready()
	holder.scsi(iscsi.SCSICommand{Final: true, LUN: iscsi.LUNFromNumber(1)}, nil)
	holder.finish(nil, nil)
	for range 40 {
		holder.scsi(iscsi.SCSICommand{Final: true, Read: true, LUN: iscsi.LUNFromNumber(1), EDTL: 512, CDB: cdb10(0x28, 0, 1)}, nil)
	}
	stuck.Held(t, 1)

	var request [iscsi.BHSSize]byte
	(&iscsi.LoginRequest{Current: iscsi.StageOperational, ISID: iscsi.ISID{0x80, 1}, ITT: 1, CmdSN: 1}).Put(&request)
	var silent []*wire
	for i := range 50 {
		w := b.dial()
		_, err := w.nc.Write(request[:i%3*24]) // 0, 24 or 48 bytes; the last promise no data
		require.NoError(t, err)
		silent = append(silent, w)
	}
	for range 10 {
		w := b.dial()
		w.send(&request, []byte("InitiatorName="+hostName+"\x00TargetName="+diskName+"\x00"))
		silent = append(silent, w)
	}
	for i := range 20 {
		start := time.Now()
		w := b.dial()
		require.Equal(t, iscsi.LoginSuccess, w.login(byte(i)).Status)
		w.ready()
		assert.Less(t, time.Since(start), good)
		w.nc.Close()
	}
	for _, w := range silent {
		require.NoError(t, w.nc.SetReadDeadline(time.Now().Add(2*loginTimeout)))
		_, err := io.Copy(io.Discard, w.nc) // until it is closed
		assert.NoError(t, err, "closed, not timed out")
		w.nc.Close()
	}
	w := b.dial()
	require.Equal(t, iscsi.LoginSuccess, w.login(99).Status)
	w.nc.Close()
	stuck.Release()
	holder.nc.Close()
	require.Eventually(t, func() bool { return len(b.s.Sessions()) == 0 }, 5*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+10 }, 5*time.Second, time.Millisecond,
		"nothing of them is left: %d goroutines before", goroutines)
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
			g := &backstoretest.Gate{Store: ramUnit(t, "4MiB", 512).store}
			ram := ramUnit(t, "4MiB", 512)
			old := stamp(make([]byte, 4<<20), 1)
			require.NoError(t, ram.store.WriteAt([][]byte{old}, 0, false))
			require.NoError(t, g.Store.WriteAt([][]byte{old}, 0, false))
			b := newTCPBench(t, 1024, target.Config{}, nil, ram, unit{g, 512})
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
			g.Hold()
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
			g.Held(t, 4)
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
			g.Release()
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
