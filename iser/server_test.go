package iser

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	engine "github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/fabric"
	"github.com/goiser/goiser/scsi"
)

// Statements of ISER.md 8 about the whole target, against an initiator that is played by hand.

const serverName = "iqn.2026-01.test:disk"

// A server is the target engine with a RAM disk on a fabric.
type server struct {
	t   testing.TB
	f   *fabric.Fabric
	s   *engine.Server
	dev *scsi.Device
	ram []byte
}

func newServer(t testing.TB, o fabric.Options) *server {
	s := &server{t: t, f: fabric.New(o)}
	pool, err := arena.New(64 * arena.ChunkSize)
	require.NoError(t, err)
	ram, err := backstore.Open("ram", backstore.Options{"size": "1MiB"})
	require.NoError(t, err)
	s.ram = ram.(backstore.Mapper).Memory()
	dev := scsi.NewDevice(scsi.DeviceConfig{Name: serverName})
	_, err = dev.Add(0, ram, scsi.LUConfig{ID: "server"})
	require.NoError(t, err)
	s.dev = dev
	s.s = engine.New(engine.Config{Pool: pool, MaxSessions: 256, MaxLogins: 256})
	neg := iscsi.DefaultConfig()
	neg.MaxConnections = 2 // for who asks
	_, err = s.s.AddTarget(engine.TargetConfig{Name: serverName, Device: dev, Negotiate: neg})
	require.NoError(t, err)
	lis, err := Listen(s.f, portal, TargetConfig{})
	require.NoError(t, err)
	require.NoError(t, s.s.Serve(lis, engine.PortalConfig{}))
	t.Cleanup(func() { // the peers have gone
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, s.s.Shutdown(ctx))
		assert.Equal(t, pool.Chunks(), pool.Free(), "chunks lost")
		require.NoError(t, pool.Close())
		require.NoError(t, ram.Close())
		assert.Zero(t, s.f.Gauges())
	})
	return s
}

// A hand is a peer with the numbers of a session.
type hand struct {
	*peer
	cmdSN iscsi.CmdSN
}

func (s *server) connect() *hand {
	s.t.Helper()
	return &hand{connectPeer(s.t, s.f, agreed, func() {}), 1}
}

func (h *hand) pdu(put func(*[iscsi.BHSSize]byte), data []byte) {
	h.t.Helper()
	var bhs [iscsi.BHSSize]byte
	put(&bhs)
	iscsi.SetDataLength(&bhs, uint32(len(data)))
	h.send(append(append((&Header{}).Append(nil), bhs[:]...), data...))
}

// login sends a whole login of a session with the keys and takes the answer.
func (h *hand) login(isid byte, keys ...string) iscsi.LoginResponse {
	h.t.Helper()
	return h.join(0, 0, isid, keys...)
}

// join does so for a connection of a session.
func (h *hand) join(tsih, cid uint16, isid byte, keys ...string) iscsi.LoginResponse {
	h.t.Helper()
	h.post(1)
	r := iscsi.LoginRequest{
		Transit: true, Current: iscsi.StageOperational, Next: iscsi.StageFullFeature,
		ISID: iscsi.ISID{0x80, 5: isid}, TSIH: tsih, CID: cid, ITT: 1, CmdSN: h.cmdSN,
	}
	h.pdu(r.Put, []byte(strings.Join(append(keys, ""), "\x00")))
	bhs := h.recv().b[HeaderSize:]
	var resp iscsi.LoginResponse
	require.NoError(h.t, resp.Parse((*[iscsi.BHSSize]byte)(bhs)))
	return resp
}

var (
	normalKeys    = []string{"InitiatorName=iqn.2026-01.test:host", "TargetName=" + serverName, "RDMAExtensions=Yes"}
	discoveryKeys = []string{"InitiatorName=iqn.2026-01.test:host", "SessionType=Discovery"}
)

// session logs in and takes the unit attention.
func (s *server) session(isid byte) *hand {
	s.t.Helper()
	h := s.connect()
	require.Equal(s.t, iscsi.LoginSuccess, h.login(isid, normalKeys...).Status)
	h.post(1)
	h.command(wireCommand{SCSICommand: iscsi.SCSICommand{Final: true, ITT: 1}})
	require.EqualValues(s.t, scsi.CheckCondition, h.status(1))
	return h
}

// command sends w in its turn.
func (h *hand) command(w wireCommand) {
	h.t.Helper()
	w.CmdSN = h.cmdSN
	h.cmdSN++
	h.send(w.bytes())
}

// status is that of the next PDU, a SCSI Response of the task.
func (h *hand) status(itt uint32) byte {
	h.t.Helper()
	b := h.recv().b[HeaderSize:]
	require.Equal(h.t, byte(iscsi.OpSCSIResponse), b[0])
	require.Equal(h.t, itt, binary.BigEndian.Uint32(b[16:]))
	return b[3]
}

