package iscsi

import (
	"encoding/binary"
	"fmt"
)

// TMFunction is a task management function (RFC 7143, 11.5.1; from TMQueryTask on RFC 7144).
type TMFunction uint8

// The task management functions.
const (
	TMAbortTask        TMFunction = 1
	TMAbortTaskSet     TMFunction = 2
	TMClearACA         TMFunction = 3
	TMClearTaskSet     TMFunction = 4
	TMLogicalUnitReset TMFunction = 5
	TMTargetWarmReset  TMFunction = 6
	TMTargetColdReset  TMFunction = 7
	TMTaskReassign     TMFunction = 8
	// Those below need MaxProtocolLevel.
	TMQueryTask       TMFunction = 9
	TMQueryTaskSet    TMFunction = 10
	TMNexusReset      TMFunction = 11
	TMQueryAsyncEvent TMFunction = 12
)

// Asks reports whether the function only asks, and changes nothing.
func (f TMFunction) Asks() bool {
	return f == TMQueryTask || f == TMQueryTaskSet || f == TMQueryAsyncEvent
}

// String says a function in words.
func (f TMFunction) String() string {
	switch f {
	case TMAbortTask:
		return "abort task"
	case TMAbortTaskSet:
		return "abort task set"
	case TMClearACA:
		return "clear ACA"
	case TMClearTaskSet:
		return "clear task set"
	case TMLogicalUnitReset:
		return "logical unit reset"
	case TMTargetWarmReset:
		return "target warm reset"
	case TMTargetColdReset:
		return "target cold reset"
	case TMTaskReassign:
		return "task reassign"
	case TMQueryTask:
		return "query task"
	case TMQueryTaskSet:
		return "query task set"
	case TMNexusReset:
		return "I_T nexus reset"
	case TMQueryAsyncEvent:
		return "query asynchronous event"
	}
	return fmt.Sprintf("function %d", uint8(f))
}

// A TMFRequest asks for a task management function (RFC 7143, 11.5).
type TMFRequest struct {
	Immediate bool
	Function  TMFunction
	LUN       LUN
	ITT       uint32
	RefITT    uint32
	CmdSN     CmdSN
	ExpStatSN StatSN
	RefCmdSN  CmdSN
	ExpDataSN uint32
}

// Put writes the header.
func (p *TMFRequest) Put(bhs *[BHSSize]byte) {
	start(bhs, OpTMFRequest, p.Immediate, flagFinal|byte(p.Function)&0x7f)
	binary.BigEndian.PutUint64(bhs[8:], uint64(p.LUN))
	put32(bhs, 16, p.ITT)
	put32(bhs, 20, p.RefITT)
	put32(bhs, 24, uint32(p.CmdSN))
	put32(bhs, 28, uint32(p.ExpStatSN))
	put32(bhs, 32, uint32(p.RefCmdSN))
	put32(bhs, 36, p.ExpDataSN)
}

// Parse reads the header.
func (p *TMFRequest) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpTMFRequest, "Task Management Function Request"); err != nil {
		return err
	}
	*p = TMFRequest{
		Immediate: IsImmediate(bhs),
		Function:  TMFunction(bhs[1] & 0x7f),
		LUN:       LUN(binary.BigEndian.Uint64(bhs[8:])),
		ITT:       get32(bhs, 16),
		RefITT:    get32(bhs, 20),
		CmdSN:     CmdSN(get32(bhs, 24)),
		ExpStatSN: StatSN(get32(bhs, 28)),
		RefCmdSN:  CmdSN(get32(bhs, 32)),
		ExpDataSN: get32(bhs, 36),
	}
	return nil
}

// TMResponse is the outcome of a task management function (RFC 7143, 11.6.1; TMSucceeded RFC 7144).
type TMResponse uint8

// The task management responses.
const (
	TMComplete          TMResponse = 0
	TMNoTask            TMResponse = 1
	TMNoLUN             TMResponse = 2
	TMStillAllegiant    TMResponse = 3
	TMReassignNotSupp   TMResponse = 4
	TMNotSupported      TMResponse = 5
	TMAuthorizationFail TMResponse = 6
	TMSucceeded         TMResponse = 7 // what was asked for is there; TMComplete says that it is not
	TMRejected          TMResponse = 255
)

// String says a response in words.
func (r TMResponse) String() string {
	switch r {
	case TMComplete:
		return "function complete"
	case TMNoTask:
		return "task does not exist"
	case TMNoLUN:
		return "logical unit does not exist"
	case TMStillAllegiant:
		return "task still allegiant"
	case TMReassignNotSupp:
		return "task reassignment not supported"
	case TMNotSupported:
		return "function not supported"
	case TMAuthorizationFail:
		return "function not authorised"
	case TMSucceeded:
		return "function succeeded"
	case TMRejected:
		return "function rejected"
	}
	return fmt.Sprintf("response %d", uint8(r))
}

// A TMFResponse answers a TMFRequest (RFC 7143, 11.6).
type TMFResponse struct {
	Response TMResponse
	// Info is the additional response information of SAM-5, 7.10 (RFC 7144); zero but for TMQueryAsyncEvent.
	Info     [3]byte
	ITT      uint32
	StatSN   StatSN
	ExpCmdSN CmdSN
	MaxCmdSN CmdSN
}

// Put writes the header.
func (p *TMFResponse) Put(bhs *[BHSSize]byte) {
	start(bhs, OpTMFResponse, false, flagFinal)
	bhs[2] = byte(p.Response)
	copy(bhs[8:11], p.Info[:])
	put32(bhs, 16, p.ITT)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
}

// Parse reads the header.
func (p *TMFResponse) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpTMFResponse, "Task Management Function Response"); err != nil {
		return err
	}
	*p = TMFResponse{
		Response: TMResponse(bhs[2]),
		Info:     [3]byte(bhs[8:11]),
		ITT:      get32(bhs, 16),
		StatSN:   StatSN(get32(bhs, 24)),
		ExpCmdSN: CmdSN(get32(bhs, 28)),
		MaxCmdSN: CmdSN(get32(bhs, 32)),
	}
	return nil
}
