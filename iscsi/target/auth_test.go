package target

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func testSecret(t testing.TB, text string) chap.Secret {
	s, err := chap.NewSecret(text)
	require.NoError(t, err)
	return s
}

func testCredentials(t testing.TB, mutual bool) *chap.Credentials {
	c := &chap.Credentials{User: "host", Secret: testSecret(t, "secret of the host")}
	if mutual {
		c.MutualUser, c.MutualSecret = "disk", testSecret(t, "secret of the disk")
	}
	return c
}

// A chapPeer is an initiator in its security stage.
type chapPeer struct {
	t testing.TB
	l *login
	// What it answers with.
	user   string
	secret chap.Secret
	// What the target has said.
	algorithm chap.Algorithm
	id        byte
	challenge []byte
}

func newChapPeer(t testing.TB, mutual bool) *chapPeer {
	p := &chapPeer{t: t, l: testLogin(tcpTraits), user: "host", secret: testSecret(t, "secret of the host")}
	p.l.auth.challenger = chap.NewChallenger()
	p.l.find(testTarget).rights.auth = testCredentials(t, mutual)
	return p
}

var security = iscsi.LoginRequest{Transit: true, Current: iscsi.StageSecurity, Next: iscsi.StageOperational, ISID: wholeLogin.ISID, ITT: 1}

// step sends one text in the security stage, with T.
func (p *chapPeer) step(lines ...string) loginAnswer {
	req := security
	return p.l.step(&req, text(lines...))
}

func (p *chapPeer) begin(method string) loginAnswer {
	return p.step("InitiatorName="+testInitiator, "TargetName="+testTarget, "AuthMethod="+method)
}

// asked goes as far as the challenge.
func (p *chapPeer) asked(algorithms string) {
	p.t.Helper()
	a := p.begin("CHAP,None")
	require.Equal(p.t, loginGoesOn, a.decision, "%v", a.err)
	require.False(p.t, a.resp.Transit, "the stage is not over")
	require.Equal(p.t, "TargetPortalGroupTag=1\x00AuthMethod=CHAP\x00", string(a.text))
	a = p.step("CHAP_A=" + algorithms)
	require.Equal(p.t, loginGoesOn, a.decision, "%v", a.err)
	require.False(p.t, a.resp.Transit, "the stage is not over")
	p.learn(string(a.text))
}

func (p *chapPeer) learn(said string) {
	p.t.Helper()
	kvs, err := iscsi.ParseText([]byte(said))
	require.NoError(p.t, err)
	require.Len(p.t, kvs, 3)
	require.Equal(p.t, []string{"CHAP_A", "CHAP_I", "CHAP_C"}, []string{kvs[0].Key, kvs[1].Key, kvs[2].Key})
	var ok bool
	p.algorithm, ok = chap.Choose(kvs[0].Value, nil)
	require.True(p.t, ok)
	p.id, err = chap.ParseID(kvs[1].Value)
	require.NoError(p.t, err)
	require.True(p.t, strings.HasPrefix(kvs[2].Value, "0x"), "libiscsi reads nothing else")
	p.challenge, err = chap.Decode(kvs[2].Value, chap.MaxChallenge)
	require.NoError(p.t, err)
	require.GreaterOrEqual(p.t, len(p.challenge), 16)
}

func (p *chapPeer) response() []byte { return p.algorithm.Response(p.id, p.secret, p.challenge) }

// prove answers the challenge, with more keys.
func (p *chapPeer) prove(more ...string) loginAnswer {
	return p.step(append([]string{"CHAP_N=" + p.user, "CHAP_R=" + chap.Encode(p.response())}, more...)...)
}

// enter ends a login whose security stage is over.
func (p *chapPeer) enter() loginAnswer {
	req := wholeLogin
	return p.l.step(&req, text("MaxRecvDataSegmentLength=8192"))
}

