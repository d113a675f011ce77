package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// Bounds of a disk's I/O.
const (
	// maxPiece is the longest single READ or WRITE, bytes: stgt closes the connection on more (ISER.md 9.3).
	maxPiece = 512 << 10
	// maxPieces is how many pieces of one call run side by side.
	maxPieces = 8
	// maxBlockSize is the largest block size that makes sense, bytes.
	maxBlockSize = 1 << 24

	maxAttentions = 10 // unit attentions in a row: one for each cause that a target may have stored
	maxBusy       = 8  // BUSY and TASK SET FULL in a row
	busyDelay     = 20 * time.Millisecond
	maxMoves      = 16 // refusals for the access state in a row
	maxNotReady   = 60 // answers "becoming ready"
	notReadyDelay = 500 * time.Millisecond
)

// A Disk is one logical unit, ready for I/O. Its methods may be called from many goroutines.
type Disk struct {
	s         *Session
	lun       iscsi.LUN
	blocks    atomic.Uint64 // see follow
	blockSize int
	piece     int // bytes of the longest READ or WRITE
	readOnly  bool
	fua       bool // the unit knows FUA (DPOFUA; SBC-3, 6.4.1)
	limits    limits
	misfit    atomic.Pointer[error] // why no block can be addressed any more

	// Of disks of a Connection; s is nil then.
	c        *Connection // nil: none
	live     atomic.Pointer[Session]
	identity []byte                  // designators
	volatile bool                    // there is a cache that a loss of power empties
	dirty    [maxPaths]atomic.Uint64 // of each path, the number of the oldest session with a write that is acknowledged and not flushed; 0: none
	spans    spans
	renewing chan struct{} // holds a token while somebody looks for the unit on a new session
	flushing chan struct{} // and while somebody flushes

	// Of disks of Paths.
	paths   *Paths
	routes  []route
	stale   atomic.Bool // the path has to be chosen again
	without time.Time   // since when no path can be used; zero: one can
	seen    atomic.Pointer[[]PathState]

	partial sync.Mutex // of File: one block is changed in part at a time
}

// Disk waits for the unit to be ready (unit attentions are taken and logged) and reads its capacity.
func (s *Session) Disk(ctx context.Context, lun iscsi.LUN) (*Disk, error) {
	d := &Disk{s: s, lun: lun}
	for _, step := range []struct {
		what string
		run  func(context.Context) error
	}{
		{"test unit ready", d.ready},
		{"read capacity", d.readCapacity},
		{"block limits", d.readLimits},
		{"mode sense", d.readProtection},
	} {
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("lun %s: %s: %w", lun, step.what, err)
		}
	}
	return d, nil
}

// SizeBytes is the capacity, bytes. It follows the unit when that tells of a change, see ErrCapacityChanged.
func (d *Disk) SizeBytes() int64 { return int64(d.blocks.Load()) * int64(d.blockSize) }

// BlockSize is the logical block size, bytes.
func (d *Disk) BlockSize() int { return d.blockSize }

// ReadOnly reports whether the unit is write protected.
func (d *Disk) ReadOnly() bool { return d.readOnly }

