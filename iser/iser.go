package iser

import "github.com/goiser/goiser/iser/rdma"

// TargetConfig sets up a listener.
type TargetConfig struct {
	// Window is the largest command window the engine will open, 1 to 128; it sizes queues. 0: 128.
	Window int
	// ReadDepth bounds RDMA Reads in flight of a connection; 0 means 16.
	ReadDepth int
	// NoInvalidate says "no" to Send with Invalidate in the CM private data.
	NoInvalidate bool
	// Trace, if set, is told of every step of the data path, on the goroutine of the connection's loop.
	Trace func(TraceEvent)

	sendDepth int // of the send queue, for tests; 0: from Window
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
	// NoInvalidate keeps one permanent key for all read data and one for all write data, as is done on devices
	// without memory windows, and says "no" to Send with Invalidate in the CM private data. Memory of a command
	// that was aborted is then lost until the connection's end: the peer can still reach it.
	NoInvalidate bool
	// Trace is as in TargetConfig.
	Trace func(TraceEvent)
}

// A Dialer opens iSER connections; it is an initiator.Transport.
type Dialer struct {
	Provider rdma.Provider
	Config   InitiatorConfig
}
