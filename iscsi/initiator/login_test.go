package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var iserLike = iscsi.Traits{Name: "iser", RDMA: true, MaxLoginData: 8192, MaxRecvData: 8192}

func testOptions(t testing.TB) *Options {
	o, err := Options{InitiatorName: "iqn.2026-01.test:host", ISID: iscsi.ISID{0x80, 1, 2, 3, 4, 5}}.withDefaults()
	require.NoError(t, err)
	return &o
}

// ask takes the next request of l.
func ask(t testing.TB, l *login) (iscsi.LoginRequest, string) {
	var bhs [iscsi.BHSSize]byte
	text := l.request(&bhs)
	var req iscsi.LoginRequest
	require.NoError(t, req.Parse(&bhs))
	require.Equal(t, len(text), int(req.DataLength))
	return req, strings.ReplaceAll(string(text), "\x00", "\n")
}

func answer(l *login, rsp iscsi.LoginResponse, text string) (bool, error) {
	ev := pduEvent(&rsp, []byte(text))
	return l.response(ev.BHS, ev.Data)
}

// granted is a response that grants full-feature phase.
func granted() iscsi.LoginResponse {
	return iscsi.LoginResponse{
		Transit: true, Current: iscsi.StageOperational, Next: iscsi.StageFullFeature,
		TSIH: 7, ITT: loginITT, StatSN: 41, ExpCmdSN: 1, MaxCmdSN: 64,
	}
}

func TestLoginIsOnePDU(t *testing.T) { // ISER.md 6.3
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	assert.True(t, l.asksFullFeature())
	req, text := ask(t, l)
	assert.Equal(t, iscsi.LoginRequest{
		Transit: true, Current: iscsi.StageOperational, Next: iscsi.StageFullFeature,
		ISID: iscsi.ISID{0x80, 1, 2, 3, 4, 5}, ITT: loginITT, CmdSN: 1, DataLength: req.DataLength,
	}, req)
	assert.Equal(t, `InitiatorName=iqn.2026-01.test:host
TargetName=iqn.2026-01.test:disk
SessionType=Normal
HeaderDigest=None
DataDigest=None
InitialR2T=Yes
ImmediateData=Yes
MaxBurstLength=1048576
FirstBurstLength=65536
MaxOutstandingR2T=1
MaxConnections=1
DataPDUInOrder=Yes
DataSequenceInOrder=Yes
DefaultTime2Wait=2
DefaultTime2Retain=0
ErrorRecoveryLevel=0
RDMAExtensions=Yes
InitiatorRecvDataSegmentLength=8192
TargetRecvDataSegmentLength=8192
`, text)
	done, err := answer(l, granted(), "TargetPortalGroupTag=1\x00RDMAExtensions=Yes\x00ImmediateData=No\x00")
	require.NoError(t, err)
	require.True(t, done)
	assert.Equal(t, uint16(7), l.tsih)
	assert.Equal(t, iscsi.Sequence{StatSN: 42, ExpCmdSN: 1, MaxCmdSN: 64}, l.seq)
	assert.False(t, l.params.ImmediateData)
}

func TestDiscoveryLoginOffersNoRDMA(t *testing.T) { // checklist 161
	_, text := ask(t, newLogin(testOptions(t), iserLike, ""))
	assert.Contains(t, text, "SessionType=Discovery\n")
	assert.NotContains(t, text, "TargetName")
	assert.NotContains(t, text, "RDMAExtensions")
}

func TestLoginWithFurtherRounds(t *testing.T) { // checklist 134
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	ask(t, l)
	more := granted()
	more.Transit = false
	done, err := answer(l, more, "RDMAExtensions=Yes\x00X-vendor=1\x00TaskReporting=RFC3720\x00")
	require.NoError(t, err)
	require.False(t, done)
	req, text := ask(t, l)
	assert.True(t, req.Transit)
	assert.Equal(t, iscsi.StatSN(42), req.ExpStatSN)
	assert.Equal(t, "X-vendor=NotUnderstood\nTaskReporting=RFC3720\n", text)
	more = granted()
	more.StatSN = 42
	done, err = answer(l, more, "")
	require.NoError(t, err)
	assert.True(t, done)
	assert.Equal(t, iscsi.StatSN(43), l.seq.StatSN)
}

