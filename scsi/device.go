package scsi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/backstore"
)

// MaxLUN is the largest logical unit number: flat space addressing has 14 bits (SAM-5, 4.7.7.3).
const MaxLUN = 16383

// DefaultMaxTransfer bounds a command's data, in bytes, where DeviceConfig does not.
const DefaultMaxTransfer = 4 << 20

// A Device is a SCSI target device: logical units by number. Its methods may be called from many
// goroutines.
type Device struct {
	config DeviceConfig

	// units is indexed by number. The slice is never changed, only replaced, so that commands find
	// their unit without a lock.
	units atomic.Pointer[[]*LogicalUnit]

	copies atomic.Int32 // EXTENDED COPY commands at work

	mu      sync.Mutex // guards replacing units and reservations, nexuses, and their attentions
	nexuses map[*Nexus]struct{}
	groups  []PortGroup    // guarded by mu
	epoch   uint64         // counts units added
	former  map[int]former // who had a number last
}

// DeviceConfig identifies a device.
type DeviceConfig struct {
	// Name is the SCSI target device name (the iSCSI name), for VPD page 83h.
	Name string
	// Vendor (8), Product (16) and Revision (4 bytes) go into INQUIRY; empty takes goiser's own.
	Vendor, Product, Revision string
	// MaxTransfer bounds a command's data, in bytes, and is what VPD page B0h says; 0 takes
	// DefaultMaxTransfer.
	MaxTransfer uint32
	// PortGroups are the target port groups; nil: one, with ID 1, Optimized.
	PortGroups []PortGroup
	// HoldNumbers is how long a removed unit's number is not given to another disk, so that initiators have
	// time to forget the old one; 0: not at all.
	HoldNumbers time.Duration
	// State keeps persistent reservations through power loss; nil: there is no APTPL.
	State StateKeeper
}

// NewDevice makes a device without logical units.
func NewDevice(c DeviceConfig) *Device {
	if c.Vendor == "" {
		c.Vendor = "GOISER"
	}
	if c.Product == "" {
		c.Product = "goiser disk"
	}
	if c.Revision == "" {
		c.Revision = "1"
	}
	if c.MaxTransfer == 0 {
		c.MaxTransfer = DefaultMaxTransfer
	}
	if c.PortGroups == nil {
		c.PortGroups = []PortGroup{{ID: 1}}
	}
	d := &Device{
		config: c, nexuses: make(map[*Nexus]struct{}), groups: slices.Clone(c.PortGroups),
		former: make(map[int]former),
	}
	d.units.Store(new([]*LogicalUnit))
	return d
}

