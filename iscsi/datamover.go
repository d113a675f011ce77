package iscsi

import (
	"context"
	"net"
	"time"
)

// The Datamover interface (RFC 5047): what a session engine needs of a transport.
//
// One goroutine, the connection's loop, owns a datamover and calls everything but Wake and Close.
// A round of that loop is
//
//	n, err := dm.Wait(events, deadline)   // all that has happened, up to len(events)
//	for each event: decide; queue Sends, Puts, Gets
//	err = dm.Flush()                      // post the round's work in one batch
//
// Nothing is transmitted before Flush (a datamover may do so earlier, in order, when its queue is
// full). What is queued leaves in the order in which it was queued.

// Traits are what an engine must know of a transport to negotiate keys (RFC 7145, 6).
type Traits struct {
	// Name is "tcp" or "iser".
	Name string
	// RDMA is set where RDMAExtensions=Yes and the two iSER length keys are negotiated in place of
	// digests and MaxRecvDataSegmentLength.
	RDMA bool
	// MaxLoginData is the longest data segment, in bytes, of a login or discovery text PDU.
	MaxLoginData int
	// MaxSendData caps the data segment, in bytes, of a control PDU in a normal session's full-feature
	// phase, whatever was negotiated; 0 means no cap beyond the negotiated one.
	MaxSendData int
	// MaxRecvData is the longest data segment the transport can receive in full-feature phase, in
	// bytes: what we declare (MaxRecvDataSegmentLength or the iSER keys).
	MaxRecvData int
	// DefaultInitialR2T is the target's answer unless configured otherwise.
	DefaultInitialR2T bool
	// Acknowledged is set where a transfer is released only once the peer has it: a connection may then
	// be closed behind its last PDU.
	Acknowledged bool
}

// A Sequence holds a connection's numbers. The engine owns it; the datamover reads it, on the same
// goroutine, when it builds a Data-In or R2T PDU by itself.
type Sequence struct {
	StatSN   StatSN // next to be used; at the initiator, next expected
	ExpCmdSN CmdSN
	MaxCmdSN CmdSN
}

// EventKind tells what an Event is.
type EventKind uint8

// The events of a datamover. RFC 5047's names are in brackets.
const (
	// EventPDU: a control PDU has arrived [Control_Notify]. At the target that includes unsolicited
	// Data-Out. At the initiator all Data-In of the task has been placed before its SCSI Response is
	// delivered; a Data-In PDU with status is delivered as the SCSI Response it stands for.
	EventPDU EventKind = iota + 1
	// EventGot: all of a GetData is in its buffers [Data_Completion_Notify]. Target only.
	EventGot
	// EventReleased: the datamover uses no memory of the transfer any more: everything that was queued
	// for it has left and has been acknowledged as far as memory is concerned.
	//
	// Target: comes once after each Respond (and once after Abort). The engine may then reuse the
	// transfer and its buffers. Initiator: comes once for every SendCommand, before or after the
	// response's EventPDU, also when the connection has died.
	EventReleased
)

// An Event is one thing that happened on a connection. BHS, AHS and Data are views of receive memory,
// valid until the next Flush.
type Event struct {
	Kind EventKind
	// Transfer is set for EventGot and EventReleased and, at the initiator, for the EventPDU of a SCSI
	// Response whose task is known.
	Transfer *Transfer
	// Remote goes with a SCSI Command: copy it to the Transfer made for the command.
	Remote Remote
	BHS    *[BHSSize]byte
	AHS    []byte
	Data   []byte // the data segment, without padding
	// DigestError: the data digest did not match (RFC 7143, 7.8); Data must not be used.
	DigestError bool
}

// Remote names the initiator's memory that a SCSI Command offered, in the transport's own terms.
// Only the datamover that made it looks inside.
type Remote [4]uint64

