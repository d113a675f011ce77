package iscsi

import (
	"fmt"
	"slices"
	"strings"
)

// keyState is how far one key has come.
type keyState struct {
	offered  bool   // by us
	received bool   // the peer has sent it
	value    string // what the peer sent
	answer   string // what we answered; empty: nothing
	decided  bool   // number is the result, else the default holds
	number   uint32
}

// A Negotiation is one end's side of a login's operational negotiation, or of later text negotiation.
// One table (keys.go) says everything about the keys; both roles and all transports use it.
type Negotiation struct {
	role        Role
	traits      Traits
	config      Config
	discovery   bool
	fullFeature bool
	joining     bool
	declared    bool // we have sent MaxRecvDataSegmentLength
	keys        [keyCount]keyState
}

// NewNegotiation starts one. A target can do so once it has received SessionType.
func NewNegotiation(role Role, tr Traits, c Config, discovery bool) *Negotiation {
	return &Negotiation{role: role, traits: tr, config: c, discovery: discovery}
}

// SetFullFeature tells that login is over: from now on only MaxRecvDataSegmentLength may change, all other
// known keys are answered Reject (RFC 7143, 13: "Use: LO" and "IO").
func (n *Negotiation) SetFullFeature() { n.fullFeature = true }

// SetJoining tells that the login adds a connection to a session: what the session has agreed on in its
// first login holds, and is not negotiated again (RFC 7143, 13: "Use: LO").
func (n *Negotiation) SetJoining() { n.joining = true }

// Offers is what an initiator offers in its first operational request: every key, in a fixed order.
// Nothing is left for the target to propose, which would cost a further round (LIO, stgt).
func (n *Negotiation) Offers() []KeyValue {
	var kvs []KeyValue
	for i := range keyTable {
		r, st := &keyTable[i], &n.keys[i]
		if !r.offeredBy(n) {
			continue
		}
		value := ""
		if r.kind == kindList {
			value = strings.Join(r.takes(n), ",")
		} else {
			value = r.format(r.ours(n))
		}
		st.offered = true
		if r.name == keyMaxRecvDSL {
			n.declared = true
		}
		kvs = append(kvs, KeyValue{r.name, value})
	}
	return kvs
}

// Receive takes the peer's operational keys of one text exchange and returns the answers to be sent,
// each offered key answered exactly once. Keys that belong to the login itself (InitiatorName,
// TargetName, AuthMethod and the like) are the caller's; see IsLoginKey. An error is a *LoginError; the
// answers that come with it may be sent in the refusal.
//
// A key that comes again in a later exchange with the same value is answered again the same (libiscsi
// sends its whole list again). Another value, or a key twice in one exchange, is an error (RFC 7143, 6.3).
func (n *Negotiation) Receive(kvs []KeyValue) (answers []KeyValue, err error) {
	seen := make(map[string]bool, len(kvs))
	for _, kv := range kvs {
		if IsLoginKey(kv.Key) {
			continue
		}
		if seen[kv.Key] {
			return nil, refuse("%s came twice", kv.Key)
		}
		seen[kv.Key] = true
		if i := rowOf(kv.Key, &n.traits); i >= 0 {
			if err := n.take(&keyTable[i], &n.keys[i], kv.Value); err != nil {
				return nil, err
			}
		}
	}
	return n.answers(kvs)
}

// rowOf is the index of key's row, -1 for a key that means nothing on this transport.
func rowOf(key string, tr *Traits) int {
	for i := range keyTable {
		if r := &keyTable[i]; r.name == key && r.known(tr) {
			return i
		}
	}
	return -1
}

// take records the value of one key and, except for FirstBurstLength, decides on the answer.
func (n *Negotiation) take(r *keyRow, st *keyState, value string) error {
	switch {
	case n.fullFeature && r.name != keyMaxRecvDSL:
		st.answer = valueReject
		return nil
	case n.joining && r.use&onlyLeading != 0:
		st.answer = valueIrrelevant
		return nil
	case !n.fullFeature && st.received && st.value != value:
		return refuse("%s=%.32s after %s=%.32s", r.name, value, r.name, st.value)
	}
	st.received, st.value = true, value
	switch {
	case r.kind == kindDeclare || r.kind == kindDeclareBool:
		return n.takeDeclaration(r, st, value)
	case st.offered:
		return n.takeAnswer(r, st, value)
	}
	n.takeOffer(r, st, value)
	return nil
}

