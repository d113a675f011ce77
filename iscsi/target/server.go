package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/arena"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/scsi"
	"github.com/sirupsen/logrus"
)

// Config is what a Server needs.
type Config struct {
	// Pool is where data buffers come from; it is registered with every listener. Half of it is kept for
	// data that initiators send unasked, and gives sessions their command windows; the other half bounds
	// a single transfer.
	Pool *arena.Pool
	// Log gets one line an event; nil discards.
	Log logrus.FieldLogger
	// MaxSessions bounds sessions in full-feature phase, MaxLogins connections before it. 0: 64, 64.
	MaxSessions, MaxLogins int
	// MaxInitiatorSessions bounds the sessions of one initiator name, MaxPeerConnections the connections in
	// full-feature phase from one address (of IPv6, from one /64). 0: no bound of their own.
	MaxInitiatorSessions, MaxPeerConnections int
	// Window is the largest command window of a session, 1 to 128; 0 means 128.
	Window int
	// MaxTransfer bounds a command's data, in bytes; 0 means 4 MiB.
	MaxTransfer uint32
	// LoginTimeout closes a connection that has not logged in; 0 means 15 s.
	LoginTimeout time.Duration
	// PingInterval is the idle time after which a session is pinged (NOP-In); 0 means 30 s, negative
	// never. A session that does not answer within PingTimeout (0: 10 s) is closed.
	PingInterval, PingTimeout time.Duration
	// Discovery is what initiators have to prove for a discovery session; nil: nothing. NoDiscovery refuses such
	// sessions.
	Discovery   *chap.Credentials
	NoDiscovery bool
	// Workers bounds how many commands run on stores that may block; 0 means 32.
	Workers int
}

// Defaults of Config.
const (
	defaultMaxSessions  = 64
	defaultMaxLogins    = 64
	defaultMaxTransfer  = 4 << 20
	defaultLoginTimeout = 15 * time.Second
	defaultPingInterval = 30 * time.Second
	defaultPingTimeout  = 10 * time.Second
	defaultWorkers      = 32
)

// maxSessions is how many TSIHs there are.
const maxSessions = math.MaxUint16

// A Server serves targets on portals. Its methods may be called from any goroutine.
type Server struct {
	c           Config
	log         logrus.FieldLogger
	quiet       limiter // for log lines that peers can cause without having logged in
	faults      limiter // for those that stores can cause
	tallies     tallies
	challenger  *chap.Challenger
	reserve     *reserve
	workers     *workers
	maxTransfer uint32 // bytes: what the pool can give

	// setup lets one caller at a time change portals and registered memory; registering may take long,
	// and sessions must not wait for it.
	setup  sync.Mutex
	memory [][]byte // registered with every listener; setup guards it

	wg      sync.WaitGroup // connections' loops
	mu      sync.Mutex     // guards what follows
	changed sync.Cond      // a connection or session has gone, or the server has
	targets map[iscsi.Name]*Target
	portals []*portal
	// conns are all connections; logins those that have not logged in, the oldest first.
	conns    map[*conn]struct{}
	logins   []*conn
	sessions map[uint16]*session
	byKey    map[sessionKey]*session
	lastTSIH uint16
	ended    Stats // what sessions that have ended had counted
	// What a discovery session takes: Config's, or what SetDiscovery has said.
	discovery   *chap.Credentials
	noDiscovery bool
	closing     bool
	closed      bool
}

