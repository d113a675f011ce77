package scsi

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// SANITIZE (SBC-3, 4.11 and 5.24) promises that what the unit held is beyond anybody's reach. Of a
// file or a disk behind one we do not know where old copies of a block lie: journals, snapshots, remapped
// flash. So only units on stores that keep nothing (backstore.Info.Volatile) have it: there the bytes are
// where they are, and go with the process at the latest. Hence nothing needs to be resumed after a power cut.
//
// While it goes on, and if it fails until another one ends well, the unit refuses nearly all commands
// (duringSanitize). It ends neither with the task nor with the session that asked for it, nor by a reset.
const (
	sanitizeImmed = 0x80 // answer once it has begun
	sanitizeAUSE  = 0x20 // its failure may be left by EXIT FAILURE MODE
)

// Service actions.
const (
	sanitizeOverwrite   = 0x01
	sanitizeBlockErase  = 0x02
	sanitizeExitFailure = 0x1f
)

type sanitizePhase uint8

const (
	sanitizeIdle sanitizePhase = iota
	sanitizeRunning
	sanitizeFailed
)

// A sanitizer is a unit's sanitize operation. gate.mu guards what is not atomic.
type sanitizer struct {
	phase sanitizePhase
	ause  bool
	// done of total bytes have been treated, over all passes.
	done  atomic.Uint64
	total uint64
	// background is one that has been answered (IMMED). It begins in a task, which drain waits for first.
	background sync.WaitGroup
}

// sanitizes: SANITIZE is offered. Only a thin unit has BLOCK ERASE, after which nothing is mapped.
func (lu *LogicalUnit) sanitizes() bool { return lu.volatile }

func (lu *LogicalUnit) erases() bool { return lu.volatile && lu.provisioned() && lu.extenter != nil }

// sanitizeError is why the unit refuses a command now, nil if it does not.
func (lu *LogicalUnit) sanitizeError() *senseError {
	if lu.state.Load()&stateSanitizing == 0 {
		return nil
	}
	lu.gate.mu.Lock()
	defer lu.gate.mu.Unlock()
	return lu.sanitize.errorLocked()
}

func (s *sanitizer) errorLocked() *senseError {
	switch s.phase {
	case sanitizeRunning:
		e := *errSanitizing
		e.field, e.hasField, e.hasProgress = s.progress(), true, true
		return &e
	case sanitizeFailed:
		return errSanitizeFailed
	}
	return nil
}

// progress is PROGRESS INDICATION, in 65536ths (SPC-4, 4.5.2.4.4).
func (s *sanitizer) progress() uint16 {
	if s.total>>16 == 0 {
		return 0
	}
	return uint16(min(s.done.Load()/(s.total>>16), 0xffff))
}

// prepareSanitize checks the CDB: only OVERWRITE has parameters.
func prepareSanitize(_ *Device, t *Task) error {
	if err := t.lu.writable(); err != nil {
		return err
	}
	if e := t.lu.sanitizeError(); e != nil && e.hasProgress {
		return e // one at a time; after a failure it is up to beginSanitize
	}
	n, action := uint64(binary.BigEndian.Uint16(t.CDB[7:])), t.CDB[1]&serviceActionMask
	ok := n == 0
	if action == sanitizeOverwrite {
		ok = n > overwriteHeaderLen && n <= overwriteHeaderLen+t.lu.blockSize
	}
	if !ok {
		return invalidField(7, 7)
	}
	t.MayBlock = true
	return t.wantList(n, errDataLength)
}

func executeBlockErase(t *Task) error { return t.lu.startSanitize(t, 1, t.lu.erase) }

func executeOverwrite(t *Task) error {
	o, err := parseOverwrite(t.list(), t.lu.blockSize)
	if err != nil {
		return err
	}
	lu := t.lu // t may have ended before the work has
	return lu.startSanitize(t, o.count, func() error { return lu.overwrite(o) })
}

// executeExitFailure leaves a failure that its SANITIZE allowed to be left (SBC-3, 5.24.5).
func executeExitFailure(t *Task) error {
	lu := t.lu
	lu.gate.mu.Lock()
	defer lu.gate.mu.Unlock()
	s := &lu.sanitize
	switch {
	case s.phase == sanitizeRunning:
		return s.errorLocked()
	case s.phase == sanitizeFailed && !s.ause:
		return invalidField(1, 4)
	}
	lu.endSanitizeLocked(nil)
	return nil
}

// startSanitize begins, and works here or, with IMMED, in a goroutine. That one is no task, and so keeps no
// ORDERED task waiting; removing the unit ends it soon, and waits for it.
func (lu *LogicalUnit) startSanitize(t *Task, passes uint64, work func() error) error {
	if err := lu.beginSanitize(t.CDB[1]&sanitizeAUSE != 0, passes); err != nil {
		return err
	}
	if t.CDB[1]&sanitizeImmed == 0 {
		return lu.runSanitize(work)
	}
	lu.sanitize.background.Go(func() { _ = lu.runSanitize(work) }) // those who come later are told
	return nil
}

