// Package wiretest reads captured packets for tests that replay them.
package wiretest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/capture"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Packet says who sent it, and to whom.
type Packet struct {
	wire.Packet
	Src, Dst netip.Addr
}

// Read returns the RoCEv2 packets over IPv4 of a capture from an Ethernet.
func Read(tb testing.TB, name string) (ps []Packet) {
	f, err := os.Open(name)
	require.NoError(tb, err)
	defer f.Close()
	r, err := capture.NewReader(f)
	require.NoError(tb, err)
	for {
		var c capture.Packet
		if err := r.Next(&c); errors.Is(err, io.EOF) {
			return ps
		} else {
			require.NoError(tb, err)
		}
		require.Equal(tb, capture.Ethernet, c.LinkType)
		ip := c.Data[14:]
		if binary.BigEndian.Uint16(c.Data[12:]) != 0x0800 || ip[0] != 0x45 || ip[9] != 17 || binary.BigEndian.Uint16(ip[22:]) != wire.Port {
			continue
		}
		p, err := wire.Parse(bytes.Clone(ip[28:binary.BigEndian.Uint16(ip[2:])]))
		require.NoError(tb, err)
		ps = append(ps, Packet{p, netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))})
	}
}
