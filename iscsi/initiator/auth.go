package initiator

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// ErrAuth is wrapped by what is said of a target that does not prove itself, or does so in a way that is
// not trusted. A target that refuses us is a *iscsi.LoginError with iscsi.LoginAuthFailed.
var ErrAuth = errors.New("the target's part of the authentication")

// distrust ends a login.
func distrust(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrAuth, fmt.Sprintf(format, args...))
}

type authStage uint8

const (
	// authOffered: AuthMethod is on its way.
	authOffered authStage = iota
	// authListed: CHAP_A is on its way.
	authListed
	// authProved: CHAP_N and CHAP_R are on their way.
	authProved
	authDone
)

// An authenticator is the initiator's end of the security stage (RFC 7143, 12.1): the target's keys in, ours
// out.
//
//	offered ─AuthMethod=CHAP─► listed ─CHAP_A, CHAP_I, CHAP_C─► proved ─(CHAP_N, CHAP_R)─► done
//	   └──── AuthMethod=None, unless the target must prove itself ──────────────────────────┘
type authenticator struct {
	c          *chap.Credentials
	challenger *chap.Challenger
	stage      authStage
	algorithm  chap.Algorithm
	// What we have asked of the target, for mutual CHAP.
	id        byte
	challenge []byte
}

// offer is the AuthMethod we begin with. A target that must prove itself has no choice.
func (a *authenticator) offer() iscsi.KeyValue {
	if a.c.Mutual() {
		return iscsi.KeyValue{Key: "AuthMethod", Value: "CHAP"}
	}
	return iscsi.KeyValue{Key: "AuthMethod", Value: "CHAP,None"}
}

// take takes the target's keys of one text, of which those that are not about authentication are left alone.
func (a *authenticator) take(kvs []iscsi.KeyValue) ([]iscsi.KeyValue, error) {
	keys := make(map[string]string)
	for _, kv := range kvs {
		switch kv.Key {
		case "AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R":
			if _, twice := keys[kv.Key]; twice {
				return nil, distrust("%s came twice", kv.Key)
			}
			keys[kv.Key] = kv.Value
		}
	}
	switch {
	case a.stage == authOffered && keys["AuthMethod"] != "":
		return a.method(keys["AuthMethod"])
	case a.stage == authListed && keys["CHAP_A"] != "":
		return a.prove(keys)
	case a.stage == authProved && a.c.Mutual() && keys["CHAP_R"] != "":
		return nil, a.verify(keys)
	case len(keys) > 0:
		return nil, distrust("keys that are not due")
	}
	return nil, nil
}

func (a *authenticator) method(chosen string) ([]iscsi.KeyValue, error) {
	switch {
	case chosen == "CHAP":
		a.stage = authListed
		return []iscsi.KeyValue{{Key: "CHAP_A", Value: chap.Offer(a.c.Algorithms)}}, nil
	case chosen == "None" && !a.c.Mutual():
		a.stage = authDone // nobody wants to know who we are
		return nil, nil
	}
	return nil, distrust("it answers AuthMethod=%.32s to %s", chosen, a.offer().Value)
}

// prove answers the target's challenge, and challenges the target if it must prove itself.
func (a *authenticator) prove(keys map[string]string) ([]iscsi.KeyValue, error) {
	var ok bool
	if a.algorithm, ok = chap.Choose(keys["CHAP_A"], a.c.Algorithms); !ok {
		return nil, distrust("CHAP_A=%.32s was not offered", keys["CHAP_A"])
	}
	id, err := chap.ParseID(keys["CHAP_I"])
	if err != nil {
		return nil, distrust("CHAP: %v", err)
	}
	challenge, err := chap.Decode(keys["CHAP_C"], chap.MaxChallenge)
	switch {
	case err != nil:
		return nil, distrust("CHAP challenge: %v", err)
	case a.challenger.Made(challenge): // RFC 7143, 9.2.1
		return nil, distrust("it sends our own challenge back")
	}
	out := []iscsi.KeyValue{
		{Key: "CHAP_N", Value: a.c.User},
		{Key: "CHAP_R", Value: chap.Encode(a.algorithm.Response(id, a.c.Secret, challenge))},
	}
	a.stage = authProved
	if a.c.Mutual() {
		a.id, a.challenge = a.challenger.Challenge()
		out = append(out,
			iscsi.KeyValue{Key: "CHAP_I", Value: chap.FormatID(a.id)},
			iscsi.KeyValue{Key: "CHAP_C", Value: chap.Encode(a.challenge)})
	}
	return out, nil
}

// verify judges the target's proof.
func (a *authenticator) verify(keys map[string]string) error {
	response, _ := chap.Decode(keys["CHAP_R"], chap.MaxChallenge) // what cannot be decoded proves nothing
	if !a.c.MutualProves(a.algorithm, keys["CHAP_N"], response, a.id, a.challenge) {
		return distrust("its CHAP name %.64q or its secret is not what was expected", keys["CHAP_N"])
	}
	a.stage = authDone
	return nil
}

// leave ends the security stage, which the target has granted.
func (a *authenticator) leave() error {
	switch {
	case a.stage == authDone, a.stage == authProved && !a.c.Mutual():
	case !a.c.Mutual(): // a target that lets us in unasked wants no proof
	default:
		return distrust("it has not proved who it is")
	}
	a.stage = authDone
	return nil
}
