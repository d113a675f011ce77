package iscsi

// CmdSN numbers commands; its order wraps (RFC 7143, 4.2.2.1 and RFC 1982).
type CmdSN uint32

// Before reports whether a comes before b.
func (a CmdSN) Before(b CmdSN) bool { return int32(uint32(a)-uint32(b)) < 0 }

// StatSN numbers status PDUs; its order wraps (RFC 7143, 4.2.2.2).
type StatSN uint32

// Before reports whether a comes before b.
func (a StatSN) Before(b StatSN) bool { return int32(uint32(a)-uint32(b)) < 0 }
