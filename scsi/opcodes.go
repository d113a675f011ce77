package scsi

import "encoding/binary"

// REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35).
const (
	rctd              = 0x80 // return command timeouts descriptors
	reportingMask     = 0x07
	supportNone       = 0x01
	supportStandard   = 0x03
	oneCTDP           = 0x80
	allCTDP           = 0x02
	allServiceActions = 0x01
)

// REPORTING OPTIONS.
const (
	reportAll    = iota
	reportOpcode // an opcode without service actions
	reportAction // an opcode and service action
	reportEither // the service action counts only if the opcode has some
)

// timeouts is a command timeouts descriptor that states none (SPC-4, 6.35.4).
const timeouts = "\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func prepareReportOpcodes(_ *Device, t *Task) error {
	cdb := t.CDB
	withTimeouts := cdb[2]&rctd != 0
	var data []byte
	if how := cdb[2] & reportingMask; how == reportAll {
		data = reportAllOpcodes(t.lu, withTimeouts)
	} else {
		op, err := namedOperation(t.lu, how, cdb[3], int(binary.BigEndian.Uint16(cdb[4:])))
		if err != nil {
			return err
		}
		data = reportOneOpcode(op, withTimeouts)
	}
	t.reply(data, binary.BigEndian.Uint32(cdb[6:]))
	return nil
}

// namedOperation finds the row that a one-command report is about; nil if the command is not supported.
func namedOperation(lu *LogicalUnit, how, opcode byte, action int) (*operation, error) {
	rows := lu.offers(opcode)
	if how > reportEither {
		return nil, invalidField(2, 2)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	hasActions := rows[0].action != noAction
	if how == reportOpcode && hasActions || how == reportAction && !hasActions {
		return nil, invalidField(2, 2)
	}
	if !hasActions {
		if how == reportEither && action != 0 {
			return nil, nil
		}
		return rows[0], nil
	}
	for _, op := range rows {
		if op.action == action {
			return op, nil
		}
	}
	return nil, nil
}

// reportAllOpcodes makes all_commands parameter data (SPC-4, 6.35.2): a length and a descriptor a command.
func reportAllOpcodes(lu *LogicalUnit, withTimeouts bool) []byte {
	b := make([]byte, 4)
	for opcode := range byOpcode {
		for _, op := range lu.offers(uint8(opcode)) {
			b = op.appendDescriptor(b, withTimeouts)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// appendDescriptor appends a command descriptor (SPC-4, 6.35.2).
//
//	0 opcode  2..3 service action  5 CTDP SERVACTV  6..7 CDB length
func (op *operation) appendDescriptor(b []byte, withTimeouts bool) []byte {
	var d [8]byte
	d[0] = op.opcode
	if op.action != noAction {
		binary.BigEndian.PutUint16(d[2:], uint16(op.action))
		d[5] |= allServiceActions
	}
	if withTimeouts {
		d[5] |= allCTDP
	}
	binary.BigEndian.PutUint16(d[6:], uint16(len(op.usage)))
	b = append(b, d[:]...)
	if withTimeouts {
		b = append(b, timeouts...)
	}
	return b
}

// reportOneOpcode makes one_command parameter data (SPC-4, 6.35.3).
//
//	1 CTDP SUPPORT  2..3 CDB size  4.. CDB usage data
func reportOneOpcode(op *operation, withTimeouts bool) []byte {
	if op == nil {
		return []byte{0, supportNone, 0, 0}
	}
	b := binary.BigEndian.AppendUint16([]byte{0, supportStandard}, uint16(len(op.usage)))
	b = append(b, op.usage...)
	if withTimeouts {
		b[1] |= oneCTDP
		b = append(b, timeouts...)
	}
	return b
}

// Task management functions that a transport carries out with this package's help (SPC-4, 6.36), those of the second
// byte and queryTask only for a nexus with NexusConfig.QueryTasks: what an initiator reads here it may use.
const (
	tmfExtended = 0x80 // REPD

	abortTask        = 0x80
	abortTaskSet     = 0x40
	clearTaskSet     = 0x10
	logicalUnitReset = 0x08
	queryTask        = 0x04
	targetReset      = 0x02

	queryAsyncEvent = 0x04
	queryTaskSet    = 0x02
	nexusReset      = 0x01
)

func prepareReportTMFs(_ *Device, t *Task) error {
	data := make([]byte, 4)
	if t.CDB[2]&tmfExtended != 0 {
		data = make([]byte, 16)
		data[3] = 12
	}
	data[0] = abortTask | abortTaskSet | clearTaskSet | logicalUnitReset | targetReset
	if t.Nexus.queries {
		data[0] |= queryTask
		data[1] = queryAsyncEvent | queryTaskSet | nexusReset
	}
	t.reply(data, binary.BigEndian.Uint32(t.CDB[6:]))
	return nil
}
