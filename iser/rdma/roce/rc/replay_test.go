package rc

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/goiser/goiser/iser/rdma/roce/wiretest"
)

// A call is a connection of a capture, as its REQ and REP made it.
type call struct {
	qpn [2]wire.QPN // of the active and the passive side
	psn [2]wire.PSN // that each expects first
	src [2]netip.Addr
	mtu int
}

// calls finds the connections (IBTA 12.6; offsets from the transport header: 12 BTH, 8 DETH, 24 MAD).
func calls(ps []wiretest.Packet) []call {
	at24 := func(p wiretest.Packet, off int) uint32 { return binary.BigEndian.Uint32(p.Packet[44+off:]) >> 8 }
	reqs := map[uint32]call{}
	done := map[wire.QPN]bool{}
	var cs []call
	for _, p := range ps {
		if p.Opcode() != wire.UDSendOnly {
			continue
		}
		switch binary.BigEndian.Uint16(p.Packet[20+16:]) {
		case 0x10: // REQ
			id := binary.BigEndian.Uint32(p.Packet[44:])
			reqs[id] = call{
				src: [2]netip.Addr{p.Src}, qpn: [2]wire.QPN{wire.QPN(at24(p, 32))}, psn: [2]wire.PSN{wire.PSN(at24(p, 44))}, mtu: 128 << (p.Packet[44+50] >> 4),
			}
		case 0x13: // REP
			c, ok := reqs[binary.BigEndian.Uint32(p.Packet[48:])]
			if ok && !done[c.qpn[0]] {
				done[c.qpn[0]] = true
				c.src[1], c.qpn[1], c.psn[1] = p.Src, wire.QPN(at24(p, 12)), wire.PSN(at24(p, 20))
				cs = append(cs, c)
			}
		}
	}
	return cs
}

// A replay is a responder in place of one side of a captured connection.
type replay struct {
	*lone
	reqs    []wire.Packet // from the peer
	answers []wire.Packet // captured
	refused map[wire.PSN]wire.Syndrome
	data    map[wire.PSN][]byte // captured in Read responses
	grants  map[uint32]*grant
}

func newReplay(t *testing.T, ps []wiretest.Packet, c call, side int) *replay {
	cfg := config()
	cfg.QPN, cfg.PeerQPN, cfg.RecvPSN, cfg.MTU = c.qpn[side], c.qpn[1-side], c.psn[side], c.mtu
	cfg.Memory = NewMemory(9)
	r := &replay{
		lone:    &lone{t: t, q: New(cfg), now: time.Unix(1, 0), room: 1000, mem: make([]byte, 64<<10)},
		refused: map[wire.PSN]wire.Syndrome{}, data: map[wire.PSN][]byte{}, grants: map[uint32]*grant{},
	}
	var err error
	r.mr, err = cfg.Memory.Register(r.mem, rights)
	require.NoError(t, err)
	notReady := map[wire.PSN]bool{}
	for _, p := range ps {
		op := p.Opcode()
		switch {
		case p.Src == c.src[1-side] && p.DestQP() == cfg.QPN && op.Is(wire.Request) && op != wire.UDSendOnly:
			r.reqs = append(r.reqs, p.Packet)
		case p.Src == c.src[side] && p.DestQP() == cfg.PeerQPN && op.Is(wire.Response):
			r.answers = append(r.answers, p.Packet)
			if op.Is(wire.Read) {
				r.data[p.PSN()] = p.Payload()
				break
			}
			s, _ := p.AETH()
			if s.IsRNR() {
				notReady[p.PSN()] = true
			}
			// rxe finds the packets behind one that met no receive out of order; we know that they come again.
			if s == wire.NakSequence && notReady[p.PSN()] {
				r.answers = r.answers[:len(r.answers)-1]
			} else if s.IsNak() {
				r.refused[p.PSN()] = s
			}
		}
	}
	r.openKeys()
	return r
}

// openKeys opens what the responder of the capture did not refuse.
func (r *replay) openKeys() {
	for _, p := range r.reqs {
		if !p.Opcode().HasRETH() || r.refused[p.PSN()] == wire.NakRemoteAccess {
			continue
		}
		addr, key, n := p.RETH()
		g := r.grants[key]
		if g == nil {
			g = &grant{addr: addr, access: rights | localRead}
			g.key.Store(key)
			r.grants[key] = g
			r.q.cfg.Memory.change(key, func(t map[uint32]*grant) { t[key>>variantBits] = g })
		}
		end := max(g.addr+uint64(len(g.mem)), addr+uint64(n))
		g.addr = min(g.addr, addr)
		g.mem = make([]byte, end-g.addr)
	}
}

