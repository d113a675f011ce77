package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Errors that callers branch on.
var (
	// ErrUnavailable: this provider cannot work here (no device, no library, not built in). The error
	// that wraps it says what is missing and what to do.
	ErrUnavailable = errors.New("RDMA provider unavailable")
	// ErrQueueFull: a post did not fit; wait for completions.
	ErrQueueFull = errors.New("work queue full")
	// ErrRejected: the peer refused the connection. A *RejectedError says why.
	ErrRejected = errors.New("connection rejected")
)

// A RejectedError is a connection manager reject (IBTA, 12.9.7, table of reasons).
type RejectedError struct {
	Reason  int // 8: no listener, 10: stale connection, 28: consumer
	Private []byte
}

func (e *RejectedError) Error() string {
	why := "see IBTA, 12.6.7.2"
	switch e.Reason {
	case ReasonNoListener:
		why = "nobody listens there"
	case ReasonStale:
		why = "stale connection"
	case ReasonConsumer:
		why = "refused by the program that listens there"
	}
	return fmt.Sprintf("connection rejected, reason %d: %s", e.Reason, why)
}
func (e *RejectedError) Unwrap() error { return ErrRejected }

// A Provider makes connections of one kind.
type Provider interface {
	// Name is "verbs", "roce" or "fabric".
	Name() string
	// Listen takes connection requests for addr (port space TCP). Port 0 picks a free one.
	Listen(addr netip.AddrPort) (Listener, error)
	// Resolve finds the device and route to addr. The endpoint can then make its queue pair, post
	// receives and connect.
	Resolve(ctx context.Context, addr netip.AddrPort) (Endpoint, error)
}

// A Listener hands out connection requests.
type Listener interface {
	// Accept waits for a connection request. Errors that wrap net.ErrClosed end the listener.
	Accept(ctx context.Context) (Endpoint, error)
	Addr() netip.AddrPort
	Close() error
}

// ConnParam goes with a REQ or REP (rdma_conn_param). RNR retry count is always 7 (unlimited), retry
// count 7.
type ConnParam struct {
	PrivateData        []byte // at most 56 bytes in a REQ, 196 in a REP; may arrive zero-padded
	ResponderResources uint8  // RDMA Reads the sender of this message can serve at a time
	InitiatorDepth     uint8  // RDMA Reads it will have outstanding
}

// An Endpoint is one connection and its connection manager state (an rdma_cm_id): from Resolve on the
// active side, from Accept on the passive. The order is: CreateQP, post receives, Connect or Accept.
type Endpoint interface {
	Device() Device
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// Peer is what the other side's REQ or REP said; on the active side after Connect. Both fields are
	// from our point of view: InitiatorDepth is how many Reads we may have outstanding (what the peer
	// can serve), ResponderResources how many it may have towards us.
	Peer() ConnParam
	// CreateQP makes the queue pair; once.
	CreateQP(QPConfig) (QueuePair, error)
	// Connect sends the REQ and waits until the connection is established. Active side.
	Connect(ctx context.Context, p ConnParam) error
	// Accept sends the REP. It does not wait for the connection to be established: the first receive
	// completion is proof of that, and a peer that vanishes makes the receives complete with flush
	// errors. Passive side.
	Accept(p ConnParam) error
	// Reject refuses the request (reason 28). Passive side, instead of Accept; it closes the endpoint.
	Reject(private []byte) error
	// Disconnect asks the peer to end the connection and moves the queue pair to the error state: all
	// work requests complete, flushed if not done. A peer's disconnect does the same by itself. Any
	// goroutine may call it, more than once.
	Disconnect() error
	// Close disconnects if need be, destroys the queue pair and frees the endpoint. Work requests not
	// yet completed are gone and their memory is no longer used once Close returns. Completions not yet
	// polled may be gone too, or still come. Closing again does nothing. Posting after it gives an error
	// that wraps net.ErrClosed.
	Close() error
}

// QPConfig sizes a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ CompletionQueue // may be the same
	SendDepth      int             // work requests, signalled or not
	RecvDepth      int
	MaxSendSGE     int
	MaxRecvSGE     int
}

// Limits say what a device can do.
type Limits struct {
	MaxMessage   uint32 // longest message of one work request, bytes
	MaxSGE       int    // scatter/gather entries of a work request
	MaxReadSGE   int    // the same of an RDMA Read
	MaxQPDepth   int    // work requests of a queue
	MaxCQDepth   int
	MaxReadDepth uint8 // RDMA Reads outstanding of one queue pair, both directions
	// SendInvalidate: OpSendInv can be posted. Windows: NewWindow, OpBindWindow and OpLocalInv work, and
	// a peer's OpSendInv may name a window's key.
	SendInvalidate bool
	Windows        bool
	// WindowHazard: a peer that invalidates a dead key takes more than its connection down. Windows are for
	// trusted peers then.
	WindowHazard bool
	// ReadSinkNeedsRemoteWrite: iWARP; the local buffer of an RDMA Read must grant RemoteWrite.
	ReadSinkNeedsRemoteWrite bool
}

