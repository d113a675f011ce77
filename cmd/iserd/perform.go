package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/target"
	"github.com/goiser/goiser/scsi"
)

// perform makes one change. The undo it gives, also with an error, takes back what has been done of it.
func (s *service) perform(ctx context.Context, c change) (undo, error) {
	switch c.op {
	case opOpenStore:
		return s.openOne(c.store)
	case opCloseStore, opDropStore:
		return s.closeOne(c.store.Name)
	case opResize:
		return nil, s.resize(ctx, c.store)
	case opFaultRules:
		return s.setRules(c.store)
	case opBindPortal:
		return s.bind(c.portal)
	case opAccept:
		return s.accept(c.portal)
	case opRemovePortal:
		return s.unbind(ctx, c.portal)
	case opAddTarget:
		return s.addTarget(c.target, c.groups)
	case opRemoveTarget:
		return s.removeTarget(ctx, c.target.Name)
	case opChangeTarget:
		return s.changeTarget(ctx, c.target, c.groups)
	case opAddLUN:
		return s.addLUN(c.target.Name, c.lun)
	case opRemoveLUN:
		return s.removeLUN(ctx, c.target.Name, c.lun)
	case opReadOnly:
		return s.setReadOnly(ctx, c.target.Name, c.lun)
	case opDiscovery:
		return s.setDiscovery(c.config.Discovery)
	case opISNS:
		return s.setISNS(c.config.ISNS)
	}
	panic(fmt.Sprintf("iserd: no way to %v", c))
}

// openOne opens a store; what it wraps has been opened.
func (s *service) openOne(b conf.Backstore) (undo, error) {
	st := &openedStore{conf: b}
	var err error
	if below, wraps := backstore.Wraps(b.Type, b.Options); wraps {
		st.Store, err = backstore.OpenOver(b.Type, b.Options, s.stores[below].Store)
	} else {
		st.Store, err = backstore.Open(b.Type, b.Options)
	}
	if err != nil {
		return nil, fmt.Errorf("backstore %s: %w", b.Name, err)
	}
	if m, ok := st.Store.(backstore.Mapper); ok {
		if p, ok := st.Store.(backstore.Pinner); ok && s.pinned {
			p.Pin()
		}
		if err := s.server.RegisterMemory(m.Memory()); err != nil {
			return nil, errors.Join(fmt.Errorf("backstore %s: %w", b.Name, err), st.Close())
		}
		st.memory = m.Memory()
	}
	s.mu.Lock()
	before := s.stores[b.Name]
	if before != nil {
		s.retired[b.Name] = before
	}
	s.stores[b.Name] = st
	s.order = append(s.order, st)
	s.mu.Unlock()
	i := st.Info()
	s.log.Infof("backstore %s: %s, %s (%d bytes)%s", b.Name, b.Type, humanize.IBytes(uint64(i.SizeBytes)), i.SizeBytes, storeNotes(i))
	return func(context.Context) error {
		err := s.release(st)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.retired, b.Name)
		if s.stores[b.Name] = before; before == nil {
			delete(s.stores, b.Name)
		}
		return err
	}, nil
}

// closeOne closes the store that another of its name has replaced, else the one of the name.
func (s *service) closeOne(name string) (undo, error) {
	s.mu.Lock()
	st := s.retired[name]
	if st != nil {
		delete(s.retired, name)
	} else {
		st = s.stores[name]
		delete(s.stores, name)
	}
	s.mu.Unlock()
	again := func(context.Context) error {
		_, err := s.openOne(st.conf)
		return err
	}
	return again, s.release(st)
}

// release closes a store that nothing uses any more.
func (s *service) release(st *openedStore) error {
	s.mu.Lock()
	s.order = slices.DeleteFunc(s.order, func(o *openedStore) bool { return o == st })
	s.mu.Unlock()
	s.tellFaults(st)
	var errs []error
	if st.memory != nil {
		errs = append(errs, s.server.UnregisterMemory(st.memory))
	}
	if err := errors.Join(append(errs, st.Close())...); err != nil {
		return fmt.Errorf("backstore %s: %w", st.conf.Name, err)
	}
	s.log.Debugf("backstore %s: closed", st.conf.Name)
	return nil
}

// storeNotes says what a user should know of a store before trusting it with data.
func storeNotes(i backstore.Info) string {
	notes := ""
	if i.ReadOnly {
		notes += ", read-only"
	}
	if i.Volatile {
		notes += ", lost when iserd ends"
	}
	if i.WriteCache {
		notes += ", with a write cache: durable after a flush"
	}
	return notes
}

// A unitRef is a logical unit of some target.
type unitRef struct {
	dev    *scsi.Device
	number int
}

// unitsOn lists the units on a store, or on what wraps it.
func (s *service) unitsOn(name string) (list []unitRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name = s.topLocked(name)
	for _, t := range s.targets {
		for _, l := range t.conf.LUNs {
			if l.Store == name {
				list = append(list, unitRef{t.dev, l.Number})
			}
		}
	}
	return list
}

