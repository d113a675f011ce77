package target

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/goiser/goiser/iscsi"
)

// Bounds of a login.
const (
	// maxLoginText bounds the text, in bytes, that a login takes in all, and that one answer may have. With what
	// append keeps in reserve it stays below 64 KiB for a peer of which nothing is known yet (SE-02 of the field
	// reports); honest logins have 2 KiB.
	maxLoginText = 32 << 10
	// maxLoginRounds bounds the Login Requests of a login: a peer that never asks for more goes.
	maxLoginRounds = 32
	// maxLoginAnswer is the most text of one Login Response. Initiators take 8192 bytes until they have
	// declared more, and open-iscsi wants room for a NUL in it.
	maxLoginAnswer = 8188
)

// A login is the target's end of a login phase (RFC 7143, 6), as a pure state machine: a Login Request
// in, a Login Response and a decision out.
//
//	security ─► operational ─► loginEnter ─► (grant)
//	    └─────────────┴───────── loginRefused
type login struct {
	traits iscsi.Traits
	tag    uint16 // portal group tag
	// find is the target of a name that has been seen to be well formed, nil if there is none; live is the
	// session of a TSIH.
	find        func(iscsi.Name) *Target
	live        func(tsih uint16) *session
	peer        netip.Addr
	noDiscovery bool
	auth        authenticator // auth.want is what a discovery session must prove, until the session type is known

	first  iscsi.LoginRequest
	rounds int
	bytes  int
	stage  iscsi.Stage
	text   []byte // of requests with the C bit so far
	answer []byte // not sent yet
	// postponed is what shall be said in the operational stage.
	postponed []iscsi.KeyValue
	// transit and next are what the last whole request asked for.
	transit bool
	next    iscsi.Stage

	// Known once the first text is whole.
	neg       *iscsi.Negotiation
	initiator iscsi.Name
	target    *Target // nil: discovery
	discovery bool
	joins     *session     // the login adds a connection to it
	params    iscsi.Params // valid with loginEnter
}

type loginDecision uint8

const (
	loginGoesOn loginDecision = iota
	// loginEnter: nothing is open but the session itself; resp grants full-feature phase and lacks only
	// the TSIH.
	loginEnter
	// loginRefused: resp says why; the connection ends after it.
	loginRefused
)

// A loginAnswer is what a step gives. StatSN, ExpCmdSN and MaxCmdSN of resp are the connection's to set.
type loginAnswer struct {
	decision loginDecision
	resp     iscsi.LoginResponse
	text     []byte
	err      *iscsi.LoginError
}

func refusal(status iscsi.LoginStatus, format string, args ...any) *iscsi.LoginError {
	return &iscsi.LoginError{Status: status, Reason: fmt.Sprintf(format, args...)}
}

// step takes one Login Request with its data segment.
func (l *login) step(req *iscsi.LoginRequest, data []byte) loginAnswer {
	if l.rounds == 0 {
		l.first, l.stage = *req, req.Current
	}
	l.rounds++
	if err := l.check(req, data); err != nil {
		return l.refuse(err)
	}
	l.stage = req.Current
	if len(l.answer) > 0 { // the initiator asks for the rest of our answer
		if len(data) > 0 || req.Continue {
			return l.refuse(refusal(iscsi.LoginInitiatorError, "text in the middle of our answer"))
		}
		return l.emit()
	}
	l.text = append(l.text, data...)
	if req.Continue {
		return loginAnswer{resp: l.response()}
	}
	l.transit, l.next = req.Transit, req.Next
	if err := l.take(); err != nil {
		return l.refuse(err)
	}
	return l.emit()
}

// check holds a request against what came before (RFC 7143, 11.12).
func (l *login) check(req *iscsi.LoginRequest, data []byte) error {
	bad := func(format string, args ...any) error {
		return refusal(iscsi.LoginInitiatorError, format, args...)
	}
	l.bytes += len(data)
	f := &l.first
	switch {
	case req.VersionMin > 0:
		return refusal(iscsi.LoginBadVersion, "initiator wants version %d at least", req.VersionMin)
	case req.ITT != f.ITT || req.ISID != f.ISID || req.TSIH != f.TSIH || req.CID != f.CID:
		return bad("ITT, ISID, TSIH or CID changed during login")
	case req.Current > iscsi.StageOperational:
		return bad("current stage %d", req.Current)
	case req.Current < l.stage:
		return bad("stage goes back from %d to %d", l.stage, req.Current)
	case req.Transit && req.Continue:
		return bad("both T and C are set")
	case req.Transit && req.Next != iscsi.StageOperational && req.Next != iscsi.StageFullFeature:
		return bad("next stage %d", req.Next)
	case req.Transit && req.Next <= req.Current:
		return bad("next stage %d does not follow stage %d", req.Next, req.Current)
	case l.rounds > maxLoginRounds:
		return bad("more than %d login requests", maxLoginRounds)
	case l.bytes > maxLoginText:
		return bad("more than %d bytes of login text", maxLoginText)
	}
	return nil
}

