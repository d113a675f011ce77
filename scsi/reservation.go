package scsi

// reservations is what is reserved on a unit. A value is never changed, only replaced, under Device.mu:
// commands look at it with one atomic load.
//
// The check is made when a command arrives. A reservation applies to what arrives after its command has
// been answered (SPC-4, 5.12.1); what was there before goes on.
type reservations struct {
	// holder is the nexus of RESERVE (SPC-2, 5.5.1), nil if there is none. It holds until RELEASE, a
	// reset, or the end of the nexus. Nobody is registered while there is one.
	holder *Nexus
	// registry has the registrations and the persistent reservation; nil: none, and never any.
	registry *registry
	// saving: a PERSISTENT RESERVE OUT is being made durable, and will replace registry.
	saving bool
}

// current is what is reserved now.
func (lu *LogicalUnit) current() reservations {
	if r := lu.reservations.Load(); r != nil {
		return *r
	}
	return reservations{}
}

// conflict reports whether a command conflicts with what others have reserved.
func (lu *LogicalUnit) conflict(n *Nexus, a access, cdb []byte) bool {
	r := lu.reservations.Load()
	return r != nil && r.conflict(n, a, cdb)
}

func (r *reservations) conflict(n *Nexus, a access, cdb []byte) bool {
	switch a = a.of(cdb); {
	case a == accessAlways || a == accessOwn:
		return false
	case r.holder != nil:
		return r.holder != n || a == accessPersistent
	case a == accessRead || a == accessWrite:
		return r.registry != nil && r.registry.conflict(n.name(), a)
	}
	return false
}

// of is the access of a command that depends on its fields (SBC-3, 4.17). A CDB that is too short will
// be refused for that.
func (a access) of(cdb []byte) access {
	if a < accessStart || a > accessPrevent || len(cdb) < 5 {
		return a
	}
	allowed := cdb[4]&preventMask == 0
	if a == accessStart {
		allowed = cdb[4]&(startStart|startPowerCondition) == startStart
	}
	if allowed {
		return accessAlways
	}
	return accessWrite
}

// preventMask is the PREVENT field in byte 4 of PREVENT ALLOW MEDIUM REMOVAL (SBC-3, 5.9).
const preventMask = 0x03

// prepareReserve reserves the unit for the nexus. A reservation that it has already stays (SPC-2, 7.21).
func prepareReserve(d *Device, t *Task) error {
	t.Done = true
	d.mu.Lock()
	defer d.mu.Unlock()
	r := t.lu.current()
	_, attached := d.nexuses[t.Nexus]
	switch {
	case r.saving:
		return errBusy
	case !attached:
		return errConflict // nobody will read it, and nothing would end the reservation
	case r.registry.exempts(t.Nexus.name()):
		return nil
	case r.registry.inUse(), r.holder != nil && r.holder != t.Nexus:
		return errConflict
	}
	t.lu.setHolderLocked(t.Nexus)
	return nil
}

// prepareRelease ends the nexus's own reservation. Somebody else's is left alone, and that is no error
// (SPC-2, 7.17).
func prepareRelease(d *Device, t *Task) error {
	t.Done = true
	d.mu.Lock()
	defer d.mu.Unlock()
	r := t.lu.current()
	if r.registry.inUse() && !r.registry.exempts(t.Nexus.name()) {
		return errConflict
	}
	t.lu.endReserveLocked(t.Nexus)
	return nil
}

// inUse reports whether anybody is registered: then RESERVE and RELEASE conflict (SPC-2, 5.5.1).
func (g *registry) inUse() bool { return g != nil && len(g.registrants) > 0 }

// exempts reports whether RESERVE and RELEASE of a nexus end well and do nothing: it has by its
// persistent reservation what it asks for (compatible reservation handling, CRH; SPC-4, 5.12.3).
func (g *registry) exempts(n nexusName) bool {
	return g != nil && g.kind != 0 && (g.holds(n) || !g.kind.exclusive() && g.find(n) != nil)
}

// endReserveLocked ends the SPC-2 reservation of a nexus; nil: of whichever.
func (lu *LogicalUnit) endReserveLocked(n *Nexus) {
	if r := lu.current(); r.holder != nil && (n == nil || r.holder == n) {
		lu.setHolderLocked(nil)
	}
}

func (lu *LogicalUnit) setHolderLocked(n *Nexus) {
	r := lu.current()
	r.holder = n
	lu.reservations.Store(&r)
}
