package iser

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// A siege is our initiator with commands outstanding, and a target that means harm.
type siege struct {
	*iniBench
	p        *peer
	read     message // a read of 600 bytes, by a pool
	write    message // a write of 8192 bytes, by a pool
	place    message // a read of 4096 bytes in the middle of its caller's memory
	in, mem  []byte
	out      []byte
	commands []*iscsi.Transfer
}

const siegeRead, siegeWrite, siegePlace = 1, 2, 3

func besiege(t testing.TB) *siege {
	s := &siege{in: bytes.Repeat([]byte{0xee}, 600), out: pattern(make([]byte, 8192), 9)}
	s.iniBench, s.p = newInitiator(t, strict, InitiatorConfig{QueueDepth: 4, PoolBytes: 1})
	s.enable(normalParams())
	s.p.post(8)
	s.mem = make([]byte, 3*4096) // the fabric needs none that is mapped
	for i := range s.mem {
		s.mem[i] = 0xee
	}
	require.NoError(t, s.ini.Register(s.mem))
	s.commands = append(s.commands, s.command(siegeRead, s.in, nil), s.command(siegeWrite, nil, s.out),
		s.iniBench.place(siegePlace, s.mem[4096:8192], false))
	require.NoError(t, s.ini.Flush())
	for _, m := range []*message{&s.read, &s.write, &s.place} {
		*m, _ = received(t, s.p.recv())
	}
	return s
}

// lifted checks that nothing was harmed and that everything is accounted for, and closes both ends. released are the
// commands whose release has been told.
func (s *siege) lifted(released map[*iscsi.Transfer]int) {
	require.NoError(s.t, s.ini.Close())
	for _, tr := range s.commands {
		n := released[tr]
		assert.LessOrEqual(s.t, n, 1, "command %d", tr.ITT)
		assert.True(s.t, n == 1 || tr.InPlace, "command %d was not released", tr.ITT)
	}
	for i, b := range s.mem {
		if i < 4096 || i >= 8192 {
			require.Equal(s.t, byte(0xee), b, "byte %d of memory that was not offered", i)
		}
	}
	require.Equal(s.t, pattern(make([]byte, len(s.out)), 9), s.out)
	s.p.close()
	g := s.f.Gauges()
	require.Zero(s.t, g.Regions+g.Windows+g.QueuePairs+g.CompletionQueues, "%+v", g)
}

func releases(evs []iscsi.Event) map[*iscsi.Transfer]int {
	n := map[*iscsi.Transfer]int{}
	for _, ev := range evs {
		if ev.Kind == iscsi.EventReleased {
			n[ev.Transfer]++
		}
	}
	return n
}

