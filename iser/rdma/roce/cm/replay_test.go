package cm_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
	"github.com/goiser/goiser/iser/rdma/roce/wiretest"
)

// A line is a captured message.
type line struct {
	from, to netip.Addr
	attr     cm.Attribute
	tid      uint64
	m        message
}

// exchange reads the connection manager's messages of a capture.
func exchange(t testing.TB, name string) (lines []line) {
	for _, p := range wiretest.Read(t, "../wire/testdata/"+name) {
		if p.Opcode() != wire.UDSendOnly {
			continue
		}
		h, body, err := cm.ParseHeader(p.Payload())
		require.NoError(t, err)
		m := newMessage(h.Attribute)
		require.NoError(t, m.Parse(body))
		lines = append(lines, line{p.Src, p.Dst, h.Attribute, h.Transaction, m})
	}
	return lines
}

// A double stands in for one end of a capture: it is given what the other end sent and must say what its end said.
// Its ids are its own.
type double struct {
	t     *testing.T
	self  netip.Addr
	m     *cm.Manager
	now   time.Time
	conns map[uint32]*cm.Conn // by the captured id of this end
	asked *cm.Conn            // a request to be answered
	said  []cm.Attribute
	mads  [][]byte
	news  map[cm.Kind]int
}

func newDouble(t *testing.T, self netip.Addr) *double {
	d := &double{t: t, self: self, now: time.Unix(1, 0), conns: map[uint32]*cm.Conn{}, news: map[cm.Kind]int{}}
	d.m = cm.New(cm.Config{GUID: 1, Addr: self, MTU: func(netip.Addr) int { return 4096 }, Rand: rand.New(rand.NewPCG(1, 1))})
	return d
}

func (d *double) step(ev cm.Event) {
	for _, a := range d.m.Step(d.now, ev) {
		d.news[a.Kind]++
		switch a.Kind {
		case cm.SendMAD:
			h, _, err := cm.ParseHeader(a.MAD[:])
			require.NoError(d.t, err)
			d.said, d.mads = append(d.said, h.Attribute), append(d.mads, a.MAD[:])
		case cm.NewRequest:
			d.asked = a.Conn
		}
	}
}

// hear takes a message of the other end. Where it names this end's id, ours is put.
func (d *double) hear(l line) {
	own := func(id *uint32) {
		if c := d.conns[*id]; c != nil {
			*id = c.ID()
		}
	}
	switch m := l.m.(type) {
	case *cm.REP:
		own(&m.RemoteID)
	case *cm.REJ:
		own(&m.RemoteID)
	case *cm.MRA:
		own(&m.RemoteID)
	case *cm.RTU:
		own(&m.RemoteID)
	case *cm.DREQ:
		own(&m.RemoteID)
	case *cm.DREP:
		own(&m.RemoteID)
	}
	var b [cm.MADSize]byte
	l.m.Put(&b, l.tid)
	d.step(cm.Packet{From: l.from, MAD: b[:]})
}

// say does what makes the double say what its end said, unless it has said it already.
func (d *double) say(l line) {
	if len(d.said) == 0 {
		switch m := l.m.(type) {
		case *cm.REQ:
			if c := d.conns[m.LocalID]; c != nil { // again, for want of an answer
				d.now = d.m.Deadline()
				d.step(cm.Tick{})
				break
			}
			c := &cm.Conn{Peer: l.to, REQ: *m}
			d.step(cm.Connect{Conn: c})
			d.conns[m.LocalID] = c
		case *cm.REP:
			if c := d.conns[m.LocalID]; c != nil {
				d.now = d.m.Deadline()
				d.step(cm.Tick{})
				break
			}
			require.NotNil(d.t, d.asked)
			d.conns[m.LocalID] = d.asked
			d.step(cm.Accept{Conn: d.asked, REP: *m})
		case *cm.REJ:
			require.NotNil(d.t, d.asked)
			d.step(cm.Reject{Conn: d.asked, Reason: m.Reason, Private: m.Private[:]})
		case *cm.DREQ:
			require.NotNil(d.t, d.conns[m.LocalID])
			d.step(cm.Disconnect{Conn: d.conns[m.LocalID]})
		}
	}
	require.NotEmpty(d.t, d.said, "%v", attributes[l.attr])
	require.Equal(d.t, attributes[l.attr], attributes[d.said[0]])
	d.compare(l, d.mads[0])
	d.said, d.mads = d.said[1:], d.mads[1:]
}

