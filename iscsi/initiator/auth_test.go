package initiator

import (
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

// A chapTarget is a target in its security stage, whose answers a test makes.
type chapTarget struct {
	t testing.TB
	o *Options
	l *login
}

func newChapTarget(t testing.TB, mutual bool) *chapTarget {
	o := Options{
		InitiatorName: "iqn.2026-01.test:host", ISID: iscsi.ISID{0x80, 1, 2, 3, 4, 5},
		CHAP: &chap.Credentials{User: "host", Secret: testSecret(t, "secret of the host")},
	}
	if mutual {
		o.CHAP.MutualUser, o.CHAP.MutualSecret = "disk", testSecret(t, "secret of the disk")
	}
	o, err := o.withDefaults()
	require.NoError(t, err)
	return &chapTarget{t: t, o: &o, l: newLogin(&o, iserLike, "iqn.2026-01.test:disk")}
}

// says takes a request, which must be of the security stage, and answers it.
func (c *chapTarget) says(transit bool, lines ...string) (asked string, err error) {
	c.t.Helper()
	require.False(c.t, c.l.asksFullFeature())
	req, text := ask(c.t, c.l)
	require.Equal(c.t, iscsi.StageSecurity, req.Current)
	require.Equal(c.t, iscsi.StageOperational, req.Next)
	require.True(c.t, req.Transit)
	rsp := iscsi.LoginResponse{Transit: transit, ITT: loginITT, ExpCmdSN: 1, MaxCmdSN: 1}
	if transit {
		rsp.Next = iscsi.StageOperational
	}
	said := strings.Join(lines, "\x00")
	if said != "" {
		said += "\x00"
	}
	done, err := answer(c.l, rsp, said)
	require.False(c.t, done)
	return text, err
}

// enters does the operational stage.
func (c *chapTarget) enters() {
	c.t.Helper()
	require.True(c.t, c.l.asksFullFeature())
	req, text := ask(c.t, c.l)
	assert.Equal(c.t, iscsi.StageOperational, req.Current)
	assert.Equal(c.t, iscsi.StageFullFeature, req.Next)
	assert.NotContains(c.t, text, "CHAP")
	assert.Contains(c.t, text, "RDMAExtensions=Yes\n")
	done, err := answer(c.l, granted(), "RDMAExtensions=Yes\x00")
	require.NoError(c.t, err)
	assert.True(c.t, done)
}

// proof checks CHAP_N and CHAP_R and returns what we are asked, if anything.
func (c *chapTarget) proof(text string, a chap.Algorithm, id byte, challenge string) (ourID byte, ours []byte) {
	c.t.Helper()
	values := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		values[k] = v
	}
	assert.Equal(c.t, "host", values["CHAP_N"])
	want := a.Response(id, c.o.CHAP.Secret, []byte(challenge))
	assert.Equal(c.t, chap.Encode(want), values["CHAP_R"])
	if !c.o.CHAP.Mutual() {
		assert.Len(c.t, values, 2)
		return 0, nil
	}
	assert.Len(c.t, values, 4)
	ourID, err := chap.ParseID(values["CHAP_I"])
	require.NoError(c.t, err)
	ours, err = chap.Decode(values["CHAP_C"], chap.MaxChallenge)
	require.NoError(c.t, err)
	return ourID, ours
}

// peek is the next request's text, which is put back.
func (c *chapTarget) peek() string { return strings.ReplaceAll(string(c.l.out), "\x00", "\n") }

func TestCHAPOneWay(t *testing.T) {
	c := newChapTarget(t, false)
	text, err := c.says(false, "TargetPortalGroupTag=1", "AuthMethod=CHAP")
	require.NoError(t, err)
	assert.Equal(t, "InitiatorName=iqn.2026-01.test:host\nTargetName=iqn.2026-01.test:disk\nSessionType=Normal\nAuthMethod=CHAP,None\n", text)
	text, err = c.says(false, "CHAP_A=7", "CHAP_I=0xab", "CHAP_C=0bYWJj")
	require.NoError(t, err)
	assert.Equal(t, "CHAP_A=8,7,6,5\n", text)
	c.proof(c.peek(), chap.SHA256, 0xab, "abc")
	_, err = c.says(true)
	require.NoError(t, err)
	c.enters()
}

func TestCHAPMutual(t *testing.T) {
	c := newChapTarget(t, true)
	text, err := c.says(false, "AuthMethod=CHAP")
	require.NoError(t, err)
	assert.True(t, strings.HasSuffix(text, "\nAuthMethod=CHAP\n"), "None would not be mutual: %s", text)
	_, err = c.says(false, "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x616263")
	require.NoError(t, err)
	id, challenge := c.proof(c.peek(), chap.MD5, 1, "abc")
	right := chap.Encode(chap.MD5.Response(id, c.o.CHAP.MutualSecret, challenge))
	_, err = c.says(true, "CHAP_N=disk", "CHAP_R="+right)
	require.NoError(t, err)
	c.enters()
}

