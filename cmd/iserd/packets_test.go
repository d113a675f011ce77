package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goiser/goiser/cmd/packets"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iser"
	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/provider"
	"github.com/goiser/goiser/iser/rdma/rdmatest"
	"github.com/goiser/goiser/iser/rdma/roce"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// A shown is what tshark shows of a packet, by its names for fields. What a packet has not is empty.
type shown map[string]string

var shownFields = []string{
	"_ws.malformed", "frame.packet_flags_direction", "infiniband.cm.req.serviceid.dport", "infiniband.aeth", "infiniband.bth.opcode",
	"infiniband.reth.r_key", "infiniband.reth.va", "infiniband.reth.dmalen",
	"iser.flags", "iser.write_stag", "iser.write_base_offset", "iser.read_stag", "iser.read_base_offset",
	"iscsi.opcode", "iscsi.keyvalue", "iscsi.initiatortasktag", "iscsi.scsiresponse.status",
	"scsi_sbc.opcode", "scsi_sbc.rdwr10.lba", "scsi_sbc.rdwr10.xferlen",
}

// tshark decodes a capture.
func tshark(t *testing.T, capture string, options ...string) (all []shown) {
	args := append([]string{"-r", capture, "-T", "fields", "-E", "occurrence=f"}, options...)
	for _, f := range shownFields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command("tshark", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	for line := range strings.Lines(string(out)) {
		p := shown{}
		for i, v := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			p[shownFields[i]] = v
		}
		all = append(all, p)
	}
	return all
}

// having are those packets whose field has a value; "": any but none.
func having(all []shown, field, value string) (some []shown) {
	for _, p := range all {
		if p[field] != "" && (value == "" || p[field] == value) {
			some = append(some, p)
		}
	}
	return some
}

// one is the only one of some packets.
func one(t *testing.T, some []shown) shown {
	require.Len(t, some, 1)
	return some[0]
}

// captured logs in by iSER at a port, writes 8 KiB and reads them, and returns the captures of the target's and the
// initiator's side. At port 0 it is any.
func captured(t *testing.T, port uint16) (targets, initiators string, at uint16) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dir := t.TempDir()
	targets, initiators = filepath.Join(dir, "target.pcapng"), filepath.Join(dir, "initiator.pcapng")
	log, _ := test.NewNullLogger()
	a := &app{flags: flags{pcap: targets, pcapLimit: packets.DefaultLimit}}
	open, closePackets, err := a.openPackets(log, openRDMA(log))
	require.NoError(t, err)
	s := startOnLoopback(t, port, open)
	addr := netip.MustParseAddrPort(s.served()[0].Addr().String())

	p, err := provider.Open(provider.RoCE, roce.Options{})
	require.NoError(t, err)
	f, err := packets.NewFile(initiators, 0, "test")
	require.NoError(t, err)
	require.NoError(t, f.Add(p))
	si, d := openDisk(t, ctx, &iser.Dialer{Provider: p}, addr.String())
	data := bytes.Repeat([]byte("0123456789abcdef"), 512)
	require.NoError(t, d.WriteAt(ctx, data, 4096))
	got := make([]byte, len(data))
	require.NoError(t, d.ReadAt(ctx, got, 4096))
	require.Equal(t, data, got)
	require.NoError(t, si.Close())
	require.NoError(t, p.Close())
	n, err := f.Stop()
	require.NoError(t, err)
	assert.Zero(t, n.Dropped)
	require.NoError(t, s.stop())
	closePackets()
	return targets, initiators, addr.Port()
}

// startOnLoopback serves a RAM disk by RoCE on a loopback address that nobody uses.
func startOnLoopback(t *testing.T, port uint16, open opener) *service {
	log, _ := test.NewNullLogger()
	for n := range rdmatest.Addresses {
		portal := fmt.Sprintf(`{listen: "%v:%d", provider: roce}`, rdmatest.Address(n), port)
		s, err := start(config(t, portal, ramStore, ramTarget), log, open, nil)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		return s
	}
	t.Fatal("no loopback address is free")
	return nil
}

// TestTsharkReadsOurPackets: what docs/TRACE.md says that Wireshark shows, of a login, a write and a read.
func TestTsharkReadsOurPackets(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed (Debian: tshark); CI has it")
	}
	targets, initiators, _ := captured(t, 3260)
	checkShown(t, tshark(t, initiators), "0x00000002", "0x00000001")
	checkShown(t, tshark(t, targets), "0x00000001", "0x00000002")
}

