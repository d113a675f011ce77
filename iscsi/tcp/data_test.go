package tcp

import (
	"fmt"
	"net"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// roundTrip writes a pattern of n bytes in odd pieces, reads it back and compares.
func roundTrip(t *testing.T, c *client, n int) {
	t.Helper()
	data, back := make([]byte, n), make([]byte, n)
	stamp(data, uint64(n))
	var r request
	out := [][]byte{data[:n/3], {}, data[n/3 : n/2], data[n/2:]}
	c.submit(&r, 512, nil, out)
	require.NoError(t, c.wait(&r))
	assert.Zero(t, r.status.Status)
	in := [][]byte{back[:n/5], back[n/5 : n/2], {}, back[n/2:]}
	c.submit(&r, 512, in, nil)
	require.NoError(t, c.wait(&r))
	assert.EqualValues(t, n, r.received)
	require.Equal(t, data, back)
}

func TestDataArrivesAsItWas(t *testing.T) {
	for _, kind := range []struct {
		name string
		make func(testing.TB) (net.Conn, net.Conn)
	}{
		{"tcp", socketPair},
		{"pipe", func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() }},
	} {
		for bits := range 32 {
			p := params(func(p *iscsi.Params) {
				p.HeaderDigest = bits&1 != 0
				p.DataDigest = bits&2 != 0
				p.InitialR2T = bits&4 != 0
				p.ImmediateData = bits&8 != 0
				if bits&16 != 0 {
					p.MaxSendData, p.MaxBurstLength, p.FirstBurstLength = 4096, 16384, 9000
					p.MaxOutstandingR2T = 3
				}
			})
			t.Run(fmt.Sprintf("%s/%05b", kind.name, bits), func(t *testing.T) {
				a, b := kind.make(t)
				c, _ := rig(t, a, b, p, p, 1<<21)
				for _, n := range []int{1, 511, 4096, 5000, 65536, 100001, 1 << 20} {
					roundTrip(t, c, n)
				}
			})
		}
	}
}