// Add makes a logical unit with number lun (0 to MaxLUN) on a store. Every nexus gets a REPORTED LUNS
// DATA HAS CHANGED unit attention (3F/0E) and, if the number was another disk's, INQUIRY DATA HAS CHANGED (3F/03) from
// the unit. It fails with ErrNumberHeld if that was too short a time ago.
func (d *Device) Add(lun int, s backstore.Store, c LUConfig) (*LogicalUnit, error) {
	if lun < 0 || lun > MaxLUN {
		return nil, fmt.Errorf("lun %d: not in 0 to %d", lun, MaxLUN)
	}
	lu, err := newLogicalUnit(d, lun, s, c)
	if err != nil {
		return nil, fmt.Errorf("lun %d: %w", lun, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.units.Load()
	if lun < len(old) && old[lun] != nil {
		return nil, fmt.Errorf("lun %d: already in use", lun)
	}
	if err := d.succeedLocked(lu); err != nil {
		return nil, fmt.Errorf("lun %d: %w", lun, err)
	}
	units := make([]*LogicalUnit, max(len(old), lun+1))
	copy(units, old)
	units[lun] = lu
	for _, g := range d.groups {
		lu.addGroupLocked(g)
	}
	d.units.Store(&units)
	d.raiseListChangedLocked(lun)
	return lu, nil
}

// ErrNoLUN is returned for a logical unit number that is not in use.
var ErrNoLUN = errors.New("no such logical unit")

// Remove takes a logical unit away at once, and returns when no command uses its store any more. Every nexus gets a
// REPORTED LUNS DATA HAS CHANGED unit attention. Commands that have begun go on to their end; those that wait
// their turn, and new ones, find no unit.
func (d *Device) Remove(lun int) error { return d.RemoveContext(context.Background(), lun) }

// RemoveContext is Remove that stops waiting when ctx ends, with its error. Then the unit is gone, but commands may still
// use the store; LogicalUnit.Wait goes on waiting for them.
func (d *Device) RemoveContext(ctx context.Context, lun int) error {
	lu := d.remove(lun)
	if lu == nil {
		return fmt.Errorf("lun %d: %w", lun, ErrNoLUN)
	}
	return lu.Wait(ctx)
}

func (d *Device) remove(lun int) *LogicalUnit {
	d.mu.Lock()
	defer d.mu.Unlock()
	lu := d.LU(lun)
	if lu == nil {
		return nil
	}
	units := slices.Clone(*d.units.Load())
	units[lun] = nil
	d.units.Store(&units)
	lu.set.close()
	d.former[lun] = former{identity: lu.identity, gone: time.Now()}
	for n := range d.nexuses {
		n.forgetLocked(lu)
	}
	d.raiseListChangedLocked(lun)
	return lu
}

// LUNs lists the numbers in use, in order.
func (d *Device) LUNs() []int {
	var numbers []int
	for i, lu := range *d.units.Load() {
		if lu != nil {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// LU finds a logical unit by number; nil if there is none.
func (d *Device) LU(lun int) *LogicalUnit {
	units := *d.units.Load()
	if lun < 0 || lun >= len(units) {
		return nil
	}
	return units[lun]
}

// find finds a logical unit by its 8-byte LUN; nil if there is none for the nexus.
func (d *Device) find(n *Nexus, lun uint64) *LogicalUnit {
	number, ok := Number(lun)
	if !ok || !n.mask.sees(number) {
		return nil
	}
	return d.LU(number)
}

// ResetLU tells every nexus, the one that asks for it included (SAM-5, 6.3.3), of a logical unit reset (29/03) and
// drops what a reset drops: a stopped unit starts, an SPC-2 reservation ends, mode parameters have their defaults. It
// reports false if there is no such unit, or none for by (nil: the administrator). Aborting the unit's tasks is the
// transport's part.
func (d *Device) ResetLU(lun uint64, by *Nexus) bool {
	number, ok := Number(lun)
	if !ok || by != nil && !by.mask.sees(number) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	lu := d.LU(number)
	if lu == nil {
		return false
	}
	d.resetLocked(lu)
	return true
}

// Reset does the same for all units that are there for by (target warm reset).
func (d *Device) Reset(by *Nexus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, lu := range *d.units.Load() {
		if lu != nil && (by == nil || by.mask.sees(lu.number)) {
			d.resetLocked(lu)
		}
	}
}

func (d *Device) resetLocked(lu *LogicalUnit) {
	lu.stopped.Store(false)
	lu.control.Store(0)
	lu.endReserveLocked(nil)
	for n := range d.nexuses {
		n.copies.forget(lu)
	}
	d.raiseLocked(lu, busDeviceReset, nil)
}

// ResetNexus tells a nexus that it has been reset (I_T NEXUS LOSS OCCURRED, 29/07; SAM-5, 6.3.4), and drops what units
// keep for as long as it is there: its SPC-2 reservations and the results of its copies. Persistent reservations stay.
// Aborting its tasks is the transport's part.
func (d *Device) ResetNexus(n *Nexus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, lu := range *d.units.Load() {
		if lu != nil {
			lu.endReserveLocked(n)
			n.copies.forget(lu)
			n.raiseLocked(lu, nexusLost)
		}
	}
}

// CommandsCleared tells a nexus that another one has ended commands of it on a unit, which get no status since TAS is
// 0 (SAM-5, 5.6: COMMANDS CLEARED BY ANOTHER INITIATOR, 2F/00).
func (d *Device) CommandsCleared(n *Nexus, lun uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if lu := d.find(n, lun); lu != nil {
		n.raiseLocked(lu, commandsCleared)
	}
}

// Address methods, the two most significant bits of a LUN (SAM-5, 4.7.7).
const (
	addressPeripheral = 0
	addressFlat       = 1
)

// Number is the unit number of an 8-byte LUN (SAM-5, 4.7: peripheral or flat space addressing), and
// whether it has one. Only single-level LUNs have: the last six bytes are zero.
func Number(lun uint64) (int, bool) {
	if lun<<16 != 0 {
		return 0, false
	}
	level := int(lun >> 48)
	switch level >> 14 {
	case addressPeripheral:
		return level, level <= 0xff // the bus identifier in between is zero
	case addressFlat:
		return level & MaxLUN, true
	}
	return 0, false
}

// Address is the 8-byte LUN of a unit number, the inverse of Number: peripheral addressing up to 255,
// which every initiator knows, and flat space addressing above.
func Address(number int) uint64 {
	if number <= 0xff {
		return uint64(number) << 48
	}
	return uint64(addressFlat<<14|number) << 48
}