func (p *chapPeer) refused(a loginAnswer, why string) {
	p.t.Helper()
	assert.Equal(p.t, loginRefused, a.decision)
	assert.Equal(p.t, iscsi.LoginAuthFailed.String(), a.resp.Status.String())
	assert.Empty(p.t, a.text, "a refusal tells nothing")
	if assert.NotNil(p.t, a.err) {
		assert.ErrorContains(p.t, a.err, why)
	}
}

func TestCHAPOneWay(t *testing.T) {
	for _, a := range chap.Algorithms() {
		p := newChapPeer(t, false)
		p.asked(fmt.Sprintf("9,%d,5", a))
		assert.Equal(t, a, p.algorithm)
		got := p.prove()
		require.Equal(t, loginGoesOn, got.decision, "%v", got.err)
		assert.True(t, got.resp.Transit)
		assert.Equal(t, iscsi.StageOperational, got.resp.Next)
		assert.Empty(t, got.text, "nobody has asked for a proof")
		assert.Equal(t, loginEnter, p.enter().decision)
	}
}

func TestCHAPMutual(t *testing.T) {
	p := newChapPeer(t, true)
	p.asked("7")
	a := p.prove("CHAP_I=0x1F", "CHAP_C=0b"+base64.StdEncoding.EncodeToString([]byte("mine")))
	require.Equal(t, loginGoesOn, a.decision, "%v", a.err)
	require.True(t, a.resp.Transit)
	want := chap.SHA256.Response(0x1f, testSecret(t, "secret of the disk"), []byte("mine"))
	assert.Equal(t, "CHAP_N=disk\x00CHAP_R="+chap.Encode(want)+"\x00", string(a.text))
	assert.Equal(t, loginEnter, p.enter().decision)
}

func TestMutualIsTheInitiatorsChoice(t *testing.T) {
	p := newChapPeer(t, true)
	p.asked("5")
	assert.Equal(t, loginGoesOn, p.prove().decision)
	assert.Equal(t, loginEnter, p.enter().decision)

	p = newChapPeer(t, false)
	p.asked("5")
	p.refused(p.prove("CHAP_I=1", "CHAP_C=0x0102"), "no mutual CHAP user")
}

func TestCHAPStraightToFullFeature(t *testing.T) { // CSG 0, NSG 3 in the last request of the stage
	p := newChapPeer(t, false)
	p.asked("5")
	req := security
	req.Next = iscsi.StageFullFeature
	a := p.l.step(&req, text("CHAP_N=host", "CHAP_R="+chap.Encode(p.response())))
	assert.Equal(t, loginEnter, a.decision)
}

func TestMethodMayBeRepeated(t *testing.T) { // as long as it is the same: it is answered once
	p := newChapPeer(t, false)
	p.asked("5")
	a := p.prove("AuthMethod=CHAP,None")
	require.Equal(t, loginGoesOn, a.decision, "%v", a.err)
	assert.True(t, a.resp.Transit)
	assert.Empty(t, a.text)
}

func TestCHAPWithoutAskingToGoOn(t *testing.T) { // T only once it is over
	p := newChapPeer(t, false)
	for _, lines := range [][]string{{"InitiatorName=" + testInitiator, "TargetName=" + testTarget, "AuthMethod=CHAP"}, {"CHAP_A=5"}, nil} {
		req := security
		req.Transit, req.Next = false, 0
		if lines == nil {
			lines = []string{"CHAP_N=host", "CHAP_R=" + chap.Encode(p.response())}
		}
		a := p.l.step(&req, text(lines...))
		require.Equal(t, loginGoesOn, a.decision, "%v", a.err)
		require.False(t, a.resp.Transit)
		if lines[0] == "CHAP_A=5" {
			p.learn(string(a.text))
		}
	}
	a := p.step()
	require.True(t, a.resp.Transit)
	assert.Equal(t, loginEnter, p.enter().decision)
}