// ready waits until the unit is ready.
func (d *Disk) ready(ctx context.Context) error {
	for tries := 0; ; tries++ {
		_, err := d.s.attentive(ctx, d.lun, nil, make([]byte, 6), 0) // TEST UNIT READY is all zeroes
		var st *StatusError
		becoming := errors.As(err, &st) && st.Key == keyNotReady && st.ASC == 0x04 && st.ASCQ == 0x01
		if !becoming || tries == maxNotReady {
			return err
		}
		if !pause(ctx, notReadyDelay) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// readCapacity finds out how large the unit is.
func (d *Disk) readCapacity(ctx context.Context) error {
	blocks, blockSize, err := d.s.capacity(ctx, d.lun, nil)
	if err != nil {
		return err
	}
	d.blocks.Store(blocks)
	d.blockSize = blockSize
	d.piece = max(maxPiece/d.blockSize, 1) * d.blockSize
	return nil
}

// readProtection reads the WP and DPOFUA bits (SPC-4, 7.5.6; SBC-3, 6.4.1). A unit without mode pages can be written.
func (d *Disk) readProtection(ctx context.Context) error {
	b, err := d.s.attentive(ctx, d.lun, nil, []byte{opModeSense6, 0, 0x3f, 0, 4, 0}, 4)
	if isStatus(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(b) >= 3 {
		d.readOnly, d.fua = b[2]&0x80 != 0, b[2]&0x10 != 0
	}
	return nil
}

// isStatus reports whether it is the unit that did not do what it was asked to.
func isStatus(err error) bool {
	_, ok := errors.AsType[*StatusError](err)
	return ok
}

func isIllegalRequest(err error) bool {
	st, ok := errors.AsType[*StatusError](err)
	return ok && st.Key == keyIllegalRequest
}

// attentive is query, again after each unit attention and, slower, after each BUSY, up to a bound: such
// commands were not executed (SAM-5, 5.3.1 and 5.14).
func (s *Session) attentive(ctx context.Context, lun iscsi.LUN, by attendant, cdb []byte, room int) ([]byte, error) {
	var again retry
	for {
		b, err := s.query(ctx, lun, cdb, room)
		if !again.after(ctx, s, lun, by, err) {
			return b, err
		}
	}
}

// An attendant acts on a unit attention that a command of its own has met on s, before the command is sent again. nil does
// nothing.
type attendant interface {
	noticed(ctx context.Context, s *Session, what *StatusError)
}

// A retry counts the times that a command has been refused without having been executed.
type retry struct{ attentions, busy, moves int }

// after reports whether a command that ended with err on s is to be sent again.
func (r *retry) after(ctx context.Context, s *Session, lun iscsi.LUN, by attendant, err error) bool {
	if err == nil {
		return false
	}
	var st *StatusError
	if !errors.As(err, &st) {
		return false
	}
	switch {
	case st.Status == statusCheckCondition && st.Key == keyUnitAttention && r.attentions < maxAttentions:
		r.attentions++
		s.log.WithFields(logrus.Fields{"lun": lun, "err": err}).Info("unit attention")
		if by != nil {
			by.noticed(ctx, s, st)
		}
		if s.attention != nil {
			s.attention(lun, st)
		}
		return true
	case (st.Status == statusBusy || st.Status == statusTaskSetFull) && r.busy < maxBusy:
		r.busy++
		return pause(ctx, busyDelay<<r.busy)
	}
	return false
}

// ReadAt reads whole blocks: off and len(p) are multiples of BlockSize. Requests longer than the target
// takes are split and run side by side. Errors are *StatusError or of the session.
func (d *Disk) ReadAt(ctx context.Context, p []byte, off int64) error {
	return d.transfer(ctx, piece{p: p, off: off})
}

// WriteAt writes whole blocks, as ReadAt reads them.
func (d *Disk) WriteAt(ctx context.Context, p []byte, off int64) error {
	return d.alone(ctx, off, int64(len(p)), func() error { return d.transfer(ctx, piece{p: p, off: off, write: true}) })
}

// WriteStable is WriteAt with the blocks on stable storage when it returns: by the FUA bit (SBC-3, 5.37), or by a Flush
// of the unit that follows where it does not know FUA.
func (d *Disk) WriteStable(ctx context.Context, p []byte, off int64) error {
	if !d.fua {
		if err := d.WriteAt(ctx, p, off); err != nil {
			return err
		}
		return d.Flush(ctx)
	}
	return d.alone(ctx, off, int64(len(p)), func() error {
		return d.transfer(ctx, piece{p: p, off: off, write: true, fua: true})
	})
}

// A piece is one READ or WRITE of a transfer in flight.
type piece struct {
	s       *Session // on which it was started
	req     *request
	p       []byte
	off     int64
	write   bool
	fua     bool
	again   retry
	unknown bool // an earlier session may have written it
}

// transfer does all of what, in pieces.
func (d *Disk) transfer(ctx context.Context, what piece) error {
	p, off := what.p, what.off
	if err := d.checkRange(int64(len(p)), off); err != nil {
		return fmt.Errorf("lun %s: %w", d.lun, err)
	}
	// The caller's context, not one of our own, ends the pieces: after an error those in flight are waited
	// for, so that no buffer is in use when we return.
	var ring [maxPieces]piece
	var first error
	started, ended := 0, 0
	for len(p) > 0 && first == nil || ended < started {
		if len(p) > 0 && first == nil && started-ended < maxPieces {
			n := min(len(p), d.piece)
			q := &ring[started%maxPieces]
			*q = piece{p: p[:n], off: off, write: what.write, fua: what.fua}
			p, off = p[n:], off+int64(n)
			if err := d.start(ctx, q); err != nil {
				first = d.failed(q, err)
			} else {
				started++
			}
			continue
		}
		q := &ring[ended%maxPieces]
		ended++
		if err := d.endPiece(ctx, q); err != nil && first == nil {
			first = d.failed(q, err)
		}
	}
	return first
}

func (d *Disk) failed(q *piece, err error) error {
	what := "read"
	if q.write {
		what = "write"
	}
	return fmt.Errorf("lun %s: %s %d bytes at %d: %w", d.lun, what, len(q.p), q.off, err)
}

func (d *Disk) checkRange(n, off int64) error {
	bs := int64(d.blockSize)
	switch misfit := d.misfit.Load(); {
	case misfit != nil:
		return *misfit
	case n < 0 || off < 0 || off%bs != 0 || n%bs != 0:
		return fmt.Errorf("%d bytes at %d are not whole blocks of %d", n, off, bs)
	case off > d.SizeBytes() || n > d.SizeBytes()-off:
		return fmt.Errorf("%d bytes at %d reach beyond the end at %d", n, off, d.SizeBytes())
	}
	return nil
}

// command is q's, and its CDB, which lies in b.
func (d *Disk) command(q *piece, b *[16]byte) (c Command, cdb []byte) {
	c = Command{LUN: d.lun, In: q.p}
	if q.write {
		c.In, c.Out = nil, q.p
	}
	bs := d.blockSize
	cdb = readWriteCDB(b, q.write, uint64(q.off)/uint64(bs), uint32(len(q.p)/bs))
	if q.fua {
		cdb[1] |= fuaBit
	}
	return c, cdb
}

// start sends q, on the session that there is.
func (d *Disk) start(ctx context.Context, q *piece) error {
	var b [16]byte
	c, cdb := d.command(q, &b)
	for {
		var err error
		if q.s, err = d.use(ctx); err != nil {
			return doubted(q.unknown, err)
		}
		if q.write {
			if err = d.unless(ctx, q.s, q.off, int64(len(q.p))); err != nil {
				return doubted(q.unknown, err)
			}
		}
		if q.req, err = q.s.submit(ctx, c, cdb); err == nil {
			return nil
		}
		if err = d.judgeLoss(ctx, q.s, transferRule(q.write), err); err != nil {
			return doubted(q.unknown, err)
		}
	}
}

// transferRule is what becomes of a READ or WRITE whose session is lost.
func transferRule(write bool) replayRule {
	if write {
		return replayExclusive
	}
	return replayAlways
}

// endPiece waits for q's end, and sends it again where that is right.
func (d *Disk) endPiece(ctx context.Context, q *piece) error {
	for {
		res, err := q.s.finish(ctx, q.req)
		resend, err := d.outcome(ctx, q, &res, err)
		if !resend {
			return err
		}
		if err := d.start(ctx, q); err != nil {
			return err
		}
	}
}

// outcome is how q ended, which was sent, or that it is to be sent again.
func (d *Disk) outcome(ctx context.Context, q *piece, res *Result, err error) (resend bool, _ error) {
	if err == nil {
		err = judge(res, len(q.p), q.write)
	}
	switch {
	case err == nil:
		if q.write && !q.fua {
			d.acknowledged(q.s)
		}
		return false, nil
	case q.again.after(ctx, q.s, d.lun, d, err), d.moved(ctx, &q.again, err):
		return true, nil
	}
	if err = d.afterLoss(ctx, q, err); q.write {
		d.leaves(q.s, q.off, int64(len(q.p)), err)
	}
	return err == nil, err
}

// afterLoss is judgeLoss for q, which was sent.
func (d *Disk) afterLoss(ctx context.Context, q *piece, err error) error {
	if lost, ok := errors.AsType[*lostError](err); ok && q.write && !lost.unsent {
		q.unknown = true
	}
	if err = d.judgeLoss(ctx, q.s, transferRule(q.write), err); err != nil {
		return doubted(q.unknown, err)
	}
	return nil
}

// judge makes an error of every outcome but all n bytes moved.
func judge(res *Result, n int, write bool) error {
	switch err := res.Err(); {
	case err != nil:
		return err
	case write && res.Underflow && res.Residual > 0:
		return fmt.Errorf("%d bytes were not written: %w", res.Residual, io.ErrShortWrite)
	case !write && res.Received < n:
		return fmt.Errorf("%d of %d bytes came: %w", res.Received, n, io.ErrUnexpectedEOF)
	}
	return nil
}

// TaskManagement is as Session.TaskManagement, for the unit and on the session that there is. A single command is aborted
// by its context: ABORT TASK is sent for it.
func (d *Disk) TaskManagement(ctx context.Context, f iscsi.TMFunction) (iscsi.TMResponse, error) {
	s, err := d.use(ctx)
	if err != nil {
		return 0, fmt.Errorf("lun %s: %s: %w", d.lun, f, err)
	}
	return s.TaskManagement(ctx, f, d.lun)
}

// Flush sends SYNCHRONIZE CACHE for the whole unit. ErrCacheDoubtful: see Connection.
func (d *Disk) Flush(ctx context.Context) error {
	if err := d.flush(ctx); err != nil {
		return fmt.Errorf("lun %s: synchronize cache: %w", d.lun, err)
	}
	return nil
}
