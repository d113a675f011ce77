package iser

import "encoding/binary"

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
	TraceKeyInvalidated   TraceStep = "STag invalidated" // by us; else the response's event names the STag
)

// A TraceEvent is one step with its numbers. Those that a step does not have are zero.
type TraceEvent struct {
	Step   TraceStep
	ITT    uint32
	Key    uint32 // STag
	Addr   uint64
	Length uint32 // bytes
	Word   uint32 // first word of the data, big-endian
}

// firstWord is the first word of the data at cur, big-endian; 0 if there are fewer than four bytes in
// that buffer.
func firstWord(bufs [][]byte, cur cursor) uint32 {
	for cur.buf < len(bufs) && cur.off >= len(bufs[cur.buf]) {
		cur = cursor{buf: cur.buf + 1}
	}
	if cur.buf >= len(bufs) || len(bufs[cur.buf])-cur.off < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(bufs[cur.buf][cur.off:])
}
