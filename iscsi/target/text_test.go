package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fakeListener hands out the connections that a test puts in.
type fakeListener struct {
	transport string
	addr      net.Addr
	conns     chan iscsi.TargetDatamover
	refuse    error // of Register

	mu         sync.Mutex
	closed     chan struct{}
	registered [][]byte
}

func newFakeListener(transport, addr string) *fakeListener {
	return &fakeListener{
		transport: transport, addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)),
		conns: make(chan iscsi.TargetDatamover), closed: make(chan struct{}),
	}
}

func (l *fakeListener) Accept(ctx context.Context) (iscsi.TargetDatamover, error) {
	select {
	case dm := <-l.conns:
		if dm == nil {
			return nil, errors.New("out of descriptors")
		}
		return dm, nil
	case <-l.closed:
		return nil, fmt.Errorf("accept: %w", net.ErrClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *fakeListener) Addr() net.Addr    { return l.addr }
func (l *fakeListener) Transport() string { return l.transport }

func (l *fakeListener) Register(mem []byte) error {
	if l.refuse != nil {
		return l.refuse
	}
	l.registered = append(l.registered, mem)
	return nil
}

func (l *fakeListener) Unregister(mem []byte) error {
	for i, m := range l.registered {
		if &m[0] == &mem[0] {
			l.registered = append(l.registered[:i], l.registered[i+1:]...)
			return nil
		}
	}
	return errors.New("not registered")
}

func (l *fakeListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (b *bench) serve(transport, addr string, c PortalConfig) *fakeListener {
	l := newFakeListener(transport, addr)
	require.NoError(b.t, b.s.Serve(l, c))
	return l
}

func (c *client) textRequest(r iscsi.TextRequest, lines ...string) {
	r.ITT, r.CmdSN = 0x22, c.cmdSN
	if !r.Immediate {
		c.cmdSN++
	}
	var bhs [iscsi.BHSSize]byte
	r.Put(&bhs)
	c.push(bhs, nil, text(lines...))
}

func (c *client) textResponse() (iscsi.TextResponse, string) {
	c.t.Helper()
	p := c.expect(iscsi.OpTextResponse)
	var r iscsi.TextResponse
	require.NoError(c.t, r.Parse(&p.bhs))
	require.Equal(c.t, c.stat, r.StatSN)
	require.EqualValues(c.t, 0x22, r.ITT)
	c.stat++
	return r, string(p.data)
}

// sendTargets follows an answer to its end and checks the rules of its parts.
func (c *client) sendTargets(value string, limit int) (list string, parts int) {
	c.t.Helper()
	c.textRequest(iscsi.TextRequest{Final: true, TTT: iscsi.ReservedTag}, "SendTargets="+value)
	for {
		r, data := c.textResponse()
		list += data
		parts++
		require.LessOrEqual(c.t, len(data), limit)
		if !r.Continue {
			require.True(c.t, r.Final)
			require.EqualValues(c.t, iscsi.ReservedTag, r.TTT)
			return strings.ReplaceAll(list, "\x00", "\n"), parts
		}
		require.False(c.t, r.Final)
		require.NotEqualValues(c.t, iscsi.ReservedTag, r.TTT)
		c.textRequest(iscsi.TextRequest{Final: true, TTT: r.TTT, Immediate: parts%2 == 0})
	}
}

func TestSendTargets(t *testing.T) { // conformance 64 to 69
	b := newBench(t, benchConfig{})
	b.serve("tcp", "192.0.2.7:3260", PortalConfig{})
	b.serve("tcp", "0.0.0.0:3261", PortalConfig{Tag: 2})
	b.serve("tcp", "[2001:db8::1]:3260", PortalConfig{})
	b.serve("tcp", "10.0.0.1:3260", PortalConfig{Tag: 3, Advertise: netip.MustParseAddrPort("203.0.113.5:860")})
	b.serve("iser", "192.0.2.8:3260", PortalConfig{})
	_, err := b.s.AddTarget(TargetConfig{Name: "iqn.2026-01.test:aaa", Device: b.device, Negotiate: iscsi.DefaultConfig()})
	require.NoError(t, err)

	tcpList := "TargetAddress=192.0.2.7:3260,1\nTargetAddress=192.0.2.1:3261,2\n" +
		"TargetAddress=[2001:db8::1]:3260,1\nTargetAddress=203.0.113.5:860,3\n"
	iserList := "TargetAddress=192.0.2.8:3260,1\n"
	aaa, disk := "TargetName=iqn.2026-01.test:aaa\n", "TargetName="+testTarget+"\n"
	bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
		portals := tcpList
		if tr.RDMA {
			portals = iserList
		}
		b := &bench{t: t, s: b.s}
		c := b.discovery(tr)
		limit := 8192
		list, parts := c.sendTargets("All", limit)
		assert.Equal(t, aaa+portals+disk+portals, list)
		assert.Equal(t, 1, parts)
		list, _ = c.sendTargets(testTarget, limit)
		assert.Equal(t, disk+portals, list)
		list, _ = c.sendTargets("iqn.2026-01.test:none", limit)
		assert.Empty(t, list)
		list, _ = c.sendTargets("", limit)
		assert.Empty(t, list)

		c = b.login(tr) // field report DI-07
		if tr.RDMA {
			limit = 128
		}
		for _, value := range []string{"", testTarget} {
			list, _ = c.sendTargets(value, limit)
			assert.Equal(t, disk+portals, list, "SendTargets=%s", value)
		}
		for _, value := range []string{"All", "iqn.2026-01.test:aaa"} {
			list, _ = c.sendTargets(value, limit)
			assert.Empty(t, list, "SendTargets=%s", value)
		}
		c.clearUA(0)
		b.fakes[0].set(func() { b.fakes[0].err = net.ErrClosed })
		b.fakes[1].set(func() { b.fakes[1].err = net.ErrClosed })
	})
}

func TestDiscoveryShowsWhatCanBeLoggedInTo(t *testing.T) { // field report DI-09
	bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
		b := newBench(t, benchConfig{})
		b.serve(tr.Name, "192.0.2.7:3260", PortalConfig{})
		for name, allow := range map[iscsi.Name][]string{
			"iqn.2026-01.test:mine": {testInitiator, "iqn.2026-01.test:x"}, "iqn.2026-01.test:theirs": {"iqn.2026-01.test:x"},
		} {
			_, err := b.s.AddTarget(TargetConfig{Name: name, Device: b.device, Negotiate: iscsi.DefaultConfig(), Allow: allow})
			require.NoError(t, err)
		}
		c := b.discovery(tr)
		list, _ := c.sendTargets("All", 8192)
		assert.Contains(t, list, "iqn.2026-01.test:mine")
		assert.NotContains(t, list, "iqn.2026-01.test:theirs")
		list, _ = c.sendTargets("iqn.2026-01.test:theirs", 8192)
		assert.Empty(t, list)
	})
}