// A Transfer is one SCSI task as the datamover sees it. The engine embeds one in its task, sets the
// exported fields and hands the pointer over; a datamover never keeps it longer than EventReleased.
type Transfer struct {
	// Tag is the engine's index of the task; datamovers do not look at it.
	Tag    uint32
	ITT    uint32
	LUN    LUN
	EDTL   uint32 // expected data transfer length, bytes
	Remote Remote // target: from the command's Event
	// Unsolicited is the number of bytes that came or will come without R2T: at the target all that was
	// announced by the command (immediate data and, with F=0, up to FirstBurstLength).
	Unsolicited uint32
	// In and Out are the caller's buffers, at the initiator only: read data is placed in In, write data
	// taken from Out. Each totals at most EDTL bytes.
	In, Out [][]byte
	// InPlace, at the initiator: In or Out is one buffer, as long as EDTL, within memory given to
	// Registrar.Register. It may be used without a copy, until EventReleased or Close: Detach must not be
	// called.
	InPlace bool

	// DM is the datamover's own state of the transfer; the engine leaves it alone.
	DM TransferState
}

// TransferState is what a datamover keeps in a Transfer. Its meaning is the datamover's alone. The
// zero value is "not in use"; a datamover zeroes it with EventReleased.
type TransferState struct {
	Bufs    [][]byte
	Index   uint32
	Pending int32
	Offset  uint32
	End     uint32
	SN      uint32
	Tag     uint32
	Flags   uint32
	Words   [6]uint64
	Ptr     any
}

// A Datamover is one connection's transport, as both engines see it.
type Datamover interface {
	// Traits describes the transport.
	Traits() Traits
	// LocalAddr and RemoteAddr are the connection's ends, for discovery answers and logs.
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	// Wait blocks until something has happened, Wake was called, or deadline (zero: none) has passed,
	// and returns how many events it has put into evs; 0 after a wake-up or at the deadline. An error
	// means that the connection is over [Connection_Terminate_Notify]: after it, Wait delivers at most
	// the EventReleased that are due and then the same error again. It wraps net.ErrClosed after Close,
	// io.EOF when the peer closed in order. Frames that break the transport's own rules are such errors.
	Wait(evs []Event, deadline time.Time) (int, error)
	// Send queues one control PDU [Send_Control]. bhs (with its TotalAHSLength and DataSegmentLength
	// set) and data (at most one segment, unpadded) are copied before Send returns.
	Send(bhs *[BHSSize]byte, data []byte)
	// Enable hands over the negotiated keys [Notice_Key_Values, Enable_Datamover] and the connection's
	// numbers, before the last login PDU is queued: at the target the final Login Response, at the
	// initiator the first request that asks for full-feature phase calls Prepare instead, and Enable
	// follows the final Login Response. Digests never apply to login PDUs.
	Enable(p *Params, seq *Sequence) error
	// Flush transmits what is queued, in one batch, and ends the life of the last events' views.
	// It does not wait for the peer. An error means that the connection is over.
	Flush() error
	// Idle reports whether everything queued has left: the moment to close after a last PDU.
	Idle() bool
	// Wake makes a Wait, the present or the next one, return. Any goroutine may call it.
	Wake()
	// Close ends the connection at once and frees its memory; EventReleased need not be waited for
	// after it returns. Calling it again is harmless. Only the loop calls it; others make the loop do so.
	Close() error
}