// TestNobodyGetsInUnproved: RFC 7143, 6.3.2 and 11.13.5.
func TestNobodyGetsInUnproved(t *testing.T) {
	names := []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget}
	whole := func(lines ...string) func(p *chapPeer) loginAnswer {
		return func(p *chapPeer) loginAnswer {
			req := wholeLogin
			return p.l.step(&req, text(append(names, lines...)...))
		}
	}
	for name, run := range map[string]func(p *chapPeer) loginAnswer{
		"straight to the operational stage": whole(),
		"AuthMethod=None there":             whole("AuthMethod=None"),
		"AuthMethod=CHAP there":             whole("AuthMethod=CHAP"),
		"None":                              func(p *chapPeer) loginAnswer { return p.begin("None") },
		"another method":                    func(p *chapPeer) loginAnswer { return p.begin("SRP,KRB5,chap") },
		"no AuthMethod":                     func(p *chapPeer) loginAnswer { return p.step(names...) },
		"from the middle to the operational stage": func(p *chapPeer) loginAnswer {
			p.asked("5")
			return p.enter()
		},
		"from the middle to full-feature phase": func(p *chapPeer) loginAnswer {
			p.asked("5")
			req := security
			req.Next = iscsi.StageFullFeature
			return p.l.step(&req, nil)
		},
		"None after CHAP": func(p *chapPeer) loginAnswer {
			p.begin("CHAP")
			return p.step("AuthMethod=None")
		},
		"None after the challenge": func(p *chapPeer) loginAnswer {
			p.asked("5")
			return p.step("AuthMethod=None")
		},
		"the method again and again": func(p *chapPeer) loginAnswer {
			p.begin("CHAP")
			return p.step("AuthMethod=CHAP")
		},
		"no progress": func(p *chapPeer) loginAnswer {
			p.asked("5")
			return p.step()
		},
		"only an operational key": func(p *chapPeer) loginAnswer {
			p.asked("5")
			return p.step("MaxBurstLength=4096")
		},
		"two methods in one text": func(p *chapPeer) loginAnswer {
			return p.step(append(names, "AuthMethod=CHAP", "AuthMethod=None")...)
		},
		"a proof before the challenge": func(p *chapPeer) loginAnswer {
			p.begin("CHAP")
			p.algorithm = chap.MD5
			return p.prove()
		},
		"a new challenge": func(p *chapPeer) loginAnswer {
			p.asked("5")
			return p.step("CHAP_A=5")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newChapPeer(t, true)
			p.t = t
			p.refused(run(p), "")
		})
	}
}

