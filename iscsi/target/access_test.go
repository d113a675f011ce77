package target

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestRights(t *testing.T) {
	const friend, other = "iqn.2026-01.test:friend", "iqn.2026-01.test:other"
	for _, r := range []struct {
		name      string
		c         TargetConfig
		initiator iscsi.Name
		from      string
		want      bool
	}{
		{"no rule", TargetConfig{}, other, "192.0.2.9", true},
		{"a name", TargetConfig{Allow: []string{"IQN.2026-01.test:Friend"}}, friend, "192.0.2.9", true},
		{"another name", TargetConfig{Allow: []string{friend}}, other, "192.0.2.9", false},
		{"an address", TargetConfig{AllowFrom: prefixes("10.0.0.0/8", "192.0.2.9/32")}, other, "192.0.2.9", true},
		{"another address", TargetConfig{AllowFrom: prefixes("10.0.0.0/8", "192.0.2.9/32")}, other, "192.0.2.8", false},
		{"no address", TargetConfig{AllowFrom: prefixes("0.0.0.0/0", "::/0")}, other, "", false},
		{"IPv4 in IPv6", TargetConfig{AllowFrom: prefixes("10.0.0.0/8")}, other, "::ffff:10.1.2.3", true},
		{"link-local with zone", TargetConfig{AllowFrom: prefixes("fe80::/10")}, other, "fe80::1%eth0", true},
		{"both", TargetConfig{Allow: []string{friend}, AllowFrom: prefixes("10.0.0.0/8")}, friend, "10.0.0.1", true},
		{"only the name", TargetConfig{Allow: []string{friend}, AllowFrom: prefixes("10.0.0.0/8")}, friend, "192.0.2.9", false},
		{"only the address", TargetConfig{Allow: []string{friend}, AllowFrom: prefixes("10.0.0.0/8")}, other, "10.0.0.1", false},
		{"an entry", TargetConfig{Initiators: []InitiatorConfig{{Name: friend}}}, friend, "192.0.2.9", true},
		{"no entry where there are some", TargetConfig{Initiators: []InitiatorConfig{{Name: friend}}}, other, "192.0.2.9", false},
		{"a name beside entries", TargetConfig{Allow: []string{other}, Initiators: []InitiatorConfig{{Name: friend}}}, other, "192.0.2.9", true},
		{"an entry from elsewhere", TargetConfig{AllowFrom: prefixes("10.0.0.0/8"), Initiators: []InitiatorConfig{{Name: friend}}}, friend, "192.0.2.9", false},
	} {
		rights, err := newRights(&r.c)
		require.NoError(t, err, r.name)
		var from netip.Addr
		if r.from != "" {
			ip := netip.MustParseAddr(r.from)
			from = addrOf(&net.TCPAddr{IP: ip.AsSlice(), Zone: ip.Zone(), Port: 1})
		}
		assert.Equal(t, r.want, rights.allow(r.initiator, from), r.name)
	}
	for _, c := range []TargetConfig{
		{Allow: []string{"bob"}},
		{Initiators: []InitiatorConfig{{Name: "bob"}}},
		{Auth: testCredentials(t, false), Initiators: []InitiatorConfig{{Name: friend, Auth: new(*testCredentials(t, false))}}},
	} {
		if len(c.Initiators) > 0 && c.Initiators[0].Auth != nil {
			c.Initiators[0].Auth.User = ""
		}
		_, err := newRights(&c)
		assert.Error(t, err)
	}
}

// TestSeenAsLogInWouldBeAllowed: DI-09, over both transports. The test's initiator comes from 192.0.2.9.
func TestSeenAsLogInWouldBeAllowed(t *testing.T) {
	for _, tr := range []iscsi.Traits{tcpTraits, iserTraits} {
		b := newBench(t, benchConfig{allow: []string{"iqn.2026-01.test:none"}})
		want := map[string]bool{
			"none": true, "name": true, "address": true, "both": true, "entry": true,
			"other-name": false, "other-address": false, "other-entry": false, "name-elsewhere": false, "another-here": false,
		}
		me, other := []string{testInitiator}, []string{"iqn.2026-01.test:other"}
		here, there := prefixes("192.0.2.0/24"), prefixes("192.0.3.0/24")
		for name, c := range map[string]TargetConfig{
			"none": {}, "name": {Allow: me}, "address": {AllowFrom: here}, "both": {Allow: me, AllowFrom: here},
			"entry":      {Initiators: []InitiatorConfig{{Name: testInitiator}}},
			"other-name": {Allow: other}, "other-address": {AllowFrom: there},
			"other-entry":    {Initiators: []InitiatorConfig{{Name: iscsi.Name(other[0])}}},
			"name-elsewhere": {Allow: me, AllowFrom: there}, "another-here": {Allow: other, AllowFrom: here},
		} {
			c.Name, c.Device, c.Negotiate = iscsi.Name("iqn.2026-01.test:"+name), b.device, iscsi.DefaultConfig()
			_, err := b.s.AddTarget(c)
			require.NoError(t, err)
		}
		d := b.discovery(tr)
		var bhs [iscsi.BHSSize]byte
		(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 5, TTT: iscsi.ReservedTag, CmdSN: d.cmdSN, ExpStatSN: d.stat}).Put(&bhs)
		d.push(bhs, nil, text("SendTargets=All"))
		list := string(d.expect(iscsi.OpTextResponse).data)
		for name, allowed := range want {
			full := "iqn.2026-01.test:" + name
			assert.Equal(t, allowed, strings.Contains(list, "TargetName="+full+"\x00"), "%s over %s", name, tr.Name)
			c := &client{t: t, dm: b.connect(tr), cmdSN: 1, stat: 1}
			lines := loginLines(tr)
			lines[1] = "TargetName=" + full
			c.loginRequest(wholeLogin, lines...)
			resp, _ := c.loginResponse()
			status := iscsi.LoginSuccess
			if !allowed {
				status = iscsi.LoginForbidden
			}
			assert.Equal(t, status.String(), resp.Status.String(), "%s over %s", name, tr.Name)
		}
	}
}

