package iscsi

import (
	"errors"
	"fmt"
)

// Causes of a WireError.
var (
	ErrShort    = errors.New("too short")
	ErrReserved = errors.New("reserved or unknown value")
	ErrLength   = errors.New("length out of bounds")
)

// A WireError says what in a peer's message could not be read.
type WireError struct {
	What   string // the field or message
	Offset int    // where in it, bytes
	Err    error  // ErrShort, ErrReserved, ErrLength or the like
}

func (e *WireError) Error() string { return fmt.Sprintf("%s at byte %d: %v", e.What, e.Offset, e.Err) }
func (e *WireError) Unwrap() error { return e.Err }

// LoginStatus is a login response's class and detail, class<<8 | detail (RFC 7143, 11.13.5).
type LoginStatus uint16

// The login statuses.
const (
	LoginSuccess          LoginStatus = 0x0000
	LoginMovedTemporarily LoginStatus = 0x0101
	LoginMovedPermanently LoginStatus = 0x0102
	LoginInitiatorError   LoginStatus = 0x0200
	LoginAuthFailed       LoginStatus = 0x0201
	LoginForbidden        LoginStatus = 0x0202
	LoginNotFound         LoginStatus = 0x0203
	LoginTargetRemoved    LoginStatus = 0x0204
	LoginBadVersion       LoginStatus = 0x0205
	LoginTooManyConns     LoginStatus = 0x0206
	LoginMissingParameter LoginStatus = 0x0207
	LoginCannotInclude    LoginStatus = 0x0208
	LoginBadSessionType   LoginStatus = 0x0209
	LoginNoSession        LoginStatus = 0x020a
	LoginInvalidRequest   LoginStatus = 0x020b
	LoginTargetError      LoginStatus = 0x0300
	LoginServiceUnavail   LoginStatus = 0x0301
	LoginOutOfResources   LoginStatus = 0x0302
)

// A LoginError refuses a login; whoever answers the peer sends Status.
type LoginError struct {
	Status LoginStatus
	Reason string
	// Address is TargetAddress of a redirection (classes 0x01xx).
	Address string
}

func (e *LoginError) Error() string {
	return fmt.Sprintf("login status %04x (%s): %s", uint16(e.Status), e.Status, e.Reason)
}

// A RejectError asks for the PDU it was made of to be answered by Reject.
type RejectError struct {
	Reason RejectReason
	What   string
}

func (e *RejectError) Error() string {
	return fmt.Sprintf("rejected (%02x): %s", uint8(e.Reason), e.What)
}

// String says a status in words.
func (s LoginStatus) String() string { return "not written" }