// TestHostileTarget: each ends the connection with an error that says why, nothing of the caller's is harmed, and every
// buffer is accounted for.
func TestHostileTarget(t *testing.T) {
	pdu := func(op iscsi.Opcode, itt uint32, data int) []byte {
		b := make([]byte, fixedSize+data)
		(&Header{}).Append(b[:0])
		b[HeaderSize], b[HeaderSize+1] = byte(op), 0x80
		binary.BigEndian.PutUint32(b[HeaderSize+4:], uint32(data))
		binary.BigEndian.PutUint32(b[HeaderSize+16:], itt)
		return b
	}
	with := func(b []byte, at int, v ...byte) []byte { copy(b[at:], v); return b }
	say := func(b []byte) func(*siege) { return func(s *siege) { s.p.start(b) } }
	put := func(key uint32, addr uint64, n int) func(*siege) {
		return func(s *siege) { s.p.put(key, addr, bytes.Repeat([]byte{0xdd}, n)) }
	}
	invalidate := func(s *siege, itt, key uint32) {
		s.p.startOp(rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: key}, pdu(iscsi.OpSCSIResponse, itt, 0))
	}
	const gone = "closed by the peer" // the device has ended it
	for name, c := range map[string]struct {
		do   func(*siege)
		says string
	}{
		"writes with a key that was not given":   {put(0x12345678, 0x1000, 8), gone},
		"writes with key zero":                   {put(0, 0, 8), gone},
		"writes with a write's key":              {func(s *siege) { put(s.write.WriteSTag, s.write.WriteBase, 8)(s) }, gone},
		"reads with a read's key":                {func(s *siege) { s.p.get(s.read.ReadSTag, s.read.ReadBase, 8) }, gone},
		"writes one byte too far":                {func(s *siege) { put(s.read.ReadSTag, s.read.ReadBase, 601)(s) }, gone},
		"writes one byte too early":              {func(s *siege) { put(s.place.ReadSTag, s.place.ReadBase-1, 8)(s) }, gone},
		"writes behind memory in place":          {func(s *siege) { put(s.place.ReadSTag, s.place.ReadBase+4096, 8)(s) }, gone},
		"writes at an address that wraps":        {func(s *siege) { put(s.place.ReadSTag, ^uint64(3), 8)(s) }, gone},
		"writes with the key of another command": {func(s *siege) { put(s.read.ReadSTag, s.place.ReadBase, 8)(s) }, gone},
		"reads one byte too far":                 {func(s *siege) { s.p.get(s.write.WriteSTag, s.write.WriteBase, 8193) }, gone},
		"writes after its response": {func(s *siege) {
			s.p.answer(iscsi.SCSIResponse{ITT: siegePlace})
			s.until(iscsi.EventPDU)
			require.NoError(s.t, s.ini.Flush())
			put(s.place.ReadSTag, s.place.ReadBase, 8)(s)
		}, gone},
		"invalidates another command's key": {func(s *siege) { invalidate(s, siegeRead, s.place.ReadSTag) }, "which was given"},
		"invalidates a key with a NOP-In": {func(s *siege) {
			s.p.startOp(rdma.SendWR{Op: rdma.OpSendInv, InvalidateKey: s.read.ReadSTag}, pdu(iscsi.OpNOPIn, iscsi.ReservedTag, 0))
		}, "invalidated STag"},
		"invalidates for an unknown command": {func(s *siege) { invalidate(s, 77, s.read.ReadSTag) }, "of no command"},
		"invalidates nonsense":               {func(s *siege) { invalidate(s, siegeRead, 0xdeadbeef) }, "remote"},
		"invalidates twice": {func(s *siege) {
			invalidate(s, siegeRead, s.read.ReadSTag)
			s.until(iscsi.EventPDU)
			require.NoError(s.t, s.ini.Flush())
			invalidate(s, siegeWrite, s.read.ReadSTag)
		}, "remote"},
		"sends an R2T":                         {say(pdu(iscsi.OpR2T, siegeWrite, 0)), "RDMA stands for these"},
		"sends Data-In":                        {say(pdu(iscsi.OpDataIn, siegeRead, 600)), "RDMA stands for these"},
		"sends Data-In with status":            {say(with(pdu(iscsi.OpDataIn, siegeRead, 0), HeaderSize+1, 0x81)), "RDMA stands for these"},
		"sends nothing":                        {say(nil), "too short"},
		"sends a header only":                  {say(pdu(iscsi.OpNOPIn, 1, 0)[:HeaderSize]), "too short"},
		"sends a PDU that is cut":              {say(pdu(iscsi.OpNOPIn, 1, 0)[:fixedSize-1]), "too short"},
		"announces more data than comes":       {say(with(pdu(iscsi.OpSCSIResponse, siegeRead, 20), HeaderSize+7, 25)), "DataSegmentLength"},
		"announces all the data there can be":  {say(with(pdu(iscsi.OpSCSIResponse, siegeRead, 20), HeaderSize+5, 0xff, 0xff, 0xff)), "DataSegmentLength"},
		"announces less data than comes":       {say(with(pdu(iscsi.OpSCSIResponse, siegeRead, 20), HeaderSize+7, 15)), "DataSegmentLength"},
		"announces AHS that do not come":       {say(with(pdu(iscsi.OpSCSIResponse, siegeRead, 0), HeaderSize+4, 1)), "DataSegmentLength"},
		"announces more AHS than there can be": {say(with(pdu(iscsi.OpSCSIResponse, siegeRead, 8000), HeaderSize+4, 0xff)), "TotalAHSLength"},
		"sends more than a receive buffer has": {func(s *siege) {
			s.p.startOp(rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{rdma.Piece(s.p.mr, 0, recvSize+1)}}, nil)
		}, "longer than our receive buffer"},
		"sends Hello":                           {say(with(pdu(iscsi.OpNOPIn, 1, 0), 0, 0x20)), "Hello"},
		"sends HelloReply":                      {say(with(pdu(iscsi.OpNOPIn, 1, 0), 0, 0x30)), "HelloReply"},
		"sends an iSER message of type 15":      {say(with(pdu(iscsi.OpNOPIn, 1, 0), 0, 0xf0)), "message type 15"},
		"sends the obsolete header of RFC 5046": {say(append(make([]byte, 12), with(pdu(iscsi.OpLoginRequest, 1, 40), 0, 0)[HeaderSize:]...)), "message type 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := besiege(t)
			c.do(s)
			evs, err := s.fails()
			require.ErrorContains(t, err, c.says)
			for _, ev := range evs {
				require.Equal(t, iscsi.EventReleased, ev.Kind, "the engine is told of nothing that was wrong")
			}
			s.lifted(releases(evs))
		})
	}
}

