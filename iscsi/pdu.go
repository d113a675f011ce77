package iscsi

import (
	"encoding/binary"
	"fmt"
)

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

// Flags in byte 1 of a header. Their meaning depends on the opcode.
const (
	flagFinal         = 0x80 // F, and T of login PDUs
	flagContinue      = 0x40 // C of login and text PDUs
	flagRead          = 0x40
	flagAcknowledge   = 0x40 // A of Data-In
	flagWrite         = 0x20
	flagBidiOverflow  = 0x10
	flagBidiUnderflow = 0x08
	flagOverflow      = 0x04
	flagUnderflow     = 0x02
	flagStatus        = 0x01 // S of Data-In
	maskAttr          = 0x07
)

const (
	flagImmediate = 0x40 // in byte 0
	maskOpcode    = 0x3f
	maxDataLength = 1<<24 - 1
)

// OpcodeOf is a header's opcode.
func OpcodeOf(bhs *[BHSSize]byte) Opcode { return Opcode(bhs[0] & maskOpcode) }

// IsImmediate reports a header's I bit: the PDU is for immediate delivery (RFC 7143, 4.2.2.1).
func IsImmediate(bhs *[BHSSize]byte) bool { return bhs[0]&flagImmediate != 0 }

// IsFinal reports a header's F bit (T in login PDUs).
func IsFinal(bhs *[BHSSize]byte) bool { return bhs[1]&flagFinal != 0 }

// ITTOf is a header's initiator task tag.
func ITTOf(bhs *[BHSSize]byte) uint32 { return get32(bhs, 16) }

// AHSLengthOf is the length of all AHS, bytes: a multiple of 4, at most 1020.
func AHSLengthOf(bhs *[BHSSize]byte) int { return int(bhs[4]) * 4 }

// DataLengthOf is the length of the data segment without padding, bytes: at most 2^24-1.
func DataLengthOf(bhs *[BHSSize]byte) uint32 {
	return uint32(bhs[5])<<16 | uint32(bhs[6])<<8 | uint32(bhs[7])
}

// SetDataLength sets DataSegmentLength and leaves the rest of the header. More than 2^24-1 panics.
func SetDataLength(bhs *[BHSSize]byte, n uint32) {
	if n > maxDataLength {
		panic(fmt.Sprintf("iscsi: data segment of %d bytes", n))
	}
	bhs[5], bhs[6], bhs[7] = byte(n>>16), byte(n>>8), byte(n)
}

// SetFinal sets or clears the F bit and leaves the rest of the header.
func SetFinal(bhs *[BHSSize]byte, final bool) {
	bhs[1] = bhs[1]&^flagFinal | bit(final, flagFinal)
}

// Pad4 is n rounded up to a multiple of 4: the size of a data segment on a byte stream (RFC 7143, 11.1).
func Pad4(n int) int { return (n + 3) &^ 3 }

// start clears the header and sets what every PDU has.
func start(bhs *[BHSSize]byte, op Opcode, immediate bool, flags byte) {
	clear(bhs[:])
	bhs[0] = byte(op) | bit(immediate, flagImmediate)
	bhs[1] = flags
}

func checkOpcode(bhs *[BHSSize]byte, want Opcode, what string) error {
	if OpcodeOf(bhs) != want {
		return &WireError{What: what + " opcode", Offset: 0, Err: ErrReserved}
	}
	return nil
}

func bit(on bool, mask byte) byte {
	if on {
		return mask
	}
	return 0
}

func get16(bhs *[BHSSize]byte, off int) uint16    { return binary.BigEndian.Uint16(bhs[off:]) }
func get32(bhs *[BHSSize]byte, off int) uint32    { return binary.BigEndian.Uint32(bhs[off:]) }
func put16(bhs *[BHSSize]byte, off int, v uint16) { binary.BigEndian.PutUint16(bhs[off:], v) }
func put32(bhs *[BHSSize]byte, off int, v uint32) { binary.BigEndian.PutUint32(bhs[off:], v) }

// String is the opcode's name in RFC 7143.
func (o Opcode) String() string {
	switch o {
	case OpNOPOut:
		return "NOP-Out"
	case OpSCSICommand:
		return "SCSI Command"
	case OpTMFRequest:
		return "Task Management Function Request"
	case OpLoginRequest:
		return "Login Request"
	case OpTextRequest:
		return "Text Request"
	case OpDataOut:
		return "Data-Out"
	case OpLogoutReq:
		return "Logout Request"
	case OpSNACK:
		return "SNACK Request"
	case OpNOPIn:
		return "NOP-In"
	case OpSCSIResponse:
		return "SCSI Response"
	case OpTMFResponse:
		return "Task Management Function Response"
	case OpLoginResponse:
		return "Login Response"
	case OpTextResponse:
		return "Text Response"
	case OpDataIn:
		return "Data-In"
	case OpLogoutResp:
		return "Logout Response"
	case OpR2T:
		return "R2T"
	case OpAsync:
		return "Async Message"
	case OpReject:
		return "Reject"
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}
