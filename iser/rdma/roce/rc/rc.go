package rc

import (
	"time"

	"github.com/goiser/goiser/iser/rdma"
	"github.com/goiser/goiser/iser/rdma/roce/wire"
)

// A Sink takes what a queue pair produces. Its methods are called within a step, on the same goroutine.
type Sink interface {
	// Packet gives room for the next packet to the queue pair's peer, laid out by wire.New with n payload bytes;
	// the queue pair fills it before its next call. Packets leave in this order, sealed by the link. It returns nil
	// when the round's room is spent: the queue pair then goes on at its next Transmit.
	Packet(q *QP, op wire.Opcode, n int) wire.Packet
	// Complete hands over a completion, of the send queue or (c.Recv) of the receive queue, in queue order.
	Complete(q *QP, c rdma.Completion)
}

// Config sets up a queue pair that is ready to send (RTS). Numbers are those of the connection manager's exchange.
type Config struct {
	QPN, PeerQPN wire.QPN
	MTU          int      // path MTU: largest payload of a packet, bytes
	SendPSN      wire.PSN // first to be sent: what the peer's REQ or REP says it expects
	RecvPSN      wire.PSN // first expected: what ours says
	ReadsOut     int      // RDMA Reads we may have outstanding
	ReadsIn      int      // RDMA Reads of the peer that we serve at a time
	RetryCount   int      // timeouts before RetryExcErr
	RNRRetry     int      // receiver-not-ready answers before RNRRetryExcErr; 7: no limit
	AckTimeout   time.Duration
	Window       int // packets in flight at most
	ReadWindow   int // bytes of RDMA Read responses asked for at a time, at most: what our receive buffer holds
	SendDepth    int // work requests
	RecvDepth    int
	MaxSGE       int
	Memory       *Memory
}

// Counters are a queue pair's; they only grow.
type Counters struct {
	Sent, Received               uint64 // packets
	Retransmits, Timeouts        uint64
	Duplicates, OutOfOrder       uint64
	NaksSent, NaksReceived       uint64
	RNRNaksSent, RNRNaksReceived uint64
	Dropped                      uint64 // packets that no rule lets in
}

// A QP is a queue pair in RTS or in error.
type QP struct{}

// New makes a queue pair in RTS.
func New(c Config) *QP { panic("not written") }

// PostSend takes work requests, in order, and returns how many: fewer than all with rdma.ErrQueueFull or what is
// wrong with the next. Nothing is transmitted before Transmit. In the error state they complete, flushed.
func (q *QP) PostSend(wrs []rdma.SendWR, s Sink) (int, error) { panic("not written") }

// PostRecv does the same for the receive queue.
func (q *QP) PostRecv(wrs []rdma.RecvWR, s Sink) (int, error) { panic("not written") }

// Receive takes one packet from the peer, ICRC checked.
func (q *QP) Receive(now time.Time, p wire.Packet, s Sink) { panic("not written") }

// Transmit ends a round: it sends what the window, the peer and the sink's room allow, acknowledges what was received
// in one ACK, and acts on deadlines that have passed.
func (q *QP) Transmit(now time.Time, s Sink) { panic("not written") }

// Deadline is when Transmit must be called next, zero for never. More reports that the sink's room ran out and there
// is more to send at once.
func (q *QP) Deadline() time.Time { panic("not written") }
func (q *QP) More() bool          { panic("not written") }

// Fail moves the queue pair to the error state: everything outstanding completes, the oldest send with status (or
// flushed, if status is WRFlushErr), the rest flushed, in order.
func (q *QP) Fail(status rdma.Status, s Sink) { panic("not written") }

// Failed reports the error state.
func (q *QP) Failed() bool { panic("not written") }

// Num is the queue pair number. Counters are its counters so far.
func (q *QP) Num() wire.QPN      { panic("not written") }
func (q *QP) Counters() Counters { panic("not written") }

// Memory is the registered memory of a device: regions and windows by key (IBTA 10.6). Keys are random and change
// with every registration and bind; 0 is never one. Its methods may be called from any goroutine; the data of a
// region may be touched by queue pairs until Deregister has returned, and not after.
type Memory struct{}

// NewMemory makes an empty table; keys are drawn from seed.
func NewMemory(seed uint64) *Memory { panic("not written") }

// Register opens mem. It implements rdma.Device.Register.
func (m *Memory) Register(mem []byte, access rdma.Access) (rdma.MemoryRegion, error) {
	panic("not written")
}

// NewWindow makes an unbound type 2 window.
func (m *Memory) NewWindow() (rdma.Window, error) { panic("not written") }
