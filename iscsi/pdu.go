package iscsi

// BHSSize is the size of the basic header segment in bytes (RFC 7143, 11.2.1).
const BHSSize = 48

// An Opcode says what a PDU is (RFC 7143, 11.2.1.2).
type Opcode uint8

// The opcodes of RFC 7143.
const (
	OpNOPOut       Opcode = 0x00
	OpSCSICommand  Opcode = 0x01
	OpTMFRequest   Opcode = 0x02
	OpLoginRequest Opcode = 0x03
	OpTextRequest  Opcode = 0x04
	OpDataOut      Opcode = 0x05
	OpLogoutReq    Opcode = 0x06
	OpSNACK        Opcode = 0x10

	OpNOPIn         Opcode = 0x20
	OpSCSIResponse  Opcode = 0x21
	OpTMFResponse   Opcode = 0x22
	OpLoginResponse Opcode = 0x23
	OpTextResponse  Opcode = 0x24
	OpDataIn        Opcode = 0x25
	OpLogoutResp    Opcode = 0x26
	OpR2T           Opcode = 0x31
	OpAsync         Opcode = 0x32
	OpReject        Opcode = 0x3f
)

// ReservedTag is the ITT or TTT that stands for "none" (RFC 7143, 11.2.1.8).
const ReservedTag = 0xffffffff

// Every PDU type has
//
//	Put(bhs *[BHSSize]byte)                writes the whole header, reserved bytes zero
//	Parse(bhs *[BHSSize]byte) error        reads it; reserved bits are ignored
//
// Data segments and AHS travel beside the header. DataLength is the data segment's length in bytes
// without padding; AHSLength that of all AHS in bytes (a multiple of 4).

// A NOPOut pings the target or answers its ping (RFC 7143, 11.18).
type NOPOut struct {
	Immediate  bool
	DataLength uint32
	LUN        LUN
	ITT, TTT   uint32
	CmdSN      CmdSN
	ExpStatSN  StatSN
}

// A NOPIn answers a ping, is one, or only updates the window (RFC 7143, 11.19).
type NOPIn struct {
	DataLength uint32
	LUN        LUN
	ITT, TTT   uint32
	StatSN     StatSN
	ExpCmdSN   CmdSN
	MaxCmdSN   CmdSN
}

// TaskAttr is a SCSI task attribute (RFC 7143, 11.3.1).
type TaskAttr uint8

// The task attributes.
const (
	AttrUntagged TaskAttr = iota
	AttrSimple
	AttrOrdered
	AttrHeadOfQueue
	AttrACA
)

// A SCSICommand carries a CDB (RFC 7143, 11.3). CDBs longer than 16 bytes continue in an AHS.
type SCSICommand struct {
	Immediate, Final, Read, Write bool
	Attr                          TaskAttr
	AHSLength                     uint8 // bytes/4, as on the wire
	DataLength                    uint32
	LUN                           LUN
	ITT                           uint32
	EDTL                          uint32
	CmdSN                         CmdSN
	ExpStatSN                     StatSN
	CDB                           [16]byte
}

// A SCSIResponse ends a task (RFC 7143, 11.4). Sense, if any, is in the data segment behind a 2-byte
// length.
type SCSIResponse struct {
	Overflow, Underflow         bool
	BidiOverflow, BidiUnderflow bool
	Response                    uint8 // 0: completed at target, 1: target failure
	Status                      uint8 // SAM status
	DataLength                  uint32
	ITT                         uint32
	SNACKTag                    uint32
	StatSN                      StatSN
	ExpCmdSN                    CmdSN
	MaxCmdSN                    CmdSN
	ExpDataSN                   uint32
	BidiResidual                uint32
	Residual                    uint32
}

// TMFunction is a task management function (RFC 7143, 11.5.1).
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
)

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

// TMResponse is the outcome of a task management function (RFC 7143, 11.6.1).
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
	TMRejected          TMResponse = 255
)

// A TMFResponse answers a TMFRequest (RFC 7143, 11.6).
type TMFResponse struct {
	Response TMResponse
	ITT      uint32
	StatSN   StatSN
	ExpCmdSN CmdSN
	MaxCmdSN CmdSN
}

// A DataOut carries write data (RFC 7143, 11.7).
type DataOut struct {
	Final      bool
	DataLength uint32
	LUN        LUN
	ITT, TTT   uint32
	ExpStatSN  StatSN
	DataSN     uint32
	Offset     uint32 // bytes
}

// A DataIn carries read data, and the status if HasStatus (RFC 7143, 11.7).
type DataIn struct {
	Final, Acknowledge, HasStatus bool
	Overflow, Underflow           bool
	Status                        uint8
	DataLength                    uint32
	LUN                           LUN
	ITT, TTT                      uint32
	StatSN                        StatSN
	ExpCmdSN                      CmdSN
	MaxCmdSN                      CmdSN
	DataSN                        uint32
	Offset                        uint32 // bytes
	Residual                      uint32
}