func TestDiscoverySwitchedOff(t *testing.T) {
	b := newBench(t, benchConfig{config: Config{NoDiscovery: true}})
	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 1, stat: 1}
	c.loginRequest(wholeLogin, "InitiatorName="+testInitiator, "SessionType=Discovery")
	resp, _ := c.loginResponse()
	assert.Equal(t, iscsi.LoginBadSessionType, resp.Status)
	b.login(tcpTraits)
}

// TestEntriesProveThemselves: an initiator with an entry proves what the entry says, whatever holds for others.
func TestEntriesProveThemselves(t *testing.T) {
	own := testCredentials(t, false)
	own.User = "own"
	for _, r := range []struct {
		name  string
		entry []InitiatorConfig
		user  string
	}{
		{"no entry", nil, "host"},
		{"own proof", []InitiatorConfig{{Name: testInitiator, Auth: own}}, "own"},
		{"none", []InitiatorConfig{{Name: testInitiator}}, ""},
	} {
		p := newChapPeer(t, false)
		var err error
		p.l.find(testTarget).rights, err = newRights(&TargetConfig{Auth: testCredentials(t, false), Initiators: r.entry})
		require.NoError(t, err)
		if r.user == "" {
			req := wholeLogin
			assert.Equal(t, loginEnter, p.l.step(&req, text("InitiatorName="+testInitiator, "TargetName="+testTarget)).decision, r.name)
			continue
		}
		p.asked("5")
		p.user = r.user
		assert.Equal(t, loginGoesOn, p.prove().decision, r.name)
	}
}

// TestMaskedUnits: what an entry does not list is not there for the session, task management included.
func TestMaskedUnits(t *testing.T) {
	b := newBench(t, benchConfig{})
	_, err := b.s.AddTarget(TargetConfig{
		Name: "iqn.2026-01.test:masked", Device: b.device, Negotiate: iscsi.DefaultConfig(),
		Initiators: []InitiatorConfig{{Name: testInitiator, LUNs: []int{1}, ReadOnly: true}},
	})
	require.NoError(t, err)
	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000}
	lines := loginLines(tcpTraits)
	lines[1] = "TargetName=iqn.2026-01.test:masked"
	c.loginRequest(wholeLogin, lines...)
	resp, _ := c.loginResponse()
	require.Equal(t, iscsi.LoginSuccess, resp.Status)
	c.clearUA(1)
	r, sense := c.response(c.read(0, 0, 1))
	assert.Equal(t, uint8(scsi.CheckCondition), r.Status)
	assert.Equal(t, []byte{5, 0x25, 0}, []byte{sense[4], sense[14], sense[15]})
	r, sense = c.response(c.command(iscsi.SCSICommand{Final: true, Write: true, LUN: lun(1), EDTL: 512}, write10(0, 1), make([]byte, 512)))
	assert.Equal(t, uint8(scsi.CheckCondition), r.Status)
	assert.Equal(t, []byte{7, 0x27, 0}, []byte{sense[4], sense[14], sense[15]})
	for n, want := range map[int]iscsi.TMResponse{0: iscsi.TMNoLUN, 1: iscsi.TMComplete} {
		var bhs [iscsi.BHSSize]byte
		(&iscsi.TMFRequest{Immediate: true, Function: iscsi.TMLogicalUnitReset, LUN: lun(n), ITT: 0x70, RefITT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
		c.push(bhs, nil, nil)
		var tm iscsi.TMFResponse
		require.NoError(t, tm.Parse(&c.expect(iscsi.OpTMFResponse).bhs))
		assert.Equal(t, want, tm.Response, "LUN %d", n)
	}
}
