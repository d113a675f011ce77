package rdma

import "fmt"

// String names a status as libibverbs does (ibv_wc_status_str), with its number: logs of both worlds
// can then be searched for the same words.
func (s Status) String() string {
	if int(s) < len(statusNames) && statusNames[s] != "" {
		return fmt.Sprintf("%s (%d)", statusNames[s], uint8(s))
	}
	return fmt.Sprintf("unknown status (%d)", uint8(s))
}

// statusNames are the texts of rdma-core, libibverbs/verbs.c; the gaps are statuses of services that
// this interface does not have.
var statusNames = [...]string{
	Success:        "success",
	LocLenErr:      "local length error",
	LocQPOpErr:     "local QP operation error",
	LocProtErr:     "local protection error",
	WRFlushErr:     "Work Request Flushed Error",
	MWBindErr:      "memory management operation error",
	BadRespErr:     "bad response error",
	LocAccessErr:   "local access error",
	RemInvReqErr:   "remote invalid request error",
	RemAccessErr:   "remote access error",
	RemOpErr:       "remote operation error",
	RetryExcErr:    "transport retry counter exceeded",
	RNRRetryExcErr: "RNR retry counter exceeded",
	RemAbortErr:    "aborted error",
	FatalErr:       "fatal error",
	RespTimeoutErr: "response timeout error",
	GeneralErr:     "general error",
}

// String names a work request's kind.
func (o OpCode) String() string {
	switch o {
	case OpSend:
		return "Send"
	case OpSendInv:
		return "Send with Invalidate"
	case OpWrite:
		return "RDMA Write"
	case OpRead:
		return "RDMA Read"
	case OpLocalInv:
		return "Local Invalidate"
	case OpBindWindow:
		return "Bind Window"
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}
