package link

import (
	"runtime"
	"time"
)

const (
	// spinTime is how long a Recv looks for packets before it sleeps, when they are expected: a peer on this machine or
	// the next answers within this. To fall asleep and be woken takes a third of it at either end, and about as much of
	// the processor.
	spinTime = 20 * time.Microsecond
	// spinTrust is how many times in a row spinning may be of no use before it ends, and spinProbe how many sleeps
	// later it is tried again: on a busy machine the peer does not run while we spin, nor does anybody else.
	spinTrust = 4
	spinProbe = 64
	// manyPackets in a Recv are part of a stream.
	manyPackets = 8
)

// A spinner decides whether a Recv that found nothing looks again before it sleeps.
type spinner struct {
	alone  bool // we have one processor only: others need it
	trust  int
	sleeps int
}

func newSpinner() spinner { return spinner{alone: runtime.GOMAXPROCS(0) < 2, trust: spinTrust} }

// begins reports whether to spin now. expected: something was sent, or much received.
func (s *spinner) begins(expected bool) bool {
	if s.alone || !expected {
		return false
	}
	if s.trust > 0 {
		return true
	}
	if s.sleeps++; s.sleeps < spinProbe {
		return false
	}
	s.sleeps = 0
	return true
}

// ended learns from a spin.
func (s *spinner) ended(found bool) {
	switch {
	case found:
		s.trust = spinTrust
	case s.trust > 0:
		s.trust--
	}
}

// spin looks for packets for a while instead of sleeping, and reports whether there were any, or Recv is to end.
func (r *receiver) spin(fd uintptr) bool {
	if !r.spinner.begins(r.u.sentSince.Swap(false) || r.many) {
		return false
	}
	end := time.Now().Add(spinTime)
	if !r.deadline.IsZero() && r.deadline.Before(end) {
		return false
	}
	for {
		if r.receive(fd) {
			r.spinner.ended(true)
			return true
		}
		if r.u.woken.Load() { // it is about something else
			return false
		}
		if !time.Now().Before(end) {
			r.spinner.ended(false)
			return false
		}
	}
}
