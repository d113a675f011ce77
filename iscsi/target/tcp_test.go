package target_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	diskName = "iqn.2026-01.test:disk"
	hostName = "iqn.2026-01.test:host"
)

// A tcpBench is a server on a loopback port.
type tcpBench struct {
	t    testing.TB
	s    *target.Server
	addr string
}

// A unit is a logical unit of a tcpBench.
type unit struct {
	store backstore.Store
	block int // bytes
}

func ramUnit(t testing.TB, size string, block int) unit {
	t.Helper()
	s, err := backstore.Open("ram", backstore.Options{"size": size})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return unit{s, block}
}

// newTCPBench serves units as LUN 0 and on, or else one of 64 MiB of RAM. alter, if not nil, changes what the target
// negotiates.
func newTCPBench(t testing.TB, chunks int, c target.Config, alter func(*iscsi.Config), units ...unit) *tcpBench {
	t.Helper()
	if units == nil {
		units = []unit{ramUnit(t, "64MiB", 512)}
	}
	pool, err := arena.New(int64(chunks) * arena.ChunkSize)
	require.NoError(t, err)
	c.Pool = pool
	s := target.New(c)
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: diskName, MaxTransfer: c.MaxTransfer})
	for n, u := range units {
		_, err = dev.Add(n, u.store, scsi.LUConfig{ID: fmt.Sprint("tcp", n), BlockSize: u.block})
		require.NoError(t, err)
	}
	neg := iscsi.DefaultConfig()
	if alter != nil {
		alter(&neg)
	}
	_, err = s.AddTarget(target.TargetConfig{Name: diskName, Device: dev, Negotiate: neg})
	require.NoError(t, err)
	l, err := tcp.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, s.Serve(l, target.PortalConfig{}))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		require.Equal(t, pool.Chunks(), pool.Free(), "all buffers are back")
		require.NoError(t, pool.Close())
	})
	return &tcpBench{t, s, l.Addr().String()}
}

// A wire is a bare initiator: PDUs on a socket.
type wire struct {
	t     testing.TB
	nc    net.Conn
	cmdSN uint32
	stat  uint32
	itt   uint32
	buf   []byte
	out   []byte
	hdr   [iscsi.BHSSize]byte
	last  iscsi.SCSIResponse
	// longest bounds the data of a PDU from the target, in bytes; 0: nothing does.
	longest int
}

func (b *tcpBench) dial() *wire { return b.dialTo(b.addr) }

func (b *tcpBench) dialTo(addr string) *wire {
	b.t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { nc.Close() })
	return &wire{t: b.t, nc: nc, cmdSN: 1, buf: make([]byte, 2<<20)}
}

func (w *wire) send(bhs *[iscsi.BHSSize]byte, data []byte) {
	iscsi.SetDataLength(bhs, uint32(len(data)))
	w.out = append(w.out[:0], bhs[:]...)
	w.out = append(w.out, data...)
	for len(w.out)%4 != 0 {
		w.out = append(w.out, 0)
	}
	_, err := w.nc.Write(w.out)
	if err != nil {
		w.t.Fatal(err)
	}
}

// recv reads a PDU; its data is valid until the next.
func (w *wire) recv() (*[iscsi.BHSSize]byte, []byte, error) {
	if _, err := io.ReadFull(w.nc, w.hdr[:]); err != nil {
		return nil, nil, err
	}
	n := int(iscsi.DataLengthOf(&w.hdr))
	if w.longest > 0 && n > w.longest {
		w.t.Fatalf("%v with %d bytes, at most %d", iscsi.OpcodeOf(&w.hdr), n, w.longest)
	}
	_, err := io.ReadFull(w.nc, w.buf[:iscsi.Pad4(n)])
	return &w.hdr, w.buf[:n], err
}

func (w *wire) login(isid byte, more ...string) iscsi.LoginResponse {
	return w.join(0, 0, isid, more...)
}

