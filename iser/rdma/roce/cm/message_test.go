package cm_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type captured struct {
	name string
	mad  []byte
}

// mads are the connection manager's messages among the captured packets.
func mads(tb testing.TB) []captured {
	tb.Helper()
	f, err := os.Open("../wire/testdata/vectors.txt")
	require.NoError(tb, err)
	defer f.Close()
	var all []captured
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		w := strings.Split(s.Text(), "\t")
		if len(w) != 3 || !strings.Contains(w[0], "_CM_") {
			continue
		}
		ip, err := hex.DecodeString(w[2])
		require.NoError(tb, err)
		n := 28
		if ip[0]>>4 == 6 {
			n = 48
		}
		p, err := wire.Parse(ip[n:])
		require.NoError(tb, err)
		qkey, src := p.DETH()
		require.EqualValues(tb, cm.QKey, qkey)
		require.Equal(tb, wire.GSI, src)
		all = append(all, captured{w[0], p.Payload()})
	}
	require.Len(tb, all, 15)
	return all
}

// A message is any of the package's.
type message interface {
	Put(mad *[cm.MADSize]byte, transaction uint64)
	Parse(body []byte) error
}

func newMessage(a cm.Attribute) message {
	switch a {
	case cm.AttrREQ:
		return &cm.REQ{}
	case cm.AttrREP:
		return &cm.REP{}
	case cm.AttrREJ:
		return &cm.REJ{}
	case cm.AttrMRA:
		return &cm.MRA{}
	case cm.AttrRTU:
		return &cm.RTU{}
	case cm.AttrDREQ:
		return &cm.DREQ{}
	case cm.AttrDREP:
		return &cm.DREP{}
	}
	return nil
}

func TestCapturedMessagesComeBackByteForByte(t *testing.T) {
	for _, c := range mads(t) {
		h, body, err := cm.ParseHeader(c.mad)
		require.NoError(t, err, c.name)
		m := newMessage(h.Attribute)
		require.NotNil(t, m, c.name)
		require.NoError(t, m.Parse(body), c.name)
		var again [cm.MADSize]byte
		m.Put(&again, h.Transaction)
		assert.Equal(t, hex.Dump(c.mad), hex.Dump(again[:]), c.name)
	}
}

func TestREQOfLinuxIsRead(t *testing.T) {
	for _, c := range mads(t) {
		if c.name != "v4_UD_SEND_ONLY_CM_REQ" {
			continue
		}
		_, body, err := cm.ParseHeader(c.mad)
		require.NoError(t, err)
		var m cm.REQ
		require.NoError(t, m.Parse(body))
		assert.EqualValues(t, 0x0106, m.ServiceID>>16, "TCP port space")
		assert.Equal(t, netip.MustParseAddr("10.9.0.2"), m.SrcAddr)
		assert.Equal(t, netip.MustParseAddr("10.9.0.1"), m.DstAddr)
		assert.Equal(t, m.SrcAddr, m.LocalGID)
		assert.Equal(t, m.DstAddr, m.RemoteGID)
		assert.EqualValues(t, 3, m.MTU, "1024")
		assert.EqualValues(t, 4, m.ResponderResources)
		assert.EqualValues(t, 4, m.InitiatorDepth)
		assert.EqualValues(t, 7, m.RetryCount)
		assert.EqualValues(t, 7, m.RNRRetry)
		assert.EqualValues(t, 15, m.MaxRetries)
		assert.EqualValues(t, 20, m.RemoteTimeout)
		assert.EqualValues(t, 19, m.AckTimeout)
		assert.EqualValues(t, 64, m.HopLimit)
		assert.EqualValues(t, 0xffff, m.PKey)
	}
}

func TestParseRefusesEveryTruncation(t *testing.T) {
	for _, c := range mads(t) {
		for n := range c.mad {
			_, _, err := cm.ParseHeader(c.mad[:n])
			require.ErrorIs(t, err, cm.ErrShort)
		}
		h, body, err := cm.ParseHeader(c.mad)
		require.NoError(t, err)
		for n := range body {
			require.ErrorIs(t, newMessage(h.Attribute).Parse(body[:n]), cm.ErrShort)
		}
	}
}

func TestHeaderOfAnotherClassIsRefused(t *testing.T) {
	var mad [cm.MADSize]byte
	(&cm.RTU{LocalID: 1, RemoteID: 2}).Put(&mad, 3)
	for _, i := range []int{0, 1, 2, 3} {
		bad := mad
		bad[i] ^= 0x20
		_, _, err := cm.ParseHeader(bad[:])
		assert.ErrorIs(t, err, cm.ErrClass, "byte %d", i)
	}
}

func FuzzMessage(f *testing.F) {
	for _, c := range mads(f) {
		f.Add(c.mad)
	}
	f.Fuzz(func(t *testing.T, mad []byte) {
		h, body, err := cm.ParseHeader(mad)
		if err != nil {
			return
		}
		m := newMessage(h.Attribute)
		if m == nil || m.Parse(body) != nil {
			return
		}
		// What was parsed is written and parsed to the same.
		var b1, b2 [cm.MADSize]byte
		m.Put(&b1, h.Transaction)
		_, body, err = cm.ParseHeader(b1[:])
		require.NoError(t, err)
		again := newMessage(h.Attribute)
		require.NoError(t, again.Parse(body))
		again.Put(&b2, h.Transaction)
		if !bytes.Equal(b1[:], b2[:]) {
			t.Fatalf("%+v\n%+v", m, again)
		}
	})
}
