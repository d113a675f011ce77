package target

import (
	"context"
	"testing"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	hostA = "iqn.2026-01.test:a"
	hostB = "iqn.2026-01.test:b"
)

// loginBy logs an initiator in on a new connection.
func (b *bench) loginBy(initiator string, id byte) *client {
	b.t.Helper()
	c := &client{t: b.t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000}
	c.loginRequest(isid(id), "InitiatorName="+initiator, "TargetName="+testTarget)
	r, _ := c.loginResponse()
	require.Equal(b.t, iscsi.LoginSuccess, r.Status)
	c.tsih = r.TSIH
	c.clearUA(0)
	return c
}

// settings are those of the bench's target.
func (b *bench) settings() TargetConfig {
	return TargetConfig{Name: testTarget, Device: b.device, Negotiate: iscsi.DefaultConfig()}
}

// dropped takes the message that the session ends, and waits for that.
func (c *client) dropped() {
	c.t.Helper()
	p := c.expect(iscsi.OpAsync)
	var a iscsi.Async
	require.NoError(c.t, a.Parse(&p.bhs))
	assert.Equal(c.t, iscsi.AsyncSessionDrop, a.Event)
	c.dm.releaseAll()
	c.closes()
}

// TestChangedRightsCloseOnlyWhoTheyConcern: a session that would be the same after a new login goes on.
func TestChangedRightsCloseOnlyWhoTheyConcern(t *testing.T) {
	for name, change := range map[string]func(c *TargetConfig){
		"name": func(c *TargetConfig) { c.Allow = []string{hostB} },
		"mask": func(c *TargetConfig) {
			c.Allow, c.Initiators = []string{hostB}, []InitiatorConfig{{Name: hostA, LUNs: []int{0}}}
		},
		"no unit": func(c *TargetConfig) {
			c.Allow, c.Initiators = []string{hostB}, []InitiatorConfig{{Name: hostA, LUNs: []int{}}}
		},
		"read-only": func(c *TargetConfig) {
			c.Allow, c.Initiators = []string{hostB}, []InitiatorConfig{{Name: hostA, ReadOnly: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchConfig{})
			a, other := b.loginBy(hostA, 1), b.loginBy(hostB, 2)
			c := b.settings()
			change(&c)
			ids, err := b.s.Excluded(c)
			require.NoError(t, err)
			assert.Equal(t, []uint16{a.tsih}, ids)
			done := make(chan error, 1)
			go func() { done <- b.s.UpdateTarget(t.Context(), c) }()
			a.dropped()
			require.NoError(t, <-done)
			other.alive()
			require.Len(t, b.s.Sessions(), 1)
			ids, err = b.s.Excluded(c)
			require.NoError(t, err)
			assert.Empty(t, ids)
		})
	}
}

// Groups that a session has not come through, and a redirection, end it; what is negotiated and proved does not.
func TestChangesThatSessionsOutlive(t *testing.T) {
	b := newBench(t, benchConfig{})
	a := b.loginBy(hostA, 1)
	c := b.settings()
	c.Alias, c.Negotiate.ImmediateData, c.Auth = "another", false, testCredentials(t, false)
	require.NoError(t, b.s.UpdateTarget(t.Context(), c))
	a.alive()
	for _, change := range []func(c *TargetConfig){
		func(c *TargetConfig) { c.Groups = []uint16{2} },
		func(c *TargetConfig) { c.Redirect = &Redirect{To: "192.0.2.9:3260"} },
	} {
		d := b.settings()
		change(&d)
		ids, err := b.s.Excluded(d)
		require.NoError(t, err)
		assert.Equal(t, []uint16{a.tsih}, ids)
	}
	d := b.settings()
	d.Redirect = &Redirect{To: "192.0.2.9:3260", Groups: []uint16{2}}
	ids, err := b.s.Excluded(d)
	require.NoError(t, err)
	assert.Empty(t, ids, "it has moved elsewhere only")

	assert.ErrorContains(t, b.s.UpdateTarget(t.Context(), TargetConfig{Name: "iqn.2026-01.test:none", Device: b.device}), "no such target")
	_, err = b.s.Excluded(TargetConfig{Name: "iqn.2026-01.test:none", Device: b.device})
	assert.ErrorIs(t, err, ErrNoTarget)
}