// join logs in to a session that is there, or to a new one (TSIH 0).
func (w *wire) join(tsih, cid uint16, isid byte, more ...string) iscsi.LoginResponse {
	var bhs [iscsi.BHSSize]byte
	r := iscsi.LoginRequest{
		Transit: true, Current: iscsi.StageOperational, Next: iscsi.StageFullFeature, TSIH: tsih, CID: cid,
		ISID: iscsi.ISID{0x80, 0, 0, 0, 0, isid}, ITT: 1, CmdSN: iscsi.CmdSN(w.cmdSN),
	}
	r.Put(&bhs)
	var data []byte
	for _, l := range append([]string{"InitiatorName=" + hostName, "TargetName=" + diskName}, more...) {
		data = append(append(data, l...), 0)
	}
	w.send(&bhs, data)
	got, _, err := w.recv()
	require.NoError(w.t, err)
	var resp iscsi.LoginResponse
	require.NoError(w.t, resp.Parse(got))
	w.stat = uint32(resp.StatSN) + 1
	return resp
}

func (w *wire) scsi(cmd iscsi.SCSICommand, data []byte) uint32 {
	w.itt++
	cmd.ITT, cmd.CmdSN, cmd.ExpStatSN = w.itt, iscsi.CmdSN(w.cmdSN), iscsi.StatSN(w.stat)
	w.cmdSN++
	cmd.Put(&w.hdr)
	w.send(&w.hdr, data)
	return w.itt
}

func cdb10(op byte, lba, blocks int) (c [16]byte) {
	c[0] = op
	binary.BigEndian.PutUint32(c[2:], uint32(lba))
	binary.BigEndian.PutUint16(c[7:], uint16(blocks))
	return c
}

// finish answers R2Ts from src and collects Data-In in dst until a status comes.
func (w *wire) finish(src, dst []byte) (status uint8) {
	for {
		bhs, data, err := w.recv()
		if err != nil {
			w.t.Fatal(err)
		}
		switch iscsi.OpcodeOf(bhs) {
		case iscsi.OpR2T:
			var r iscsi.R2T
			_ = r.Parse(bhs)
			w.dataOut(&r, src)
		case iscsi.OpDataIn:
			var d iscsi.DataIn
			_ = d.Parse(bhs)
			copy(dst[d.Offset:], data)
			if d.HasStatus {
				return d.Status
			}
		case iscsi.OpSCSIResponse:
			_ = w.last.Parse(bhs)
			return w.last.Status
		default:
			w.t.Fatalf("unexpected %v", iscsi.OpcodeOf(bhs))
		}
	}
}

func (w *wire) dataOut(r *iscsi.R2T, src []byte) {
	for off, sn := uint32(0), uint32(0); off < r.Length; sn++ {
		n := min(r.Length-off, 64<<10)
		d := iscsi.DataOut{Final: off+n == r.Length, ITT: r.ITT, TTT: r.TTT, DataSN: sn, Offset: r.Offset + off}
		d.Put(&w.hdr)
		w.send(&w.hdr, src[r.Offset+off:r.Offset+off+n])
		off += n
	}
}

func (w *wire) ready() {
	w.scsi(iscsi.SCSICommand{Final: true}, nil)
	require.EqualValues(w.t, scsi.CheckCondition, w.finish(nil, nil), "unit attention")
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

func TestReadsAndWritesOverTCP(t *testing.T) {
	b := newTCPBench(t, 64, target.Config{}, nil)
	w := b.dial()
	require.Equal(t, iscsi.LoginSuccess, w.login(1, "MaxRecvDataSegmentLength=65536", "InitialR2T=No").Status)
	w.ready()
	for i, size := range []int{512, 4096, 65536, 1 << 20} {
		src, dst := make([]byte, size), make([]byte, size)
		for j := range src {
			src[j] = byte(j>>9) + byte(j) + byte(i)
		}
		for _, imm := range []int{0, min(size, 4096)} {
			w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: uint32(size), CDB: cdb10(0x2a, 16, size/512)}, src[:imm])
			require.Zero(t, w.finish(src, nil), fmt.Sprintf("write %d, %d immediate", size, imm))
			w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: uint32(size), CDB: cdb10(0x28, 16, size/512)}, nil)
			require.Zero(t, w.finish(nil, dst))
			require.Equal(t, src, dst)
		}
	}
}

