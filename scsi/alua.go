package scsi

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// An AccessState is a target port group's asymmetric access state (SPC-4, 5.16.2.1).
type AccessState uint8

// The access states, as the wire has them.
const (
	Optimized     AccessState = 0x0
	NonOptimized  AccessState = 0x1
	Standby       AccessState = 0x2 // answers 02/04/0B to media access
	Unavailable   AccessState = 0x3 // answers 02/04/0C to all but a few commands
	Transitioning AccessState = 0xf // answers 02/04/0A to all but a few commands
)

// String is the state in one word, as configurations have it.
func (s AccessState) String() string {
	switch s {
	case Optimized:
		return "optimized"
	case NonOptimized:
		return "non-optimized"
	case Standby:
		return "standby"
	case Unavailable:
		return "unavailable"
	case Transitioning:
		return "transitioning"
	}
	return fmt.Sprintf("AccessState(%#x)", uint8(s))
}

// stable: a port group can stay in it, and SET TARGET PORT GROUPS can ask for it.
func (s AccessState) stable() bool { return s <= Unavailable }

// A PortGroup is a target port group. It has one target port, whose relative identifier is the group's: in
// iSCSI both are the portal group tag, since a target port is a portal group (RFC 7143, 4.4.1).
type PortGroup struct {
	ID    uint16
	State AccessState
}

// maxPortGroups bounds the groups in the list of SET TARGET PORT GROUPS.
const maxPortGroups = 256

// Why a group is in its state (STATUS CODE; SPC-4, 6.37).
const (
	accessUnchanged = 0x00
	accessExplicit  = 0x01
	accessImplicit  = 0x02
)

// groupAccess is a port group as one unit sees it.
type groupAccess struct {
	PortGroup
	status uint8
}

// refuse gives the condition of a command that comes through a group in a state, nil if the command is
// allowed there (SPC-4, 5.16.2.4 to 5.16.2.8).
func (s AccessState) refuse(op *operation) error {
	switch {
	case op == nil:
	case s == Standby && op.flags&inStandby == 0:
		return errStandby
	case s == Unavailable && op.flags&inUnavailable == 0:
		return errUnavailable
	case s == Transitioning && op.flags&inTransition == 0:
		return errTransitioning
	}
	return nil
}

// reachable is nil if the unit takes a command through a port. Until a group of it has limits this is one
// atomic load.
func (lu *LogicalUnit) reachable(port uint16, op *operation) error {
	return lu.access(port).refuse(op)
}

// access is the state of a port's group if it has limits, else Optimized.
func (lu *LogicalUnit) access(port uint16) AccessState {
	limited := lu.limited.Load()
	if limited == nil {
		return Optimized
	}
	return (*limited)[port]
}

// setAccessLocked puts a unit's group into a state, and tells every nexus but by of a change.
func (lu *LogicalUnit) setAccessLocked(id uint16, s AccessState, status uint8, what attention, by *Nexus) {
	limited := map[uint16]AccessState{}
	changed := false
	for i := range lu.groups {
		g := &lu.groups[i]
		if g.ID == id {
			changed = g.State != s
			g.State, g.status = s, status
		}
		if g.State > NonOptimized {
			limited[g.ID] = g.State
		}
	}
	if len(limited) == 0 {
		lu.limited.Store(nil)
	} else {
		lu.limited.Store(&limited)
	}
	if changed {
		lu.device.raiseLocked(lu, what, by)
	}
}

// addGroupLocked makes a port group known.
func (d *Device) addGroupLocked(g PortGroup) {
	d.groups = append(d.groups, g)
	for _, lu := range *d.units.Load() {
		if lu != nil {
			lu.addGroupLocked(g)
		}
	}
}

func (lu *LogicalUnit) addGroupLocked(g PortGroup) {
	lu.groups = append(lu.groups, groupAccess{PortGroup{ID: g.ID}, accessUnchanged})
	lu.setAccessLocked(g.ID, g.State, accessUnchanged, 0, nil)
}

// AddPortGroup adds a port group through which all units are reached from now on. An error says that there is one with
// its ID.
func (d *Device) AddPortGroup(g PortGroup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.groups, func(h PortGroup) bool { return h.ID == g.ID }) {
		return fmt.Errorf("port group %d: exists already", g.ID)
	}
	d.addGroupLocked(g)
	return nil
}