func TestLongListsComeInParts(t *testing.T) { // field reports DI-01 and DI-02
	for _, row := range []struct {
		tr      iscsi.Traits
		targets int
		mrdsl   string
		limit   int
	}{{tcpTraits, 1, "512", 512}, {tcpTraits, 50, "512", 512}, {tcpTraits, 5000, "262144", 8192}, {iserTraits, 500, "8192", 8192}} {
		b := newBench(t, benchConfig{})
		for i := range 4 {
			b.serve(row.tr.Name, fmt.Sprintf("192.0.2.%d:3260", 7+i), PortalConfig{})
		}
		require.NoError(t, b.s.RemoveTarget(testTarget))
		var want strings.Builder
		pad := strings.Repeat("x", 180)
		for i := range row.targets {
			name := fmt.Sprintf("iqn.2026-01.test:%s%04d", pad, i)
			_, err := b.s.AddTarget(TargetConfig{Name: iscsi.Name(name), Device: b.device})
			require.NoError(t, err)
			want.WriteString("TargetName=" + name + "\n")
			for j := range 4 {
				want.WriteString(fmt.Sprintf("TargetAddress=192.0.2.%d:3260,1\n", 7+j))
			}
		}
		c := b.discovery(row.tr, "MaxRecvDataSegmentLength="+row.mrdsl)
		for range 2 {
			list, parts := c.sendTargets("All", row.limit)
			assert.Equal(t, want.String(), list)
			assert.Equal(t, (len(want.String())+row.limit-1)/row.limit, parts)
		}
	}
}