// checkShown checks the packets of one side. out is the direction of the initiator's.
func checkShown(t *testing.T, all []shown, out, in string) {
	assert.Empty(t, having(all, "_ws.malformed", ""))
	assert.Equal(t, "0x0cbc", one(t, having(all, "infiniband.cm.req.serviceid.dport", ""))["infiniband.cm.req.serviceid.dport"])
	assert.NotEmpty(t, having(all, "infiniband.aeth", ""))

	login := one(t, having(all, "iscsi.opcode", "0x03"))
	assert.Equal(t, "0x10", login["iser.flags"])
	assert.Equal(t, "InitiatorName=iqn.2026-01.example:test", login["iscsi.keyvalue"])
	assert.Equal(t, out, login["frame.packet_flags_direction"])

	// WRITE(10) of LBA 8 carries a key, and the target reads with it.
	commands := having(all, "iscsi.opcode", "0x01")
	write := one(t, having(commands, "scsi_sbc.opcode", "0x2a"))
	assert.Equal(t, "8", write["scsi_sbc.rdwr10.lba"])
	assert.Equal(t, "16", write["scsi_sbc.rdwr10.xferlen"])
	read := one(t, having(all, "infiniband.bth.opcode", "12"))
	assert.Equal(t, in, read["frame.packet_flags_direction"])
	assert.Equal(t, write["iser.write_stag"], read["infiniband.reth.r_key"])
	assert.Equal(t, write["iser.write_base_offset"], read["infiniband.reth.va"])
	assert.Equal(t, "8192", read["infiniband.reth.dmalen"])

	// READ(10) has the target write, and then answer.
	cmd := one(t, having(commands, "scsi_sbc.opcode", "0x28"))
	put := one(t, having(having(all, "infiniband.reth.dmalen", "8192"), "infiniband.reth.r_key", cmd["iser.read_stag"]))
	assert.Contains(t, []string{"6", "10"}, put["infiniband.bth.opcode"], "RDMA Write First or Only")
	assert.Equal(t, cmd["iser.read_base_offset"], put["infiniband.reth.va"])
	answer := one(t, having(having(all, "iscsi.opcode", "0x21"), "iscsi.initiatortasktag", cmd["iscsi.initiatortasktag"]))
	assert.Equal(t, "0x00", answer["iscsi.scsiresponse.status"])
	assert.Equal(t, in, answer["frame.packet_flags_direction"])
}

// TestTsharkWantsToKnowOtherPorts: the dissector goes by the port in the connection manager's request.
func TestTsharkWantsToKnowOtherPorts(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed (Debian: tshark); CI has it")
	}
	_, name, port := captured(t, 0)
	assert.Empty(t, having(tshark(t, name), "iscsi.opcode", ""))
	assert.NotEmpty(t, having(tshark(t, name, "-o", fmt.Sprint("iser.target_ports:", port)), "iscsi.opcode", "0x03"))
	assert.NotEmpty(t, having(tshark(t, name, "-d", "infiniband,iser"), "iscsi.opcode", "0x03"))
}

// TestPacketsStartAndStop while a connection runs: a Go program may want to see only what it is after.
func TestPacketsStartAndStop(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	log, _ := test.NewNullLogger()
	s := startOnLoopback(t, 0, openRDMA(log))
	p, err := provider.Open(provider.RoCE, roce.Options{})
	require.NoError(t, err)
	si, d := openDisk(t, ctx, &iser.Dialer{Provider: p}, s.served()[0].Addr().String())
	for range 2 {
		f, err := packets.NewFile(filepath.Join(t.TempDir(), "p"), 0, "test")
		require.NoError(t, err)
		require.NoError(t, f.Add(p))
		require.NoError(t, d.WriteAt(ctx, make([]byte, 512), 0))
		n, err := f.Stop()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, n.Packets, uint64(2), "command and response")
		assert.Less(t, n.Packets, uint64(10))
		require.NoError(t, d.WriteAt(ctx, make([]byte, 512), 0))
	}
	require.NoError(t, si.Close())
	require.NoError(t, p.Close())
	require.NoError(t, s.stop())
}

func TestPacketsOfVerbsCannotBeHad(t *testing.T) {
	a := &app{flags: flags{pcap: filepath.Join(t.TempDir(), "p"), pcapLimit: "64KiB"}}
	log, _ := test.NewNullLogger()
	open, closePackets, err := a.openPackets(log, func(conf.Portal) (rdma.Provider, error) { return &provider.Provider{}, nil })
	require.NoError(t, err)
	_, err = open(conf.Portal{})
	require.ErrorIs(t, err, provider.ErrNoPackets)
	assert.Equal(t, exitUsage, exitCode(err))
	closePackets()

	a.flags.pcapLimit = "1KiB"
	_, _, err = a.openPackets(log, nil)
	assert.Equal(t, exitUsage, exitCode(err))
}