func TestTargetThatGrantsLate(t *testing.T) { // the proof first, then T
	c := newChapTarget(t, true)
	_, err := c.says(false, "AuthMethod=CHAP")
	require.NoError(t, err)
	_, err = c.says(false, "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x616263")
	require.NoError(t, err)
	id, challenge := c.proof(c.peek(), chap.MD5, 1, "abc")
	_, err = c.says(false, "CHAP_N=disk", "CHAP_R="+chap.Encode(chap.MD5.Response(id, c.o.CHAP.MutualSecret, challenge)))
	require.NoError(t, err)
	text, err := c.says(true)
	require.NoError(t, err)
	assert.Empty(t, text)
	c.enters()
}

func TestTargetThatWantsNoProof(t *testing.T) {
	c := newChapTarget(t, false)
	_, err := c.says(true, "AuthMethod=None")
	require.NoError(t, err)
	c.enters()

	c = newChapTarget(t, false) // not even that
	_, err = c.says(true)
	require.NoError(t, err)
	c.enters()
}

// TestTargetsThatAreNotTrusted: every way round the proof that we want of a target ends the login.
func TestTargetsThatAreNotTrusted(t *testing.T) {
	type step struct {
		transit bool
		lines   []string
	}
	method := step{false, []string{"AuthMethod=CHAP"}}
	asked := step{false, []string{"CHAP_A=5", "CHAP_I=1", "CHAP_C=0x616263"}}
	for name, c := range map[string]struct {
		oneWay bool
		steps  []step
		err    string
	}{
		"None to CHAP":                   {false, []step{{true, []string{"AuthMethod=None"}}}, "answers AuthMethod=None"},
		"no method":                      {false, []step{{true, nil}}, "has not proved"},
		"another method":                 {true, []step{{false, []string{"AuthMethod=SRP"}}}, "answers AuthMethod=SRP"},
		"a method of ours in lower case": {true, []step{{false, []string{"AuthMethod=chap"}}}, "answers AuthMethod=chap"},
		"granted before the challenge":   {false, []step{method, {true, nil}}, "has not proved"},
		"granted with the challenge":     {false, []step{method, {true, asked.lines}}, "has not proved"},
		"no proof":                       {false, []step{method, asked, {true, nil}}, "has not proved"},
		"a name alone":                   {false, []step{method, asked, {true, []string{"CHAP_N=disk"}}}, "not due"},
		"wrong proof":                    {false, []step{method, asked, {true, []string{"CHAP_N=disk", "CHAP_R=0x" + strings.Repeat("00", 16)}}}, `name "disk" or its secret`},
		"empty proof":                    {false, []step{method, asked, {true, []string{"CHAP_N=disk", "CHAP_R=0x"}}}, "not what was expected"},
		"Reject":                         {false, []step{method, {false, []string{"CHAP_A=Reject"}}}, "CHAP_A=Reject was not offered"},
		"unknown algorithm":              {true, []step{method, {false, []string{"CHAP_A=9", "CHAP_I=1", "CHAP_C=0x61"}}}, "CHAP_A=9"},
		"no identifier":                  {true, []step{method, {false, []string{"CHAP_A=5", "CHAP_C=0x61"}}}, "identifier"},
		"no challenge":                   {true, []step{method, {false, []string{"CHAP_A=5", "CHAP_I=1"}}}, "challenge"},
		"empty challenge":                {true, []step{method, {false, []string{"CHAP_A=5", "CHAP_I=1", "CHAP_C=0x"}}}, "challenge"},
		"challenge of 1025 bytes":        {true, []step{method, {false, []string{"CHAP_A=5", "CHAP_I=1", "CHAP_C=0x" + strings.Repeat("61", 1025)}}}, "more than 1024"},
		"twice":                          {true, []step{method, {false, []string{"CHAP_A=5", "CHAP_A=5"}}}, "came twice"},
		"a second challenge":             {true, []step{method, asked, asked}, "not due"},
		"the method again":               {true, []step{method, method}, "not due"},
		"a challenge without a method":   {true, []step{asked}, "not due"},
		"a proof we did not ask for":     {true, []step{method, asked, {true, []string{"CHAP_N=disk", "CHAP_R=0x00"}}}, "not due"},
	} {
		t.Run(name, func(t *testing.T) {
			target := newChapTarget(t, !c.oneWay)
			for i, s := range c.steps {
				_, err := target.says(s.transit, s.lines...)
				if i+1 < len(c.steps) {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, ErrAuth)
				assert.ErrorContains(t, err, c.err)
				assert.NotContains(t, err.Error(), "secret of the")
			}
		})
	}
}

