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
	// MaxSendData and MaxRecvData bound a PDU's data segment from us and to us. Over TCP they come from
	// MaxRecvDataSegmentLength, over iSER from the two iSER keys.
	MaxSendData uint32
	MaxRecvData uint32
	// Discovery: this is a discovery session.
	Discovery bool
}

// A KeyValue is one key=value pair of a text segment.
type KeyValue struct{ Key, Value string }

// Config is what one end wants of a negotiation: the values it offers or accepts at most.
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

// DefaultConfig is a Config that suits both ends: no digests, immediate data, MaxBurstLength 1 MiB,
// FirstBurstLength 64 KiB, one connection, one R2T.
func DefaultConfig() Config { panic("iscsi: not written yet") }

// A Negotiation is one end's side of a login's operational negotiation, or of later text negotiation.
type Negotiation struct{}

// NewNegotiation starts one. The session type is only known to a target once SessionType has been
// received: it may be set until then by SetDiscovery.
func NewNegotiation(role Role, tr Traits, c Config, discovery bool) *Negotiation {
	panic("not written")
}

// SetDiscovery tells the session's type.
func (n *Negotiation) SetDiscovery(discovery bool) { panic("not written") }

// Offers is what an initiator offers in its first operational request: every key, in a fixed order.
func (n *Negotiation) Offers() []KeyValue { panic("not written") }

// Receive takes the peer's operational keys of one text exchange and returns the answers to be sent,
// each offered key answered exactly once. Keys that belong to the login itself (InitiatorName,
// TargetName, AuthMethod and the like) are the caller's; see IsLoginKey. An error is a *LoginError.
func (n *Negotiation) Receive(kvs []KeyValue) (answers []KeyValue, err error) { panic("not written") }

// Result is what is in force now.
func (n *Negotiation) Result() (Params, error) { panic("not written") }

// IsLoginKey reports whether key is declared in login but not negotiated (InitiatorName, InitiatorAlias,
// TargetName, TargetAlias, TargetAddress, TargetPortalGroupTag, SessionType, AuthMethod, CHAP_*).
func IsLoginKey(key string) bool { panic("not written") }

// ParseText splits a text segment into pairs, in order. Bounds: MaxTextPairs pairs, key names of at most
// 63 bytes, values of at most 8192. An error is a *WireError.
func ParseText(b []byte) ([]KeyValue, error) { panic("not written") }

// AppendText appends pairs in wire form.
func AppendText(b []byte, kvs ...KeyValue) []byte { panic("not written") }