// TestASessionOfTwoConnectionsOverTCP: large transfers of both at once, each with its own MaxRecvDataSegmentLength.
func TestASessionOfTwoConnectionsOverTCP(t *testing.T) {
	b := newTCPBench(t, 256, target.Config{}, func(c *iscsi.Config) { c.MaxConnections = 2 })
	one, two := b.dial(), b.dial()
	login := one.login(1, "MaxConnections=4", "MaxRecvDataSegmentLength=65536")
	require.Equal(t, iscsi.LoginSuccess, login.Status)
	one.ready()
	require.Equal(t, iscsi.LoginSuccess, two.join(login.TSIH, 1, 1, "MaxRecvDataSegmentLength=4096").Status)
	two.itt = 0x10000
	const size = 1 << 20
	src, dst := make([]byte, size), make([]byte, size)
	for round := range 8 {
		for i := range src {
			src[i] = byte(i>>9) + byte(i)*byte(round+1)
		}
		other := append([]byte(nil), src...)
		other[0]++
		two.cmdSN = one.cmdSN + 1 // it is second, though it may come first
		two.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: size, CDB: cdb10(0x2a, 2048, size/512)}, nil)
		one.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: size, CDB: cdb10(0x2a, 0, size/512)}, nil)
		require.Zero(t, two.finish(other, nil))
		require.Zero(t, one.finish(src, nil))
		one.cmdSN = two.cmdSN
		one.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: size, CDB: cdb10(0x28, 2048, size/512)}, nil)
		require.Zero(t, one.finish(nil, dst))
		require.Equal(t, other, dst)
		two.cmdSN = one.cmdSN
		two.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: size, CDB: cdb10(0x28, 0, size/512)}, nil)
		require.Zero(t, two.finish(nil, dst))
		require.Equal(t, src, dst)
		one.cmdSN = two.cmdSN
	}
}

func BenchmarkTCPRead4K(b *testing.B) {
	bench := newTCPBench(b, 64, target.Config{}, nil)
	w := bench.dial()
	w.login(1)
	w.ready()
	dst := make([]byte, 4096)
	cmd := iscsi.SCSICommand{Final: true, Read: true, EDTL: 4096, CDB: cdb10(0x28, 16, 8)}
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		w.scsi(cmd, nil)
		if w.finish(nil, dst) != 0 {
			b.Fatal("read failed")
		}
	}
}

func BenchmarkTCPWrite4K(b *testing.B) {
	bench := newTCPBench(b, 64, target.Config{}, nil)
	w := bench.dial()
	w.login(1)
	w.ready()
	src := make([]byte, 4096)
	cmd := iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096, CDB: cdb10(0x2a, 16, 8)}
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		w.scsi(cmd, src)
		if w.finish(nil, nil) != 0 {
			b.Fatal("write failed")
		}
	}
}

// Field report LU-07, through sockets: initiators that count up one block by COMPARE AND WRITE, each trying
// again after MISCOMPARE, lose no count; no read shows half of a block.
func TestCompareAndWriteCountsOverTCP(t *testing.T) {
	const initiators, counts = 4, 100
	b := newTCPBench(t, 64, target.Config{}, nil)
	var wg sync.WaitGroup
	for i := range initiators {
		w := b.dial()
		require.Equal(t, iscsi.LoginSuccess, w.login(byte(i+1)).Status)
		w.ready()
		wg.Go(func() {
			block, cdb := make([]byte, 512), [16]byte{0: 0x89, 9: 7, 13: 1}
			for done := 0; done < counts; {
				w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: 512, CDB: cdb10(0x28, 7, 1)}, nil)
				if !assert.Zero(t, w.finish(nil, block)) || !assert.Equal(t, bytes.Repeat(block[:8], 64), block) {
					return
				}
				next := binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(block)+1)
				out := append(block[:512:512], bytes.Repeat(next, 64)...)
				w.scsi(iscsi.SCSICommand{Final: true, Write: true, EDTL: 1024, CDB: cdb}, out)
				switch status := w.finish(out, nil); status {
				case uint8(scsi.Good):
					done++
				default:
					if !assert.EqualValues(t, scsi.CheckCondition, status) {
						return
					}
				}
			}
		})
	}
	wg.Wait()
	w, block := b.dial(), make([]byte, 512)
	require.Equal(t, iscsi.LoginSuccess, w.login(99).Status)
	w.ready()
	w.scsi(iscsi.SCSICommand{Final: true, Read: true, EDTL: 512, CDB: cdb10(0x28, 7, 1)}, nil)
	require.Zero(t, w.finish(nil, block))
	assert.EqualValues(t, initiators*counts, binary.BigEndian.Uint64(block))
}