// An R2T asks for write data (RFC 7143, 11.8).
type R2T struct {
	LUN      LUN
	ITT, TTT uint32
	StatSN   StatSN
	ExpCmdSN CmdSN
	MaxCmdSN CmdSN
	R2TSN    uint32
	Offset   uint32 // bytes
	Length   uint32 // bytes
}

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

// A TextRequest carries keys in full-feature phase (RFC 7143, 11.10).
type TextRequest struct {
	Immediate, Final, Continue bool
	DataLength                 uint32
	LUN                        LUN
	ITT, TTT                   uint32
	CmdSN                      CmdSN
	ExpStatSN                  StatSN
}

// A TextResponse answers a TextRequest (RFC 7143, 11.11).
type TextResponse struct {
	Final, Continue bool
	DataLength      uint32
	LUN             LUN
	ITT, TTT        uint32
	StatSN          StatSN
	ExpCmdSN        CmdSN
	MaxCmdSN        CmdSN
}

// A Stage is a stage of the login phase (RFC 7143, 11.12.3).
type Stage uint8

// The stages.
const (
	StageSecurity    Stage = 0
	StageOperational Stage = 1
	StageFullFeature Stage = 3
)

// An ISID is the initiator's part of a session identifier (RFC 7143, 11.12.5).
type ISID [6]byte

// A LoginRequest is one step of a login from the initiator (RFC 7143, 11.12).
type LoginRequest struct {
	Transit, Continue      bool
	Current, Next          Stage
	VersionMax, VersionMin uint8
	DataLength             uint32
	ISID                   ISID
	TSIH                   uint16
	ITT                    uint32
	CID                    uint16
	CmdSN                  CmdSN
	ExpStatSN              StatSN
}

// A LoginResponse is one step of a login from the target (RFC 7143, 11.13).
type LoginResponse struct {
	Transit, Continue         bool
	Current, Next             Stage
	VersionMax, VersionActive uint8
	DataLength                uint32
	ISID                      ISID
	TSIH                      uint16
	ITT                       uint32
	StatSN                    StatSN
	ExpCmdSN                  CmdSN
	MaxCmdSN                  CmdSN
	Status                    LoginStatus
}

// LogoutReason says what a LogoutRequest ends (RFC 7143, 11.14.1).
type LogoutReason uint8

// The logout reasons.
const (
	LogoutSession    LogoutReason = 0
	LogoutConnection LogoutReason = 1
	LogoutRecovery   LogoutReason = 2
)

// A LogoutRequest ends a session or a connection (RFC 7143, 11.14).
type LogoutRequest struct {
	Immediate bool
	Reason    LogoutReason
	ITT       uint32
	CID       uint16
	CmdSN     CmdSN
	ExpStatSN StatSN
}

// A LogoutResponse answers a LogoutRequest (RFC 7143, 11.15).
type LogoutResponse struct {
	Response    uint8 // 0 closed, 1 no such CID, 2 recovery not supported, 3 cleanup failed
	ITT         uint32
	StatSN      StatSN
	ExpCmdSN    CmdSN
	MaxCmdSN    CmdSN
	Time2Wait   uint16 // seconds
	Time2Retain uint16 // seconds
}

// A SNACK asks for lost PDUs or acknowledges data (RFC 7143, 11.16). We parse it to reject it.
type SNACK struct {
	Type      uint8
	LUN       LUN
	ITT, TTT  uint32
	ExpStatSN StatSN
	BegRun    uint32
	RunLength uint32
}

// RejectReason says why a PDU was rejected (RFC 7143, 11.17.1).
type RejectReason uint8

// The reject reasons.
const (
	RejectDataDigest       RejectReason = 0x02
	RejectSNACK            RejectReason = 0x03
	RejectProtocolError    RejectReason = 0x04
	RejectNotSupported     RejectReason = 0x05
	RejectImmediate        RejectReason = 0x06
	RejectTaskInProgress   RejectReason = 0x07
	RejectInvalidDataAck   RejectReason = 0x08
	RejectInvalidField     RejectReason = 0x09
	RejectOutOfResources   RejectReason = 0x0a
	RejectWaitingForLogout RejectReason = 0x0c
)

// A Reject refuses a PDU; the offender's header is its data segment (RFC 7143, 11.17).
type Reject struct {
	Reason     RejectReason
	DataLength uint32
	StatSN     StatSN
	ExpCmdSN   CmdSN
	MaxCmdSN   CmdSN
	DataSN     uint32
}
