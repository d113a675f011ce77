package initiator

import (
	"encoding/binary"

	"github.com/goiser/goiser/iscsi"
)

// SAM-5, 5.3.1.
const (
	statusGood                = 0x00
	statusCheckCondition      = 0x02
	statusConditionMet        = 0x04
	statusBusy                = 0x08
	statusReservationConflict = 0x18
	statusTaskSetFull         = 0x28
	statusACAActive           = 0x30
	statusTaskAborted         = 0x40
)

// evaluate judges a SCSI Response: data is its data segment, placed the number of bytes that the datamover
// has placed in cmd.In. The error is about the response, not about the status.
func evaluate(rsp *iscsi.SCSIResponse, data []byte, cmd *Command, placed uint32) (Result, error) {
	edtl := uint32(len(cmd.In) + len(cmd.Out))
	switch {
	case rsp.Response != 0:
		return Result{}, violation("command not completed at the target (response %#02x)", rsp.Response)
	case rsp.Overflow && rsp.Underflow:
		return Result{}, violation("residual overflow and underflow at once")
	case rsp.Underflow && rsp.Residual > edtl:
		return Result{}, violation("residual underflow of %d bytes of %d", rsp.Residual, edtl)
	}
	res := Result{Status: rsp.Status}
	if rsp.Overflow || rsp.Underflow {
		res.Overflow, res.Underflow, res.Residual = rsp.Overflow, rsp.Underflow, int(rsp.Residual)
	}
	if rsp.Status == statusCheckCondition {
		sense, err := senseOf(data)
		if err != nil {
			return Result{}, err
		}
		res.Sense = sense
	}
	if len(cmd.In) > 0 {
		expected := edtl
		if rsp.Underflow {
			expected -= rsp.Residual
		}
		if placed < expected && rsp.Status == statusGood {
			return Result{}, violation("%d of %d bytes of read data came", placed, expected)
		}
		res.Received = int(min(placed, expected))
	}
	return res, nil
}

// senseOf copies the sense data out of a response's data segment: SenseLength, then the sense (RFC 7143,
// 11.4.7). What does not fit is an error: no byte of an older PDU may pass for sense.
func senseOf(data []byte) ([]byte, error) {
	if len(data) < 2 {
		return nil, violation("CHECK CONDITION with a data segment of %d bytes", len(data))
	}
	n := int(binary.BigEndian.Uint16(data))
	if n > len(data)-2 {
		return nil, violation("sense data of %d bytes in a data segment of %d", n, len(data))
	}
	return append([]byte(nil), data[2:2+n]...), nil
}
