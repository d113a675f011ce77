package target

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// through starts a connection that has come through a portal group, to a local address.
func (b *bench) through(tag uint16, local string) *client {
	b.t.Helper()
	dm := newFakeDM(tcpTraits)
	dm.local = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local))
	b.fakes = append(b.fakes, dm)
	c := newConn(b.s, &portal{s: b.s, listener: newFakeListener("tcp", local), config: PortalConfig{Tag: tag}}, dm)
	require.True(b.t, b.s.admit(c))
	go c.run()
	return &client{t: b.t, dm: dm, cmdSN: 100, stat: 7, itt: 0x1000}
}

// status logs in to a target and returns what comes of it.
func (c *client) status(name string) (iscsi.LoginResponse, string) {
	c.t.Helper()
	c.loginRequest(wholeLogin, "InitiatorName="+testInitiator, "TargetName="+name)
	return c.loginResponse()
}

func (c *client) discover(value string) string {
	c.t.Helper()
	c.loginRequest(wholeLogin, "InitiatorName="+testInitiator, "SessionType=Discovery")
	r, _ := c.loginResponse()
	require.Equal(c.t, iscsi.LoginSuccess, r.Status)
	list, _ := c.sendTargets(value, 8192)
	return list
}

// TestPortalGroups: a target is served and seen through the portals of its groups only.
func TestPortalGroups(t *testing.T) {
	b := newBench(t, benchConfig{})
	const two = "iqn.2026-01.test:two"
	_, err := b.s.AddTarget(TargetConfig{Name: two, Device: b.device, Negotiate: iscsi.DefaultConfig(), Groups: []uint16{2, 3}})
	require.NoError(t, err)
	b.serve("tcp", "192.0.2.1:3260", PortalConfig{})
	b.serve("tcp", "192.0.2.2:3260", PortalConfig{Tag: 2})
	b.serve("tcp", "192.0.2.3:3260", PortalConfig{Tag: 3})

	const everywhere = "TargetName=" + testTarget + "\nTargetAddress=192.0.2.1:3260,1\nTargetAddress=192.0.2.2:3260,2\nTargetAddress=192.0.2.3:3260,3\n"
	const some = "TargetName=" + two + "\nTargetAddress=192.0.2.2:3260,2\nTargetAddress=192.0.2.3:3260,3\n"
	assert.Equal(t, everywhere, b.through(1, "192.0.2.1:3260").discover("All"))
	assert.Equal(t, everywhere+some, b.through(3, "192.0.2.3:3260").discover("All"))
	assert.Empty(t, b.through(1, "192.0.2.1:3260").discover(two))
	assert.Equal(t, some, b.through(2, "192.0.2.2:3260").discover(two))

	b.serve("iser", "192.0.2.2:3260", PortalConfig{Tag: 2})
	at := func(s string, tag uint16) PublishedPortal { return PublishedPortal{netip.MustParseAddrPort(s), tag} }
	assert.Equal(t, []Publication{
		{Name: testTarget, Portals: []PublishedPortal{at("192.0.2.1:3260", 1), at("192.0.2.2:3260", 2), at("192.0.2.3:3260", 3)}},
		{Name: two, Portals: []PublishedPortal{at("192.0.2.2:3260", 2), at("192.0.2.3:3260", 3)}},
	}, b.s.Publications(netip.MustParseAddr("192.0.2.1")))

	r, _ := b.through(1, "192.0.2.1:3260").status(two)
	assert.Equal(t, iscsi.LoginNotFound, r.Status)
	c := b.through(3, "192.0.2.3:3260")
	r, answer := c.status(two)
	assert.Equal(t, iscsi.LoginSuccess, r.Status)
	assert.Contains(t, answer, "TargetPortalGroupTag=3\x00")
	c.clearUA(0)
}

// TestPortsOfTwoGroupsAreTwoNexuses: the same ISID in another portal group is another session (RFC 7143, 4.4.3).
func TestPortsOfTwoGroupsAreTwoNexuses(t *testing.T) {
	b := newBench(t, benchConfig{})
	one, two := b.through(1, "192.0.2.1:3260"), b.through(2, "192.0.2.1:3260")
	for _, c := range []*client{one, two} {
		r, _ := c.status(testTarget)
		require.Equal(t, iscsi.LoginSuccess, r.Status)
		c.clearUA(0)
	}
	one.alive()
	assert.Len(t, b.s.Sessions(), 2)
}

