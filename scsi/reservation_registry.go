package scsi

import "slices"

// maxRegistrants bounds the I_T nexuses registered with a unit; more get INSUFFICIENT REGISTRATION
// RESOURCES. Four paths each of 64 hosts fit.
const maxRegistrants = 256

// A nexusName names an I_T nexus for as long as its ports have their names: registrations belong to it
// and outlive the session (SPC-4, 5.12.5).
type nexusName struct {
	initiator string // initiator port: iSCSI name, ",i,0x", ISID
	port      uint16 // relative target port identifier
}

func (n *Nexus) name() nexusName { return nexusName{n.initiator, n.relativePort} }

// A reservationKind is the TYPE of a persistent reservation (SPC-4, 6.15.3.4); 0 is none.
type reservationKind uint8

const (
	writeExclusive                 reservationKind = 0x1
	exclusiveAccess                reservationKind = 0x3
	writeExclusiveRegistrantsOnly  reservationKind = 0x5
	exclusiveAccessRegistrantsOnly reservationKind = 0x6
	writeExclusiveAllRegistrants   reservationKind = 0x7
	exclusiveAccessAllRegistrants  reservationKind = 0x8
)

func (k reservationKind) valid() bool {
	switch k {
	case writeExclusive, exclusiveAccess, writeExclusiveRegistrantsOnly, exclusiveAccessRegistrantsOnly,
		writeExclusiveAllRegistrants, exclusiveAccessAllRegistrants:
		return true
	}
	return false
}

// exclusive: one nexus has access; else all that are registered.
func (k reservationKind) exclusive() bool { return k == writeExclusive || k == exclusiveAccess }

// allRegistrants: every registered nexus is a holder.
func (k reservationKind) allRegistrants() bool {
	return k == writeExclusiveAllRegistrants || k == exclusiveAccessAllRegistrants
}

// sharesReads: others may read.
func (k reservationKind) sharesReads() bool {
	return k == writeExclusive || k == writeExclusiveRegistrantsOnly || k == writeExclusiveAllRegistrants
}

// A registrant is a registration.
type registrant struct {
	nexus nexusName
	key   uint64
}

// A registry is the persistent reservation and the registrations of a unit (SPC-4, 5.12): a pure state
// machine. A value is never changed: apply makes another one.
//
//	unregistered ──REGISTER──► registered ──RESERVE──► holder ──RELEASE──► registered
//	     ▲                         │                      │
//	     └─── REGISTER key 0, CLEAR, PREEMPT by others ───┘
type registry struct {
	// generation counts what PRGENERATION counts (SPC-4, 6.15.2), from 0 at power on.
	generation  uint32
	registrants []registrant // in the order of registration
	byNexus     map[nexusName]int
	kind        reservationKind // 0: no reservation
	holder      nexusName       // unless kind is 0 or allRegistrants
	// aptpl: all of this survives a power loss. The last REGISTER decides (SPC-4, 5.12.5).
	aptpl bool
}

// find is a nexus's registration, nil if it has none.
func (g *registry) find(n nexusName) *registrant {
	if i, ok := g.byNexus[n]; ok {
		return &g.registrants[i]
	}
	return nil
}

// holds reports whether a nexus is a reservation holder.
func (g *registry) holds(n nexusName) bool {
	if g.kind.allRegistrants() {
		return g.find(n) != nil
	}
	return g.kind != 0 && g.holder == n
}

// conflict reports whether accessRead or accessWrite of a nexus conflicts with the reservation.
func (g *registry) conflict(n nexusName, a access) bool {
	switch {
	case g.kind == 0, a == accessRead && g.kind.sharesReads():
		return false
	case g.kind.exclusive():
		return g.holder != n
	}
	return g.find(n) == nil
}

// A notice is a unit attention for a nexus.
type notice struct {
	nexus nexusName
	what  attention
}

// A change is what a request makes of a registry.
type change struct {
	// next is the new state; the old one itself if nothing has changed.
	next    *registry
	notices []notice
	// preempted are the nexuses whose tasks PREEMPT AND ABORT ends.
	preempted []nexusName
}

// notifyOthers tells every nexus of a list but by.
func (c *change) notifyOthers(list []registrant, by nexusName, what attention) {
	for _, r := range list {
		if r.nexus != by {
			c.notices = append(c.notices, notice{r.nexus, what})
		}
	}
}