func (n *Negotiation) takeDeclaration(r *keyRow, st *keyState, value string) error {
	if r.name == keyMaxRecvDSL && n.traits.RDMA && !n.discovery {
		return nil // ignored where RDMAExtensions=Yes (RFC 7145, 6)
	}
	v, ok := r.parse(value)
	if !ok {
		return refuse("%s=%.32s", r.name, value)
	}
	if r.name == keyHelloRequired && v != 0 && n.role == Target {
		return refuse("%s=Yes: there is no Hello here", keyHelloRequired)
	}
	st.decided, st.number = true, v
	return nil
}

// takeOffer decides on a value that the peer proposes, and on its answer.
func (n *Negotiation) takeOffer(r *keyRow, st *keyState, value string) {
	v, ok := uint32(0), false
	switch r.kind {
	case kindList:
		v, ok = r.choose(n, value)
		if !ok && n.traits.RDMA && r.names[0] == valueNone {
			v, ok = 0, true // digests are None over RDMA, whatever is offered (RFC 7145, 6.1)
		}
	default:
		if v, ok = r.parse(value); ok {
			v = r.combine(r.ours(n), v)
		}
	}
	if !ok {
		st.answer = valueReject // the default stays in force (RFC 7143, 6.2)
		return
	}
	st.decided, st.number, st.answer = true, v, r.format(v)
}

// takeAnswer applies the peer's answer to our offer. Answers beyond our offer are cut to it: the safe side
// of each key is also the side towards which it is combined.
func (n *Negotiation) takeAnswer(r *keyRow, st *keyState, value string) error {
	switch value {
	case valueReject, valueNotUnderstood, valueIrrelevant:
		return nil // the default holds; Result says whether that will do
	}
	if r.kind == kindList {
		v, ok := r.index(value)
		if !ok || !slices.Contains(r.takes(n), value) {
			return refuse("%s answered %.32s, which was not offered", r.name, value)
		}
		st.decided, st.number = true, v
		return nil
	}
	v, ok := r.parse(value)
	if !ok {
		return refuse("%s answered %.32s", r.name, value)
	}
	st.decided, st.number = true, r.combine(r.ours(n), v)
	return nil
}

// answers makes the answers to kvs, in their order, once all of them have been taken: FirstBurstLength
// depends on MaxBurstLength, which may stand behind it.
func (n *Negotiation) answers(kvs []KeyValue) (answers []KeyValue, err error) {
	for _, kv := range kvs {
		if IsLoginKey(kv.Key) {
			continue
		}
		i := rowOf(kv.Key, &n.traits)
		if i < 0 {
			if kv.Value != valueNotUnderstood && kv.Value != valueReject && kv.Value != valueIrrelevant {
				answers = append(answers, KeyValue{kv.Key, valueNotUnderstood})
			}
			continue
		}
		st := &n.keys[i]
		if kv.Key == keyFirstBurst && st.decided && st.answer != "" && st.answer != valueReject {
			st.number = min(st.number, n.value(keyMaxBurst))
			st.answer = formatNumber(st.number)
		}
		if st.answer != "" {
			answers = append(answers, KeyValue{kv.Key, st.answer})
		}
	}
	if n.mayDeclare() {
		n.declared = true
		answers = append(answers, KeyValue{keyMaxRecvDSL, formatNumber(n.declaredRecvDSL())})
	}
	return answers, n.checkRDMA()
}

// mayDeclare reports whether a target now declares its MaxRecvDataSegmentLength: once over TCP, and in
// RDMA discovery only if the initiator has declared its own, since initiators fail a login for keys that
// they have not asked for (ISER.md 2.3).
func (n *Negotiation) mayDeclare() bool {
	if n.role != Target || n.declared || n.fullFeature {
		return false
	}
	return !n.traits.RDMA || n.discovery && n.state(keyMaxRecvDSL).received
}

// checkRDMA ends a normal RDMA session without RDMAExtensions as soon as that is certain.
func (n *Negotiation) checkRDMA() error {
	st := n.state(keyRDMAExtensions)
	if !n.traits.RDMA || n.discovery || !st.received || st.decided && st.number != 0 {
		return nil
	}
	if n.role == Target {
		return refuse("%s=%.32s in a normal session", keyRDMAExtensions, st.value)
	}
	return refuse("the target answered %s=%.32s", keyRDMAExtensions, st.value)
}

