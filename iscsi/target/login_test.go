package target

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the login transcripts")

func testLogin(tr iscsi.Traits) *login {
	t := &Target{c: TargetConfig{Name: testTarget, Alias: "", Negotiate: iscsi.DefaultConfig()}}
	return &login{
		traits: tr, tag: 1,
		find: func(n iscsi.Name) *Target {
			if n == testTarget {
				return t
			}
			return nil
		},
		live: func(tsih uint16) *session {
			ses := &session{target: t, initiator: testInitiator, transport: tr.Name, tsih: tsih}
			ses.key = sessionKey{isid: wholeLogin.ISID, tag: 1}
			switch tsih {
			case 7:
			case 9:
				ses.transport = "another"
			case 10:
				ses.key.tag = 2
			default:
				return nil
			}
			return ses
		},
	}
}

// TestLoginTranscripts replays the requests of testdata/login and compares the answers: what real
// initiators send, and what they get.
func TestLoginTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/login/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			require.NoError(t, err)
			got := replay(t, string(want))
			if *update {
				require.NoError(t, os.WriteFile(name, []byte(got), 0o644))
				return
			}
			assert.Equal(t, string(want), got)
		})
	}
}

// replay runs the requests of a transcript and returns the transcript with the answers that they got.
func replay(t *testing.T, script string) string {
	var out strings.Builder
	var l *login
	var req *iscsi.LoginRequest
	var data []byte
	flush := func() {
		if req == nil {
			return
		}
		a := l.step(req, data)
		out.WriteString(describe(&a) + "\n")
		req, data = nil, nil
	}
	answer := false
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "<-"):
			answer = true
		case strings.HasPrefix(line, "->"):
			flush()
			answer = false
			req = parseRequest(t, line)
			out.WriteString(line + "\n")
		case answer:
		case strings.HasPrefix(line, "traits "):
			l = testLogin(map[string]iscsi.Traits{"tcp": tcpTraits, "iser": iserTraits}[line[7:]])
			out.WriteString(line + "\n")
		case line == "" && req != nil:
			out.WriteString("\n")
			flush()
			answer = true
		case req != nil:
			data = append(append(data, line...), 0)
			fallthrough
		default:
			out.WriteString(line + "\n")
		}
	}
	if req != nil {
		out.WriteString("\n")
	}
	flush()
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func parseRequest(t *testing.T, line string) *iscsi.LoginRequest {
	req := &iscsi.LoginRequest{ITT: 1, CmdSN: 1, ISID: iscsi.ISID{0x40}}
	for _, f := range strings.Fields(line)[1:] {
		switch f {
		case "T":
			req.Transit = true
		case "C":
			req.Continue = true
		case "CSG=0", "CSG=1", "CSG=2", "CSG=3":
			req.Current = iscsi.Stage(f[4] - '0')
		case "NSG=1", "NSG=2", "NSG=3":
			req.Next = iscsi.Stage(f[4] - '0')
		default:
			t.Fatalf("transcript: %q in %q", f, line)
		}
	}
	return req
}

func describe(a *loginAnswer) string {
	var b strings.Builder
	b.WriteString("<-")
	if a.resp.Transit {
		b.WriteString(" T")
	}
	if a.resp.Continue {
		b.WriteString(" C")
	}
	fmt.Fprintf(&b, " CSG=%d", a.resp.Current)
	if a.resp.Transit {
		fmt.Fprintf(&b, " NSG=%d", a.resp.Next)
	}
	fmt.Fprintf(&b, " status=%04x", uint16(a.resp.Status))
	if a.err != nil {
		fmt.Fprintf(&b, " (%s)", a.err.Reason)
	}
	b.WriteString("\n")
	for kv := range bytes.SplitSeq(bytes.TrimSuffix(a.text, []byte{0}), []byte{0}) {
		if len(kv) > 0 {
			fmt.Fprintf(&b, "%s\n", kv)
		}
	}
	return b.String()
}

