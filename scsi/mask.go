package scsi

// A mask is what a nexus sees and may do, where that is not everything. The zero mask is no restriction.
type mask struct {
	seen     []uint64 // a bit a unit number, of those that are there for the nexus; nil: all
	readOnly bool
}

const maskWord = 64 // bits

func newMask(c *NexusConfig) mask {
	m := mask{readOnly: c.ReadOnly}
	if c.LUNs == nil {
		return m
	}
	m.seen = make([]uint64, MaxLUN/maskWord+1)
	for _, n := range c.LUNs {
		if n >= 0 && n <= MaxLUN {
			m.seen[n/maskWord] |= 1 << (n % maskWord)
		}
	}
	return m
}

// sees reports whether a unit number can be there for the nexus.
func (m *mask) sees(number int) bool {
	return m.seen == nil || m.seen[number/maskWord]&(1<<(number%maskWord)) != 0
}

// Sees reports whether a unit with this 8-byte LUN would be there for the nexus.
func (n *Nexus) Sees(lun uint64) bool {
	number, ok := Number(lun)
	return ok && n.mask.sees(number)
}

// Sees reports whether the unit of an 8-byte LUN is there for the nexus. One that is masked is not: neither for
// commands nor for task management, and nothing that happens to it is told.
func (d *Device) Sees(n *Nexus, lun uint64) bool {
	return d.find(n, lun) != nil
}

// forbids reports whether a nexus that may only read may not use a command: what conflicts with a
// reservation against writes (the access column) changes the unit for others, unless its row says otherwise.
func (m *mask) forbids(op *operation, cdb []byte) bool {
	return m.readOnly && op.flags&forReaders == 0 && op.access.of(cdb) == accessWrite
}

// deviceSpecific is the DEVICE-SPECIFIC PARAMETER of MODE SENSE (SBC-3, 6.4.1) as the nexus sees it.
func (t *Task) deviceSpecific() byte {
	b := t.lu.deviceSpecific()
	if t.Nexus.mask.readOnly {
		b |= deviceSpecificWP
	}
	return b
}
