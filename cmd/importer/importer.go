package importer

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/chap"
)

// maxFile bounds a file, bytes: it is that of our own configuration, times what JSON takes more.
const maxFile = 16 << 20

// A Result is what came of a configuration.
type Result struct {
	Config *conf.Config
	// Lost are what could not be carried over, each with the place it stood in and what became of it.
	Lost []string
}

func (r *Result) lostf(format string, args ...any) {
	r.Lost = append(r.Lost, fmt.Sprintf(format, args...))
}

// An importer collects a configuration.
type importer struct {
	Result
	stat    func(string) (fs.FileInfo, error)
	stores  map[string]string        // what a store is made of, to its name
	portals map[string][]conf.Portal // of each target
}

func newImporter() *importer {
	im := &importer{stat: os.Stat, stores: make(map[string]string), portals: make(map[string][]conf.Portal)}
	im.Config = conf.Default()
	return im
}

// readFile reads a whole file of reasonable size.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxFile:
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxFile)
	case !utf8.Valid(b):
		return nil, fmt.Errorf("%s: not UTF-8, which our configuration has to be: the paths in it would become others", path)
	}
	return b, nil
}

// store names a store, made of what key says: one that is there already is used again.
func (im *importer) store(where, key, want, typ string, o backstore.Options) string {
	if name, ok := im.stores[key]; ok {
		k := slices.IndexFunc(im.Config.Backstores, func(b conf.Backstore) bool { return b.Name == name })
		if !maps.Equal(im.Config.Backstores[k].Options, o) {
			im.lostf("%s: the settings of this use of store %s, which is there with others", where, name)
		}
		return name
	}
	base := strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z' || strings.ContainsRune("-_.", r)) {
			return r
		}
		return '-'
	}, want)
	if base == "" {
		base = typ
	}
	name := base
	for i := 2; slices.ContainsFunc(im.Config.Backstores, func(b conf.Backstore) bool { return b.Name == name }); i++ {
		name = fmt.Sprintf("%s-%d", base, i)
	}
	im.stores[key] = name
	im.Config.Backstores = append(im.Config.Backstores, conf.Backstore{Name: name, Type: typ, Options: o})
	return name
}

// pathStore is a store on a path: a device or a file, as it is found there.
func (im *importer) pathStore(where, path string, o backstore.Options) string {
	typ := "file"
	info, err := im.stat(path)
	_, told := im.stores[path]
	switch {
	case err != nil && told:
		if strings.HasPrefix(path, "/dev/") {
			typ = "block"
		}
	case err != nil && strings.HasPrefix(path, "/dev/"):
		typ = "block"
		im.lostf("%s: %s cannot be looked at here (%v): taken as a block device", where, path, cause(err))
	case err != nil:
		im.lostf("%s: %s cannot be looked at here (%v): taken as a file; iserd wants it to be there, or a size", where, path, cause(err))
	case info.Mode()&fs.ModeDevice != 0:
		typ = "block"
	}
	o["path"] = path
	if typ == "block" {
		delete(o, "size") // it has its own
		delete(o, "direct")
	}
	return im.store(where, path, filepath.Base(path), typ, o)
}

// cause is an error without the path, which has been told.
func cause(err error) error {
	if e, ok := err.(*fs.PathError); ok {
		return e.Err
	}
	return err
}

// credentials makes what has to be proved; an error says why that cannot be.
func credentials(user, secret, mutualUser, mutualSecret string) (*chap.Credentials, error) {
	if user == "" {
		return nil, fmt.Errorf("no name of a user")
	}
	c := &chap.Credentials{User: user}
	var err error
	if c.Secret, err = chap.NewSecret(secret); err != nil {
		return nil, fmt.Errorf("user %q: %w", user, err)
	}
	if mutualUser != "" {
		c.MutualUser = mutualUser
		if c.MutualSecret, err = chap.NewSecret(mutualSecret); err != nil {
			return nil, fmt.Errorf("user %q, which the target proves to be: %w", mutualUser, err)
		}
	}
	return c, c.Check()
}

// close disables a target which would otherwise be open to more than before.
func (im *importer) close(t *conf.Target, why string, args ...any) {
	t.Disabled = true
	im.lostf("target %s: "+why+": it is disabled until you have mended that (enabled: no)", append([]any{t.Name}, args...)...)
}

// addTarget adds a target whose portals are those given.
func (im *importer) addTarget(t conf.Target, portals []conf.Portal) {
	if _, err := iscsi.ParseName(string(t.Name)); err != nil {
		im.lostf("target %q is left out: %v", t.Name, err)
		return
	}
	if slices.ContainsFunc(im.Config.Targets, func(o conf.Target) bool { return o.Name == t.Name }) {
		im.lostf("target %s: a second one of this name is left out", t.Name)
		return
	}
	if len(t.LUNs) == 0 {
		im.lostf("target %s has no logical units that could be carried over: it is left out", t.Name)
		return
	}
	im.portals[string(t.Name)] = portals
	im.Config.Targets = append(im.Config.Targets, t)
}

