package dissect

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata")

const captures = "../../iser/rdma/roce/wire/testdata"

// packets dissects the RoCEv2 packets of a file.
func packets(t *testing.T, name string) (ps []Packet) {
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	r, err := capture.NewReader(f)
	require.NoError(t, err)
	d := New()
	for {
		var c capture.Packet
		err := r.Next(&c)
		if errors.Is(err, io.EOF) {
			return ps
		}
		require.NoError(t, err)
		if p, ok := d.Packet(&c); ok {
			ps = append(ps, p)
		}
	}
}

// TestTheKernelsPackets: of what rxe, ib_iser, LIO and stgt said to each other, the words are in testdata.
func TestTheKernelsPackets(t *testing.T) {
	for _, name := range []string{"04-cm-reject-and-naks", "07-loss-on-requests", "09-iser-lio-immediate", "10-iser-lio-initialr2t", "11-iser-tgt-mra-login-reject"} {
		var b strings.Builder
		for i, p := range packets(t, filepath.Join(captures, name+".pcap")) {
			if i == 120 {
				break
			}
			fmt.Fprintf(&b, "%s > %s QP %06x PSN %06x %s: %s%s\n", p.Src, p.Dst, p.QP, p.PSN, p.Opcode, p.Summary, p.Problem)
		}
		golden := filepath.Join("testdata", name+".txt")
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		assert.Equal(t, string(want), b.String(), name)
	}
}

// TestNothingIsWrongWithTheKernelsPackets: each has an ICRC that is right, and is known.
func TestNothingIsWrongWithTheKernelsPackets(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(captures, "*.pcap"))
	require.NoError(t, err)
	require.Greater(t, len(names), 10)
	for _, name := range names {
		ps := packets(t, name)
		require.NotEmpty(t, ps, name)
		for i, p := range ps {
			if strings.Contains(name, "14-userspace-go-gso") && i == 31 { // see ROCE.md
				require.Contains(t, p.Problem, "several packets in one")
				continue
			}
			require.Empty(t, p.Problem, "%s: packet %d", name, i)
		}
	}
}

var (
	host   = netip.MustParseAddr("192.0.2.1")
	target = netip.MustParseAddr("192.0.2.2")
)

// frameOf is a packet with the headers that package capture would give it.
func frameOf(from, to netip.Addr, op wire.Opcode, payload []byte) *capture.Packet {
	w := wire.New(make([]byte, 4096+wire.MaxHeaders), op, len(payload))
	copy(w.Payload(), payload)
	wire.NewPath(from, to).Seal(w, wire.Port, 0)
	b := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(w)))
	b = append(append(b, 0, 0), w...)
	return &capture.Packet{LinkType: capture.RawIP, Data: b, Size: len(b), Direction: capture.Outbound}
}

// messageOf is an iSER message.
func messageOf(h iser.Header, p interface{ Put(*[iscsi.BHSSize]byte) }, data string) []byte {
	var bhs [iscsi.BHSSize]byte
	p.Put(&bhs)
	return append(append(h.Append(nil), bhs[:]...), data...)
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	d := New()
	text := &iscsi.TextRequest{ITT: 1, Final: true, DataLength: 16}
	c := frameOf(host, target, wire.SendOnly, messageOf(iser.Header{}, text, "SendTargets=All\x00"))
	p, ok := d.Packet(c)
	require.True(t, ok)
	assert.Equal(t, "Text Request ITT 0x1 SendTargets=All, 16 bytes inline", p.Summary)
	assert.Equal(t, "out", p.Direction)
	assert.Empty(t, p.Problem)

	for n := range c.Data {
		cut := *c
		cut.Data = c.Data[:n]
		p, ok := d.Packet(&cut)
		if n < 28 {
			require.False(t, ok)
		} else {
			require.Equal(t, "cut off when captured", p.Problem)
		}
	}
	c.Data[len(c.Data)-5] ^= 1
	p, _ = d.Packet(c)
	assert.Equal(t, "bad ICRC", p.Problem)
	assert.Empty(t, p.Summary)

	c = frameOf(host, target, wire.SendOnly, messageOf(iser.Header{}, text, "Send"))
	p, _ = d.Packet(c)
	assert.Equal(t, "Text Request of 16 bytes of data in a message of 80", p.Summary)
	c = frameOf(host, target, wire.SendFirst, messageOf(iser.Header{}, text, "Send\x1b[2J"))
	p, _ = d.Packet(c)
	assert.Equal(t, "Text Request ITT 0x1 Send?[2J, 16 bytes inline", p.Summary, "a terminal is safe")
	c = frameOf(host, target, wire.SendOnly, make([]byte, 100))
	p, _ = d.Packet(c)
	assert.Empty(t, p.Summary, "not iSER")
}

// TestMemoryIsBounded: a capture of many tasks that never end.
func TestMemoryIsBounded(t *testing.T) {
	d := New()
	f := &frame{src: host, dst: target}
	for i := range uint32(maxKnown + 10) {
		d.iser(f, messageOf(iser.Header{Flags: iser.ReadValid, ReadSTag: i}, &iscsi.SCSICommand{ITT: i}, ""), true)
	}
	assert.LessOrEqual(t, len(d.tasks), maxKnown)
	assert.LessOrEqual(t, len(d.keys), maxKnown)
}

func TestCommands(t *testing.T) {
	for want, cdb := range map[string][]byte{
		"WRITE(10) LBA 258, 3 blocks":         {0x2a, 0, 0, 0, 1, 2, 0, 0, 3, 0},
		"READ(12) LBA 258, 3 blocks":          {0xa8, 0, 0, 0, 1, 2, 0, 0, 0, 3},
		"READ(16) LBA 258, 3 blocks":          {0x88, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3},
		"COMPARE AND WRITE LBA 258, 1 blocks": {0x89, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1},
		"INQUIRY":                             {0x12},
		"command 0xff":                        {0xff},
	} {
		assert.Equal(t, want, command(append(cdb, make([]byte, 16)...)[:16]))
	}
}

// FuzzPacket: whatever a capture holds, it is told in one line that a terminal survives. The ICRC is made right, or
// nothing would come behind it.
func FuzzPacket(f *testing.F) {
	for _, op := range []wire.Opcode{wire.SendOnly, wire.SendLastInv, wire.WriteOnly, wire.Acknowledge, wire.UDSendOnly} {
		f.Add(frameOf(host, target, op, messageOf(iser.Header{}, &iscsi.SCSIResponse{Status: 2, DataLength: 4}, "\x00\x02\x70\x00")).Data, false)
	}
	f.Add(make([]byte, 60), true)
	f.Fuzz(func(t *testing.T, b []byte, ethernet bool) {
		c := &capture.Packet{LinkType: capture.RawIP, Data: b}
		if ethernet {
			c.LinkType = capture.Ethernet
		}
		d := New()
		if fr, ok := parseFrame(c); ok {
			if w, err := wire.Parse(fr.payload); err == nil {
				d.path(&fr).Seal(w, fr.port, fr.id)
			}
		}
		p, _ := d.Packet(c)
		for _, r := range p.Summary + p.Problem {
			require.True(t, r >= 0x20 && r < 0x7f, "%q", p.Summary)
		}
	})
}
