package lab

import (
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iser"
)

// pdu takes the iSER header off a message.
func pdu(b []byte) (h iser.Header, bhs *[iscsi.BHSSize]byte, ok bool) {
	rest, err := h.Parse(b)
	if err != nil || len(rest) < iscsi.BHSSize {
		return h, nil, false
	}
	return h, (*[iscsi.BHSSize]byte)(rest), true
}

// isA reports whether a message is a PDU of an opcode, and gives its header and task.
func isA(b []byte, op iscsi.Opcode) (h iser.Header, itt uint32, ok bool) {
	h, bhs, ok := pdu(b)
	if !ok || iscsi.OpcodeOf(bhs) != op {
		return h, 0, false
	}
	return h, iscsi.ITTOf(bhs), true
}
