package scsi

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// An attention is a set of unit attention conditions, the ones reported first in the lowest bits
// (SAM-5, 5.14: power on, then resets, then all others).
type attention uint32

const (
	powerOn attention = 1 << iota
	busDeviceReset
	nexusLost
	commandsCleared
	modeChanged
	reservationsPreempted
	reservationsReleased
	registrationsPreempted
	accessStateChanged
	transitionFailed
	capacityChanged
	inquiryChanged
	reportedLUNsChanged

	// resetAttentions come before a reservation conflict, all others after it (SAM-5, 5.3.3).
	resetAttentions = powerOn | busDeviceReset | nexusLost
	allAttentions   = ^attention(0)
)

// attentionSense is indexed by bit.
var attentionSense = [...]*senseError{
	{key: keyUnitAttention, asc: 0x29, ascq: 0x00}, // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED
	{key: keyUnitAttention, asc: 0x29, ascq: 0x03}, // BUS DEVICE RESET FUNCTION OCCURRED
	{key: keyUnitAttention, asc: 0x29, ascq: 0x07}, // I_T NEXUS LOSS OCCURRED
	{key: keyUnitAttention, asc: 0x2f, ascq: 0x00}, // COMMANDS CLEARED BY ANOTHER INITIATOR
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x01}, // MODE PARAMETERS CHANGED
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x03}, // RESERVATIONS PREEMPTED
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x04}, // RESERVATIONS RELEASED
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x05}, // REGISTRATIONS PREEMPTED
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x06}, // ASYMMETRIC ACCESS STATE CHANGED
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x07}, // IMPLICIT ASYMMETRIC ACCESS STATE TRANSITION FAILED
	{key: keyUnitAttention, asc: 0x2a, ascq: 0x09}, // CAPACITY DATA HAS CHANGED
	{key: keyUnitAttention, asc: 0x3f, ascq: 0x03}, // INQUIRY DATA HAS CHANGED
	{key: keyUnitAttention, asc: 0x3f, ascq: 0x0e}, // REPORTED LUNS DATA HAS CHANGED
}

// A Nexus is an I_T nexus: one initiator port logged in to one target port. Unit attentions are kept
// for it.
type Nexus struct {
	initiator    string
	relativePort uint16
	mask         mask
	queries      bool
	copies       copyResults

	// clean, indexed by unit number, has the units of which nothing is pending. Commands look here
	// without a lock; a unit that is not here (a new one with an old number, say) is looked up in
	// pending. Entries change, and the slice is replaced by a longer one, under Device.mu.
	clean atomic.Pointer[[]atomic.Pointer[LogicalUnit]]
	// pending has the units that this nexus has met. One that is missing owes a powerOn, at least: see dueLocked.
	// Guarded by Device.mu, as what follows.
	pending map[*LogicalUnit]attention
	// attached is when the nexus came, and listed when it last learned which units there are, by Device.epoch.
	attached, listed uint64
}

// Initiator is the initiator port's name.
func (n *Nexus) Initiator() string { return n.initiator }

// NexusConfig describes an I_T nexus.
type NexusConfig struct {
	// Initiator is the initiator port's name: iSCSI name, ",i,0x", ISID (RFC 7143, 4.2.7).
	Initiator string
	// RelativePort is the relative target port identifier, which also is the portal group tag in the
	// target port's name, and the target port group. One that is not in DeviceConfig.PortGroups is added
	// to the groups, as Optimized.
	RelativePort uint16
	// LUNs are the numbers of the units that are there for this nexus, from 0 to MaxLUN; nil: all.
	LUNs []int
	// ReadOnly: commands that change a unit are refused (WRITE PROTECTED). Reservations are not.
	ReadOnly bool
	// QueryTasks: the transport carries out QUERY TASK, QUERY TASK SET, I_T NEXUS RESET and QUERY ASYNCHRONOUS EVENT
	// for this nexus. REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS says so.
	QueryTasks bool
}

// Attach makes the nexus of a session; its first command gets POWER ON (29/00) once per logical unit.
func (d *Device) Attach(c NexusConfig) *Nexus {
	n := &Nexus{
		initiator: c.Initiator, relativePort: c.RelativePort, mask: newMask(&c), queries: c.QueryTasks,
		pending: make(map[*LogicalUnit]attention),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nexuses[n] = struct{}{}
	n.attached, n.listed = d.epoch, d.epoch
	if !slices.ContainsFunc(d.groups, func(g PortGroup) bool { return g.ID == c.RelativePort }) {
		d.addGroupLocked(PortGroup{ID: c.RelativePort})
	}
	return n
}

// Detach ends the nexus: its SPC-2 reservations and pending attentions go. Persistent reservations and
// registrations stay: they belong to the port names. Its last tasks may still be executed or abandoned.
func (d *Device) Detach(n *Nexus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nexuses, n)
	for _, lu := range *d.units.Load() {
		if lu != nil {
			lu.endReserveLocked(n)
		}
	}
}

