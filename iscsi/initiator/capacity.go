package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// Unit attentions that callers may want to tell apart, as errors.Is finds them in what Options.Attention gets
// (SPC-4, Annex F).
var (
	// ErrCapacityChanged: the unit has another capacity (2A/09). The Disk has read it before it tells.
	ErrCapacityChanged = errors.New("the capacity has changed")
	// ErrLUNsChanged: the target has other logical units than before (3F/0E). Session.LUNs lists them.
	ErrLUNsChanged = errors.New("the list of logical units has changed")
	// ErrAccessChanged: paths to the unit have other access states (2A/06), or failed to get them (2A/07).
	ErrAccessChanged = errors.New("the access states of paths have changed")
)

// Is has errors.Is find what a status stands for.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrReservationConflict:
		return e.Status == statusReservationConflict
	case ErrCapacityChanged:
		return e.attention(0x2a, 0x09)
	case ErrLUNsChanged:
		return e.attention(0x3f, 0x0e)
	case ErrAccessChanged:
		return e.attention(0x2a, 0x06) || e.attention(0x2a, 0x07)
	}
	return false
}

func (e *StatusError) attention(asc, ascq uint8) bool {
	return e.Status == statusCheckCondition && e.Key == keyUnitAttention && e.ASC == asc && e.ASCQ == ascq
}

// capacity asks READ CAPACITY (16), or (10) of units that do not know it (SBC-3, 5.16 and 5.15).
func (s *Session) capacity(ctx context.Context, lun iscsi.LUN, by attendant) (blocks uint64, blockSize int, err error) {
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[13] = opServiceActionIn16, actionReadCapacity16, 32
	b, err := s.attentive(ctx, lun, by, cdb, 32)
	if isIllegalRequest(err) {
		return s.capacity10(ctx, lun, by)
	}
	if err != nil {
		return 0, 0, err
	}
	if len(b) < 12 {
		return 0, 0, violation("READ CAPACITY (16) answered with %d bytes", len(b))
	}
	return checkCapacity(binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]))
}

func (s *Session) capacity10(ctx context.Context, lun iscsi.LUN, by attendant) (blocks uint64, blockSize int, err error) {
	b, err := s.attentive(ctx, lun, by, []byte{opReadCapacity10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 8)
	if err != nil {
		return 0, 0, err
	}
	if len(b) < 8 {
		return 0, 0, violation("READ CAPACITY (10) answered with %d bytes", len(b))
	}
	return checkCapacity(uint64(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:]))
}

func checkCapacity(last uint64, blockSize uint32) (blocks uint64, size int, err error) {
	if blockSize == 0 || blockSize > maxBlockSize || last >= (1<<63-1)/uint64(blockSize) {
		return 0, 0, violation("a capacity of %d+1 blocks of %d bytes", last, blockSize)
	}
	return last + 1, int(blockSize), nil
}

// noticed implements attendant.
func (d *Disk) noticed(ctx context.Context, s *Session, what *StatusError) {
	if d.paths != nil && errors.Is(what, ErrAccessChanged) {
		d.stale.Store(true)
	}
	if d.blockSize == 0 || !errors.Is(what, ErrCapacityChanged) { // a disk that is being opened is about to read it
		return
	}
	if err := d.follow(ctx, s); err != nil {
		// The command itself will tell what is wrong with the session or the unit.
		s.log.WithFields(logrus.Fields{"lun": d.lun, "err": err}).Warn("capacity not known")
	}
}

// follow reads the capacity again. A unit that was formatted anew, with blocks of another size, is out of reach from then
// on: offsets mean other blocks there.
func (d *Disk) follow(ctx context.Context, s *Session) error {
	blocks, blockSize, err := s.capacity(ctx, d.lun, nil)
	if err != nil {
		return err
	}
	if blockSize != d.blockSize {
		err := fmt.Errorf("blocks of %d bytes now, were of %d: %w", blockSize, d.blockSize, ErrOtherUnit)
		d.misfit.Store(&err)
		return err
	}
	if was := d.blocks.Swap(blocks); was != blocks {
		s.log.WithFields(logrus.Fields{"lun": d.lun}).Infof("capacity of %d blocks, was %d", blocks, was)
	}
	return nil
}

// Refresh reads the capacity again, for a disk that is idle: a unit tells of a change with the next command only.
func (d *Disk) Refresh(ctx context.Context) error {
	if err := d.run(ctx, replayAlways, span{}, func(s *Session) error { return d.follow(ctx, s) }); err != nil {
		return fmt.Errorf("lun %s: read capacity: %w", d.lun, err)
	}
	return nil
}
