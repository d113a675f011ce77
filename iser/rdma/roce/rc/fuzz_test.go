package rc

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// instructionSize is what one packet takes of a fuzz input: see fuzzPacket.
const instructionSize = 12

// fuzzed is what a fuzz input is let loose on: a queue pair with work of every kind under way, and memory of which
// two pieces are open.
type fuzzed struct {
	q         *QP
	now       time.Time
	all       []byte
	open      rdma.MemoryRegion // to everybody, bytes [1024, 3072)
	local     rdma.MemoryRegion // to ourselves, [4096, 8192)
	sends     int
	recvs     int
	completed [2]int
	buf       []byte
	room      int
	bad       string
}

func (f *fuzzed) Packet(_ *QP, op wire.Opcode, n int) wire.Packet {
	if f.room == 0 {
		return nil
	}
	f.room--
	return wire.New(f.buf, op, n)
}

func (f *fuzzed) Complete(_ *QP, c rdma.Completion) {
	i := 0
	if c.Recv {
		i = 1
	}
	if c.ID != uint64(f.completed[i]) {
		f.bad = "completions are out of order"
	}
	f.completed[i]++
}

func newFuzzed(t *testing.T) *fuzzed {
	c := config()
	c.Memory = NewMemory(1)
	f := &fuzzed{q: New(c), now: time.Unix(9, 0), all: make([]byte, 9216), buf: make([]byte, 512)}
	var err error
	f.open, err = c.Memory.Register(f.all[1024:3072], rights)
	require.NoError(t, err)
	f.local, err = c.Memory.Register(f.all[4096:8192], rdma.LocalWrite)
	require.NoError(t, err)
	for i, op := range []rdma.OpCode{rdma.OpSend, rdma.OpRead, rdma.OpWrite, rdma.OpRead, rdma.OpSend} {
		_, err := f.q.PostSend([]rdma.SendWR{{ID: uint64(i), Op: op, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Piece(f.local, 0, 700)}}}, f)
		require.NoError(t, err)
		f.sends++
	}
	for ; f.recvs < 6; f.recvs++ {
		_, err := f.q.PostRecv([]rdma.RecvWR{{ID: uint64(f.recvs), SGL: []rdma.SGE{rdma.Piece(f.local, 2048, 600)}}}, f)
		require.NoError(t, err)
	}
	f.room = 1000
	f.q.Transmit(f.now, f)
	return f
}

// fuzzPacket makes a packet of an instruction: opcode, PSN from the next expected one, payload size, flags, RETH
// offset and length, AETH syndrome. So inputs get past the first checks.
func (f *fuzzed) fuzzPacket(in []byte) (wire.Packet, bool) {
	op := wire.Opcode(in[0] % 24)
	if op.Traits() == 0 {
		return nil, false
	}
	p := wire.New(make([]byte, 400), op, int(binary.LittleEndian.Uint16(in[2:])%300))
	for i := range p.Payload() {
		p.Payload()[i] = 0xff
	}
	p.SetDestQP(f.q.cfg.QPN)
	base := psn(f.q.resp.exp)
	if op.Is(wire.Response) {
		base = psn(f.q.req.una)
	}
	p.SetPSN(base.Add(uint32(int8(in[1]))))
	if in[4]&1 != 0 {
		p.SetAckReq()
	}
	switch {
	case op.HasRETH():
		key := f.open.RKey() + uint32(in[4]>>7)
		p.SetRETH(f.open.Addr()+uint64(int16(binary.LittleEndian.Uint16(in[5:]))), key, uint32(binary.LittleEndian.Uint16(in[7:])))
	case op.HasIETH():
		p.SetInvalidateKey(f.open.RKey())
	case op.Is(wire.Response) && op != wire.ReadRespMiddle:
		p.SetAETH(wire.Syndrome(in[9]), 0)
	}
	return p, true
}

func FuzzReceive(f *testing.F) {
	seed := func(ops ...[instructionSize]byte) {
		var b []byte
		for _, o := range ops {
			b = append(b, o[:]...)
		}
		f.Add(b)
	}
	seed([instructionSize]byte{0, 0, 0, 1}, [instructionSize]byte{1, 0, 0, 1}, [instructionSize]byte{2, 0, 44, 0, 1})
	seed([instructionSize]byte{6, 0, 0, 1, 0, 0, 0, 0, 2}, [instructionSize]byte{8, 0, 0, 1, 1}, [instructionSize]byte{12, 0, 0, 0, 1, 9, 0, 0, 3})
	seed([instructionSize]byte{12, 0, 0, 0, 0, 0, 0, 0, 4}, [instructionSize]byte{12, 0xfe, 0, 0, 0, 0, 2, 0, 1})
	seed([instructionSize]byte{17, 2, 0, 0, 0, 0, 0, 0, 0, 0x1f}, [instructionSize]byte{13, 0, 0, 1, 0, 0, 0, 0, 0, 0x1f}, [instructionSize]byte{15, 0, 0, 1})
	seed([instructionSize]byte{17, 1, 0, 0, 0, 0, 0, 0, 0, 0x60}, [instructionSize]byte{17, 0, 0, 0, 0, 0, 0, 0, 0, 0x21}, [instructionSize]byte{17, 5, 0, 0, 0, 0, 0, 0, 0, 0x62})
	seed([instructionSize]byte{17, 9, 0, 0, 0, 0, 0, 0, 0, 0x1f, 200, 7}, [instructionSize]byte{4, 0, 10, 0, 1, 0, 0, 0, 0, 0, 9, 1})
	f.Add([]byte(wire.New(make([]byte, 64), wire.SendOnly, 8)))
	f.Fuzz(func(t *testing.T, in []byte) {
		e := newFuzzed(t)
		if p, err := wire.Parse(in); err == nil { // as it is
			e.q.Receive(e.now, p, e)
		}
		for n := 0; len(in) >= instructionSize && n < 200; n++ {
			if p, ok := e.fuzzPacket(in); ok {
				e.q.Receive(e.now, p, e)
			}
			if in[10] != 0 { // a round: how late, and how much room
				e.now = e.now.Add(time.Duration(in[10]) * time.Millisecond)
				e.room = int(in[11])
				e.q.Transmit(e.now, e)
			}
			in = in[instructionSize:]
		}
		e.room = 1 << 20
		e.q.Transmit(e.now, e)
		require.False(t, e.q.More(), "there was room")
		e.q.Fail(rdma.WRFlushErr, e)
		require.Empty(t, e.bad)
		require.Equal(t, [2]int{e.sends, e.recvs}, e.completed)
		for _, closed := range [][]byte{e.all[:1024], e.all[3072:4096], e.all[4096+700 : 4096+2048], e.all[4096+2648:]} {
			require.Equal(t, len(closed), bytes.Count(closed, []byte{0}), "memory that is not open was written")
		}
	})
}