// New makes a server without targets or portals. Config.Pool must be set.
func New(c Config) *Server {
	if c.Pool == nil {
		panic("target: Config.Pool is nil")
	}
	if err := checkAuth(c.Discovery); err != nil {
		panic(fmt.Sprintf("target: Config.Discovery: %v", err))
	}
	setDefault(&c.MaxSessions, defaultMaxSessions)
	c.MaxSessions = min(c.MaxSessions, maxSessions)
	setDefault(&c.MaxLogins, defaultMaxLogins)
	setDefault(&c.Window, maxWindow)
	c.Window = min(c.Window, maxWindow)
	setDefault(&c.MaxTransfer, defaultMaxTransfer)
	setDefault(&c.LoginTimeout, defaultLoginTimeout)
	if c.PingInterval == 0 {
		c.PingInterval = defaultPingInterval
	}
	setDefault(&c.PingTimeout, defaultPingTimeout)
	setDefault(&c.Workers, defaultWorkers)
	s := &Server{
		c:          c,
		log:        c.Log,
		challenger: chap.NewChallenger(),
		workers:    newWorkers(c.Workers),
		targets:    make(map[iscsi.Name]*Target),
		conns:      make(map[*conn]struct{}),
		sessions:   make(map[uint16]*session),
		byKey:      make(map[sessionKey]*session),
		memory:     [][]byte{c.Pool.Memory()},
		discovery:  c.Discovery, noDiscovery: c.NoDiscovery,
	}
	if s.log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		s.log = l
	}
	s.changed.L = &s.mu
	s.tallies.open()
	s.reserve = newReserve(c.Pool, c.MaxSessions*c.Window)
	s.reserve.sessions = c.MaxSessions
	rest := int64(c.Pool.Chunks()-len(s.reserve.chunks)) * arena.ChunkSize
	s.maxTransfer = uint32(min(int64(c.MaxTransfer), rest))
	return s
}

func setDefault[T int | uint32 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// TargetConfig describes a target.
type TargetConfig struct {
	Name  iscsi.Name
	Alias string
	// Device holds the logical units.
	Device *scsi.Device
	// Negotiate is what the target answers to operational keys. MaxConnections is 4 at most.
	Negotiate iscsi.Config
	// Allow lists initiator names that may log in, beside those that have an entry in Initiators; if both are empty,
	// any may. AllowFrom lists the networks from which; empty means any.
	Allow     []string
	AllowFrom []netip.Prefix
	// Groups lists the tags of the portal groups through which the target is served and seen; empty means all.
	Groups []uint16
	// Redirect sends initiators elsewhere; nil: nowhere.
	Redirect *Redirect
	// Auth is what initiators without an entry have to prove; nil: nothing.
	Auth *chap.Credentials
	// Initiators are what is different for single initiators.
	Initiators []InitiatorConfig
}

// A Target is one iSCSI target node. It does not change (see manage.go).
type Target struct {
	node   *node
	c      TargetConfig
	rights rights
}

// newTarget checks a target's settings.
func newTarget(c TargetConfig) (*Target, error) {
	name, err := iscsi.ParseName(string(c.Name))
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	if c.Device == nil {
		return nil, fmt.Errorf("target %s: no device", name)
	}
	if err := c.Redirect.check(); err != nil {
		return nil, fmt.Errorf("target %s: %w", name, err)
	}
	c.Name = name
	c.Negotiate.MaxConnections = min(c.Negotiate.MaxConnections, maxConnections)
	t := &Target{c: c, node: &node{}}
	if t.rights, err = newRights(&c); err != nil {
		return nil, fmt.Errorf("target %s: %w", name, err)
	}
	return t, nil
}

// AddTarget starts to serve a target on the portals of its groups.
func (s *Server) AddTarget(c TargetConfig) (*Target, error) {
	t, err := newTarget(c)
	if err != nil {
		return nil, err
	}
	name := t.c.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, fmt.Errorf("target %s: %w", name, errServerClosed)
	}
	if s.targets[name] != nil {
		return nil, fmt.Errorf("target %s: exists already", name)
	}
	s.targets[name] = t
	return t, nil
}

// ErrNoTarget is returned for a name that no target has.
var ErrNoTarget = errors.New("no such target")

// RemoveTarget closes a target's sessions and forgets it. It returns when no command of them runs any
// more.
func (s *Server) RemoveTarget(name iscsi.Name) error {
	return s.RemoveTargetContext(context.Background(), name)
}

