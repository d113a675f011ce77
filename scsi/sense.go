package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goiser/goiser/backstore"
)

// Sense keys (SPC-4, 4.5.6).
const (
	keyNoSense        = 0x0
	keyNotReady       = 0x2
	keyMediumError    = 0x3
	keyHardwareError  = 0x4
	keyIllegalRequest = 0x5
	keyUnitAttention  = 0x6
	keyDataProtect    = 0x7
	keyCopyAborted    = 0xa
	keyMiscompare     = 0xe
)

// A senseError is the reason for a CHECK CONDITION: a sense key and additional sense code, and what
// sense data may say besides.
type senseError struct {
	key, asc, ascq uint8
	information    uint64 // an LBA (SBC-3, sense data), if hasInformation
	hasInformation bool
	// commandSpecific is COMMAND-SPECIFIC INFORMATION, if hasCommandSpecific.
	commandSpecific    uint32
	hasCommandSpecific bool
	field              uint16 // byte of the CDB or, if inList, of the parameter list, if hasField
	bit                uint8  // most significant bit of the field in that byte
	hasField           bool
	inList             bool
	hasProgress        bool // field is a PROGRESS INDICATION, in 65536ths
}

// Error names the condition as standards and logs do.
func (e *senseError) Error() string {
	return fmt.Sprintf("check condition %02X/%02X/%02X", e.key, e.asc, e.ascq)
}

// The conditions without particulars. They are never written to.
var (
	errNoSense           = &senseError{key: keyNoSense}
	errOpcode            = &senseError{key: keyIllegalRequest, asc: 0x20} // INVALID COMMAND OPERATION CODE
	errOutOfRange        = &senseError{key: keyIllegalRequest, asc: 0x21} // LOGICAL BLOCK ADDRESS OUT OF RANGE
	errShortCDB          = &senseError{key: keyIllegalRequest, asc: 0x24} // INVALID FIELD IN CDB
	errBidirectional     = &senseError{key: keyIllegalRequest, asc: 0x24}
	errNoUnit            = &senseError{key: keyIllegalRequest, asc: 0x25} // LOGICAL UNIT NOT SUPPORTED
	errAttribute         = &senseError{key: keyIllegalRequest, asc: 0x49} // INVALID MESSAGE ERROR (SAM-5, 8.6)
	errSavingParameters  = &senseError{key: keyIllegalRequest, asc: 0x39} // SAVING PARAMETERS NOT SUPPORTED
	errStopped           = &senseError{key: keyNotReady, asc: 0x04, ascq: 0x02}
	errSanitizing        = &senseError{key: keyNotReady, asc: 0x04, ascq: 0x1b}    // SANITIZE IN PROGRESS
	errSanitizeFailed    = &senseError{key: keyMediumError, asc: 0x31, ascq: 0x03} // SANITIZE COMMAND FAILED
	errSoftwareProtected = &senseError{key: keyDataProtect, asc: 0x27, ascq: 0x02}
	errWriteProtected    = &senseError{key: keyDataProtect, asc: 0x27}
	errNoSpace           = &senseError{key: keyDataProtect, asc: 0x27, ascq: 0x07}

	// INVALID FIELD IN COMMAND INFORMATION UNIT: the transport's fields contradict the CDB (FCP-4 has
	// the rule that iSCSI lacks, at FCP_DL). errDirection: data in the other direction. errPartialBlock: EDTL
	// ends inside a block, which would tear it; whole blocks are written instead, or nothing. errDataLength:
	// EDTL is not what a command needs that is done as a whole or not at all.
	errDirection    = &senseError{key: keyIllegalRequest, asc: 0x0e, ascq: 0x03}
	errPartialBlock = &senseError{key: keyIllegalRequest, asc: 0x0e, ascq: 0x03}
	errDataLength   = &senseError{key: keyIllegalRequest, asc: 0x0e, ascq: 0x03}
)

// The conditions of a unit that is not reached through the command's port (SPC-4, 5.16.2.4).
var (
	errTransitioning = &senseError{key: keyNotReady, asc: 0x04, ascq: 0x0a}
	errStandby       = &senseError{key: keyNotReady, asc: 0x04, ascq: 0x0b}
	errUnavailable   = &senseError{key: keyNotReady, asc: 0x04, ascq: 0x0c}
)

// The conditions of parameter lists and of reservations.
var (
	errListLength      = &senseError{key: keyIllegalRequest, asc: 0x1a}             // PARAMETER LIST LENGTH ERROR
	errInvalidRelease  = &senseError{key: keyIllegalRequest, asc: 0x26, ascq: 0x04} // INVALID RELEASE OF PERSISTENT RESERVATION
	errNoRegistrations = &senseError{key: keyIllegalRequest, asc: 0x55, ascq: 0x04} // INSUFFICIENT REGISTRATION RESOURCES
	errNotSaved        = &senseError{key: keyHardwareError, asc: 0x44}              // INTERNAL TARGET FAILURE
)

// A statusError is the reason for a status that has no sense data.
type statusError Status

// errConflict answers a command that conflicts with another nexus's reservation.
const errConflict = statusError(ReservationConflict)

// errBusy answers a command that may be tried again at once.
const errBusy = statusError(Busy)

// Error names the status by its code.
func (e statusError) Error() string { return fmt.Sprintf("status %02Xh", uint8(e)) }

