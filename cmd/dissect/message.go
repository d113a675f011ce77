package dissect

import (
	"fmt"

	"github.com/goiser/goiser/iser/rdma/roce/cm"
)

// message is a connection manager message in words (IBTA 12.6).
func message(mad []byte) string {
	h, b, err := cm.ParseHeader(mad)
	if err != nil {
		return err.Error()
	}
	switch h.Attribute {
	case cm.AttrREQ:
		var m cm.REQ
		if err := m.Parse(b); err != nil {
			return "CM REQ: " + err.Error()
		}
		return fmt.Sprintf("CM REQ: port %d, QP 0x%06x, PSN %d, MTU %d, reads %d in %d out, private % x",
			uint16(m.ServiceID), m.QPN, m.PSN, cm.MTUSize(m.MTU), m.ResponderResources, m.InitiatorDepth, m.Private[:4])
	case cm.AttrREP:
		var m cm.REP
		if err := m.Parse(b); err != nil {
			return "CM REP: " + err.Error()
		}
		return fmt.Sprintf("CM REP: QP 0x%06x, PSN %d, reads %d in %d out, private % x",
			m.QPN, m.PSN, m.ResponderResources, m.InitiatorDepth, m.Private[:4])
	case cm.AttrREJ:
		var m cm.REJ
		if err := m.Parse(b); err != nil {
			return "CM REJ: " + err.Error()
		}
		return fmt.Sprintf("CM REJ: reason %d", m.Reason)
	case cm.AttrMRA:
		return "CM MRA: give me time"
	case cm.AttrRTU:
		return "CM RTU"
	case cm.AttrDREQ:
		return "CM DREQ: disconnect"
	case cm.AttrDREP:
		return "CM DREP"
	}
	return fmt.Sprintf("CM attribute 0x%04x", uint16(h.Attribute))
}