// TestWrongProofs: SE-19. Each is refused alike.
func TestWrongProofs(t *testing.T) {
	long := strings.Repeat("n", 255)
	for name, run := range map[string]func(p *chapPeer) loginAnswer{
		"wrong secret": func(p *chapPeer) loginAnswer {
			p.secret = testSecret(t, "secret of the hosT")
			return p.prove()
		},
		"the target's secret": func(p *chapPeer) loginAnswer {
			p.secret, p.user = testSecret(t, "secret of the disk"), "disk"
			return p.prove()
		},
		"unknown user":       func(p *chapPeer) loginAnswer { p.user = "nobody"; return p.prove() },
		"user in upper case": func(p *chapPeer) loginAnswer { p.user = "HOST"; return p.prove() },
		"user in hex":        func(p *chapPeer) loginAnswer { p.user = "0x686f7374"; return p.prove() },
		"user of 255 bytes":  func(p *chapPeer) loginAnswer { p.user = long; return p.prove() },
		"user of 256 bytes":  func(p *chapPeer) loginAnswer { p.user = long + "n"; return p.prove() },
		"empty user":         func(p *chapPeer) loginAnswer { p.user = ""; return p.prove() },
		"wrong identifier":   func(p *chapPeer) loginAnswer { p.id++; return p.prove() },
		"other algorithm":    func(p *chapPeer) loginAnswer { p.algorithm = chap.SHA256; return p.prove() },
		"no response":        func(p *chapPeer) loginAnswer { return p.step("CHAP_N=host") },
		"no name":            func(p *chapPeer) loginAnswer { return p.step("CHAP_R=" + chap.Encode(p.response())) },
		"empty response":     func(p *chapPeer) loginAnswer { return p.step("CHAP_N=host", "CHAP_R=") },
		"0x":                 func(p *chapPeer) loginAnswer { return p.step("CHAP_N=host", "CHAP_R=0x") },
		"zeros":              func(p *chapPeer) loginAnswer { return p.step("CHAP_N=host", "CHAP_R=0x"+strings.Repeat("0", 32)) },
		"odd digits":         func(p *chapPeer) loginAnswer { return p.step("CHAP_N=host", "CHAP_R="+chap.Encode(p.response())[:33]) },
		"too short": func(p *chapPeer) loginAnswer {
			return p.step("CHAP_N=host", "CHAP_R="+chap.Encode(p.response()[:15]))
		},
		"too long": func(p *chapPeer) loginAnswer {
			return p.step("CHAP_N=host", "CHAP_R="+chap.Encode(append(p.response(), 0)))
		},
		"twice": func(p *chapPeer) loginAnswer { return p.prove("CHAP_N=host") },
		"CHAP_I without CHAP_C": func(p *chapPeer) loginAnswer {
			return p.prove("CHAP_I=1")
		},
		"CHAP_C without CHAP_I": func(p *chapPeer) loginAnswer { return p.prove("CHAP_C=0x01") },
		"CHAP_I of 256":         func(p *chapPeer) loginAnswer { return p.prove("CHAP_I=256", "CHAP_C=0x01") },
		"an empty challenge":    func(p *chapPeer) loginAnswer { return p.prove("CHAP_I=1", "CHAP_C=0x") },
		"a challenge of 1025 bytes": func(p *chapPeer) loginAnswer {
			return p.prove("CHAP_I=1", "CHAP_C="+chap.Encode(make([]byte, 1025)))
		},
		"CHAP_A again":    func(p *chapPeer) loginAnswer { return p.prove("CHAP_A=5") },
		"an unknown key":  func(p *chapPeer) loginAnswer { return p.prove("CHAP_X=5") },
		"a list":          func(p *chapPeer) loginAnswer { return p.step("CHAP_N=host,host", "CHAP_R="+chap.Encode(p.response())) },
		"None in between": func(p *chapPeer) loginAnswer { return p.prove("AuthMethod=None") },
	} {
		t.Run(name, func(t *testing.T) {
			p := newChapPeer(t, true)
			p.t = t
			p.asked("5")
			p.refused(run(p), "")
		})
	}
	p := newChapPeer(t, false)
	p.begin("CHAP")
	p.refused(p.step("CHAP_A=4,9"), "no CHAP algorithm in common")
}

func TestChallengesOfEveryLengthAreAnswered(t *testing.T) { // SE-19
	for _, n := range []int{1, 16, 255, 256, 1024} {
		p := newChapPeer(t, true)
		p.asked("8")
		challenge := make([]byte, n)
		a := p.prove("CHAP_I=0", "CHAP_C="+chap.Encode(challenge))
		require.Equal(t, loginGoesOn, a.decision, "%d bytes: %v", n, a.err)
		want := chap.SHA3256.Response(0, testSecret(t, "secret of the disk"), challenge)
		assert.Contains(t, string(a.text), chap.Encode(want))
	}
}