// RemoveTargetContext is RemoveTarget that stops waiting when ctx ends, with its error. Then the target is forgotten, but
// commands may still use its device.
func (s *Server) RemoveTargetContext(ctx context.Context, name iscsi.Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[name]
	if t == nil {
		return fmt.Errorf("target %s: %w", name, ErrNoTarget)
	}
	delete(s.targets, name)
	return s.endLocked(ctx, s.sessionsOfLocked(t), errTargetRemoved)
}

// Targets lists the targets, by name.
func (s *Server) Targets() []*Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Target, 0, len(s.targets))
	for _, t := range s.targets {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *Target) int { return strings.Compare(string(a.c.Name), string(b.c.Name)) })
	return list
}

// find is the target of a name, nil if there is none.
func (s *Server) find(name iscsi.Name) *Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets[name]
}

// Name is the target's iSCSI name.
func (t *Target) Name() iscsi.Name { return t.c.Name }

// Device is the target's SCSI device.
func (t *Target) Device() *scsi.Device { return t.c.Device }

// SessionInfo is a snapshot of one session.
type SessionInfo struct {
	TSIH      uint16
	Initiator string
	Target    string // empty: discovery
	Transport string
	// Remote is the initiator's address, of the oldest connection; Connections how many there are.
	Remote      string
	Connections int
	// Portal is the address of the listener that the oldest connection has come to.
	Portal string
	Since  time.Time
	Params iscsi.Params
	// Commands are those answered, Errors those of them that were not GOOD, InFlight those whose answer has not left.
	Commands        uint64
	InFlight        int
	ReadBytes       uint64
	WrittenBytes    uint64
	Errors, Rejects uint64
	// Dropped are requests outside the command window and duplicates.
	Dropped uint64
}

// Sessions lists the sessions in full-feature phase, by TSIH.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]SessionInfo, 0, len(s.sessions))
	for _, ses := range s.sessions {
		remote := ""
		commands, errors := ses.stats.commands()
		if len(ses.members) > 0 {
			remote = ses.members[0].c.dm.RemoteAddr().String()
		}
		list = append(list, SessionInfo{
			TSIH:         ses.tsih,
			Initiator:    string(ses.initiator),
			Target:       ses.targetName(),
			Transport:    ses.transport,
			Remote:       remote,
			Connections:  len(ses.members),
			Portal:       portalOf(ses),
			Since:        ses.since,
			Params:       ses.params,
			Commands:     commands,
			InFlight:     int(ses.stats.inFlight.Load()),
			ReadBytes:    ses.stats.readBytes.Load(),
			WrittenBytes: ses.stats.writtenBytes.Load(),
			Errors:       errors,
			Rejects:      ses.stats.rejects.Load(),
			Dropped:      ses.stats.dropped.Load(),
		})
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return int(a.TSIH) - int(b.TSIH) })
	return list
}

var errServerClosed = errors.New("the server is shut down")

// Shutdown stops accepting, asks initiators to log out (Async Message, event 1), waits for commands in
// progress until ctx ends, closes every connection and returns when all goroutines have ended. Stores are
// the caller's to flush and close. The error is ctx's if commands had to be cut off. A store that never
// answers holds it up for ever.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		for !s.closed {
			s.changed.Wait()
		}
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	portals := slices.Clone(s.portals)
	s.mu.Unlock()

	for _, p := range portals {
		p.cancel()
		<-p.done
	}
	s.tell(item{kind: itemShutdown})
	gone := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(gone)
	}()
	var err error
	select {
	case <-gone:
	case <-ctx.Done():
		err = ctx.Err()
		s.tell(item{kind: itemClose, err: errShutdown})
		<-gone
	}
	for _, p := range portals {
		_ = p.listener.Close() // only now: connections may live on what it owns
	}
	s.workers.close()
	s.reserve.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.portals, s.closed = nil, true
	s.changed.Broadcast()
	return err
}

// tell posts to every connection.
func (s *Server) tell(it item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.post(it)
	}
}