func readCDB(lba, blocks int) (c [16]byte) {
	c[0] = 0x28
	binary.BigEndian.PutUint32(c[2:], uint32(lba))
	binary.BigEndian.PutUint16(c[7:], uint16(blocks))
	return c
}

func writeCDB(lba, blocks int) [16]byte {
	c := readCDB(lba, blocks)
	c[0] = 0x2a
	return c
}

// TestConnectionsCutAtEveryStep is conformance 11 and 71: whatever a connection had come to when it was cut, nothing
// of it is left.
func TestConnectionsCutAtEveryStep(t *testing.T) {
	s := newServer(t, fabric.Options{TwoDevices: true})
	steps := []func(i int){
		func(int) { // the REQ, with nobody waiting for the REP
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			ep, err := s.f.Resolve(ctx, portal)
			require.NoError(t, err)
			p := newPeer(t, ep)
			cancel()
			_ = ep.Connect(ctx, agreed)
			p.close()
		},
		func(int) { s.connect().close() },
		func(int) { // a first login PDU
			h := s.connect()
			h.post(1)
			h.pdu((&iscsi.LoginRequest{Current: iscsi.StageOperational, ITT: 1, CmdSN: 1}).Put, []byte(normalKeys[0]+"\x00"+normalKeys[1]+"\x00"))
			h.recv()
			h.close()
		},
		func(i int) { // the last
			h := s.connect()
			require.Equal(t, iscsi.LoginSuccess, h.login(byte(i), normalKeys...).Status)
			h.close()
		},
		func(i int) { // discovery, without a logout
			h := s.connect()
			require.Equal(t, iscsi.LoginSuccess, h.login(byte(i), discoveryKeys...).Status)
			h.post(1)
			h.pdu((&iscsi.TextRequest{Immediate: true, Final: true, ITT: 2, TTT: iscsi.ReservedTag, CmdSN: 1}).Put, []byte("SendTargets=All\x00"))
			require.Contains(t, string(h.recv().b), serverName)
			h.close()
		},
	}
	s.session(0xff).close() // the first brings what stays
	left := func() bool { g := s.f.Gauges(); return g.Endpoints+g.QueuePairs+g.CompletionQueues == 0 }
	require.Eventually(t, left, patience, time.Millisecond)
	idle := s.f.Gauges()
	for i := range 100 * len(steps) {
		steps[i%len(steps)](i)
	}
	require.Eventually(t, func() bool { return s.f.Gauges() == idle }, patience, time.Millisecond, "%+v", s.f.Gauges())
	s.session(1).close()
}

// TestLoginOf8192Bytes is conformance 52 and field report LG-07.
func TestLoginOf8192Bytes(t *testing.T) {
	s := newServer(t, fabric.Options{TwoDevices: true})
	for _, n := range []int{8191, 8192} {
		h := s.connect()
		keys, length := append([]string(nil), normalKeys...), 0
		for _, k := range keys {
			length += len(k) + 1
		}
		for i := 0; length < n; i++ {
			k := fmt.Sprintf("X-pad%d=", i)
			k += strings.Repeat("x", min(200, n-length-len(k)-1))
			if rest := n - length - len(k) - 1; rest > 0 && rest < 20 { // no room for another
				k += strings.Repeat("x", rest)
			}
			keys = append(keys, k)
			length += len(k) + 1
		}
		require.Equal(t, n, length)
		require.Equal(t, iscsi.LoginSuccess, h.login(byte(n), keys...).Status, "%d bytes", n)
		h.close()
	}
	h := s.connect()
	h.start(append(append((&Header{}).Append(nil), func() []byte {
		var bhs [iscsi.BHSSize]byte
		(&iscsi.LoginRequest{Transit: true, Current: 1, Next: 3, ITT: 1, CmdSN: 1}).Put(&bhs)
		iscsi.SetDataLength(&bhs, 8193)
		return bhs[:]
	}()...), make([]byte, 8193+3)...))
	h.post(1)
	h.until(func() bool { return len(h.bad) > 0 || len(h.got) > 0 })
	if len(h.got) > 0 {
		require.NotZero(t, h.got[0].b[HeaderSize+36], "refused")
	}
	h.close()
	s.session(3).close()
}