func TestLoginTextGoesOnInBothDirections(t *testing.T) {
	tr := iserLike
	tr.MaxLoginData = 512
	l := newLogin(testOptions(t), tr, "iqn.2026-01.test:"+strings.Repeat("d", 190))
	require.False(t, l.asksFullFeature(), "no room is made before full-feature phase is asked for")
	first, a := ask(t, l)
	assert.True(t, first.Continue)
	assert.False(t, first.Transit)
	assert.Len(t, a, 512)
	wait := granted()
	wait.Transit = false
	done, err := answer(l, wait, "")
	require.NoError(t, err)
	require.False(t, done)
	second, b := ask(t, l)
	assert.True(t, second.Transit)
	assert.False(t, second.Continue)
	assert.True(t, strings.HasSuffix(a+b, "TargetRecvDataSegmentLength=8192\n"))

	wait.Continue = true
	done, err = answer(l, wait, "RDMAExten")
	require.NoError(t, err)
	require.False(t, done)
	empty, text := ask(t, l)
	assert.False(t, empty.Transit, "an empty request asks for the rest")
	assert.Empty(t, text)
	rest := granted()
	rest.Transit = false
	done, err = answer(l, rest, "sions=Yes\x00")
	require.NoError(t, err)
	require.False(t, done)
	last, _ := ask(t, l)
	assert.True(t, last.Transit)
	done, err = answer(l, granted(), "")
	require.NoError(t, err)
	assert.True(t, done)
}

func TestLoginRoundsAreBounded(t *testing.T) { // LG-11
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	more := granted()
	more.Transit = false
	for i := range maxLoginRounds {
		ask(t, l)
		_, err := answer(l, more, "")
		require.NoError(t, err, "round %d", i)
	}
	ask(t, l)
	_, err := answer(l, more, "")
	assert.ErrorContains(t, err, "does not grant the login within 32 rounds")
}

func TestLoginResponsesThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*iscsi.LoginResponse)
		text   string
		err    string
	}{
		"other ITT":       {func(r *iscsi.LoginResponse) { r.ITT = 9 }, "", "ITT 00000009"},
		"version 1":       {func(r *iscsi.LoginResponse) { r.VersionActive = 1 }, "", "version 1"},
		"security stage":  {func(r *iscsi.LoginResponse) { r.Current = 0 }, "", "in stage 0"},
		"to stage 1":      {func(r *iscsi.LoginResponse) { r.Next = 1 }, "", "goes to stage 1"},
		"T and C":         {func(r *iscsi.LoginResponse) { r.Continue = true }, "A=1", "T and C"},
		"empty and C":     {func(r *iscsi.LoginResponse) { r.Transit, r.Continue = false, true }, "", "an empty Login Response"},
		"bad text":        {func(*iscsi.LoginResponse) {}, "nothing", "without ="},
		"bad number":      {func(*iscsi.LoginResponse) {}, "RDMAExtensions=Yes\x00MaxBurstLength=x", "MaxBurstLength answered x"},
		"no RDMA":         {func(*iscsi.LoginResponse) {}, "RDMAExtensions=No", "RDMAExtensions=No"},
		"RDMA rejected":   {func(*iscsi.LoginResponse) {}, "RDMAExtensions=Reject", "RDMAExtensions=Reject"},
		"RDMA unanswered": {func(*iscsi.LoginResponse) {}, "", "RDMAExtensions=Yes was not negotiated"},
		"digest":          {func(*iscsi.LoginResponse) {}, "RDMAExtensions=Yes\x00HeaderDigest=CRC32C", "not offered"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
			ask(t, l)
			rsp := granted()
			c.change(&rsp)
			done, err := answer(l, rsp, c.text)
			assert.False(t, done)
			assert.ErrorContains(t, err, c.err)
		})
	}
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	ask(t, l)
	ev := pduEvent(&iscsi.NOPIn{}, nil)
	_, err := l.response(ev.BHS, nil)
	assert.ErrorContains(t, err, "NOP-In instead of a Login Response")
}

func TestLoginTextIsBounded(t *testing.T) {
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	rsp := granted()
	rsp.Transit, rsp.Continue = false, true
	for range maxLoginText / 8192 {
		ask(t, l)
		_, err := answer(l, rsp, strings.Repeat("x", 8192))
		require.NoError(t, err)
	}
	ask(t, l)
	_, err := answer(l, rsp, "x")
	assert.ErrorContains(t, err, "more than 65536 bytes")
}

