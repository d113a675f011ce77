package iser

// A request is the life of one command's memory at the initiator (DESIGN.md, 5; ISER.md, 4.6). Three independent
// things end it, in any order, and each thing is given back exactly once:
//
//   - its Sends complete: until then our own device may read their memory again, to retransmit;
//   - the response comes, or never will;
//   - the key that the peer was given is dead: the response's Send with Invalidate has ended it, or else we do.
//
// The states of a key:
//
//	          ┌─────────────── answered, with its invalidation ────────────────┐
//	open ─────┤                                                                ├──► closed: the memory is given back
//	          └─ answered without │ forgotten, and Sends completed ► closing ──┘
//
//	permanent ─ answered ──► closed (the peer has promised not to use it any more)
//	          └ forgotten ─► closed, and the pool memory is lost: the peer may still use it
//
// Nothing but an answer or its certain absence closes a key: a timeout that invalidated one would race the peer's
// own invalidation, and the second of the two ends the connection (ISER.md 4.8, race 14). And we close none while a
// Send is being sent that has to do with it.
type request struct {
	queued bool // more of it is still to be sent
	sends  int  // Sends staged or posted, not completed
	key    keyState
	stag   uint32 // the key
	// inPlace: the peer, and the Sends, use the caller's own memory.
	inPlace bool

	answered, forgotten bool
	detached            bool // the caller's buffers are out of reach
	released            bool
}

type keyState uint8

const (
	keyClosed    keyState = iota // none was given, or it is dead
	keyOpen                      // the peer may use the memory
	keyClosing                   // our invalidation of it is under way
	keyPermanent                 // of the whole pool: it lives as long as the connection
)

// What a step of a request asks for.
type action uint8

const (
	actPut        action = 1 << iota // give the memory and its window back
	actLose                          // keep the memory until the connection's end
	actCopy                          // copy read data to the caller first
	actInvalidate                    // invalidate the key; closed is to be called when that has completed
	actRelease                       // tell the engine; the request is over
)

// offer: the peer is given a key.
func (r *request) offer(key keyState, stag uint32) { r.key, r.stag = key, stag }

// sending: one more Send is staged.
func (r *request) sending() { r.sends++ }

// allSent: nothing more will be sent.
func (r *request) allSent() action {
	r.queued = false
	return r.end()
}

// sent: one Send has completed.
func (r *request) sent() action {
	if r.sends == 0 {
		panic("iser: a Send of a request completed twice")
	}
	r.sends--
	return r.end()
}

// answer: the response has come and, if invalidated, the peer has ended the key stag with it. If that is not the key
// of this very request, still open, ok is false: another's memory may be cut off from its data, and the connection
// is over.
func (r *request) answer(invalidated bool, stag uint32) (act action, ok bool) {
	if r.answered || r.forgotten {
		panic("iser: a request ended twice")
	}
	if invalidated && (r.key != keyOpen || stag != r.stag) {
		return 0, false
	}
	r.answered = true
	if !r.detached {
		act = actCopy
	}
	if invalidated || r.key == keyPermanent {
		r.key = keyClosed
		act |= actPut
	}
	return act | r.end(), true
}

// forget: there will be no response.
func (r *request) forget() (act action) {
	if r.answered || r.forgotten {
		return 0
	}
	r.forgotten = true
	if r.key == keyPermanent {
		r.key = keyClosed
		act = actLose
	}
	return act | r.end()
}

// closed: our invalidation of the key has completed.
func (r *request) closed() action {
	if r.key != keyClosing {
		panic("iser: a key was invalidated twice")
	}
	r.key = keyClosed
	return actPut | r.end()
}

// die: the connection is over, but its queue pair may still be there. What uses the caller's own memory ends with
// that only. For the rest, the engine's transfer and the caller's buffers are no part of what the device may still
// use, and it is not waited for.
func (r *request) die() action {
	if r.released || r.inPlace && (r.key != keyClosed || r.sends > 0) {
		return 0
	}
	r.released = true
	return actRelease
}

// end finds out whether the request is over, or would be but for its key.
func (r *request) end() action {
	if r.released || r.queued || r.sends > 0 || !r.answered && !r.forgotten {
		return 0
	}
	switch r.key {
	case keyOpen:
		r.key = keyClosing
		return actInvalidate
	case keyClosed:
		r.released = true
		return actRelease
	}
	return 0
}
