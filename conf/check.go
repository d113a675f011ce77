package conf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/iscsi"
)

// Bounds of what can be set.
const (
	maxLUN        = 16383     // the flat space method's numbers (SAM-5, 4.7.7.3)
	minBurst      = 512       // MaxBurstLength and FirstBurstLength (RFC 7143, 13.13 and 13.14)
	maxBurst      = 1<<24 - 1 // the same
	maxSessions   = 4096
	maxPeerConns  = 4 * maxSessions // a session has at most 4
	maxLogins     = 1024
	maxCommands   = 128 // the target engine's largest window
	minTransfer   = 64 << 10
	maxTransfer   = 64 << 20
	minBuffers    = 1 << 20
	maxBuffers    = 1 << 40
	maxAliasBytes = 255 // the longest text value (RFC 7143, 6.1)

	minLoginTimeout = time.Second
	maxLoginTimeout = 5 * time.Minute
)

// nameChars are what the name of a store is made of.
const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// Check finds what a configuration cannot mean, without opening anything. An error is Errors, without
// positions in a file.
func (c *Config) Check() error {
	var k checker
	k.config(c)
	return k.errs.orNil()
}

// A checker collects what is wrong.
type checker struct {
	errs  Errors
	known map[int]bool // portal groups
}

func (k *checker) failf(path, format string, args ...any) {
	k.errs = append(k.errs, &Error{Path: path, Err: fmt.Errorf(format, args...)})
}

func (k *checker) config(c *Config) {
	if c.Version != Version {
		k.failf("version", "%d is not known; this iserd reads version: %d", c.Version, Version)
	}
	k.portals(c)
	stores := map[string]bool{}
	for _, b := range c.Backstores {
		k.backstore(b, stores)
	}
	k.wraps(c)
	names := map[iscsi.Name]bool{}
	for i := range c.Targets {
		k.target(&c.Targets[i], names, stores)
	}
	k.auth("discovery/auth", c.Discovery.Auth)
	k.secrets(c)
	k.isns(&c.ISNS)
	k.limits(&c.Limits)
}

func (k *checker) portals(c *Config) {
	if len(c.Portals) == 0 {
		k.failf("portals", "empty: name at least one, as `- {listen: \"127.0.0.1:3260\"}`")
	}
	k.known = make(map[int]bool)
	providers := []string{ProviderAuto, ProviderVerbs, ProviderRoCE, ProviderTCP}
	for i, p := range c.Portals {
		path := fmt.Sprintf("portals/%d", i)
		if !p.Listen.IsValid() {
			k.failf(path, "no listen address; give listen: \"127.0.0.1:3260\"")
			continue
		}
		k.known[p.Group] = true
		k.within(path+"/group", int64(p.Group), 1, maxGroup)
		if !slices.Contains(providers, p.Provider) {
			k.failf(path+"/provider", "%q is not one of auto, verbs, roce, tcp", p.Provider)
		}
		if open := c.unproved(p.Group); !p.Listen.Addr().Unmap().IsLoopback() && !c.Insecure && len(open) > 0 {
			k.failf(path+"/listen", "other hosts can reach %v, and nobody who does has to prove who they are: %s; "+
				"give auth: {user: NAME, secret_file: PATH} (on the command line --user and --secret-file), listen on 127.0.0.1, or set insecure: true if the network is trusted",
				p.Listen, some(open))
		}
		same := func(q Portal) bool { return q.Listen == p.Listen && p.Listen.Port() != 0 }
		if slices.ContainsFunc(c.Portals[:i], same) {
			k.failf(path+"/listen", "%v is listened on twice", p.Listen)
		}
		if p.External.IsValid() && (p.External.IsUnspecified() || p.External.Is4() != p.Listen.Addr().Unmap().Is4()) {
			k.failf(path+"/external", "%v is not an address by which peers can see %v", p.External, p.Listen.Addr())
		}
		if a := p.Advertise; a.IsValid() && (a.Addr().IsUnspecified() || a.Port() == 0) {
			k.failf(path+"/advertise", "nobody can connect to %v; give an address and port that initiators reach", a)
		}
	}
}

func (k *checker) backstore(b Backstore, stores map[string]bool) {
	path := "backstores/" + b.Name
	if b.Name == "" || strings.Trim(b.Name, nameChars) != "" {
		k.failf(path, "%.60q is no name for a store; use letters, digits, '-', '_' and '.'", b.Name)
	}
	if stores[b.Name] {
		k.failf(path, "a second store of this name")
	}
	stores[b.Name] = true
	if b.Type == "" {
		k.failf(path, "no type; give type: and one of %s", list(typeNames()))
		return
	}
	err := backstore.Check(b.Type, b.Options)
	var oe *backstore.OptionError
	switch {
	case err == nil:
	case !errors.As(err, &oe):
		k.failf(path, "%w", err)
	case oe.Option == "":
		k.failf(path+"/type", "%w", err)
	default:
		k.failf(path+"/"+oe.Option, "%w", err)
	}
}