// topLocked is the last of the stores that wrap a store, one upon the other; itself, if none does.
func (s *service) topLocked(name string) string {
	for _, st := range s.stores {
		if below, wraps := backstore.Wraps(st.conf.Type, st.conf.Options); wraps && below == name {
			return s.topLocked(st.conf.Name)
		}
	}
	return name
}

// resize changes the size of a store and of the units on it. Whether it may shrink has been asked.
func (s *service) resize(ctx context.Context, b conf.Backstore) error {
	st := s.stores[b.Name]
	size, err := backstore.ParseSize(b.Options["size"])
	if err != nil {
		return fmt.Errorf("backstore %s: %w", b.Name, err)
	}
	units := s.unitsOn(b.Name)
	if len(units) == 0 {
		err = st.Store.(backstore.Resizer).Resize(size) // which check has seen
	} else {
		err = units[0].dev.LU(units[0].number).Resize(ctx, size, true)
		for _, u := range units[1:] {
			err = errors.Join(err, u.dev.LU(u.number).CapacityChanged())
		}
	}
	if err != nil {
		return fmt.Errorf("backstore %s: %w", b.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.conf = b
	s.log.Infof("backstore %s: %s now", b.Name, humanize.IBytes(uint64(size)))
	return nil
}

func (s *service) setRules(b conf.Backstore) (undo, error) {
	st := s.stores[b.Name]
	was := st.conf
	set := func(b conf.Backstore) error {
		if err := st.Store.(*backstore.FaultStore).SetRules(b.Options["rules"]); err != nil {
			return fmt.Errorf("backstore %s: %w", b.Name, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		st.conf = b
		return nil
	}
	if err := set(b); err != nil {
		return nil, err
	}
	return func(context.Context) error { return set(was) }, nil
}

// addTarget makes a device with the logical units of a target, and serves it if it is enabled.
func (s *service) addTarget(c conf.Target, groups []scsi.PortGroup) (undo, error) {
	dev := scsi.NewDevice(scsi.DeviceConfig{
		Name: string(c.Name), MaxTransfer: uint32(s.limits.MaxTransfer), State: s.keeper(), PortGroups: groups,
	})
	t := &servedTarget{conf: c, dev: dev}
	for _, l := range c.LUNs {
		if err := s.addUnit(t, l, s.stores[l.Store].Store); err != nil {
			return nil, err
		}
	}
	if !c.Disabled {
		if _, err := s.server.AddTarget(targetConfig(&c, dev)); err != nil {
			return nil, fmt.Errorf("target %s: %w", c.Name, err)
		}
	}
	s.mu.Lock()
	s.targets[c.Name] = t
	s.mu.Unlock()
	s.log.WithField("target", c.Name).Infof("target with %d logical units", len(c.LUNs))
	return func(ctx context.Context) error {
		_, err := s.removeTarget(ctx, c.Name)
		return err
	}, nil
}

// addUnit makes a logical unit of a store. Its ID makes it the same disk after a restart.
func (s *service) addUnit(t *servedTarget, l conf.LUN, st backstore.Store) error {
	id := fmt.Sprintf("%s,%d,%s", t.conf.Name, l.Number, l.Store)
	if _, err := t.dev.Add(l.Number, st, scsi.LUConfig{ID: id, ReadOnly: l.ReadOnly, BlockSize: l.BlockSize}); err != nil {
		return fmt.Errorf("target %s: LUN %d, backstore %s: %w", t.conf.Name, l.Number, l.Store, err)
	}
	return nil
}

func (s *service) removeTarget(ctx context.Context, name iscsi.Name) (undo, error) {
	t := s.targets[name]
	var errs []error
	if !t.conf.Disabled {
		if err := s.server.RemoveTargetContext(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("target %s: %w", name, err))
		}
	}
	groups, stores := t.dev.PortGroups(), map[int]backstore.Store{}
	for _, n := range t.dev.LUNs() {
		stores[n] = t.dev.LU(n).Store()
		errs = append(errs, t.dev.RemoveContext(ctx, n))
	}
	s.mu.Lock()
	delete(s.targets, name)
	s.mu.Unlock()
	s.log.WithField("target", name).Info("target removed")
	again := func(context.Context) error {
		_, err := s.addTarget(t.conf, groups)
		return err
	}
	return again, errors.Join(errs...)
}

// changeTarget puts a target's settings in force, but for its logical units.
func (s *service) changeTarget(ctx context.Context, c conf.Target, groups []scsi.PortGroup) (undo, error) {
	t := s.targets[c.Name]
	was, wasGroups := t.conf, t.dev.PortGroups()
	c.LUNs = was.LUNs // they are other changes
	s.mu.Lock()
	t.conf = c
	s.mu.Unlock()
	back := func(ctx context.Context) error {
		was.LUNs = t.conf.LUNs
		_, err := s.changeTarget(ctx, was, wasGroups)
		return err
	}
	err := setGroups(t.dev, groups)
	switch {
	case err != nil:
	case was.Disabled && c.Disabled:
	case was.Disabled:
		_, err = s.server.AddTarget(targetConfig(&c, t.dev))
	case c.Disabled:
		err = s.server.RemoveTargetContext(ctx, c.Name)
	default:
		err = s.server.UpdateTarget(ctx, targetConfig(&c, t.dev))
	}
	if err != nil {
		return back, fmt.Errorf("target %s: %w", c.Name, err)
	}
	s.log.WithField("target", c.Name).Info("target changed")
	return back, nil
}

// setGroups gives a device its port groups. One through which it is not reached any more stays, unavailable: initiators
// may still know it.
func setGroups(dev *scsi.Device, groups []scsi.PortGroup) error {
	for _, g := range dev.PortGroups() {
		if !slices.ContainsFunc(groups, func(h scsi.PortGroup) bool { return h.ID == g.ID }) {
			groups = append(slices.Clip(groups), scsi.PortGroup{ID: g.ID, State: scsi.Unavailable})
		}
	}
	now := dev.PortGroups()
	for _, g := range groups {
		i := slices.IndexFunc(now, func(h scsi.PortGroup) bool { return h.ID == g.ID })
		var err error
		switch {
		case i < 0:
			err = dev.AddPortGroup(g)
		case now[i].State != g.State:
			err = dev.SetPortGroupState(g.ID, g.State)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *service) addLUN(name iscsi.Name, l conf.LUN) (undo, error) {
	t := s.targets[name]
	if err := s.addUnit(t, l, s.stores[l.Store].Store); err != nil {
		return nil, err
	}
	s.listLUN(t, l)
	s.log.WithField("target", name).Infof("LUN %d added, backstore %s", l.Number, l.Store)
	return func(ctx context.Context) error {
		_, err := s.removeLUN(ctx, name, l)
		return err
	}, nil
}

// listLUN enters a unit in its target's settings, in place of one of its number.
func (s *service) listLUN(t *servedTarget, l conf.LUN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	luns := slices.DeleteFunc(slices.Clone(t.conf.LUNs), func(o conf.LUN) bool { return o.Number == l.Number })
	t.conf.LUNs = append(luns, l)
	slices.SortFunc(t.conf.LUNs, func(a, b conf.LUN) int { return a.Number - b.Number })
}

func (s *service) removeLUN(ctx context.Context, name iscsi.Name, l conf.LUN) (undo, error) {
	t := s.targets[name]
	st := t.dev.LU(l.Number).Store()
	err := t.dev.RemoveContext(ctx, l.Number)
	s.mu.Lock()
	t.conf.LUNs = slices.DeleteFunc(slices.Clone(t.conf.LUNs), func(o conf.LUN) bool { return o.Number == l.Number })
	s.mu.Unlock()
	back := func(context.Context) error {
		if err := s.addUnit(t, l, st); err != nil {
			return err
		}
		s.listLUN(t, l)
		return nil
	}
	if err != nil {
		return back, fmt.Errorf("target %s: %w", name, err)
	}
	s.log.WithField("target", name).Infof("LUN %d removed", l.Number)
	return back, nil
}

func (s *service) setReadOnly(ctx context.Context, name iscsi.Name, l conf.LUN) (undo, error) {
	t := s.targets[name]
	was := l
	was.ReadOnly = !l.ReadOnly
	back := func(ctx context.Context) error {
		s.listLUN(t, was)
		return t.dev.LU(l.Number).SetReadOnly(ctx, was.ReadOnly)
	}
	if err := t.dev.LU(l.Number).SetReadOnly(ctx, l.ReadOnly); err != nil {
		return back, fmt.Errorf("target %s: %w", name, err)
	}
	s.listLUN(t, l)
	return back, nil
}

func (s *service) setDiscovery(d conf.Discovery) (undo, error) {
	was := s.discovery
	if err := s.server.SetDiscovery(d.Auth, d.Disabled); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discovery = d
	return func(context.Context) error {
		_, err := s.setDiscovery(was)
		return err
	}, nil
}

func (s *service) setISNS(c conf.ISNS) (undo, error) {
	was := s.isns
	if s.stopISNS != nil {
		s.stopISNS()
		s.stopISNS = nil
	}
	back := func(context.Context) error {
		_, err := s.setISNS(was)
		return err
	}
	if err := s.register(c); err != nil {
		return back, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isns = c
	return back, nil
}

// targetConfig is what the server is told of a target.
func targetConfig(t *conf.Target, dev *scsi.Device) target.TargetConfig {
	c := target.TargetConfig{Name: t.Name, Alias: t.Alias, Device: dev, Negotiate: t.Negotiate, AllowFrom: t.AllowFrom, Auth: t.Auth, Groups: tags(t.Groups)}
	if r := t.Redirect; r != nil {
		c.Redirect = &target.Redirect{To: r.To, Permanent: r.Permanent, Groups: tags(r.Groups)}
	}
	for _, name := range t.Allow {
		c.Allow = append(c.Allow, string(name))
	}
	for _, i := range t.Initiators {
		c.Initiators = append(c.Initiators, target.InitiatorConfig(i))
	}
	return c
}

// tags is portal groups as the wire has them; they have been checked.
func tags(groups []int) []uint16 {
	var list []uint16
	for _, g := range groups {
		list = append(list, uint16(g))
	}
	return list
}
