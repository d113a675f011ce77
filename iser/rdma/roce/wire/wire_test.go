package wire_test

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A datagram is one captured packet with what the ICRC covers of its IP and UDP headers.
type datagram struct {
	name     string
	src, dst netip.Addr
	port, id uint16
	payload  []byte
}

// cut splits an IP packet; ok is false for other traffic.
func cut(name string, ip []byte) (d datagram, ok bool) {
	var udp []byte
	switch {
	case len(ip) > 28 && ip[0] == 0x45 && ip[9] == 17:
		ip = ip[:binary.BigEndian.Uint16(ip[2:])]
		d.src, d.dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		d.id = binary.BigEndian.Uint16(ip[4:])
		udp = ip[20:]
	case len(ip) > 48 && ip[0]>>4 == 6 && ip[6] == 17:
		d.src, d.dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		udp = ip[40 : 40+int(binary.BigEndian.Uint16(ip[4:]))]
	default:
		return d, false
	}
	d.name, d.port, d.payload = name, binary.BigEndian.Uint16(udp), udp[8:]
	return d, binary.BigEndian.Uint16(udp[2:]) == wire.Port
}

func vectors(tb testing.TB) []datagram {
	tb.Helper()
	f, err := os.Open("testdata/vectors.txt")
	require.NoError(tb, err)
	defer f.Close()
	var ds []datagram
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		w := strings.Split(s.Text(), "\t")
		if len(w) != 3 || strings.HasPrefix(w[0], "#") {
			continue
		}
		raw, err := hex.DecodeString(w[2])
		require.NoError(tb, err)
		d, ok := cut(w[0], raw)
		require.True(tb, ok, w[0])
		ds = append(ds, d)
	}
	require.Len(tb, ds, 67)
	return ds
}

// captured reads all RoCE datagrams of the captures (classic pcap, Ethernet).
func captured(tb testing.TB) []datagram {
	tb.Helper()
	files, err := filepath.Glob("testdata/*.pcap")
	require.NoError(tb, err)
	require.Len(tb, files, 14)
	var ds []datagram
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(tb, err)
		require.EqualValues(tb, 0xa1b2c3d4, binary.LittleEndian.Uint32(b), f)
		for b = b[24:]; len(b) >= 16; {
			n := binary.LittleEndian.Uint32(b[8:])
			frame := b[16 : 16+n]
			b = b[16+n:]
			if d, ok := cut(filepath.Base(f), frame[14:]); ok {
				ds = append(ds, d)
			}
		}
	}
	return ds
}

// A super-packet that was captured before it was cut up is not one packet: its ICRC is not at its end.
func isSuperPacket(d datagram) bool {
	return strings.HasPrefix(d.name, "14-") && len(d.payload) > 4096+wire.MaxHeaders
}

func TestEveryCapturedPacketParsesAndItsICRCMatches(t *testing.T) {
	n := 0
	for _, d := range append(vectors(t), captured(t)...) {
		if isSuperPacket(d) {
			continue
		}
		p, err := wire.Parse(d.payload)
		require.NoError(t, err, d.name)
		path := wire.NewPath(d.src, d.dst)
		want := binary.LittleEndian.Uint32(p[len(p)-4:])
		again := wire.Packet(append([]byte{}, p...))
		path.Seal(again, d.port, d.id)
		require.Equal(t, want, binary.LittleEndian.Uint32(again[len(p)-4:]), "%s %v", d.name, p.Opcode())
		require.True(t, path.Verify(p, d.port, 0), "%s: identification %d not solved", d.name, d.id)
		n++
	}
	assert.Greater(t, n, 3400)
}

func TestEveryCapturedPacketIsBuiltAgainByteForByte(t *testing.T) {
	for _, d := range append(vectors(t), captured(t)...) {
		if isSuperPacket(d) {
			continue
		}
		p, err := wire.Parse(d.payload)
		require.NoError(t, err)
		require.Equal(t, d.payload, []byte(rebuild(p, d)), "%s %v", d.name, p.Opcode())
	}
}

// rebuild makes the packet anew from what the accessors say of it.
func rebuild(p wire.Packet, d datagram) wire.Packet {
	op := p.Opcode()
	b := make([]byte, len(p)+64)
	for i := range b {
		b[i] = 0xaa // what New does not clear shows
	}
	q := wire.New(b, op, len(p.Payload()))
	copy(q.Payload(), p.Payload())
	if p.Solicited() {
		q.SetSolicited()
	}
	if p.Migrated() {
		q.SetMigrated()
	}
	if p.AckReq() {
		q.SetAckReq()
	}
	q.SetPKey(p.PKey())
	q.SetDestQP(p.DestQP())
	q.SetPSN(p.PSN())
	switch op {
	case wire.WriteFirst, wire.WriteOnly, wire.WriteOnlyImm, wire.ReadRequest:
		q.SetRETH(p.RETH())
	case wire.ReadRespFirst, wire.ReadRespLast, wire.ReadRespOnly, wire.Acknowledge:
		q.SetAETH(p.AETH())
	case wire.UDSendOnly:
		q.SetDETH(p.DETH())
	case wire.CompareSwap, wire.FetchAdd, wire.AtomicAck: // parsed as far as the BTH: we answer none
		copy(q[wire.BTHSize:], p[wire.BTHSize:op.HeaderSize()])
	}
	switch {
	case op.HasIETH():
		q.SetInvalidateKey(p.InvalidateKey())
	case op.HasImm():
		q.SetImm(p.Imm())
	}
	wire.NewPath(d.src, d.dst).Seal(q, d.port, d.id)
	return q
}

