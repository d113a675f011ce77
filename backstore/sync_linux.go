package backstore

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A syncer makes a file's writes durable, and is honest about it.
//
// When writing back a dirty page fails, Linux marks the page clean, and may drop it, and tells each open
// file description once (fsync(2), errors; errseq_t in Documentation/core-api). A second fdatasync then
// succeeds although the data is gone. Two things follow:
//
//  1. The first error is remembered. Every later flush and forced write fails with it, until the store
//     is opened again: what was lost cannot be found out.
//  2. Two flushes of one descriptor never run at the same time. The one error there is could be told to
//     one of them, and the other, whose pages they were, would succeed.
//
// Flushes that wait meanwhile are served together by the next one, as a database commits a group.
//
// A full file system is not remembered where the write itself was told so (note, end): the write has
// failed, and nothing else has.
type syncer struct {
	mu            sync.Mutex
	changed       *sync.Cond // on mu; made by newSyncer
	running       bool
	started, done uint64 // fdatasyncs
	err           error  // the first error
}

func (s *syncer) init() { s.changed = sync.NewCond(&s.mu) }

// sync returns when a flush that was begun after the call has ended.
func (s *syncer) sync(fdatasync func(int) error, fd int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.started + 1
	for s.running && s.done < want {
		s.changed.Wait()
	}
	if s.err != nil || s.done >= want {
		return s.failureLocked()
	}
	s.running = true
	s.started++
	s.mu.Unlock()
	err := retryInterrupted(fdatasync, fd)
	s.mu.Lock()
	s.done = s.started
	s.running = false
	s.changed.Broadcast()
	if err != nil {
		s.err = cause(err)
	}
	return s.err // nil before: checked above, and nobody else runs
}

// begin waits until no flush runs and takes the turn; end gives it back with what the flush has said.
func (s *syncer) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running {
		s.changed.Wait()
	}
	if s.err != nil {
		return s.failureLocked()
	}
	s.running = true
	return nil
}

func (s *syncer) end(err error) {
	s.note(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	s.changed.Broadcast()
}

// note remembers the error of a write that was to flush its own blocks.
func (s *syncer) note(err error) {
	if err == nil || errors.Is(err, ErrNoSpace) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// failure is what was remembered.
func (s *syncer) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failureLocked()
}

func (s *syncer) failureLocked() error {
	if s.err == nil {
		return nil
	}
	return fmt.Errorf("an earlier flush failed and completed writes may be lost; check the disk, then reopen the store: %w", s.err)
}

func retryInterrupted(call func(int) error, fd int) error {
	for {
		if err := call(fd); err != unix.EINTR {
			return err
		}
	}
}
