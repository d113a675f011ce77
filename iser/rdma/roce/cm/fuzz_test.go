package cm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
)

// FuzzManager throws datagrams, from the peer and from a stranger, at a manager with connections in every state. It
// must not panic or answer more than it is asked, and what a stranger sends must not end a connection.
func FuzzManager(f *testing.F) {
	for _, c := range mads(f) {
		f.Add(c.mad, false)
		f.Add(c.mad, true)
	}
	ids := func(m func(local, remote uint32) message) {
		for id := range uint32(4) {
			f.Add(mad(m(id, id)), false)
		}
	}
	ids(func(l, r uint32) message { return &cm.DREQ{LocalID: l, RemoteID: r} })
	ids(func(l, r uint32) message { return &cm.REP{LocalID: l, RemoteID: r, QPN: 9} })
	ids(func(l, r uint32) message { return &cm.REJ{LocalID: l, RemoteID: r, Reason: cm.ReasonTimeout, GUID: 1} })
	f.Fuzz(func(t *testing.T, b []byte, strange bool) {
		w := newWorld(t)
		w.established()
		w.p.slow = true
		w.connect() // a request that waits
		w.settle()
		b = aim(w, b)
		from := activeAddr
		if strange {
			from = strangeAddr
		}
		for range 2 {
			as := w.p.m.Step(w.now, cm.Packet{From: from, MAD: b})
			require.LessOrEqual(t, len(as), 4)
			for _, a := range as {
				if strange {
					require.NotContains(t, []cm.Kind{cm.Disconnected, cm.Connected, cm.Confirmed, cm.Refused, cm.Freed}, a.Kind)
				}
				if a.Kind == cm.SendMAD {
					_, _, err := cm.ParseHeader(a.MAD[:])
					require.NoError(t, err)
					require.Equal(t, from, a.To, "nobody else is answered")
				}
			}
		}
		w.pass(2 * time.Minute)
	})
}

// aim puts ids that exist into a datagram: small numbers in the places of ids pick them.
func aim(w *world, b []byte) []byte {
	b = append([]byte(nil), b...)
	if len(b) < 32 {
		return b
	}
	ids := []uint32{w.p.conn.ID(), w.p.conn.ID() - 1, w.a.conn.ID(), w.a.conn.ID() - 1}
	for _, off := range []int{24, 28} {
		if b[off]|b[off+1]|b[off+2] == 0 && int(b[off+3]) < len(ids) {
			id := ids[b[off+3]]
			b[off], b[off+1], b[off+2], b[off+3] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
		}
	}
	return b
}