// take reads the text collected and appends our answers.
func (l *login) take() error {
	kvs, err := iscsi.ParseText(l.text)
	if err != nil {
		return refusal(iscsi.LoginInitiatorError, "text: %v", err)
	}
	l.text = nil
	if l.neg == nil {
		if err := l.identify(kvs); err != nil {
			return err
		}
	}
	var asked, security []iscsi.KeyValue
	for _, kv := range kvs {
		switch {
		case !iscsi.IsLoginKey(kv.Key):
			asked = append(asked, kv)
		case isAuthKey(kv.Key):
			security = append(security, kv)
		default:
			if err := l.loginKey(kv); err != nil {
				return err
			}
		}
	}
	if err := l.authenticate(security); err != nil {
		return err
	}
	if l.stage == iscsi.StageSecurity && len(asked) == 0 {
		return nil // our own declarations belong to the next stage: open-iscsi fails a login for them here
	}
	answers, err := l.neg.Receive(asked)
	if l.stage == iscsi.StageSecurity {
		answers = l.postpone(answers)
	} else {
		answers, l.postponed = append(l.postponed, answers...), nil
	}
	l.answer = iscsi.AppendText(l.answer, answers...)
	if err == nil && len(l.answer) > maxLoginText {
		err = refusal(iscsi.LoginInitiatorError, "answer of %d bytes", len(l.answer))
	}
	return err
}

// authenticate takes the security keys of a text. An initiator that has something to prove gets to the next
// stage only when it has: one that asks for it earlier is kept, as long as it makes progress, and one that
// begins later, or agrees on nothing, is refused (RFC 7143, 6.3.2 and 11.13.5).
func (l *login) authenticate(kvs []iscsi.KeyValue) error {
	if l.stage != iscsi.StageSecurity && l.auth.due() {
		return authFailed("no security stage, and the initiator has to prove who it is")
	}
	answers, moved, err := l.auth.take(kvs)
	if err != nil {
		return err
	}
	l.answer = iscsi.AppendText(l.answer, answers...)
	if l.transit && l.auth.due() {
		if !moved {
			return authFailed("the security stage ends before the initiator has proved who it is")
		}
		l.transit = false
	}
	return nil
}

// postpone takes what the security stage has no place for out of answers: what was not asked.
func (l *login) postpone(answers []iscsi.KeyValue) []iscsi.KeyValue {
	return slices.DeleteFunc(answers, func(kv iscsi.KeyValue) bool {
		if kv.Key != "MaxRecvDataSegmentLength" {
			return false
		}
		l.postponed = append(l.postponed, kv)
		return true
	})
}

// identify learns from the first text who logs in to what (RFC 7143, 6.1).
func (l *login) identify(kvs []iscsi.KeyValue) error {
	value := func(key string) (string, bool) {
		i := slices.IndexFunc(kvs, func(kv iscsi.KeyValue) bool { return kv.Key == key })
		if i < 0 {
			return "", false
		}
		return kvs[i].Value, true
	}
	name, ok := value("InitiatorName")
	if !ok {
		return refusal(iscsi.LoginMissingParameter, "no InitiatorName")
	}
	var err error
	if l.initiator, err = iscsi.ParseName(name); err != nil {
		return refusal(iscsi.LoginInitiatorError, "initiator: %v", err)
	}
	switch typ, ok := value("SessionType"); {
	case !ok || typ == "Normal":
	case typ == "Discovery" && l.noDiscovery:
		return refusal(iscsi.LoginBadSessionType, "discovery is switched off")
	case typ == "Discovery":
		l.discovery = true
	default:
		return refusal(iscsi.LoginBadSessionType, "session type %.32q", typ)
	}
	config := iscsi.DefaultConfig()
	if !l.discovery {
		name, ok := value("TargetName")
		if !ok {
			return refusal(iscsi.LoginMissingParameter, "no TargetName")
		}
		if err := l.choose(name); err != nil {
			return err
		}
		config, l.auth.want = l.target.c.Negotiate, l.target.rights.of(l.initiator).Auth
	}
	l.neg = iscsi.NewNegotiation(iscsi.Target, l.traits, config, l.discovery)
	if l.first.TSIH != 0 {
		return l.join()
	}
	return nil
}