func TestWhatAPathRemembersChangesNoICRC(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, ends := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd09::1", "fd09::2"}} {
		src, dst := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		old := wire.NewPath(src, dst) // has seen other lengths, ports and identifications before each
		for range 2000 {
			p := wire.New(make([]byte, 128), wire.SendOnly, rng.IntN(64))
			port, id := uint16(rng.IntN(3)), uint16(rng.Uint32())
			wire.NewPath(src, dst).Seal(p, port, id)
			again := append(wire.Packet{}, p...)
			old.Seal(again, port, id)
			require.Equal(t, p, again)
			require.True(t, old.Verify(p, port, id))
			require.True(t, old.Verify(p, port, uint16(rng.Uint32())), "a wrong guess")
		}
	}
}

func TestVerifyCatchesEveryBitOfAPacket(t *testing.T) {
	for _, name := range []string{"v4_SEND_ONLY", "v6_SEND_ONLY", "v4_READ_REQ", "v4_ACK_ACK"} {
		for _, d := range vectors(t) {
			if d.name != name {
				continue
			}
			path := wire.NewPath(d.src, d.dst)
			missed := 0
			for i := range len(d.payload) * 8 {
				if i/8 == 4 {
					continue // FECN and BECN are not covered
				}
				bad := append(wire.Packet{}, d.payload...)
				bad[i/8] ^= 1 << (i % 8)
				if path.Verify(bad, d.port, 0) {
					missed++
				}
			}
			// IPv4 is checked modulo the unknown identification: a single bit is missed with probability 2^-15.
			assert.LessOrEqual(t, missed, len(d.payload)*8/4096, name)
			assert.False(t, path.Verify(d.payload, d.port+1, 0), "the UDP port is covered")
		}
	}
}

func TestParseRefusesEveryTruncation(t *testing.T) {
	for _, d := range vectors(t) {
		p, err := wire.Parse(d.payload)
		require.NoError(t, err)
		need := p.Opcode().HeaderSize() + wire.ICRCSize + p.Pad()
		for n := range d.payload[:min(need, len(d.payload))] {
			_, err := wire.Parse(d.payload[:n])
			require.Error(t, err, "%s cut to %d of %d bytes", d.name, n, need)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := []byte(wire.New(make([]byte, 64), wire.SendOnly, 5))
	change := func(i int, v byte) []byte { b := append([]byte{}, good...); b[i] = v; return b }
	_, err := wire.Parse(change(0, 0x15))
	assert.ErrorIs(t, err, wire.ErrOpcode)
	_, err = wire.Parse(change(1, 0x31))
	assert.ErrorIs(t, err, wire.ErrVersion)
	_, err = wire.Parse(good[:len(good)-1])
	assert.ErrorIs(t, err, wire.ErrLength)
	_, err = wire.Parse(append(good[:12:12], 0, 0, 0, 0)[:16])
	assert.ErrorIs(t, err, wire.ErrPad)
}

func TestPSNOrderWraps(t *testing.T) {
	assert.True(t, wire.PSN(0xffffff).Before(0))
	assert.True(t, wire.PSN(0xfffff0).Before(0x10))
	assert.False(t, wire.PSN(5).Before(5))
	assert.Equal(t, wire.PSN(1), wire.PSN(0xffffff).Add(2))
	assert.EqualValues(t, -3, wire.PSN(0xfffffe).Sub(1))
	assert.EqualValues(t, 0x7fffff, wire.PSN(0x7fffff).Sub(0))
}

func FuzzParse(f *testing.F) {
	for _, d := range vectors(f) {
		f.Add(d.payload)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := wire.Parse(b)
		if err != nil {
			return
		}
		_ = p.Payload()
		d := datagram{src: netip.MustParseAddr("10.0.0.1"), dst: netip.MustParseAddr("10.0.0.2"), port: 9}
		q := rebuild(p, d)
		// Everything but reserved bits and the ICRC comes back.
		p2 := append(wire.Packet{}, p...)
		p2[4], p2[8] = 0, p2[8]&0x80
		clear(p2[len(p2)-wire.ICRCSize-p2.Pad():])
		clear(q[len(q)-wire.ICRCSize:])
		if p.Opcode() == wire.UDSendOnly {
			p2[wire.BTHSize+4] = 0
		}
		if p.Opcode() == wire.UDSendOnlyImm {
			return
		}
		if string(p2) != string(q) {
			t.Fatalf("%x\n%x", p2, q)
		}
	})
}

func BenchmarkSeal4096(b *testing.B) {
	p := wire.New(make([]byte, 8192), wire.WriteMiddle, 4096)
	path := wire.NewPath(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		path.Seal(p, wire.Port, 0)
	}
}

func BenchmarkVerify4096UnknownID(b *testing.B) {
	p := wire.New(make([]byte, 8192), wire.WriteMiddle, 4096)
	path := wire.NewPath(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	path.Seal(p, wire.Port, 0x1234)
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		if !path.Verify(p, wire.Port, 0) {
			b.Fatal("ICRC")
		}
	}
}