func TestNonsensicalWindowInLogin(t *testing.T) {
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	ask(t, l)
	rsp := granted()
	rsp.ExpCmdSN, rsp.MaxCmdSN = 5, 1
	done, err := answer(l, rsp, "RDMAExtensions=Yes")
	require.NoError(t, err)
	require.True(t, done)
	assert.Equal(t, l.cmdSN, l.seq.MaxCmdSN, "one command, until told better")
}

// statusTarget refuses logins with the statuses in turn; address is the new address of redirections.
func statusTarget(address func(hop int) string, statuses ...iscsi.LoginStatus) *fakeTransport {
	hop := 0
	return &fakeTransport{dial: func(string) (*fakeDM, error) {
		d := newFake()
		i := hop
		hop++
		if i >= len(statuses) {
			ft := newFakeTarget(nil)
			return ft.fakeDM, nil
		}
		d.onSend = func(iscsi.Opcode, *[iscsi.BHSSize]byte, []byte) {
			text := ""
			if a := address(i); a != "" {
				text = "TargetAddress=" + a + "\x00"
			}
			d.pdu(&iscsi.LoginResponse{ITT: loginITT, Status: statuses[i]}, []byte(text))
		}
		return d, nil
	}}
}

func TestLoginStatusesInWords(t *testing.T) { // LG-09
	for _, status := range []iscsi.LoginStatus{
		0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, 0x208, 0x209, 0x20a, 0x20b, 0x300, 0x301, 0x302, 0x2ff, 0x3ff,
	} {
		synctest.Test(t, func(t *testing.T) {
			always := make([]iscsi.LoginStatus, 10)
			for i := range always {
				always[i] = status
			}
			tr := statusTarget(func(int) string { return "" }, always...)
			_, err := Open(t.Context(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
			var refused *iscsi.LoginError
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, status, refused.Status)
			assert.ErrorContains(t, err, fmt.Sprintf("login status %04x (%s)", uint16(status), status))
			tries := 1
			if status.Temporary() {
				tries += maxLoginRetries
			}
			assert.Len(t, tr.addrs, tries, "%v", status)
		})
	}
}

func TestTemporaryRefusalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := statusTarget(func(int) string { return "" }, iscsi.LoginServiceUnavail, iscsi.LoginOutOfResources)
		s, err := Open(t.Context(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
		require.NoError(t, err)
		assert.Len(t, tr.addrs, 3)
		require.NoError(t, s.Close())
	})
}

