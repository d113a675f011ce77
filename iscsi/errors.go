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
	return fmt.Sprintf("rejected (%02x, %s): %s", uint8(e.Reason), e.Reason, e.What)
}

// String says a status in words.
func (s LoginStatus) String() string {
	if w := s.words(); w != "" {
		return w
	}
	switch s >> 8 {
	case 1:
		return "redirected for an unknown reason"
	case 2:
		return "unknown initiator error"
	case 3:
		return "unknown target error"
	}
	return "unknown status"
}

func (s LoginStatus) words() string {
	switch s {
	case LoginSuccess:
		return "success"
	case LoginMovedTemporarily:
		return "target moved temporarily"
	case LoginMovedPermanently:
		return "target moved permanently"
	case LoginInitiatorError:
		return "initiator error"
	case LoginAuthFailed:
		return "authentication failed"
	case LoginForbidden:
		return "initiator not allowed on this target"
	case LoginNotFound:
		return "target not found"
	case LoginTargetRemoved:
		return "target removed"
	case LoginBadVersion:
		return "protocol version not supported"
	case LoginTooManyConns:
		return "too many connections in this session"
	case LoginMissingParameter:
		return "missing parameter"
	case LoginCannotInclude:
		return "connection cannot be included in this session"
	case LoginBadSessionType:
		return "session type not supported"
	case LoginNoSession:
		return "session does not exist"
	case LoginInvalidRequest:
		return "invalid request during login"
	case LoginTargetError:
		return "target error"
	case LoginServiceUnavail:
		return "service unavailable"
	case LoginOutOfResources:
		return "target out of resources"
	}
	return ""
}

// Temporary reports whether the same login may succeed later: the target's own errors (class 3). A
// redirection (class 1) is followed instead, and the initiator's errors (class 2) stay.
func (s LoginStatus) Temporary() bool { return s>>8 == 3 }

// Redirect reports whether the target has moved: LoginError.Address then says where to.
func (s LoginStatus) Redirect() bool { return s>>8 == 1 }