// TestReplayAndReflection: SE-01. What was good on one connection is worth nothing on another, and a
// challenge that we made is never answered, on whatever connection it comes back.
func TestReplayAndReflection(t *testing.T) {
	first := newChapPeer(t, true)
	first.asked("5")
	recorded := chap.Encode(first.response())
	require.Equal(t, loginGoesOn, first.prove().decision)

	replay := newChapPeer(t, true)
	replay.l.auth.challenger = first.l.auth.challenger
	replay.asked("5")
	assert.NotEqual(t, first.challenge, replay.challenge)
	replay.refused(replay.step("CHAP_N=host", "CHAP_R="+recorded), "wrong")

	own := newChapPeer(t, true)
	own.asked("5")
	own.refused(own.prove("CHAP_I="+chap.FormatID(own.id), "CHAP_C="+chap.Encode(own.challenge)), "our own challenge")

	second := newChapPeer(t, true)
	second.l.auth.challenger = first.l.auth.challenger
	second.asked("5")
	second.refused(second.prove("CHAP_I=1", "CHAP_C="+chap.Encode(first.challenge)), "our own challenge")
}

func TestAnInitiatorThatProvesNothingGetsNoProof(t *testing.T) {
	p := newChapPeer(t, true)
	p.asked("5")
	p.user = "nobody"
	p.refused(p.prove("CHAP_I=1", "CHAP_C=0x01"), "user name")
}

// TestIdentityIsFixedByTheProof: names and keys that come after the security stage change nothing.
func TestIdentityIsFixedByTheProof(t *testing.T) {
	for _, line := range []string{"InitiatorName=iqn.2026-01.test:other", "TargetName=iqn.2026-01.test:other", "SessionType=Discovery", "CHAP_A=5", "AuthMethod=None"} {
		p := newChapPeer(t, false)
		p.asked("5")
		require.Equal(t, loginGoesOn, p.prove().decision)
		req := wholeLogin
		a := p.l.step(&req, text(line))
		assert.Equal(t, loginRefused, a.decision, line)
	}
}

func TestDiscoveryIsProvedToo(t *testing.T) {
	p := newChapPeer(t, false)
	p.l.auth.want = testCredentials(t, false)
	req := wholeLogin
	p.refused(p.l.step(&req, text("InitiatorName="+testInitiator, "SessionType=Discovery")), "no security stage")

	p = newChapPeer(t, false)
	p.l.auth.want = testCredentials(t, false)
	p.l.auth.want.User = "finder"
	a := p.step("InitiatorName="+testInitiator, "SessionType=Discovery", "AuthMethod=CHAP")
	require.Equal(t, "AuthMethod=CHAP\x00", string(a.text))
	a = p.step("CHAP_A=5")
	p.learn(string(a.text))
	p.user = "finder"
	require.Equal(t, loginGoesOn, p.prove().decision)
	assert.Equal(t, loginEnter, p.enter().decision)

	// What discovery wants is nothing to a target that wants nothing.
	p = newChapPeer(t, false)
	p.l.auth.want = testCredentials(t, false)
	p.l.find(testTarget).rights.auth = nil
	assert.Equal(t, loginEnter, p.l.step(&req, text("InitiatorName="+testInitiator, "TargetName="+testTarget)).decision)
}

func TestCHAPAnswersGoThroughSmallBuffers(t *testing.T) { // C bit, both ways
	p := newChapPeer(t, true)
	p.l.traits.MaxLoginData = 30
	p.begin("CHAP")
	req := security
	a := p.l.step(&req, nil) // the rest of the first answer
	require.Equal(t, "hod=CHAP\x00", string(a.text))
	var said []byte
	a = p.step("CHAP_A=5")
	for a.resp.Continue {
		require.False(t, a.resp.Transit)
		said = append(said, a.text...)
		req := security
		req.Transit, req.Next = false, 0
		a = p.l.step(&req, nil)
		require.Nil(t, a.err)
	}
	p.learn(string(append(said, a.text...)))
	whole := text("CHAP_N=host", "CHAP_R="+chap.Encode(p.response()))
	for len(whole) > 9 {
		req := iscsi.LoginRequest{Continue: true, ISID: security.ISID, ITT: 1}
		a = p.l.step(&req, whole[:9])
		require.Equal(t, loginGoesOn, a.decision)
		require.False(t, a.resp.Transit)
		whole = whole[9:]
	}
	last := security
	a = p.l.step(&last, whole)
	require.Nil(t, a.err)
	assert.True(t, a.resp.Transit)
}

