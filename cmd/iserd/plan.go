package main

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/scsi"
)

// An op is a kind of change to what runs.
type op uint8

const (
	opOpenStore op = iota
	opBindPortal
	opRemoveTarget
	opRemoveLUN
	opChangeTarget
	opRemovePortal
	opCloseStore
	opAddLUN
	opAddTarget
	opReadOnly
	opAccept
	opDiscovery
	opISNS
	opResize
	opFaultRules
	opDropStore // as opCloseStore, at the end, when nothing needs it any more
)

// A change is one step from what runs to what shall run. Only the fields that its op needs are set: they are what
// shall be, except where something is taken away.
type change struct {
	op     op
	store  conf.Backstore
	target conf.Target
	lun    conf.LUN
	groups []scsi.PortGroup // target's
	portal conf.Portal
	config *conf.Config // of discovery and isns
	late   bool         // what is opened waits for what goes away
}

// String says it to a person.
func (c change) String() string {
	switch c.op {
	case opOpenStore:
		return fmt.Sprintf("open backstore %s (%s)", c.store.Name, c.store.Type)
	case opCloseStore, opDropStore:
		return "close backstore " + c.store.Name
	case opResize:
		return fmt.Sprintf("resize backstore %s to %s", c.store.Name, c.store.Options["size"])
	case opFaultRules:
		return fmt.Sprintf("set the rules of backstore %s", c.store.Name)
	case opBindPortal:
		return fmt.Sprintf("listen on %v, provider %s, portal group %d", c.portal.Listen, c.portal.Provider, c.portal.Group)
	case opAccept:
		return fmt.Sprintf("accept connections on %v", c.portal.Listen)
	case opRemovePortal:
		return fmt.Sprintf("stop listening on %v", c.portal.Listen)
	case opAddTarget:
		return fmt.Sprintf("add target %s with %d logical units", c.target.Name, len(c.target.LUNs))
	case opRemoveTarget:
		return fmt.Sprintf("remove target %s", c.target.Name)
	case opChangeTarget:
		return fmt.Sprintf("change the settings of target %s", c.target.Name)
	case opAddLUN:
		return fmt.Sprintf("add LUN %d of %s, backstore %s", c.lun.Number, c.target.Name, c.lun.Store)
	case opRemoveLUN:
		return fmt.Sprintf("remove LUN %d of %s", c.lun.Number, c.target.Name)
	case opReadOnly:
		return fmt.Sprintf("make LUN %d of %s %s", c.lun.Number, c.target.Name, modeOf(c.lun.ReadOnly))
	case opDiscovery:
		return "change who may discover targets"
	case opISNS:
		return "register with name server " + cmp.Or(c.config.ISNS.Server, "no one")
	}
	return fmt.Sprintf("change %d", c.op)
}

func modeOf(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "writable"
}

// plan lists what leads from one checked configuration to another. It looks at nothing but the two. The order is
// what makes a change whole: first what may fail and nobody sees (stores are opened, addresses taken), then what goes
// away, then what comes, then what cannot be taken back; and at the very end what nothing needs any more is closed.
func plan(old, new *conf.Config) ([]change, error) {
	if err := fixed(old, new); err != nil {
		return nil, err
	}
	p := planner{old: old, new: new, reopened: map[string]bool{}}
	p.stores()
	p.portals()
	p.targets()
	if !reflect.DeepEqual(old.Discovery, new.Discovery) {
		p.add(change{op: opDiscovery, config: new})
	}
	if old.ISNS != new.ISNS {
		p.add(change{op: opISNS, config: new})
	}
	slices.SortStableFunc(p.changes, func(a, b change) int { return cmp.Compare(a.phase(), b.phase()) })
	return p.changes, nil
}

// fixed refuses what is decided once, when the daemon starts.
func fixed(old, new *conf.Config) error {
	what := ""
	switch {
	case old.Limits != new.Limits:
		what = "limits"
	case old.StateDir != new.StateDir:
		what = "state_dir"
	default:
		return nil
	}
	return fmt.Errorf("%s: %w", what, errFixed)
}

var errFixed = errors.New("cannot change while iserd runs")

// A planner collects changes.
type planner struct {
	old, new *conf.Config
	reopened map[string]bool // stores of new that are opened although old has one of the name
	late     map[string]bool // stores that can be opened only when others are closed
	changes  []change
}

func (p *planner) add(c change) { p.changes = append(p.changes, c) }

// phase is when a change has its turn. What is opened late comes behind what goes away.
func (c change) phase() int {
	if c.late {
		return 2*int(opCloseStore) + 1
	}
	return 2 * int(c.op)
}

// settled are a store's options with the defaults of its type, and switches spelled in one way.
func settled(b conf.Backstore) map[string]string {
	out := map[string]string{}
	for _, t := range backstore.Types() {
		if t.Name != b.Type {
			continue
		}
		for _, o := range t.Options {
			v, given := b.Options[o.Name]
			if !given {
				v = o.Default
			}
			if on, err := backstore.ParseSwitch(v); err == nil && len(o.Values) == 2 {
				v = map[bool]string{true: "yes", false: "no"}[on]
			}
			if n, err := backstore.ParseSize(v); err == nil && o.Name == "size" {
				v = fmt.Sprint(n)
			}
			out[o.Name] = v
		}
	}
	return out
}

// inPlace are the options that some types of stores change while they are open.
var inPlace = map[string][]string{"ram": {"size"}, "file": {"size"}, "null": {"size"}, "fault": {"rules"}}

// differs lists the options in which two stores of one type differ.
func differs(a, b conf.Backstore) (list []string) {
	x, y := settled(a), settled(b)
	for name, v := range y {
		if x[name] != v {
			list = append(list, name)
		}
	}
	return list
}