// FuzzHostileTarget plays what a target may do, by a program: two bytes a step. Whatever it is, the callers' memory
// that was not offered stays as it is, what was given up is not written to, every command is released once, and
// nothing is left.
func FuzzHostileTarget(f *testing.F) {
	for _, seed := range []string{
		"", "\x00\x00", "\x01\x00\x01\x01\x01\x02", "\x02\x00\x02\x11\x02\x22", "\x02\x10", "\x03\x00\x03\x12\x04\x01\x01\x00\x03\x00",
		"\x05\x00\x05\x01\x05\x02\x03\x02\x03\x00", "\x06\x07\x06\x30\x06\xff", "\x05\x02\x02\x22", "\x07\x01\x07\x02\x01\x03\x02\x00", "\x04\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		s := besiege(t)
		a := &assault{siege: s, released: map[*iscsi.Transfer]int{}, given: map[*iscsi.Transfer]bool{}}
		for i := 0; i+1 < len(program) && i < 2*60; i += 2 {
			a.step(program[i], program[i+1])
		}
		if s.err == nil {
			s.p.start(nil) // ends it
			s.p.poll()
		}
		for range 3 {
			a.take()
		}
		s.lifted(a.released)
		for i := range s.commands {
			if s.commands[i].ITT == siegeRead && a.given[s.commands[i]] {
				require.Equal(t, bytes.Repeat([]byte{0x5a}, 600), s.in, "written after it was given up")
			}
		}
	})
}

// An assault is a siege that a program runs.
type assault struct {
	*siege
	released map[*iscsi.Transfer]int
	given    map[*iscsi.Transfer]bool // back to its caller
}

// take takes what has happened.
func (a *assault) take() {
	for _, ev := range a.wait(0) {
		if ev.Kind == iscsi.EventReleased {
			a.released[ev.Transfer]++
		}
	}
	_ = a.ini.Flush()
}

func (a *assault) step(op, arg byte) {
	one, two := &a.siege.read, [3]*message{&a.siege.read, &a.siege.write, &a.siege.place}[int(arg>>4)%3]
	one = [3]*message{one, &a.siege.write, &a.siege.place}[int(arg&15)%3]
	itt := uint32(arg&15)%3 + 1
	key := func(m *message) (uint32, uint64) { return m.ReadSTag | m.WriteSTag, m.ReadBase | m.WriteBase }
	k, addr := key(one)
	other, _ := key(two)
	reply := responseBytes(iscsi.SCSIResponse{ITT: itt})
	wr := rdma.SendWR{Op: rdma.OpSend}
	switch op % 8 {
	case 0: // a message of nonsense
		a.p.start(bytes.Repeat([]byte{arg}, int(arg)))
	case 1:
		a.p.start(reply)
	case 2: // with an invalidation, right or wrong
		wr.Op, wr.InvalidateKey = rdma.OpSendInv, other
		a.p.startOp(wr, reply)
	case 3: // writes, somewhere near
		a.p.put(k, addr+uint64(int64(int8(arg))>>4), bytes.Repeat([]byte{0xdd}, 64))
	case 4:
		a.p.get(k, addr, int(arg)+1)
	case 5: // the caller gives up; the engine does as it does
		if tr := a.commands[itt-1]; !a.given[tr] && a.released[tr] == 0 {
			a.given[tr] = true
			if !tr.InPlace {
				a.ini.Detach(tr)
			}
			if itt == siegeRead {
				copy(a.in, bytes.Repeat([]byte{0x5a}, len(a.in)))
			}
			a.ini.Forget(tr)
		}
	case 6: // a response with one byte changed
		reply[int(arg)%len(reply)] ^= 1 << (arg & 7)
		a.p.start(reply)
	case 7: // a response twice
		a.p.start(reply)
		a.take()
		a.p.start(reply)
	}
	a.p.poll()
	a.take()
}