// isClean reports whether nothing is pending for a unit.
func (n *Nexus) isClean(lu *LogicalUnit) bool {
	c := n.clean.Load()
	return c != nil && lu.number < len(*c) && (*c)[lu.number].Load() == lu
}

// attend takes the next condition of a unit that is in which, nil if there is none.
func (d *Device) attend(n *Nexus, lu *LogicalUnit, which attention) *senseError {
	d.mu.Lock()
	defer d.mu.Unlock()
	set := n.dueLocked(lu)
	if set == 0 {
		n.markLocked(lu)
		return nil
	}
	if set&which == 0 {
		return nil
	}
	bit := bits.TrailingZeros32(uint32(set & which))
	if d.LU(lu.number) == lu { // else removed while the command was on its way: forgotten already
		n.pending[lu] = set &^ (1 << bit)
	}
	if attention(1)<<bit == reportedLUNsChanged {
		n.listedLocked(d.epoch)
	}
	return attentionSense[bit]
}

// QueryAttention tells which unit attention condition a nexus would be told of first on a unit, and leaves it pending
// (QUERY ASYNCHRONOUS EVENT; SAM-5, 7.10). ok is false if there is none, or no such unit.
//
//	byte 0: 4..5 UADE DEPTH (1: one condition, 2: more)  0..3 sense key   byte 1: ASC   byte 2: ASCQ
func (d *Device) QueryAttention(n *Nexus, lun uint64) (info [3]byte, ok bool) {
	lu := d.find(n, lun)
	if lu == nil {
		return info, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	set := n.dueLocked(lu)
	if set == 0 {
		return info, false
	}
	e := attentionSense[bits.TrailingZeros32(uint32(set))]
	depth := min(bits.OnesCount32(uint32(set)), 2)
	return [3]byte{byte(depth)<<4 | e.key, e.asc, e.ascq}, true
}

// dueLocked is what a nexus has to be told of a unit. A unit that it has not met owes a powerOn. One that has
// come while the nexus was there has changed the list of units; if it has the number of another disk, which
// the nexus may still take it for, that is said too, before anything is read or written (CO-01 of the field
// reports).
func (n *Nexus) dueLocked(lu *LogicalUnit) attention {
	if set, met := n.pending[lu]; met {
		return set
	}
	set := powerOn
	if lu.replaces && n.attached < lu.added {
		set |= inquiryChanged
	}
	if n.listed < lu.added {
		set |= reportedLUNsChanged
	}
	return set
}

// listedLocked notes that the nexus has learned that the list of units has changed: that is told once for
// all units (SPC-4, 6.33), by a unit attention or by a REPORT LUNS command.
func (n *Nexus) listedLocked(epoch uint64) {
	n.listed = epoch
	for lu, set := range n.pending {
		n.pending[lu] = set &^ reportedLUNsChanged
	}
}

// markLocked lets the next commands pass without a lock. A removed unit, of which a task may still be
// in preparation, is not kept.
func (n *Nexus) markLocked(lu *LogicalUnit) {
	if lu.device.LU(lu.number) != lu {
		return
	}
	var old []atomic.Pointer[LogicalUnit]
	if c := n.clean.Load(); c != nil {
		old = *c
	}
	if lu.number >= len(old) {
		grown := make([]atomic.Pointer[LogicalUnit], lu.number+1)
		for i := range old {
			grown[i].Store(old[i].Load())
		}
		n.clean.Store(&grown)
		old = grown
	}
	old[lu.number].Store(lu)
}

// forgetLocked drops everything about a unit.
func (n *Nexus) forgetLocked(lu *LogicalUnit) {
	n.copies.forget(lu)
	delete(n.pending, lu)
	n.unmarkLocked(lu)
}

// unmarkLocked takes markLocked back.
func (n *Nexus) unmarkLocked(lu *LogicalUnit) {
	if n.isClean(lu) {
		(*n.clean.Load())[lu.number].Store(nil)
	}
}

// raiseLocked makes a condition pending for every nexus but by that has met the unit; the others will
// get a powerOn, which says more.
func (d *Device) raiseLocked(lu *LogicalUnit, a attention, by *Nexus) {
	for n := range d.nexuses {
		if n != by {
			n.raiseLocked(lu, a)
		}
	}
}

// raiseLocked makes a condition pending for the nexus if it has met the unit.
func (n *Nexus) raiseLocked(lu *LogicalUnit, a attention) {
	set, met := n.pending[lu]
	if !met {
		return
	}
	n.pending[lu] = set | a
	n.unmarkLocked(lu)
}

// raiseListChangedLocked tells every nexus for which unit number can be there, on every unit that it has met,
// that the list of units has changed.
func (d *Device) raiseListChangedLocked(number int) {
	for n := range d.nexuses {
		if !n.mask.sees(number) {
			continue
		}
		for lu := range n.pending {
			n.raiseLocked(lu, reportedLUNsChanged)
		}
	}
}