// join finds the session that the login adds a connection to, or reinstates one of (RFC 7143, 6.3.4). Who is
// not its initiator does not learn that there is one.
func (l *login) join() error {
	ses := l.live(l.first.TSIH)
	switch {
	case ses == nil || l.target == nil || !ses.target.same(l.target) || ses.initiator != l.initiator || ses.key.isid != l.first.ISID:
		return refusal(iscsi.LoginNoSession, "no session %d", l.first.TSIH)
	case ses.key.tag != l.tag:
		return refusal(iscsi.LoginCannotInclude, "session %d is of portal group %d", ses.tsih, ses.key.tag)
	case ses.transport != l.traits.Name:
		return refusal(iscsi.LoginCannotInclude, "session %d is over %s", ses.tsih, ses.transport)
	}
	l.joins = ses
	l.neg.SetJoining()
	return nil
}

// choose finds the target of a normal session and declares what its first response must have (RFC 7143,
// 13.9): nothing else may be said unasked, open-iscsi fails a login for it.
func (l *login) choose(name string) error {
	target, err := iscsi.ParseName(name)
	if err != nil {
		return refusal(iscsi.LoginNotFound, "target: %v", err)
	}
	t := l.find(target)
	switch {
	case t == nil:
		return refusal(iscsi.LoginNotFound, "no target %s", target)
	case !t.servedIn(l.tag):
		return refusal(iscsi.LoginNotFound, "target %s is not served in portal group %d", target, l.tag)
	case !t.rights.allow(l.initiator, l.peer):
		return refusal(iscsi.LoginForbidden, "%s is not allowed on %s from %v", l.initiator, target, l.peer)
	}
	if err := t.moved(l.tag); err != nil {
		return err
	}
	l.target = t
	if t.c.Alias != "" {
		l.answer = iscsi.AppendText(l.answer, iscsi.KeyValue{Key: "TargetAlias", Value: t.c.Alias})
	}
	tag := strconv.Itoa(int(l.tag))
	l.answer = iscsi.AppendText(l.answer, iscsi.KeyValue{Key: "TargetPortalGroupTag", Value: tag})
	return nil
}

// loginKey takes a key that is not negotiated. Some initiators repeat all of them in each round, which
// is fine as long as they say the same.
func (l *login) loginKey(kv iscsi.KeyValue) error {
	same := func(is iscsi.Name) error {
		if name, err := iscsi.ParseName(kv.Value); err != nil || name != is {
			return refusal(iscsi.LoginInitiatorError, "%s changed to %.64q", kv.Key, kv.Value)
		}
		return nil
	}
	switch kv.Key {
	case "InitiatorName":
		return same(l.initiator)
	case "TargetName":
		if l.target != nil {
			return same(l.target.c.Name)
		}
	case "SessionType":
		if (kv.Value == "Discovery") != l.discovery {
			return refusal(iscsi.LoginInitiatorError, "session type changed")
		}
	case "InitiatorAlias":
	default:
		return refusal(iscsi.LoginInitiatorError, "key %s is not the initiator's to send here", kv.Key)
	}
	return nil
}

// emit makes the next Login Response from what is to be said. A transition is granted in the response
// that ends the answer to the request that asked for it: initiators over RDMA have changed their receive
// buffers by then.
func (l *login) emit() loginAnswer {
	a := loginAnswer{resp: l.response()}
	if limit := min(l.traits.MaxLoginData, maxLoginAnswer); len(l.answer) > limit {
		a.text, l.answer = l.answer[:limit], l.answer[limit:]
		a.resp.Continue = true
		return a
	}
	a.text, l.answer = l.answer, nil
	if !l.transit {
		return a
	}
	a.resp.Transit, a.resp.Next = true, l.next
	if l.next != iscsi.StageFullFeature {
		l.stage = l.next
		return a
	}
	var err error
	if l.params, err = l.neg.Result(); err != nil {
		return l.refuse(err)
	}
	if l.joins != nil {
		l.params = l.joins.params.WithConnection(&l.params)
	}
	a.decision = loginEnter
	return a
}

func (l *login) response() iscsi.LoginResponse {
	return iscsi.LoginResponse{
		Current: l.stage,
		ISID:    l.first.ISID,
		TSIH:    l.first.TSIH,
		ITT:     l.first.ITT,
	}
}

// refuse makes the response that ends a login, with the answers that may explain it. An error that is no
// LoginError is our own.
func (l *login) refuse(err error) loginAnswer {
	a := loginAnswer{decision: loginRefused, resp: l.response()}
	if !errors.As(err, &a.err) {
		a.err = refusal(iscsi.LoginTargetError, "%v", err)
	}
	a.resp.Status = a.err.Status
	if a.err.Status == iscsi.LoginAuthFailed {
		l.answer = nil // nobody has been proved to be there who may have it
	}
	if a.err.Address != "" {
		l.answer = iscsi.AppendText(nil, iscsi.KeyValue{Key: "TargetAddress", Value: a.err.Address})
	}
	if len(l.answer) <= min(l.traits.MaxLoginData, maxLoginAnswer) {
		a.text = l.answer
	}
	return a
}