// TestLoginAcrossAChangeIsRefused: who has proved to have the old rights does not get in after they are gone, although
// the sessions of then have been looked through already.
func TestLoginAcrossAChangeIsRefused(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000}
	first := isid(1)
	first.Transit = false
	lines := []string{"InitiatorName=" + hostA, "TargetName=" + testTarget}
	c.loginRequest(first, lines...)
	r, _ := c.loginResponse()
	require.Equal(t, iscsi.LoginSuccess, r.Status)
	d := b.settings()
	d.Allow = []string{hostB}
	require.NoError(t, b.s.UpdateTarget(t.Context(), d))
	c.loginRequest(isid(1))
	r, _ = c.loginResponse()
	assert.Equal(t, iscsi.LoginServiceUnavail, r.Status)
	c.closes()
	assert.Empty(t, b.s.Sessions())
}

func TestSessionsAreClosed(t *testing.T) {
	b := newBench(t, benchConfig{})
	a, other := b.loginBy(hostA, 1), b.loginBy(hostB, 2)
	assert.ElementsMatch(t, []uint16{a.tsih, other.tsih}, b.s.UsingLUN(b.device, 1))
	done := make(chan error, 1)
	go func() { done <- b.s.CloseSessions(t.Context(), a.tsih, 999) }()
	a.dropped()
	require.NoError(t, <-done)
	other.alive()
	assert.Contains(t, b.lines.String(), "closed by the administrator")
	a = b.loginBy(hostA, 1) // it may come back
	a.alive()
}

// TestHangingStoreDoesNotHoldUpTheAdministrator: what he wants is done as far as it can be, and he learns what is not.
func TestHangingStoreDoesNotHoldUpTheAdministrator(t *testing.T) {
	b := newBench(t, benchConfig{})
	a := b.loginBy(hostA, 1)
	a.clearUA(1)
	b.slow.Hold()
	a.read(1, 0, 1)
	b.slow.Held(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := b.s.RemoveTargetContext(ctx, testTarget)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, b.s.RemoveTarget(testTarget), ErrNoTarget, "it is gone for initiators")
	require.Len(t, b.s.Sessions(), 1)
	b.slow.Release()
	a.dropped()
}

func TestDiscoveryRulesChange(t *testing.T) {
	b := newBench(t, benchConfig{})
	b.discovery(tcpTraits)
	require.NoError(t, b.s.SetDiscovery(nil, true))
	c := &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000}
	c.loginRequest(wholeLogin, "InitiatorName="+testInitiator, "SessionType=Discovery")
	r, _ := c.loginResponse()
	assert.Equal(t, iscsi.LoginBadSessionType, r.Status)
	require.NoError(t, b.s.SetDiscovery(testCredentials(t, false), false))
	c = &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000}
	c.loginRequest(wholeLogin, "InitiatorName="+testInitiator, "SessionType=Discovery")
	r, _ = c.loginResponse()
	assert.Equal(t, iscsi.LoginAuthFailed, r.Status)
}

// TestPortalIsRemoved: its sessions end with it, others do not, and the memory is known to those that are left only.
func TestPortalIsRemoved(t *testing.T) {
	b := newBench(t, benchConfig{})
	one, two := b.serve("tcp", "192.0.2.1:3260", PortalConfig{}), b.serve("tcp", "192.0.2.2:3260", PortalConfig{})
	via := func(l *fakeListener, id byte) *client {
		dm := newFakeDM(tcpTraits)
		b.fakes = append(b.fakes, dm)
		var p *portal
		for _, q := range b.s.portalList() {
			if q.listener == iscsi.Listener(l) {
				p = q
			}
		}
		c := newConn(b.s, p, dm)
		require.True(t, b.s.admit(c))
		go c.run()
		k := &client{t: t, dm: dm, cmdSN: 100, stat: 7, itt: 0x1000}
		k.loginRequest(isid(id), "InitiatorName="+hostA, "TargetName="+testTarget)
		r, _ := k.loginResponse()
		require.Equal(t, iscsi.LoginSuccess, r.Status)
		k.clearUA(0)
		k.tsih = r.TSIH
		return k
	}
	a, other := via(one, 1), via(two, 2)
	assert.Equal(t, []uint16{a.tsih}, b.s.OnPortal(one))
	done := make(chan error, 1)
	go func() { done <- b.s.RemovePortal(t.Context(), one) }()
	a.dropped()
	require.NoError(t, <-done)
	other.alive()
	assert.Empty(t, b.s.OnPortal(one))
	for _, s := range b.s.Sessions() {
		assert.Equal(t, "192.0.2.2:3260", s.Portal)
	}
	assert.ErrorContains(t, b.s.RemovePortal(t.Context(), one), "not served")
}
