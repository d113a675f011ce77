package iscsi

import (
	"slices"
	"strings"
)

// A keyKind says how a key's value is found (RFC 7143, 6.2).
type keyKind uint8

const (
	kindAnd         keyKind = iota // Boolean: Yes if both say Yes
	kindOr                         // Boolean: Yes if one says Yes
	kindMin                        // number: the smaller one
	kindMax                        // number: the larger one
	kindList                       // the first of the offered values that the other end takes
	kindDeclare                    // number, declared by each end for itself, not answered
	kindDeclareBool                // Boolean, declared and not answered
	kindRefused                    // obsolete: always answered Reject
)

// keyUse says where a key has a place.
type keyUse uint8

const (
	offerNormal    keyUse = 1 << iota // the initiator offers it in normal sessions
	offerDiscovery                    // and in discovery sessions
	onlyRDMA                          // known on RDMA transports only
	onlyLeading                       // negotiated by a session's first connection for all
)

// A keyRow is what there is to know about an operational key. Booleans are the numbers 0 and 1, list
// values indexes of names.
type keyRow struct {
	name     string
	kind     keyKind
	use      keyUse
	min, max uint32
	def      uint32                        // in force if the key is never negotiated
	want     func(n *Negotiation) uint32   // our end's value; nil: def
	names    []string                      // list values
	takes    func(n *Negotiation) []string // list values that we take, the best first
	set      func(p *Params, v uint32)
}

const (
	maxDSL         = 1<<24 - 1 // bounds of data segment and burst lengths (RFC 7143, 13.12 to 13.14)
	minDSL         = 512
	defaultDSL     = 8192
	maxTimeSeconds = 3600
	maxCount       = 65535
)

// The keys that the code names.
const (
	keyMaxRecvDSL       = "MaxRecvDataSegmentLength"
	keyFirstBurst       = "FirstBurstLength"
	keyMaxBurst         = "MaxBurstLength"
	keyRDMAExtensions   = "RDMAExtensions"
	keyInitiatorRecvDSL = "InitiatorRecvDataSegmentLength"
	keyTargetRecvDSL    = "TargetRecvDataSegmentLength"
	keyHelloRequired    = "iSERHelloRequired"
)

// keyCount is the number of rows of keyTable.
const keyCount = 27

