package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A rawLogin is a login by hand, in the security stage.
type rawLogin struct {
	t    *testing.T
	conn net.Conn
}

func newRawLogin(t *testing.T, addr string) *rawLogin {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(readyLimit)))
	return &rawLogin{t, conn}
}

// say sends a text and returns the target's keys.
func (r *rawLogin) say(lines ...string) (iscsi.LoginStatus, map[string]string) {
	r.t.Helper()
	text := []byte(strings.Join(lines, "\x00") + "\x00")
	req := iscsi.LoginRequest{Transit: true, Next: iscsi.StageOperational, ISID: iscsi.ISID{0x80}, ITT: 1, CmdSN: 1, DataLength: uint32(len(text))}
	var bhs [iscsi.BHSSize]byte
	req.Put(&bhs)
	pad := make([]byte, -len(text)&3)
	_, err := r.conn.Write(append(append(bhs[:], text...), pad...))
	require.NoError(r.t, err)
	_, err = io.ReadFull(r.conn, bhs[:])
	require.NoError(r.t, err)
	var resp iscsi.LoginResponse
	require.NoError(r.t, resp.Parse(&bhs))
	data := make([]byte, (resp.DataLength+3)&^3)
	_, err = io.ReadFull(r.conn, data)
	require.NoError(r.t, err)
	kvs, err := iscsi.ParseText(data[:resp.DataLength])
	require.NoError(r.t, err)
	keys := make(map[string]string)
	for _, kv := range kvs {
		keys[kv.Key] = kv.Value
	}
	return resp.Status, keys
}

// challenged goes as far as the target's challenge.
func (r *rawLogin) challenged() (id, challenge string) {
	r.t.Helper()
	status, keys := r.say("InitiatorName=iqn.2026-01.example:raw", "TargetName=iqn.2026-01.example:ram", "AuthMethod=CHAP")
	require.Equal(r.t, iscsi.LoginSuccess, status)
	require.Equal(r.t, "CHAP", keys["AuthMethod"])
	status, keys = r.say("CHAP_A=5")
	require.Equal(r.t, iscsi.LoginSuccess, status)
	return keys["CHAP_I"], keys["CHAP_C"]
}

// TestChallengesOverRestarts is field report SE-01: what is recorded of one daemon's logins is worth nothing to
// the next, nor what is recorded on one connection to another.
func TestChallengesOverRestarts(t *testing.T) {
	secret, err := chap.NewSecret("secret of the host")
	require.NoError(t, err)
	other, err := chap.NewSecret("secret of the disk")
	require.NoError(t, err)
	seen := map[string]bool{}
	recorded, reflected := "", ""
	for range 2 {
		c := config(t, `{listen: "127.0.0.1:0", provider: tcp}`, ramStore, ramTarget)
		auth := &chap.Credentials{User: "host", Secret: secret, MutualUser: "disk", MutualSecret: other}
		c.Targets[0].Auth = auth
		log, _ := test.NewNullLogger()
		s, err := start(c, log, noRDMA, nil)
		require.NoError(t, err)
		addr := s.served()[0].Addr().String()
		for range 20 {
			id, challenge := newRawLogin(t, addr).challenged()
			assert.NotEmpty(t, id)
			b, err := chap.Decode(challenge, chap.MaxChallenge)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, len(b), 16)
			assert.False(t, seen[challenge], "a challenge came twice")
			seen[challenge] = true
		}

		good := newRawLogin(t, addr)
		idText, challenge := good.challenged()
		id, err := chap.ParseID(idText)
		require.NoError(t, err)
		b, err := chap.Decode(challenge, chap.MaxChallenge)
		require.NoError(t, err)
		proof := "CHAP_R=" + chap.Encode(chap.MD5.Response(id, secret, b))
		status, keys := good.say("CHAP_N=host", proof, "CHAP_I=9", "CHAP_C=0x"+strings.Repeat("ab", 16))
		require.Equal(t, iscsi.LoginSuccess, status)
		assert.Equal(t, "disk", keys["CHAP_N"])

		if recorded != "" {
			replay := newRawLogin(t, addr)
			replay.challenged()
			status, keys = replay.say("CHAP_N=host", recorded)
			assert.Equal(t, iscsi.LoginAuthFailed, status, "a recorded proof")
			assert.Empty(t, keys)
		}
		recorded = proof

		_, reflected = newRawLogin(t, addr).challenged()
		mutual := newRawLogin(t, addr)
		idText, challenge = mutual.challenged()
		id, err = chap.ParseID(idText)
		require.NoError(t, err)
		b, err = chap.Decode(challenge, chap.MaxChallenge)
		require.NoError(t, err)
		status, keys = mutual.say("CHAP_N=host", "CHAP_R="+chap.Encode(chap.MD5.Response(id, secret, b)), "CHAP_I=9", "CHAP_C="+reflected)
		assert.Equal(t, iscsi.LoginAuthFailed, status, "the challenge of another connection comes back")
		assert.Empty(t, keys)
		require.NoError(t, s.stop())
	}
}

// TestAccessReachesTheServer: what the file says of initiators holds for those who log in.
func TestAccessReachesTheServer(t *testing.T) {
	c, err := conf.Parse("test.yaml", []byte(`version: 1
portals: [{listen: "127.0.0.1:0", provider: tcp}]
discovery: {enabled: no}
backstores: {`+ramStore+`, two: {type: ram, size: 1MiB}}
targets:
  iqn.2026-01.example:ram:
    luns: {0: ram, 1: two}
    allow: ["iqn.2026-01.example:elsewhere", "127.0.0.0/8"]
    initiators:
      iqn.2026-01.example:raw: {luns: [1], readonly: yes, auth: {user: raw, secret: secret of raw, algorithms: [md5]}}
`))
	require.NoError(t, err)
	got := targetConfig(&c.Targets[0], nil)
	assert.Equal(t, []string{"iqn.2026-01.example:elsewhere"}, got.Allow)
	assert.Equal(t, c.Targets[0].AllowFrom, got.AllowFrom)
	require.Len(t, got.Initiators, 1)
	i := got.Initiators[0]
	assert.Equal(t, iscsi.Name("iqn.2026-01.example:raw"), i.Name)
	assert.Equal(t, "raw", i.Auth.User)
	assert.Equal(t, []int{1}, i.LUNs)
	assert.True(t, i.ReadOnly)

	addr := serve(t, c).served()[0].Addr().String()
	for name, want := range map[string]iscsi.LoginStatus{
		"raw": iscsi.LoginSuccess, "elsewhere": iscsi.LoginSuccess, "stranger": iscsi.LoginForbidden,
	} {
		status, keys := newRawLogin(t, addr).say("InitiatorName=iqn.2026-01.example:"+name, "TargetName=iqn.2026-01.example:ram", "AuthMethod=CHAP,None")
		assert.Equal(t, want.String(), status.String(), name)
		assert.Equal(t, map[string]string{"raw": "CHAP", "elsewhere": "None"}[name], keys["AuthMethod"], name)
	}
	status, _ := newRawLogin(t, addr).say("InitiatorName=iqn.2026-01.example:raw", "SessionType=Discovery", "AuthMethod=None")
	assert.Equal(t, iscsi.LoginBadSessionType, status)
}
