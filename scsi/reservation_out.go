package scsi

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Fields of PERSISTENT RESERVE OUT and its parameter lists (SPC-4, 6.16.3 and 6.16.4).
const (
	prListLen = 24 // without TransportIDs
	// maxPersistentOut bounds a parameter list, in bytes: 60 of the longest TransportIDs fit.
	maxPersistentOut = 16 << 10

	prScopeUnit = 0x0 // LU_SCOPE

	prNewKeyByte    = 8
	prFlagsByte     = 20
	prSpecIPTBit    = 3
	prSpecIPT       = 0x08
	prAllTgPt       = 0x04
	prAPTPL         = 0x01
	prTransportIDs  = 28 // after their length at 24
	prMoveFlagsByte = 17
	prMoveUnreg     = 0x02
	prMovePort      = 18
	// prMoveTransportID is after its length at 20.
	prMoveTransportID = 24
)

// preparePersistentOut wants the parameter list. Whether it has the right length is known with the
// SPEC_I_PT bit in it.
func preparePersistentOut(_ *Device, t *Task) error {
	n := binary.BigEndian.Uint32(t.CDB[5:])
	if n < prListLen || n > maxPersistentOut {
		return errListLength
	}
	t.MayBlock = true // making it durable
	return t.wantList(uint64(n), errListLength)
}

// executePersistentOut carries out a request. With APTPL it ends when the new state is durable: until
// then commands see the old one, and after a power loss in between it is either.
func executePersistentOut(t *Task) error {
	lu := t.lu
	d := lu.device
	q, err := d.parsePersistentOut(t)
	if err != nil {
		return err
	}
	lu.registering.Lock() // one request after the other
	defer lu.registering.Unlock()
	old, c, err := lu.plan(q)
	if err != nil || c.next == old {
		return err
	}
	if c.next.aptpl || old.aptpl {
		if err := d.config.State.Save(lu.serial(), c.next.encode()); err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			lu.reservations.Store(&reservations{registry: old})
			return errNotSaved
		}
	}
	t.Preempted = lu.commit(&c)
	if len(c.preempted) > 0 {
		lu.waitForCopies() // they are tasks of other units perhaps, which the transport does not look for
	}
	return nil
}

// plan finds what a request makes of the registry. Until commit, or until the caller puts the old state
// back, RESERVE is held off.
func (lu *LogicalUnit) plan(q *registryRequest) (old *registry, c change, err error) {
	d := lu.device
	d.mu.Lock()
	defer d.mu.Unlock()
	r := lu.current()
	if r.holder != nil {
		return nil, c, errConflict // a RESERVE that came after the check of this command
	}
	if old = r.registry; old == nil {
		old = &registry{}
	}
	if c, err = old.apply(q); err == nil && c.next != old {
		lu.reservations.Store(&reservations{registry: old, saving: true})
	}
	return old, c, err
}

// commit makes a change valid and tells who must know. It returns the nexuses whose tasks are to end.
func (lu *LogicalUnit) commit(c *change) (preempted []*Nexus) {
	d := lu.device
	d.mu.Lock()
	defer d.mu.Unlock()
	lu.reservations.Store(&reservations{registry: c.next})
	for n := range d.nexuses {
		name := n.name()
		for _, told := range c.notices {
			if told.nexus == name {
				n.raiseLocked(lu, told.what)
			}
		}
		if slices.Contains(c.preempted, name) {
			preempted = append(preempted, n)
		}
	}
	return preempted
}