// Result is what is in force now. In a normal session over RDMA without RDMAExtensions it is a *LoginError.
//
// What an initiator offered and the target did not answer is decided by the offer and the default: LIO
// leaves keys out whose offer decides the result.
func (n *Negotiation) Result() (Params, error) {
	if err := n.checkRDMA(); err != nil {
		return Params{}, err
	}
	if n.traits.RDMA && !n.discovery && !n.joining && n.value(keyRDMAExtensions) == 0 {
		return Params{}, &LoginError{Status: LoginMissingParameter, Reason: keyRDMAExtensions + "=Yes was not negotiated"}
	}
	return n.params(n.value), nil
}

// Proposed is what would be in force if the peer took all that we have offered: what an initiator makes
// room for before it knows the answers (InitiatorDatamover.Prepare).
func (n *Negotiation) Proposed() Params {
	return n.params(func(key string) uint32 {
		i := rowOf(key, &n.traits)
		if r, st := &keyTable[i], &n.keys[i]; st.offered && !st.decided && r.takes == nil {
			return r.ours(n)
		}
		return n.value(key)
	})
}

func (n *Negotiation) params(value func(key string) uint32) Params {
	p := Params{Discovery: n.discovery}
	for i := range keyTable {
		if r := &keyTable[i]; r.set != nil {
			r.set(&p, value(r.name))
		}
	}
	p.FirstBurstLength = min(p.FirstBurstLength, p.MaxBurstLength) // RFC 7143, 13.14
	p.MaxSendData, p.MaxRecvData = n.dataLengths(value)
	return p
}

// dataLengths are the bounds of data segments from us and to us.
func (n *Negotiation) dataLengths(value func(key string) uint32) (send, recv uint32) {
	switch {
	case n.traits.RDMA && !n.discovery:
		send, recv = value(keyTargetRecvDSL), value(keyInitiatorRecvDSL)
		if n.role == Target {
			send, recv = recv, send
		}
	default:
		send, recv = defaultDSL, defaultDSL
		if st := n.state(keyMaxRecvDSL); st.decided {
			send = st.number
		}
		if n.declared {
			recv = n.declaredRecvDSL()
		}
		if n.traits.RDMA {
			send = atMost(send, n.traits.MaxLoginData)
		}
	}
	if !n.discovery {
		send = atMost(send, n.traits.MaxSendData)
	}
	return send, recv
}

func (n *Negotiation) state(key string) *keyState { return &n.keys[rowOf(key, &n.traits)] }

// value is what is in force for a key.
func (n *Negotiation) value(key string) uint32 {
	i := rowOf(key, &n.traits)
	switch r, st := &keyTable[i], &n.keys[i]; {
	case st.decided:
		return st.number
	case st.offered && r.kind != kindList && r.kind != kindDeclare:
		return r.combine(r.def, r.ours(n))
	default:
		return r.def
	}
}

// digests is a preference list for this transport.
func (n *Negotiation) digests(list []string) []string {
	if n.traits.RDMA || len(list) == 0 {
		return digestNames[:1] // RFC 7145, 6.1
	}
	return list
}

// protocolLevel is our iSCSIProtocolLevel. An initiator has no use for what level 2 adds, and does not offer the
// key: peers answer it with anything from NotUnderstood on (ISER.md 2.3).
func (n *Negotiation) protocolLevel() uint32 {
	if n.role == Target {
		return MaxProtocolLevel
	}
	return 1
}

func (n *Negotiation) initialR2T() uint32 {
	switch {
	case n.config.InitialR2T != nil:
		return number(*n.config.InitialR2T)
	case n.role == Target:
		return number(n.traits.DefaultInitialR2T)
	}
	return number(n.traits.RDMA)
}

// declaredRecvDSL is our MaxRecvDataSegmentLength.
func (n *Negotiation) declaredRecvDSL() uint32 {
	v := n.traits.MaxRecvData
	if n.traits.RDMA {
		v = n.traits.MaxLoginData // a discovery session lives on login buffers
	}
	return uint32(min(max(v, minDSL), maxDSL))
}

// recvDSL is what we want of the iSER key that bounds data segments to receiver: what our transport can
// take if that is us, else no more than the default, which is all that peers have room for.
func (n *Negotiation) recvDSL(receiver Role) uint32 {
	if receiver == n.role {
		return uint32(min(max(n.traits.MaxRecvData, minDSL), maxDSL))
	}
	return defaultDSL
}

// atMost is v, cut to limit unless that is 0.
func atMost(v uint32, limit int) uint32 {
	if limit > 0 && uint64(v) > uint64(limit) {
		return uint32(limit)
	}
	return v
}

func refuse(format string, args ...any) *LoginError {
	return &LoginError{Status: LoginInitiatorError, Reason: fmt.Sprintf(format, args...)}
}
