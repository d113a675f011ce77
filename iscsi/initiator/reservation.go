package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// PERSISTENT RESERVE IN and OUT (SPC-4, 6.15 and 6.16).
const (
	opPersistentIn  = 0x5e
	opPersistentOut = 0x5f

	prReadKeys        = 0
	prReadReservation = 1

	prRegister        = 0
	prReserve         = 1
	prRelease         = 2
	prClear           = 3
	prPreempt         = 4
	prPreemptAbort    = 5
	prRegisterAndOver = 6 // REGISTER AND IGNORE EXISTING KEY

	prListLen = 24
	prAPTPL   = 0x01
	// maxReservationKeys bounds what READ KEYS may answer: far more than any cluster has nodes.
	maxReservationKeys = 4096
	firstKeys          = 64
)

// A ReservationType says what a persistent reservation lets others do (SPC-4, 6.15.3.4).
type ReservationType uint8

// The types of persistent reservations.
const (
	WriteExclusive                 ReservationType = 1
	ExclusiveAccess                ReservationType = 3
	WriteExclusiveRegistrantsOnly  ReservationType = 5
	ExclusiveAccessRegistrantsOnly ReservationType = 6
	WriteExclusiveAllRegistrants   ReservationType = 7
	ExclusiveAccessAllRegistrants  ReservationType = 8
)

// A Reservation is the one that holds a unit.
type Reservation struct {
	Generation uint32 // counts changes of the registrations
	Held       bool
	Key        uint64 // of the holder; 0 for the types of all registrants
	Type       ReservationType
}

// ErrReservationConflict is wrapped by errors of commands that another initiator's reservation keeps out, and of
// reservation requests with the wrong key (SAM-5, 5.3.1).
var ErrReservationConflict = errors.New("reservation conflict")

// Register changes our registration from key old (0: none) to key (0: no registration any more). With persist the unit
// keeps all registrations and the reservation over a loss of power (APTPL).
//
// Requests about reservations are sent again after a unit attention or BUSY, when the unit has not carried them out,
// and never after a session was lost: the caller reads the keys to see.
func (d *Disk) Register(ctx context.Context, old, key uint64, persist bool) error {
	return d.persistentOut(ctx, prRegister, 0, old, key, persist)
}

// RegisterAndIgnore registers key whatever was registered for us before.
func (d *Disk) RegisterAndIgnore(ctx context.Context, key uint64, persist bool) error {
	return d.persistentOut(ctx, prRegisterAndOver, 0, 0, key, persist)
}

// Reserve takes the reservation for us, who are registered with key.
func (d *Disk) Reserve(ctx context.Context, key uint64, t ReservationType) error {
	return d.persistentOut(ctx, prReserve, t, key, 0, false)
}

// Release gives up our reservation of type t.
func (d *Disk) Release(ctx context.Context, key uint64, t ReservationType) error {
	return d.persistentOut(ctx, prRelease, t, key, 0, false)
}

// ClearReservations removes the reservation and every registration. key is ours.
func (d *Disk) ClearReservations(ctx context.Context, key uint64) error {
	return d.persistentOut(ctx, prClear, 0, key, 0, false)
}

// Preempt removes the registrations with key victim and, if the reservation is theirs, takes it with type t. With abort
// the victims' commands are ended too: none of them changes the medium any more when Preempt returns nil. key is ours.
func (d *Disk) Preempt(ctx context.Context, key, victim uint64, t ReservationType, abort bool) error {
	action := byte(prPreempt)
	if abort {
		action = prPreemptAbort
	}
	return d.persistentOut(ctx, action, t, key, victim, false)
}

// persistentOut sends PERSISTENT RESERVE OUT with its basic parameter list, for the whole unit.
func (d *Disk) persistentOut(ctx context.Context, action byte, t ReservationType, key, serviceKey uint64, persist bool) error {
	list := make([]byte, prListLen)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], serviceKey)
	if persist {
		list[20] = prAPTPL
	}
	if err := d.order(ctx, replayNever, span{}, []byte{opPersistentOut, action, byte(t), 0, 0, 0, 0, 0, prListLen, 0}, list); err != nil {
		return fmt.Errorf("lun %s: persistent reserve out, action %d: %w", d.lun, action, err)
	}
	return nil
}

// ReadKeys returns all registered keys, and how often registrations have changed.
func (d *Disk) ReadKeys(ctx context.Context) (keys []uint64, generation uint32, err error) {
	for room := 8 + 8*firstKeys; ; room = 8 + 8*maxReservationKeys {
		b, err := d.persistentIn(ctx, prReadKeys, room)
		if err != nil {
			return nil, 0, err
		}
		// ADDITIONAL LENGTH tells of all keys, also those for which there was no room.
		need := 8 + uint64(binary.BigEndian.Uint32(b[4:]))
		if need > uint64(room) && room < 8+8*maxReservationKeys {
			continue
		}
		if need > uint64(len(b)) {
			return nil, 0, fmt.Errorf("lun %s: %w", d.lun, violation("READ KEYS answered with %d of %d bytes", len(b), need))
		}
		generation = binary.BigEndian.Uint32(b)
		for b = b[8:need]; len(b) >= 8; b = b[8:] {
			keys = append(keys, binary.BigEndian.Uint64(b))
		}
		return keys, generation, nil
	}
}

// ReadReservation tells who holds the unit.
func (d *Disk) ReadReservation(ctx context.Context) (Reservation, error) {
	b, err := d.persistentIn(ctx, prReadReservation, 24)
	if err != nil {
		return Reservation{}, err
	}
	r := Reservation{Generation: binary.BigEndian.Uint32(b)}
	if n := binary.BigEndian.Uint32(b[4:]); n == 0 {
		return r, nil
	}
	if len(b) < 24 {
		return Reservation{}, fmt.Errorf("lun %s: %w", d.lun, violation("READ RESERVATION answered with %d bytes", len(b)))
	}
	r.Held, r.Key, r.Type = true, binary.BigEndian.Uint64(b[8:]), ReservationType(b[21]&0xf)
	return r, nil
}

// persistentIn returns at least the header of 8 bytes.
func (d *Disk) persistentIn(ctx context.Context, action byte, room int) ([]byte, error) {
	cdb := make([]byte, 10)
	cdb[0], cdb[1] = opPersistentIn, action
	binary.BigEndian.PutUint16(cdb[7:], uint16(room))
	var b []byte
	err := d.run(ctx, replayAlways, span{}, func(s *Session) (err error) {
		b, err = s.attentive(ctx, d.lun, d, cdb, room)
		return err
	})
	if err == nil && len(b) < 8 {
		err = violation("an answer of %d bytes", len(b))
	}
	if err != nil {
		return nil, fmt.Errorf("lun %s: persistent reserve in, action %d: %w", d.lun, action, err)
	}
	return b, nil
}
