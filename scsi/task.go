package scsi

// Status is a SAM-5 status code (5.3.1).
type Status uint8

// The status codes.
const (
	Good                Status = 0x00
	CheckCondition      Status = 0x02
	ConditionMet        Status = 0x04
	Busy                Status = 0x08
	ReservationConflict Status = 0x18
	TaskSetFull         Status = 0x28
	ACAActive           Status = 0x30
	TaskAborted         Status = 0x40
)

// Attr is a task attribute (SAM-5, 8.6), in iSCSI's encoding.
type Attr uint8

// The task attributes.
const (
	Untagged Attr = iota
	Simple
	Ordered
	HeadOfQueue
)

// MaxCDB is the longest CDB taken, in bytes.
const MaxCDB = 260

// MaxSense is the longest sense data made, in bytes: iSER initiators have room for 126.
const MaxSense = 96

// A Task is one SCSI command. The transport sets the first part, calls Device.Prepare, moves the data
// that Prepare asks for, calls Device.Execute, and reads the last part. It may be reused: Prepare resets
// what it sets. Neither call allocates for READ and WRITE.
//
//	Prepare ──done──────────────────────────────► answer
//	   └─ OutLen bytes fetched into Out, In with room for InLen (or Mapped) ─► Execute ─► answer
type Task struct {
	// Set by the transport.
	Nexus *Nexus
	LUN   uint64 // 8-byte LUN as an integer
	CDB   []byte
	Attr  Attr
	EDTL  uint32 // expected data transfer length, bytes
	Read  bool   // the initiator expects Data-In
	Write bool   // the initiator will send Data-Out
	// Out holds the Data-Out fetched (OutLen bytes), In is room for Data-In (InLen bytes), as lists of
	// buffers. Out is set between Prepare and Execute; In too, unless Mapped.
	Out, In [][]byte

	// Set by Prepare.
	Done   bool   // answered already; nothing to move or execute
	OutLen uint32 // Data-Out wanted: min(EDTL, what the CDB needs)
	InLen  uint32 // room wanted for Data-In: min(EDTL, the most that the CDB can give)
	// Mapped: In points at the store's own memory and needs no room.
	Mapped bool
	// MayBlock: Execute may wait for a device and must not run on a connection's loop.
	MayBlock bool

	// Set by Prepare (Done) or Execute.
	Status    Status
	InData    uint32 // Data-In bytes to transfer, a prefix of In
	Underflow bool
	Overflow  bool
	Residual  uint32 // bytes
	sense     [MaxSense]byte
	senseLen  int

	// What Prepare keeps for Execute.
	lu       *LogicalUnit
	op       *operation
	lba      uint64
	blocks   uint64
	fua      bool
	expected uint64 // data the CDB calls for, bytes
	mapBuf   [1][]byte
}

// Sense is the sense data of a CHECK CONDITION, nil otherwise. It is valid until the next Prepare.
func (t *Task) Sense() []byte { return t.sense[:t.senseLen] }

type operation struct{}