// compare holds our message against the captured one, but for ids, GUIDs, timeouts that are each end's own choice, and
// an MRA's service timeout.
func (d *double) compare(l line, got []byte) {
	h, body, err := cm.ParseHeader(got)
	require.NoError(d.t, err)
	m := newMessage(l.attr)
	require.NoError(d.t, m.Parse(body))
	switch want := l.m.(type) {
	case *cm.REQ:
		g := m.(*cm.REQ)
		g.LocalID, g.GUID = want.LocalID, want.GUID
		assert.EqualValues(d.t, 7, g.RNRRetry)
		g.RNRRetry = want.RNRRetry // ib_iser says 6
		assert.Equal(d.t, *want, *g)
		return // its transaction is a new one
	case *cm.REP:
		g := m.(*cm.REP)
		assert.Equal(d.t, want.RemoteID, g.RemoteID)
		assert.Equal(d.t, want.QPN, g.QPN)
		assert.Equal(d.t, want.PSN, g.PSN)
		assert.Equal(d.t, want.InitiatorDepth, g.InitiatorDepth)
		assert.Equal(d.t, want.ResponderResources, g.ResponderResources)
		assert.Equal(d.t, want.Private, g.Private)
	case *cm.REJ:
		g := m.(*cm.REJ)
		if want.LocalID != 0 { // ours is another
			assert.NotZero(d.t, g.LocalID)
			g.LocalID = want.LocalID
		}
		assert.Equal(d.t, *want, *g)
	case *cm.MRA:
		g := m.(*cm.MRA)
		assert.Equal(d.t, want.RemoteID, g.RemoteID)
		assert.Equal(d.t, want.About, g.About)
	case *cm.DREQ:
		g := m.(*cm.DREQ)
		assert.Equal(d.t, want.RemoteID, g.RemoteID)
		assert.Equal(d.t, want.RemoteQPN, g.RemoteQPN)
		return
	case *cm.RTU:
		assert.Equal(d.t, want.RemoteID, m.(*cm.RTU).RemoteID)
		return // of the REQ's transaction, which is ours
	case *cm.DREP:
		assert.Equal(d.t, want.RemoteID, m.(*cm.DREP).RemoteID)
	}
	assert.Equal(d.t, l.tid, h.Transaction)
}

// Each end of the captured exchanges can be us.
func TestCapturedExchanges(t *testing.T) {
	for _, name := range []string{
		"01-rc-all-ipv4-mtu1024.pcap", "04-cm-reject-and-naks.pcap", "05-rping-ipv4.pcap", "11-iser-tgt-mra-login-reject.pcap", "12-userspace-go-vs-rxe.pcap",
	} {
		lines := exchange(t, name)
		require.NotEmpty(t, lines)
		ends := map[string]netip.Addr{"active": lines[0].from, "passive": lines[0].to}
		for end, addr := range ends {
			t.Run(name+"/"+end, func(t *testing.T) {
				d := newDouble(t, addr)
				for _, l := range lines { // the ports that were listened at: those whose requests were not refused for that
					if r, ok := l.m.(*cm.REQ); ok && !refusedAsUnknown(lines, r.LocalID) {
						d.step(cm.Listen{Port: uint16(r.ServiceID)})
					}
				}
				for _, l := range exchange(t, name) {
					t.Logf("%v: %s", l.from, attributes[l.attr])
					if l.from == addr {
						d.say(l)
					} else {
						d.hear(l)
					}
				}
				assert.Empty(t, d.said)
				assert.Zero(t, d.m.Counters().Malformed)
			})
		}
	}
}

func refusedAsUnknown(lines []line, id uint32) bool {
	for _, l := range lines {
		if r, ok := l.m.(*cm.REJ); ok && r.RemoteID == id && r.Reason == cm.ReasonInvalidService {
			return true
		}
	}
	return false
}