// A TargetDatamover carries the data of a target's tasks.
type TargetDatamover interface {
	Datamover
	// CanPut and CanGet report whether the command offered memory for its Data-In, or for the Data-Out
	// behind the unsolicited part, of EDTL bytes (ITT, EDTL, Remote and Unsolicited of t are set). Where
	// false, PutData or GetData must not be called for it: the engine ends the task with CHECK CONDITION
	// 0B/00/00. Over TCP both are always true; over iSER false means a missing or zero STag or an address
	// that wraps.
	CanPut(t *Transfer) bool
	CanGet(t *Transfer) bool
	// PutData queues data for the initiator's memory at offset off of the task [Put_Data]: Data-In PDUs
	// or RDMA Writes. bufs, and the slice itself, stay valid and unchanged until the EventReleased of
	// the task's Respond.
	PutData(t *Transfer, bufs [][]byte, off uint32)
	// GetData fetches bytes [off, off+total of bufs) of the task from the initiator [Get_Data]: R2T and
	// Data-Out, or RDMA Reads. One EventGot when all are there. bufs and the slice stay valid until
	// then, or until the EventReleased of Abort. One GetData at a time for a transfer.
	GetData(t *Transfer, bufs [][]byte, off uint32)
	// Respond queues the task's last PDU after all that was queued before; EventReleased follows.
	// bhs and data are copied. For a SCSI Response the transport may tell the initiator's device that
	// its memory is free again (Send with Invalidate), and may merge it with the last Data-In.
	// Other PDUs whose sending must be noticed (Logout and Task Management Response) use it too.
	Respond(t *Transfer, bhs *[BHSSize]byte, data []byte)
	// Abort drops what the transfer still waits for. EventReleased follows, once nothing of it is in
	// flight; no Respond may follow.
	Abort(t *Transfer)
}

// A Resizer is a datamover that cuts data into PDUs by MaxRecvDataSegmentLength, which the peer may declare
// anew at any time (RFC 7143, 13.12). From the call on no data segment is longer than n bytes, which are at
// least 512. The connection's loop calls it.
type Resizer interface {
	SetMaxSendData(n uint32)
}

// An InitiatorDatamover carries the data of an initiator's tasks.
type InitiatorDatamover interface {
	Datamover
	// Prepare makes room for full-feature phase: called before the first login request that asks for it.
	Prepare(p *Params) error
	// SendCommand queues a SCSI Command with its data: it sets the F bit, DataSegmentLength, immediate
	// data and unsolicited Data-Out as negotiated, offers t's memory, and later answers R2Ts, or lets
	// the peer fetch and place data, by itself. Data lands in t.In and is taken from t.Out without
	// more calls, on the loop's goroutine.
	// A command may wait, and all behind it, for the transport's memory; immediate NOP-Outs pass it.
	SendCommand(t *Transfer, bhs *[BHSSize]byte, ahs []byte)
	// Received tells how many bytes of t.In have been placed. The number outlives EventReleased, which may
	// come in the same batch as the response, until the transfer's next SendCommand.
	Received(t *Transfer) uint32
	// Detach parts a transfer from the caller's buffers: after it returns they are not touched any more,
	// whatever the peer does. The transfer itself goes on until EventReleased.
	Detach(t *Transfer)
	// Forget ends a task that will get no response (aborted): EventReleased follows as soon as no memory
	// is in use.
	Forget(t *Transfer)
}

// A Registrar is an InitiatorDatamover that can move data to and from its callers' memory without a copy. The
// connection's loop calls it.
type Registrar interface {
	// Register makes mem, which is not of Go's heap and stays mapped until Unregister or Close, usable for
	// Transfer.InPlace. Memory that overlaps other such memory is an error. One that wraps errors.ErrUnsupported
	// says that the device has no keys that end with one command: the peer could reach the memory of a command that
	// was given up for ever.
	Register(mem []byte) error
	// Unregister ends that. No transfer may use mem; what was not registered is ignored.
	Unregister(mem []byte) error
}

// A Listener accepts connections of one transport for a target.
type Listener interface {
	// Accept waits for the next connection; the datamover is ready for the login phase. An error that
	// wraps net.ErrClosed ends the listener, others are of one connection and may be retried.
	Accept(ctx context.Context) (TargetDatamover, error)
	// Addr is where the listener listens.
	Addr() net.Addr
	// Transport is the Traits.Name of its connections.
	Transport() string
	// Register makes memory outside Go's heap usable without a copy in PutData and GetData, for as long
	// as the listener lives or until Unregister. Transports without registration do nothing.
	Register(mem []byte) error
	Unregister(mem []byte) error
	Close() error
}