// TestAddressesThatThePeerCanUse: an address of any host or of this host only is not told to others.
func TestAddressesThatThePeerCanUse(t *testing.T) {
	listens := []string{
		"127.0.0.1:1", "[::1]:2", "[fe80::1%lo]:3", "[fe80::2]:4", "169.254.1.1:5", "0.0.0.0:6", "[::]:7", "192.0.2.1:8", "[2001:db8::1]:9",
	}
	for _, row := range []struct{ here, want string }{
		{"192.0.2.1:8", "192.0.2.1:6 192.0.2.1:7 192.0.2.1:8 [2001:db8::1]:9"},
		{"[::ffff:192.0.2.1]:7", "192.0.2.1:6 192.0.2.1:7 192.0.2.1:8 [2001:db8::1]:9"},
		{"[2001:db8::1]:9", "[2001:db8::1]:7 192.0.2.1:8 [2001:db8::1]:9"},
		{"127.0.0.1:1", "127.0.0.1:1 [::1]:2 127.0.0.1:6 127.0.0.1:7 192.0.2.1:8 [2001:db8::1]:9"},
		{"[fe80::1%lo]:3", "[fe80::1]:3 [fe80::1]:7 192.0.2.1:8 [2001:db8::1]:9"},
		{"169.254.1.1:5", "169.254.1.1:5 169.254.1.1:6 169.254.1.1:7 192.0.2.1:8 [2001:db8::1]:9"},
	} {
		b := newBench(t, benchConfig{})
		for _, l := range listens {
			b.serve("tcp", l, PortalConfig{})
		}
		b.serve("tcp", "[fe80::9]:10", PortalConfig{Tag: 7, Advertise: netip.MustParseAddrPort("[2001:db8::9]:860")})
		var want strings.Builder
		want.WriteString("TargetName=" + testTarget + "\n")
		for a := range strings.FieldsSeq(row.want) {
			want.WriteString("TargetAddress=" + a + ",1\n")
		}
		want.WriteString("TargetAddress=[2001:db8::9]:860,7\n")
		assert.Equal(t, want.String(), b.through(1, row.here).discover("All"), "connected to %s", row.here)
	}
}

// TestRedirect: RFC 7143, 11.13.5 and 13.8: the address has no portal group tag.
func TestRedirect(t *testing.T) {
	b := newBench(t, benchConfig{allow: []string{testInitiator}})
	add := func(name string, r Redirect) {
		_, err := b.s.AddTarget(TargetConfig{
			Name: iscsi.Name(name), Device: b.device, Negotiate: iscsi.DefaultConfig(), Redirect: &r, Allow: []string{testInitiator},
		})
		require.NoError(t, err)
	}
	add("iqn.2026-01.test:gone", Redirect{To: "[2001:db8::5]:3260", Permanent: true})
	add("iqn.2026-01.test:away", Redirect{To: "192.0.2.5:3261", Groups: []uint16{2}})
	for _, row := range []struct {
		name   string
		tag    uint16
		status iscsi.LoginStatus
		text   string
	}{
		{"iqn.2026-01.test:gone", 1, iscsi.LoginMovedPermanently, "TargetAddress=[2001:db8::5]:3260\x00"},
		{"iqn.2026-01.test:away", 2, iscsi.LoginMovedTemporarily, "TargetAddress=192.0.2.5:3261\x00"},
		{"iqn.2026-01.test:away", 1, iscsi.LoginSuccess, "TargetPortalGroupTag=1\x00MaxRecvDataSegmentLength=262144\x00"},
	} {
		c := b.through(row.tag, "192.0.2.1:3260")
		r, text := c.status(row.name)
		assert.Equal(t, row.status, r.Status, row.name)
		assert.Equal(t, row.text, text)
		if row.status != iscsi.LoginSuccess {
			assert.Zero(t, r.TSIH)
			c.closes()
		}
	}
	// Strangers are not told.
	c := b.through(1, "192.0.2.1:3260")
	c.loginRequest(wholeLogin, "InitiatorName=iqn.2026-01.test:x", "TargetName=iqn.2026-01.test:gone")
	r, text := c.loginResponse()
	assert.Equal(t, iscsi.LoginForbidden, r.Status)
	assert.Empty(t, text)

	_, err := b.s.AddTarget(TargetConfig{Name: "iqn.2026-01.test:bad", Device: b.device, Redirect: &Redirect{To: "fe80::1"}})
	assert.ErrorContains(t, err, "redirect")
}