// prepare makes the responder's memory and receives what they were when p came; next is what was answered.
func (r *replay) prepare(p wire.Packet, next *wire.Packet) {
	op := p.Opcode()
	if op == wire.ReadRequest {
		addr, key, n := p.RETH()
		for off := 0; off < int(n); off += r.q.cfg.MTU {
			if g := r.grants[key]; g != nil && addr-g.addr+uint64(off) <= uint64(len(g.mem)) {
				copy(g.mem[addr-g.addr+uint64(off):], r.data[p.PSN().Add(uint32(off/r.q.cfg.MTU))])
			}
		}
	}
	if !(op.Is(wire.Send|wire.First) || op.Is(wire.Write) && op.HasImm()) || !r.q.rq.empty() || psn(r.q.resp.exp) != p.PSN() {
		return
	}
	size := uint32(32 << 10)
	if next != nil {
		s, _ := (*next).AETH()
		if s.IsRNR() && (*next).PSN() == p.PSN() {
			return
		}
	}
	if r.refused[p.PSN()] == wire.NakRemoteOp {
		size = 1 // shorter than the message
	}
	r.recv(1, size)
}

// same compares an answer of ours with a captured one. What may differ: the M bit, as NICs set it; the RNR timer;
// and that rxe calls a message that is too long for its receive an operation error.
func same(t *testing.T, want, got wire.Packet, i int) {
	require.Equal(t, want.Opcode(), got.Opcode(), "answer %d", i)
	require.Equal(t, want.PSN(), got.PSN(), "answer %d", i)
	require.Equal(t, want.Payload(), got.Payload(), "answer %d", i)
	require.Equal(t, want.DestQP(), got.DestQP())
	require.Equal(t, want.Pad(), got.Pad())
	if want.Opcode() == wire.ReadRespMiddle {
		return
	}
	ws, wm := want.AETH()
	gs, gm := got.AETH()
	require.Equal(t, wm, gm, "MSN of answer %d", i)
	switch {
	case ws.IsRNR():
		require.True(t, gs.IsRNR())
	case ws == wire.NakRemoteOp:
		require.Equal(t, wire.NakInvalidRequest, gs)
	default:
		require.Equal(t, ws, gs, "answer %d", i)
	}
}

func TestResponderAnswersCapturedRequestsAsTheKernelDid(t *testing.T) {
	for name, least := range map[string]int{"01-rc-all-ipv4-mtu1024.pcap": 78, "04-cm-reject-and-naks.pcap": 7, "07-loss-on-requests.pcap": 183} {
		ps := wiretest.Read(t, "../wire/testdata/"+name)
		compared := 0
		for _, c := range calls(ps) {
			for side := range 2 {
				r := newReplay(t, ps, c, side)
				compared += r.run()
			}
		}
		assert.GreaterOrEqual(t, compared, least, name)
	}
}

// run feeds the captured requests one by one and compares the answers; it returns their number. Atomic operations are
// not served: a capture is of no more use once there is one.
func (r *replay) run() int {
	i := 0
	for _, p := range r.reqs {
		var next *wire.Packet
		if i < len(r.answers) {
			next = &r.answers[i]
		}
		r.prepare(p, next)
		r.receive(p)
		out := r.round()
		if !p.Opcode().Is(wire.Send) && !p.Opcode().Is(wire.Write) && !p.Opcode().Is(wire.Read) {
			require.Len(r.t, out, 1)
			s, _ := out[0].AETH()
			require.Equal(r.t, wire.NakInvalidRequest, s)
			return i
		}
		for _, got := range out {
			require.Less(r.t, i, len(r.answers), "an answer too many: %v %v", got.Opcode(), got.PSN())
			same(r.t, r.answers[i], got, i)
			i++
		}
	}
	require.Equal(r.t, len(r.answers), i)
	return i
}

// Here some of the kernel's answers were lost before they were captured, and it began to repeat some while it had
// others to send. So only what was captured is looked for among ours: packet by packet, not in order.
func TestResponderRepeatsReadsAsTheKernelDid(t *testing.T) {
	ps := wiretest.Read(t, "../wire/testdata/08-loss-on-responses.pcap")
	found, reads := 0, 0
	for _, c := range calls(ps) {
		for side := range 2 {
			r := newReplay(t, ps, c, side)
			ours := map[string]bool{}
			for _, p := range r.reqs {
				r.prepare(p, nil)
				r.receive(p)
				for _, got := range r.round() {
					ours[identity(got)] = true
				}
			}
			for _, want := range r.answers {
				assert.True(t, ours[identity(want)], "%v PSN %#x", want.Opcode(), want.PSN())
				found++
				if want.Opcode().Is(wire.Read) {
					reads++
				}
			}
			assert.False(t, r.q.Failed())
		}
	}
	assert.Greater(t, found, 100)
	assert.Greater(t, reads, 50)
}

// identity is all of a packet but the M bit and the ICRC.
func identity(p wire.Packet) string {
	b := append([]byte(nil), p[:len(p)-wire.ICRCSize]...)
	b[1] &^= 0x40
	return string(b)
}