// chapLogin logs in on a connection, in three rounds and with the first request's numbers.
func (c *client) chapLogin(p *chapPeer, first iscsi.LoginRequest, lines ...string) iscsi.LoginResponse {
	c.t.Helper()
	sec := security
	sec.ISID, sec.TSIH, sec.CID = first.ISID, first.TSIH, first.CID
	c.loginRequest(sec, append(lines, "AuthMethod=CHAP")...)
	resp, _ := c.loginResponse()
	require.Equal(c.t, iscsi.LoginSuccess, resp.Status)
	c.loginRequest(sec, "CHAP_A=5")
	_, said := c.loginResponse()
	p.learn(said)
	c.loginRequest(sec, "CHAP_N="+p.user, "CHAP_R="+chap.Encode(p.response()))
	if resp, _ = c.loginResponse(); resp.Status != iscsi.LoginSuccess {
		return resp
	}
	c.loginRequest(first, "MaxConnections=2")
	resp, _ = c.loginResponse()
	return resp
}

// TestNobodyTouchesASessionUnproved: a login that would replace a session, join it, or replace a connection of it
// does so only when it has proved who it is. Until then the session does not notice.
func TestNobodyTouchesASessionUnproved(t *testing.T) {
	b := newBench(t, benchConfig{neg: func(c *iscsi.Config) { c.MaxConnections = 2 }})
	name := iscsi.Name("iqn.2026-01.test:proved")
	_, err := b.s.AddTarget(TargetConfig{Name: name, Device: b.device, Negotiate: b.target.c.Negotiate, Auth: testCredentials(t, false)})
	require.NoError(t, err)
	lines := loginLines(tcpTraits)[:3]
	lines[1] = "TargetName=" + string(name)
	connect := func() *client { return &client{t: t, dm: b.connect(tcpTraits), cmdSN: 100, stat: 7, itt: 0x1000} }
	p := &chapPeer{t: t, user: "host", secret: testSecret(t, "secret of the host")}
	wrong := &chapPeer{t: t, user: "host", secret: testSecret(t, "another secret")}

	good := connect()
	resp := good.chapLogin(p, wholeLogin, lines...)
	require.Equal(t, iscsi.LoginSuccess, resp.Status)
	good.clearUA(0)
	join, again := wholeLogin, wholeLogin
	join.TSIH, join.CID = resp.TSIH, 1
	again.TSIH = resp.TSIH
	for what, first := range map[string]iscsi.LoginRequest{"replace the session": wholeLogin, "join": join, "replace the connection": again} {
		c := connect()
		c.loginRequest(first, lines...)
		r, _ := c.loginResponse()
		assert.Equal(t, iscsi.LoginAuthFailed.String(), r.Status.String(), what)
		r = connect().chapLogin(wrong, first, lines...)
		assert.Equal(t, iscsi.LoginAuthFailed.String(), r.Status.String(), what)
		status, _ := good.response(good.read(0, 0, 1))
		assert.Zero(t, status.Status, what)
	}
	assert.Len(t, b.s.Sessions(), 1)
	require.Equal(t, iscsi.LoginSuccess, connect().chapLogin(p, join, lines...).Status)
	status, _ := good.response(good.read(0, 0, 1))
	assert.Zero(t, status.Status)
	require.Equal(t, iscsi.LoginSuccess, connect().chapLogin(p, wholeLogin, lines...).Status)
	good.dm.waitFor(t, "the old session to end", func() bool { return good.dm.closed })
}

