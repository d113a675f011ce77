package target

import (
	"strings"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// authStage is how far an authentication has come.
type authStage uint8

const (
	// authOpen: no method is agreed on.
	authOpen authStage = iota
	// authNone: agreed that nobody proves anything.
	authNone
	// authMethod: agreed on CHAP; CHAP_A is due.
	authMethod
	// authAsked: our challenge is out; CHAP_N and CHAP_R are due.
	authAsked
	authPassed
)

// An authenticator is the target's end of the security stage (RFC 7143, 12.1): the keys of one text in, the
// answers out.
//
//	open ─AuthMethod─► method ─CHAP_A─► asked ─CHAP_N, CHAP_R─► passed
//	  └─ AuthMethod, and nothing is to be proved ─► none
//
// Whatever does not fit ends the login with 0201, whichever part was wrong: what is different is for the log
// only. A challenge is used once, since the connection ends with a login that fails.
type authenticator struct {
	// want is what the initiator has to prove; nil: nothing.
	want       *chap.Credentials
	challenger *chap.Challenger

	stage     authStage
	algorithm chap.Algorithm
	id        byte
	challenge []byte
}

// due reports whether the initiator still has to prove something.
func (a *authenticator) due() bool { return a.want != nil && a.stage != authPassed }

func isAuthKey(key string) bool { return key == keyAuthMethod || strings.HasPrefix(key, "CHAP_") }

// The keys of the security stage (RFC 7143, 12.1 and 12.1.3).
const (
	keyAuthMethod = "AuthMethod"
	keyCHAPA      = "CHAP_A"
	keyCHAPC      = "CHAP_C"
	keyCHAPI      = "CHAP_I"
	keyCHAPN      = "CHAP_N"
	keyCHAPR      = "CHAP_R"

	methodCHAP = "CHAP"
	methodNone = "None"
)

// authFailed is the only answer to an initiator that does not prove itself.
func authFailed(format string, args ...any) *iscsi.LoginError {
	return refusal(iscsi.LoginAuthFailed, format, args...)
}

// take takes the security keys of one whole text. moved reports whether they have led on.
func (a *authenticator) take(kvs []iscsi.KeyValue) (answers []iscsi.KeyValue, moved bool, err error) {
	keys := make(map[string]string, len(kvs))
	for _, kv := range kvs {
		if _, twice := keys[kv.Key]; twice {
			return nil, false, authFailed("%s came twice", kv.Key)
		}
		keys[kv.Key] = kv.Value
	}
	before := a.stage
	if offer, ok := keys[keyAuthMethod]; ok {
		delete(keys, keyAuthMethod)
		if answers, err = a.method(offer); err != nil {
			return nil, false, err
		}
	}
	switch {
	case len(keys) == 0:
	case a.want == nil:
		return nil, false, refusal(iscsi.LoginInitiatorError, "CHAP, which was not agreed on")
	case a.stage == authMethod:
		answers, err = a.ask(answers, keys)
	case a.stage == authAsked:
		answers, err = a.prove(answers, keys)
	default:
		err = authFailed("CHAP keys where none are due")
	}
	return answers, a.stage != before, err
}

// method decides on the method: CHAP if the initiator has to prove itself, else None. Some initiators repeat
// what they offer in each round, which is fine as long as they say the same.
func (a *authenticator) method(offer string) ([]iscsi.KeyValue, error) {
	method, agreed := methodNone, authNone
	if a.want != nil {
		method, agreed = methodCHAP, authMethod
	}
	found := false
	for name := range strings.SplitSeq(offer, ",") {
		found = found || name == method
	}
	if !found {
		return nil, authFailed("no method in common with %.64q", offer)
	}
	if a.want != nil && a.stage != authOpen {
		return nil, nil // answered already
	}
	a.stage = agreed
	return []iscsi.KeyValue{{Key: keyAuthMethod, Value: method}}, nil
}

// ask takes CHAP_A and challenges the initiator.
func (a *authenticator) ask(answers []iscsi.KeyValue, keys map[string]string) ([]iscsi.KeyValue, error) {
	offer, ok := keys[keyCHAPA]
	if !ok || len(keys) > 1 {
		return nil, authFailed("no CHAP_A, or more than that")
	}
	if a.algorithm, ok = chap.Choose(offer, a.want.Algorithms); !ok {
		return nil, authFailed("no CHAP algorithm in common with %.64q", offer)
	}
	a.id, a.challenge = a.challenger.Challenge()
	a.stage = authAsked
	return append(answers,
		iscsi.KeyValue{Key: keyCHAPA, Value: chap.Offer([]chap.Algorithm{a.algorithm})},
		iscsi.KeyValue{Key: keyCHAPI, Value: chap.FormatID(a.id)},
		iscsi.KeyValue{Key: keyCHAPC, Value: chap.Encode(a.challenge)}), nil
}

// prove takes the initiator's proof and, if it asks for ours, gives it. That comes second: an initiator that
// has proved nothing gets nothing to guess a secret by.
func (a *authenticator) prove(answers []iscsi.KeyValue, keys map[string]string) ([]iscsi.KeyValue, error) {
	name, named := keys[keyCHAPN]
	value, ok := keys[keyCHAPR]
	_, id := keys[keyCHAPI]
	_, challenge := keys[keyCHAPC]
	want := 2
	if id && challenge {
		want = 4
	}
	if !named || !ok || len(keys) != want {
		return nil, authFailed("not CHAP_N and CHAP_R, with both CHAP_I and CHAP_C or none")
	}
	// What cannot be decoded is nil, which proves nothing but costs the same.
	response, _ := chap.Decode(value, chap.MaxChallenge)
	if !a.want.Proves(a.algorithm, name, response, a.id, a.challenge) {
		return nil, authFailed("CHAP: user name %.64q or secret is wrong", name)
	}
	if want == 4 {
		mine, err := a.answer(keys[keyCHAPI], keys[keyCHAPC])
		if err != nil {
			return nil, err
		}
		answers = append(answers, mine...)
	}
	a.stage = authPassed
	return answers, nil
}

// answer proves to the initiator who we are (mutual CHAP).
func (a *authenticator) answer(idText, challengeText string) ([]iscsi.KeyValue, error) {
	id, err := chap.ParseID(idText)
	if err != nil {
		return nil, authFailed("CHAP: %v", err)
	}
	challenge, err := chap.Decode(challengeText, chap.MaxChallenge)
	switch {
	case err != nil:
		return nil, authFailed("CHAP challenge: %v", err)
	case a.challenger.Made(challenge): // RFC 7143, 9.2.1
		return nil, authFailed("CHAP: our own challenge came back")
	case !a.want.Mutual():
		return nil, authFailed("the initiator wants a proof, and there is no mutual CHAP user here")
	}
	response := a.algorithm.Response(id, a.want.MutualSecret, challenge)
	return []iscsi.KeyValue{
		{Key: keyCHAPN, Value: a.want.MutualUser},
		{Key: keyCHAPR, Value: chap.Encode(response)},
	}, nil
}
