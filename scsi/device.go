package scsi

import "github.com/goiser/goiser/backstore"

// A Device is a SCSI target device: logical units by number. Its methods may be called from many
// goroutines.
type Device struct{}

// DeviceConfig identifies a device.
type DeviceConfig struct {
	// Name is the SCSI target device name (the iSCSI name), for VPD page 83h.
	Name string
	// Vendor (8), Product (16) and Revision (4 bytes) go into INQUIRY; empty takes goiser's own.
	Vendor, Product, Revision string
}

// NewDevice makes a device without logical units.
func NewDevice(c DeviceConfig) *Device { panic("not written") }

// LUConfig describes a logical unit.
type LUConfig struct {
	// ID makes the identity (VPD 80h serial, 83h NAA) unique and stable: the same ID always gives the
	// same identity, different IDs different ones. Required.
	ID       string
	ReadOnly bool
	// BlockSize is the logical block size, 512 (default) or 4096 bytes.
	BlockSize int
}

// A LogicalUnit is one disk.
type LogicalUnit struct{}

// Add makes a logical unit with number lun (0 to 16383) on a store. Every nexus gets a REPORTED LUNS
// DATA HAS CHANGED unit attention.
func (d *Device) Add(lun int, s backstore.Store, c LUConfig) (*LogicalUnit, error) {
	panic("not written")
}

// Remove takes a logical unit away and returns once no command uses its store.
func (d *Device) Remove(lun int) error { panic("not written") }

// LUNs lists the numbers in use, in order.
func (d *Device) LUNs() []int { panic("not written") }

// LU finds a logical unit by number; nil if there is none.
func (d *Device) LU(lun int) *LogicalUnit { panic("not written") }

// Store is where the unit's blocks live.
func (lu *LogicalUnit) Store() backstore.Store { panic("not written") }

// Stats are the unit's counters: commands, bytes read and written, and check conditions.
type Stats struct{ Commands, ReadBytes, WrittenBytes, Errors uint64 }

// Stats reads the counters.
func (lu *LogicalUnit) Stats() Stats { panic("not written") }

// A Nexus is an I_T nexus: one initiator port logged in to one target port. Unit attentions are kept
// for it.
type Nexus struct{}

// Attach makes the nexus of a session; its first command gets POWER ON (29/00) once per logical unit.
// initiator is the initiator port's name (iSCSI name, ",i,0x", ISID). relativePort is the relative target port.
func (d *Device) Attach(initiator string, relativePort uint16) *Nexus { panic("not written") }

// Detach ends the nexus: reservations and pending attentions of it go.
func (d *Device) Detach(n *Nexus) { panic("not written") }

// Prepare decodes and checks a task: LUN, opcode, fields, range, unit attentions. See Task.
func (d *Device) Prepare(t *Task) { panic("not written") }

// Execute runs a prepared task, to its end. It may block if t.MayBlock.
func (d *Device) Execute(t *Task) { panic("not written") }

// Abandon ends a prepared task that will not be executed.
func (d *Device) Abandon(t *Task) { panic("not written") }

// ResetLU tells every nexus but by of a logical unit reset (29/03) and drops what a reset drops. It
// reports false if there is no such unit.
func (d *Device) ResetLU(lun uint64, by *Nexus) bool { panic("not written") }

// Reset does the same for all units (target warm reset).
func (d *Device) Reset(by *Nexus) { panic("not written") }

// Number is the unit number of an 8-byte LUN (SAM-5, 4.7: peripheral or flat space addressing), and
// whether it has one.
func Number(lun uint64) (int, bool) { panic("not written") }