func TestRedirections(t *testing.T) { // SE-15
	moved := iscsi.LoginMovedTemporarily
	for name, c := range map[string]struct {
		address  func(int) string
		statuses []iscsi.LoginStatus
		addrs    []string
		err      string
	}{
		"once":      {func(int) string { return "10.0.0.2:3261,1" }, []iscsi.LoginStatus{moved}, []string{"h:1", "10.0.0.2:3261"}, ""},
		"permanent": {func(int) string { return "disk.example" }, []iscsi.LoginStatus{iscsi.LoginMovedPermanently}, []string{"h:1", "disk.example:3260"}, ""},
		"IPv6":      {func(int) string { return "[fe80::1]" }, []iscsi.LoginStatus{moved}, []string{"h:1", "[fe80::1]:3260"}, ""},
		"IPv6 port": {func(int) string { return "[fe80::1]:5" }, []iscsi.LoginStatus{moved}, []string{"h:1", "[fe80::1]:5"}, ""},
		"four hops": {func(i int) string { return fmt.Sprintf("a:%d", i) }, []iscsi.LoginStatus{moved, moved, moved, moved}, []string{"h:1", "a:0", "a:1", "a:2", "a:3"}, ""},
		"for ever":  {func(i int) string { return fmt.Sprintf("a:%d", i) }, []iscsi.LoginStatus{moved, moved, moved, moved, moved, moved}, []string{"h:1", "a:0", "a:1", "a:2", "a:3"}, "more than 4 redirections"},
		"circle":    {func(i int) string { return fmt.Sprintf("a:%d", i%2) }, []iscsi.LoginStatus{moved, moved, moved, moved, moved, moved}, []string{"h:1", "a:0", "a:1"}, "redirected in a circle, back to a:0"},
		"to itself": {func(i int) string { return "h:1,1" }, []iscsi.LoginStatus{moved, moved}, []string{"h:1"}, "redirected in a circle, back to h:1"},
		"nowhere":   {func(int) string { return "" }, []iscsi.LoginStatus{moved}, []string{"h:1"}, `to the address ""`},
		"bad":       {func(int) string { return "a b" }, []iscsi.LoginStatus{moved}, []string{"h:1"}, "to the address"},
		"bad IPv6":  {func(int) string { return "fe80::1" }, []iscsi.LoginStatus{moved}, []string{"h:1"}, "to the address"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := statusTarget(c.address, c.statuses...)
			s, err := Open(context.Background(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
			assert.Equal(t, c.addrs, tr.addrs)
			if c.err != "" {
				assert.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.NoError(t, s.Close())
		})
	}
}

func TestOpenReturnsWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFake()
		tr := &fakeTransport{dial: func(string) (*fakeDM, error) { return d, nil }}
		ctx, stop := context.WithCancelCause(t.Context())
		why := errors.New("changed my mind")
		go func() {
			synctest.Wait()
			stop(why)
		}()
		_, err := Open(ctx, tr, "h:1", "iqn.2026-01.test:disk", Options{})
		assert.ErrorIs(t, err, why)
		assert.Equal(t, 1, d.closed)
		_, err = Open(t.Context(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
		assert.Error(t, err)
		d = newFake()
		_, err = Open(t.Context(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "no answer within 15s")
	})
}

func TestDialErrorsComeThrough(t *testing.T) {
	tr := &fakeTransport{dial: func(string) (*fakeDM, error) { return nil, net.UnknownNetworkError("x") }}
	_, err := Open(context.Background(), tr, "h:1", "iqn.2026-01.test:disk", Options{})
	assert.ErrorContains(t, err, "log in at h:1 over fake: unknown network x")
}

func TestOptions(t *testing.T) {
	o, err := Options{}.withDefaults()
	require.NoError(t, err)
	assert.Regexp(t, `^iqn\.2026-01\.io\.github\.goiser:[-.a-z0-9]+$`, o.InitiatorName)
	assert.Equal(t, byte(0x80), o.ISID[0]&0xc0, "type 10b")
	p, err := Options{}.withDefaults()
	require.NoError(t, err)
	assert.NotEqual(t, o.ISID, p.ISID)
	_, err = Options{InitiatorName: "me"}.withDefaults()
	assert.ErrorContains(t, err, "initiator name")
	for _, depth := range []int{-1, maxQueueDepth + 1} {
		_, err = Options{QueueDepth: depth}.withDefaults()
		assert.ErrorContains(t, err, "queue depth")
	}
	_, err = Options{CommandTimeout: -1}.withDefaults()
	assert.ErrorContains(t, err, "timeouts")
}

func TestDiscoveryFollowsRedirections(t *testing.T) {
	to := statusTarget(func(int) string { return "10.0.0.9" }, iscsi.LoginMovedTemporarily)
	last, _ := textTarget([]string{"TargetName=iqn.2026-01.test:a\x00"}, nil)
	first := to.dial
	to.dial = func(address string) (*fakeDM, error) {
		if address == "10.0.0.9:3260" {
			return last.fakeDM, nil
		}
		return first(address)
	}
	list, err := Discover(t.Context(), to, "h:1", Options{})
	require.NoError(t, err)
	assert.Equal(t, []TargetRecord{{Name: "iqn.2026-01.test:a"}}, list)
	assert.Equal(t, []string{"h:1", "10.0.0.9:3260"}, to.addrs)
}

// FuzzLogin lets a target answer anything.
func FuzzLogin(f *testing.F) {
	ok := pduEvent(&iscsi.LoginResponse{Transit: true, Current: 1, Next: 3, ITT: loginITT}, []byte("RDMAExtensions=Yes\x00"))
	f.Add(append(ok.BHS[:], ok.Data...))
	more := pduEvent(&iscsi.LoginResponse{Continue: true, Current: 1, ITT: loginITT}, bytes.Repeat([]byte("a=b\x00"), 20))
	f.Add(append(append(more.BHS[:], more.Data...), ok.BHS[:]...))
	f.Fuzz(func(t *testing.T, in []byte) {
		l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
		for len(in) >= iscsi.BHSSize {
			var out [iscsi.BHSSize]byte
			require.LessOrEqual(t, len(l.request(&out)), 8192)
			bhs := (*[iscsi.BHSSize]byte)(in[:iscsi.BHSSize])
			in = in[iscsi.BHSSize:]
			n := min(int(iscsi.DataLengthOf(bhs)), len(in))
			done, err := l.response(bhs, in[:n])
			in = in[n:]
			if done {
				require.NoError(t, err)
				require.True(t, l.params.RDMAExtensions)
			}
			if done || err != nil {
				return
			}
		}
	})
}