func TestLoginStatuses(t *testing.T) {
	first := func(change func(*iscsi.LoginRequest), lines ...string) func(l *login) loginAnswer {
		return func(l *login) loginAnswer {
			req := wholeLogin
			if change != nil {
				change(&req)
			}
			return l.step(&req, text(lines...))
		}
	}
	normal := func(more ...string) []string {
		return append([]string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget}, more...)
	}
	second := func(change func(*iscsi.LoginRequest), lines ...string) func(l *login) loginAnswer {
		return func(l *login) loginAnswer {
			req := wholeLogin
			req.Transit, req.Next = false, 0
			a := l.step(&req, text(normal()...))
			if a.err != nil {
				return loginAnswer{err: &iscsi.LoginError{Reason: "first round: " + a.err.Reason}}
			}
			req = wholeLogin
			change(&req)
			return l.step(&req, text(lines...))
		}
	}
	long := strings.Repeat("k", 64)
	for _, c := range []struct {
		name string
		run  func(l *login) loginAnswer
		want iscsi.LoginStatus
	}{
		{"good", first(nil, normal()...), iscsi.LoginSuccess},
		{"no initiator name", first(nil, "TargetName="+testTarget), iscsi.LoginMissingParameter},
		{"bad initiator name", first(nil, "InitiatorName=bob", "TargetName="+testTarget), iscsi.LoginInitiatorError},
		{"no target name", first(nil, "InitiatorName="+testInitiator), iscsi.LoginMissingParameter},
		{"unknown target", first(nil, "InitiatorName="+testInitiator, "TargetName=iqn.2026-01.test:other"), iscsi.LoginNotFound},
		{"session type", first(nil, normal("SessionType=Other")...), iscsi.LoginBadSessionType},
		{"no text", first(nil), iscsi.LoginMissingParameter},
		{"version", first(func(r *iscsi.LoginRequest) { r.VersionMin, r.VersionMax = 1, 1 }, normal()...), iscsi.LoginBadVersion},
		{"higher version offered", first(func(r *iscsi.LoginRequest) { r.VersionMax = 9 }, normal()...), iscsi.LoginSuccess},
		{"live TSIH", first(func(r *iscsi.LoginRequest) { r.TSIH, r.CID = 7, 1 }, normal()...), iscsi.LoginSuccess},
		{"TSIH of another initiator port", first(func(r *iscsi.LoginRequest) { r.TSIH, r.ISID[5] = 7, 1 }, normal()...), iscsi.LoginNoSession},
		{"TSIH over another transport", first(func(r *iscsi.LoginRequest) { r.TSIH, r.CID = 9, 1 }, normal()...), iscsi.LoginCannotInclude},
		{"TSIH in another portal group", first(func(r *iscsi.LoginRequest) { r.TSIH, r.CID = 10, 1 }, normal()...), iscsi.LoginCannotInclude},
		{"unknown TSIH", first(func(r *iscsi.LoginRequest) { r.TSIH = 8 }, normal()...), iscsi.LoginNoSession},
		{"CSG 2", first(func(r *iscsi.LoginRequest) { r.Current = 2 }, normal()...), iscsi.LoginInitiatorError},
		{"CSG 3", first(func(r *iscsi.LoginRequest) { r.Current = 3 }, normal()...), iscsi.LoginInitiatorError},
		{"NSG 2", first(func(r *iscsi.LoginRequest) { r.Next = 2 }, normal()...), iscsi.LoginInitiatorError},
		{"NSG 1 from 1", first(func(r *iscsi.LoginRequest) { r.Next = 1 }, normal()...), iscsi.LoginInitiatorError},
		{"NSG 0", first(func(r *iscsi.LoginRequest) { r.Next = 0 }, normal()...), iscsi.LoginInitiatorError},
		{"T and C", first(func(r *iscsi.LoginRequest) { r.Continue = true }, normal()...), iscsi.LoginInitiatorError},
		{"no method in common", first(nil, normal("AuthMethod=CHAP")...), iscsi.LoginAuthFailed},
		{"CHAP without being asked", first(nil, normal("CHAP_A=5")...), iscsi.LoginInitiatorError},
		{"a target's key", first(nil, normal("TargetPortalGroupTag=1")...), iscsi.LoginInitiatorError},
		{"key name too long", first(nil, normal(long+"=1")...), iscsi.LoginInitiatorError},
		{"no equals sign", first(nil, normal("novalue")...), iscsi.LoginInitiatorError},
		{"too many keys", first(nil, normal(strings.Split(strings.Repeat("a=b\x00", 2048), "\x00")...)...), iscsi.LoginInitiatorError},
		{"two initiator names", first(nil, normal("InitiatorName=iqn.2026-01.test:x")...), iscsi.LoginInitiatorError},
		{"repeated names", second(func(*iscsi.LoginRequest) {}, normal("SessionType=Normal")...), iscsi.LoginSuccess},
		{"other target later", second(func(*iscsi.LoginRequest) {}, "TargetName=iqn.2026-01.test:other"), iscsi.LoginInitiatorError},
		{"other type later", second(func(*iscsi.LoginRequest) {}, "SessionType=Discovery"), iscsi.LoginInitiatorError},
		{"ITT changes", second(func(r *iscsi.LoginRequest) { r.ITT++ }), iscsi.LoginInitiatorError},
		{"ISID changes", second(func(r *iscsi.LoginRequest) { r.ISID[5]++ }), iscsi.LoginInitiatorError},
		{"CID changes", second(func(r *iscsi.LoginRequest) { r.CID++ }), iscsi.LoginInitiatorError},
		{"back to security", second(func(r *iscsi.LoginRequest) { r.Current, r.Next = 0, 1 }), iscsi.LoginInitiatorError},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := c.run(testLogin(tcpTraits))
			assert.Equal(t, c.want.String(), a.resp.Status.String(), "%v", a.err)
			assert.Equal(t, c.want != iscsi.LoginSuccess, a.decision == loginRefused)
		})
	}
}