func TestChallengesOfTargets(t *testing.T) { // SE-19: lengths that are answered
	for _, n := range []int{1, 16, 255, 256, 1024} {
		c := newChapTarget(t, false)
		_, err := c.says(false, "AuthMethod=CHAP")
		require.NoError(t, err)
		challenge := strings.Repeat("c", n)
		_, err = c.says(false, "CHAP_A=6", "CHAP_I=255", "CHAP_C="+strings.ToUpper(chap.Encode([]byte(challenge))))
		require.NoError(t, err, "%d bytes", n)
		c.proof(c.peek(), chap.SHA1, 255, challenge)
	}
}

// TestReflectedChallengeIsNotAnswered: a target that gets us to log in twice sends us, the second time, what we
// have asked it the first time.
func TestReflectedChallengeIsNotAnswered(t *testing.T) {
	c := newChapTarget(t, true)
	_, err := c.says(false, "AuthMethod=CHAP")
	require.NoError(t, err)
	_, err = c.says(false, "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x616263")
	require.NoError(t, err)
	_, ours := c.proof(c.peek(), chap.MD5, 1, "abc")

	c.l = newLogin(c.o, iserLike, "iqn.2026-01.test:disk") // as after a redirection
	_, err = c.says(false, "AuthMethod=CHAP")
	require.NoError(t, err)
	_, err = c.says(false, "CHAP_A=5", "CHAP_I=1", "CHAP_C="+chap.Encode(ours))
	require.ErrorIs(t, err, ErrAuth)
	assert.ErrorContains(t, err, "our own challenge")
	assert.Empty(t, c.peek())
}

func TestRefusedProofInWords(t *testing.T) { // LG-09
	refuse := iscsi.LoginResponse{ITT: loginITT, Status: iscsi.LoginAuthFailed}
	l := newLogin(testOptions(t), iserLike, "iqn.2026-01.test:disk")
	ask(t, l)
	_, err := answer(l, refuse, "")
	assert.ErrorContains(t, err, "0201 (authentication failed): the target wants CHAP, and no user name")

	c := newChapTarget(t, true)
	ask(t, c.l)
	_, err = answer(c.l, refuse, "")
	assert.ErrorContains(t, err, "none of the authentication methods")

	for _, mutual := range []bool{false, true} {
		c = newChapTarget(t, mutual)
		_, err = c.says(false, "AuthMethod=CHAP")
		require.NoError(t, err)
		_, err = c.says(false, "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x616263")
		require.NoError(t, err)
		ask(t, c.l)
		_, err = answer(c.l, refuse, "")
		assert.ErrorContains(t, err, "does not accept the CHAP user name or secret")
		assert.Equal(t, mutual, strings.Contains(err.Error(), "cannot prove its own"))
	}

	refuse.Status = iscsi.LoginInitiatorError // as stgt does
	c = newChapTarget(t, false)
	_, err = c.says(false, "AuthMethod=CHAP")
	require.NoError(t, err)
	_, err = c.says(false, "CHAP_A=7", "CHAP_I=1", "CHAP_C=0x616263")
	require.NoError(t, err)
	ask(t, c.l)
	_, err = answer(c.l, refuse, "")
	assert.ErrorContains(t, err, "offer it md5 only")

	refuse.Status = iscsi.LoginOutOfResources // after a good exchange: not called an authentication failure
	c = newChapTarget(t, false)
	ask(t, c.l)
	_, err = answer(c.l, refuse, "")
	assert.ErrorContains(t, err, "0302")
	assert.NotContains(t, err.Error(), "CHAP")
}

func TestCredentialsAreChecked(t *testing.T) {
	s := testSecret(t, "secret of the host")
	for _, c := range []chap.Credentials{
		{User: "host"},
		{User: "host", Secret: s, MutualUser: "disk", MutualSecret: s},
	} {
		_, err := Options{CHAP: &c}.withDefaults()
		assert.Error(t, err)
	}
}

// FuzzAuthentication lets a target say anything in the security stage: a target that must prove itself is
// never believed, since it does not know the secret.
func FuzzAuthentication(f *testing.F) {
	f.Add(true, true, []byte("AuthMethod=CHAP\x00\x01\x01CHAP_A=5\x00CHAP_I=1\x00CHAP_C=0x00\x00\x01\x01CHAP_N=disk\x00CHAP_R=0x00\x00"))
	f.Add(true, false, []byte("AuthMethod=None\x00"))
	f.Add(false, true, []byte("\x01\x01\x01"))
	f.Fuzz(func(t *testing.T, mutual, transit bool, script []byte) {
		c := newChapTarget(t, mutual)
		for part := range strings.SplitSeq(string(script), "\x01\x01") {
			var bhs [iscsi.BHSSize]byte
			text := string(c.l.request(&bhs))
			require.NotContains(t, text, "secret of")
			rsp := iscsi.LoginResponse{ITT: loginITT, Transit: transit, Next: iscsi.StageOperational}
			done, err := answer(c.l, rsp, part)
			require.False(t, done)
			if err != nil {
				return
			}
			if c.l.stage == iscsi.StageOperational {
				require.False(t, mutual, "believed without a proof")
				return
			}
		}
	})
}
