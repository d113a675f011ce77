package scsi

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
		access: accessWrite, flags: needsMedium | usesStore | forReaders,
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
		access: accessShared, prepare: prepareCopyStatus, execute: executeReply,
	},
	{
		name: "RECEIVE COPY OPERATING PARAMETERS", opcode: opCopyIn, action: copyActionParameters,
		usage:   "\x84\x03\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		ignored: "\x00\xff", // LIST IDENTIFIER
		access:  accessShared, prepare: prepareCopyParameters, execute: executeReply,
	},
	{
		name: "RECEIVE COPY FAILURE DETAILS(LID1)", opcode: opCopyIn, action: copyActionDetails,
		usage:  "\x84\x04\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00",
		access: accessShared, prepare: prepareCopyDetails, execute: executeReply,
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
		access:  accessWrite, flags: needsMedium | usesStore | forReaders,
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
		op.setKnown()
		byOpcode[op.opcode] = append(byOpcode[op.opcode], op)
	}
}
