package initiator

import (
	"encoding/binary"
	"fmt"
)

// Err is nil for GOOD and CONDITION MET, else a *StatusError.
func (r Result) Err() error {
	if r.Status == statusGood || r.Status == statusConditionMet {
		return nil
	}
	e := &StatusError{Status: r.Status, Sense: r.Sense}
	e.Key, e.ASC, e.ASCQ = parseSense(r.Sense)
	return e
}

// A StatusError is a SCSI status other than GOOD, with its sense data in words.
type StatusError struct {
	Status         uint8
	Key, ASC, ASCQ uint8
	Sense          []byte
}

// Sense keys (SPC-4, 4.5.6).
const (
	keyNoSense        = 0x0
	keyNotReady       = 0x2
	keyIllegalRequest = 0x5
	keyUnitAttention  = 0x6
	keyMiscompare     = 0xe
)

// Error says the status and, for CHECK CONDITION, the sense in words, with the numbers behind.
func (e *StatusError) Error() string {
	s := statusWords(e.Status)
	switch {
	case e.Status != statusCheckCondition:
		return s
	case len(e.Sense) == 0:
		return s + " without sense data"
	}
	words := asWords[uint16(e.ASC)<<8|uint16(e.ASCQ)]
	if words == "" {
		words = asWords[uint16(e.ASC)<<8]
	}
	if words != "" {
		words = ", " + words
	}
	return fmt.Sprintf("%s: %s%s (%x/%02x/%02x)", s, keyWords[e.Key&0xf], words, e.Key, e.ASC, e.ASCQ)
}

// parseSense reads fixed and descriptor format sense data (SPC-4, 4.5). What is not there is 0.
func parseSense(b []byte) (key, asc, ascq uint8) {
	at := func(i int) uint8 {
		if i < len(b) {
			return b[i]
		}
		return 0
	}
	switch at(0) & 0x7f {
	case 0x70, 0x71: // fixed format; byte 7 tells how much follows
		key = at(2) & 0xf
		if end := 8 + int(at(7)); end > 13 {
			asc, ascq = at(12), at(13)
		}
	case 0x72, 0x73: // descriptor format
		key, asc, ascq = at(1)&0xf, at(2), at(3)
	}
	return key, asc, ascq
}

// information is the INFORMATION field of sense data, if it is there and valid (SPC-4, 4.5.2.2 and 4.5.3).
func information(b []byte) (value uint64, ok bool) {
	if len(b) < 8 {
		return 0, false
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		return uint64(binary.BigEndian.Uint32(b[3:])), b[0]&0x80 != 0
	case 0x72, 0x73:
		for d := b[8:]; len(d) >= 2 && len(d) >= 2+int(d[1]); d = d[2+int(d[1]):] {
			if d[0] == 0 && d[1] == 0x0a {
				return binary.BigEndian.Uint64(d[4:]), d[2]&0x80 != 0
			}
		}
	}
	return 0, false
}

func statusWords(status uint8) string {
	switch status {
	case statusGood:
		return "GOOD"
	case statusCheckCondition:
		return "CHECK CONDITION"
	case statusConditionMet:
		return "CONDITION MET"
	case statusBusy:
		return "BUSY"
	case statusReservationConflict:
		return "RESERVATION CONFLICT"
	case statusTaskSetFull:
		return "TASK SET FULL"
	case statusACAActive:
		return "ACA ACTIVE"
	case statusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("SCSI status %#02x", status)
}

// keyWords are the sense keys (SPC-4, table 43).
var keyWords = [16]string{
	"no sense", "recovered error", "not ready", "medium error", "hardware error", "illegal request",
	"unit attention", "data protect", "blank check", "vendor specific", "copy aborted", "aborted command",
	"reserved sense key", "volume overflow", "miscompare", "completed",
}

// asWords are the common additional sense codes (SPC-4, Annex F).
var asWords = map[uint16]string{
	0x0200: "no seek complete",
	0x0400: "logical unit not ready",
	0x0401: "logical unit is becoming ready",
	0x0402: "initializing command required",
	0x0403: "manual intervention required",
	0x0404: "format in progress",
	0x0409: "self-test in progress",
	0x040a: "asymmetric access state transition",
	0x040b: "target port in standby state",
	0x040c: "target port in unavailable state",
	0x0412: "offline",
	0x0800: "logical unit communication failure",
	0x0c00: "write error",
	0x0c02: "write error, auto reallocation failed",
	0x0c0c: "unexpected unsolicited data",
	0x0c0d: "not enough unsolicited data",
	0x1000: "ID CRC or ECC error",
	0x1001: "logical block guard check failed",
	0x1002: "logical block application tag check failed",
	0x1003: "logical block reference tag check failed",
	0x1100: "unrecovered read error",
	0x1113: "failed retransmission request",
	0x1a00: "parameter list length error",
	0x1d00: "miscompare during verify operation",
	0x2000: "invalid command operation code",
	0x2100: "logical block address out of range",
	0x2400: "invalid field in CDB",
	0x2500: "logical unit not supported",
	0x2600: "invalid field in parameter list",
	0x2700: "write protected",
	0x2707: "space allocation failed, write protect",
	0x2800: "medium may have changed",
	0x2900: "power on, reset or bus device reset occurred",
	0x2902: "bus reset occurred",
	0x2903: "bus device reset function occurred",
	0x2904: "device internal reset",
	0x2907: "I_T nexus loss occurred",
	0x2a00: "parameters changed",
	0x2a01: "mode parameters changed",
	0x2a03: "reservations preempted",
	0x2a04: "reservations released",
	0x2a05: "registrations preempted",
	0x2a06: "asymmetric access state changed",
	0x2a09: "capacity data has changed",
	0x2c00: "command sequence error",
	0x2f00: "commands cleared by another initiator",
	0x3100: "medium format corrupted",
	0x3200: "no defect spare location available",
	0x3a00: "medium not present",
	0x3e00: "logical unit has not self-configured yet",
	0x3e01: "logical unit failure",
	0x3f00: "target operating conditions have changed",
	0x3f01: "microcode has been changed",
	0x3f03: "inquiry data has changed",
	0x3f0e: "reported LUNs data has changed",
	0x4400: "internal target failure",
	0x4500: "select or reselect failure",
	0x4700: "SCSI parity error",
	0x4705: "protocol service CRC error",
	0x4900: "invalid message error",
	0x4b00: "data phase error",
	0x4e00: "overlapped commands attempted",
	0x5300: "media load or eject failed",
	0x5500: "system resource failure",
	0x5503: "insufficient resources",
	0x5504: "insufficient registration resources",
	0x5d00: "failure prediction threshold exceeded",
	0x6700: "configuration failure",
	0x7400: "security error",
}
