package iscsi

// Serial numbers (RFC 7143, 4.2.2.1) order as in RFC 1982: a comes before b if b is reached from a by
// adding less than 2^31. They wrap, so they are never compared with <.

// CmdSN numbers commands.
type CmdSN uint32

// Before reports whether a comes before b.
func (a CmdSN) Before(b CmdSN) bool { return int32(uint32(a)-uint32(b)) < 0 }

// After reports whether a comes after b.
func (a CmdSN) After(b CmdSN) bool { return int32(uint32(a)-uint32(b)) > 0 }

// Add is the number n steps after a.
func (a CmdSN) Add(n uint32) CmdSN { return a + CmdSN(n) }

// Sub is how many steps a is after b: negative if it is before it.
func (a CmdSN) Sub(b CmdSN) int { return int(int32(uint32(a) - uint32(b))) }

// InWindow reports whether a lies in first..last, both included. A window whose last is first-1 is closed:
// nothing is in it.
func (a CmdSN) InWindow(first, last CmdSN) bool {
	return !last.Before(first) && !a.Before(first) && !a.After(last)
}

// StatSN numbers status PDUs.
type StatSN uint32

// Before reports whether a comes before b.
func (a StatSN) Before(b StatSN) bool { return int32(uint32(a)-uint32(b)) < 0 }

// After reports whether a comes after b.
func (a StatSN) After(b StatSN) bool { return int32(uint32(a)-uint32(b)) > 0 }

// Add is the number n steps after a.
func (a StatSN) Add(n uint32) StatSN { return a + StatSN(n) }

// Sub is how many steps a is after b: negative if it is before it.
func (a StatSN) Sub(b StatSN) int { return int(int32(uint32(a) - uint32(b))) }
