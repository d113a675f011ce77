package iscsi

import "fmt"

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

// String says a reason in words.
func (r RejectReason) String() string {
	switch r {
	case RejectDataDigest:
		return "data digest error"
	case RejectSNACK:
		return "SNACK rejected"
	case RejectProtocolError:
		return "protocol error"
	case RejectNotSupported:
		return "command not supported"
	case RejectImmediate:
		return "too many immediate commands"
	case RejectTaskInProgress:
		return "task in progress"
	case RejectInvalidDataAck:
		return "invalid data acknowledgement"
	case RejectInvalidField:
		return "invalid PDU field"
	case RejectOutOfResources:
		return "long operation, out of resources"
	case RejectWaitingForLogout:
		return "waiting for logout"
	}
	return fmt.Sprintf("reason 0x%02x", uint8(r))
}

// A Reject refuses a PDU; the offender's header is its data segment (RFC 7143, 11.17).
type Reject struct {
	Reason     RejectReason
	DataLength uint32
	StatSN     StatSN
	ExpCmdSN   CmdSN
	MaxCmdSN   CmdSN
	DataSN     uint32
}

// Put writes the header.
func (p *Reject) Put(bhs *[BHSSize]byte) {
	start(bhs, OpReject, false, flagFinal)
	bhs[2] = byte(p.Reason)
	SetDataLength(bhs, p.DataLength)
	put32(bhs, 16, ReservedTag)
	put32(bhs, 24, uint32(p.StatSN))
	put32(bhs, 28, uint32(p.ExpCmdSN))
	put32(bhs, 32, uint32(p.MaxCmdSN))
	put32(bhs, 36, p.DataSN)
}

// Parse reads the header.
func (p *Reject) Parse(bhs *[BHSSize]byte) error {
	if err := checkOpcode(bhs, OpReject, "Reject"); err != nil {
		return err
	}
	*p = Reject{
		Reason:     RejectReason(bhs[2]),
		DataLength: DataLengthOf(bhs),
		StatSN:     StatSN(get32(bhs, 24)),
		ExpCmdSN:   CmdSN(get32(bhs, 28)),
		MaxCmdSN:   CmdSN(get32(bhs, 32)),
		DataSN:     get32(bhs, 36),
	}
	return nil
}