// A registryRequest is a PERSISTENT RESERVE OUT command (SPC-4, 6.16).
type registryRequest struct {
	from        nexusName
	action      int
	key, newKey uint64          // RESERVATION KEY, SERVICE ACTION RESERVATION KEY
	kind        reservationKind // TYPE, whatever the CDB has
	scope       uint8
	aptpl       bool
	// ports are those that REGISTER is about: the one that the command came through, or all.
	ports []uint16
	// others are further initiator ports to register (SPEC_I_PT).
	others    []string
	specifies bool      // SPEC_I_PT
	to        nexusName // REGISTER AND MOVE
	leave     bool      // UNREG
}

// Service actions of PERSISTENT RESERVE OUT (SPC-4, 6.16.2).
const (
	prRegister = iota
	prReserve
	prRelease
	prClear
	prPreempt
	prPreemptAndAbort
	prRegisterAndIgnore
	prRegisterAndMove
)

// apply carries out a request. Of what a request may be refused for, a wrong key or a missing
// registration comes first: RESERVATION CONFLICT precedes CHECK CONDITION (SAM-5, 5.3.3).
func (g *registry) apply(q *registryRequest) (change, error) {
	own := g.find(q.from)
	if q.action == prRegister || q.action == prRegisterAndIgnore {
		return g.register(q, own)
	}
	if own == nil || own.key != q.key {
		return change{}, errConflict
	}
	switch q.action {
	case prReserve:
		return g.reserve(q)
	case prRelease:
		return g.release(q)
	case prClear:
		return g.clear(q)
	case prPreempt, prPreemptAndAbort:
		return g.preempt(q)
	default:
		return g.move(q)
	}
}

// register is REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4, 5.12.7).
func (g *registry) register(q *registryRequest, own *registrant) (change, error) {
	held := uint64(0) // the key that an unregistered nexus shows
	if own != nil {
		held = own.key
	}
	switch {
	case q.action == prRegister && q.key != held:
		return change{}, errConflict
	case own != nil && q.specifies:
		return change{}, invalidParameter(prFlagsByte, prSpecIPTBit)
	case own == nil && q.newKey == 0:
		return change{next: g}, nil
	}
	next := g.copy()
	next.aptpl = q.aptpl
	next.generation++
	c := change{next: next}
	for _, port := range q.ports {
		n := nexusName{q.from.initiator, port}
		if q.newKey == 0 {
			next.leave(n, q.from, &c)
			continue
		}
		next.enter(n, q.newKey)
		for _, other := range q.others {
			n := nexusName{other, port}
			if g.find(n) != nil { // SPC-4, table 67: only who is not registered
				return change{}, invalidParameter(prTransportIDs, 7)
			}
			next.enter(n, q.newKey)
		}
	}
	if len(next.registrants) > maxRegistrants {
		return change{}, errNoRegistrations
	}
	c.notices = slices.DeleteFunc(c.notices, func(n notice) bool { return next.find(n.nexus) == nil })
	return c, nil
}

// leave ends a registration, and what depends on it (SPC-4, 5.12.11.2.3).
func (g *registry) leave(n, by nexusName, c *change) {
	if g.find(n) == nil {
		return
	}
	held := !g.kind.allRegistrants() && g.holds(n)
	g.remove(func(r registrant) bool { return r.nexus == n })
	switch {
	case held:
		if !g.kind.exclusive() {
			c.notifyOthers(g.registrants, by, reservationsReleased)
		}
		g.unreserve()
	case len(g.registrants) == 0:
		g.unreserve()
	}
}

func (g *registry) reserve(q *registryRequest) (change, error) {
	switch {
	case g.kind != 0 && (!g.holds(q.from) || g.kind != q.kind || q.scope != prScopeUnit):
		return change{}, errConflict
	case g.kind != 0:
		return change{next: g}, nil
	}
	if err := q.checkKind(); err != nil {
		return change{}, err
	}
	next := g.copy()
	next.establish(q)
	return change{next: next}, nil
}

// checkKind refuses scopes and types that are not defined.
func (q *registryRequest) checkKind() error {
	if q.scope != prScopeUnit {
		return invalidField(2, 7)
	}
	if !q.kind.valid() {
		return invalidField(2, 3)
	}
	return nil
}

// release ends the reservation of a holder. From others it is no error and does nothing (SPC-4,
// 5.12.11.2.2).
func (g *registry) release(q *registryRequest) (change, error) {
	if !g.holds(q.from) {
		return change{next: g}, nil
	}
	if g.kind != q.kind || q.scope != prScopeUnit {
		return change{}, errInvalidRelease
	}
	next := g.copy()
	c := change{next: next}
	if !g.kind.exclusive() {
		c.notifyOthers(g.registrants, q.from, reservationsReleased)
	}
	next.unreserve()
	return c, nil
}

