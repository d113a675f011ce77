package conf

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/scsi"
)

// Version is the version of the schema.
const Version = 1

// The defaults.
const (
	DefaultBuffers     = 64 << 20 // bytes
	DefaultMaxTransfer = 4 << 20  // bytes
	DefaultSessions    = 64
	DefaultCommands    = 128 // of a session
	DefaultBlockSize   = 512 // bytes
	DefaultPort        = 3260
	DefaultLogins      = 64

	DefaultLoginTimeout = 15 * time.Second
)

// smallShare is how many sessions one peer may have in any case, unless the configuration says otherwise.
const smallShare = 8

// Shares are what one initiator name may have of sessions, and one address of connections. Where the configuration
// does not say it is half of Sessions, so that no peer shuts out all others.
func (l *Limits) Shares() (perInitiator, perAddress int) {
	share := max(l.Sessions/2, min(l.Sessions, smallShare))
	return cmp.Or(l.SessionsPerInitiator, share), cmp.Or(l.ConnectionsPerAddress, share)
}

// Config is what a daemon serves.
type Config struct {
	Version int
	// Insecure allows portals that other hosts can reach although nobody has to prove who they are.
	Insecure bool
	// StateDir is the directory of what must survive a crash: persistent reservations with APTPL. Empty:
	// nothing does.
	StateDir string
	// Auth is what initiators have to prove wherever nothing else is said; the Auth of each place has it already.
	// nil: nothing.
	Auth *chap.Credentials
	// SecretFiles says of credentials which files their secrets were read from; those that are not in it stand in
	// the configuration itself.
	SecretFiles map[*chap.Credentials]SecretFiles
	Discovery   Discovery
	ISNS        ISNS
	Portals     []Portal
	Backstores  []Backstore
	Targets     []Target
	Limits      Limits
	// Warnings are what works but is better mended, for the log.
	Warnings []string
}

// Providers of a portal.
const (
	ProviderAuto  = "auto"  // TCP, and iSER by verbs where an RDMA device has the address, else by roce if it can
	ProviderVerbs = "verbs" // TCP and iSER on the RDMA device; an error without one
	ProviderRoCE  = "roce"  // TCP and iSER by our own RoCEv2; an error if UDP port 4791 of the address is taken
	ProviderTCP   = "tcp"   // TCP only
)

// A Portal is an address to listen on.
type Portal struct {
	Listen   netip.AddrPort
	Provider string
	// Advertise is what discovery answers instead of the address that was connected to; zero: nothing.
	Advertise netip.AddrPort
	// Group is the tag of its portal group, 1 to 65535.
	Group int
	// External is what peers see the listen address as (NAT, published ports): RoCE's checksum covers addresses.
	// Zero: the same.
	External netip.Addr
}

// A Backstore is a named store.
type Backstore struct {
	Name    string
	Type    string
	Options backstore.Options
}

// A Target is one iSCSI target.
type Target struct {
	Name iscsi.Name
	// Disabled: nobody can log in or see it; its stores are open all the same.
	Disabled bool
	Alias    string
	LUNs     []LUN
	// Allow lists the initiators that may log in beside those with an entry in Initiators; if both are empty: any.
	// AllowFrom lists the networks from which; empty: any.
	Allow      []iscsi.Name
	AllowFrom  []netip.Prefix
	Initiators []Initiator
	// Auth is what initiators without an entry have to prove; nil: nothing.
	Auth *chap.Credentials
	// Groups are the portal groups through which it is served and seen; empty: all.
	Groups   []int
	Redirect *Redirect // nil: it is here
	// ALUA has access states of portal groups; those that are not in it are optimized.
	ALUA      []scsi.PortGroup
	Negotiate iscsi.Config
}

// A LUN is a store under a number.
type LUN struct {
	Number    int
	Store     string // the name of a Backstore
	ReadOnly  bool
	BlockSize int // bytes
}

// Limits bound what clients can use up.
type Limits struct {
	Sessions int
	// SessionsPerInitiator and ConnectionsPerAddress bound what one initiator name, and one address (of IPv6: one
	// /64), has of them; 0: see Shares.
	SessionsPerInitiator  int
	ConnectionsPerAddress int
	// Logins bounds connections that have not logged in yet, LoginTimeout how long they may take.
	Logins             int
	LoginTimeout       time.Duration
	CommandsPerSession int
	Buffers            int64 // bytes, for the data of commands
	MaxTransfer        int64 // bytes of one command
}

// DefaultNegotiate is what a target answers at login unless told otherwise.
func DefaultNegotiate() iscsi.Config {
	c := iscsi.DefaultConfig()
	c.MaxConnections = DefaultMaxConnections
	return c
}

// Default is a configuration without stores and targets: one portal, for this host only.
func Default() *Config {
	return &Config{
		Version: Version,
		Portals: []Portal{{Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), DefaultPort), Provider: ProviderAuto, Group: DefaultGroup}},
		Limits: Limits{
			Sessions: DefaultSessions, Logins: DefaultLogins, LoginTimeout: DefaultLoginTimeout,
			CommandsPerSession: DefaultCommands,
			Buffers:            DefaultBuffers, MaxTransfer: DefaultMaxTransfer,
		},
	}
}

// maxFile bounds a configuration file, in bytes: thousands of targets fit.
const maxFile = 1 << 20

// Load reads and checks a file, and the files of secrets that it names. An error is of the system, or is Errors.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("configuration %s: at most %d bytes are read", path, maxFile)
	}
	c, inline, err := parse(path, b)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && inline {
		if w := exposed("configuration", path, info); w != "" {
			c.Warnings = append(c.Warnings, w)
		}
	}
	return c, nil
}

// ParseAddress reads ADDRESS:PORT or ADDRESS, which means port 3260. An IPv6 address with a port stands
// in brackets. The empty address, as in ":3260", is refused: 0.0.0.0 or [::] says it aloud.
func ParseAddress(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, DefaultPort), nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return a, fmt.Errorf("%.100q is no address; want ADDRESS:PORT with a numeric address, as 127.0.0.1:3260, 0.0.0.0:3260 or [::1]:3260", s)
	}
	return a, nil
}
