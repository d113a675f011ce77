package scsi

import "encoding/binary"

// REPORT CAPABILITIES (SPC-4, 6.15.4).
const (
	prCRH  = 0x10 // compatible reservation handling
	prSIPC = 0x08 // SPEC_I_PT capable
	prATPC = 0x04 // ALL_TG_PT capable
	prPTPL = 0x01 // PTPL_C in byte 2: APTPL capable; PTPL_A in byte 3: APTPL active
	prTMV  = 0x80 // TYPE MASK valid
	// prAllowCommands says that TEST UNIT READY and RECEIVE COPY pass every reservation, and that write exclusive
	// lets MODE SENSE, READ DEFECT DATA and the REPORT SUPPORTED commands through (ALLOW COMMANDS 100b).
	prAllowCommands = 0x40
	// prTypeMask has all types.
	prTypeMask = 0xea01

	prHolder = 0x01 // R_HOLDER, in byte 12 of a full status descriptor
)

// preparePersistentIn answers from one consistent state of the unit (SPC-4, 6.15).
func preparePersistentIn(d *Device, t *Task) error {
	g := t.lu.current().registry
	if g == nil {
		g = &registry{}
	}
	var data []byte
	switch t.op.action {
	case prReadKeys:
		data = g.withHeader(g.appendKeys)
	case prReadReservation:
		data = g.withHeader(g.appendReservation)
	case prReportCapabilities:
		data = d.reservationCapabilities(g)
	case prReadFullStatus:
		data = g.withHeader(g.appendFullStatus)
	}
	t.reply(data, uint32(binary.BigEndian.Uint16(t.CDB[7:])))
	return nil
}

// Service actions of PERSISTENT RESERVE IN (SPC-4, 6.15.1).
const (
	prReadKeys = iota
	prReadReservation
	prReportCapabilities
	prReadFullStatus
)

// withHeader puts PRGENERATION and ADDITIONAL LENGTH before a list.
func (g *registry) withHeader(appendList func([]byte) []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, g.generation)
	b = appendList(append(b, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}

// appendKeys has a key for every registration, one twice if two nexuses have it (SPC-4, 6.15.2).
func (g *registry) appendKeys(b []byte) []byte {
	for _, r := range g.registrants {
		b = binary.BigEndian.AppendUint64(b, r.key)
	}
	return b
}

// appendReservation is a descriptor if there is a reservation (SPC-4, 6.15.3). Where all registrants
// hold it the key is zero.
//
//	0..7 key  13 scope|type
func (g *registry) appendReservation(b []byte) []byte {
	if g.kind == 0 {
		return b
	}
	var key uint64
	if !g.kind.allRegistrants() {
		key = g.find(g.holder).key
	}
	b = binary.BigEndian.AppendUint64(b, key)
	return append(b, 0, 0, 0, 0, 0, prScopeUnit<<4|byte(g.kind), 0, 0)
}

// appendFullStatus has a descriptor for every registration (SPC-4, 6.15.5), each for one target port.
//
//	0..7 key  12 ALL_TG_PT R_HOLDER  13 scope|type  18..19 target port  20..23 length  24.. TransportID
func (g *registry) appendFullStatus(b []byte) []byte {
	for _, r := range g.registrants {
		b = binary.BigEndian.AppendUint64(b, r.key)
		b = append(b, 0, 0, 0, 0)
		if g.holds(r.nexus) {
			b = append(b, prHolder, prScopeUnit<<4|byte(g.kind))
		} else {
			b = append(b, 0, 0)
		}
		b = append(b, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, r.nexus.port)
		id := appendTransportID(nil, r.nexus.initiator)
		b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
		b = append(b, id...)
	}
	return b
}

func (d *Device) reservationCapabilities(g *registry) []byte {
	b := []byte{0, 8, prCRH | prSIPC | prATPC, prTMV | prAllowCommands, prTypeMask >> 8, prTypeMask & 0xff, 0, 0}
	if d.config.State != nil {
		b[2] |= prPTPL
	}
	if g.aptpl {
		b[3] |= prPTPL
	}
	return b
}