// keyTable lists the operational keys of RFC 7143, 13 and RFC 7145, 6, in the order in which an initiator
// offers them.
var keyTable = [keyCount]keyRow{
	{
		name: "HeaderDigest", kind: kindList, use: offerNormal | offerDiscovery, names: digestNames,
		takes: func(n *Negotiation) []string { return n.digests(n.config.HeaderDigest) },
		set:   func(p *Params, v uint32) { p.HeaderDigest = v != 0 },
	},
	{
		name: "DataDigest", kind: kindList, use: offerNormal | offerDiscovery, names: digestNames,
		takes: func(n *Negotiation) []string { return n.digests(n.config.DataDigest) },
		set:   func(p *Params, v uint32) { p.DataDigest = v != 0 },
	},
	{
		name: keyMaxRecvDSL, kind: kindDeclare, use: offerNormal | offerDiscovery, min: minDSL, max: maxDSL, def: defaultDSL,
		want: func(n *Negotiation) uint32 { return n.declaredRecvDSL() },
	},
	{
		name: "InitialR2T", kind: kindOr, use: offerNormal | onlyLeading, max: 1, def: 1,
		want: func(n *Negotiation) uint32 { return n.initialR2T() },
		set:  func(p *Params, v uint32) { p.InitialR2T = v != 0 },
	},
	{
		name: "ImmediateData", kind: kindAnd, use: offerNormal | onlyLeading, max: 1, def: 1,
		want: func(n *Negotiation) uint32 { return number(n.config.ImmediateData) },
		set:  func(p *Params, v uint32) { p.ImmediateData = v != 0 },
	},
	{
		name: keyMaxBurst, kind: kindMin, use: offerNormal | onlyLeading, min: minDSL, max: maxDSL, def: 262144,
		want: func(n *Negotiation) uint32 { return orDefault(n.config.MaxBurstLength, defaultMaxBurst) },
		set:  func(p *Params, v uint32) { p.MaxBurstLength = v },
	},
	{
		name: keyFirstBurst, kind: kindMin, use: offerNormal | onlyLeading, min: minDSL, max: maxDSL, def: 65536,
		want: func(n *Negotiation) uint32 {
			return min(orDefault(n.config.FirstBurstLength, defaultFirstBurst), orDefault(n.config.MaxBurstLength, defaultMaxBurst))
		},
		set: func(p *Params, v uint32) { p.FirstBurstLength = v },
	},
	{
		name: "MaxOutstandingR2T", kind: kindMin, use: offerNormal | onlyLeading, min: 1, max: maxCount, def: 1,
		want: func(n *Negotiation) uint32 { return n.config.MaxOutstandingR2T },
		set:  func(p *Params, v uint32) { p.MaxOutstandingR2T = v },
	},
	{
		name: "MaxConnections", kind: kindMin, use: offerNormal | onlyLeading, min: 1, max: maxCount, def: 1,
		want: func(n *Negotiation) uint32 { return n.config.MaxConnections },
		set:  func(p *Params, v uint32) { p.MaxConnections = v },
	},
	{
		name: "DataPDUInOrder", kind: kindOr, use: offerNormal | onlyLeading, max: 1, def: 1,
		set: func(p *Params, v uint32) { p.DataPDUInOrder = v != 0 },
	},
	{
		name: "DataSequenceInOrder", kind: kindOr, use: offerNormal | onlyLeading, max: 1, def: 1,
		set: func(p *Params, v uint32) { p.DataSequenceInOrder = v != 0 },
	},
	{
		name: "DefaultTime2Wait", kind: kindMax, use: offerNormal | offerDiscovery | onlyLeading, max: maxTimeSeconds, def: 2,
		want: func(n *Negotiation) uint32 { return n.config.DefaultTime2Wait },
		set:  func(p *Params, v uint32) { p.DefaultTime2Wait = v },
	},
	{
		name: "DefaultTime2Retain", kind: kindMin, use: offerNormal | offerDiscovery | onlyLeading, max: maxTimeSeconds, def: 20,
		want: func(n *Negotiation) uint32 { return n.config.DefaultTime2Retain },
		set:  func(p *Params, v uint32) { p.DefaultTime2Retain = v },
	},
	// Recovery levels 1 and 2 are not implemented: no peer over RDMA offers them (ISER.md 3.9).
	{
		name: "ErrorRecoveryLevel", kind: kindMin, use: offerNormal | offerDiscovery | onlyLeading, max: 2, def: 0,
		set: func(p *Params, v uint32) { p.ErrorRecoveryLevel = v },
	},

	// RFC 7145, 6.3 to 6.5. Without RDMA, RDMAExtensions is answered No rather than NotUnderstood.
	{
		name: keyRDMAExtensions, kind: kindAnd, use: offerNormal, max: 1, def: 0,
		want: func(n *Negotiation) uint32 { return number(n.traits.RDMA) },
		set:  func(p *Params, v uint32) { p.RDMAExtensions = v != 0 },
	},
	{
		name: keyInitiatorRecvDSL, kind: kindMin, use: offerNormal | onlyRDMA, min: minDSL, max: maxDSL, def: defaultDSL,
		want: func(n *Negotiation) uint32 { return n.recvDSL(Initiator) },
	},
	{
		name: keyTargetRecvDSL, kind: kindMin, use: offerNormal | onlyRDMA, min: minDSL, max: maxDSL, def: defaultDSL,
		want: func(n *Negotiation) uint32 { return n.recvDSL(Target) },
	},

	// RFC 7145, 6.6 to 6.9: declared, never answered, never sent by us. open-iscsi fails a login in
	// whose answer one of them stands.
	{name: "MaxOutstandingUnexpectedPDUs", kind: kindDeclare, use: onlyRDMA, max: 1<<32 - 1},
	{name: "MaxAHSLength", kind: kindDeclare, use: onlyRDMA, max: 1<<32 - 1},
	{name: "TaggedBufferForSolicitedDataOnly", kind: kindDeclareBool, use: onlyRDMA, max: 1},
	{name: keyHelloRequired, kind: kindDeclareBool, use: onlyRDMA, max: 1},

	// RFC 7143, 13.23 and 13.24: answered, not offered.
	{
		name: "TaskReporting", kind: kindList, use: onlyLeading, names: []string{"RFC3720", "ResponseFence", "FastAbort"},
		takes: func(*Negotiation) []string { return []string{"RFC3720"} },
	},
	{
		name: "iSCSIProtocolLevel", kind: kindMin, use: onlyLeading, max: 31, def: 1,
		want: func(n *Negotiation) uint32 { return n.protocolLevel() },
		set:  func(p *Params, v uint32) { p.ProtocolLevel = v },
	},

	// Obsolete keys that peers still offer (RFC 7143, 13.25): markers are No, their intervals Reject.
	{name: "IFMarker", kind: kindAnd, max: 1},
	{name: "OFMarker", kind: kindAnd, max: 1},
	{name: "IFMarkInt", kind: kindRefused},
	{name: "OFMarkInt", kind: kindRefused},
}

