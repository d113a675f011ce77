package chap_test

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/goiser/goiser/iscsi/chap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func secret(t testing.TB, s string) chap.Secret {
	t.Helper()
	v, err := chap.NewSecret(s)
	require.NoError(t, err)
	return v
}

// TestResponses holds the algorithms against values computed by OpenSSL:
//
//	printf '\x17a secret of 22 bytes!!\x01\x02\x03\x04' | openssl dgst -md5
func TestResponses(t *testing.T) {
	s := secret(t, "a secret of 22 bytes!!")
	for a, want := range map[chap.Algorithm]string{
		chap.MD5:     "4330b197c2d7577982660c5e90919821",
		chap.SHA1:    "dd0bafe14fca92c2126808e5e5167c3d0521b895",
		chap.SHA256:  "13b91cbe30e10e63530c45eed4bb461c5f09b88e0eae7405796e324e89d021a2",
		chap.SHA3256: "8519997bb44fcdeb78185a72821fa4e4a3af7a5fecb54919b8de2aadf151d494",
	} {
		got := a.Response(0x17, s, []byte{1, 2, 3, 4})
		assert.Equal(t, want, hex.EncodeToString(got), a.String())
		assert.True(t, a.Verify(got, 0x17, s, []byte{1, 2, 3, 4}))
		assert.False(t, a.Verify(got, 0x18, s, []byte{1, 2, 3, 4}), "identifier")
		assert.False(t, a.Verify(got, 0x17, s, []byte{1, 2, 3, 5}), "challenge")
		assert.False(t, a.Verify(got, 0x17, secret(t, "a secret of 22 bytes!?"), []byte{1, 2, 3, 4}), "secret")
		assert.False(t, a.Verify(got[1:], 0x17, s, []byte{1, 2, 3, 4}), "length")
		assert.False(t, a.Verify(nil, 0x17, s, []byte{1, 2, 3, 4}), "nothing")
		back, err := chap.ParseAlgorithm(a.String())
		require.NoError(t, err)
		assert.Equal(t, a, back)
	}
	_, err := chap.ParseAlgorithm("md4")
	assert.Error(t, err)
	assert.Panics(t, func() { chap.Algorithm(9).Response(1, s, nil) })
}

func TestAlgorithmIsTheFirstOfferedThatIsAllowed(t *testing.T) {
	all := chap.Algorithms()
	assert.Equal(t, "8,7,6,5", chap.Offer(nil))
	assert.Equal(t, "5", chap.Offer([]chap.Algorithm{chap.MD5}))
	for _, r := range []struct {
		offer string
		list  []chap.Algorithm
		want  chap.Algorithm // 0: none
	}{
		{"5,7,8", nil, chap.MD5},
		{"7,5", all, chap.SHA256},
		{"0x07", all, chap.SHA256},
		{"7,5", []chap.Algorithm{chap.MD5}, chap.MD5},
		{"4,9,6", all, chap.SHA1},
		{"5,6", []chap.Algorithm{chap.SHA256}, 0},
		{"", all, 0},
		{"x,263,-1,5.0", all, 0}, // 263 is 7 + 256
		{"Reject", all, 0},
	} {
		got, ok := chap.Choose(r.offer, r.list)
		assert.Equal(t, r.want, got, r.offer)
		assert.Equal(t, r.want != 0, ok, r.offer)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	const text = "correct horse battery"
	c := chap.Credentials{User: "host", Secret: secret(t, text), MutualUser: "disk", MutualSecret: secret(t, text+"!")}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, v := range []any{c.Secret, &c.Secret, c, &c, []chap.Secret{c.Secret}} {
			out := fmt.Sprintf(verb, v)
			assert.NotContains(t, out, "horse", verb)
			assert.NotContains(t, strings.ToLower(out), hex.EncodeToString([]byte("horse")), verb)
		}
	}
	b, err := json.Marshal(c)
	require.NoError(t, err)
	assert.Contains(t, string(b), `"(secret)"`)
	assert.NotContains(t, string(b), "horse")
	for _, bad := range []string{"battery", strings.Repeat("battery", 40)} {
		_, err = chap.NewSecret(bad)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "battery")
	}
}

func TestSecretLengths(t *testing.T) { // RFC 7143, 9.2.1: 96 bits
	for n, ok := range map[int]bool{0: false, 11: false, 12: true, 16: true, 255: true, 256: false} {
		_, err := chap.NewSecret(strings.Repeat("s", n))
		assert.Equal(t, ok, err == nil, "%d bytes", n)
	}
}

func TestCredentialsThatCannotBe(t *testing.T) {
	a, b := secret(t, "secret of host a"), secret(t, "secret of disk b")
	long := strings.Repeat("n", 256)
	for name, r := range map[string]struct {
		c   chap.Credentials
		err string
	}{
		"one way":         {chap.Credentials{User: "a", Secret: a}, ""},
		"mutual":          {chap.Credentials{User: "a", Secret: a, MutualUser: "b", MutualSecret: b}, ""},
		"same user":       {chap.Credentials{User: "a", Secret: a, MutualUser: "a", MutualSecret: b}, ""},
		"no user":         {chap.Credentials{Secret: a}, "user name of 0 bytes"},
		"long user":       {chap.Credentials{User: long, Secret: a}, "user name of 256 bytes"},
		"no secret":       {chap.Credentials{User: "a"}, "no secret"},
		"no mutual user":  {chap.Credentials{User: "a", Secret: a, MutualSecret: b}, "mutual CHAP user name of 0"},
		"half mutual":     {chap.Credentials{User: "a", Secret: a, MutualUser: "b"}, `"b" has no secret`},
		"the same secret": {chap.Credentials{User: "a", Secret: a, MutualUser: "b", MutualSecret: a}, "the same secret for both directions"},
	} {
		err := r.c.Check()
		if r.err == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, r.err, name)
		}
	}
}

