package initiator

import (
	"context"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// A Transport opens connections of one kind, for example iscsi/tcp's or iser's.
type Transport interface {
	// Name is the URL scheme's transport: "tcp" or "iser".
	Name() string
	// Dial connects to host:port, ready for the login phase.
	Dial(ctx context.Context, address string) (iscsi.InitiatorDatamover, error)
}

// Options are how a session is opened. The zero value will do.
type Options struct {
	// InitiatorName is ours; empty makes one from the host name.
	InitiatorName string
	// ISID; zero makes a random one (RFC 7143, 11.12.5, type 10b).
	ISID iscsi.ISID
	// Negotiate is what we offer; nil takes iscsi.DefaultConfig.
	Negotiate *iscsi.Config
	// LoginTimeout bounds connecting and logging in; 0 means 15 s.
	LoginTimeout time.Duration
	// CommandTimeout is when a command without answer is aborted; 0 means 30 s.
	CommandTimeout time.Duration
	// PingInterval is the idle time before a NOP-Out; 0 means 10 s, negative never.
	PingInterval time.Duration
	// QueueDepth bounds commands outstanding, within the target's window; 0 means 64.
	QueueDepth int
	// Log gets one line an event; nil discards.
	Log logrus.FieldLogger
}

// A TargetRecord is one answer of discovery (SendTargets).
type TargetRecord struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"` // "ip:port,tag"
}

// Discover asks the portal at address for its targets.
func Discover(ctx context.Context, tr Transport, address string, o Options) ([]TargetRecord, error) {
	panic("not written")
}

// A Session is a logged-in normal session with one connection. Its methods may be called from many
// goroutines.
type Session struct{}

// Open logs in to target at address.
func Open(ctx context.Context, tr Transport, address, target string, o Options) (*Session, error) {
	panic("not written")
}

// Params are the negotiated keys.
func (s *Session) Params() iscsi.Params { panic("not written") }

// Done is closed when the session is over; Err then says why.
func (s *Session) Done() <-chan struct{} { panic("not written") }
func (s *Session) Err() error            { panic("not written") }

// Close logs out and closes the connection. It returns when all goroutines have ended.
func (s *Session) Close() error { panic("not written") }

// A Command is one SCSI command with its buffers. At most one of In and Out is set.
type Command struct {
	LUN iscsi.LUN
	CDB []byte
	In  []byte // room for data from the target
	Out []byte // data for the target; not changed, not kept after Do returns
	// EDTL overrides the expected data transfer length, bytes; 0 means the buffer's length.
	Attr iscsi.TaskAttr
}

// A Result is a command's outcome.
type Result struct {
	Status    uint8
	Sense     []byte
	Received  int // bytes of In that hold data
	Underflow bool
	Overflow  bool
	Residual  int
}

// Do runs a command and waits for its end. err is about the session or the context, not about the SCSI
// status: see Result.Err. If ctx ends first the task is aborted; Do returns at once, and c's buffers are
// not touched any more.
func (s *Session) Do(ctx context.Context, c Command) (Result, error) { panic("not written") }

// Err is nil for GOOD and CONDITION MET, else a *StatusError.
func (r Result) Err() error { panic("not written") }

// A StatusError is a SCSI status other than GOOD, with its sense data in words.
type StatusError struct {
	Status         uint8
	Key, ASC, ASCQ uint8
	Sense          []byte
}

func (e *StatusError) Error() string { panic("not written") }

// Ping sends a NOP-Out and waits for its answer.
func (s *Session) Ping(ctx context.Context) (time.Duration, error) { panic("not written") }

// TaskManagement asks for a function on a logical unit.
func (s *Session) TaskManagement(ctx context.Context, f iscsi.TMFunction, lun iscsi.LUN) (iscsi.TMResponse, error) {
	panic("not written")
}

// LUNs asks REPORT LUNS.
func (s *Session) LUNs(ctx context.Context) ([]iscsi.LUN, error) { panic("not written") }

// Inquiry returns standard INQUIRY data, or a VPD page if vpd is true.
func (s *Session) Inquiry(ctx context.Context, lun iscsi.LUN, vpd bool, page uint8) ([]byte, error) {
	panic("not written")
}

// A Disk is one logical unit, ready for I/O.
type Disk struct{}

// Disk waits for the unit to be ready (unit attentions are taken and logged) and reads its capacity.
func (s *Session) Disk(ctx context.Context, lun iscsi.LUN) (*Disk, error) { panic("not written") }

// SizeBytes is the capacity, BlockSize the logical block size in bytes.
func (d *Disk) SizeBytes() int64 { panic("not written") }
func (d *Disk) BlockSize() int   { panic("not written") }
func (d *Disk) ReadOnly() bool   { panic("not written") }

// ReadAt and WriteAt move whole blocks: off and len(p) are multiples of BlockSize. Requests longer than
// the target takes are split and run side by side. Errors are *StatusError or of the session.
func (d *Disk) ReadAt(ctx context.Context, p []byte, off int64) error  { panic("not written") }
func (d *Disk) WriteAt(ctx context.Context, p []byte, off int64) error { panic("not written") }

// Flush sends SYNCHRONIZE CACHE for the whole unit.
func (d *Disk) Flush(ctx context.Context) error { panic("not written") }