func TestLoginOfASilentTalkerIsBounded(t *testing.T) {
	req := wholeLogin
	req.Transit, req.Next = false, 0
	l := testLogin(tcpTraits)
	a := l.step(&req, text("InitiatorName="+testInitiator, "TargetName="+testTarget))
	for n := 0; a.decision == loginGoesOn; n++ {
		require.Less(t, n, maxLoginRounds)
		a = l.step(&req, nil)
	}
	assert.Equal(t, iscsi.LoginInitiatorError, a.resp.Status)
}

func TestLoginTextIsBounded(t *testing.T) { // field report SE-05: C=1 for ever
	req := wholeLogin
	req.Transit, req.Next, req.Continue = false, 0, true
	l := testLogin(tcpTraits)
	piece := bytes.Repeat([]byte("a=b\x00"), 2048)
	a := loginAnswer{}
	for a.decision == loginGoesOn {
		a = l.step(&req, piece)
		require.LessOrEqual(t, cap(l.text), 64<<10)
		require.LessOrEqual(t, len(a.text), maxLoginAnswer)
	}
	assert.Equal(t, iscsi.LoginInitiatorError, a.resp.Status)
	assert.LessOrEqual(t, l.bytes, maxLoginText+len(piece))
}

func TestLongLoginAnswerIsContinued(t *testing.T) {
	tr := tcpTraits
	tr.MaxLoginData = 512
	l := testLogin(tr)
	lines := []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget}
	for i := range 90 {
		lines = append(lines, fmt.Sprintf("X-key-%d=1", i))
	}
	req := wholeLogin
	a := l.step(&req, text(lines...))
	var got []byte
	for a.resp.Continue {
		require.Equal(t, loginGoesOn, a.decision)
		require.False(t, a.resp.Transit)
		require.Len(t, a.text, 512)
		got = append(got, a.text...)
		a = l.step(&req, nil)
	}
	require.Equal(t, loginEnter, a.decision)
	require.True(t, a.resp.Transit)
	got = append(got, a.text...)
	for i := range 90 {
		assert.Contains(t, string(got), fmt.Sprintf("\x00X-key-%d=NotUnderstood\x00", i))
	}

	l = testLogin(tr)
	l.step(&req, text(lines...))
	a = l.step(&req, []byte("X-more=1\x00"))
	assert.Equal(t, iscsi.LoginInitiatorError, a.resp.Status, "text in the middle of the answer")
}