func TestUnknownKeysInText(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.textRequest(iscsi.TextRequest{Final: true, TTT: iscsi.ReservedTag}, "X-foo=1", "MaxBurstLength=512")
	r, data := c.textResponse()
	assert.True(t, r.Final)
	assert.Equal(t, "X-foo=NotUnderstood\x00MaxBurstLength=Reject\x00", data)
}

// TestKeysOfFullFeaturePhase: RFC 7143, 13: MaxRecvDataSegmentLength and aliases may be declared at any time.
func TestKeysOfFullFeaturePhase(t *testing.T) {
	bothTraits(t, func(t *testing.T, tr iscsi.Traits) {
		b := newBench(t, benchConfig{})
		c := b.login(tr)
		c.clearUA(0)
		ask := func(lines ...string) string {
			c.textRequest(iscsi.TextRequest{Final: true, TTT: iscsi.ReservedTag}, lines...)
			r, data := c.textResponse()
			require.True(t, r.Final)
			return data
		}
		assert.Empty(t, ask("MaxRecvDataSegmentLength=512", "InitiatorAlias=box"))
		if !tr.RDMA { // else the iSER keys hold (RFC 7145, 6)
			c.dm.set(func() { assert.EqualValues(t, 512, c.dm.maxSend) })
			list, parts := c.sendTargets("", 512)
			assert.NotEmpty(t, list)
			assert.Equal(t, 1, parts)
			ping := make([]byte, 4096)
			var bhs [iscsi.BHSSize]byte
			(&iscsi.NOPOut{Immediate: true, ITT: 0x9999, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
			c.push(bhs, nil, ping)
			assert.Len(t, c.expect(iscsi.OpNOPIn).data, 512)
			c.stat++
		}
		assert.Equal(t, "InitiatorName=Reject\x00AuthMethod=Reject\x00ErrorRecoveryLevel=Reject\x00HeaderDigest=Reject\x00X#foo=NotUnderstood\x00",
			ask("InitiatorName="+testInitiator, "AuthMethod=CHAP", "ErrorRecoveryLevel=0", "HeaderDigest=None", "X#foo=1"))
		assert.Empty(t, ask("MaxRecvDataSegmentLength=65536"))
		for _, lines := range [][]string{{"SendTargets=", "SendTargets="}, {"X-a=1", "X-a=1"}} {
			c.textRequest(iscsi.TextRequest{Final: true, TTT: iscsi.ReservedTag}, lines...)
			c.expect(iscsi.OpReject)
			c.stat++
		}
		if !tr.RDMA {
			c.textRequest(iscsi.TextRequest{Final: true, TTT: iscsi.ReservedTag}, "MaxRecvDataSegmentLength=511")
			c.expect(iscsi.OpReject)
			c.stat++
			c.dm.set(func() { assert.EqualValues(t, 65536, c.dm.maxSend) })
		}
		c.alive()
	})
}

// TestSNACKIsRejected: there is nothing to send again without error recovery (RFC 7143, 11.16 and 11.17.1).
func TestSNACKIsRejected(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits, "ErrorRecoveryLevel=2")
	c.clearUA(0)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.SNACK{ITT: 5, TTT: iscsi.ReservedTag}).Put(&bhs)
	c.push(bhs, nil, nil)
	p := c.expect(iscsi.OpReject)
	var r iscsi.Reject
	require.NoError(t, r.Parse(&p.bhs))
	assert.Equal(t, iscsi.RejectSNACK, r.Reason)
	assert.Equal(t, bhs[:], p.data)
	c.stat++
	c.alive()
}

func TestContinuedTextRequest(t *testing.T) {
	b := newBench(t, benchConfig{})
	b.serve("tcp", "192.0.2.7:3260", PortalConfig{})
	c := b.discovery(tcpTraits)
	var bhs [iscsi.BHSSize]byte
	(&iscsi.TextRequest{Continue: true, ITT: 0x22, TTT: iscsi.ReservedTag, CmdSN: c.cmdSN}).Put(&bhs)
	c.cmdSN++
	c.push(bhs, nil, []byte("SendTa"))
	r, data := c.textResponse()
	require.False(t, r.Final || r.Continue)
	require.Empty(t, data)
	require.NotEqualValues(t, iscsi.ReservedTag, r.TTT)
	(&iscsi.TextRequest{Final: true, ITT: 0x22, TTT: r.TTT, CmdSN: c.cmdSN}).Put(&bhs)
	c.cmdSN++
	c.push(bhs, nil, []byte("rgets=All\x00"))
	r, data = c.textResponse()
	assert.True(t, r.Final)
	assert.Contains(t, data, testTarget)
}

