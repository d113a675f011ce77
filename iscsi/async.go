package iscsi

import "encoding/binary"

// AsyncEvent is the reason of an Async (RFC 7143, 11.9.1).
type AsyncEvent uint8

// The asynchronous events.
const (
	AsyncSCSI        AsyncEvent = 0
	AsyncLogoutReq   AsyncEvent = 1
	AsyncConnDrop    AsyncEvent = 2
	AsyncSessionDrop AsyncEvent = 3
	AsyncNegotiation AsyncEvent = 4
	AsyncTasksEnded  AsyncEvent = 5
	AsyncVendor      AsyncEvent = 255
)

// An Async tells the initiator of an event (RFC 7143, 11.9).
type Async struct {
	DataLength uint32
	LUN        LUN
	StatSN     StatSN
	ExpCmdSN   CmdSN
	MaxCmdSN   CmdSN
	Event      AsyncEvent
	VCode      uint8
	Parameter1 uint16
	Parameter2 uint16
	Parameter3 uint16
}

// Put writes the header.
func (p *Async) Put(bhs *[BHSSize]byte) {
	start(bhs, OpAsync, false, flagFinal)
	SetDataLength(bhs, p.DataLength)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, ReservedTag)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	bhs[36] = byte(p.Event)
	bhs[37] = p.VCode
	put16(bhs, 38, p.Parameter1)
	put16(bhs, 40, p.Parameter2)
	put16(bhs, 42, p.Parameter3)
}

// Parse reads the header.
func (p *Async) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpAsync, "Async Message"); err != nil {
		return err
	}
	*p = Async{
		DataLength: DataLengthOf(bhs),
		LUN:        LUN(binary.BigEndian.Uint64(bhs[8:])),
		StatSN:     StatSN(get32(bhs, 24)),
		ExpCmdSN:   CmdSN(get32(bhs, 28)),
		MaxCmdSN:   CmdSN(get32(bhs, 32)),
		Event:      AsyncEvent(bhs[36]),
		VCode:      bhs[37],
		Parameter1: get16(bhs, 38),
		Parameter2: get16(bhs, 40),
		Parameter3: get16(bhs, 42),
	}
	return nil
}
