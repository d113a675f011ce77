package target

import (
	"context"
	"net/netip"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// Config is what a Server needs.
type Config struct {
	// Pool is where data buffers come from; it is registered with every listener.
	Pool *arena.Pool
	// Log gets one line an event; nil discards.
	Log logrus.FieldLogger
	// MaxSessions bounds sessions in full-feature phase, MaxLogins connections before it. 0: 64, 64.
	MaxSessions, MaxLogins int
	// Window is the largest command window of a session, 1 to 128; 0 means 128.
	Window int
	// MaxTransfer bounds a command's data, in bytes; 0 means 4 MiB.
	MaxTransfer uint32
	// LoginTimeout closes a connection that has not logged in; 0 means 15 s.
	LoginTimeout time.Duration
	// PingInterval is the idle time after which a session is pinged (NOP-In); 0 means 30 s, negative
	// never. A session that does not answer within PingTimeout (0: 10 s) is closed.
	PingInterval, PingTimeout time.Duration
	// Workers bounds how many commands run on stores that may block; 0 means 32.
	Workers int
}

// A Server serves targets on portals.
type Server struct{}

// New makes a server without targets or portals.
func New(c Config) *Server { panic("not written") }

// TargetConfig describes a target.
type TargetConfig struct {
	Name  iscsi.Name
	Alias string
	// Device holds the logical units.
	Device *scsi.Device
	// Negotiate is what the target answers to operational keys.
	Negotiate iscsi.Config
	// Allow lists initiator names that may log in; empty means any.
	Allow []string
}

// A Target is one iSCSI target node.
type Target struct{}

// AddTarget starts to serve a target on every portal.
func (s *Server) AddTarget(c TargetConfig) (*Target, error) { panic("not written") }

// RemoveTarget closes a target's sessions and forgets it.
func (s *Server) RemoveTarget(name iscsi.Name) error { panic("not written") }

// Targets lists the targets, by name.
func (s *Server) Targets() []*Target { panic("not written") }

// Name is the target's iSCSI name, Device its SCSI device.
func (t *Target) Name() iscsi.Name     { panic("not written") }
func (t *Target) Device() *scsi.Device { panic("not written") }

// PortalConfig describes a network portal.
type PortalConfig struct {
	// Tag is the portal group tag; 0 means 1.
	Tag uint16
	// Advertise is what discovery answers in place of the listener's address; zero takes the address
	// that the discovering initiator has connected to.
	Advertise netip.AddrPort
}

// Serve accepts connections of a listener until Shutdown or until the listener is closed; it returns at
// once and owns l from then on. Memory that must be registered (the pool, stores in memory) is.
func (s *Server) Serve(l iscsi.Listener, c PortalConfig) error { panic("not written") }

// RegisterMemory makes memory known to every listener, present and future (a store in RAM);
// UnregisterMemory takes it back.
func (s *Server) RegisterMemory(mem []byte) error   { panic("not written") }
func (s *Server) UnregisterMemory(mem []byte) error { panic("not written") }

// SessionInfo is a snapshot of one session.
type SessionInfo struct {
	TSIH            uint16
	Initiator       string
	Target          string // empty: discovery
	Transport       string
	Remote          string
	Since           time.Time
	Params          iscsi.Params
	Commands        uint64
	ReadBytes       uint64
	WrittenBytes    uint64
	Errors, Rejects uint64
}

// Sessions lists the sessions in full-feature phase.
func (s *Server) Sessions() []SessionInfo { panic("not written") }

// Shutdown stops accepting, asks initiators to log out (Async Message, event 1), waits for commands in
// progress until ctx ends, closes every connection and returns when all goroutines have ended. Stores are
// the caller's to flush and close.
func (s *Server) Shutdown(ctx context.Context) error { panic("not written") }
