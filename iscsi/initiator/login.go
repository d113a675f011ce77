package initiator

import (
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// Bounds of a login.
const (
	maxLoginRounds = 32       // requests; some targets never have enough (LG-11)
	maxLoginText   = 64 << 10 // bytes of text from the target in one exchange
	loginITT       = 1
)

// A login is the initiator's side of the login phase: the operational stage, after the security stage if
// there are credentials. It has no connection and no clock: request says what to send, response takes the answer.
//
//	(security ─►) offers ─► [C: more of them] ─► answers ─► granted
//	                                                └─► round again with what the target has asked for
type login struct {
	isid      iscsi.ISID
	neg       *iscsi.Negotiation
	discovery bool
	auth      *authenticator // nil: without security stage
	stage     iscsi.Stage

	out    []byte // text not yet sent
	in     []byte // text of the present exchange
	maxOut int    // bytes of text in one PDU
	asked  bool   // the last request had T
	rounds int

	cmdSN  iscsi.CmdSN
	seq    iscsi.Sequence
	seen   bool // seq.StatSN is known
	tsih   uint16
	group  string       // TargetPortalGroupTag: with ISID and the names, what the session is known by
	params iscsi.Params // when done
}

// newLogin starts a login; target is empty for discovery.
func newLogin(o *Options, tr iscsi.Traits, target string) *login {
	l := &login{isid: o.ISID, discovery: target == "", stage: iscsi.StageOperational, maxOut: max(tr.MaxLoginData, 512), cmdSN: 1}
	l.neg = iscsi.NewNegotiation(iscsi.Initiator, tr, *o.Negotiate, l.discovery)
	kvs := []iscsi.KeyValue{{Key: "InitiatorName", Value: o.InitiatorName}}
	if l.discovery {
		kvs = append(kvs, iscsi.KeyValue{Key: "SessionType", Value: "Discovery"})
	} else {
		kvs = append(kvs, iscsi.KeyValue{Key: "TargetName", Value: target}, iscsi.KeyValue{Key: "SessionType", Value: "Normal"})
	}
	if o.CHAP != nil {
		l.stage, l.auth = iscsi.StageSecurity, &authenticator{c: o.CHAP, challenger: o.challenger}
		l.out = iscsi.AppendText(nil, append(kvs, l.auth.offer())...)
		return l
	}
	l.out = iscsi.AppendText(nil, append(kvs, l.neg.Offers()...)...)
	return l
}

// next is the stage after the present one.
func (l *login) next() iscsi.Stage {
	if l.stage == iscsi.StageSecurity {
		return iscsi.StageOperational
	}
	return iscsi.StageFullFeature
}

// request makes the next Login Request with its text.
func (l *login) request(bhs *[iscsi.BHSSize]byte) (text []byte) {
	text = l.out[:min(len(l.out), l.maxOut)]
	l.out = l.out[len(text):]
	req := iscsi.LoginRequest{
		Continue: len(l.out) > 0, Current: l.stage, Next: l.next(),
		DataLength: uint32(len(text)), ISID: l.isid, ITT: loginITT, CmdSN: l.cmdSN, ExpStatSN: l.seq.StatSN,
	}
	// Not while either side's text goes on (RFC 7143, 6.2).
	l.asked = !req.Continue && len(l.in) == 0
	req.Transit = l.asked
	req.Put(bhs)
	return text
}

// asksFullFeature reports whether the next request will have T.
func (l *login) asksFullFeature() bool {
	return l.stage == iscsi.StageOperational && len(l.out) <= l.maxOut && len(l.in) == 0
}

// response takes a PDU from the target; done when the session is in full-feature phase. A refusal by the
// target is a *iscsi.LoginError.
func (l *login) response(bhs *[iscsi.BHSSize]byte, text []byte) (done bool, err error) {
	var rsp iscsi.LoginResponse
	if err := rsp.Parse(bhs); err != nil {
		return false, violation("%s instead of a Login Response", iscsi.OpcodeOf(bhs))
	}
	if l.rounds++; l.rounds > maxLoginRounds {
		return false, fmt.Errorf("the target does not grant the login within %d rounds", maxLoginRounds)
	}
	if rsp.Status != iscsi.LoginSuccess {
		return false, l.refusal(&rsp, text)
	}
	if err := l.check(&rsp); err != nil {
		return false, err
	}
	l.number(&rsp)
	if len(l.in)+len(text) > maxLoginText {
		return false, violation("more than %d bytes of login text", maxLoginText)
	}
	l.in = append(l.in, text...)
	if rsp.Continue {
		if len(l.in) == 0 {
			return false, violation("an empty Login Response that goes on")
		}
		return false, nil // an empty request asks for the rest
	}
	if len(l.out) > 0 {
		return false, nil // the target waits for the rest of ours
	}
	if err := l.exchange(); err != nil {
		return false, err
	}
	if !rsp.Transit {
		return false, nil
	}
	if l.stage == iscsi.StageSecurity {
		return false, l.leaveSecurity()
	}
	l.tsih = rsp.TSIH
	l.params, err = l.neg.Result()
	return err == nil, err
}

// check judges the fields of a successful response (RFC 7143, 11.13).
func (l *login) check(rsp *iscsi.LoginResponse) error {
	switch {
	case rsp.ITT != loginITT:
		return violation("Login Response with ITT %08x", rsp.ITT)
	case rsp.VersionActive != 0:
		return violation("protocol version %d", rsp.VersionActive)
	case rsp.Current != l.stage:
		return violation("Login Response in stage %d", rsp.Current)
	case rsp.Transit && rsp.Continue:
		return violation("Login Response with T and C")
	case rsp.Transit && rsp.Next != l.next():
		return violation("the target goes to stage %d", rsp.Next)
	case rsp.Transit && !l.asked:
		return violation("the target goes on without being asked")
	}
	return nil
}

// number follows the target's numbers. The window is the one of the last response.
func (l *login) number(rsp *iscsi.LoginResponse) {
	if !l.seen || !rsp.StatSN.Before(l.seq.StatSN) {
		l.seq.StatSN, l.seen = rsp.StatSN.Add(1), true
	}
	l.seq.ExpCmdSN, l.seq.MaxCmdSN = rsp.ExpCmdSN, rsp.MaxCmdSN
	if rsp.MaxCmdSN.Before(rsp.ExpCmdSN - 1) {
		l.seq.ExpCmdSN, l.seq.MaxCmdSN = l.cmdSN, l.cmdSN // nonsense: a window of one until told better
	}
}

// exchange negotiates with the text that has been collected; what has to be answered is sent next.
func (l *login) exchange() error {
	kvs, err := iscsi.ParseText(l.in)
	if err != nil {
		return fmt.Errorf("login text: %w", err)
	}
	l.in = l.in[:0]
	for _, kv := range kvs {
		if kv.Key == "TargetPortalGroupTag" {
			l.group = kv.Value
		}
	}
	if l.stage == iscsi.StageSecurity {
		proof, err := l.auth.take(kvs)
		if err != nil {
			return err
		}
		l.out = iscsi.AppendText(l.out, proof...)
	}
	answers, err := l.neg.Receive(kvs)
	if err != nil {
		return err
	}
	l.out = iscsi.AppendText(l.out, answers...)
	return nil
}

// leaveSecurity goes on to the operational stage.
func (l *login) leaveSecurity() error {
	if err := l.auth.leave(); err != nil {
		return err
	}
	l.stage = iscsi.StageOperational
	l.out = iscsi.AppendText(l.out, l.neg.Offers()...)
	return nil
}

// refusal is the error of a status other than success. A redirection has the new address in its text.
func (l *login) refusal(rsp *iscsi.LoginResponse, text []byte) error {
	e := &iscsi.LoginError{Status: rsp.Status, Reason: "refused by the target"}
	switch rsp.Status {
	case iscsi.LoginAuthFailed:
		e.Reason = l.doubt()
	case iscsi.LoginInitiatorError:
		if l.auth != nil && l.auth.stage == authProved && l.auth.algorithm == chap.SHA256 {
			// stgt picks number 7, means SHA-1, and finds our answer too long.
			e.Reason += " after our CHAP answer; stgt takes algorithm 7, which is SHA-256, for SHA-1: offer it md5 only"
		}
	}
	if !rsp.Status.Redirect() {
		return e
	}
	kvs, err := iscsi.ParseText(text)
	if err != nil {
		return errors.Join(e, err)
	}
	for _, kv := range kvs {
		if kv.Key == "TargetAddress" {
			e.Address, e.Reason = kv.Value, "to "+kv.Value
		}
	}
	return e
}

// doubt says what may be wrong with a login whose authentication was refused: the target does not.
func (l *login) doubt() string {
	switch {
	case l.auth == nil:
		return "the target wants CHAP, and no user name and secret were given"
	case l.auth.stage == authProved && l.auth.c.Mutual():
		return "the target does not accept the CHAP user name or secret, or cannot prove its own"
	case l.auth.stage == authProved:
		return "the target does not accept the CHAP user name or secret"
	}
	return "the target takes none of the authentication methods or CHAP algorithms offered"
}
