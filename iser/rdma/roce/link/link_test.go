package link

import (
	"bytes"
	"math/rand/v2"

	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// burst makes a burst of packets with n bytes of random payload in all, size to a packet; PSNs count from psn.
func burst(rng *rand.Rand, path *wire.Path, n, size int, psn wire.PSN) Burst {
	b := Burst{Path: path, Size: wire.BTHSize + size + wire.ICRCSize}
	for first := true; first || n > 0; first = false {
		l := min(n, size)
		p := wire.New(make([]byte, b.Size+3), wire.SendMiddle, l)
		for i := range p.Payload() {
			p.Payload()[i] = byte(rng.Uint32())
		}
		p.SetPSN(psn)
		psn = psn.Add(1)
		b.Data = append(b.Data, p...)
		n -= l
	}
	return b
}

// split cuts what was sent or received into packets.
func split(data []byte, size int) (ps [][]byte) {
	for len(data) > 0 {
		n := min(len(data), size)
		ps = append(ps, bytes.Clone(data[:n]))
		data = data[n:]
	}
	return ps
}
