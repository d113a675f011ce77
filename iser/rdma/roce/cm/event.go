package cm

import "net/netip"

// An Event is what Step takes.
type Event interface{ event() }

// Packet: a management datagram has come to queue pair 1, its ICRC and Q_Key checked. MAD is not kept.
type Packet struct {
	From netip.Addr
	MAD  []byte
}

// Connect asks for a connection. Of Conn, the caller sets Peer, User and, in REQ, the port in ServiceID, QPN, PSN,
// ResponderResources, InitiatorDepth, MTU, AckTimeout, SrcPort and Private; the rest is the manager's.
type Connect struct{ Conn *Conn }

// Accept grants a request. Of REP, the caller sets QPN, PSN, ResponderResources, InitiatorDepth and Private. A request
// that has ended stays so.
type Accept struct {
	Conn *Conn
	REP  REP
}

// Reject refuses a request.
type Reject struct {
	Conn    *Conn
	Reason  Reason
	Private []byte // at most REJPrivate bytes
}

// Confirm: the queue pair of a connection that was granted has received a packet of its peer, which so has had the REP.
type Confirm struct{ Conn *Conn }

// Disconnect ends a connection, or gives up making it. The caller's queue pair has stopped sending.
type Disconnect struct{ Conn *Conn }

// Listen and Unlisten open and close a TCP port. Requests that NewRequest has told of stay until answered.
type Listen struct{ Port uint16 }

// Unlisten closes a port.
type Unlisten struct{ Port uint16 }

// Tick: Deadline has passed.
type Tick struct{}

func (Packet) event()     {}
func (Connect) event()    {}
func (Accept) event()     {}
func (Reject) event()     {}
func (Confirm) event()    {}
func (Disconnect) event() {}
func (Listen) event()     {}
func (Unlisten) event()   {}
func (Tick) event()       {}

// Kind is what an Action is.
type Kind uint8

// The actions.
const (
	// SendMAD: send MAD to queue pair 1 of To.
	SendMAD Kind = iota + 1
	// NewRequest: Conn asks for a connection to a port that listens. Accept, Reject or Disconnect answers.
	NewRequest
	// Connected: the peer granted Conn, REP says how. The queue pair must be ready to receive before what follows.
	Connected
	// Confirmed: the peer has had the REP.
	Confirmed
	// Refused: the peer refused Conn: Reason, Private.
	Refused
	// Unreachable: nobody answered.
	Unreachable
	// Disconnected: the peer has ended Conn, or is gone. The queue pair goes to the error state.
	Disconnected
	// Freed: Conn is forgotten, and the numbers of its queue pair may be used again.
	Freed
)

// An Action is what the caller of Step does next.
type Action struct {
	Kind    Kind
	Conn    *Conn
	To      netip.Addr
	MAD     *[MADSize]byte
	Reason  Reason
	Private []byte
}