func TestProof(t *testing.T) {
	c := chap.Credentials{User: "a", Secret: secret(t, "secret of host a"), MutualUser: "b", MutualSecret: secret(t, "secret of disk b")}
	challenge := []byte("challenge")
	right := chap.SHA1.Response(3, c.Secret, challenge)
	assert.True(t, c.Proves(chap.SHA1, "a", right, 3, challenge))
	assert.False(t, c.Proves(chap.SHA1, "A", right, 3, challenge), "another user")
	assert.False(t, c.Proves(chap.SHA1, "b", right, 3, challenge), "the target's name")
	assert.False(t, c.MutualProves(chap.SHA1, "b", right, 3, challenge), "the initiator's secret")
	assert.True(t, c.MutualProves(chap.SHA1, "b", chap.SHA1.Response(3, c.MutualSecret, challenge), 3, challenge))
	none := chap.Credentials{}
	empty := md5.Sum(append([]byte{3}, challenge...)) // what an empty secret would answer
	assert.False(t, none.Proves(chap.MD5, "", empty[:], 3, challenge), "no secret proves nothing")
}

func TestChallengesDiffer(t *testing.T) { // SE-01
	const n = 4096
	seen, ids := map[string]bool{}, map[byte]bool{}
	c, other := chap.NewChallenger(), chap.NewChallenger()
	for range n {
		id, b := c.Challenge()
		require.GreaterOrEqual(t, len(b), 16)
		require.LessOrEqual(t, len(b), chap.MaxChallenge)
		require.False(t, seen[string(b[:16])], "the random part comes once")
		require.True(t, c.Made(b))
		require.False(t, other.Made(b), "another daemon's")
		seen[string(b[:16])] = true
		ids[id] = true
	}
	assert.Greater(t, len(ids), 200, "identifiers are random too")
}

func TestOnlyWholeChallengesAreOurs(t *testing.T) {
	c := chap.NewChallenger()
	_, b := c.Challenge()
	for n := range b {
		assert.False(t, c.Made(b[:n]), "first %d bytes", n)
		b[n] ^= 1
		assert.False(t, c.Made(b), "byte %d changed", n)
		b[n] ^= 1
	}
	assert.False(t, c.Made(append(b, 0)))
}

func TestBinaryValues(t *testing.T) { // SE-19
	full := make([]byte, 1024)
	for i := range full {
		full[i] = byte(i * 7)
	}
	for _, r := range []struct {
		name, in string
		want     []byte // nil: refused
	}{
		{"hex", "0x00ff10", []byte{0, 255, 16}},
		{"upper case", "0X00FF1a", []byte{0, 255, 26}},
		{"odd digits", "0x123", nil},
		{"not hex", "0x12g4", nil},
		{"nothing", "0x", nil},
		{"base64", "0bAP8Q", []byte{0, 255, 16}},
		{"base64, padded", "0BAP8=", []byte{0, 255}},
		{"base64, not padded", "0bAP8", []byte{0, 255}},
		{"base64, too much padding", "0bAP8==", nil},
		{"base64 with loose bits", "0bAP9", nil},
		{"base64 with line end", "0bAP\n8Q", nil},
		{"base64 of nothing", "0b", nil},
		{"decimal", "255", nil},
		{"empty", "", nil},
		{"only 0", "0", nil},
		{"longest", chap.Encode(full), full},
		{"too long", chap.Encode(append(full, 1)), nil},
		{"too long in base64", "0b" + strings.Repeat("AAAA", 342), nil},
	} {
		got, err := chap.Decode(r.in, chap.MaxChallenge)
		assert.Equal(t, r.want, got, r.name)
		assert.Equal(t, r.want == nil, err != nil, r.name)
	}
	assert.Equal(t, "0x00ff10", chap.Encode([]byte{0, 255, 16}))
}

func TestIdentifiers(t *testing.T) {
	for s, want := range map[string]int{"0": 0, "255": 255, "0xff": 255, "0XA": 10, "256": -1, "-1": -1, "": -1, "0x": -1, "0b1": -1, "1 ": -1} {
		id, err := chap.ParseID(s)
		assert.Equal(t, want >= 0, err == nil, "%q", s)
		if want >= 0 {
			assert.Equal(t, byte(want), id, "%q", s)
		}
	}
	assert.Equal(t, "200", chap.FormatID(200))
}

// FuzzDecode: what is decoded and encoded again means the same, and is never longer than allowed.
func FuzzDecode(f *testing.F) {
	f.Add("0x00ff")
	f.Add("0bAP8=")
	f.Add("0B")
	f.Fuzz(func(t *testing.T, s string) {
		b, err := chap.Decode(s, 64)
		if err != nil {
			return
		}
		require.NotEmpty(t, b)
		require.LessOrEqual(t, len(b), 64)
		again, err := chap.Decode(chap.Encode(b), 64)
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}
