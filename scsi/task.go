package scsi

import (
	"fmt"
	"slices"
	"sync/atomic"
)

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
//	Prepare ──done──────────────────────────────────────────► answer queued ─► Release
//	 ▲ │ └─ OutLen bytes fetched into Out, In with room for InLen (or Mapped) ─► Execute ─► answer queued,
//	 │ └Held─► Ready is called ─► Resume (goes on as Prepare)      ▲                │      Mapped: data left ─► Release
//	 │            └─ before: Withdraw                              └─── NeedsRoom ──┘
//
// From Prepare until Release (or Abandon, or Withdraw) a task is in the task set of its logical unit: others may
// wait for its end, and Device.Remove does. Release is due when the answer has been queued, so that the answers of
// ordered tasks stay in order; of a Mapped task, when the data has left: In is the store's memory, which must not be
// closed, nor written by a task that comes in order after this one, while a transport still sends from it.
type Task struct {
	// Set by the transport.
	Nexus *Nexus
	LUN   uint64 // 8-byte LUN as an integer
	CDB   []byte
	Attr  Attr
	EDTL  uint32 // expected data transfer length, bytes
	Read  bool   // the initiator expects Data-In
	Write bool   // the initiator will send Data-Out
	// Ready is called once, from any goroutine and without locks held, for a task that is Held when it may go on. It must
	// not block; what it does not do is call Resume itself. It may stay set for the next command.
	Ready func()
	// Out holds the Data-Out fetched (OutLen bytes in all), In is room for Data-In (InLen bytes in all),
	// as lists of buffers. Out is set between Prepare and Execute; In too, unless Mapped. Prepare clears
	// both.
	Out, In [][]byte

	// Held: other tasks of the unit come first (SAM-5, 8.6). Nothing has been decided, and nothing below is set, until
	// Resume. Set by Prepare, cleared by Resume and Withdraw.
	Held bool

	// Set by Prepare and Resume.
	Done   bool   // answered already; nothing to move or execute
	OutLen uint32 // Data-Out wanted: min(EDTL, what the CDB needs)
	InLen  uint32 // room wanted for Data-In: min(EDTL, the most that the CDB can give)
	// Mapped: In points at the store's own memory and needs no room. Call Device.Release once the data
	// has left.
	Mapped bool
	// MayBlock: Execute may wait for a device and must not run on a connection's loop.
	MayBlock bool

	// Set by Execute. NeedsRoom: nothing has been done yet. A task that was Mapped is not any more, since the
	// memory must not be read on the way out (gate.go); find room for InLen bytes in In and call Execute again.
	NeedsRoom bool

	// Set by Prepare (Done) or Execute.
	Status    Status
	InData    uint32 // Data-In bytes to transfer, a prefix of In
	Underflow bool
	Overflow  bool
	Residual  uint32 // bytes
	// Preempted lists nexuses whose tasks on this unit must end before the transport sends the answer,
	// all that arrived before now but this task itself (PREEMPT AND ABORT; SPC-4, 5.12.11.2.6). It may
	// have this task's own nexus. Nexuses without a session are not in it.
	//
	// The device server has done its part: nothing waits for the answer, and no worker needs to be kept
	// for it. If the task is aborted while it waits, it just ends: two of them that wait for each other
	// would wait for ever.
	Preempted []*Nexus
	stop      uint32 // atomic; see Stop
	sense     [MaxSense]byte
	senseLen  int

	// The place in the task set of lu; see taskSet.
	lu               *LogicalUnit // nil: in no task set
	place            place
	alone            bool
	setPrev, setNext *Task

	// What Prepare keeps for Execute.
	op       *operation
	lba      uint64
	blocks   uint64
	fua      bool
	mayTry   bool   // it is a read that the store may have at hand
	edtl     uint32 // EDTL in the direction of the data; 0 if no data can be moved
	expected uint64 // data the CDB calls for, bytes
	answer   []byte // parameter data, already cut to InLen
	mapBuf   [1][]byte
	begun    bool // inside the gate by the fast way
	counted  bool // by LogicalUnit.done
	pass     pass // inside by the list
}

// Sense is the sense data of a CHECK CONDITION, nil otherwise. It is valid until the next Prepare.
func (t *Task) Sense() []byte {
	if t.senseLen == 0 {
		return nil
	}
	return t.sense[:t.senseLen]
}

// Stop asks a task that Execute is busy with to end soon, if it is one that takes long: its answer will not be
// sent. Any goroutine may call it.
func (t *Task) Stop() { atomic.StoreUint32(&t.stop, 1) }