// Access is a set of rights to registered memory. Local read is always granted. RemoteWrite needs
// LocalWrite besides (Access.Check).
type Access uint8

// The rights (ibv_access_flags).
const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	WindowBind
)

// A Device is an RDMA device with one protection domain, opened once and shared.
type Device interface {
	// Name is the device's own, for example "rxe0".
	Name() string
	Limits() Limits
	// Register opens mem to the device. mem must not be on Go's heap unless the provider is in this
	// process, must stay mapped until Deregister, and may be registered several times.
	Register(mem []byte, access Access) (MemoryRegion, error)
	// NewWindow makes an unbound type 2 memory window; see Limits.Windows.
	NewWindow() (Window, error)
	// NewCQ makes a completion queue for at least depth completions.
	NewCQ(depth int) (CompletionQueue, error)
}

// A MemoryRegion is registered memory. A remote address of byte i is Addr()+i.
type MemoryRegion interface {
	LKey() uint32
	RKey() uint32
	Addr() uint64
	// Deregister ends all access, local and remote. Work requests that still use it fail. While a window
	// is bound to the region it does nothing but return an error: invalidate or close the window first.
	Deregister() error
}

// A Window is a key over part of a region that can be invalidated, locally or by the peer, and bound
// again (IBTA type 2 memory window). Each bind gives a new key: NextKey of the one before, so that who stages a
// bind can name its key in what is posted with it.
type Window interface {
	// RKey is the key of the last OpBindWindow posted; before the first, one that is never valid.
	RKey() uint32
	Close() error
}

// SGE is one piece of local memory.
type SGE struct {
	Addr   uint64 // as in MemoryRegion.Addr
	Length uint32
	LKey   uint32
}

// OpCode is the kind of a send-queue work request.
type OpCode uint8

// The work requests.
const (
	OpSend       OpCode = iota + 1
	OpSendInv           // Send with Invalidate of InvalidateKey at the peer
	OpWrite             // RDMA Write to RemoteAddr, RKey
	OpRead              // RDMA Read from RemoteAddr, RKey
	OpLocalInv          // invalidate the window key InvalidateKey here
	OpBindWindow        // bind Window to the local memory in SGL[0] with Access
)

// SendFlags modify a work request.
type SendFlags uint8

// The flags.
const (
	Signaled  SendFlags = 1 << iota // make a completion on success; errors always make one
	Solicited                       // set the solicited-event bit
	Fence                           // wait for earlier RDMA Reads of this queue pair
)

// A SendWR is a work request for the send queue.
type SendWR struct {
	ID            uint64
	Op            OpCode
	Flags         SendFlags
	SGL           []SGE
	RemoteAddr    uint64
	RKey          uint32
	InvalidateKey uint32
	Window        Window
	Region        MemoryRegion // of OpBindWindow
	Access        Access
}

// A RecvWR is a work request for the receive queue.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

// A QueuePair is a reliable-connected queue pair. Posts of one queue come from one goroutine at a time.
type QueuePair interface {
	// Num is the queue pair number.
	Num() uint32
	// PostSend posts a chain in order, with one doorbell, and returns how many were taken: fewer than
	// all only with an error (ErrQueueFull, or what is wrong with the next one). Requests taken will
	// complete. In the error state they complete with WRFlushErr.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv is the same for the receive queue.
	PostRecv(wrs []RecvWR) (int, error)
}

// Status is how a work request ended; values as in ibv_wc_status.
type Status uint8

// The statuses that occur.
const (
	Success        Status = 0
	LocLenErr      Status = 1
	LocQPOpErr     Status = 2
	LocProtErr     Status = 4
	WRFlushErr     Status = 5
	MWBindErr      Status = 6
	BadRespErr     Status = 7
	LocAccessErr   Status = 8
	RemInvReqErr   Status = 9
	RemAccessErr   Status = 10
	RemOpErr       Status = 11
	RetryExcErr    Status = 12
	RNRRetryExcErr Status = 13
	RemAbortErr    Status = 16
	FatalErr       Status = 19
	RespTimeoutErr Status = 20
	GeneralErr     Status = 21
)

// A Completion tells of one ended work request. After an error only ID, Status, QPNum and VendorErr
// are valid.
type Completion struct {
	ID             uint64
	Status         Status
	VendorErr      uint32
	QPNum          uint32
	Recv           bool   // of the receive queue
	ByteLen        uint32 // received, or read by an RDMA Read
	Invalidated    bool   // receive: the peer invalidated InvalidatedKey
	InvalidatedKey uint32
}

// A CompletionQueue collects completions. Poll and Wait belong to one goroutine.
type CompletionQueue interface {
	// Poll takes up to len(cs) completions without waiting.
	Poll(cs []Completion) (int, error)
	// Wait blocks until a completion may be there, Wake was called, or deadline (zero: none) has
	// passed. It arms the queue itself and misses nothing: a completion that came before Wait ends it
	// at once. It may return early for no reason. Poll comes after it.
	Wait(deadline time.Time) error
	// Wake ends the present or next Wait. Any goroutine may call it.
	Wake()
	// Close frees the queue; its queue pairs must be gone.
	Close() error
}