func TestAliasIsSaidOnlyIfThereIsOne(t *testing.T) {
	l := testLogin(tcpTraits)
	find := l.find
	l.find = func(n iscsi.Name) *Target {
		t := find(n)
		t.c.Alias = "box"
		return t
	}
	req := wholeLogin
	a := l.step(&req, text("InitiatorName="+testInitiator, "TargetName="+testTarget))
	assert.Contains(t, string(a.text), "TargetAlias=box\x00TargetPortalGroupTag=1\x00")
	l = testLogin(tcpTraits)
	a = l.step(&req, text("InitiatorName="+testInitiator, "TargetName="+testTarget))
	assert.NotContains(t, string(a.text), "TargetAlias")
}

func TestAForeignInitiatorIsForbidden(t *testing.T) {
	l := testLogin(tcpTraits)
	find := l.find
	l.find = func(n iscsi.Name) *Target {
		t := find(n)
		t.rights.names = map[iscsi.Name]bool{"iqn.2026-01.test:friend": true}
		return t
	}
	req := wholeLogin
	a := l.step(&req, text("InitiatorName="+testInitiator, "TargetName="+testTarget))
	assert.Equal(t, iscsi.LoginForbidden, a.resp.Status)
}

func TestRefusalOfAnUnknownErrorIsOurFault(t *testing.T) {
	a := testLogin(tcpTraits).refuse(errors.New("disk on fire"))
	assert.Equal(t, iscsi.LoginTargetError, a.resp.Status)
}

// FuzzLogin feeds any requests to the state machine: it never panics, ends within its bounds, and never
// says more than one PDU can hold.
func FuzzLogin(f *testing.F) {
	f.Add(true, []byte{0x87, 0}, text(loginLines(iserTraits)...))
	f.Add(false, []byte{0x81, 0, 0x04, 0, 0x87, 0}, text(loginLines(tcpTraits, "AuthMethod=None")...))
	f.Add(false, []byte{0x44, 20, 0x87, 0}, text(loginLines(tcpTraits)...))
	f.Fuzz(func(t *testing.T, rdma bool, flags, data []byte) {
		tr := tcpTraits
		if rdma {
			tr = iserTraits
		}
		l := testLogin(tr)
		for i := 0; i+1 < len(flags); i += 2 {
			var bhs [iscsi.BHSSize]byte
			bhs[0], bhs[1] = 0x43, flags[i]
			var req iscsi.LoginRequest
			require.NoError(t, req.Parse(&bhs))
			n := min(len(data), int(flags[i+1])*8)
			if flags[i+1] == 0 {
				n = len(data)
			}
			a := l.step(&req, data[:n])
			data = data[n:]
			require.LessOrEqual(t, len(a.text), maxLoginAnswer)
			require.LessOrEqual(t, l.rounds, maxLoginRounds+1)
			switch a.decision {
			case loginRefused:
				require.NotZero(t, a.resp.Status)
				require.False(t, a.resp.Transit)
				return
			case loginEnter:
				require.Zero(t, a.resp.Status)
				require.True(t, a.resp.Transit && a.resp.Next == iscsi.StageFullFeature)
				require.NotEmpty(t, l.initiator)
				require.Equal(t, l.discovery, l.target == nil)
				return
			}
		}
	})
}