func (t *Task) stopped() bool { return atomic.LoadUint32(&t.stop) != 0 }

// Unit is the logical unit of a task that has been prepared and not released; nil if there is none.
func (t *Task) Unit() *LogicalUnit { return t.lu }

// reset forgets the task's earlier life. The bytes of sense may stay: senseLen hides them.
func (t *Task) reset() {
	t.Out, t.In = nil, nil
	t.Held, t.Done, t.OutLen, t.InLen, t.Mapped, t.MayBlock = false, false, 0, 0, false, false
	t.Status, t.InData, t.Underflow, t.Overflow, t.Residual = Good, 0, false, false, 0
	t.senseLen, t.Preempted = 0, nil
	if atomic.LoadUint32(&t.stop) != 0 { // looking is cheap, storing is not
		atomic.StoreUint32(&t.stop, 0)
	}
	t.op = nil
	t.lba, t.blocks, t.fua, t.mayTry = 0, 0, false, false
	t.edtl, t.expected, t.answer = t.EDTL, 0, nil
	t.mapBuf[0], t.NeedsRoom = nil, false
	if !t.Read && !t.Write {
		t.edtl = 0 // no direction, no data: the command runs as one without (ISER.md, 3.2)
	}
}

// wantIn says that the CDB gives need bytes. An initiator that said it would send data has no room for
// them: nothing moves, which is an overflow of all (libiscsi's test suite wants GOOD here).
func (t *Task) wantIn(need uint64) {
	if t.Write {
		t.edtl = 0
	}
	t.expected = need
	t.InLen = uint32(min(uint64(t.edtl), need))
}

// wantOut says that the CDB takes need bytes. Here the wrong direction is refused: GOOD would say that
// something was written.
func (t *Task) wantOut(need uint64) error {
	if t.Read && t.edtl > 0 && need > 0 {
		return errDirection
	}
	t.expected = need
	t.OutLen = uint32(min(uint64(t.edtl), need))
	return nil
}

// wantList says that the CDB takes a parameter list of n bytes, all of it: half of one could not be told from one. short
// is what an initiator gets that has less to send than the CDB says.
func (t *Task) wantList(n uint64, short error) error {
	if err := t.wantOut(n); err != nil {
		return err
	}
	if uint64(t.OutLen) < n {
		return short
	}
	return nil
}

// list is the parameter list that wantList has asked for, in one piece.
func (t *Task) list() []byte { return slices.Concat(t.Out...) }

// reply makes data the command's parameter data, cut to the CDB's allocation length. Cutting never
// changes the counts inside the data (SPC-4, 4.2.5.6), and an initiator that gave a smaller EDTL than
// allocation length asked for no more than EDTL: that is no overflow.
func (t *Task) reply(data []byte, allocation uint32) {
	t.replyFixed(data[:min(uint64(len(data)), uint64(allocation))])
	t.expected = uint64(t.InLen)
}

// replyFixed is reply for a CDB without an allocation length: a smaller EDTL is an overflow.
func (t *Task) replyFixed(data []byte) {
	t.wantIn(uint64(len(data)))
	t.answer = data[:t.InLen]
	t.Done = t.InLen == 0
}

// settle computes what is said of the data moved, and is the only place that does. Without an error
// the residual is the difference between what the CDB calls for and what the initiator expected; with
// one it is what was not moved, so that 0 bytes moved leave all of EDTL (RFC 7143, 11.4.5).
func (t *Task) settle(moved uint32, err error) {
	if err != nil {
		t.check(err)
		t.InData = 0
		if err != errPartialBlock {
			t.Residual = t.edtl - moved
			t.Underflow = t.Residual > 0
			return
		}
	} else {
		t.InData = t.InLen
	}
	switch edtl := uint64(t.edtl); {
	case t.expected > edtl:
		t.Residual, t.Overflow = uint32(t.expected-edtl), true
	case t.expected < edtl:
		t.Residual, t.Underflow = uint32(edtl-t.expected), true
	}
}

// length is the size of a list of buffers in bytes.
func length(bufs [][]byte) (n uint64) {
	for _, b := range bufs {
		n += uint64(len(b))
	}
	return n
}

// mustHold panics if the transport has not moved what Prepare asked for: going on would touch the
// wrong number of bytes of the store.
func (t *Task) mustHold() {
	if in, out := length(t.In), length(t.Out); in != uint64(t.InLen) || out != uint64(t.OutLen) {
		panic(fmt.Sprintf("scsi: %s with %d of %d bytes out, room for %d of %d bytes in",
			t.op.name, out, t.OutLen, in, t.InLen))
	}
}
