package iscsi

import (
	"fmt"
	"strconv"
)

// A LUN is a logical unit number in its 8-byte wire form (SAM-5, 4.7), as an integer.
//
//	bits 63..62  00 peripheral device addressing, 01 flat space, 11 extended
//	peripheral   bus (0) in bits 61..56, number in bits 55..48
//	flat         number in bits 61..48
//	extended     length in bits 61..60, method in bits 59..56; flat space of 24 bits is 0xd2
type LUN uint64

// MaxLUNNumber is the largest number that LUNFromNumber can express: flat space has 14 bits.
const MaxLUNNumber = 1<<14 - 1

const (
	lunPeripheral   = 0
	lunFlat         = 1
	lunExtendedFlat = 0xd2 // extended addressing, length 1 (24 bits), method 2 (SAM-5, 4.7.7.5)
)

// LUNFromNumber is the wire form of unit n: peripheral device addressing below 256, flat space from
// there on. A number outside 0..MaxLUNNumber panics.
func LUNFromNumber(n int) LUN {
	switch {
	case n < 0 || n > MaxLUNNumber:
		panic(fmt.Sprintf("iscsi: logical unit number %d", n))
	case n < 256:
		return LUN(n) << 48
	}
	return LUN(lunFlat)<<62 | LUN(n)<<48
}

// Number is the unit's number, whichever of the peripheral (bus 0), flat and extended flat forms it came
// in; ok is false for other forms, among them those with a second level.
func (l LUN) Number() (n int, ok bool) {
	switch {
	case uint8(l>>56) == lunExtendedFlat && l&(1<<32-1) == 0:
		return int(l >> 32 & 0xffffff), true
	case l&(1<<48-1) != 0:
		return 0, false
	case l>>62 == lunFlat:
		return int(l >> 48 & MaxLUNNumber), true
	case l>>56 == lunPeripheral:
		return int(l >> 48), true
	}
	return 0, false
}

// String is the number in decimal, or the wire form in hexadecimal if it has no number.
func (l LUN) String() string {
	if n, ok := l.Number(); ok {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("0x%016x", uint64(l))
}
