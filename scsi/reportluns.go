package scsi

import (
	"encoding/binary"
	"slices"
)

// SELECT REPORT (SPC-4, 6.33.1).
const (
	selectUnits     = 0x00 // all but well known logical units
	selectWellKnown = 0x01 // only well known ones: there are none
	selectAll       = 0x02
)

// prepareReportLUNs lists the units. It is answered for LUN 0 even if there is none (SPC-4, 6.33.1).
func prepareReportLUNs(d *Device, t *Task) error {
	if number, ok := Number(t.LUN); t.lu == nil && (!ok || number != 0) {
		return errNoUnit
	}
	var numbers []int
	switch t.CDB[2] {
	case selectUnits, selectAll:
		numbers = d.reportLUNs(t.Nexus)
	case selectWellKnown:
	default:
		return invalidField(2, 7)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(8*len(numbers)))
	b = append(b, 0, 0, 0, 0)
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, Address(n))
	}
	t.reply(b, binary.BigEndian.Uint32(t.CDB[6:]))
	return nil
}

// reportLUNs lists the units and forgets that the list has changed, in one step: a unit that comes in
// between must be told of again.
func (d *Device) reportLUNs(n *Nexus) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n.listedLocked(d.epoch)
	return slices.DeleteFunc(d.LUNs(), func(number int) bool { return !n.mask.sees(number) })
}

// prepareRequestSense gives the sense data that a command would end with now, as parameter data
// (SPC-4, 6.39), and so takes a pending unit attention.
func prepareRequestSense(d *Device, t *Task) error {
	sense := errNoSense
	switch {
	case t.lu == nil:
		sense = errNoUnit
	default:
		if ua := d.attend(t.Nexus, t.lu, allAttentions); ua != nil {
			sense = ua
		} else if err := t.lu.reachable(t.Nexus.relativePort, byOpcode[0][0]); err != nil {
			sense = err.(*senseError) // TEST UNIT READY would end so
		} else if e := t.lu.sanitizeError(); e != nil {
			sense = e
		} else if t.lu.stopped.Load() {
			sense = errStopped
		}
	}
	var data []byte
	if t.CDB[1]&1 != 0 { // DESC
		data = sense.appendDescriptor(nil)
	} else {
		data = sense.appendFixed(nil)
	}
	t.reply(data, uint32(t.CDB[4]))
	return nil
}
