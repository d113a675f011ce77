package target

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// logsIn sends a whole login and returns its status.
func (b *bench) logsIn(dm *fakeDM, name string, r iscsi.LoginRequest) iscsi.LoginStatus {
	b.t.Helper()
	c := &client{t: b.t, dm: dm, cmdSN: 1, stat: 1}
	lines := loginLines(dm.traits)
	lines[0] = "InitiatorName=" + name
	c.loginRequest(r, lines...)
	resp, _ := c.loginResponse()
	return resp.Status
}

// TestAFloodCrowdsOutItself: SE-13. A login that takes its time is not the price of somebody else's flood.
func TestAFloodCrowdsOutItself(t *testing.T) {
	b := newBench(t, benchConfig{config: Config{MaxLogins: 8}})
	slow := b.connect(tcpTraits)
	honest := &client{t: t, dm: slow, cmdSN: 1, stat: 1}
	first := wholeLogin
	first.Transit, first.Next = false, 0
	honest.loginRequest(first, loginLines(tcpTraits)...)
	honest.loginResponse()
	var flood []*fakeDM
	for i := range 100 { // of one network: IPv6 gives everybody more addresses than that
		flood = append(flood, b.connectFrom(tcpTraits, net.ParseIP(fmt.Sprintf("2001:db8::%x", i+1))))
	}
	honest.loginRequest(wholeLogin)
	resp, _ := honest.loginResponse()
	assert.Equal(t, iscsi.LoginSuccess, resp.Status)
	assert.True(t, resp.Transit)
	for _, dm := range flood[:100-8] {
		dm.waitFor(t, "the oldest of the flood to go", func() bool { return dm.closed })
	}
	flood[99].set(func() { assert.False(t, flood[99].closed, "the newest is there") })
}

func TestOldestGoesAmongEquals(t *testing.T) { // LG-05
	b := newBench(t, benchConfig{config: Config{MaxLogins: 4}})
	var list []*fakeDM
	for i := range 5 {
		list = append(list, b.connectFrom(tcpTraits, net.IPv4(198, 51, 100, byte(i))))
	}
	list[0].waitFor(t, "the oldest to go", func() bool { return list[0].closed })
	for _, dm := range list[1:] {
		dm.set(func() { assert.False(t, dm.closed) })
	}
}

// TestConnectionsThatDoNotEndAreBounded: admission stops when closing does not keep up.
func TestConnectionsThatDoNotEndAreBounded(t *testing.T) {
	b := newBench(t, benchConfig{config: Config{MaxLogins: 4, MaxSessions: 2}})
	p := &portal{s: b.s, listener: newFakeListener("tcp", "192.0.2.1:3260"), config: PortalConfig{Tag: 1}}
	var list []*conn
	for {
		c := newConn(b.s, p, newFakeDM(tcpTraits))
		if !b.s.admit(c) {
			break
		}
		list = append(list, c) // and its loop never runs
		require.Less(t, len(list), 1000)
	}
	assert.Len(t, list, 2*maxConnections+2*4)
	b.s.forget(list[0])
	b.s.wg.Done()
	assert.Equal(t, iscsi.LoginSuccess, b.logsIn(b.connect(tcpTraits), testInitiator, wholeLogin))
	for _, c := range list[1:] {
		b.s.forget(c)
		b.s.wg.Done()
	}
}

func TestSessionsOfAnInitiatorAreBounded(t *testing.T) {
	b := newBench(t, benchConfig{config: Config{MaxInitiatorSessions: 2}})
	assert.Equal(t, iscsi.LoginSuccess, b.logsIn(b.connect(tcpTraits), testInitiator, isid(1)))
	assert.Equal(t, iscsi.LoginSuccess, b.logsIn(b.connect(iserTraits), testInitiator, isid(2)), "over TCP and iSER together")
	assert.Equal(t, iscsi.LoginOutOfResources, b.logsIn(b.connect(tcpTraits), strings.ToUpper(testInitiator), isid(3)))
	assert.Equal(t, iscsi.LoginSuccess, b.logsIn(b.connect(tcpTraits), "iqn.2026-01.test:other", isid(3)))
	assert.Equal(t, iscsi.LoginSuccess, b.logsIn(b.connect(tcpTraits), testInitiator, isid(1)), "in place of one's own")
}

func TestConnectionsOfAnAddressAreBounded(t *testing.T) {
	b := newBench(t, benchConfig{config: Config{MaxPeerConnections: 2}})
	from := func(ip string) *fakeDM { return b.connectFrom(tcpTraits, net.ParseIP(ip)) }
	for i, r := range []struct {
		ip   string
		want iscsi.LoginStatus
	}{
		{"192.0.2.1", iscsi.LoginSuccess},
		{"::ffff:192.0.2.1", iscsi.LoginSuccess},
		{"192.0.2.1", iscsi.LoginOutOfResources},
		{"192.0.2.2", iscsi.LoginSuccess},
		{"2001:db8::1", iscsi.LoginSuccess},
		{"2001:db8::2", iscsi.LoginSuccess},
		{"2001:db8:0:0:ffff::3", iscsi.LoginOutOfResources},
		{"2001:db8:0:1::1", iscsi.LoginSuccess},
		{"fe80::1", iscsi.LoginSuccess},
		{"fe80::1", iscsi.LoginSuccess},
		{"fe80::2", iscsi.LoginSuccess},
		{"fe80::1", iscsi.LoginOutOfResources},
	} {
		name := fmt.Sprintf("iqn.2026-01.test:h%d", i) // who nobody has to prove to be
		assert.Equal(t, r.want.String(), b.logsIn(from(r.ip), name, wholeLogin).String(), "%d: %s", i, r.ip)
	}
}

func TestPeersAreToldApart(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::1": "::/64", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1": "fe80::1/128",
	} {
		assert.Equal(t, want, peerNet(netip.MustParseAddr(in)).String())
	}
	assert.False(t, peerNet(netip.Addr{}).IsValid())
}