// clear ends everything (SPC-4, 5.12.11.2.7).
func (g *registry) clear(q *registryRequest) (change, error) {
	c := change{next: &registry{generation: g.generation + 1, aptpl: g.aptpl}}
	c.notifyOthers(g.registrants, q.from, reservationsPreempted)
	return c, nil
}

// preempt is PREEMPT and PREEMPT AND ABORT (SPC-4, 5.12.11.2.4 to 6). It takes the reservation over if
// the key is its holder's, or if it is zero and all registrants hold it; else it only ends registrations.
func (g *registry) preempt(q *registryRequest) (change, error) {
	takeover := false
	loses := func(r registrant) bool { return r.key == q.newKey } // the sender too
	switch {
	case g.kind.allRegistrants() && q.newKey == 0:
		takeover = true
		loses = func(r registrant) bool { return r.nexus != q.from }
	case q.newKey == 0:
		return change{}, invalidParameter(prNewKeyByte, 7)
	case g.kind != 0 && !g.kind.allRegistrants() && g.find(g.holder).key == q.newKey:
		takeover = true
		loses = func(r registrant) bool { return r.key == q.newKey && r.nexus != q.from }
	case !slices.ContainsFunc(g.registrants, loses):
		return change{}, errConflict
	}
	if takeover {
		if err := q.checkKind(); err != nil {
			return change{}, err
		}
	}
	next := g.copy()
	next.generation++
	c := change{next: next}
	lost := next.remove(loses)
	c.notifyOthers(lost, q.from, registrationsPreempted)
	switch {
	case takeover:
		if g.kind != q.kind {
			c.notifyOthers(next.registrants, q.from, reservationsReleased)
		}
		next.establish(q)
	case len(next.registrants) == 0:
		next.unreserve()
	}
	if q.action == prPreemptAndAbort {
		for _, r := range g.registrants {
			// The sender too, if it has the key, and with key zero all there are.
			if q.newKey == 0 || r.key == q.newKey {
				c.preempted = append(c.preempted, r.nexus)
			}
		}
	}
	return c, nil
}

// move is REGISTER AND MOVE (SPC-4, 5.12.8): to another initiator port, whatever the target port.
func (g *registry) move(q *registryRequest) (change, error) {
	switch {
	case g.kind == 0:
		return change{}, invalidField(1, 4)
	case g.kind.allRegistrants() || !g.holds(q.from):
		return change{}, errConflict
	case q.newKey == 0:
		return change{}, invalidParameter(prNewKeyByte, 7)
	case q.to.initiator == q.from.initiator:
		return change{}, invalidParameter(prMoveTransportID, 7)
	}
	next := g.copy()
	next.aptpl = q.aptpl
	next.generation++
	next.enter(q.to, q.newKey)
	next.holder = q.to
	if q.leave {
		next.remove(func(r registrant) bool { return r.nexus == q.from })
	}
	if len(next.registrants) > maxRegistrants {
		return change{}, errNoRegistrations
	}
	return change{next: next}, nil
}

// What follows changes a copy before anybody sees it.

func (g *registry) copy() *registry {
	next := *g
	next.registrants = slices.Clone(g.registrants)
	next.reindex()
	return &next
}

func (g *registry) reindex() {
	g.byNexus = make(map[nexusName]int, len(g.registrants))
	for i := range g.registrants {
		g.byNexus[g.registrants[i].nexus] = i
	}
}

// enter registers a nexus, or changes its key.
func (g *registry) enter(n nexusName, key uint64) {
	if r := g.find(n); r != nil {
		r.key = key
		return
	}
	g.byNexus[n] = len(g.registrants)
	g.registrants = append(g.registrants, registrant{n, key})
}

// remove ends registrations and returns them.
func (g *registry) remove(which func(registrant) bool) (lost []registrant) {
	kept := g.registrants[:0]
	for _, r := range g.registrants {
		if which(r) {
			lost = append(lost, r)
		} else {
			kept = append(kept, r)
		}
	}
	g.registrants = kept
	g.reindex()
	return lost
}

func (g *registry) establish(q *registryRequest) {
	g.kind, g.holder = q.kind, nexusName{}
	if !q.kind.allRegistrants() {
		g.holder = q.from
	}
}

func (g *registry) unreserve() { g.kind, g.holder = 0, nexusName{} }
