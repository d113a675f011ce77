package scsi

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

// operations has one row a command, in the order of opcodes.
var operations = [...]operation{
	{
		name: "TEST UNIT READY", opcode: 0x00, action: noAction,
		usage: "\x00\x00\x00\x00\x00\x00", access: accessShared, flags: needsMedium,
		prepare: prepareNothing,
	},
	{
		name: "REQUEST SENSE", opcode: 0x03, action: noAction,
		usage: "\x03\x01\x00\x00\xff\x00", access: accessAlways, flags: anyLUN | ignoresAttention | inAnyState | duringSanitize,
		prepare: prepareRequestSense, execute: executeReply,
	},
	{
		name: "READ(6)", opcode: 0x08, action: noAction,
		usage: "\x08\x1f\xff\xff\xff\x00", access: accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareRead, execute: executeRead,
	},
	{
		name: "WRITE(6)", opcode: 0x0a, action: noAction,
		usage: "\x0a\x1f\xff\xff\xff\x00", access: accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWrite, execute: executeWrite,
	},
	{
		name: "INQUIRY", opcode: 0x12, action: noAction,
		usage: "\x12\x01\xff\xff\xff\x00", access: accessAlways, flags: anyLUN | ignoresAttention | inAnyState | duringSanitize,
		prepare: prepareInquiry, execute: executeReply,
	},
	{
		name: "MODE SELECT(6)", opcode: 0x15, action: noAction,
		usage: "\x15\x11\x00\x00\xff\x00", access: accessWrite, flags: inStandby,
		prepare: prepareModeSelect6, execute: executeModeSelect,
	},
	{
		name: "RESERVE(6)", opcode: 0x16, action: noAction,
		usage: "\x16\x00\x00\x00\x00\x00", access: accessOwn,
		prepare: prepareReserve,
	},
	{
		name: "RELEASE(6)", opcode: 0x17, action: noAction,
		usage: "\x17\x00\x00\x00\x00\x00", access: accessOwn,
		prepare: prepareRelease,
	},
	{
		name: "MODE SENSE(6)", opcode: 0x1a, action: noAction,
		usage: "\x1a\x08\xff\xff\xff\x00", access: accessRead, flags: inStandby,
		prepare: prepareModeSense6, execute: executeReply,
	},
	{
		name: "START STOP UNIT", opcode: 0x1b, action: noAction,
		usage: "\x1b\x01\x00\x00\xf7\x00", ignored: "\x00\x00\x0f", access: accessStart, flags: usesStore,
		prepare: prepareStartStop, execute: executeStop,
	},
	{
		name: "PREVENT ALLOW MEDIUM REMOVAL", opcode: 0x1e, action: noAction,
		// The medium is not removable (RMB is 0): there is nothing to prevent and no state to keep. The
		// upper bit of PREVENT is obsolete (SBC-3).
		usage: "\x1e\x00\x00\x00\x01\x00", access: accessPrevent,
		prepare: prepareNothing,
	},
	{
		name: "READ CAPACITY(10)", opcode: 0x25, action: noAction,
		usage: "\x25\x00\x00\x00\x00\x00\x00\x00\x00\x00", access: accessAlways,
		prepare: prepareReadCapacity10, execute: executeReply,
	},
	{
		name: "READ(10)", opcode: 0x28, action: noAction,
		usage: "\x28\xf8\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x07\x00\x00\x00\x00\xff",
		access: accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareRead, execute: executeRead,
	},
	{
		name: "WRITE(10)", opcode: 0x2a, action: noAction,
		usage: "\x2a\xf8\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x07\x00\x00\x00\x00\xff",
		access: accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWrite, execute: executeWrite,
	},
	{
		name: "WRITE AND VERIFY(10)", opcode: 0x2e, action: noAction,
		usage: "\x2e\xf6\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x01\x00\x00\x00\x00\xff",
		access: accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWriteAndVerify, execute: executeWriteAndVerify,
	},
	{
		name: "VERIFY(10)", opcode: 0x2f, action: noAction,
		usage: "\x2f\xf6\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x01\x00\x00\x00\x00\xff",
		access: accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareVerify, execute: executeVerify,
	},
	{
		name: "PRE-FETCH(10)", opcode: 0x34, action: noAction,
		usage: "\x34\x02\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x01\x00\x00\x00\x00\xff",
		access: accessRead, flags: needsMedium,
		prepare: preparePrefetch,
	},
	{
		name: "SYNCHRONIZE CACHE(10)", opcode: 0x35, action: noAction,
		usage: "\x35\x02\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x05\x00\x00\x00\x00\xff",
		access: accessWrite, flags: needsMedium | usesStore,
		prepare: prepareSynchronizeCache, execute: executeSynchronizeCache,
	},
	{
		name: "READ DEFECT DATA(10)", opcode: 0x37, action: noAction,
		usage:  "\x37\x00\x1f\x00\x00\x00\x00\xff\xff\x00",
		access: accessRead, flags: needsMedium,
		prepare: prepareReadDefects10, execute: executeReply,
	},
	{
		name: "WRITE SAME(10)", opcode: 0x41, action: noAction,
		usage: "\x41\xe8\xff\xff\xff\xff\x00\xff\xff\x00", ignored: "\x00\x00\x00\x00\x00\xff",
		access: accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWriteSame, execute: executeWriteSame,
	},
	{
		name: "UNMAP", opcode: 0x42, action: noAction,
		usage: "\x42\x00\x00\x00\x00\x00\x00\xff\xff\x00", ignored: "\x00\x00\x00\x00\x00\xff",
		access: accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		offered: (*LogicalUnit).provisioned,
		prepare: prepareUnmap, execute: executeUnmap,
	},
	{
		name: "SANITIZE, OVERWRITE", opcode: 0x48, action: sanitizeOverwrite,
		usage:  "\x48\xa1\x00\x00\x00\x00\x00\xff\xff\x00",
		access: accessWrite, flags: needsMedium | usesStore | duringSanitize, offered: (*LogicalUnit).sanitizes,
		prepare: prepareSanitize, execute: executeOverwrite,
	},
	{
		name: "SANITIZE, BLOCK ERASE", opcode: 0x48, action: sanitizeBlockErase,
		usage:  "\x48\xa2\x00\x00\x00\x00\x00\xff\xff\x00",
		access: accessWrite, flags: needsMedium | usesStore | duringSanitize, offered: (*LogicalUnit).erases,
		prepare: prepareSanitize, execute: executeBlockErase,
	},
	{
		name: "SANITIZE, EXIT FAILURE MODE", opcode: 0x48, action: sanitizeExitFailure,
		usage:  "\x48\xbf\x00\x00\x00\x00\x00\xff\xff\x00",
		access: accessWrite, flags: needsMedium | usesStore | duringSanitize, offered: (*LogicalUnit).sanitizes,
		prepare: prepareSanitize, execute: executeExitFailure,
	},
	{
		name: "MODE SELECT(10)", opcode: 0x55, action: noAction,
		usage: "\x55\x11\x00\x00\x00\x00\x00\xff\xff\x00", access: accessWrite, flags: inStandby,
		prepare: prepareModeSelect10, execute: executeModeSelect,
	},
	{
		name: "RESERVE(10)", opcode: 0x56, action: noAction,
		usage: "\x56\x00\x00\x00\x00\x00\x00\x00\x00\x00", access: accessOwn,
		prepare: prepareReserve,
	},
	{
		name: "RELEASE(10)", opcode: 0x57, action: noAction,
		usage: "\x57\x00\x00\x00\x00\x00\x00\x00\x00\x00", access: accessOwn,
		prepare: prepareRelease,
	},
	{
		name: "MODE SENSE(10)", opcode: 0x5a, action: noAction,
		usage: "\x5a\x18\xff\xff\x00\x00\x00\xff\xff\x00", access: accessRead, flags: inStandby,
		prepare: prepareModeSense10, execute: executeReply,
	},
	{
		name: "PERSISTENT RESERVE IN, READ KEYS", opcode: opPersistentIn, action: prReadKeys,
		usage: "\x5e\x00\x00\x00\x00\x00\x00\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentIn, execute: executeReply,
	},
	{
		name: "PERSISTENT RESERVE IN, READ RESERVATION", opcode: opPersistentIn, action: prReadReservation,
		usage: "\x5e\x01\x00\x00\x00\x00\x00\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentIn, execute: executeReply,
	},
	{
		name: "PERSISTENT RESERVE IN, REPORT CAPABILITIES", opcode: opPersistentIn, action: prReportCapabilities,
		usage: "\x5e\x02\x00\x00\x00\x00\x00\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentIn, execute: executeReply,
	},
	{
		name: "PERSISTENT RESERVE IN, READ FULL STATUS", opcode: opPersistentIn, action: prReadFullStatus,
		usage: "\x5e\x03\x00\x00\x00\x00\x00\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentIn, execute: executeReply,
	},
	{
		name: "PERSISTENT RESERVE OUT, REGISTER", opcode: opPersistentOut, action: prRegister,
		usage: "\x5f\x00\x00\x00\x00\xff\xff\xff\xff\x00", ignored: "\x00\xff", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, RESERVE", opcode: opPersistentOut, action: prReserve,
		usage: "\x5f\x01\xff\x00\x00\xff\xff\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, RELEASE", opcode: opPersistentOut, action: prRelease,
		usage: "\x5f\x02\xff\x00\x00\xff\xff\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, CLEAR", opcode: opPersistentOut, action: prClear,
		usage: "\x5f\x03\x00\x00\x00\xff\xff\xff\xff\x00", ignored: "\x00\xff", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, PREEMPT", opcode: opPersistentOut, action: prPreempt,
		usage: "\x5f\x04\xff\x00\x00\xff\xff\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, PREEMPT AND ABORT", opcode: opPersistentOut, action: prPreemptAndAbort,
		usage: "\x5f\x05\xff\x00\x00\xff\xff\xff\xff\x00", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY", opcode: opPersistentOut, action: prRegisterAndIgnore,
		usage: "\x5f\x06\x00\x00\x00\xff\xff\xff\xff\x00", ignored: "\x00\xff", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "PERSISTENT RESERVE OUT, REGISTER AND MOVE", opcode: opPersistentOut, action: prRegisterAndMove,
		usage: "\x5f\x07\x00\x00\x00\xff\xff\xff\xff\x00", ignored: "\x00\xff", access: accessPersistent, flags: inStandby,
		prepare: preparePersistentOut, execute: executePersistentOut,
	},
	{
		name: "EXTENDED COPY(LID1)", opcode: opCopyOut, action: copyActionLID1,
		usage:  "\x83\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessWrite, flags: needsMedium,
		prepare: prepareExtendedCopy, execute: executeExtendedCopy,
	},
	{
		name: "RECEIVE COPY STATUS(LID1)", opcode: opCopyIn, action: copyActionStatus,
		usage:  "\x84\x00\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessRead, prepare: prepareCopyStatus, execute: executeReply,
	},
	{
		name: "RECEIVE COPY OPERATING PARAMETERS", opcode: opCopyIn, action: copyActionParameters,
		usage:   "\x84\x03\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		ignored: "\x00\xff", // LIST IDENTIFIER
		access:  accessRead, prepare: prepareCopyParameters, execute: executeReply,
	},
	{
		name: "RECEIVE COPY FAILURE DETAILS(LID1)", opcode: opCopyIn, action: copyActionDetails,
		usage:  "\x84\x04\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessRead, prepare: prepareCopyDetails, execute: executeReply,
	},
	{
		name: "READ(16)", opcode: 0x88, action: noAction,
		usage:   "\x88\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareRead, execute: executeRead,
	},
	{
		name: "COMPARE AND WRITE", opcode: 0x89, action: noAction,
		usage:   "\x89\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\xff\x00\x00",
		ignored: "\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks | runsAlone,
		prepare: prepareCompareAndWrite, execute: executeCompareAndWrite,
	},
	{
		name: "WRITE(16)", opcode: 0x8a, action: noAction,
		usage:   "\x8a\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWrite, execute: executeWrite,
	},
	{
		name: "ORWRITE(16)", opcode: 0x8b, action: noAction,
		usage:   "\x8b\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks | runsAlone,
		prepare: prepareWrite, execute: executeOrWrite,
	},
	{
		name: "WRITE AND VERIFY(16)", opcode: 0x8e, action: noAction,
		usage:   "\x8e\xf6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWriteAndVerify, execute: executeWriteAndVerify,
	},
	{
		name: "VERIFY(16)", opcode: 0x8f, action: noAction,
		usage:   "\x8f\xf6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareVerify, execute: executeVerify,
	},
	{
		name: "PRE-FETCH(16)", opcode: 0x90, action: noAction,
		usage:   "\x90\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessRead, flags: needsMedium,
		prepare: preparePrefetch,
	},
	{
		name: "SYNCHRONIZE CACHE(16)", opcode: 0x91, action: noAction,
		usage:   "\x91\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore,
		prepare: prepareSynchronizeCache, execute: executeSynchronizeCache,
	},
	{
		name: "WRITE SAME(16)", opcode: 0x93, action: noAction,
		usage:   "\x93\xe9\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWriteSame, execute: executeWriteSame,
	},
	{
		name: "WRITE ATOMIC(16)", opcode: 0x9c, action: noAction,
		usage:   "\x9c\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\xff\xff\x00\x00",
		ignored: "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x3f",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks | runsAlone,
		offered: (*LogicalUnit).writesAtomic,
		prepare: prepareWriteAtomic, execute: executeWrite,
	},
	{
		name: "READ CAPACITY(16)", opcode: opServiceActionIn16, action: 0x10,
		usage:   "\x9e\x10\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access:  accessAlways,
		prepare: prepareReadCapacity16, execute: executeReply,
	},
	{
		name: "GET LBA STATUS", opcode: opServiceActionIn16, action: 0x12,
		usage:  "\x9e\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		access: accessRead, flags: needsMedium | usesStore,
		prepare: prepareLBAStatus, execute: executeLBAStatus,
	},
	{
		name: "REPORT LUNS", opcode: 0xa0, action: noAction,
		usage:  "\xa0\x00\xff\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessAlways, flags: anyLUN | ignoresAttention | inAnyState | duringSanitize,
		prepare: prepareReportLUNs, execute: executeReply,
	},
	{
		name: "REPORT TARGET PORT GROUPS", opcode: opMaintenanceIn, action: 0x0a,
		usage:  "\xa3\xea\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessAlways, flags: inAnyState,
		prepare: prepareReportGroups, execute: executeReply,
	},
	{
		name: "REPORT SUPPORTED OPERATION CODES", opcode: opMaintenanceIn, action: 0x0c,
		usage:  "\xa3\x0c\x87\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		access: accessRead, flags: duringSanitize,
		prepare: prepareReportOpcodes, execute: executeReply,
	},
	{
		name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", opcode: opMaintenanceIn, action: 0x0d,
		usage:  "\xa3\x0d\x80\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessRead, flags: duringSanitize,
		prepare: prepareReportTMFs, execute: executeReply,
	},
	{
		name: "SET TARGET PORT GROUPS", opcode: opMaintenanceOut, action: 0x0a,
		usage:  "\xa4\x0a\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessWrite, flags: inStandby | inUnavailable,
		prepare: prepareSetGroups, execute: executeSetGroups,
	},
	{
		name: "READ(12)", opcode: 0xa8, action: noAction,
		usage:   "\xa8\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x07\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareRead, execute: executeRead,
	},
	{
		name: "WRITE(12)", opcode: 0xaa, action: noAction,
		usage:   "\xaa\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x07\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWrite, execute: executeWrite,
	},
	{
		name: "WRITE AND VERIFY(12)", opcode: 0xae, action: noAction,
		usage:   "\xae\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x01\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessWrite, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareWriteAndVerify, execute: executeWriteAndVerify,
	},
	{
		name: "VERIFY(12)", opcode: 0xaf, action: noAction,
		usage:   "\xaf\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		ignored: "\x01\x00\x00\x00\x00\x00\x00\x00\x00\xff",
		access:  accessRead, flags: needsMedium | usesStore | touchesBlocks,
		prepare: prepareVerify, execute: executeVerify,
	},
	{
		name: "READ DEFECT DATA(12)", opcode: 0xb7, action: noAction,
		usage:  "\xb7\x1f\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
		access: accessRead, flags: needsMedium,
		prepare: prepareReadDefects12, execute: executeReply,
	},
}

// byOpcode has the rows of each opcode. It is a table apart because REPORT SUPPORTED OPERATION CODES,
// itself a row, reads it.
var byOpcode [256][]*operation

func init() {
	for i := range operations {
		op := &operations[i]
		byOpcode[op.opcode] = append(byOpcode[op.opcode], op)
	}
}

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

// checkCDB refuses a CDB that is too short or has bits set that the usage map does not know.
func (op *operation) checkCDB(cdb []byte) error {
	n := len(op.usage)
	if len(cdb) < n {
		return errShortCDB
	}
	for i := 1; i < n; i++ {
		known := op.usage[i]
		if i <= len(op.ignored) {
			known |= op.ignored[i-1]
		}
		switch {
		case i == 1 && op.action != noAction:
			known |= serviceActionMask
		case i == n-1:
			known |= vendorControl
		}
		if bad := cdb[i] &^ known; bad != 0 {
			return invalidField(i, topBit(bad))
		}
	}
	return nil
}

// topBit is the number of the most significant bit set.
func topBit(b uint8) int {
	n := 0
	for b > 1 {
		b >>= 1
		n++
	}
	return n
}
