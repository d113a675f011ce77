package iscsi

// A LUN is a logical unit number in its 8-byte wire form (SAM-5, 4.7), as an integer.
type LUN uint64