// FuzzAuthentication feeds any sequence of Login Requests to a login that has something to prove: with an entry for
// one initiator and another proof for the rest, over both session types. Nobody gets in who has not answered the
// challenge with the secret of the name that the first text has, and nothing said before has been made with a
// secret.
func FuzzAuthentication(f *testing.F) {
	const names = "InitiatorName=iqn.2026-01.test:host\x00TargetName=iqn.2026-01.test:disk\x00"
	f.Add([]byte{0x81, 1, 0x81, 2, 0x81, 3, 0x87, 0}, []byte(names))
	f.Add([]byte{0x81, 1, 0x81, 2, 0x81, 4, 0x87, 0}, []byte(names))
	f.Add([]byte{0x83, 1, 0x83, 2, 0x83, 3}, []byte("InitiatorName=iqn.2026-01.test:host\x00SessionType=Discovery\x00"))
	f.Add([]byte{0x87, 0}, []byte(names+"AuthMethod=None\x00"))
	f.Add([]byte{0x81, 1, 0x81, 2, 0x81, 0}, []byte(names+"\x01CHAP_N=host\x00CHAP_R=0b\x00CHAP_I=1\x00CHAP_C=0x00\x00"))
	f.Add([]byte{0x40, 1, 0, 2, 0x81, 3, 0x81, 3, 0x87, 0}, []byte(names))
	f.Fuzz(func(t *testing.T, program, data []byte) {
		p := newChapPeer(t, true)
		p.l.auth.want = testCredentials(t, false)
		p.l.auth.want.Secret = testSecret(t, "secret for discovery")
		entry := testCredentials(t, true)
		entry.Secret = testSecret(t, "secret of an entry")
		var err error
		p.l.find(testTarget).rights, err = newRights(&TargetConfig{
			Allow: []string{testInitiator}, Auth: testCredentials(t, true),
			Initiators: []InitiatorConfig{{Name: "iqn.2026-01.test:entry", Auth: entry}},
		})
		require.NoError(t, err)
		parts := strings.Split(string(data), "\x01")
		proved := false
		for i := 0; i+1 < len(program); i += 2 {
			var bhs [iscsi.BHSSize]byte
			bhs[0], bhs[1] = 0x43, program[i]
			var req iscsi.LoginRequest
			require.NoError(t, req.Parse(&bhs))
			said := ""
			if len(parts) > 0 {
				said, parts = parts[0], parts[1:]
			}
			right := false
			switch a := &p.l.auth; program[i+1] % 5 {
			case 1:
				said += "AuthMethod=CHAP,None\x00"
			case 2:
				said += "CHAP_A=5,6,7,8\x00"
			case 3: // the right answer, whoever is asked
				if a.stage == authAsked {
					right = said == "" && !req.Continue && len(p.l.text) == 0
					said += "CHAP_N=" + a.want.User + "\x00CHAP_R=" + chap.Encode(a.algorithm.Response(a.id, a.want.Secret, a.challenge)) + "\x00"
				}
			case 4: // the right answer with another secret
				if a.stage == authAsked {
					s := p.secret
					if s.Equal(a.want.Secret) {
						s = testSecret(t, "any other secret")
					}
					said += "CHAP_N=" + a.want.User + "\x00CHAP_R=" + chap.Encode(a.algorithm.Response(a.id, s, a.challenge)) + "\x00"
				}
			}
			proved = proved || strings.Contains(said, "CHAP_R=") && program[i+1]%5 == 3
			a := p.l.step(&req, []byte(said))
			if right && a.err == nil {
				require.Equal(t, authPassed, p.l.auth.stage, "%v", a.err)
			}
			require.NotContains(t, string(a.text), "secret")
			if !proved {
				require.NotContains(t, string(a.text), "CHAP_R=", "a proof for nothing")
				require.NotEqual(t, loginEnter, a.decision, "in without a proof")
			}
			if a.decision != loginGoesOn {
				return
			}
		}
	})
}
