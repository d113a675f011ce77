package roce_test

import (
	"bytes"
	"encoding/xml"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/link"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A decoded is one connection manager message as tshark shows it: its fields in order, name and text.
type decoded struct {
	names  []string
	values map[string]string
}

// ofTheConnection are the fields whose values belong to one connection or one host; all others must be the kernel's.
var ofTheConnection = []string{
	"localcommid", "remotecommid", "infiniband.cm.req", "infiniband.cm.rep", "infiniband.cm.rtu", "infiniband.cm.rej", "infiniband.cm.drsp",
	"transactionid", "guid", "localqpn", "remoteqpn", "startpsn", "dport", "gid", "_ipv4", "flowlabel", "reserved0", "pktrate",
	"pppmtu", "responderres", "initdepth", "resptout", "ackdelay", "acktimeout", "localackto", "tgtackdelay", "private", "ip_cm",
}

// TestTsharkReadsOurMessagesAsTheKernels decodes a connection of ours and the kernel's captured one with tshark: each
// message shows the same fields in the same order, and those that are not of the one connection have the same values.
func TestTsharkReadsOurMessagesAsTheKernels(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed (Debian: tshark); CI has it")
	}
	ours := decodeMessages(t, captureConnection(t))
	kernels := decodeMessages(t, "wire/testdata/01-rc-all-ipv4-mtu1024.pcap")
	for _, m := range []string{"CM ConnectRequest", "CM ConnectReply", "CM ReadyToUse", "CM DisconnectRequest", "CM DisconnectReply"} {
		require.Contains(t, kernels, m)
		require.Contains(t, ours, m)
		require.GreaterOrEqual(t, len(kernels[m].names), 3, m)
		assert.Equal(t, kernels[m].names, ours[m].names, m)
		for name, want := range kernels[m].values {
			if !isOfTheConnection(name) {
				assert.Equal(t, want, ours[m].values[name], "%s: %s", m, name)
			}
		}
	}
}

func isOfTheConnection(name string) bool {
	for _, part := range ofTheConnection {
		if name == part || !strings.HasPrefix(part, "infiniband.") && strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// captureConnection writes the packets of one connection, from REQ to DREP, as a capture of raw IP.
func captureConnection(t *testing.T) string {
	name := filepath.Join(t.TempDir(), "ours.pcapng")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	c, err := capture.New(f, capture.Options{})
	require.NoError(t, err)
	n := link.NewNet(1, link.NetOptions{})
	var once sync.Once
	ended := make(chan struct{}) // a DREP was sent
	n.Tap(func(e link.Event) {
		if e.Packet.DestQP() != wire.GSI {
			return
		}
		from, to := netip.AddrPortFrom(e.From, wire.Port), netip.AddrPortFrom(e.To, wire.Port)
		c.See(link.Sight{Link: e.From, Src: from, Dst: to, Data: e.Packet, Size: len(e.Packet), Sent: true})
		if h, _, err := cm.ParseHeader(e.Packet.Payload()); err == nil && h.Attribute == cm.AttrDREP {
			once.Do(func() { close(ended) })
		}
	})
	s := simulate(n, 1, roce.Options{})
	a, b := rdmatest.Connect(t, s, anyPort(), rdmatest.Config{})
	a.Close()
	select {
	case <-ended:
	case <-time.After(rdmatest.Patience):
		t.Fatal("no DREP")
	}
	b.Close()
	s.close(t)
	require.NoError(t, c.Close())
	return name
}

// pdml is tshark's description of packets.
type pdml struct {
	Packets []struct {
		Protos []pdmlField `xml:"proto"`
	} `xml:"packet"`
}

type pdmlField struct {
	Name     string      `xml:"name,attr"`
	Show     string      `xml:"showname,attr"`
	Children []pdmlField `xml:"field"`
}

// decodeMessages are the first of each connection manager message in a capture, by tshark's names for them.
func decodeMessages(t *testing.T, file string) map[string]*decoded {
	cmd := exec.Command("tshark", "-r", file, "-T", "pdml", "-Y", "infiniband.mad")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var doc pdml
	require.NoError(t, xml.Unmarshal(out, &doc))
	all := map[string]*decoded{}
	for _, p := range doc.Packets {
		for _, proto := range p.Protos {
			collect(all, proto.Children)
		}
	}
	return all
}

// collect looks for a message among fields, and below them.
func collect(all map[string]*decoded, fields []pdmlField) {
	for _, f := range fields {
		if strings.HasPrefix(f.Show, "CM ") && all[f.Show] == nil {
			d := &decoded{values: map[string]string{}}
			d.add(f.Children)
			if len(d.names) > 0 {
				all[f.Show] = d
			}
		}
		collect(all, f.Children)
	}
}

func (d *decoded) add(fields []pdmlField) {
	for _, f := range fields {
		if f.Name != "" {
			d.names = append(d.names, f.Name)
			d.values[f.Name] = f.Show
		}
		d.add(f.Children)
	}
}