// typeNames lists the kinds of stores.
func typeNames() (names []string) {
	for _, t := range backstore.Types() {
		names = append(names, t.Name)
	}
	return names
}

func (k *checker) target(t *Target, names map[iscsi.Name]bool, stores map[string]bool) {
	path := "targets/" + string(t.Name)
	name, err := iscsi.ParseName(string(t.Name))
	if err != nil {
		k.failf(path, "%w; as iqn.2026-01.example:disk1", err)
	} else if names[name] {
		k.failf(path, "a second target of this name (upper and lower case are the same)")
	}
	names[name] = true
	if len(t.Alias) > maxAliasBytes {
		k.failf(path+"/alias", "%d bytes; at most %d", len(t.Alias), maxAliasBytes)
	}
	numbers := map[int]bool{}
	for _, l := range t.LUNs {
		k.lun(fmt.Sprintf("%s/luns/%d", path, l.Number), l, numbers, stores)
	}
	k.access(path, t)
	k.groups(path+"/groups", t.Groups)
	k.redirect(path+"/redirect", t.Redirect)
	k.alua(path+"/alua", t)
	n := &t.Negotiate
	k.within(path+"/max_connections", int64(n.MaxConnections), 1, maxConnections)
	first := k.within(path+"/first_burst", int64(n.FirstBurstLength), minBurst, maxBurst)
	most := k.within(path+"/max_burst", int64(n.MaxBurstLength), minBurst, maxBurst)
	if first && most && n.FirstBurstLength > n.MaxBurstLength {
		k.failf(path+"/first_burst", "%d is more than max_burst, which is %d", n.FirstBurstLength, n.MaxBurstLength)
	}
}

// Review is what works in a checked configuration but is better mended.
func (c *Config) Review() []string {
	list := c.gaps()
	for i := range c.Targets {
		if w := c.Targets[i].impersonation(); w != "" {
			list = append(list, w)
		}
	}
	return list
}

// gaps are warnings about what is not there. It may come while the daemon runs.
func (c *Config) gaps() (list []string) {
	if len(c.Targets) == 0 {
		list = append(list, "no targets; add one, as `targets: {\"iqn.2026-01.example:disk1\": {luns: {0: vm1}}}`")
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		if len(t.LUNs) == 0 && (t.Redirect == nil || len(t.Redirect.Groups) > 0) {
			list = append(list, fmt.Sprintf("target %s: no logical units; add one, as `luns: {0: STORE}`", t.Name))
		}
	}
	return list
}

func (k *checker) lun(path string, l LUN, numbers map[int]bool, stores map[string]bool) {
	if l.Number < 0 || l.Number > maxLUN {
		k.failf(path, "%d is no LUN; they go from 0 to %d", l.Number, maxLUN)
	}
	if numbers[l.Number] {
		k.failf(path, "a second LUN %d", l.Number)
	}
	numbers[l.Number] = true
	if l.BlockSize != 512 && l.BlockSize != 4096 {
		k.failf(path+"/block_size", "%d is not 512 or 4096", l.BlockSize)
	}
	switch {
	case l.Store == "":
		k.failf(path, "no store; give the name of one of backstores")
	case !stores[l.Store]:
		k.failf(path+"/store", "there is no store %q; backstores has %s", l.Store, list(slices.Sorted(maps.Keys(stores))))
	}
}

// someNames is how many names of a list an error shows.
const someNames = 4

// some is the first few names in words.
func some(names []string) string {
	if len(names) > someNames {
		return fmt.Sprintf("%s and %d more", list(names[:someNames]), len(names)-someNames)
	}
	return list(names)
}

// list is names in words.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (k *checker) limits(l *Limits) {
	k.within("limits/sessions", int64(l.Sessions), 1, maxSessions)
	k.within("limits/sessions_per_initiator", int64(l.SessionsPerInitiator), 0, maxSessions)
	k.within("limits/connections_per_address", int64(l.ConnectionsPerAddress), 0, maxPeerConns)
	k.within("limits/logins", int64(l.Logins), 1, maxLogins)
	if t := l.LoginTimeout; t < minLoginTimeout || t > maxLoginTimeout {
		k.failf("limits/login_timeout", "%v is not between %v and %v", t, minLoginTimeout, maxLoginTimeout)
	}
	k.within("limits/commands_per_session", int64(l.CommandsPerSession), 1, maxCommands)
	buffers := k.within("limits/buffers", l.Buffers, minBuffers, maxBuffers)
	transfer := k.within("limits/max_transfer", l.MaxTransfer, minTransfer, maxTransfer)
	if buffers && transfer && l.MaxTransfer > l.Buffers/2 {
		// The target engine keeps the other half for data that comes unasked.
		k.failf("limits/max_transfer", "%d bytes do not fit in half of limits.buffers, which is %d", l.MaxTransfer, l.Buffers)
	}
}

func (k *checker) within(path string, n, least, most int64) bool {
	if n < least || n > most {
		k.failf(path, "%d is not between %d and %d", n, least, most)
		return false
	}
	return true
}
