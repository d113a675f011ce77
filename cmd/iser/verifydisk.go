package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goiser/goiser/cmd/iser/verify"
	"github.com/goiser/goiser/iscsi/initiator"
)

// A verifyDisk is a disk of a connection, with what ends with a session said in the words of package verify.
type verifyDisk struct{ *initiator.Disk }

func (d verifyDisk) WriteAt(ctx context.Context, p []byte, off int64) error {
	return inVerifyWords(d.Disk.WriteAt(ctx, p, off))
}

func (d verifyDisk) WriteZeroes(ctx context.Context, off, n int64) error {
	return inVerifyWords(d.Disk.WriteZeroes(ctx, off, n))
}

func (d verifyDisk) Unmap(ctx context.Context, off, n int64) error {
	return inVerifyWords(d.Disk.Unmap(ctx, off, n))
}

func (d verifyDisk) Flush(ctx context.Context) error { return inVerifyWords(d.Disk.Flush(ctx)) }

func inVerifyWords(err error) error {
	if errors.Is(err, initiator.ErrCacheDoubtful) {
		return fmt.Errorf("%w: %w", verify.ErrFlushDoubtful, err)
	}
	if _, unknown := errors.AsType[*initiator.UnknownOutcomeError](err); unknown {
		return fmt.Errorf("%w: %w", verify.ErrOutcomeUnknown, err)
	}
	return err
}

// openVerify logs in for one job. Without --overlap nobody else writes what a job writes: each request of a run has its
// blocks for itself, so that a write whose session was lost may be sent again. With --overlap it may not, and the
// history takes it as one of unknown outcome.
func (a *app) openVerify(ctx context.Context, url string, reconnect time.Duration, overlap bool) (*initiator.Connection, *initiator.Disk, error) {
	u, err := parseURL(url)
	if err != nil {
		return nil, nil, err
	}
	c, err := a.connection(ctx, &u, func(o *initiator.Options) {
		o.ReconnectTimeout, o.Exclusive = reconnect, reconnect > 0 && !overlap
	})
	if err != nil {
		return nil, nil, err
	}
	d, err := func() (*initiator.Disk, error) {
		s, err := c.Session(ctx)
		if err != nil {
			return nil, err
		}
		lun, err := a.only(ctx, s, &u)
		if err != nil {
			return nil, err
		}
		return c.Disk(ctx, lun)
	}()
	if err != nil {
		_ = c.Close() // what is wrong with the disk is what the caller has to know
		return nil, nil, fmt.Errorf("%s: %w", u, err)
	}
	return c, d, nil
}

// refuseInUse is an error if others are known to use a disk. What a target tells of others are their persistent
// reservations and who has registered for them (SPC-4, 5.13): hosts of a cluster do. A session that has registered nothing
// cannot be seen from another.
func refuseInUse(ctx context.Context, d *initiator.Disk) error {
	r, err := d.ReadReservation(ctx)
	if err == nil && r.Held {
		return inUse("somebody holds a persistent reservation of type %d with key %#x", r.Type, r.Key)
	}
	var keys []uint64
	if err == nil {
		keys, _, err = d.ReadKeys(ctx)
	}
	_, status := errors.AsType[*initiator.StatusError](err)
	switch {
	case errors.Is(err, initiator.ErrReservationConflict):
		return inUse("somebody has reserved it")
	case status: // it does not know persistent reservations
		return nil
	case err == nil && len(keys) > 0:
		return inUse("%d registered for reservations, with keys %#x", len(keys), keys)
	}
	return err
}

func inUse(format string, args ...any) error {
	return coded(exitInUse, fmt.Errorf("the disk is in use: "+format+"; --force writes all the same", args...))
}