// invalidField is INVALID FIELD IN CDB with a pointer to the field: its byte and most significant bit.
func invalidField(field, bit int) *senseError {
	return &senseError{key: keyIllegalRequest, asc: 0x24, field: uint16(field), bit: uint8(bit), hasField: true}
}

// invalidParameter is INVALID FIELD IN PARAMETER LIST with a pointer to the field.
func invalidParameter(field, bit int) *senseError {
	return &senseError{key: keyIllegalRequest, asc: 0x26, field: uint16(field), bit: uint8(bit), hasField: true, inList: true}
}

// fieldPointer makes the sense key specific bytes that point at the field (SPC-4, 4.5.2.4.2).
func (e *senseError) fieldPointer() [3]byte {
	flags := sksValid | sksBitValid | e.bit
	switch {
	case e.hasProgress:
		flags = sksValid
	case !e.inList:
		flags |= sksInCDB
	}
	return [3]byte{flags, byte(e.field >> 8), byte(e.field)}
}

// readError and writeError turn a store's error into a condition of a command that starts at lba.
// Which block failed is not known; INFORMATION must not claim any block before it as good.
func readError(err error, lba uint64) error {
	return storeError(err, senseError{key: keyMediumError, asc: 0x11, information: lba, hasInformation: true})
}

func writeError(err error, lba uint64) error {
	return storeError(err, senseError{key: keyMediumError, asc: 0x0c, information: lba, hasInformation: true})
}

func storeError(err error, otherwise senseError) error {
	switch {
	case errors.Is(err, backstore.ErrNoSpace):
		return errNoSpace
	case errors.Is(err, backstore.ErrReadOnly):
		return errWriteProtected
	case errors.Is(err, backstore.ErrRange):
		return errOutOfRange
	}
	return &otherwise
}

// check ends the task with CHECK CONDITION and sense data in the format that D_SENSE in the Control mode
// page says, or with the status of a statusError. Any other error is a bug of this package.
func (t *Task) check(err error) {
	switch e := err.(type) {
	case *senseError:
		t.Status = CheckCondition
		if t.lu != nil && t.lu.control.Load()&controlDSense != 0 {
			t.senseLen = len(e.appendDescriptor(t.sense[:0]))
		} else {
			t.senseLen = len(e.appendFixed(t.sense[:0]))
		}
	case statusError:
		t.Status = Status(e)
	default:
		panic(fmt.Sprintf("scsi: error without sense: %v", err))
	}
}

// AppendSense appends sense data of a transport's own, in the format that D_SENSE in the unit's Control mode
// page says; fixed where no unit is. It has at most MaxSense bytes.
func (d *Device) AppendSense(b []byte, lun uint64, key, asc, ascq uint8) []byte {
	e := senseError{key: key, asc: asc, ascq: ascq}
	if number, ok := Number(lun); ok {
		if lu := d.LU(number); lu != nil && lu.control.Load()&controlDSense != 0 {
			return e.appendDescriptor(b)
		}
	}
	return e.appendFixed(b)
}

const (
	fixedSenseLen = 18
	sksValid      = 0x80
	sksInCDB      = 0x40
	sksBitValid   = 0x08
)

// appendFixed appends sense data in fixed format (SPC-4, 4.5.3).
//
//	0 VALID|70h  2 key  3..6 INFORMATION  7 additional length  8..11 COMMAND-SPECIFIC  12 ASC  13 ASCQ  15..17 key specific
func (e *senseError) appendFixed(b []byte) []byte {
	var s [fixedSenseLen]byte
	s[0] = 0x70
	if e.hasInformation && e.information <= 0xffffffff {
		s[0] |= 0x80
		binary.BigEndian.PutUint32(s[3:], uint32(e.information))
	}
	s[2] = e.key
	s[7] = fixedSenseLen - 8
	binary.BigEndian.PutUint32(s[8:], e.commandSpecific)
	s[12], s[13] = e.asc, e.ascq
	if e.hasField {
		pointer := e.fieldPointer()
		copy(s[15:], pointer[:])
	}
	return append(b, s[:]...)
}

// appendDescriptor appends sense data in descriptor format (SPC-4, 4.5.2).
func (e *senseError) appendDescriptor(b []byte) []byte {
	start := len(b)
	b = append(b, 0x72, e.key, e.asc, e.ascq, 0, 0, 0, 0)
	if e.hasInformation { // 4.5.2.2
		b = append(b, 0x00, 0x0a, 0x80, 0)
		b = binary.BigEndian.AppendUint64(b, e.information)
	}
	if e.hasCommandSpecific { // 4.5.2.3
		b = append(b, 0x01, 0x0a, 0, 0)
		b = binary.BigEndian.AppendUint64(b, uint64(e.commandSpecific))
	}
	if e.hasField { // 4.5.2.4
		pointer := e.fieldPointer()
		b = append(b, 0x02, 0x06, 0, 0, pointer[0], pointer[1], pointer[2], 0)
	}
	b[start+7] = byte(len(b) - start - 8)
	return b
}

// ParseSense reads sense key, additional sense code and its qualifier from sense data in fixed or descriptor format (SPC-4,
// 4.5). What is not there is 0.
func ParseSense(b []byte) (key, asc, ascq uint8) {
	at := func(i int) uint8 {
		if i < len(b) {
			return b[i]
		}
		return 0
	}
	const descriptor = 0x72 // and 0x73, of a deferred error
	if at(0)&^1 == descriptor {
		return at(1) & 0xf, at(2), at(3)
	}
	return at(2) & 0xf, at(12), at(13)
}