// TestAWriteThatCannotBeFetchedWritesNothing is conformance 30 and 83: the memory is shorter than announced, or the
// initiator goes away in the middle.
func TestAWriteThatCannotBeFetchedWritesNothing(t *testing.T) {
	const length = 128 << 10
	for name, away := range map[string]bool{"short region": false, "connection cut": true} {
		t.Run(name, func(t *testing.T) {
			o := fabric.Options{TwoDevices: true, Seed: 5} // Reads take their time
			s := newServer(t, o)
			copy(s.ram, pattern(make([]byte, 1<<20), 7))
			before := bytes.Clone(s.ram)
			h := s.session(1)
			size := length
			if !away {
				size -= 4096
			}
			m := h.lend(size, rdma.RemoteRead)
			pattern(m.mem, 8) // neither what was there nor the zeros of a buffer that was not filled
			w := writeCommand(5, m, length, nil)
			w.CDB = writeCDB(0, length/512)
			h.command(w)
			if !away {
				h.post(1)
				h.until(func() bool { return len(h.bad) > 0 })
			}
			h.close()
			require.Eventually(t, func() bool { return len(s.s.Sessions()) == 0 }, patience, time.Millisecond)
			if away && bytes.Equal(before[length:], s.ram[length:]) && bytes.Equal(m.mem, s.ram[:length]) {
				t.Skip("the whole write was fetched before the connection was cut")
			}
			require.True(t, bytes.Equal(before, s.ram), "nothing is written, not even what was fetched")
		})
	}
}

// TestDuplicatesCostNoReceive is conformance 109: a command that is sent again is dropped, as often as it comes, and its
// buffer posted again.
func TestDuplicatesCostNoReceive(t *testing.T) {
	s := newServer(t, fabric.Options{TwoDevices: true, RNRFatal: true})
	h := s.session(1)
	h.post(1)
	w := writeCommand(9, lent{}, 512, pattern(make([]byte, 512), 1))
	w.CDB = writeCDB(0, 1)
	h.command(w)
	require.Zero(t, h.status(9))
	again := w
	again.data = pattern(make([]byte, 512), 2)
	for range 1000 {
		h.cmdSN--
		h.command(again)
		// What it is answered shows that its receive is there again: without one the next Send would be fatal.
		h.post(1)
		h.pdu((&iscsi.NOPOut{Immediate: true, ITT: 3, TTT: iscsi.ReservedTag, CmdSN: h.cmdSN}).Put, nil)
		require.Equal(t, byte(iscsi.OpNOPIn), h.recv().b[HeaderSize])
	}
	require.Equal(t, pattern(make([]byte, 512), 1), s.ram[:512], "executed once")
	h.close()
}

// TestKeysAreInvalidatedOnce is conformance 107: over many commands of all kinds, with aborts among them, the target
// invalidates the key of a task that reads or writes, at most once, and no other; the peer finds each other key valid.
func TestKeysAreInvalidatedOnce(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	const size, tmf = 8192, 0x5000
	s := newServer(t, fabric.Options{TwoDevices: true, RNRFatal: true})
	h := s.session(1)
	rng := rand.New(rand.NewPCG(1, 107))
	access := rdma.RemoteWrite | rdma.RemoteRead
	m := h.lendOnce(size, access)
	invalidated, posted := 0, 0
	for i := range rounds {
		itt := uint32(0x100 + i)
		var w wireCommand
		mayInvalidate := true
		switch rng.IntN(4) {
		case 0:
			w = readCommand(itt, m, size)
			w.CDB = readCDB(0, size/512)
		case 1:
			w = writeCommand(itt, m, size, nil)
			w.CDB = writeCDB(0, size/512)
		case 2: // its inline part may lie in what the key covers
			w = writeCommand(itt, m, size, make([]byte, 512))
			w.CDB, mayInvalidate = writeCDB(0, size/512), false
		case 3:
			w = wireCommand{SCSICommand: iscsi.SCSICommand{Final: true, ITT: itt}}
			mayInvalidate = false
		}
		abort := rng.IntN(4) == 0
		h.post(2 - posted)
		posted = 2
		h.command(w)
		if abort {
			h.pdu((&iscsi.TMFRequest{Immediate: true, Function: iscsi.TMAbortTask, ITT: tmf, RefITT: itt, CmdSN: h.cmdSN, RefCmdSN: h.cmdSN - 1}).Put, nil)
		}
		gone := false
		for done := false; !done; {
			a := h.recv()
			posted--
			switch op := iscsi.Opcode(a.b[HeaderSize]); op {
			case iscsi.OpTMFResponse:
				require.False(t, a.invalidated)
				done = true // the task was answered before, or never is
			case iscsi.OpSCSIResponse:
				require.Equal(t, itt, binary.BigEndian.Uint32(a.b[HeaderSize+16:]), "round %d", i)
				done = !abort
				if a.invalidated {
					require.True(t, mayInvalidate, "round %d", i)
					require.Equal(t, m.key, a.key)
					require.False(t, gone)
					gone = true
				}
			default:
				t.Fatalf("round %d: %v", i, op)
			}
		}
		require.Empty(t, h.bad)
		if gone {
			invalidated++
			m = h.lendOnce(size, access)
		}
	}
	require.Greater(t, invalidated, rounds/4)
	// The last key is still good, whatever was aborted.
	h.post(1 - posted)
	w := readCommand(0x50, m, size)
	w.CDB = readCDB(0, size/512)
	h.command(w)
	require.Zero(t, h.status(0x50))
	h.close()
}
