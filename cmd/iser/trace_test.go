package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/cmd/dissect"
	"github.com/goiser/goiser/iscsi/initiator/dial"
	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// someCapture has an acknowledgement that was sent and, after two packets that were lost, one that came in.
func someCapture(t *testing.T) string {
	name := filepath.Join(t.TempDir(), "p.pcapng")
	f, err := os.Create(name)
	require.NoError(t, err)
	c, err := capture.New(f, capture.Options{})
	require.NoError(t, err)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	see := func(from, to netip.Addr, lost uint64) {
		p := wire.New(make([]byte, 64), wire.Acknowledge, 0)
		p.SetDestQP(7)
		p.SetPSN(9)
		p.SetAETH(wire.Ack, 5)
		wire.NewPath(from, to).Seal(p, wire.Port, 0)
		c.See(link.Sight{
			Link: a, Src: netip.AddrPortFrom(from, wire.Port), Dst: netip.AddrPortFrom(to, wire.Port),
			Data: p, Size: len(p), Sent: from == a, Lost: lost,
		})
	}
	see(a, b, 0)
	see(b, a, 2)
	require.NoError(t, c.Close())
	require.NoError(t, f.Close())
	return name
}

func TestTraceReadLists(t *testing.T) {
	a, out := testApp(t)
	require.NoError(t, a.traceRead(someCapture(t)))
	lines := strings.Split(out(), "\n")
	require.Len(t, lines, 4)
	assert.Equal(t, " 0.000000000 out QP 0x000007 PSN 9        Acknowledge: MSN 5", lines[0])
	assert.Equal(t, "             2 packets are missing here", lines[1])
	assert.Regexp(t, `^ 0\.[0-9]{9} in  QP 0x000007 PSN 9        Acknowledge: MSN 5$`, lines[2])
}

func TestTraceReadGivesAnObjectALine(t *testing.T) {
	a, out := testApp(t)
	a.output = "json"
	require.NoError(t, a.traceRead(someCapture(t)))
	d := json.NewDecoder(strings.NewReader(out()))
	var first, second dissect.Packet
	require.NoError(t, d.Decode(&first))
	require.NoError(t, d.Decode(&second))
	assert.False(t, d.More())
	assert.False(t, second.Time.Before(first.Time))
	second.Time = first.Time
	assert.Equal(t, dissect.Packet{Time: first.Time, Direction: "in", Lost: 2, Src: "192.0.2.2", Dst: "192.0.2.1", QP: 7, PSN: 9, Opcode: "Acknowledge", Summary: "MSN 5"}, second)
}

// TestTraceReadListsWhatIsWhole of a file whose writer was killed, and says so.
func TestTraceReadListsWhatIsWhole(t *testing.T) {
	name := someCapture(t)
	i, err := os.Stat(name)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(name, i.Size()-100)) // statistics, and some of the second packet
	a, out := testApp(t)
	require.ErrorContains(t, a.traceRead(name), "ends within a packet")
	assert.Equal(t, 1, strings.Count(out(), "MSN 5"))

	require.NoError(t, os.WriteFile(name, []byte("rubbish"), 0o600))
	require.ErrorIs(t, a.traceRead(name), capture.ErrFormat)
	require.ErrorIs(t, a.traceRead(name+".none"), os.ErrNotExist)
}

func TestPacketsOfTCPCannotBeHad(t *testing.T) {
	a, _ := testApp(t)
	a.packets.path = filepath.Join(t.TempDir(), "p")
	_, err := a.transport(dial.URL{Transport: "tcp"})
	assert.Equal(t, exitUsage, exitCode(err))
	a.packets.limit = "1"
	assert.Equal(t, exitUsage, exitCode(a.packets.check()))
	a.packets.limit = "0"
	assert.NoError(t, a.packets.check())
}
