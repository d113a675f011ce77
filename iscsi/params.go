package iscsi

// Role is an end of a session.
type Role uint8

// The roles.
const (
	Initiator Role = iota
	Target
)

// Params are the operational values in force after a login (RFC 7143, 13 and RFC 7145, 6). Lengths
// are in bytes, times in seconds.
type Params struct {
	HeaderDigest, DataDigest bool // CRC32C
	InitialR2T               bool
	ImmediateData            bool
	MaxBurstLength           uint32
	FirstBurstLength         uint32
	MaxOutstandingR2T        uint32
	MaxConnections           uint32
	ErrorRecoveryLevel       uint32
	DefaultTime2Wait         uint32
	DefaultTime2Retain       uint32
	DataPDUInOrder           bool
	DataSequenceInOrder      bool
	RDMAExtensions           bool
	// ProtocolLevel is iSCSIProtocolLevel: 1 is RFC 7143, MaxProtocolLevel has what RFC 7144 adds to it.
	ProtocolLevel uint32
	// MaxSendData and MaxRecvData bound a PDU's data segment from us and to us. Over TCP they come from
	// MaxRecvDataSegmentLength, over iSER from the two iSER keys.
	MaxSendData uint32
	MaxRecvData uint32
	// Discovery: this is a discovery session.
	Discovery bool
}

// MaxProtocolLevel is the highest iSCSIProtocolLevel there is, and the highest that a target agrees to (RFC 7144).
const MaxProtocolLevel = 2

// WithConnection is p, the values of a session, with those that each connection has for itself taken from c
// (RFC 7143, 13: digests and MaxRecvDataSegmentLength; RFC 7145, 6: the two iSER length keys).
func (p Params) WithConnection(c *Params) Params {
	p.HeaderDigest, p.DataDigest = c.HeaderDigest, c.DataDigest
	p.MaxSendData, p.MaxRecvData = c.MaxSendData, c.MaxRecvData
	return p
}

// Unsolicited is the initiator's plan for a write of edtl bytes: how many of them go with the command, and
// how many in all, immediate ones included, go before the target has asked (RFC 7143, 13.10, 13.11 and
// 13.14).
func (p *Params) Unsolicited(edtl uint32) (immediate, total uint32) {
	if p.ImmediateData {
		immediate = min(p.FirstBurstLength, edtl, p.MaxSendData)
	}
	if p.InitialR2T {
		return immediate, immediate
	}
	return immediate, min(p.FirstBurstLength, edtl)
}

// Announced is the target's view of the same: how many bytes of a write come unsolicited, given the
// command's expected length, its immediate data, and its F bit. With F the immediate data is all.
func (p *Params) Announced(edtl, immediate uint32, final bool) uint32 {
	if final {
		return immediate
	}
	return max(immediate, min(p.FirstBurstLength, edtl))
}

// Config is what one end wants of a negotiation: the values it offers or accepts at most. A number below
// a key's range means its smallest value, except that a burst length of 0 means the default.
type Config struct {
	// HeaderDigest and DataDigest are preference lists of "None" and "CRC32C"; empty means None only.
	HeaderDigest, DataDigest []string
	// InitialR2T: nil takes the transport's default (Traits.DefaultInitialR2T) at the target, true at
	// the initiator over iSER and false over TCP.
	InitialR2T         *bool
	ImmediateData      bool
	MaxBurstLength     uint32
	FirstBurstLength   uint32
	MaxOutstandingR2T  uint32
	MaxConnections     uint32
	DefaultTime2Wait   uint32
	DefaultTime2Retain uint32
}

const (
	defaultMaxBurst   = 1 << 20
	defaultFirstBurst = 64 << 10
)

// DefaultConfig is a Config that suits both ends: no digests, immediate data, MaxBurstLength 1 MiB,
// FirstBurstLength 64 KiB, one connection, one R2T.
func DefaultConfig() Config {
	return Config{
		ImmediateData:     true,
		MaxBurstLength:    defaultMaxBurst,
		FirstBurstLength:  defaultFirstBurst,
		MaxOutstandingR2T: 1,
		MaxConnections:    1,
		DefaultTime2Wait:  2, // RFC 7143, 13.15
		// Without recovery (ErrorRecoveryLevel 0) nothing is retained.
		DefaultTime2Retain: 0,
	}
}