func TestTextThatCannotBeAnsweredIsRejected(t *testing.T) {
	b := newBench(t, benchConfig{})
	c := b.login(tcpTraits)
	c.clearUA(0)
	expectReject := func() {
		t.Helper()
		p := c.expect(iscsi.OpReject)
		var r iscsi.Reject
		require.NoError(t, r.Parse(&p.bhs))
		assert.Equal(t, iscsi.RejectProtocolError, r.Reason)
		assert.EqualValues(t, iscsi.ReservedTag, iscsi.ITTOf(&p.bhs))
		require.Len(t, p.data, iscsi.BHSSize)
		assert.EqualValues(t, iscsi.OpTextRequest, p.data[0]&0x3f)
		c.stat++
		c.alive()
	}
	c.textRequest(iscsi.TextRequest{Final: true, TTT: iscsi.ReservedTag}, "no equals sign")
	expectReject()
	c.textRequest(iscsi.TextRequest{Final: true, TTT: 9}, "SendTargets=")
	expectReject()
	c.textRequest(iscsi.TextRequest{Final: true, Continue: true, TTT: iscsi.ReservedTag}, "SendTargets=")
	expectReject()
	// Input without end (field report SE-05).
	c.textRequest(iscsi.TextRequest{Continue: true, TTT: iscsi.ReservedTag}, strings.Repeat("a", 8000))
	for range 7 {
		r, _ := c.textResponse()
		c.textRequest(iscsi.TextRequest{Continue: true, TTT: r.TTT}, strings.Repeat("a", 8000))
	}
	r, _ := c.textResponse()
	c.textRequest(iscsi.TextRequest{Continue: true, TTT: r.TTT}, strings.Repeat("a", 8000))
	expectReject()
	assert.EqualValues(t, 4, b.s.Sessions()[0].Rejects)
}

func TestMemoryIsRegisteredWithEveryPortal(t *testing.T) {
	b := newBench(t, benchConfig{})
	ram := make([]byte, 4096)
	l := b.serve("tcp", "192.0.2.7:3260", PortalConfig{})
	require.Len(t, l.registered, 1, "the pool")
	require.NoError(t, b.s.RegisterMemory(ram))
	require.Len(t, l.registered, 2)
	m := b.serve("iser", "192.0.2.7:3260", PortalConfig{})
	require.Len(t, m.registered, 2)
	require.NoError(t, b.s.UnregisterMemory(ram))
	require.Len(t, l.registered, 1)
	require.Len(t, m.registered, 1)
	require.Error(t, b.s.UnregisterMemory(ram))

	m.refuse = errors.New("device full")
	require.ErrorIs(t, b.s.RegisterMemory(ram), m.refuse)
	require.Len(t, l.registered, 1, "taken back")
	bad := newFakeListener("iser", "192.0.2.9:3260")
	bad.refuse = m.refuse
	require.ErrorIs(t, b.s.Serve(bad, PortalConfig{}), m.refuse)
}

func TestAddTargetChecksItsConfig(t *testing.T) {
	b := newBench(t, benchConfig{})
	dev := scsi.NewDevice(scsi.DeviceConfig{})
	for _, c := range []TargetConfig{
		{Name: "disk", Device: dev},
		{Name: "iqn.2026-01.test:x"},
		{Name: testTarget, Device: dev},
		{Name: "iqn.2026-01.test:x", Device: dev, Allow: []string{"bob"}},
	} {
		_, err := b.s.AddTarget(c)
		assert.Error(t, err, "%+v", c)
	}
	assert.ErrorIs(t, b.s.RemoveTarget("iqn.2026-01.test:x"), ErrNoTarget)
	assert.Len(t, b.s.Targets(), 1)
	assert.Equal(t, iscsi.Name(testTarget), b.s.Targets()[0].Name())
	assert.Same(t, b.device, b.s.Targets()[0].Device())
}