// PortGroups lists the port groups and the states that SetPortGroupState has given them.
func (d *Device) PortGroups() []PortGroup {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.groups)
}

// SetPortGroupState puts a port group of all units into a state (implicit asymmetric access), as of the
// next command. Every nexus gets ASYMMETRIC ACCESS STATE CHANGED (2A/06). An error names a group that there
// is not, or a state.
func (d *Device) SetPortGroupState(id uint16, s AccessState) error {
	return d.setPortGroup(id, s, accessStateChanged)
}

// FailTransition ends a transition that did not come to its end, in state s. Every nexus gets IMPLICIT
// ASYMMETRIC ACCESS STATE TRANSITION FAILED (2A/07). Errors are SetPortGroupState's.
func (d *Device) FailTransition(id uint16, s AccessState) error {
	return d.setPortGroup(id, s, transitionFailed)
}

func (d *Device) setPortGroup(id uint16, s AccessState, what attention) error {
	if !s.stable() && s != Transitioning {
		return fmt.Errorf("port group %d: %v: no such state", id, s)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.groups, func(g PortGroup) bool { return g.ID == id })
	if i < 0 {
		return fmt.Errorf("port group %d: there is none", id)
	}
	d.groups[i].State = s
	for _, lu := range *d.units.Load() {
		if lu != nil {
			lu.setAccessLocked(id, s, accessImplicit, what, nil)
		}
	}
	return nil
}

// REPORT TARGET PORT GROUPS (SPC-4, 6.37).
const (
	rtpgFormat   = 0xe0 // PARAMETER DATA FORMAT, in byte 1
	rtpgExtended = 0x20
	// supportedStates has a bit for each of T_SUP, U_SUP, S_SUP, AN_SUP and AO_SUP.
	supportedStates = 0x80 | 0x08 | 0x04 | 0x02 | 0x01
)

// prepareReportGroups tells of all groups, the same through every port (PR-08).
//
//	0 state  1 supported states  2..3 group  5 status  7 ports  10..11 relative port
func prepareReportGroups(d *Device, t *Task) error {
	var header []byte
	switch t.CDB[1] & rtpgFormat {
	case 0:
	case rtpgExtended:
		header = []byte{rtpgExtended >> 1, 0, 0, 0} // implicit transitions take no time to speak of
	default:
		return invalidField(1, 7)
	}
	b := append(make([]byte, 4), header...)
	d.mu.Lock()
	for _, g := range t.lu.groups {
		b = append(b, byte(g.State), supportedStates)
		b = binary.BigEndian.AppendUint16(b, g.ID)
		b = append(b, 0, g.status, 0, 1, 0, 0)
		b = binary.BigEndian.AppendUint16(b, g.ID)
	}
	d.mu.Unlock()
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.reply(b, binary.BigEndian.Uint32(t.CDB[6:]))
	return nil
}

// prepareSetGroups wants the list of SET TARGET PORT GROUPS (SPC-4, 6.45). One of no bytes changes nothing.
func prepareSetGroups(_ *Device, t *Task) error {
	n := binary.BigEndian.Uint32(t.CDB[6:])
	if n > 4+4*maxPortGroups || n%4 != 0 {
		return errListLength
	}
	t.Done = n == 0
	return t.wantList(uint64(n), errListLength)
}

// executeSetGroups changes the states of groups for this unit (explicit asymmetric access): all that are
// listed or, if one cannot be, none. Other nexuses are told.
//
//	4.. for each group: 0 state  2..3 group
func executeSetGroups(t *Task) error {
	list, lu := t.list(), t.lu
	d := lu.device
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := 4; at < len(list); at += 4 {
		if !AccessState(list[at] & 0x0f).stable() {
			return invalidParameter(at, 3)
		}
		id := binary.BigEndian.Uint16(list[at+2:])
		if !slices.ContainsFunc(lu.groups, func(g groupAccess) bool { return g.ID == id }) {
			return invalidParameter(at+2, 7)
		}
	}
	for at := 4; at < len(list); at += 4 {
		id := binary.BigEndian.Uint16(list[at+2:])
		lu.setAccessLocked(id, AccessState(list[at]&0x0f), accessExplicit, accessStateChanged, t.Nexus)
	}
	return nil
}