var digestNames = []string{valueNone, valueCRC32C}

// IsLoginKey reports whether key is declared in login but not negotiated (InitiatorName, InitiatorAlias,
// TargetName, TargetAlias, TargetAddress, TargetPortalGroupTag, SessionType, AuthMethod, CHAP_*).
func IsLoginKey(key string) bool {
	switch key {
	case "InitiatorName", "InitiatorAlias", "TargetName", "TargetAlias", "TargetAddress",
		"TargetPortalGroupTag", "SessionType", "AuthMethod":
		return true
	}
	return strings.HasPrefix(key, "CHAP_")
}

// known reports whether the row means anything on this transport.
func (r *keyRow) known(tr *Traits) bool { return r.use&onlyRDMA == 0 || tr.RDMA }

// offeredBy reports whether n's initiator offers the key.
func (r *keyRow) offeredBy(n *Negotiation) bool {
	bit := offerNormal
	if n.discovery {
		bit = offerDiscovery
	}
	switch {
	case r.use&bit == 0 || !r.known(&n.traits):
		return false
	case r.name == keyRDMAExtensions:
		return n.traits.RDMA
	case r.name == keyMaxRecvDSL:
		return !n.traits.RDMA || n.discovery // the iSER keys take its place (RFC 7145, 6.4 and 6.5)
	}
	return true
}

// ours is our end's value, within the key's range.
func (r *keyRow) ours(n *Negotiation) uint32 {
	if r.want == nil {
		return r.def
	}
	return min(max(r.want(n), r.min), r.max)
}

// parse reads a value; what is malformed or out of range is not ok.
func (r *keyRow) parse(s string) (v uint32, ok bool) {
	switch r.kind {
	case kindAnd, kindOr, kindDeclareBool:
		return parseBool(s)
	case kindMin, kindMax, kindDeclare:
		v, ok = parseNumber(s)
		return v, ok && v >= r.min && v <= r.max
	}
	return 0, false
}

func (r *keyRow) format(v uint32) string {
	switch r.kind {
	case kindAnd, kindOr, kindDeclareBool:
		return formatBool(v)
	case kindList:
		return r.names[v]
	}
	return formatNumber(v)
}

// combine is the key's result function.
func (r *keyRow) combine(a, b uint32) uint32 {
	switch r.kind {
	case kindAnd, kindMin:
		return min(a, b)
	case kindOr, kindMax:
		return max(a, b)
	}
	return b
}

// choose is the first value of an offered list that we take (RFC 7143, 6.2.1).
func (r *keyRow) choose(n *Negotiation, offer string) (v uint32, ok bool) {
	takes := r.takes(n)
	for name := range strings.SplitSeq(offer, ",") {
		if slices.Contains(takes, name) {
			return r.index(name)
		}
	}
	return 0, false
}

func (r *keyRow) index(name string) (v uint32, ok bool) {
	i := slices.Index(r.names, name)
	return uint32(max(i, 0)), i >= 0
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func orDefault(v, def uint32) uint32 {
	if v == 0 {
		return def
	}
	return v
}