func (p *planner) stores() {
	old := map[string]conf.Backstore{}
	for _, b := range p.old.Backstores {
		old[b.Name] = b
	}
	kept := map[string]bool{}
	var opened []conf.Backstore
	for _, b := range conf.OpenOrder(p.new.Backstores) {
		was, had := old[b.Name]
		below, wraps := backstore.Wraps(b.Type, b.Options)
		changed := differs(was, b)
		fits := had && was.Type == b.Type && !(wraps && p.reopened[below])
		for _, name := range changed {
			fits = fits && slices.Contains(inPlace[b.Type], name)
		}
		if !fits {
			p.reopened[b.Name] = true // or opened for the first time
			opened = append(opened, b)
			continue
		}
		kept[b.Name] = true
		switch {
		case len(changed) > 0 && b.Type == "fault":
			p.add(change{op: opFaultRules, store: b})
		case len(changed) > 0 && b.Options["size"] != "":
			p.add(change{op: opResize, store: b})
		}
	}
	p.openAndClose(opened, kept)
}

// openAndClose opens stores, and closes those of old that are not kept. A file cannot be open twice: what is opened on
// the path of one that is closed waits for that, and with it what wraps it.
func (p *planner) openAndClose(opened []conf.Backstore, kept map[string]bool) {
	leaving := map[string]string{} // path to the name of a store that is closed
	for _, b := range p.old.Backstores {
		if path := b.Options["path"]; path != "" && !kept[b.Name] {
			leaving[path] = b.Name
		}
	}
	p.late = map[string]bool{}
	early := map[string]bool{} // stores that are closed before others can be opened
	for _, b := range opened {
		below, _ := backstore.Wraps(b.Type, b.Options)
		path := b.Options["path"]
		name := leaving[path]
		if path != "" && name != "" {
			early[name] = true
		}
		if path != "" && name != "" || p.late[below] {
			p.late[b.Name] = true
		}
	}
	order := conf.OpenOrder(p.old.Backstores)
	slices.Reverse(order) // what wraps is closed before what it wraps
	for i := len(order) - 1; i >= 0; i-- {
		if below, wraps := backstore.Wraps(order[i].Type, order[i].Options); wraps && early[below] && !kept[order[i].Name] {
			early[order[i].Name] = true
		}
	}
	for _, b := range order {
		switch {
		case kept[b.Name]:
		case early[b.Name]:
			p.add(change{op: opCloseStore, store: b})
		default:
			p.add(change{op: opDropStore, store: b})
		}
	}
	for _, b := range opened {
		// One whose predecessor of the same name is closed first comes behind that too.
		p.add(change{op: opOpenStore, store: b, late: p.late[b.Name] || early[b.Name]})
	}
}

func (p *planner) portals() {
	left := slices.Clone(p.old.Portals)
	var come []conf.Portal
	for _, q := range p.new.Portals {
		if i := slices.Index(left, q); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			come = append(come, q)
		}
	}
	for _, q := range left {
		p.add(change{op: opRemovePortal, portal: q})
	}
	for _, q := range come {
		late := slices.ContainsFunc(left, func(l conf.Portal) bool { return overlap(l, q) })
		p.add(change{op: opBindPortal, portal: q, late: late})
	}
	for _, q := range come {
		p.add(change{op: opAccept, portal: q})
	}
}

// overlap reports whether two portals cannot be open at once.
func overlap(a, b conf.Portal) bool {
	x, y := a.Listen.Addr(), b.Listen.Addr()
	return a.Listen.Port() == b.Listen.Port() && a.Listen.Port() != 0 && (x == y || x.IsUnspecified() || y.IsUnspecified())
}

func (p *planner) targets() {
	old := map[iscsi.Name]*conf.Target{}
	for i := range p.old.Targets {
		old[p.old.Targets[i].Name] = &p.old.Targets[i]
	}
	for i := range p.new.Targets {
		t := &p.new.Targets[i]
		was := old[t.Name]
		delete(old, t.Name)
		if was == nil {
			p.add(change{op: opAddTarget, target: *t, groups: p.new.PortGroups(t)})
			continue
		}
		p.luns(was, t)
		a, b := *was, *t
		a.LUNs, b.LUNs = nil, nil
		groups := p.new.PortGroups(t)
		if !reflect.DeepEqual(a, b) || !slices.Equal(groups, p.old.PortGroups(was)) {
			p.add(change{op: opChangeTarget, target: *t, groups: groups})
		}
	}
	for i := range p.old.Targets { // in the order of the file
		if t := &p.old.Targets[i]; old[t.Name] != nil {
			p.add(change{op: opRemoveTarget, target: *t})
		}
	}
}

func (p *planner) luns(old, new *conf.Target) {
	left := slices.Clone(old.LUNs)
	for _, l := range new.LUNs {
		i := slices.IndexFunc(left, func(o conf.LUN) bool { return o.Number == l.Number })
		if i < 0 {
			p.add(change{op: opAddLUN, target: *new, lun: l})
			continue
		}
		was := left[i]
		left = slices.Delete(left, i, i+1)
		same := was
		same.ReadOnly = l.ReadOnly
		switch {
		case same != l || p.reopened[l.Store]:
			p.add(change{op: opRemoveLUN, target: *old, lun: was})
			p.add(change{op: opAddLUN, target: *new, lun: l})
		case was != l:
			p.add(change{op: opReadOnly, target: *new, lun: l})
		}
	}
	for _, l := range left {
		p.add(change{op: opRemoveLUN, target: *old, lun: l})
	}
}

// describe is a plan in lines.
func describe(changes []change) string {
	var lines []string
	for _, c := range changes {
		lines = append(lines, c.String())
	}
	return strings.Join(lines, "\n")
}
