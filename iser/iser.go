package iser

import (
	"context"
	"net/netip"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser/rdma"
)

// TargetConfig sets up a listener.
type TargetConfig struct {
	// Window is the largest command window the engine will open, MaxSend the largest data segment of a
	// discovery answer; they size queues. 0: 128, 8192.
	Window int
	// ReadDepth bounds RDMA Reads in flight of a connection; 0 means 16.
	ReadDepth int
	// NoInvalidate says "no" to Send with Invalidate in the CM private data.
	NoInvalidate bool
	// Trace, if set, is told of every step of the data path, on the loop's goroutine.
	Trace func(TraceEvent)
}

// Listen takes iSER connections on addr.
func Listen(p rdma.Provider, addr netip.AddrPort, c TargetConfig) (iscsi.Listener, error) {
	panic("not written")
}

// InitiatorConfig sets up a Dialer.
type InitiatorConfig struct {
	// QueueDepth bounds commands outstanding; PoolBytes the registered bounce memory of a connection.
	// 0: 128, 32 MiB.
	QueueDepth int
	PoolBytes  int
	// MaxImmediate is the longest write, in bytes, that goes inline as a whole; 0 means 4096.
	// PartialImmediate sends immediate data with longer writes too, as far as negotiated.
	MaxImmediate     int
	PartialImmediate bool
	Trace            func(TraceEvent)
}

// A Dialer opens iSER connections; it is an initiator.Transport.
type Dialer struct {
	Provider rdma.Provider
	Config   InitiatorConfig
}

// Name is "iser".
func (d *Dialer) Name() string { return "iser" }

// Dial connects to host:port, ready for login.
func (d *Dialer) Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error) {
	panic("not written")
}

// TraceStep is a step of the data path.
type TraceStep string

// The steps.
const (
	TraceCommandSent      TraceStep = "command sent"
	TraceCommandReceived  TraceStep = "command received"
	TraceReadPosted       TraceStep = "RDMA Read posted"
	TraceReadDone         TraceStep = "RDMA Read completed"
	TraceWritePosted      TraceStep = "RDMA Write posted"
	TraceResponsePosted   TraceStep = "response posted"
	TraceResponseReceived TraceStep = "response received"
	TraceSendDone         TraceStep = "Send completed"
)

// A TraceEvent is one step with its numbers.
type TraceEvent struct {
	Step   TraceStep
	ITT    uint32
	Key    uint32 // STag
	Addr   uint64
	Length uint32 // bytes
	Word   uint32 // first word of the data, big-endian
}
