package scsi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/goiser/goiser/backstore"
)

// What an administrator changes while initiators are at work.

// ErrNumberHeld is returned by Device.Add for a number that another disk has had until a short time ago
// (DeviceConfig.HoldNumbers).
var ErrNumberHeld = errors.New("number was another disk's a short time ago")

// ErrShrink is returned by LogicalUnit.Resize for a size that would drop blocks.
var ErrShrink = errors.New("would drop blocks")

// errSanitizeOpen says why a unit cannot be changed: what works on it is no command that could be waited for, and what
// it has left undone when it failed must not get out of its reach.
var errSanitizeOpen = errors.New("a sanitize operation goes on or has failed")

// A former is the last unit that had a number.
type former struct {
	identity [sha256.Size]byte
	gone     time.Time
}

// succeedLocked makes lu, which is about to be added, the successor of who had its number.
func (d *Device) succeedLocked(lu *LogicalUnit) error {
	if f, ok := d.former[lu.number]; ok && f.identity != lu.identity {
		if left := d.config.HoldNumbers - time.Since(f.gone); left > 0 {
			return fmt.Errorf("%w; free in %v", ErrNumberHeld, left.Round(time.Second))
		}
		lu.replaces = true
	}
	d.epoch++
	lu.added = d.epoch
	return nil
}

// Wait returns when no command uses the store of a unit that has been removed, or with ctx's error.
func (lu *LogicalUnit) Wait(ctx context.Context) error {
	if err := lu.set.drain(ctx); err != nil {
		return fmt.Errorf("lun %d: wait for its commands: %w", lu.number, err)
	}
	lu.sanitize.background.Wait() // it ends at its next step
	return nil
}

// CapacityChanged takes the store's new size, also one that somebody else has given to what it lies on
// (backstore.Measurer), and tells every nexus (CAPACITY DATA HAS CHANGED, 2A/09).
func (lu *LogicalUnit) CapacityChanged() error {
	lu.changing.Lock()
	defer lu.changing.Unlock()
	if m, ok := lu.store.(backstore.Measurer); ok {
		if err := m.Measure(); err != nil {
			return fmt.Errorf("lun %d: %w", lu.number, err)
		}
	}
	if err := lu.measure(); err != nil {
		return fmt.Errorf("lun %d: %w", lu.number, err)
	}
	lu.tell(capacityChanged)
	return nil
}

// tell raises a condition for every nexus.
func (lu *LogicalUnit) tell(a attention) {
	d := lu.device
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raiseLocked(lu, a, nil)
}

// Resize changes the size, in bytes, of the unit and of its store, and tells every nexus (2A/09). With
// shrink it may become smaller, else that is refused with ErrShrink. A unit shrinks while none of its
// commands runs, so that none reaches blocks that are gone; those that came before are waited for until
// ctx ends.
func (lu *LogicalUnit) Resize(ctx context.Context, sizeBytes int64, shrink bool) error {
	r, ok := lu.store.(backstore.Resizer)
	if !ok {
		return fmt.Errorf("lun %d: the store cannot change its size: %w", lu.number, errors.ErrUnsupported)
	}
	if sizeBytes < int64(lu.blockSize) {
		return fmt.Errorf("lun %d: %d bytes hold no block of %d", lu.number, sizeBytes, lu.blockSize)
	}
	lu.changing.Lock()
	defer lu.changing.Unlock()
	resize := func() error {
		before := lu.capacity.Load()
		err := errors.Join(r.Resize(sizeBytes), lu.measure()) // whatever has come of it
		if lu.capacity.Load() != before {
			lu.tell(capacityChanged)
		}
		return err
	}
	var err error
	switch blocks := uint64(sizeBytes) / lu.blockSize; {
	case lu.set.isRemoved():
		err = ErrNoLUN
	case blocks >= lu.capacity.Load() && sizeBytes >= lu.store.Info().SizeBytes:
		err = resize()
	case !shrink:
		err = fmt.Errorf("%d blocks to %d: %w", lu.capacity.Load(), blocks, ErrShrink)
	default:
		return lu.Exclusive(ctx, resize)
	}
	if err != nil {
		return fmt.Errorf("lun %d: %w", lu.number, err)
	}
	return nil
}

// SetReadOnly says whether initiators may write, and tells every nexus (MODE PARAMETERS CHANGED, 2A/01:
// the WP bit that MODE SENSE shows; SBC-3, 6.4.1). New writes are refused at once (WRITE PROTECTED). When
// it has returned nil none of those that came before can write any more either; ctx bounds the wait for
// them, and if it ends the unit is read-only, but they may still write. A unit on a read-only store
// cannot be made writable.
func (lu *LogicalUnit) SetReadOnly(ctx context.Context, readOnly bool) error {
	lu.changing.Lock()
	defer lu.changing.Unlock()
	switch {
	case lu.set.isRemoved():
		return fmt.Errorf("lun %d: %w", lu.number, ErrNoLUN)
	case !readOnly && lu.store.Info().ReadOnly:
		return fmt.Errorf("lun %d: make it writable: %w", lu.number, backstore.ErrReadOnly)
	case readOnly && lu.state.Load()&stateSanitizing != 0:
		return fmt.Errorf("lun %d: make it read-only: %w", lu.number, errSanitizeOpen)
	}
	if lu.readOnly.Swap(readOnly) != readOnly {
		lu.tell(modeChanged)
	}
	if !readOnly {
		return nil
	}
	return lu.Exclusive(ctx, func() error { return nil })
}