// negotiate carries over a key of the login that can be set here; false if this one cannot.
func (im *importer) negotiate(t *conf.Target, name, value string) bool {
	n := &t.Negotiate
	number, err := strconv.ParseUint(value, 10, 24)
	on := strings.EqualFold(value, "yes")
	switch name {
	case "InitialR2T":
		n.InitialR2T = &on
	case "ImmediateData":
		n.ImmediateData = on
	case "FirstBurstLength", "MaxBurstLength":
		if err != nil || number < minBurst {
			return false
		}
		if name == "FirstBurstLength" {
			n.FirstBurstLength = uint32(number)
		} else {
			n.MaxBurstLength = uint32(number)
		}
	case "MaxConnections":
		if err != nil || number < 1 {
			return false
		}
		n.MaxConnections = uint32(min(number, conf.DefaultMaxConnections))
	default:
		return false
	}
	return true
}

// minBurst is the least burst that RFC 7143, 13.13 and 13.14 allow, bytes.
const minBurst = 512

// addLUN adds a unit, if its number and block size can be.
func (im *importer) addLUN(t *conf.Target, l conf.LUN) {
	switch {
	case slices.ContainsFunc(t.LUNs, func(o conf.LUN) bool { return o.Number == l.Number }):
		im.lostf("target %s: a second LUN %d is left out", t.Name, l.Number)
	case l.BlockSize != 512 && l.BlockSize != 4096:
		im.lostf("target %s: LUN %d is left out: blocks of %d bytes, where 512 and 4096 can be", t.Name, l.Number, l.BlockSize)
	default:
		t.LUNs = append(t.LUNs, l)
	}
}

// Options are what the user says beside the file.
type Options struct {
	// Listen are addresses to listen on instead of those of the file; empty: those.
	Listen []netip.AddrPort
	// Insecure allows other hosts to use what nobody has to prove anything for.
	Insecure bool
}

// finish settles the portals, which we have for all targets together, and checks the whole.
func (im *importer) finish(o Options) (*Result, error) {
	c := im.Config
	c.Insecure = o.Insecure
	im.mergePortals()
	if len(o.Listen) > 0 {
		c.Portals = nil
		for _, a := range o.Listen {
			c.Portals = append(c.Portals, conf.Portal{Listen: a, Provider: conf.ProviderAuto, Group: conf.DefaultGroup})
		}
		for i := range c.Targets {
			c.Targets[i].Groups = nil
		}
	}
	if len(c.Targets) == 0 {
		return &im.Result, fmt.Errorf("no target could be carried over:\n  %s", strings.Join(im.Lost, "\n  "))
	}
	err := c.Check()
	if err != nil && im.loopback() {
		err = c.Check()
	}
	return &im.Result, err
}

// loopback brings portals that others can reach to this host, and tells whether there were any.
func (im *importer) loopback() bool {
	c := im.Config
	seen := make(map[netip.AddrPort]bool)
	var kept []conf.Portal
	changed := false
	for _, p := range c.Portals {
		if a := p.Listen.Addr().Unmap(); !a.IsLoopback() {
			im.lostf("portal %v: not everything there wants a proof of who one is (auth of targets and of discovery): it listens on this host only; "+
				"give auth, or import with --insecure if the network is trusted", p.Listen)
			local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
			if a.Is6() {
				local = netip.IPv6Loopback()
			}
			p.Listen, changed = netip.AddrPortFrom(local, p.Listen.Port()), true
		}
		if !seen[p.Listen] {
			seen[p.Listen] = true
			kept = append(kept, p)
		}
	}
	c.Portals = kept
	known := func(group int) bool {
		return slices.ContainsFunc(kept, func(p conf.Portal) bool { return p.Group == group })
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		t.Groups = slices.DeleteFunc(t.Groups, func(g int) bool { return !known(g) })
	}
	return changed
}

// mergePortals makes one list of the portals of all targets. Where targets differ in theirs, each portal is a group
// of its own, and targets name groups.
func (im *importer) mergePortals() {
	c := im.Config
	var all []conf.Portal
	index := make(map[netip.AddrPort]int)
	for i := range c.Targets {
		for _, p := range im.portals[string(c.Targets[i].Name)] {
			k, seen := index[p.Listen]
			if !seen {
				k = len(all)
				index[p.Listen] = k
				all = append(all, p)
			}
			if p.Provider == conf.ProviderAuto {
				all[k].Provider = p.Provider
			}
		}
	}
	if len(all) == 0 {
		return // the default
	}
	c.Portals = all
	differ := slices.ContainsFunc(c.Targets, func(t conf.Target) bool {
		return len(im.portals[string(t.Name)]) != len(all)
	})
	for k := range all {
		all[k].Group = conf.DefaultGroup
		if differ {
			all[k].Group = 1 + k
		}
	}
	for i := range c.Targets {
		for _, p := range im.portals[string(c.Targets[i].Name)] {
			if differ {
				c.Targets[i].Groups = append(c.Targets[i].Groups, 1+index[p.Listen])
			}
		}
	}
}