func (lu *LogicalUnit) beginSanitize(ause bool, passes uint64) error {
	lu.gate.mu.Lock()
	defer lu.gate.mu.Unlock()
	s := &lu.sanitize
	switch {
	case s.phase == sanitizeRunning:
		return s.errorLocked()
	case s.phase == sanitizeFailed && !s.ause && ause:
		return invalidField(1, 5) // a restricted one cannot be got around (SBC-3, 4.11.3)
	}
	s.phase, s.ause, s.total = sanitizeRunning, ause, passes*lu.capacity.Load()*lu.blockSize
	s.done.Store(0)
	lu.state.Or(stateSanitizing)
	return nil
}

// runSanitize waits until no command is at the store any more, and works. Commands that come later are
// refused, at the gate if they have passed Prepare. Whatever ends the work early, the operation has failed.
func (lu *LogicalUnit) runSanitize(work func() error) (failure error) {
	failure = errSanitizeFailed
	defer func() {
		lu.gate.mu.Lock()
		lu.endSanitizeLocked(failure)
		lu.gate.mu.Unlock()
	}()
	p := pass{end: lu.capacity.Load(), alone: true}
	lu.gate.mu.Lock()
	lu.gate.enterLocked(lu, &p)
	lu.gate.mu.Unlock()
	lu.leave(&p)
	if work() == nil && lu.store.Flush() == nil {
		failure = nil
	}
	return failure
}

func (lu *LogicalUnit) endSanitizeLocked(failure error) {
	lu.gate.change.Broadcast()
	if failure != nil {
		lu.sanitize.phase = sanitizeFailed
		return
	}
	lu.sanitize.phase = sanitizeIdle
	lu.state.And(^uint32(stateSanitizing))
}

// errUnitRemoved ends a sanitize operation of a unit that goes away.
var errUnitRemoved = errors.New("unit removed")

// inSteps does work over the whole unit, a piece after the other.
func (lu *LogicalUnit) inSteps(step func(lba, n uint64) error) error {
	capacity := lu.capacity.Load()
	for lba := uint64(0); lba < capacity; {
		if lu.set.isRemoved() {
			return errUnitRemoved
		}
		blocks := min(maxWriteSameBytes/lu.blockSize, capacity-lba)
		if err := step(lba, blocks*lu.blockSize); err != nil {
			return err
		}
		lu.sanitize.done.Add(blocks * lu.blockSize)
		lba += blocks
	}
	return nil
}

// erase writes zeros over what is allocated, and gives it back.
func (lu *LogicalUnit) erase() error {
	return lu.inSteps(func(lba, n uint64) error {
		for done := uint64(0); done < n; {
			allocated, blocks, err := lu.extent(lba+done/lu.blockSize, (n-done)/lu.blockSize)
			if err != nil {
				return err
			}
			if allocated {
				if err := lu.fill(lba+done/lu.blockSize, blocks*lu.blockSize, nil); err != nil {
					return err
				}
			}
			done += blocks * lu.blockSize
		}
		return lu.unmapper.Unmap(int64(lba*lu.blockSize), int64(n))
	})
}

// overwriteHeaderLen is what precedes the pattern in OVERWRITE's parameter list (SBC-3, 5.24.2.2).
//
//	0 INVERT, TEST, OVERWRITE COUNT  2..3 INITIALIZATION PATTERN LENGTH  4.. pattern
const overwriteHeaderLen = 4

const (
	overwriteInvert    = 0x80
	overwriteTest      = 0x60
	overwriteCountMask = 0x1f
)

// An overwriting is OVERWRITE's parameters.
type overwriting struct {
	invert bool
	count  uint64
	block  []byte // a block of the pattern
}

// parseOverwrite reads a list longer than its header. The pattern is repeated to fill a block.
func parseOverwrite(list []byte, blockSize uint64) (overwriting, error) {
	n := uint64(binary.BigEndian.Uint16(list[2:]))
	switch {
	case list[0]&overwriteTest != 0:
		return overwriting{}, invalidParameter(0, 6) // vendor specific
	case list[0]&overwriteCountMask == 0:
		return overwriting{}, invalidParameter(0, 4)
	case n == 0 || n > blockSize || n > uint64(len(list)-overwriteHeaderLen):
		return overwriting{}, invalidParameter(2, 7)
	}
	o := overwriting{list[0]&overwriteInvert != 0, uint64(list[0] & overwriteCountMask), make([]byte, blockSize)}
	pattern := list[overwriteHeaderLen:][:n]
	for at := o.block; len(at) > 0; {
		at = at[copy(at, pattern):]
	}
	return o, nil
}

// overwrite makes all passes. INVERT turns the pattern round between them, so that the last one has it as
// given.
func (lu *LogicalUnit) overwrite(o overwriting) error {
	for left := o.count; left > 0; left-- {
		block := slices.Clone(o.block)
		if o.invert && left%2 == 0 {
			for i := range block {
				block[i] = ^block[i]
			}
		}
		err := lu.inSteps(func(lba, n uint64) error { return lu.fill(lba, n, [][]byte{block}) })
		if err != nil {
			return err
		}
	}
	return nil
}
