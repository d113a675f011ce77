package scsi

import "math/bits"

// An operation is a row of the table of commands. The dispatcher and REPORT SUPPORTED OPERATION CODES
// read the same row.
type operation struct {
	name   string
	opcode uint8
	action int // service action, noAction if the opcode has none
	// usage is the CDB usage map (SPC-4, 6.35.3): a set bit is one that is evaluated, byte 0 is the
	// opcode and a service action stands for itself. Its length is the CDB's.
	usage string
	// ignored has bits that are outside usage but not refused, from byte 1 on: obsolete or optional
	// fields that initiators set and that change nothing here.
	ignored string
	access  access
	flags   flags
	// known is the bits of the CDB that are not refused: see setKnown.
	known [maxUsage]byte
	// offered reports whether a unit has the command; nil: each has.
	offered func(lu *LogicalUnit) bool
	// prepare checks the fields and says what data the command moves. It may set t.Done.
	prepare func(d *Device, t *Task) error
	// execute does the work once the data is there; nil if prepare has done all.
	execute func(t *Task) error
}

// noAction marks an opcode without service actions.
const noAction = -1

// access is what a command is to somebody else's reservation, as the tables of commands allowed in the
// presence of various reservations say: for persistent reservations SPC-4, 5.12.1 and SBC-3, 4.17, for
// RESERVE and RELEASE those of SPC-2, 5.5.1 and annex B.
type access uint8

const (
	// accessAlways: allowed in the presence of any reservation.
	accessAlways access = iota
	// accessShared: allowed in the presence of any persistent reservation, conflicts with RESERVE.
	accessShared
	// accessRead conflicts with exclusive access and with RESERVE.
	accessRead
	// accessWrite conflicts with write exclusive and exclusive access, and with RESERVE.
	accessWrite
	// accessStart is START STOP UNIT: accessAlways if it starts the unit, else accessWrite.
	accessStart
	// accessPrevent is PREVENT ALLOW MEDIUM REMOVAL: accessAlways if it allows it, else accessWrite.
	accessPrevent
	// accessOwn: the command itself looks at reservations.
	accessOwn
	// accessPersistent: accessOwn, but any RESERVE conflicts, whosever it is (SPC-2, 5.5.1).
	accessPersistent
)

type flags uint16

const (
	// anyLUN: answered for a logical unit that does not exist too.
	anyLUN flags = 1 << iota
	// ignoresAttention: executed, and reporting nothing, while a unit attention is pending (SAM-5, 5.14).
	ignoresAttention
	// needsMedium: refused while the unit is stopped (SBC-3, START STOP UNIT).
	needsMedium
	// usesStore: executing it may wait for the store.
	usesStore
	// duringSanitize: not refused while a sanitize operation goes on or has failed (SBC-3, 4.11).
	duringSanitize
	// touchesBlocks: it enters the gate with its extent (gate.go).
	touchesBlocks
	// runsAlone: nobody else is inside the gate with an overlapping extent.
	runsAlone
	// inStandby, inUnavailable, inTransition: allowed through a port group in that state.
	inStandby
	inUnavailable
	inTransition
	// forReaders: for a nexus that may only read too, although it conflicts with a reservation against writes. It writes
	// what somebody else has written.
	forReaders

	inAnyState = inStandby | inUnavailable | inTransition
)

// Opcodes with service actions, and where in byte 1 those are.
const (
	opPersistentIn      = 0x5e
	opPersistentOut     = 0x5f
	opCopyOut           = 0x83
	opCopyIn            = 0x84
	opMaintenanceIn     = 0xa3
	opMaintenanceOut    = 0xa4
	opServiceActionIn16 = 0x9e
	serviceActionMask   = 0x1f
)

// lookup finds the row of a CDB. An unknown service action of a known opcode is an invalid
// field, since the opcode itself is not to blame.
func lookup(cdb []byte) (*operation, error) {
	if len(cdb) == 0 {
		return nil, errOpcode
	}
	rows := byOpcode[cdb[0]]
	if len(rows) == 0 {
		return nil, errOpcode
	}
	if rows[0].action == noAction {
		return rows[0], nil
	}
	if len(cdb) < 2 {
		return nil, errShortCDB
	}
	for _, op := range rows {
		if op.action == int(cdb[1]&serviceActionMask) {
			return op, nil
		}
	}
	return nil, invalidField(1, 4)
}

// offers lists the rows of an opcode that a unit has.
func (lu *LogicalUnit) offers(opcode uint8) []*operation {
	var rows []*operation
	for _, op := range byOpcode[opcode] {
		if op.offered == nil || op.offered(lu) {
			rows = append(rows, op)
		}
	}
	return rows
}

// missing says why a unit does not run one of its device's commands: it does not have the opcode, or it
// has it with other service actions.
func (lu *LogicalUnit) missing(op *operation) error {
	switch {
	case op.offered == nil || op.offered(lu):
		return nil
	case len(lu.offers(op.opcode)) == 0:
		return errOpcode
	}
	return invalidField(1, 4)
}

// vendorControl is what the CONTROL byte may hold: its vendor specific bits. NACA is refused, since
// NORMACA in the INQUIRY data is 0 (SAM-5, 5.2).
const vendorControl = 0xc0

// maxUsage bounds the CDBs of the table, in bytes.
const maxUsage = 16

// setKnown collects what usage, ignored and the rules for all commands let pass.
func (op *operation) setKnown() {
	copy(op.known[:], op.usage)
	for i := range op.ignored {
		op.known[i+1] |= op.ignored[i]
	}
	if op.action != noAction {
		op.known[1] |= serviceActionMask
	}
	op.known[len(op.usage)-1] |= vendorControl
}

// checkCDB refuses a CDB that is too short or has bits set that the usage map does not know.
func (op *operation) checkCDB(cdb []byte) error {
	n := len(op.usage)
	if len(cdb) < n {
		return errShortCDB
	}
	known := op.known[:n]
	for i, b := range cdb[:n] {
		if bad := b &^ known[i]; bad != 0 {
			return invalidField(i, topBit(bad))
		}
	}
	return nil
}

// topBit is the number of the most significant bit of those that are set.
func topBit(b uint8) int { return bits.Len8(b) - 1 }
