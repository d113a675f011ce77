package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iser/rdma"
)

// The exit codes; the root command's help lists them.
const (
	exitOK       = 0
	exitOther    = 1
	exitUsage    = 2
	exitNotFound = 3
	exitInUse    = 5
	exitRefused  = 6
	exitConnect  = 7
	exitTimeout  = 8
	exitProtocol = 9
	exitMismatch = 10
	exitCheck    = 11
)

// A codedError is an error with the exit code it stands for.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func coded(code int, err error) error { return &codedError{code, err} }
func usage(err error) error           { return coded(exitUsage, err) }

// exitCode finds the code of an error by what is in its chain.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*codedError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*admin.Error](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*iscsi.LoginError](err); ok {
		return loginExit(e.Status)
	}
	if _, ok := errors.AsType[*initiator.StatusError](err); ok {
		return exitCheck
	}
	if _, ok := errors.AsType[*iscsi.WireError](err); ok {
		return exitProtocol
	}
	if _, ok := errors.AsType[*iscsi.RejectError](err); ok {
		return exitProtocol
	}
	switch {
	case errors.Is(err, initiator.ErrAuth):
		return exitRefused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return exitTimeout
	case errors.Is(err, rdma.ErrRejected), errors.Is(err, rdma.ErrUnavailable):
		return exitConnect
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return exitConnect
	}
	// cobra's own errors have no type.
	if s := err.Error(); strings.HasPrefix(s, "unknown command") || strings.HasPrefix(s, "required flag") {
		return exitUsage
	}
	return exitOther
}

func loginExit(s iscsi.LoginStatus) int {
	switch s {
	case iscsi.LoginAuthFailed, iscsi.LoginForbidden:
		return exitRefused
	case iscsi.LoginNotFound, iscsi.LoginTargetRemoved:
		return exitNotFound
	}
	return exitProtocol
}