// parsePersistentOut reads the CDB and the parameter list.
func (d *Device) parsePersistentOut(t *Task) (*registryRequest, error) {
	list := t.list()
	q := &registryRequest{
		from:   t.Nexus.name(),
		action: int(t.CDB[1] & serviceActionMask),
		scope:  t.CDB[2] >> 4,
		kind:   reservationKind(t.CDB[2] & 0x0f),
		key:    binary.BigEndian.Uint64(list),
		newKey: binary.BigEndian.Uint64(list[prNewKeyByte:]),
	}
	if q.action == prRegisterAndMove {
		return q, d.parseMove(q, list)
	}
	q.specifies = list[prFlagsByte]&prSpecIPT != 0
	registers := q.action == prRegister || q.action == prRegisterAndIgnore
	switch {
	case q.specifies && q.action != prRegister:
		return nil, invalidParameter(prFlagsByte, prSpecIPTBit)
	case !q.specifies && len(list) != prListLen, q.specifies && len(list) < prTransportIDs:
		return nil, errListLength
	case !registers:
		return q, nil // APTPL and ALL_TG_PT are ignored
	}
	q.aptpl = list[prFlagsByte]&prAPTPL != 0
	if q.aptpl && d.config.State == nil {
		return nil, invalidParameter(prFlagsByte, 0)
	}
	q.ports = []uint16{q.from.port}
	if list[prFlagsByte]&prAllTgPt != 0 {
		q.ports = d.ports()
	}
	if q.specifies {
		return q, d.parseOthers(q, list)
	}
	return q, nil
}

// parseOthers reads the TransportIDs of SPEC_I_PT.
func (d *Device) parseOthers(q *registryRequest, list []byte) error {
	if uint64(binary.BigEndian.Uint32(list[prListLen:])) != uint64(len(list)-prTransportIDs) {
		return errListLength
	}
	for at := prTransportIDs; at < len(list); {
		id, n, ok := parseTransportID(list[at:])
		if !ok {
			return invalidParameter(at, 7)
		}
		if id.isid == "" {
			// The name alone stands for all ports of that initiator that are known here (SPC-4, 7.6.4.6).
			known := d.initiatorPorts(id.name)
			if len(known) == 0 {
				return invalidParameter(at, 7)
			}
			q.others = append(q.others, known...)
		} else {
			q.others = append(q.others, id.port())
		}
		at += n
	}
	return nil
}

// parseMove reads the parameter list of REGISTER AND MOVE.
//
//	0..7 key  8..15 new key  17 UNREG APTPL  18..19 target port  20..23 length  24.. TransportID
func (d *Device) parseMove(q *registryRequest, list []byte) error {
	if uint64(binary.BigEndian.Uint32(list[20:])) != uint64(len(list)-prMoveTransportID) {
		return errListLength
	}
	q.leave, q.aptpl = list[prMoveFlagsByte]&prMoveUnreg != 0, list[prMoveFlagsByte]&prAPTPL != 0
	if q.aptpl && d.config.State == nil {
		return invalidParameter(prMoveFlagsByte, 0)
	}
	q.to.port = binary.BigEndian.Uint16(list[prMovePort:])
	if !slices.Contains(d.ports(), q.to.port) {
		return invalidParameter(prMovePort, 7)
	}
	id, n, ok := parseTransportID(list[prMoveTransportID:])
	if !ok || id.isid == "" || n != len(list)-prMoveTransportID {
		return invalidParameter(prMoveTransportID, 7) // one port of one initiator
	}
	q.to.initiator = id.port()
	return nil
}

// ports lists the relative target port identifiers of the device.
func (d *Device) ports() (ports []uint16) {
	for _, g := range d.PortGroups() {
		ports = append(ports, g.ID)
	}
	return ports
}

// initiatorPorts lists the initiator ports of a name that have a nexus with the device.
func (d *Device) initiatorPorts(name string) (ports []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.nexuses {
		if id := splitPort(n.initiator); id.name == name && !slices.Contains(ports, n.initiator) {
			ports = append(ports, n.initiator)
		}
	}
	return ports
}

// restore takes what Save was given before a power loss.
func (lu *LogicalUnit) restore() error {
	keeper := lu.device.config.State
	if keeper == nil {
		return nil
	}
	b, err := keeper.Load(lu.serial())
	if err != nil {
		return fmt.Errorf("reservations: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	g, err := decodeRegistry(b)
	if err != nil {
		return fmt.Errorf("reservations of unit %s: %w", lu.serial(), err)
	}
	lu.reservations.Store(&reservations{registry: g})
	return nil
}
